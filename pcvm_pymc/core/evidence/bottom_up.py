"""Classes from the bottom up: mPCVM2 (Lyu et al. 2020, Algorithm 2, corrected), mRVM1, and two classes."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf

from pcvm_pymc.core.design import FirstResponses, StreamedDesign
from pcvm_pymc.core.evidence.active_set import inverse_triangle, leave_one_out
from pcvm_pymc.core.evidence.problem import check_fixed_bases
from pcvm_pymc.core.nonnegative import solve_nonnegative
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS, threads_by_size
from pcvm_pymc.core.pieces.validation import check_flag, check_real, check_whole
from pcvm_pymc.core.problem import EMResult, EMTrace, Problem, Status
from pcvm_pymc.core.quadratic import BorderedGram, Index

# share of phi' phi: a column of which the model leaves less in S is a combination of its columns
_DISTINCT = 1e-8
# of one column, after which it stays out: under rounding it would be added for ever
_MOST_DELETIONS = 3
_FLAT = 1e-15  # share of phi' phi: a smaller precision is rounding, by which the search diverges
_SMALLEST_STEP = 1e-4  # 1 + (change of alpha) variance: below, a rank-one update loses digits


@dataclass(frozen=True)
class BottomUpOptions:
    """How the search from the bottom up proceeds and ends.

    Parameters
    ----------
    max_iter : int
        Epochs; in each, every class makes one change and the responses are computed afresh.
    tol : float
        The search stops when no basis is to be added or deleted and no log precision changes by more. At 1e-2
        twenty classes are not yet told apart: EM is slow.
    most : int
        Additions, or deletions, under the same responses; each raises the bound of the
        evidence that EM climbs. One is the papers'. With more the model is larger before it is thinned out,
        and ends higher on most data.
    momentum : float
        From 0 to below 1: share of the weights' last change by which they are extrapolated before the
        responses are computed. EM, which is slow, needs fewer epochs so, and ends at the same point. Zero is
        the papers'.
    is_rough : bool
        Whether integrals are computed to three digits until the end.

    References
    ----------
    S. Lyu et al. (2020), Algorithm 2, whose limit of epochs is not said.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import fit_evidence, pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0.5 * X[:, 1] ** 2, width=1.0)
    >>> options = BottomUpOptions(max_iter=200, tol=1e-3)
    >>> result = fit_evidence(model, options=options)
    >>> int((result["posterior"]["weight"] != 0).sum()) < 15
    True
    """

    max_iter: int = 10_000
    tol: float = 1e-3
    most: int = 1
    momentum: float = 0.0
    is_rough: bool = False

    @classmethod
    def quick(cls, *, max_iter: int = 10_000, tol: float = 1e-3) -> "BottomUpOptions":
        """Return a search of two changes under the same responses, with momentum and rough integrals.

        Parameters
        ----------
        max_iter, tol
            As above.
        """
        return cls(max_iter=max_iter, tol=tol, most=2, momentum=0.8, is_rough=True)

    def __post_init__(self) -> None:
        check_whole("max_iter", self.max_iter, 1)
        check_real("tol", self.tol)
        check_whole("most", self.most, 1)
        check_flag("is_rough", self.is_rough)
        check_real("momentum", self.momentum, 0.0, 1.0, closed="above")


class Bases:
    """The columns of a problem, basis functions and a constant, and the E-step on them.

    The responses of rows with weights W are ``z = f + g / (beta W)``, g being the slopes of the rows' log
    likelihoods, so that ``beta Phi' W z = beta (Phi' W Phi) w + Phi' g``: of a streamed design one pass for
    each E-step.

    Attributes
    ----------
    square : ndarray, shape (n_columns,)
        Squared norms of the columns, rows counting by their weights.
    beta : float
        Precision of a response: the bound of the likelihood's curvature.
    rhs : ndarray, shape (n_columns, n_scores)
        ``beta Phi' W z``.
    log_likelihood : float
    moved : float
        The largest change of a latent value.
    latent : ndarray, shape (n_obs, n_scores)
        Empty for a streamed design.
    """

    rhs: Array

    def __init__(self, problem: Problem) -> None:
        self.problem, self.beta = problem, problem.likelihood.bound
        (n_obs, n_basis), n_scores = problem.Phi.shape, problem.n_scores
        self.streamed = isinstance(problem.Phi, StreamedDesign)
        self.n_columns = n_basis + int(problem.bias != "none")
        self._at = np.zeros((n_basis, n_scores)), np.zeros(n_scores)
        self.latent = np.zeros((0 if self.streamed else n_obs, n_scores))
        self._products: dict[int, Array] = {}
        if not self.streamed:
            weight = problem.row_weight
            self._row_weight = np.ones(n_obs) if weight is None else weight
            self.columns = np.hstack([problem.Phi, np.ones((n_obs, self.n_columns - n_basis))])
            self.square = np.einsum("i,ij,ij->j", self._row_weight, self.columns, self.columns)

    def products(self, n: int) -> Array:
        """Return ``Phi' W phi_n``, shape (n_columns,)."""
        if n not in self._products:
            self._products[n] = (self._row_weight * self.columns[:, n]) @ self.columns
        return self._products[n]

    def begin(self) -> None:
        """Compute the responses of the first epoch; of a streamed design the Gram matrix comes with them.

        Those of several scores are the likelihood's own, of one score those at weights of zero, where the
        slopes have them.
        """
        likelihood, multi_score = self.problem.likelihood, self.problem.n_scores > 1
        terms = FirstResponses(likelihood) if multi_score else likelihood.terms
        self.respond(*self._at, terms, gram="unit")
        self.rhs *= self.beta if multi_score else 1.0

    def respond(self, weight: Array, bias: Array, terms: Any, *, gram: str = "none") -> None:
        """Compute the responses at weights, shape (n_basis, n_scores), and biases.

        `terms` has log likelihood and slopes of the rows at their latent values, as `Likelihood.terms` has.
        """
        problem, every = self.problem, np.vstack([weight, bias])[: self.n_columns]
        if self.streamed:
            sums = problem.Phi.sums((weight, bias), terms, old=self._at, gram=gram)
            self._at = weight.copy(), bias.copy()
            if sums.gram is not None:
                full_gram = np.tril(sums.gram) + np.tril(sums.gram, -1).T
                self._products = dict(enumerate(full_gram[: self.n_columns, : self.n_columns]))
                self.square = full_gram.diagonal()[: self.n_columns]
            slopes = np.vstack([sums.gradient, sums.total])[: self.n_columns]
            self.log_likelihood, self.moved = sums.log_likelihood, sums.change
        else:
            used, old = np.flatnonzero(weight.any(axis=1)), self.latent
            self.latent = problem.Phi[:, used] @ weight[used] + bias
            rows = terms(self.latent, problem.label).weighted(problem.row_weight)
            slopes = (rows.slope.T @ self.columns).T
            self.log_likelihood = rows.log_likelihood
            self.moved = float(np.abs(self.latent - old).max())
        used = np.flatnonzero(every.any(axis=1))
        cross = np.array([self.products(n) for n in used.tolist()])
        self.rhs = slopes + self.beta * (cross.reshape(-1, self.n_columns).T @ every[used])


