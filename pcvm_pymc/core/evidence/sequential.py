"""The fast RVM: one basis at a time by the largest gain in evidence (Tipping & Faul 2003)."""

from typing import Any

import numpy as np

from pcvm_pymc.core.evidence.computed import ComputedBases
from pcvm_pymc.core.evidence.held import HeldColumns
from pcvm_pymc.core.evidence.posterior import posterior
from pcvm_pymc.core.evidence.problem import (
    Design,
    EvidenceOptions,
    EvidenceProblem,
    check_held,
    start_noise,
    unit_design,
)
from pcvm_pymc.core.evidence.result import EvidenceResult, Index, Reached, result_at
from pcvm_pymc.core.evidence.search import MANY, MOST_LIVE, Search
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Status

__all__ = ["fit_random", "fit_sequential", "improved"]

# a search that ends with no more bases, and more than this share of the empty model's log evidence left,
# begins once more, from many
_TRAPPED, _UNEXPLAINED = 2, 0.8
_BEGINNERS = 64  # bases that it begins with then
# precisions that all of them may have, of columns of unit norm
_SHARED = 10.0 ** np.arange(-4.0, 2.0)
_OFFERED = 1024  # columns that they are chosen among
_SPANNED = 1e-6  # of a column's square: it adds nothing to those before it, nor tells two apart


def fit_sequential(
    problem: EvidenceProblem,
    options: EvidenceOptions | None = None,
    *,
    noise_start: float | None = None,
) -> EvidenceResult:
    """Maximise the evidence from the empty model upwards, one basis at a time.

    Each step adds, re-estimates or deletes the basis that gains most, of those in the model and some
    candidates; where none of these gains any more, all bases are looked at for new candidates. Wide bases
    may gain together where none does alone: a search of two classes that ends with two at most, and more
    than four fifths of the empty model's log evidence, begins once more, from 64 that span the others, and
    the better evidence is kept.

    Parameters
    ----------
    problem : EvidenceProblem
    options : EvidenceOptions, optional
    noise_start : float, optional
        Multiple of the targets' standard deviation; default: the first of the options' starts.

    Returns
    -------
    EvidenceResult

    Notes
    -----
    Columns have unit norm; states are computed anew every 50 rank-one steps, where a chosen column has lost
    its digits, and before convergence is declared: those of a regression from inner products, where these
    tell enough (`WELL_CONDITIONED`), others by a QR factorisation of ``[sqrt(B) Phi D; I]``. Inner products
    of the vectors with all bases are kept from one look at all bases to the next; the bases themselves are
    read as they are given. The noise is first updated when the precisions have converged, then every five
    steps.
    Of more than 16,384 columns the 2048 that promise most are searched among until none of them gains a
    hundredth of what the best of all did; so all are looked at a few times only, which is what counts where
    they are computed when needed (`ComputedBases`), but for those that few span (`Span`): by their factors a
    look is not dear.
    Where the likelihood is not quadratic, the steps are those of its quadratic model at the mode: as many
    as do not lower Laplace's evidence, at the least one, after which all is computed anew. Since Laplace's
    evidence can fall even so, the best state is kept, and the search stops after 30 models without a better
    one: the status is then `BEST_OF_CYCLE`, as it is where the search comes to rest at a lower evidence
    than it has seen.

    References
    ----------
    M. E. Tipping and A. C. Faul (2003), "Fast marginal likelihood maximisation for sparse Bayesian
    models", AISTATS; A. Chmielewski-Anders et al. (2019), eqs. 13-15, corrected (see `ActiveSet`; for their
    random choice of the basis `fit_random`).
    """
    options = options or EvidenceOptions()
    design = _design(problem)
    result = result_at(problem, design, _from_empty(Search, problem, design, options, noise_start))
    if not _is_trapped(result, design):
        return result
    again = result_at(problem, design, _from_many(problem, design, options, result.noise))
    return again if again.log_evidence > result.log_evidence + options.tol else result


def _design(problem: EvidenceProblem) -> Design:
    """Return all bases, those in memory as they are: a second matrix costs more than a look."""
    if not isinstance(problem.Phi, ComputedBases):
        columns = HeldColumns.of(problem.Phi, problem.constant if problem.bias else None)
        if columns is not None:
            return Design(columns, columns.norm)
    return unit_design(problem)


