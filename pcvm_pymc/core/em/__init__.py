"""EM: one machine for one score or several, rows in memory, in chunks or on Dask."""

from pcvm_pymc.core.em.machine import (
    fit_em,
    initial_state,
    iterate,
    log_joint,
    log_posterior,
    relevance_start,
)
from pcvm_pymc.core.em.options import EMOptions
from pcvm_pymc.core.em.results import EMState
from pcvm_pymc.core.em.starts import Start
from pcvm_pymc.core.em.widths import ScalarRBFMoves, width_gradient
from pcvm_pymc.core.problem import EMResult, EMTrace

__all__ = [
    "EMOptions",
    "EMResult",
    "EMState",
    "EMTrace",
    "ScalarRBFMoves",
    "Start",
    "fit_em",
    "initial_state",
    "iterate",
    "log_joint",
    "log_posterior",
    "relevance_start",
    "width_gradient",
]
