"""EM over rows that are only seen as sums (Chen et al. 2009, Algorithm 1).

`chunked_classes` runs the same machine for several classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em.binary import EMOptions, EMResult, EMTrace, Status
from pcvm_pymc.core.em.nonnegative import BorderedGram, solve_nonnegative
from pcvm_pymc.core.em.rows import Request, Rows, RowTerms, Sums, probit_terms
from pcvm_pymc.core.pieces.kernels import Kernel
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["ChunkedMachine", "ChunkedProblem", "RestingPoint", "fit_chunked"]

_SETTLED = 0.05  # as in `fit_em`
_NEAR = 0.1  # no row's curvature moves by more than a tenth: the Gram matrix at hand will do


@dataclass(frozen=True)
class ChunkedProblem:
    """What a chunked fit is given beside the rows.

    Attributes
    ----------
    centres : ndarray, shape (n_basis, n_features)
    sign : ndarray, shape (n_basis,), or None
        Sign of each weight; None leaves them free. For several classes shape (n_basis, n_classes).
    hyperprior : Hyperprior
    width : float
    kernel : str or callable
    majority : float
        -1. or +1., the larger class: where EM starts the bias under an improper prior.
    single : bool
        Compute the basis functions in single precision; everything else stays double.
    """

    centres: Array
    sign: Array | None
    hyperprior: Hyperprior
    width: float
    kernel: Kernel = "rbf"
    majority: float = 1.0
    single: bool = False


@dataclass(frozen=True)
class _State:
    """A point of the iteration with the sums over the rows there."""

    weight: Array
    bias: Array
    sums: Sums = field(repr=False)
    log_posterior: float

    @property
    def n_active(self) -> int:
        return int(np.count_nonzero(self.weight))


@dataclass(frozen=True)
class RestingPoint:
    """Where the iteration ended.

    Attributes
    ----------
    weight : ndarray, shape (n_basis, n_scores)
    bias : ndarray, shape (n_scores,)
    log_posterior : float
    status : Status
    trace : tuple of ndarray, shape (n_iter + 1,) each
        Log posterior, number of active weights, largest change of a latent value.
    """

    weight: Array
    bias: Array
    log_posterior: float
    status: Status
    trace: tuple[Array, NDArray[np.int64], Array] = field(repr=False)


class ChunkedMachine:
    """EM's steps over rows that it sees only through their sums, for one score or several.

    Parameters
    ----------
    rows : Rows
    problem : ChunkedProblem
        Its signs, if any, of shape (n_basis, n_scores).
    n_scores : int
    terms : callable
        The likelihood, see `Request`.
    first_terms : callable, optional
        What the first step takes in its place, its slopes being the first responses themselves.
    has_bias : bool
    shared : bool
        Whether a basis is dropped for all scores or for none.
    """

    def __init__(
        self,
        rows: Rows,
        problem: ChunkedProblem,
        *,
        n_scores: int = 1,
        terms: Callable[[Array, Any], RowTerms] = probit_terms,
        first_terms: Callable[[Array, Any], RowTerms] | None = None,
        has_bias: bool = True,
        shared: bool = False,
    ) -> None:
        self.rows, self.problem, self.n_scores = rows, problem, n_scores
        self.terms, self.first_terms = terms, first_terms
        self.has_bias, self.shared = has_bias, shared
        self.index = np.arange(len(problem.centres))
        ones = np.ones((len(problem.centres), n_scores))
        self.sign = ones if problem.sign is None else problem.sign
        self._unit: BorderedGram | None = None
        self._curved: BorderedGram | None = None

    def run(
        self,
        weight: Array,
        bias: Array,
        options: EMOptions,
        callback: Callable[[int, float], None] | None = None,
    ) -> RestingPoint:
        """Run EM to its end from weights and biases.

        Raises
        ------
        ValueError
            For the authors' recipes, which need the rows.
        """
        if options.update == "clip" or options.bias != "joint":
            raise ValueError(
                f"update={options.update!r}, bias={options.bias!r}: rows in chunks need update 'auto', "
                "'newton' or 'em' and bias 'joint'"
            )
        careful = options.update == "auto" and self.problem.hyperprior.d == 0
        may_bend = options.update != "em"
        newton = may_bend and not careful and self.first_terms is None
        state = self._at(weight, bias, None, "curvature" if newton else "unit", self.first_terms)
        trace = [(state.log_posterior, state.n_active, np.nan)]
        status = Status.ITERATION_LIMIT
        for n_iter in range(1, options.max_iter + 1):
            state = self._shrunk(state)
            is_first = n_iter == 1 and self.first_terms is not None
            new = self._next(state, newton=newton, is_first=is_first)
            settled = new.n_active == state.n_active and new.sums.change < _SETTLED
            if may_bend and not newton and (settled if careful else is_first):
                newton = True
                new = self._at(new.weight, new.bias, state, "curvature")
            state = new
            trace.append((state.log_posterior, state.n_active, state.sums.change))
            if callback is not None:
                callback(n_iter, state.log_posterior)
            if state.sums.change <= options.tol:
                status = Status.CONVERGED
                break
        if state.n_active == 0:
            status = Status.EMPTY_MODEL
        value, n_active, change = (np.asarray(column) for column in zip(*trace, strict=True))
        return RestingPoint(
            state.weight, state.bias, state.log_posterior, status, (value, n_active, change)
        )

    def _at(
        self,
        weight: Array,
        bias: Array,
        old: _State | None,
        gram: str,
        terms: Callable[[Array, Any], RowTerms] | None = None,
    ) -> _State:
        """Return the state at weights and biases: one pass over the rows."""
        previous = (weight, bias) if old is None else (old.weight, old.bias)
        request = Request(
            centres=self.problem.centres[self.index],
            kernel=self.problem.kernel,
            width=self.problem.width,
            weight=weight[self.index],
            bias=bias,
            old_weight=previous[0][self.index],
            old_bias=previous[1],
            terms=terms or self.terms,
            gram=gram,
            single=self.problem.single,
        )
        sums = self.rows.sums(request)
        if gram == "unit":
            self._unit = sums.gram
        elif gram == "curvature":
            self._curved = sums.gram
        value = sums.log_likelihood + self._log_prior(weight, bias)
        return _State(weight, bias, replace(sums, gram=None), value)

    def _log_prior(self, weight: Array, bias: Array) -> float:
        """Return log p(w) + log p(b), precisions integrated out."""
        prior = self.problem.hyperprior
        log_weight = prior.log_weights_density(weight, free=self.problem.sign is None)
        log_bias = sum(prior.log_bias_density(float(b)) for b in bias) if self.has_bias else 0.0
        return log_weight + log_bias

    def _shrunk(self, state: _State) -> _State:
        """Leave out columns that are zero for good (d = 0), from sums and Gram matrices as well."""
        kept = np.flatnonzero(state.weight[self.index].any(axis=1))
        if self.problem.hyperprior.d > 0 or len(kept) == len(self.index):
            return state
        self.index = self.index[kept]
        self._unit = None if self._unit is None else self._unit.take(kept)
        self._curved = None if self._curved is None else self._curved.take(kept)
        return replace(state, sums=replace(state.sums, pull=state.sums.pull[kept]))

    def _next(self, state: _State, *, newton: bool, is_first: bool) -> _State:
        """Return the state after one iteration; never one of lower log posterior but for the first."""
        gram = "curvature" if newton and not state.sums.change < _NEAR else "none"
        if newton and self._curved is not None:
            new = self._at(*self._maximised(state, self._curved), state, gram)
            if new.log_posterior >= state.log_posterior:
                return new
        if self._unit is None:
            self._at(state.weight, state.bias, state, "unit")
        assert self._unit is not None
        return self._at(*self._maximised(state, self._unit, is_first=is_first), state, gram)

    def _maximised(
        self, state: _State, gram: BorderedGram, *, is_first: bool = False
    ) -> tuple[Array, Array]:
        """Return the M-step's weights and biases, score by score, under a Gram matrix of the rows."""
        weight, bias = np.zeros_like(state.weight), np.zeros_like(state.bias)
        prior = self.problem.hyperprior
        for c in range(self.n_scores):
            old, sign = state.weight[self.index, c], self.sign[self.index, c]
            # under d = 0 only weights that are not zero can move: the work follows their number
            play = np.flatnonzero(old) if prior.d == 0 else np.arange(len(old))
            mine = gram if len(play) == len(old) else gram.take(play)
            old, sign = old[play], sign[play]
            pull, total = state.sums.pull[play, c], float(state.sums.total[c])
            if not is_first:  # whose responses stand for themselves
                inner, corner = mine.product(old, float(state.bias[c]))
                pull, total = pull + inner, total + corner
            bias_precision = prior.bias_precision(float(state.bias[c])) if self.has_bias else np.inf
            weight[self.index[play], c], bias[c] = solve_nonnegative(
                mine,
                sign / np.sqrt(prior.weight_precision(old)),
                1.0 / np.sqrt(bias_precision),
                (pull, total),
                old != 0 if old.any() else np.ones(len(old), dtype=bool),
                constrained=self.problem.sign is not None,
            )
        return prior.pruned(weight, shared=self.shared), bias