def _is_trapped(result: EvidenceResult, design: Design) -> bool:
    """Whether a search of two classes has ended with next to nothing where there are many columns.

    A regression comes to like errors from either side, and from many columns by paths that rounding turns.
    """
    is_regression, n_columns = not np.isnan(result.noise), design.columns.shape[1]
    few = np.count_nonzero(result.weight) <= _TRAPPED < n_columns <= MANY
    left = result.log_evidence < _UNEXPLAINED * result.trace.log_evidence[0]
    return few and left and not is_regression and result.status is not Status.ITERATION_LIMIT


def _from_many(
    problem: EvidenceProblem, design: Design, options: EvidenceOptions, noise: float
) -> Reached:
    """Return where a search ends that begins with many bases, at the best precision that all may share."""
    n_columns = design.columns.shape[1]
    offered = np.unique(np.linspace(0, n_columns - 1, min(n_columns, _OFFERED)).astype(np.int64))
    index = offered[_spanning(design.columns[:, offered], _BEGINNERS)]
    Phi, likelihood = design.columns[:, index], problem.likelihood_at(noise)
    starts = [
        posterior(Phi, np.full(len(index), alpha), problem.target, likelihood) for alpha in _SHARED
    ]
    best = max(starts, key=lambda each: each.log_evidence)
    rows = [(best.log_evidence, len(index), noise)]
    start = Reached(index, best.alpha, best.mean, noise, Status.CONVERGED, rows)
    return improved(problem, design, start, options)


def _spanning(columns: Array, most: int) -> Index:
    """Return columns that span the others: the pivots of a QR factorisation that is cut off, ascending.

    Of pivots that rounding alone tells apart the first is taken.
    """
    left = np.einsum("ij,ij->j", columns, columns)
    Q = np.empty((len(columns), min(most, *columns.shape)), order="F")
    chosen: list[int] = []
    while len(chosen) < Q.shape[1] and left.max() > _SPANNED:
        k, n = len(chosen), int((left >= left.max() - _SPANNED).argmax())
        rest = columns[:, n] - Q[:, :k] @ (columns[:, n] @ Q[:, :k])
        Q[:, k] = rest / np.linalg.norm(rest)
        left = left - np.square(Q[:, k] @ columns)
        left[n] = 0.0
        chosen.append(n)
    return np.sort(np.array(chosen, dtype=np.int64))


def fit_random(
    problem: EvidenceProblem,
    options: EvidenceOptions | None = None,
    *,
    noise_start: float | None = None,
) -> EvidenceResult:
    """Maximise the evidence one basis at a time, each drawn at random (Chmielewski-Anders et al. 2019).

    As `fit_sequential`, but of the bases whose change gains evidence any may be next. The paper draws among
    all and passes over those that gain nothing, which takes the same steps. Of more than 2048 bases so many
    are drawn first, and searched among until none of them gains.

    Parameters
    ----------
    problem : EvidenceProblem
    options : EvidenceOptions, optional
        With the `random_state` of the draws.
    noise_start : float, optional
        Multiple of the targets' standard deviation; default: the first of the options' starts.

    Returns
    -------
    EvidenceResult
    """
    check_held(problem, "random")
    options = options or EvidenceOptions()
    design = _design(problem)
    return result_at(
        problem, design, _from_empty(_RandomSearch, problem, design, options, noise_start)
    )


def _from_empty(
    kind: type[Search],
    problem: EvidenceProblem,
    design: Design,
    options: EvidenceOptions,
    noise_start: float | None,
) -> Reached:
    """Return where a search from the empty model ends."""
    noise = start_noise(problem, options, noise_start)
    return kind(problem, design.columns, options, noise).run()


def improved(
    problem: EvidenceProblem, design: Design, reached: Reached, options: EvidenceOptions
) -> Reached:
    """Return where the search goes on to from where another one ended; there, where nothing gains."""
    search = Search(problem, design.columns, options, reached.noise)
    search.begin_at(reached)
    return search.run()


class _RandomSearch(Search):
    """The search that draws a basis before each change."""

    def __init__(
        self, problem: EvidenceProblem, columns: Any, options: EvidenceOptions, noise: float
    ) -> None:
        super().__init__(problem, columns, options, noise)
        self.rng = np.random.default_rng(options.random_state)

    def _change_some(self, gain: Array) -> None:
        """Search among all columns, or those in the model and many of those that gain, drawn."""
        if len(gain) <= MOST_LIVE:
            self._search_among(np.arange(len(gain)))
            return
        gaining = np.setdiff1d(np.flatnonzero(gain >= self.options.tol), self.state.index)
        drawn = self.rng.choice(gaining, min(MOST_LIVE, len(gaining)), replace=False)
        self._search_among(np.union1d(self.state.index, drawn))

    def _draws(self, most: int) -> Array:
        return self.rng.random(most)
