"""Several classes from the bottom up: mPCVM2 (Lyu et al. 2020, Algorithm 2, corrected) and mRVM1."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from pcvm_pymc.core.em.binary import Status
from pcvm_pymc.core.em.mpcvm import ClassResult, ClassTrace, start_response
from pcvm_pymc.core.em.nonnegative import BorderedGram, solve_nonnegative
from pcvm_pymc.core.pieces.multinomial import Labels, class_terms
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["BottomUpOptions", "BottomUpProblem", "Machine", "fit_bottom_up"]

_REFRESH = 30  # rank-one steps
_ALIGNED = 1e-9  # of phi' phi: what is left of such a column is rounding


@dataclass(frozen=True)
class BottomUpProblem:
    """What a fit is given.

    Attributes
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
    label : ndarray of int, shape (n_obs,)
        Classes, 0 to n_classes - 1.
    n_classes : int
    sign : ndarray, shape (n_basis, n_classes), or None
        Sign of each weight: mPCVM2. None leaves them free.
    shared : bool
        Whether a basis has one precision for all classes (mRVM1) or one for each (mPCVM2).
    has_bias : bool
        Whether a constant, under ARD as well, is among the bases. The papers have none.
    """

    Phi: Array
    label: Labels
    n_classes: int
    sign: Array | None
    shared: bool = False
    has_bias: bool = False

    def __post_init__(self) -> None:
        if self.shared and self.sign is not None:
            raise ValueError("shared precisions need free weights: sign=None, found signs")


@dataclass(frozen=True)
class BottomUpOptions:
    """How long the search runs.

    Attributes
    ----------
    max_iter : int
        Epochs; in each, every class makes one change and the responses are computed anew.
    tol : float
        The search stops when no basis is to be added or deleted and no log precision moves by more.
    """

    max_iter: int = 1000
    tol: float = 1e-2

    def __post_init__(self) -> None:
        if self.max_iter < 1:
            raise ValueError(f"max_iter={self.max_iter} must be at least 1")
        if not self.tol > 0:
            raise ValueError(f"tol={self.tol} must be positive")


class _Design:
    """The bases (and a constant), and those columns of their Gram matrix that were asked for."""

    def __init__(self, problem: BottomUpProblem) -> None:
        Phi = problem.Phi
        ones = [np.ones((len(Phi), 1))] if problem.has_bias else []
        self.columns = np.hstack([Phi, *ones]) if ones else Phi
        self.square = np.einsum("ij,ij->j", self.columns, self.columns)
        self._products: dict[int, Array] = {}

    def products(self, n: int) -> Array:
        """Return ``Phi' phi_n``, shape (n_columns,)."""
        if n not in self._products:
            self._products[n] = np.ascontiguousarray(self.columns[:, n]) @ self.columns
        return self._products[n]


class Machine:
    """The posterior of one class' weights, or of several classes' that share their precisions.

    Given responses z with unit noise, the weights are normal with covariance
    ``Sigma = (Phi'Phi + A)^-1``, kept by rank-one updates (Lyu et al. 2020 eqs. 33-38).

    Attributes
    ----------
    index : list of int
        Columns in the machine.
    alpha : ndarray, shape (m,)
    covariance : ndarray, shape (m, m)
    cross : ndarray, shape (m, n_columns)
        Inner products of the kept columns with all.
    S : ndarray, shape (n_columns,)
        ``phi' C^-1 phi`` of every column.
    """

    def __init__(self, design: _Design) -> None:
        self.design = design
        self.index: list[int] = []
        self.alpha = np.empty(0)
        self.covariance = np.empty((0, 0))
        self.cross = np.empty((0, len(design.square)))
        self.S = design.square.copy()
        self._n_updates = 0

    def mean(self, projected: Array) -> Array:
        """Return the posterior mean, shape (m, n_responses), from ``Phi' z`` of every column."""
        return self.covariance @ projected[self.index]

    def leave_one_out(self, projected: Array) -> tuple[Array, Array]:
        """Return s and q of every column, shapes (n_columns,) and (n_columns, n_responses)."""
        mean = self.mean(projected)
        s, q = self.S.copy(), projected - self.cross.T @ mean
        variance = np.diag(self.covariance)
        s[self.index] = 1.0 / variance - self.alpha
        q[self.index] = mean / variance[:, None]
        return np.maximum(s, np.finfo(float).tiny), q

    def add(self, n: int, alpha: float) -> None:
        """Take a column into the machine."""
        products = self.design.products(n)
        pull = self.covariance @ self.cross[:, n]
        left = products - pull @ self.cross
        variance = 1.0 / (alpha + max(left[n], 0.0))
        corner = -variance * pull
        self.covariance = np.block(
            [
                [self.covariance - np.outer(corner, pull), corner[:, None]],
                [corner[None], np.array([[variance]])],
            ]
        )
        self.S -= variance * left**2
        self.index.append(n)
        self.alpha = np.append(self.alpha, alpha)
        self.cross = np.vstack([self.cross, products])
        self._count()

    def set_alpha(self, place: int, alpha: float) -> None:
        """Give the column at a place another precision."""
        change = alpha - self.alpha[place]
        self._downdate(place, change / (1.0 + change * self.covariance[place, place]))
        self.alpha[place] = alpha
        self._count()

    def delete(self, place: int) -> None:
        """Take the column at a place out of the machine."""
        self._downdate(place, 1.0 / self.covariance[place, place])
        del self.index[place]
        self.alpha = np.delete(self.alpha, place)
        self.covariance = np.delete(np.delete(self.covariance, place, 0), place, 1)
        self.cross = np.delete(self.cross, place, 0)
        self._count()

    def refresh(self) -> None:
        """Compute covariance and S anew."""
        self._n_updates = 0
        precision = self.cross[:, self.index] + np.diag(self.alpha)
        self.covariance = cho_solve(cho_factor(precision, lower=True), np.eye(len(self.alpha)))
        self.S = self.design.square - np.einsum(
            "ij,ij->j", self.cross, self.covariance @ self.cross
        )

    def _downdate(self, place: int, kappa: float) -> None:
        column = self.covariance[:, place].copy()
        self.S += kappa * (column @ self.cross) ** 2
        self.covariance = self.covariance - kappa * np.outer(column, column)

    def _count(self) -> None:
        self._n_updates += 1
        if self._n_updates >= _REFRESH:
            self.refresh()


