"""Choosing a kernel width inside the training data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from rich.progress import track
from sklearn.model_selection import StratifiedKFold

from pcvm_pymc.core.em import (
    EMOptions,
    EMResult,
    ScalarRBFMoves,
    Start,
    fit_em,
)
from pcvm_pymc.core.evidence import EvidenceOptions, EvidenceProblem, EvidenceResult, fit_rvm
from pcvm_pymc.core.family import FAMILY
from pcvm_pymc.core.pieces.centres import Centres, CentresLike, as_centres
from pcvm_pymc.core.pieces.kernels import (
    RBF,
    Kernel,
    KernelPiece,
    as_kernel,
    median_distance,
    rbf,
    squared_distances,
    width_bounds,
    width_grid,
)
from pcvm_pymc.core.pieces.likelihood import Weighted, row_weight, weighted_target
from pcvm_pymc.core.pieces.likelihoods import Likelihood, Probit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import (
    as_features,
    as_labels,
    as_row_weight,
    check_choice,
    check_flag,
    check_instance,
    check_seed,
    check_whole,
    shown,
)
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.validity import pcvm_validity, rvm_validity
from pcvm_pymc.estimators.parameters import is_rbf, named_likelihood

__all__ = [
    "WIDTH_METHODS",
    "WidthSelection",
    "best_of",
    "class_width_scores",
    "held_out_loss",
    "problem_at",
    "select_width",
    "stratified_folds",
]

type Fold = tuple[np.ndarray, np.ndarray]

# a fit that only ranks candidates need not be run to its last digit: these give held-out log losses to
# about 1e-4, by Newton's steps and by EM's smaller ones
_RANKING_TOLERANCE = {"proper": 0.05, "improper": 1e-3}


WIDTH_METHODS = ("cv", "evidence", "validity", "em")
# as `RVMClassifier` has it: nats of evidence at which a fit that only ranks a width stops
_RANKING_EVIDENCE = 1e-3


@dataclass(frozen=True)
class WidthSelection:
    """A chosen width, and the scores that it was chosen by.

    Attributes
    ----------
    width : float
        The chosen one.
    widths : ndarray, shape (n_widths,)
        The candidates.
    method : {"cv", "evidence", "validity", "em"}
    scores : ndarray, shape (n_widths,)
        The more the better: minus the mean held-out log loss, the log evidence, or the log kernel
        validity. NaN where nothing was scored, see `select_width`.
    log_loss : ndarray, shape (n_widths, n_folds)
        ``"cv"`` only: held-out mean negative log probability of the labels, in nats per row. No
        columns where nothing was held out; NaN where an estimator that refits did not try a width any more.
    """

    width: float
    widths: Array
    method: str
    scores: Array
    log_loss: Array = field(default_factory=lambda: np.empty((0, 0)))


def select_width(
    X: ArrayLike,
    y: ArrayLike,
    *,
    hyperprior: Hyperprior | None = None,
    likelihood: str | Likelihood = "probit",
    kernel: Kernel = "rbf",
    widths: Sequence[float] | None = None,
    basis: CentresLike = None,
    cv: int = 5,
    method: str = "cv",
    options: EMOptions | None = None,
    random_state: int | np.random.Generator | None = None,
    sample_weight: ArrayLike | None = None,
    progressbar: bool = False,
) -> WidthSelection:
    """Choose the kernel width of a PCVM.

    Parameters
    ----------
    X : array_like, shape (n_obs, n_features)
    y : array_like, shape (n_obs,)
        Labels, two classes.
    hyperprior : Hyperprior, optional
        Default: `Hyperprior.plug_in`, since it is the MAP that is scored. Not to be given with
        ``"evidence"``, which has none.
    likelihood : str or Likelihood
        One that `PCVMClassifier` takes.
    kernel : "rbf" or callable
        ``"validity"`` and ``"em"`` need ``"rbf"``.
    widths : sequence of float, optional
        Candidates. Default: nine in geometric progression between 0.2 and 2.5 times the median distance.
    basis : None, int or (array_like, array_like)
        Centres of the basis functions: all rows, so many of them (`choose_basis`), or centres, shape
        (n_basis, n_features), with signs. Given centres are not left out with any fold.
    cv : int
        Folds; fewer where a class has fewer points. The bases of held-out rows are left out with them.
    method : {"cv", "evidence", "validity", "em"}
        What is scored at each candidate, on all rows but for ``"cv"``:

        - ``"cv"``: the cross-validated log loss of the PCVM. The honest one.
        - ``"evidence"``: the log evidence, by Laplace's approximation and maximised over ARD precisions, of
          the relevance vector machine of this likelihood on the same bases. It stands in for the PCVM's own,
          which its sign rule leaves without a normal approximation. One fit per width.
        - ``"validity"``: the log kernel validity (Kropotov et al. 2006, extended) of the PCVM's MAP: how
          far its kernels may shift before the likelihood falls. One fit per width; a diagnostic.
        - ``"em"``: no candidates are scored; EM moves the width to the maximum of the log posterior
          (Chen et al. 2009 eq. 10, corrected).
    options : EMOptions, optional
    random_state : int or numpy.random.Generator, optional
        For the folds.
    sample_weight : array_like, shape (n_obs,), optional
        How often each row counts, positive. Default: once.
    progressbar : bool

    Returns
    -------
    WidthSelection
        Its scores are NaN for ``"em"``; and for ``"cv"`` where there is nothing to compare: a single
        candidate, or a class of a single point, so that nothing can be held out (then the median
        candidate is taken).

    Raises
    ------
    ValueError
        For input that cannot be used, or an unknown method.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009); M. E. Tipping (2001), "Sparse Bayesian learning and the
    relevance vector machine", JMLR 1, 211-244; D. A. Kropotov, D. P. Vetrov and N. O. Ptashko
    (2006), corrected, see `pcvm_pymc.core.validity`.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> select_width(X, X[:, 0] > 0, widths=[0.5, 2.0], random_state=0).width
    2.0
    """
    X = as_features(X)
    label, _ = as_labels(y, len(X))
    check_whole("cv", cv, 2)
    check_seed("random_state", random_state)
    check_flag("progressbar", progressbar)
    check_instance("options", options, EMOptions, "EMOptions", optional=True)
    check_instance("hyperprior", hyperprior, Hyperprior, "a Hyperprior", optional=True)
    candidates = width_grid(X) if widths is None else _as_widths(widths)
    _check_selection(method, kernel)
    as_kernel(kernel, float(candidates[0]))(X[:2], X[:1])
    if method == "evidence" and hyperprior is not None:
        raise ValueError(
            f"hyperprior was given with method='evidence', where it has no effect (found {hyperprior!r}); "
            "leave it at None"
        )
    task = _Task(
        X,
        label,
        as_centres(basis, X, label),
        hyperprior or Hyperprior.plug_in(),
        named_likelihood(likelihood, FAMILY["pcvm"].likelihoods),
        kernel,
        candidates,
        options or EMOptions(),
        progressbar,
        as_row_weight(sample_weight, len(X)),
    )
    if method == "em":
        problem = task.problem(median_distance(X), free_width=True)
        return _unscored(fit_em(problem, None, task.options).width, candidates, method)
    if method != "cv":
        score = _log_evidence if method == "evidence" else _log_validity
        scores = [score(task, width) for _, width in task.followed(f"width by {method}")]
        return best_of(candidates, method, np.array(scores))
    folds = stratified_folds(X, label, cv, random_state)
    if len(candidates) == 1 or not folds:
        return _unscored(float(np.median(candidates)), candidates, method)
    loss = _cross_validated(task, folds)
    return best_of(candidates, method, -loss.mean(axis=1), loss)


def _as_widths(widths: Any) -> Array:
    """Return candidates as an array; raise unless they are positive finite numbers."""
    try:
        candidates = np.asarray(widths, dtype=float)
    except (TypeError, ValueError):
        candidates = np.empty(0)
    if (
        candidates.ndim != 1
        or len(candidates) == 0
        or not (np.isfinite(candidates) & (candidates > 0)).all()
    ):
        raise ValueError(f"widths={shown(widths)}; needed one or more positive finite numbers")
    return candidates


def _check_selection(method: str, kernel: Kernel) -> None:
    check_choice("method", method, WIDTH_METHODS)
    if method in ("em", "validity") and not is_rbf(kernel):
        raise ValueError(
            f"method={method!r} needs kernel='rbf', whose derivatives it takes; found {kernel!r}"
        )


def _unscored(width: float, candidates: Array, method: str) -> WidthSelection:
    nothing = np.full(len(candidates), np.nan)
    return WidthSelection(width, candidates, method, nothing, np.empty((len(candidates), 0)))


def best_of(
    candidates: Array, method: str, scores: Array, log_loss: Array | None = None
) -> WidthSelection:
    """Return the candidate of the greatest score with what it was chosen by."""
    loss = np.empty((len(candidates), 0)) if log_loss is None else log_loss
    return WidthSelection(float(candidates[scores.argmax()]), candidates, method, scores, loss)


@dataclass(frozen=True)
class _Task:
    """What every candidate is scored with."""

    X: Array
    label: Array
    centres: Centres
    hyperprior: Any
    likelihood: Likelihood
    kernel: Kernel
    candidates: Array
    options: EMOptions
    progressbar: bool
    weight: Array | None = None

    @property
    def target(self) -> Array:
        """Labels, of weighted rows with their weights."""
        return self.label if self.weight is None else weighted_target(self.label, self.weight)

    @property
    def ranking(self) -> EMOptions:
        """Options as loose as a fit needs that only ranks a candidate."""
        tolerance = _RANKING_TOLERANCE["proper" if self.hyperprior.is_proper else "improper"]
        return replace(self.options, tol=max(self.options.tol, tolerance))

    def problem(self, width: Any, *, free_width: bool = False) -> Problem:
        """Return the PCVM's problem at a width."""
        return problem_at(
            self.X,
            self.label,
            self.hyperprior,
            width,
            centres=self.centres,
            kernel=self.kernel,
            likelihood=self.likelihood,
            free_width=free_width,
        ).weighted(self.weight)

    def followed(self, description: str) -> Iterable[tuple[int, float]]:
        """Return the candidates with their numbers, under a progress bar."""
        return track(
            list(enumerate(self.candidates.tolist())),
            description,
            console=Console(stderr=True),
            disable=not self.progressbar,
        )


