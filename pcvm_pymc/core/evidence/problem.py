"""What type-II maximum likelihood is given, and its results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from pcvm_pymc.core.design import StreamedDesign
from pcvm_pymc.core.evidence.active_set import Model
from pcvm_pymc.core.evidence.columns import (
    Columns,
    ComputedBases,
    DenseColumns,
    StreamedColumns,
    SummedColumns,
)
from pcvm_pymc.core.family import FAMILY, as_likelihood, check_solver
from pcvm_pymc.core.pieces.likelihoods import StudentT
from pcvm_pymc.core.pieces.priors import ROUNDING, Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.row_weights import times_weight
from pcvm_pymc.core.pieces.validation import check_real, check_whole, shown
from pcvm_pymc.core.problem import Ended, ObservedRows, Problem, Status
from pcvm_pymc.core.quadratic import Index

_NORMAL = 1.4826  # standard deviation over the median distance from the centre, if normal
NOISE_FLOOR = 1e-4  # of the targets' standard deviation: below, rounding decides on the bases
_ROWS = [row for row in FAMILY.values() if "evidence" in row.solvers]
_LIKELIHOODS = tuple(name for row in _ROWS for name in row.likelihoods)


@dataclass(frozen=True)
class EvidenceProblem:
    """A problem of type-II maximum likelihood: basis functions, targets, likelihood and weights of rows.

    Parameters
    ----------
    Phi, target, likelihood, bias, constant, row_weight
        See the attributes; the likelihood may be given by its name. A noise of NaN is estimated.

    Attributes
    ----------
    Phi : ndarray, shape (n_obs, n_basis), ComputedBases or StreamedDesign
        Basis functions at the training inputs, in any unit; zero and equal columns are allowed. A design
        whose rows are distributed is for labels.
    target : ndarray, shape (n_obs,)
        Numbers, or labels -1. and +1., as the likelihood has them. A design has its own targets and weights,
        and none are here.
    likelihood : Likelihood
        One of the rows of `FAMILY` that the evidence is maximised for.
    bias : bool
        Whether a constant is one of the bases, under its own ARD precision like any other.
    constant : ndarray, shape (n_obs,)
        The column of the bias; ones by default. `rotated_problem` has another.
    row_weight : ndarray, shape (n_obs,), optional
        How often each row counts; None for once.

    Raises
    ------
    ValueError
        If the likelihood is unknown.
    """

    Phi: Any
    target: Array
    likelihood: Any = "normal"
    _: KW_ONLY
    bias: bool = True
    constant: Any = None
    row_weight: Array | None = None

    def __post_init__(self) -> None:
        piece = as_likelihood(self.likelihood, _LIKELIHOODS)
        if isinstance(self.Phi, StreamedDesign) and piece.targets == "numbers":
            fault = f"distributed rows need labels; found likelihood={piece.name!r}"
            raise ValueError(f"{fault}: use ComputedBases")
        piece.check_targets(self.target)
        object.__setattr__(self, "likelihood", piece)
        if self.constant is None:
            object.__setattr__(self, "constant", np.ones(len(self.target)))

    @classmethod
    def of(cls, problem: Problem) -> "EvidenceProblem":
        """Return the problem whose evidence is maximised for one that any solver may be given.

        Its hyperprior is not used: log precisions are flat, as in the papers.

        Parameters
        ----------
        problem : Problem
            Of a row of `FAMILY` with the solver ``"evidence"``. Under ``bias="prior"`` the constant is one
            of the bases, under ``"none"`` it is not.

        Raises
        ------
        ValueError
            If the problem is of another row, its bases are not fixed, or its bias is free.
        """
        check_fixed_bases(problem, "evidence")
        pieces = problem.Phi, problem.label, problem.likelihood
        return cls(*pieces, bias=problem.bias == "prior", row_weight=problem.row_weight)

    def observed(self, noise: float) -> ObservedRows:
        """Return the rows, their targets less the origin, at a noise."""
        return ObservedRows(self.likelihood.with_noise(noise), self.centred, self.row_weight)

    @property
    def noise_is_estimated(self) -> bool:
        """Whether targets are numbers around the latent function, on a scale that is not known."""
        return self.likelihood.targets == "numbers" and np.isnan(self.likelihood.noise)

    @cached_property
    def origin(self) -> float:
        """Mean of the prior of the bias: in the middle of numbers, so that their zero does not matter."""
        if not (self.bias and self.likelihood.targets == "numbers"):
            return 0.0
        if self.likelihood.is_quadratic:
            return float(self._counted @ self.target) / self.total
        return float(self.likelihood.middle(self.target, weights=self.row_weight))

    @cached_property
    def centred(self) -> Array:
        """Targets less their origin."""
        return self.target - self.origin * self.constant if self.origin else self.target

    @cached_property
    def _counted(self) -> Array:
        """The column of the bias times the rows' weights."""
        return times_weight(self.row_weight, self.constant)

    @property
    def total(self) -> float:
        """Square of the column of the bias: the number of rows, or the sum of their weights."""
        return float(self._counted @ self.constant)

    def _size(self, values: Array) -> float:
        """Return the root mean square of values of the rows."""
        square = float(times_weight(self.row_weight, values) @ values)
        return float(np.sqrt(square) / np.sqrt(self.total))

    @property
    def spread(self) -> float:
        """Standard deviation of the targets."""
        mean = float(self._counted @ self.centred) / self.total
        return self._size(self.centred - self.constant * mean)

    @property
    def target_scale(self) -> float:
        """Standard deviation of the targets; their size where they are constant, 1 where zero.

        Under Student-t noise at most that of a normal distribution with their quartiles: outliers may be far.
        """
        spread = self.spread
        size = self._size(self.target)
        if isinstance(self.likelihood, StudentT):
            middle = float(self.likelihood.middle(np.abs(self.centred), weights=self.row_weight))
            spread = min(spread, _NORMAL * middle or spread)
        return (spread if spread > ROUNDING * size else size) or 1.0

    def noise_at(
        self, latent: Array, n_determined: float, noise: float, prior: "NoisePrior | None" = None
    ) -> float:
        """Return the next estimate of the noise, not below a floor.

        ``sum_i u_i (t_i - Phi_i mu)^2 / (N - sum gamma)``, with ``gamma = 1 - alpha Sigma_ii`` and u the
        rows' curvature in units of noise^-2: one for a normal likelihood, where this is Chmielewski et
        al. (2019) eqs. 8 and 15. Targets that the bases reproduce exactly would have none; a
        ten-thousandth of their standard deviation remains.

        Parameters
        ----------
        latent : ndarray, shape (n_obs,)
        n_determined : float
            Sum of gamma over the bases.
        noise : float
            The last estimate, at which the two were found.
        prior : NoisePrior, optional
            Default: flat on the logarithm.
        """
        observed = self.observed(noise)
        square = float((observed.curvature(latent) * noise**2) @ np.square(self.centred - latent))
        free = max(observed.n_obs - n_determined, 1e-3)
        best = float(np.sqrt(square / free)) if prior is None else prior.best(square, free)
        return max(best, NOISE_FLOOR * self.target_scale)