def _default_start(problem: ChunkedProblem) -> tuple[Array, Array]:
    """Return `Start.default`'s weights and bias."""
    prior, n = problem.hyperprior, len(problem.centres)
    sign = np.ones(n) if problem.sign is None else problem.sign
    weight = np.zeros(n) if prior.d > 0 else sign
    return weight[:, None], np.array([0.0 if prior.f > 0 else problem.majority])


def fit_chunked(
    rows: Rows,
    problem: ChunkedProblem,
    options: EMOptions | None = None,
    callback: Callable[[int, float], None] | None = None,
) -> EMResult:
    """Run EM to its end over rows of two classes that are only ever seen as sums.

    The iterations are those of `fit_em` at a fixed width from its default start.

    Parameters
    ----------
    rows : Rows
        Labels -1. and +1.
    problem : ChunkedProblem
    options : EMOptions, optional
        ``update="clip"`` and ``bias="alternating"``, the authors' recipe, are not available.
    callback : callable, optional
        Called with the iteration's number and log posterior after each iteration.

    Returns
    -------
    EMResult
        Its `latent` is empty.

    Raises
    ------
    ValueError
        For the authors' recipe.
    """
    sign = None if problem.sign is None else problem.sign[:, None]
    machine = ChunkedMachine(rows, replace(problem, sign=sign))
    end = machine.run(*_default_start(problem), options or EMOptions(), callback)
    value, n_active, change = end.trace
    return EMResult(
        weight=end.weight[:, 0],
        bias=float(end.bias[0]),
        width=problem.width,
        latent=np.empty(0),
        log_posterior=end.log_posterior,
        status=end.status,
        n_iter=len(value) - 1,
        trace=EMTrace(value, n_active, change, np.full(len(value), problem.width)),
    )