def _log_evidence(task: _Task, width: float) -> float:
    """Return the log evidence of the RVM on the same bases."""
    likelihood = task.likelihood if task.weight is None else Weighted(task.likelihood)
    kernel = as_kernel(task.kernel, width)
    return _ranked_rvm(task.X, task.target, task.centres.points, kernel, likelihood)[1].log_evidence


def _ranked_rvm(
    X: Array, label: Array, points: Array, kernel: KernelPiece, likelihood: Likelihood
) -> tuple[EvidenceProblem, EvidenceResult]:
    """Return a relevance vector machine fitted as far as ranking widths needs."""
    if likelihood.name not in FAMILY["rvm_classification"].likelihoods:
        raise ValueError(
            f"there is no relevance vector machine with likelihood={likelihood.name!r} to score a width by; "
            "choose it by cross-validation or 'validity'"
        )
    problem = EvidenceProblem(kernel(X, points), label, likelihood)
    return problem, fit_rvm(problem, options=EvidenceOptions(tol=_RANKING_EVIDENCE))


def _log_validity(task: _Task, width: float) -> float:
    """Return the log kernel validity of the PCVM's MAP."""
    problem = task.problem(width)
    result = fit_em(problem, None, task.options)
    return pcvm_validity(task.X, problem, result, centres=task.centres.points).log_validity


