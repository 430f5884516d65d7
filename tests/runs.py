"""Experiments that are run, and their reports."""

from pcvm_pymc.experiments.reporting import report_of
from pcvm_pymc.experiments.running import reproduce


def reported(name, out, **options):
    """Run an experiment in a folder without a progress bar; return its report."""
    reproduce(name, out=out, progressbar=False, **options)
    return report_of(out)