@dataclass(frozen=True)
class NoisePrior:
    """A prior of the noise whose density is multiplied by the evidence.

    Attributes
    ----------
    log_density : callable
        Of the noise.
    natural : callable
        The noise as a function of a number on the whole line, which has the prior's support as its range.
    """

    log_density: Callable[[float], float]
    natural: Callable[[float], float]

    def best(self, square: float, free: float) -> float:
        """Return where ``-free log s - square / (2 s^2) + log p(s)`` is largest.

        Its slope is that of log evidence plus log density where `square` and `free` are as in
        `EvidenceProblem.noise_at`.
        """

        def cost(at: float) -> float:
            s = self.natural(at)
            with np.errstate(all="ignore"):
                value = free * np.log(s) + 0.5 * square / s**2 - self.log_density(s)
            return float(value) if np.isfinite(value) else np.inf

        grid = np.arange(-30.0, 30.5, 0.5)
        middle = grid[int(np.argmin([cost(at) for at in grid]))]
        bounds = middle - 0.5, middle + 0.5
        end = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-9})
        return self.natural(min(middle, float(end.x), key=cost))


def columns_of(problem: EvidenceProblem) -> Columns:
    """Return the problem's bases as columns of unit norm, so that units have no effect."""
    if isinstance(problem.Phi, ComputedBases):
        return StreamedColumns(problem.Phi, problem.bias, problem.row_weight)
    if isinstance(problem.Phi, StreamedDesign):
        return SummedColumns.of(problem.Phi, problem.likelihood, problem.bias)
    constant = problem.constant if problem.bias else None
    return DenseColumns(problem.Phi, constant, problem.row_weight)