class ScoreModel:
    """The bases of one score, or of several scores whose weights share their precisions.

    Given responses z whose noise has precision beta, the weights are normal with covariance
    ``Sigma = (beta Phi'Phi + A)^-1`` (Lyu et al. 2020 eqs. 33-38). Methods take ``beta Phi' z`` of every
    column, shape (n_columns, n_responses), as `rhs`.

    Attributes
    ----------
    index : ndarray of int, shape (m,)
        Columns in the model, in the order in which they were added.
    alpha : ndarray, shape (m,)
    cross : ndarray, shape (m, n_columns)
        Inner products of these columns with all.
    covariance : ndarray, shape (m, m)
    S : ndarray, shape (n_columns,)
        ``phi' C^-1 phi`` of every column, with the whole of C = 1 / beta + Phi A^-1 Phi'.
    n_deleted : ndarray of int, shape (n_columns,)
        How often each column was deleted.
    """

    def __init__(self, bases: Bases) -> None:
        self.bases, n_columns = bases, len(bases.square)
        self.n_deleted = np.zeros(n_columns, dtype=np.int64)
        self._least = _DISTINCT * bases.beta * bases.square
        self.index = np.empty(0, dtype=np.int64)
        self.set_to(self.index.copy(), np.empty(0))

    def set_to(self, index: Index, alpha: Array) -> None:
        """Have these columns in the model, with these precisions; compute covariance and S."""
        bases, m = self.bases, len(index)
        if index is not self.index:
            cross = [bases.products(n) for n in index.tolist()]
            self.cross = np.array(cross).reshape(m, len(bases.square))
        self.index, self.alpha = index, alpha
        self.covariance, self.S = np.empty((m, m)), bases.beta * bases.square
        if m == 0:
            return
        precision = bases.beta * self.cross[:, index]
        precision.flat[:: m + 1] += alpha
        # LAPACK itself: SciPy's checks take as long where few bases are in the model
        factor, failed = dpotrf(precision)
        if failed:
            raise np.linalg.LinAlgError(f"the precision of {m} weights is singular")
        inverse = inverse_triangle(factor)
        self.covariance, half = inverse @ inverse.T, inverse.T @ self.cross
        self.S = self.S - bases.beta**2 * np.einsum("ij,ij->j", half, half)

    def mean(self, rhs: Array) -> Array:
        """Return the posterior mean, shape (m, n_responses)."""
        return self.covariance @ rhs[self.index]

    def leave_one_out(self, rhs: Array) -> tuple[Array, Array]:
        """Return s and q of every column, shapes (n_columns,) and (n_columns, n_responses)."""
        mean = self.mean(rhs)
        Q = rhs - self.bases.beta * (self.cross.T @ mean)
        model = self.index, self.alpha, mean
        return leave_one_out(model, self.covariance.diagonal(), self.S, Q)

    def improve(self, rhs: Array, sign: Array | None, most: int = 1) -> tuple[bool, float]:
        """Make one change: an addition if any is admissible, else a deletion, else new precisions.

        A column is added only if ``f q > 0``, and deleted if ``f mu < 0``: eq. 31, which sets wrong-signed
        entries of the mean to zero, diverges.

        Parameters
        ----------
        rhs : ndarray, shape (n_columns, n_responses)
        sign : ndarray, shape (n_columns,), or None
        most : int
            Additions, or deletions, under these responses.

        Returns
        -------
        is_structural : bool
            Whether columns were added or deleted.
        moved : float
            The largest change of a log precision.
        """
        n_responses, kind = rhs.shape[1], 0
        for _ in range(most):
            s, q = self.leave_one_out(rhs)
            square = np.einsum("ij,ij->i", q, q)
            excess = square - n_responses * s
            # none that combines those in the model, nor one deleted too often
            admissible = (self._least < self.S) & (self.n_deleted < _MOST_DELETIONS)
            admissible[self.index] = False
            if sign is not None:
                is_wrong = sign * q[:, 0] < 0.0
                admissible[is_wrong], excess[is_wrong] = False, -np.inf
            # the best precision outside is n s^2 / (q'q - n s), and its gain grows with q'q / s
            ratio = np.divide(square, s, out=np.zeros_like(s), where=admissible)
            best, inside = int(ratio.argmax()), excess[self.index]
            if kind >= 0 and ratio[best] > n_responses:
                kind, new = 1, n_responses * s[best] * (s[best] / excess[best])
                self.set_to(np.append(self.index, best), np.append(self.alpha, new))
            elif kind <= 0 and inside.min(initial=np.inf) <= 0.0:
                worst, kind = int(inside.argmin()), -1
                self.n_deleted[self.index[worst]] += 1
                self.set_to(np.delete(self.index, worst), np.delete(self.alpha, worst))
            else:
                break
        return (True, np.inf) if kind else (False, self.reestimate(rhs))

    def reestimate(self, rhs: Array) -> float:
        """Set each precision to its best value in turn (eq. 39); return the largest change of a log."""
        inside, n_responses, moved = rhs[self.index], rhs.shape[1], 0.0
        least = _FLAT * self.bases.beta * float(self.bases.square[self.index].max(initial=0.0))
        alpha, covariance = self.alpha.copy(), self.covariance
        for j, old in enumerate(alpha.tolist()):
            column = covariance[j]
            variance, mean = float(column[j]), column @ inside
            s, square = 1.0 / variance - old, float(mean @ mean) / variance**2
            excess = square - n_responses * s
            if excess <= 0.0 or s <= 0.0:  # deleted in the next epoch
                continue
            alpha[j] = new = max(n_responses * s * s / excess, least)
            moved, growth = max(moved, abs(math.log(new / old))), 1.0 + (new - old) * variance
            if growth > _SMALLEST_STEP:
                covariance = covariance - ((new - old) / growth) * (column[:, None] * column)
            else:
                self.set_to(self.index, alpha.copy())
                covariance = self.covariance
        if moved:
            self.set_to(self.index, alpha)
        return moved

    def signed_mode(self, rhs: Array, sign: Array) -> tuple[Array, float]:
        """Return weights of all bases, and the bias: the posterior mode under the sign constraint.

        Parameters
        ----------
        rhs : ndarray, shape (n_columns,)
        sign : ndarray, shape (n_basis,)
        """
        n_basis, beta, square = len(sign), self.bases.beta, self.bases.square
        is_basis = self.index < n_basis
        index, scale = self.index[is_basis], 1.0 / np.sqrt(self.alpha)
        cross, has_bias = beta * self.cross[is_basis], not is_basis.all()
        gram = np.zeros((len(index) + 1, len(index) + 1), order="F")
        gram[:-1, :-1] = cross[:, index]
        if has_bias:
            gram[-1, :-1], gram[-1, -1] = cross[:, n_basis], beta * float(square[n_basis])
        weight, bias = solve_nonnegative(
            BorderedGram(gram),
            sign[index] * scale[is_basis],
            float(scale[~is_basis][0]) if has_bias else 0.0,
            (rhs[index], float(rhs[n_basis]) if has_bias else 0.0),
            np.ones(len(index), dtype=bool),
        )
        out = np.zeros(n_basis)
        out[index] = weight
        return out, bias


