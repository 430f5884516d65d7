"""Held-out latent values and log densities of every row."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.em.points import Chunks
from pcvm_pymc.core.loo.carried import carried_on
from pcvm_pymc.core.loo.mode import Mode
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import threads_by_size
from pcvm_pymc.core.problem import Problem

__all__ = ["LeaveOneOut", "leave_one_out"]

_GROUP = 256  # rows that are carried on at a time
# 99 of 100 refits end within 40 iterations; where basis functions are huge some would creep on for thousands
_REFIT = EMOptions(tol=1e-2, max_iter=200)
_VERY_FAR = (
    1.0  # those that moved most and by more are refitted: the objective may have other maxima
)
_FAR = 0.3  # on the probit's scale: no probability moves by more than 0.12


@dataclass(frozen=True)
class LeaveOneOut:
    """Held-out predictions of every row.

    Attributes
    ----------
    latent : ndarray, shape (n_obs,) or (n_obs, n_scores)
        Latent values of each row without it and without the bases that stand on it.
    log_density : ndarray, shape (n_obs,)
        Log probability (or density) of each row's target there, as often as the row counts.
    improved : ndarray of bool, shape (n_obs,)
        Rows that moved too far for the quadratic model, and were carried on.
    unsettled : ndarray of bool, shape (n_obs,)
        Rows that moved too far and were not carried on, or still moved when the work was given up.
    """

    latent: Array
    log_density: Array = field(repr=False)
    improved: NDArray[np.bool_] = field(repr=False)
    unsettled: NDArray[np.bool_] = field(repr=False)

    @property
    def log_loss(self) -> float:
        """Mean negative log density, nats per row."""
        return -float(self.log_density.mean())


@threads_by_size
def leave_one_out(
    problem: Problem,
    weight: Array,
    bias: Any,
    own: NDArray[np.intp],
    *,
    precision: Array | None = None,
    improve: bool = True,
    refits: int = 16,
) -> LeaveOneOut:
    """Return held-out predictions of every row from one factorisation at a posterior mode.

    Parameters
    ----------
    problem : Problem
        Its basis functions in memory, or in chunks of an array.
    weight : ndarray, shape (n_basis,) or (n_basis, n_scores)
        The mode's, as `fit_em` returns them.
    bias : float or ndarray, shape (n_scores,)
    own : ndarray of int, shape (n_basis,)
        The row that each basis stands on, which takes it along; -1 for a basis that stands on none.
    precision : ndarray, shape of `weight`, optional
        Precisions of the weights where they are given, as the evidence leaves them. Default: expected
        ones at the mode.
    improve : bool
        Whether rows that move too far for the quadratic model are carried on.
    refits : int
        How many of them are refitted in the end, those first that did not come to rest, then those that
        move most; not rows in chunks. With none, rows that creep are not followed to their ends either.

    Returns
    -------
    LeaveOneOut

    Raises
    ------
    ValueError
        If the rows are on a cluster, or `own` has another shape.

    Notes
    -----
    A row that counts by a weight is left out altogether, as often as it counts.

    Under a prior that holds zeros, weights that are zero stay so without a row as well: what its removal
    would do to the choice of bases is not seen.
    """
    n_basis = problem.Phi.shape[1]
    if np.shape(own) != (n_basis,):
        raise ValueError(f"own has shape {np.shape(own)}; needed ({n_basis},), a row of each basis")
    mode = Mode(problem, weight, bias, np.asarray(own), precision)
    latent, log_density, moved = mode.removed()
    far = np.abs(moved).max(axis=1) > _FAR
    nothing = np.zeros_like(far)
    quadratic = LeaveOneOut(mode.shaped(latent), log_density, nothing, far)
    if not improve or not far.any():
        return quadratic
    inside, unsettled, rows = latent - moved, far.copy(), np.flatnonzero(far)
    for group in np.split(rows, range(_GROUP, len(rows), _GROUP)):
        latent[group], unsettled[group] = carried_on(
            mode, group, moved[group], to_the_end=refits > 0
        )
    if refits and precision is None and not isinstance(problem.Phi, Chunks):
        moved = np.abs(latent - inside).max(axis=1)
        in_doubt = rows[unsettled[rows] | (moved[rows] > _VERY_FAR)]
        worst = in_doubt[np.lexsort((-moved[in_doubt], ~unsettled[in_doubt]))]
        for row in worst[:refits].tolist():
            latent[row], unsettled[row] = _refitted(mode, row)
    log_density = problem.likelihood.log_density(mode.shaped(latent), mode.label)
    return replace(
        quadratic,
        latent=mode.shaped(latent),
        log_density=log_density,
        improved=far,
        unsettled=unsettled,
    )


def _refitted(mode: Mode, row: int) -> tuple[Array, bool]:
    """Return a row's latent values by a fit without it and its bases, and whether that was given up."""
    problem = mode.problem
    rows = np.delete(np.arange(len(mode.label)), row)
    columns = np.flatnonzero(mode.own != row)
    sign = None if problem.sign is None else problem.sign[columns]
    without = replace(
        problem,
        Phi=problem.Phi[np.ix_(rows, columns)],
        label=mode.label[rows],
        sign=sign,
        moves=None,
    )
    one = problem.n_scores == 1
    weight = mode.weight[columns]
    start = Start(weight[:, 0], float(mode.bias[0])) if one else Start(weight, mode.bias)
    found = fit_em(without, start, _REFIT)
    held = problem.Phi[row, columns] @ found.weight + found.bias
    return np.atleast_1d(held), not found.converged
