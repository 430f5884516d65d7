"""Experiments that are run, and their reports; how NUTS is kept short."""

from pcvm_pymc.experiments.reporting import report_of
from pcvm_pymc.experiments.running import reproduce

#: trees of one step, also in the first 200 transitions, where PyMC has another limit
SHALLOW = {"max_treedepth": 1, "early_max_treedepth": 1}


def reported(name, out, **options):
    """Run an experiment in a folder without a progress bar; return its report."""
    reproduce(name, out=out, progressbar=False, **options)
    return report_of(out)