class BottomUpSearch:
    """Machines, responses and weights of a fit, epoch after epoch; all with an axis of scores."""

    def __init__(self, problem: Problem, options: BottomUpOptions) -> None:
        self.problem, self.options = problem, options
        self.bases = Bases(problem)
        self.bases.begin()
        n_basis, n_scores = problem.Phi.shape[1], problem.n_scores
        self.sign = None
        if problem.sign is not None:  # of all columns: zero for the constant, which is free
            self.sign = np.zeros((self.bases.n_columns, n_scores))
            self.sign[:n_basis] = problem.sign.reshape(n_basis, n_scores)
        self.machines = [ScoreModel(self.bases) for _ in range(1 if problem.shared else n_scores)]
        self.weight, self.bias = np.zeros((n_basis, n_scores)), np.zeros(n_scores)

    def step(self) -> tuple[bool, float]:
        """Run one epoch: a change in every machine, then weights and responses; see `ScoreModel.improve`."""
        n_basis, changes = len(self.weight), []
        every = np.zeros((n_basis + 1, len(self.bias)))
        for k, machine in enumerate(self.machines):
            scores = slice(None) if self.problem.shared else slice(k, k + 1)
            rhs = self.bases.rhs[:, scores]
            sign = None if self.sign is None else self.sign[:, k]
            changes.append(machine.improve(rhs, sign, self.options.most))
            if sign is None:
                every[machine.index, scores] = machine.mean(rhs)
            else:
                every[:-1, k], every[-1, k] = machine.signed_mode(rhs[:, 0], sign[:n_basis])
        old, (self.weight, self.bias) = (self.weight, self.bias), (every[:-1], every[-1])
        share = self.options.momentum if old[0].any() else 0.0
        terms = partial(self.problem.likelihood.terms, rough=self.options.is_rough)
        pairs = zip((self.weight, self.bias), old, strict=True)
        weight, bias = (new + share * (new - was) for new, was in pairs)
        self.bases.respond(weight, bias, terms)
        is_structural, moved = zip(*changes, strict=True)
        return any(is_structural), max(moved)

    def log_posterior(self) -> float:
        """Return log p(t | W) + log p(W | A) at the present precisions."""
        total, every = self.bases.log_likelihood, np.vstack([self.weight, self.bias])
        for k, machine in enumerate(self.machines):
            value = every[machine.index][:, slice(None) if self.problem.shared else slice(k, k + 1)]
            log_alpha = value.shape[1] * np.log(machine.alpha / (2 * np.pi))
            square = np.einsum("ij,ij->i", value, value)
            total += 0.5 * float(log_alpha.sum() - machine.alpha @ square)
            if self.sign is not None:
                total += np.log(2.0) * np.count_nonzero(machine.index < len(self.weight))
        return float(total)


