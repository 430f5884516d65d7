"""Changes of a search from the bottom up: bases that come, go and are weighed anew under given responses."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs, dtrtrs

from pcvm_pymc.core.evidence.active_set import Probe, Selection, leave_one_out
from pcvm_pymc.core.evidence.bottom_up_rows import ALIGNED, ChunkedBases, HeldBases
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["Change", "Machine", "improve", "reestimate"]

type Mask = NDArray[np.bool_]

_REFRESH = 30  # rank-one steps
_GIVEN_UP = 3  # times that a column was taken out, after which it stays out


class Machine:
    """The posterior of one score's weights, or of several scores' that share their precisions.

    Given responses z whose noise has precision beta, the weights are normal with covariance
    ``Sigma = (beta Phi'Phi + A)^-1``, kept by rank-one updates (Lyu et al. 2020 eqs. 33-38). Methods take
    ``beta Phi' z`` of every column, shape (n_columns, n_responses), as `pulled`.

    Attributes
    ----------
    kept : Selection
    n_deleted : ndarray of int, shape (n_columns,)
        How often each column was taken out.
    norm : ndarray, shape (n_columns,)
    """

    def __init__(self, design: HeldBases | ChunkedBases) -> None:
        self.design = design
        self.n_deleted = np.zeros(len(design.square), dtype=np.int64)
        self.norm = np.sqrt(np.maximum(design.square, np.finfo(float).tiny))
        self.kept = Selection(
            index=np.empty(0, dtype=np.int64),
            alpha=np.empty(0),
            covariance=np.empty((0, 0)),
            cross=np.empty((0, len(design.square))),
            S=design.beta * design.square,
        )

    def mean(self, pulled: Array) -> Array:
        """Return the posterior mean, shape (m, n_responses)."""
        return self.kept.covariance @ pulled[self.kept.index]

    def leave_one_out(self, pulled: Array) -> tuple[Array, Array]:
        """Return s and q of every column, shapes (n_columns,) and (n_columns, n_responses)."""
        mean = self.mean(pulled)
        Q = pulled - self.design.beta * (self.kept.cross.T @ mean)
        return leave_one_out(self.kept, mean, Q)

    def add(self, n: int, alpha: float) -> None:
        """Take a column into the machine."""
        kept, beta, products = self.kept, self.design.beta, self.design.products(n)
        pull = beta * (kept.covariance @ kept.cross[:, n])
        overlap = beta * (products - pull @ kept.cross)
        found = Probe(pull, max(float(overlap[n]), 0.0), products, overlap)
        error = overlap[kept.index] - kept.alpha * pull
        has_drifted = self._moves_S(error, np.abs(overlap / self.norm).max() / (alpha + found.S))
        self._keep(kept.extended(n, alpha, found), has_drifted)

    def set_alpha(self, place: int, alpha: float) -> None:
        """Give the column at a place another precision."""
        has_drifted = self.has_drifted(place)
        self._keep(self.kept.reestimated(place, alpha, self.design.beta), has_drifted)

    def weigh(self, alpha: Array, covariance: Array) -> None:
        """Give all members other precisions; everything but these is computed anew."""
        self.kept = replace(self.kept, alpha=alpha, covariance=covariance)
        self.refresh()

    def delete(self, place: int) -> None:
        """Take the column at a place out of the machine."""
        self.n_deleted[self.kept.index[place]] += 1
        has_drifted = self.has_drifted(place)
        self._keep(self.kept.without(place, self.design.beta), has_drifted)

    def refresh(self) -> None:
        """Compute covariance and S anew."""
        kept, beta = self.kept, self.design.beta
        precision = beta * kept.cross[:, kept.index] + np.diag(kept.alpha)
        # LAPACK itself: what scipy checks takes as long where few bases are in the model
        factor, failed = dpotrf(precision, lower=True)
        if failed:
            raise np.linalg.LinAlgError(f"the precision of {len(precision)} weights is singular")
        covariance = dpotrs(factor, np.eye(len(precision)), lower=True)[0]
        half = dtrtrs(factor, kept.cross, lower=True)[0]  # digits that the inverse has lost
        S = beta * self.design.square - beta**2 * np.einsum("ij,ij->j", half, half)
        self.kept = replace(kept, covariance=covariance, S=S, n_updates=0)

    def _keep(self, kept: Selection, has_drifted: bool) -> None:
        self.kept = kept
        if has_drifted or kept.n_updates >= _REFRESH:
            self.refresh()

    def has_drifted(self, place: int) -> bool:
        """Whether a column of Sigma is too far from the inverse's: ``beta Phi'Phi Sigma = 1 - A Sigma``."""
        kept, column = self.kept, self.kept.covariance[:, place]
        left = self.design.beta * (column @ kept.cross[:, kept.index])
        error = left + kept.alpha * column
        error[place] -= 1.0
        return self._moves_S(error, np.abs(left / self.norm[kept.index]).max() / column[place])

    def _moves_S(self, error: Array, slope: float) -> bool:
        """Whether an error of the members' part of a row moves S, to which its square is added, too far."""
        largest = np.abs(error / self.norm[self.kept.index]).max(initial=0.0)
        return bool(2.0 * slope * largest > ALIGNED * self.design.beta)


@dataclass(frozen=True)
class Change:
    """What an epoch did to a machine; `moved` is the largest change of a log precision."""

    structural: bool
    moved: float


def improve(machine: Machine, pulled: Array, sign: Array | None, most: int = 1) -> Change:
    """Make one change: an addition if any is admissible, else a deletion, else new precisions.

    A column is admitted only if ``f q > 0``, and a member goes if ``f mu < 0``: eq. 31, which sets
    wrong-signed entries of the mean to zero, diverges. One that was taken out three times stays out: where
    rounding tells, it would come and go without end.

    Parameters
    ----------
    machine : Machine
    pulled : ndarray, shape (n_columns, n_responses)
    sign : ndarray, shape (n_columns,), or None
    most : int
        Additions, or deletions, one after the other under these responses.
    """
    found = _Choice.of(machine, pulled, sign)
    for change in (_Choice.add, _Choice.delete):
        if change(found, machine):
            for _ in range(most - 1):
                if not change(_Choice.of(machine, pulled, sign), machine):
                    break
            return Change(True, np.inf)
    return Change(False, reestimate(machine, pulled))


@dataclass(frozen=True)
class _Choice:
    """The column outside that gains most, its precision, and the member that loses most; -1 for none."""

    best: int
    alpha: float
    worst: int

    @classmethod
    def of(cls, machine: Machine, pulled: Array, sign: Array | None) -> "_Choice":
        s, q = machine.leave_one_out(pulled)
        kept = machine.kept
        outside = np.ones(len(s), dtype=bool)
        outside[kept.index] = False
        may_come = machine.design.rounding < kept.S
        may_come &= machine.n_deleted < _GIVEN_UP
        return cls(*_chosen(s, q, np.zeros(len(s)) if sign is None else sign, outside, may_come))

    def add(self, machine: Machine) -> bool:
        """Take in the best; return whether there is one."""
        if self.best >= 0:
            machine.add(self.best, self.alpha)
        return self.best >= 0

    def delete(self, machine: Machine) -> bool:
        """Take out the worst; return whether there is one."""
        if self.worst >= 0:
            machine.delete(int(np.flatnonzero(machine.kept.index == self.worst)[0]))
        return self.worst >= 0


@njit(nogil=True, cache=True, error_model="numpy")
def _chosen(
    s: Array, q: Array, sign: Array, outside: Mask, may_come: Mask
) -> tuple[int, float, int]:
    """Return the best column outside, its precision, and the worst member: see `best_change`.

    What a change gains grows with ``q'q / s``.
    """
    n_responses = q.shape[1]
    best, worst, alpha, highest, lowest = -1, -1, np.inf, 0.0, np.inf
    for n in range(len(s)):
        square = 0.0
        for k in range(n_responses):
            square += q[n, k] * q[n, k]
        excess = square - n_responses * s[n]
        is_right = sign[n] * q[n, 0] >= 0.0
        if outside[n]:
            if may_come[n] and is_right and excess > 0.0 and square / s[n] > highest:
                best, highest = n, square / s[n]
                alpha = n_responses * s[n] * (s[n] / excess)
        elif excess <= 0.0 or not is_right:
            loss = excess if is_right else -np.inf
            if worst < 0 or loss < lowest:
                worst, lowest = n, loss
    return best, alpha, worst


def reestimate(machine: Machine, pulled: Array) -> float:
    """Set each member's precision to its best value in turn (eq. 39); return the largest change."""
    moved, place = 0.0, 0
    own = np.ascontiguousarray(pulled[machine.kept.index])
    while place < len(own):
        kept, beta = machine.kept, machine.design.beta
        members = _Members(
            kept.alpha.copy(),
            kept.covariance.copy(),
            beta * kept.cross[:, kept.index],
            machine.norm[kept.index],
            own,
        )
        place, largest = _weighed_in_turn(members, place, 0.5 * ALIGNED * beta)
        machine.weigh(members.alpha, members.covariance)
        moved = max(moved, largest)
    return moved


class _Members(NamedTuple):
    """Of the columns in the model: precisions, covariance, Gram matrix, norms, and what is `pulled`."""

    alpha: Array
    covariance: Array
    gram: Array
    norm: Array
    own: Array


@njit(nogil=True, cache=True, error_model="numpy")
def _weighed_in_turn(members: _Members, first: int, most: float) -> tuple[int, float]:
    """Set precisions from `first` on, in place; return where it ended, and the largest change.

    It ends early where rank-one steps have lost digits of the covariance: see `Machine.has_drifted`.
    """
    alpha, covariance, gram, norm, own = members
    m, n_responses = own.shape
    column, left, moved = np.empty(m), np.empty(m), 0.0
    for place in range(first, m):
        variance = covariance[place, place]
        s = 1.0 / variance - alpha[place]
        square = 0.0
        for k in range(n_responses):
            q = 0.0
            for j in range(m):
                q += covariance[place, j] * own[j, k]
            square += (q / variance) ** 2
        excess = square - n_responses * s
        if excess <= 0.0 or s <= 0.0:  # the next epoch deletes it
            continue
        new = n_responses * s * s / excess
        moved = max(moved, abs(np.log(new / alpha[place])))
        slope, largest = 0.0, 0.0
        for j in range(m):
            column[j] = covariance[j, place]
        for j in range(m):
            left[j] = 0.0
            for i in range(m):
                left[j] += column[i] * gram[i, j]
            error = left[j] + alpha[j] * column[j] - (1.0 if j == place else 0.0)
            slope = max(slope, abs(left[j]) / norm[j])
            largest = max(largest, abs(error) / norm[j])
        change = new - alpha[place]
        kappa = change / (1.0 + change * variance)
        for i in range(m):
            for j in range(m):
                covariance[i, j] -= kappa * column[i] * column[j]
        alpha[place] = new
        if slope / variance * largest > most:
            return place + 1, moved
    return m, moved
