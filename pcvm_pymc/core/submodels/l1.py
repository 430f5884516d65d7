"""Supports along an L1 path: another start for the search, of vectors that are chosen together."""

import numpy as np

from pcvm_pymc.core.submodels.fractional import probability_derivatives
from pcvm_pymc.core.submodels.refit import minimise, null_model
from pcvm_pymc.core.submodels.scans import scan
from pcvm_pymc.core.submodels.target import Columns, Target

__all__ = ["l1_supports"]

# to the working set at a time: more, and near neighbours get in each other's way
_ENTERING = 8


def l1_supports(
    target: Target, largest: int, *, ratio: float = 0.85, tol: float = 1e-6
) -> dict[int, Columns]:
    """Return a support of each size 1 to `largest` along an L1 path.

    The path minimises divergence + lambda sum_j c_j abs(w_j) (c_j the column's standard deviation under the
    curvature at the null model) for lambda falling by `ratio`, by Newton steps on a working set
    that takes in every column which violates the optimality conditions. A size
    that the path jumps over is made of the largest c_j abs(w_j) of the next support.

    Parameters
    ----------
    target : Target
        Of one score, with signs.
    largest : int
    ratio : float
        Of successive penalties.
    tol : float
        The path ends once the divergence falls below this, in nats per row.
    """
    sign, null = np.asarray(target.sign), null_model(target)
    start = scan(target, null)
    spread = np.sqrt(np.where(np.isfinite(start.schur), start.schur, np.inf))
    upward = np.maximum(start.score * sign, 0.0) / spread
    penalty = float(upward.max(initial=0.0))
    least, working, weight, bias = 1e-4 * penalty, null.columns, null.weight, null.bias
    latent = null.latent
    supports: dict[int, Columns] = {}
    while penalty > least and len(supports) < largest:
        penalty *= ratio
        for _ in range(10):  # the next penalty mends what is not at rest by then
            residual = (
                target.mass
                * probability_derivatives(latent, target.probability, target.likelihood)[0]
            )
            excess = (residual @ target.Phi) * sign / spread
            excess[working] = 0.0
            entering = np.flatnonzero(excess > penalty * (1 + 1e-3))
            if supports and len(entering) == 0:
                break
            entering = entering[np.argsort(-excess[entering])][:_ENTERING]
            weight = np.append(weight, np.zeros(len(entering)))
            working = np.append(working, entering)
            tilt = penalty * spread[working] * sign[working]
            weight, bias, latent, _ = minimise(target, working, weight, bias, tilt=tilt, tol=1e-8)
            working, weight = working[weight != 0], weight[weight != 0]
            if len(entering) == 0:
                break
        order = working[np.argsort(-spread[working] * np.abs(weight))]
        for size in range(1, min(len(order), largest) + 1):
            supports.setdefault(size, order[:size])
        if target.divergence(latent) < tol:
            break
    return supports