def class_width_scores(
    X: Array,
    label: NDArray[np.int64],
    points: Array,
    sign: Array | None,
    *,
    method: str,
    widths: Array,
    kernel: Kernel = "rbf",
    hyperprior: Hyperprior | None = None,
    sample_weight: Array | None = None,
) -> Array:
    """Return scores of widths for several classes: sums over the classes, each against the rest.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
    label : ndarray of int, shape (n_obs,)
        Numbers of the classes.
    points : ndarray, shape (n_basis, n_features)
        Centres of the basis functions.
    sign : ndarray, shape (n_basis, n_classes), or None
        Signs of the weights; None for a machine without a sign rule.
    method : {"evidence", "validity"}
        As for `select_width`; without signs the validity is the relevance vector machine's.
    widths : ndarray, shape (n_widths,)
    kernel : "rbf" or callable
        ``"validity"`` needs ``"rbf"``.
    hyperprior : Hyperprior, optional
        Of the validity's MAP, with signs only. Default: `Hyperprior.plug_in`.
    sample_weight : ndarray, shape (n_obs,), optional
        How often each row counts.

    Returns
    -------
    ndarray, shape (n_widths,)
        The more the better.

    Raises
    ------
    ValueError
        For a method or kernel that cannot be used.
    """
    _check_selection(method, kernel)
    widths = _as_widths(widths)
    total = np.zeros(len(widths))
    for c in range(int(label.max()) + 1):
        one = np.where(label == c, 1.0, -1.0)
        if method == "validity" and sign is None:
            likelihood: Likelihood = Probit()
            known = one
            if sample_weight is not None:
                known, likelihood = weighted_target(one, sample_weight), Weighted(likelihood)
            total += [_log_rvm_validity(X, known, points, width, likelihood) for width in widths]
            continue
        total += select_width(
            X,
            one,
            hyperprior=None if method == "evidence" else hyperprior,
            kernel=kernel,
            widths=widths.tolist(),
            basis=(points, np.ones(len(points)) if sign is None else sign[:, c]),
            method=method,
            sample_weight=sample_weight,
        ).scores
    return total


