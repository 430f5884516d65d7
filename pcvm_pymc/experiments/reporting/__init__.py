"""The report of a run: the paper's table and the measured one, tests, pictures, and what was missing."""

from pcvm_pymc.experiments.reporting.reading import report_of
from pcvm_pymc.experiments.reporting.report import Report, Section

__all__ = ["Report", "Section", "report_of"]