def check_fixed_bases(problem: Problem, solver: str) -> None:
    """Raise unless a solver that takes bases as they are, each with a precision, may have a problem.

    Parameters
    ----------
    problem : Problem
    solver : {"evidence", "bottom-up"}

    Raises
    ------
    ValueError
        If the problem is of a row without this solver, its bases are not fixed, or its bias is free.
    """
    check_solver(problem, solver)
    if not isinstance(problem.hyperprior, Hyperprior):
        fault = f"{solver!r} estimates precisions; found a {problem.hyperprior.name} prior"
        raise ValueError(f"{fault}, needed Gamma ones")
    if problem.moves is not None:
        fault = f"{solver!r} takes fixed bases; found a width that may move"
        raise ValueError(f"{fault}, needed a number")
    if problem.bias == "free":
        raise ValueError(f"bias='free' has no precision for {solver!r}; use 'prior' or 'none'")


def rotated_problem(blocks: Iterable[tuple[Array, ObservedRows]]) -> EvidenceProblem:
    """Return a regression of many rows as an equivalent one of n_basis + 2 rows.

    The triangular factor of ``[1, Phi, t]`` determines the evidence and the posterior. It is computed block
    after block of rows, so that Phi is never in memory as a whole.

    Parameters
    ----------
    blocks : iterable of (ndarray, shape (n_rows, n_basis), ObservedRows)
        Basis functions and targets of the rows, under a normal likelihood.
    """
    total, origin = 0.0, 0.0
    R: Any = None
    for Phi, observed in blocks:
        target, likelihood = observed.target, observed.likelihood
        if R is None:  # it moves the first row of R alone
            origin = float(np.mean(target))
        block = np.column_stack([np.ones(len(target)), Phi, target - origin])
        if observed.weight is not None:
            block *= np.sqrt(observed.weight)[:, None]
        total += observed.n_obs
        R = np.linalg.qr(block if R is None else np.vstack([R, block]), mode="r")
    Phi = np.asfortranarray(R[:, 1:-1])
    target = R[:, -1] + origin * R[:, 0]
    known: Any = likelihood
    counted = replace(known, n_obs=known.n_obs or total)
    return EvidenceProblem(Phi, target, counted, constant=R[:, 0].copy())


@dataclass(frozen=True)
class EvidenceOptions:
    """How the evidence is maximised.

    Parameters
    ----------
    max_iter : int
        Most changes of single precisions (sequential) or sweeps over all of them (batch).
    tol : float
        Stop once no single change gains more log evidence than this (sequential), or a sweep has
        changed it by less than a hundredth of this (batch, whose bases leave slowly).
    noise_tol : float
        ... and the logarithm of the estimated noise changes by less than this.
    noise_starts : tuple of float
        Where the noise starts, as multiples of the targets' standard deviation; the fit of
        highest evidence is kept. ``(0.1, 0.3, 0.7)`` is the careful choice.
    noise_period : int
        Steps between updates of the noise, once the precisions have converged for the first time.
    patience : int
        Steps without a better evidence after which a cycling classification is stopped. (A regression,
        which only rounding can make cycle, after four times as many.)
    refresh_period : int
        Rank-one steps after which everything is computed afresh.

    References
    ----------
    M. E. Tipping and A. C. Faul (2003), which does not say when the noise is estimated.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import RVMRegressor, fit_evidence, rvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = rvm_model(X, np.sin(X[:, 0]), width=1.5)
    >>> options = EvidenceOptions(noise_starts=(0.1, 0.3, 0.7))
    >>> result = fit_evidence(model, options=options)
    >>> bool(result["posterior"]["noise"] < 0.3)
    True
    """

    max_iter: int = 100_000
    tol: float = 1e-4
    noise_tol: float = 1e-4
    noise_starts: tuple[float, ...] = (0.3,)
    noise_period: int = 5
    patience: int = 30
    refresh_period: int = 50

    def __post_init__(self) -> None:
        for name in ("max_iter", "noise_period", "patience", "refresh_period"):
            check_whole(name, getattr(self, name), 1)
        for name in ("tol", "noise_tol"):
            check_real(name, getattr(self, name))
        starts = self.noise_starts
        if not isinstance(starts, Sequence) or isinstance(starts, str) or not starts:
            raise ValueError(f"noise_starts={shown(starts)}; needed a tuple of positive numbers")
        for start in starts:
            check_real("noise_starts", start)