def _log_rvm_validity(
    X: Array, label: Array, points: Array, width: float, likelihood: Likelihood
) -> float:
    """Return the log kernel validity of the probit RVM."""
    problem, result = _ranked_rvm(X, label, points, RBF(width), likelihood)
    return rvm_validity(X, problem, result, width=width, centres=points).log_validity


def _cross_validated(task: _Task, folds: Sequence[Fold]) -> Array:
    """Return the held-out log loss of each width and fold, shape (n_widths, n_folds)."""
    points = task.centres.points
    squared = squared_distances(task.X, points) if is_rbf(task.kernel) else None
    loss = np.empty((len(task.candidates), len(folds)))
    starts: list[Start | None] = [None] * len(folds)
    previous = np.nan
    for i, width in task.followed("width by cross-validation"):
        Phi = (
            as_kernel(task.kernel, width)(task.X, points)
            if squared is None
            else rbf(squared, width)
        )
        total = float(np.abs(Phi).sum())
        for j, (train, test) in enumerate(folds):
            start = _rescaled(starts[j], previous, total)
            columns = task.centres.columns_of(train)
            problem = Problem(
                Phi[np.ix_(train, columns)],
                task.label[train],
                task.centres.sign[columns],
                task.hyperprior,
                task.likelihood,
            ).weighted(None if task.weight is None else task.weight[train])
            result = fit_em(problem, start, task.ranking)
            loss[i, j] = held_out_loss(
                problem, result, Phi[np.ix_(test, columns)], task.target[test]
            )
            if task.hyperprior.is_proper:  # else what is pruned would stay so
                starts[j] = Start(result.weight, result.bias)
        previous = total
    return loss


def _rescaled(start: Start | None, previous: float, total: float) -> Start | None:
    """Return the last width's solution as a start: bases that sum to more need smaller weights."""
    if start is None:
        return None
    factor = np.clip(previous / max(total, np.finfo(float).tiny), 1e-3, 1e3)
    return Start(start.weight * factor, start.bias)


def problem_at(
    X: Array,
    label: Array,
    hyperprior: Any,
    width: Any,
    *,
    centres: Centres | None = None,
    kernel: Kernel = "rbf",
    likelihood: Likelihood | None = None,
    free_width: bool = False,
) -> Problem:
    """Return the PCVM's problem, by default under the probit with a basis at each row.

    `free_width` lets EM move the RBF's width.
    """
    centres = as_centres(None, X, label) if centres is None else centres
    moves = None
    if free_width:
        squared = squared_distances(X, centres.points)
        moves = ScalarRBFMoves(squared, width_bounds(X))
    Phi = as_kernel(kernel, width)(X, centres.points) if moves is None else moves.basis(width)
    return Problem(
        Phi,
        label,
        centres.sign,
        hyperprior,
        likelihood or Probit(),
        width=width,
        moves=moves,
    )


def held_out_loss(problem: Problem, result: EMResult, Phi: Array, label: Array) -> float:
    """Return the mean log loss of held-out rows, each as often as it counts."""
    latent, weight = Phi @ result.weight + result.bias, row_weight(label)
    total = len(label) if weight is None else float(weight.sum())
    return -problem.likelihood.log_likelihood(latent, label) / total


def stratified_folds(
    X: Array, label: Array, cv: int, random_state: int | np.random.Generator | None
) -> list[Fold]:
    """Return stratified folds, as many as the smallest class allows; none if it has one point."""
    n_folds = min(cv, int(np.unique(label, return_counts=True)[1].min()))
    if n_folds < 2:
        return []
    seed = int(np.random.default_rng(random_state).integers(2**31))
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=seed)
    return list(folds.split(X, label))
