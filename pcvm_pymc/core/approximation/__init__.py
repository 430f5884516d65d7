"""Fast approximations of the posterior of signed weights: Laplace's, and expectation propagation.

Sizes of the weights are what is unknown here, on half-lines, precisions integrated out. Chen, Tino & Yao
(2014) approximate the same posterior given the precisions, and maximise over these.
"""

from pcvm_pymc.core.approximation.laplace import LaplaceFit, fit_laplace
from pcvm_pymc.core.approximation.moments import (
    Tilted,
    half_line_tilted,
    probit_tilted,
    student_tilted,
)
from pcvm_pymc.core.approximation.propagation import PropagationFit, PropagationOptions, propagate
from pcvm_pymc.core.approximation.laplace import SignedRows
from pcvm_pymc.core.approximation.truncated import truncated_normal_draws

__all__ = [
    "LaplaceFit",
    "PropagationFit",
    "PropagationOptions",
    "SignedRows",
    "Tilted",
    "fit_laplace",
    "half_line_tilted",
    "probit_tilted",
    "propagate",
    "student_tilted",
    "truncated_normal_draws",
]