def start_noise(problem: EvidenceProblem, options: EvidenceOptions) -> float:
    """Return the noise to begin with: the known one, or the first start of the options; NaN of labels."""
    if problem.noise_is_estimated:
        return options.noise_starts[0] * problem.target_scale
    return problem.likelihood.noise if problem.likelihood.targets == "numbers" else np.nan


# --- results ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvidenceTrace:
    """Per iteration, the start first: shape (n_iter + 1,) each."""

    log_evidence: Array
    n_active: NDArray[np.int64]
    noise: Array


@dataclass(frozen=True)
class FittedRVM:
    """The posterior of a relevance vector machine's weights at the precisions that were estimated.

    Attributes
    ----------
    weight : ndarray, shape (n_basis,)
        Posterior mean (mode for classification), exactly zero where pruned.
    bias : float
    alpha : ndarray, shape (n_basis,)
        ARD precisions, infinite where pruned.
    bias_alpha : float
        Of the bias around `EvidenceProblem.origin`, where it stays if pruned.
    active : ndarray of int, shape (n_active,)
        Bases that were kept.
    covariance : ndarray, shape (n_active + 1, n_active + 1)
        Posterior covariance of the kept weights and, last, the bias; the bias' row is zero
        where it is not in the model.
    noise : float
        Standard deviation of the targets; NaN for classification.
    """

    weight: Array
    bias: float
    alpha: Array
    bias_alpha: float
    active: Index
    covariance: Array
    noise: float

    @property
    def determined(self) -> Array:
        """How far the data determine each weight that is not zero, gamma, shape (n_nonzero,)."""
        share = 1.0 - self.alpha[self.active] * np.diag(self.covariance)[:-1]
        return np.clip(share, 0.0, 1.0)[self.weight[self.active] != 0]


@dataclass(frozen=True)
class EvidenceResult(FittedRVM, Ended):
    """The end point of type-II maximum likelihood: the machine, and how the search ended.

    Attributes
    ----------
    latent : ndarray, shape (n_obs,)
        Mean latent function at the training inputs; none of distributed rows.
    log_evidence : float
        Log marginal likelihood: exact for normal noise, else Laplace's approximation.
    status : Status
    n_iter : int
    trace : EvidenceTrace
    """

    latent: Array
    log_evidence: float
    status: Status
    n_iter: int
    trace: EvidenceTrace = field(repr=False)


def result_at(
    problem: EvidenceProblem,
    columns: Columns,
    model: Model,
    *,
    noise: float,
    status: Status,
    trace: list[tuple[float, int, float]],
) -> EvidenceResult:
    """Return the result at the end of a search, computed afresh, in the units of the bases.

    The model has columns, their precisions and the mean of their weights; the trace is row by row that of
    `EvidenceTrace`.
    """
    order = np.argsort(model[0])
    index, precision, mean = model[0][order], model[1][order], model[2][order]
    norm, first = columns.norm[index], int(problem.bias)
    end = columns.posterior((index, precision, mean), problem.observed(noise))
    weight, alpha = np.zeros(columns.shape[1]), np.full(columns.shape[1], np.inf)
    weight[index], alpha[index] = end.mean / norm, end.alpha * norm * norm
    has_bias = int(first and len(index) > 0 and index[0] == 0)
    active = index[has_bias:] - first
    covariance = np.zeros((len(active) + 1, len(active) + 1))
    places = np.arange(len(index)) - has_bias  # the bias, -1, goes last
    covariance[np.ix_(places, places)] = end.covariance / np.outer(norm, norm)
    return EvidenceResult(
        weight=weight[first:],
        bias=problem.origin + float(first and weight[0]),
        alpha=alpha[first:],
        bias_alpha=float(alpha[0]) if first else np.inf,
        active=active,
        covariance=covariance,
        noise=noise,
        latent=end.latent + problem.origin * problem.constant,
        log_evidence=end.log_evidence,
        status=Status.EMPTY_MODEL if len(active) == 0 else status,
        n_iter=len(trace) - 1,
        trace=EvidenceTrace(*(np.asarray(column) for column in zip(*trace, strict=True))),
    )
