"""mPCVM2 by Algorithm 2 of Lyu et al. (2020) as it is printed, which diverges on many data."""

from typing import Any

import numpy as np

from pcvm_pymc.core.evidence import BottomUpOptions
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import EMResult, EMTrace, Problem, Status
from pcvm_pymc.estimators.multiclass import MPCVMClassifier

_UNBOUNDED = 1e3  # a score at which the probit is certain to more digits than there are
_DISTINCT = 1e-8  # share of phi' phi: of less than that S is rounding


class _Class:
    """The bases of one class: their columns, precisions, covariance, and S of every basis."""

    def __init__(self, Phi: Array) -> None:
        self.Phi, self.index, self.alpha = Phi, np.empty(0, dtype=np.int64), np.empty(0)
        self.square = np.einsum("ij,ij->j", Phi, Phi)

    def changed(self, response: Array, rng: np.random.Generator) -> float:
        """Make one change; return the largest change of a log precision, infinite where bases change."""
        Q, R = np.linalg.qr(np.vstack([self.Phi[:, self.index], np.diag(np.sqrt(self.alpha))]))
        upper = Q[: len(self.Phi)]
        S = self.square - np.square(upper.T @ self.Phi).sum(axis=0)  # eqs. 37 and 38
        s, q = S.copy(), self.Phi.T @ (response - upper @ (upper.T @ response))
        inverse = np.linalg.inv(R)
        variance = np.square(inverse).sum(axis=1)
        mean = inverse @ (upper.T @ response)
        s[self.index], q[self.index] = 1.0 / variance - self.alpha, mean / variance
        excess = q**2 - s
        is_member = np.zeros(len(s), dtype=bool)
        is_member[self.index] = True
        # not in the print: a column that is a combination of the model's has an S of rounding alone
        outside = ~is_member & (excess > 0) & (_DISTINCT * self.square < S)
        if outside.any():
            n = int(np.where(outside, excess, -np.inf).argmax())
            self.index = np.append(self.index, n)
            self.alpha = np.append(self.alpha, s[n] ** 2 / excess[n])
            return np.inf
        if (is_member & (excess < 0)).any():
            keep = self.index != int(np.where(is_member, excess, np.inf).argmin())
            self.index, self.alpha = self.index[keep], self.alpha[keep]
            return np.inf
        if len(self.index) == 0:
            return 0.0
        with np.errstate(over="ignore", divide="ignore"):  # one that is about to be deleted
            alpha = s[self.index] ** 2 / excess[self.index]
        place = int(rng.integers(len(self.index)))
        moved = float(np.abs(np.log(alpha / self.alpha)).max())
        self.alpha = np.where(np.arange(len(alpha)) == place, alpha, self.alpha)
        return moved

    def clipped_mean(self, response: Array, sign: Array) -> Array:
        """Return the mean with wrong-signed entries set to zero (eq. 31)."""
        Phi, weight = self.Phi[:, self.index], np.zeros(len(sign))
        precision = Phi.T @ Phi + np.diag(self.alpha)
        weight[self.index] = np.linalg.solve(precision, Phi.T @ response)
        return np.where(weight * sign > 0, weight, 0.0)


def fit_printed(
    problem: Problem,
    start: Array | None = None,
    *,
    max_iter: int = 1000,
    tol: float = 1e-2,
    random_state: int = 0,
) -> EMResult:
    """Fit mPCVM2 as printed: the basis of the largest ``q^2 - s`` is added, a random one re-estimated.

    It stops, by a rule that the paper does not have, where a score exceeds 1000: its status is then
    `DIVERGED`. `fit_bottom_up` has the corrected algorithm.

    Parameters
    ----------
    problem : Problem
        Of several classes, with signs and without a bias, its bases in memory.
    start : ndarray, shape (n_obs, n_classes), optional
        Latent responses of the first epoch; by default those of the likelihood.
    max_iter, tol
        As for `BottomUpOptions`.
    random_state : int
        For the bases whose precision is re-estimated.

    Raises
    ------
    ValueError
        If the weights have no signs, or there is a bias.
    """
    if problem.sign is None or problem.bias != "none" or not isinstance(problem.Phi, np.ndarray):
        raise ValueError("Algorithm 2 needs weights with signs, no bias, and bases in memory")
    rng, likelihood, Phi = np.random.default_rng(random_state), problem.likelihood, problem.Phi
    classes = [_Class(Phi) for _ in range(problem.n_scores)]
    latent = np.zeros((len(Phi), problem.n_scores))
    response: Any = likelihood.response(problem.label) if start is None else start
    weight, rows, status = np.zeros(problem.weight_shape), [], Status.ITERATION_LIMIT
    value = problem.observed.terms(latent).log_likelihood
    rows.append((value, 0, np.nan, problem.width))
    while len(rows) <= max_iter:
        moved = max(each.changed(response[:, c], rng) for c, each in enumerate(classes))
        for c, each in enumerate(classes):
            weight[:, c] = each.clipped_mean(response[:, c], problem.sign[:, c])
        old, latent = latent, Phi @ weight
        terms = problem.observed.terms(latent)
        response = latent + terms.slope
        value = terms.log_likelihood
        for c, each in enumerate(classes):  # half-normal given the precisions
            w = weight[each.index, c]
            value += 0.5 * float((np.log(2.0 * each.alpha / np.pi) - each.alpha * w * w).sum())
        change = float(np.abs(latent - old).max())
        rows.append((value, int(np.count_nonzero(weight)), change, problem.width))
        if not np.abs(latent).max() < _UNBOUNDED:
            status = Status.DIVERGED
            break
        if moved < tol:
            status = Status.CONVERGED
            break
    return EMResult(
        weight=weight,
        bias=np.zeros(problem.n_scores),
        width=problem.width,
        latent=latent,
        log_posterior=value,
        status=status if weight.any() else Status.EMPTY_MODEL,
        n_iter=len(rows) - 1,
        trace=EMTrace(*(np.asarray(column) for column in zip(*rows, strict=True))),
    )


class PrintedMPCVM2(MPCVMClassifier):
    """mPCVM2 by `fit_printed`; parameters are those of `MPCVMClassifier`, with ``estimation="bottom-up"``.

    Where it diverges its status says so, and its weights are those at which it was stopped.
    """

    def _solved(self, problem: Problem) -> EMResult:
        seed = 0 if self.random_state is None else int(self.random_state)
        options = self.options or BottomUpOptions()
        return fit_printed(problem, None, max_iter=options.max_iter, random_state=seed)