@dataclass(frozen=True)
class _Change:
    """What an epoch did to a machine; `moved` is the largest change of a log precision."""

    structural: bool
    moved: float


def _improve(machine: Machine, projected: Array, sign: Array | None) -> _Change:
    """Make one change: an addition if any is admissible, else a deletion, else new precisions.

    A column is admitted only if ``f q > 0``, and a member goes if ``f mu < 0``: eq. 31, which sets
    wrong-signed entries of the mean to zero, diverges.
    """
    s, q = machine.leave_one_out(projected)
    n_responses = q.shape[1]
    excess = np.einsum("ij,ij->i", q, q) - n_responses * s
    right = np.ones(len(s), dtype=bool) if sign is None else sign * q[:, 0] >= 0
    member = np.zeros(len(s), dtype=bool)
    member[machine.index] = True
    candidates = right & ~member & (_ALIGNED * machine.design.square < machine.S) & (excess > 0)
    if candidates.any():
        # the gain of eq. 39's evidence for weights that the prior shares among the responses
        gain = np.full(len(s), -np.inf)
        square = np.einsum("ij,ij->i", q[candidates], q[candidates])
        ratio = square / (n_responses * s[candidates])
        gain[candidates] = n_responses * (ratio - 1.0 - np.log(ratio))
        n = int(gain.argmax())
        machine.add(n, n_responses * s[n] ** 2 / excess[n])
        return _Change(True, np.inf)
    unwanted = member & ((excess <= 0) | ~right)
    if unwanted.any():
        n = int(np.where(unwanted, np.where(right, excess, -np.inf), np.inf).argmin())
        machine.delete(machine.index.index(n))
        return _Change(True, np.inf)
    return _Change(False, _reestimate(machine, projected, sign))


def _reestimate(machine: Machine, projected: Array, sign: Array | None) -> float:
    """Set each member's precision to its best value in turn (eq. 39); return the largest change."""
    moved = 0.0
    for place in range(len(machine.index)):
        variance = machine.covariance[place, place]
        q = machine.covariance[place] @ projected[machine.index] / variance
        s = 1.0 / variance - machine.alpha[place]
        excess = float(q @ q) - len(q) * s
        if excess <= 0 or s <= 0:  # the next epoch deletes it
            continue
        alpha = len(q) * s**2 / excess
        moved = max(moved, abs(np.log(alpha / machine.alpha[place])))
        machine.set_alpha(place, alpha)
    return moved


def _mode(
    problem: BottomUpProblem, machine: Machine, projected: Array, c: int
) -> tuple[Array, float]:
    """Return a class' weights on the machine's columns as the mode of the truncated posterior."""
    index = np.asarray(machine.index, dtype=np.intp)
    basis = index < problem.Phi.shape[1]
    kept, place = index[basis], np.flatnonzero(basis)
    assert problem.sign is not None
    ones = problem.Phi.shape[1]
    if problem.has_bias:
        border, corner = machine.cross[place, ones], float(len(problem.Phi))
    else:
        border, corner = np.zeros(len(kept)), 0.0
    has_bias = not basis.all()
    gram = BorderedGram(np.asfortranarray(machine.cross[np.ix_(place, kept)]), border, corner)
    weight, bias = solve_nonnegative(
        gram,
        problem.sign[kept, c] / np.sqrt(machine.alpha[place]),
        float(machine.alpha[~basis][0] ** -0.5) if has_bias else 0.0,
        (projected[kept], float(projected[ones]) if has_bias else 0.0),
        np.ones(len(kept), dtype=bool),
    )
    out = np.zeros(problem.Phi.shape[1])
    out[kept] = weight
    return out, bias