@threads_by_size
def fit_bottom_up(problem: Problem, options: BottomUpOptions | None = None) -> EMResult:
    """Add, delete and re-estimate bases one at a time: mPCVM2 with signs, mRVM1 shared without.

    Under the probit, with signs, it is the PCVM of two classes from the bottom up: the same search for one
    score, as Chen et al. (2014) have it, but with the responses of EM, from weights of zero, in place of
    Laplace's approximation: on Ripley's mixture both keep four vectors, and this has the lower log loss.

    Parameters
    ----------
    problem : Problem
        Of a row of `FAMILY` with the solver ``"bottom-up"``; its `Phi` in memory, or a `StreamedDesign`, of
        which the Gram matrix is. Each weight has a precision of its own, or each basis where `shared`; under
        ``bias="prior"`` so has the constant, which the papers lack. The precisions are estimated, their
        logarithms flat: the numbers of the hyperprior are not used.
    options : BottomUpOptions, optional

    Returns
    -------
    EMResult
        Its log posterior is that of the weights given the precisions.

    Raises
    ------
    ValueError
        If the problem is of another row, its bases are not fixed, or its bias is free.

    Notes
    -----
    The latent responses of the first epoch are the likelihood's own, 10.5 for the own class and 0.5 for the
    others; for two classes those at weights of zero.

    References
    ----------
    S. Lyu, X. Tian, Y. Li, B. Jiang and H. Chen (2020), "Multiclass probabilistic classification
    vector machine", IEEE Transactions on Neural Networks and Learning Systems 31(10), Algorithm 2,
    corrected: its eq. 31 diverges, and it has no rule for when to stop. mRVM1: T. Damoulas, Y. Ying,
    M. A. Girolami and C. Campbell (2008), "Inferring sparse kernel combinations and relevance
    vectors", ICMLA. Two classes: H. Chen, P. Tino and X. Yao (2014), "Efficient probabilistic classification
    vector machine with incremental basis function selection", IEEE Transactions on Neural Networks and
    Learning Systems 25(2), 356-369.
    """
    check_fixed_bases(problem, "bottom-up")
    options = options or BottomUpOptions()
    search = BottomUpSearch(problem, options)
    trace = [(search.log_posterior(), 0, np.nan, problem.width)]
    status = Status.ITERATION_LIMIT
    for n_iter in range(1, options.max_iter + 1):
        is_structural, moved = search.step()
        n_active = int(np.count_nonzero(search.weight))
        trace.append((search.log_posterior(), n_active, search.bases.moved, problem.width))
        PROGRESS.debug("epoch %d, log posterior %.6g", n_iter, trace[-1][0])
        if not is_structural and moved < options.tol:
            status = Status.CONVERGED
            break
    if options.momentum or options.is_rough:  # at the weights themselves, to all digits
        search.bases.respond(search.weight, search.bias, problem.likelihood.terms)
        trace[-1] = (search.log_posterior(), *trace[-1][1:])
    end = search.weight, search.bias, search.bases.latent
    weight, bias, latent = (values if problem.n_scores > 1 else values[..., 0] for values in end)
    return EMResult(
        weight=weight,
        bias=bias if problem.n_scores > 1 else float(bias),
        width=problem.width,
        latent=latent,
        log_posterior=trace[-1][0],
        status=Status.EMPTY_MODEL if n_active == 0 else status,
        n_iter=n_iter,
        trace=EMTrace(*(np.asarray(column) for column in zip(*trace, strict=True))),
    )