class _Search:
    """Machines, responses and weights of a fit, epoch after epoch."""

    def __init__(self, problem: BottomUpProblem, response: Array) -> None:
        self.problem = problem
        self.design = _Design(problem)
        self.machines = [
            Machine(self.design) for _ in range(1 if problem.shared else problem.n_classes)
        ]
        self.weight = np.zeros((problem.Phi.shape[1], problem.n_classes))
        self.bias = np.zeros(problem.n_classes)
        self.latent = np.zeros(response.shape)
        self.projected = (response.T @ self.design.columns).T
        self.log_likelihood = np.nan

    def step(self) -> _Change:
        """Run one epoch: a change in every machine, then weights and responses."""
        changes = [
            _improve(machine, self._responses(k), self._sign(k))
            for k, machine in enumerate(self.machines)
        ]
        self._update()
        return _Change(
            any(change.structural for change in changes),
            max(change.moved for change in changes),
        )

    @property
    def n_active(self) -> int:
        """Number of weights that are not zero."""
        return int(np.count_nonzero(self.weight))

    def log_posterior(self) -> float:
        """Return log p(t | W) + log p(W | A), the precisions as they stand."""
        total = self.log_likelihood
        for c in range(self.problem.n_classes):
            machine = self.machines[0 if self.problem.shared else c]
            value = np.append(self.weight[:, c], self.bias[c])[machine.index]
            alpha = machine.alpha
            total += float(np.sum(0.5 * np.log(alpha / (2 * np.pi)) - 0.5 * alpha * value**2))
            if self.problem.sign is not None:
                total += np.log(2.0) * np.sum(np.asarray(machine.index) < len(self.weight))
        return total

    def _responses(self, k: int) -> Array:
        return self.projected if self.problem.shared else self.projected[:, [k]]

    def _sign(self, k: int) -> Array | None:
        if self.problem.sign is None:
            return None
        sign = self.problem.sign[:, k]
        return np.append(sign, 0.0) if self.problem.has_bias else sign

    def _update(self) -> None:
        problem = self.problem
        n_basis = len(self.weight)
        for c in range(problem.n_classes):
            machine = self.machines[0 if problem.shared else c]
            if problem.sign is not None:
                self.weight[:, c], self.bias[c] = _mode(problem, machine, self.projected[:, c], c)
                continue
            every = np.zeros(n_basis + 1)
            every[machine.index] = machine.mean(self.projected[:, [c]])[:, 0]
            self.weight[:, c], self.bias[c] = every[:-1], every[-1]
        used = np.flatnonzero(self.weight.any(axis=1))
        self.latent = problem.Phi[:, used] @ self.weight[used] + self.bias
        terms = class_terms(self.latent, problem.label)
        self.log_likelihood = float(terms.log_probability.sum())
        self.projected = ((self.latent + terms.score).T @ self.design.columns).T


def fit_bottom_up(
    problem: BottomUpProblem,
    start: Array | None = None,
    options: BottomUpOptions | None = None,
    callback: Callable[[int, float], None] | None = None,
) -> ClassResult:
    """Add, delete and weigh bases one at a time: mPCVM2 with signs, mRVM1 shared without.

    Parameters
    ----------
    problem : BottomUpProblem
    start : ndarray, shape (n_obs, n_classes), optional
        Latent responses of the first epoch; default: 10.5 for the own class, 0.5 for the others.
    options : BottomUpOptions, optional

    Returns
    -------
    ClassResult

    References
    ----------
    S. Lyu, X. Tian, Y. Li, B. Jiang and H. Chen (2020), "Multiclass probabilistic classification
    vector machine", IEEE Transactions on Neural Networks and Learning Systems 31(10), Algorithm 2,
    corrected: its eq. 31 diverges, and it has no rule for when to stop. mRVM1: T. Damoulas, Y. Ying,
    M. A. Girolami and C. Campbell (2008), "Inferring sparse kernel combinations and relevance
    vectors", ICMLA.
    """
    options = options or BottomUpOptions()
    search = _Search(
        problem, start_response(problem.label, problem.n_classes) if start is None else start
    )
    rows: list[tuple[float, int, float]] = []
    status = Status.ITERATION_LIMIT
    for n_iter in range(1, options.max_iter + 1):
        old = search.latent
        change = search.step()
        rows.append(
            (search.log_posterior(), search.n_active, float(np.abs(search.latent - old).max()))
        )
        if callback is not None:
            callback(n_iter, rows[-1][0])
        if not change.structural and change.moved < options.tol:
            status = Status.CONVERGED
            break
    if search.n_active == 0:
        status = Status.EMPTY_MODEL
    trace = ClassTrace(*(np.asarray(column) for column in zip(*rows, strict=True)))
    return ClassResult(
        search.weight, search.bias, search.latent, rows[-1][0], status, len(rows), trace
    )
