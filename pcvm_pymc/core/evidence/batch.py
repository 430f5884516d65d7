"""Type-II maximum likelihood: evidence, posterior of the weights, and the batch RVM (Tipping 2001)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.linalg.lapack import dtrtri

from pcvm_pymc.core.em.binary import Status
from pcvm_pymc.core.pieces.likelihoods import LINKS, Likelihood, Normal
from pcvm_pymc.core.pieces.probit import Array

__all__ = [
    "Design",
    "EvidenceOptions",
    "EvidenceProblem",
    "EvidenceResult",
    "EvidenceTrace",
    "Posterior",
    "Reached",
    "Rotated",
    "fit_batch",
    "inverse_triangle",
    "noise_update",
    "pack",
    "posterior",
    "result_at",
    "rotated_problem",
    "start_noise",
    "unit_design",
]

type Index = NDArray[np.int64]

_PRUNING_RATIO = (
    1e6  # alpha / beta of a basis of unit norm: what it adds is a millionth of the noise
)
_NEWTON_STEPS = 100
_NEWTON_DECREMENT = 1e-18
_QR_COLUMNS = 400  # beyond, the Cholesky factor of the normal equations: a third of the work
NOISE_FLOOR = 1e-4  # of the targets' standard deviation: below, rounding decides on the bases


@dataclass(frozen=True)
class Rotated:
    """What a rotated regression, cut down to the rows that are not zero, no longer says of itself.

    Attributes
    ----------
    n_obs : int
        Rows that there were.
    constant : ndarray, shape (n_rows,)
        What has become of a column of ones.
    """

    n_obs: int
    constant: Array


@dataclass(frozen=True)
class EvidenceProblem:
    """What is given to type-II maximum likelihood.

    Attributes
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
        Basis functions at the training inputs, in any unit; zero and equal columns are allowed.
    target : ndarray, shape (n_obs,)
        Numbers for ``"gaussian"``, labels -1. and +1. else.
    likelihood : {"gaussian", "logit", "probit"}
    noise : float, optional
        Known standard deviation of the targets (``"gaussian"`` only); None estimates it.
    bias : bool
        Whether a constant belongs to the bases, under its own ARD precision like any other.
    rotated : Rotated, optional
        For a problem from `rotated_problem`.

    Raises
    ------
    ValueError
        If the likelihood is unknown or the noise cannot be used.
    """

    Phi: Array
    target: Array
    likelihood: str = "gaussian"
    noise: float | None = None
    bias: bool = True
    rotated: Rotated | None = None

    def __post_init__(self) -> None:
        known = ("gaussian", *LINKS)
        if self.likelihood not in known:
            raise ValueError(f"likelihood={self.likelihood!r} is unknown; use one of {known}")
        if self.noise is not None and self.likelihood != "gaussian":
            raise ValueError(
                f"noise={self.noise} was given with likelihood={self.likelihood!r}, which has none"
            )
        if self.noise is not None and not (np.isfinite(self.noise) and self.noise > 0):
            raise ValueError(f"noise={self.noise} must be positive and finite, or None")

    @property
    def is_regression(self) -> bool:
        """Whether the targets are numbers."""
        return self.likelihood == "gaussian"

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return len(self.target) if self.rotated is None else self.rotated.n_obs

    @property
    def target_scale(self) -> float:
        """Standard deviation of the targets; their size where they are constant, 1 where zero."""
        if self.rotated is None:
            size = float(np.abs(self.target).max(initial=0.0))
            spread = float(np.std(self.target))
        else:
            along = self.rotated.constant / np.sqrt(self.n_obs)
            across = self.target - along * float(along @ self.target)
            size, spread = (
                float(np.linalg.norm(each) / np.sqrt(self.n_obs)) for each in (self.target, across)
            )
        return spread if spread > 1e-10 * size else size or 1.0

    def likelihood_at(self, noise: float) -> Likelihood:
        """Return the likelihood, for regression with this standard deviation."""
        if not self.is_regression:
            return LINKS[self.likelihood]
        return Normal(noise, None if self.rotated is None else self.n_obs)


def rotated_problem(
    blocks: Iterable[tuple[Array, Array]], *, noise: float | None = None
) -> EvidenceProblem:
    """Return the regression of all rows in coordinates in which n_basis + 2 of them are left.

    The triangular factor of ``[1, Phi, t]`` says all of a regression's evidence and posterior; it comes
    from one block of rows after the other, so that Phi is never held whole.

    Parameters
    ----------
    blocks : iterable of (ndarray, shape (n_rows, n_basis), ndarray, shape (n_rows,))
        Basis functions and targets of the rows.
    noise : float, optional
        As for `EvidenceProblem`.
    """
    R, n_obs = None, 0
    for Phi, target in blocks:
        block = np.column_stack([np.ones(len(target)), Phi, target])
        R = np.linalg.qr(block if R is None else np.vstack([R, block]), mode="r")
        n_obs += len(target)
    if R is None:
        raise ValueError("there are no rows; needed one or more")
    rotated = Rotated(n_obs, R[:, 0].copy())
    return EvidenceProblem(R[:, 1:-1].copy(), R[:, -1].copy(), noise=noise, rotated=rotated)


@dataclass(frozen=True)
class EvidenceOptions:
    """How the evidence is maximised.

    Attributes
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
        Rank-one steps after which all is computed anew.
    """

    max_iter: int = 10_000
    tol: float = 1e-4
    noise_tol: float = 1e-4
    noise_starts: tuple[float, ...] = (0.3,)
    noise_period: int = 5
    patience: int = 30
    refresh_period: int = 50

    def __post_init__(self) -> None:
        for name in ("max_iter", "noise_period", "patience", "refresh_period"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("tol", "noise_tol"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive")
        if not self.noise_starts or not min(self.noise_starts) > 0:
            raise ValueError(
                f"noise_starts={self.noise_starts} must be one or more positive numbers"
            )


@dataclass(frozen=True)
class EvidenceTrace:
    """Per iteration, the start first: shape (n_iter + 1,) each."""

    log_evidence: Array
    n_active: NDArray[np.int64]
    noise: Array


@dataclass(frozen=True)
class EvidenceResult:
    """The end point of type-II maximum likelihood.

    Attributes
    ----------
    weight : ndarray, shape (n_basis,)
        Posterior mean (mode for classification), exactly zero where pruned.
    bias : float
    alpha : ndarray, shape (n_basis,)
        ARD precisions, infinite where pruned.
    bias_alpha : float
    active : ndarray of int, shape (n_active,)
        Bases that were kept.
    covariance : ndarray, shape (n_active + 1, n_active + 1)
        Posterior covariance of the kept weights and, last, the bias; the bias' row is zero
        where it is not in the model.
    noise : float
        Standard deviation of the targets; NaN for classification.
    latent : ndarray, shape (n_obs,)
        Mean latent function at the training inputs.
    log_evidence : float
        Log marginal likelihood; Laplace's approximation for classification.
    status : Status
    n_iter : int
    trace : EvidenceTrace
    """

    weight: Array
    bias: float
    alpha: Array
    bias_alpha: float
    active: Index
    covariance: Array
    noise: float
    latent: Array
    log_evidence: float
    status: Status
    n_iter: int
    trace: EvidenceTrace = field(repr=False)

    @property
    def converged(self) -> bool:
        """Whether the iteration came to rest (an empty model included)."""
        return self.status is not Status.ITERATION_LIMIT


@dataclass(frozen=True)
class Posterior:
    """Normal posterior of the weights at given precisions (Laplace's for classification).

    Attributes
    ----------
    mean : ndarray, shape (n_basis,)
    factor : ndarray, shape (n_basis, n_basis)
        Upper triangular R with ``R'R = I + D Phi' B Phi D``, D = diag(alpha)^(-1/2).
    alpha : ndarray, shape (n_basis,)
    latent, score, curvature : ndarray, shape (n_obs,)
        Phi @ mean, and slope and curvature (the diagonal of B) of the log likelihood there.
    log_evidence : float
    """

    mean: Array
    factor: Array
    alpha: Array
    latent: Array
    score: Array
    curvature: Array
    log_evidence: float

    @property
    def _half_covariance(self) -> Array:
        """Return T with T T' the covariance (Phi' B Phi + A)^-1."""
        scale = 1.0 / np.sqrt(self.alpha)
        return scale[:, None] * inverse_triangle(self.factor)

    @property
    def covariance(self) -> Array:
        """``(Phi' B Phi + A)^-1``, shape (n_basis, n_basis)."""
        half = self._half_covariance
        return half @ half.T

    @property
    def variance(self) -> Array:
        """Diagonal of `covariance`, shape (n_basis,)."""
        return (self._half_covariance**2).sum(axis=1)


def inverse_triangle(R: Array) -> Array:
    """Return the inverse of an upper triangular matrix."""
    if R.shape[0] == 0:
        return R
    inverse, info = dtrtri(R)
    if info:
        raise LinAlgError("the factor of the posterior precision is singular")
    return inverse


def _triangle(Z: Array, curvature: Array) -> Array:
    """Return upper triangular R with R'R = I + Z' B Z, from the QR of [sqrt(B) Z; I]."""
    m = Z.shape[1]
    if m > _QR_COLUMNS:
        try:
            return cholesky(np.eye(m) + (Z.T * curvature) @ Z, overwrite_a=True, check_finite=False)
        except LinAlgError:
            pass  # too ill-conditioned to be squared
    return np.linalg.qr(np.vstack([np.sqrt(curvature)[:, None] * Z, np.eye(m)]), mode="r")


def _solve_normal(R: Array, g: Array) -> Array:
    """Return (R'R)^-1 g."""
    if len(g) == 0:
        return g
    half = solve_triangular(R, g, trans="T", check_finite=False)
    return solve_triangular(R, half, check_finite=False)


def posterior(
    Phi: Array, alpha: Array, target: Array, likelihood: Likelihood, start: Array | None = None
) -> Posterior:
    """Return the posterior of the weights and the log evidence at given precisions.

    Newton's method with step halving, ``w += Sigma (Phi' score - A w)``: Chmielewski et al. (2019)
    eq. 12, corrected (its mean holds for the working response ``Phi w + B^-1 (t - y)``, not for
    t). For a normal likelihood the first step is exact and the second refines its rounding.

    Parameters
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
    alpha : ndarray, shape (n_basis,)
        Precisions, positive and finite.
    target : ndarray, shape (n_obs,)
    likelihood : Likelihood
    start : ndarray, shape (n_basis,), optional
        Where Newton's method begins; zero by default.
    """
    scale = 1.0 / np.sqrt(alpha)
    Z = Phi * scale  # in v = w / scale the prior is standard normal and no eigenvalue is below one
    v = np.zeros(len(alpha)) if start is None else start / scale
    v, R = _mode(Z, target, likelihood, v)
    latent = Z @ v
    value = likelihood.log_likelihood(latent, target) - 0.5 * float(v @ v)
    return Posterior(
        mean=scale * v,
        factor=R,
        alpha=alpha,
        latent=latent,
        score=likelihood.score(latent, target),
        curvature=likelihood.curvature(latent, target),
        log_evidence=value - float(np.log(np.abs(np.diag(R))).sum()),
    )


def _mode(Z: Array, target: Array, likelihood: Likelihood, v: Array) -> tuple[Array, Array]:
    """Return the maximum of log p(t | Z v) - v'v/2, and R of `_triangle` there."""
    latent = Z @ v
    value = likelihood.log_likelihood(latent, target) - 0.5 * float(v @ v)
    curvature = likelihood.curvature(latent, target)
    R = _triangle(Z, curvature)
    last = np.inf
    for _ in range(_NEWTON_STEPS):
        gradient = Z.T @ likelihood.score(latent, target) - v
        step = _solve_normal(R, gradient)
        decrement = float(gradient @ step)
        if decrement <= _NEWTON_DECREMENT or (decrement < 1e-8 and decrement >= last):
            break
        last = decrement
        found = _halved_step(Z, target, likelihood, (v, latent, value), step)
        if found is None:
            break
        v, latent, value = found
        new = likelihood.curvature(latent, target)
        if not np.array_equal(new, curvature):
            curvature, R = new, _triangle(Z, new)
    return v, R


def _halved_step(
    Z: Array,
    target: Array,
    likelihood: Likelihood,
    at: tuple[Array, Array, float],
    step: Array,
) -> tuple[Array, Array, float] | None:
    """Return the first point of v + step, v + step/2, ... that does not lower the log posterior."""
    v, latent, value = at
    change = Z @ step
    rounding = 1e-13 * (1.0 + abs(value))
    for halvings in range(30):
        size = 0.5**halvings
        new, new_latent = v + size * step, latent + size * change
        new_value = likelihood.log_likelihood(new_latent, target) - 0.5 * float(new @ new)
        if new_value >= value - rounding:
            return new, new_latent, new_value
    return None


@dataclass(frozen=True)
class Design:
    """All bases, the constant first where there is one, each column divided by its norm.

    Attributes
    ----------
    columns : ndarray, shape (n_obs, n_columns)
        Of unit norm; a zero column stays zero.
    norm : ndarray, shape (n_columns,)
    """

    columns: Array
    norm: Array


def unit_design(problem: EvidenceProblem) -> Design:
    """Return the problem's bases as columns of unit norm, so that no unit matters."""
    n_obs, n_basis = problem.Phi.shape
    first = int(problem.bias)
    columns = np.empty((n_obs, n_basis + first), order="F")  # columns are what is taken out
    constant = np.ones(n_obs) if problem.rotated is None else problem.rotated.constant
    columns[:, :first] = constant[:, None]
    columns[:, first:] = problem.Phi
    size = np.maximum(columns.max(axis=0), -columns.min(axis=0))
    size[size == 0] = 1.0
    columns /= size  # squares of what remains neither overflow nor vanish
    norm = np.sqrt(np.einsum("ij,ij->j", columns, columns))
    norm[norm == 0] = 1.0
    columns /= norm
    return Design(columns, size * norm)


@dataclass(frozen=True)
class Reached:
    """Where a search ended: kept columns of the design, their precisions, noise, and its history."""

    index: Index
    alpha: Array
    mean: Array
    noise: float
    status: Status
    rows: list[tuple[float, int, float]]


def result_at(problem: EvidenceProblem, design: Design, reached: Reached) -> EvidenceResult:
    """Return the result at the end of a search, everything computed anew there."""
    order = np.argsort(reached.index)
    index, alpha = reached.index[order], reached.alpha[order]
    likelihood = problem.likelihood_at(reached.noise)
    end = posterior(
        design.columns[:, index], alpha, problem.target, likelihood, reached.mean[order]
    )
    return pack(problem, design, index, end, reached)


def pack(
    problem: EvidenceProblem, design: Design, index: Index, end: Posterior, reached: Reached
) -> EvidenceResult:
    """Return a posterior over columns of unit norm as a result in the bases' own units."""
    norm = design.norm[index]
    weight, alpha = np.zeros(len(design.norm)), np.full(len(design.norm), np.inf)
    weight[index], alpha[index] = end.mean / norm, end.alpha * norm * norm
    first = int(problem.bias)
    covariance = end.covariance / np.outer(norm, norm)
    has_bias = bool(first and len(index) and index[0] == 0)
    active = index[int(has_bias) :] - first
    full = np.zeros((len(active) + 1, len(active) + 1))
    places = np.arange(len(index)) - 1 if has_bias else np.arange(len(index))  # the bias goes last
    full[np.ix_(places, places)] = covariance
    trace = [np.asarray(column) for column in zip(*reached.rows, strict=True)]
    empty = len(active) == 0
    return EvidenceResult(
        weight=weight[first:],
        bias=float(weight[0]) if first else 0.0,
        alpha=alpha[first:],
        bias_alpha=float(alpha[0]) if first else np.inf,
        active=active,
        covariance=full,
        noise=reached.noise,
        latent=end.latent,
        log_evidence=end.log_evidence,
        status=Status.EMPTY_MODEL if empty else reached.status,
        n_iter=len(reached.rows) - 1,
        trace=EvidenceTrace(*trace),
    )


def noise_update(problem: EvidenceProblem, latent: Array, n_determined: float) -> float:
    """Return the noise of Chmielewski et al. (2019) eqs. 8 and 15, not below a floor.

    ``||t - Phi mu||^2 / (N - sum gamma)``, with ``gamma = 1 - alpha Sigma_ii``. Targets that the
    bases reproduce exactly would have none; a ten-thousandth of their standard deviation remains.
    """
    residual = problem.target - latent
    free = max(problem.n_obs - n_determined, 1e-3)
    floor = NOISE_FLOOR * problem.target_scale
    return max(float(np.sqrt(residual @ residual / free)), floor)


def fit_batch(
    problem: EvidenceProblem,
    options: EvidenceOptions | None = None,
    *,
    noise_start: float | None = None,
) -> EvidenceResult:
    """Maximise the evidence from all bases downwards, by MacKay's updates of all precisions at once.

    Parameters
    ----------
    problem : EvidenceProblem
    options : EvidenceOptions, optional
    noise_start : float, optional
        Multiple of the targets' standard deviation; default: the first of the options' starts.

    Returns
    -------
    EvidenceResult

    References
    ----------
    M. E. Tipping (2001), "Sparse Bayesian learning and the relevance vector machine", JMLR 1,
    211-244; A. Chmielewski-Anders et al. (2019), "The relevance vector machine and sparsity of
    Bayesian learning", eqs. 6-12. Corrected: eq. 12, see `posterior`. Bases are pruned at a relative
    threshold, alpha / beta > 1e6 for a basis of unit norm, and the stop is on the change of evidence.
    """
    options = options or EvidenceOptions()
    design = unit_design(problem)
    rows: list[tuple[float, int, float]] = []
    status = Status.ITERATION_LIMIT
    first = _first_sweep(problem, design, start_noise(problem, options, noise_start))
    for sweep, end in _sweeps(problem, design, first, options):
        rows.append((end.log_evidence, len(end.mean), sweep.noise))
        if sweep.settled:
            status = Status.CONVERGED
            break
        if len(rows) > options.max_iter:
            break
    reached = Reached(sweep.index, sweep.alpha, end.mean, sweep.noise, status, rows)
    return pack(problem, design, sweep.index, end, reached)


@dataclass(frozen=True)
class _Sweep:
    """The batch search between two sweeps."""

    index: Index
    alpha: Array
    mean: Array | None
    noise: float
    noise_moves: bool = False
    settled: bool = False


def start_noise(
    problem: EvidenceProblem, options: EvidenceOptions, multiple: float | None = None
) -> float:
    """Return the noise to begin with: the known one, or 0.3 standard deviations of the targets."""
    if not problem.is_regression:
        return np.nan
    if problem.noise is not None:
        return problem.noise
    return (multiple or options.noise_starts[0]) * problem.target_scale


def _first_sweep(problem: EvidenceProblem, design: Design, noise: float) -> _Sweep:
    """Return all bases with equal precisions, the latent function varying as the targets do."""
    index = np.flatnonzero(design.columns.any(axis=0))
    variance = problem.target_scale**2 if problem.is_regression else 1.0
    alpha = np.full(len(index), max(len(index), 1) / (problem.n_obs * variance))
    return _Sweep(index, alpha, None, noise)


def _sweeps(
    problem: EvidenceProblem, design: Design, sweep: _Sweep, options: EvidenceOptions
) -> Iterator[tuple[_Sweep, Posterior]]:
    """Yield each point of the search with its posterior; the last is settled."""
    last, since = -np.inf, 0
    while True:
        likelihood = problem.likelihood_at(sweep.noise)
        Phi = design.columns[:, sweep.index]
        end = posterior(Phi, sweep.alpha, problem.target, likelihood, sweep.mean)
        still = abs(end.log_evidence - last) < 0.01 * options.tol
        last = end.log_evidence
        determined = np.clip(1.0 - sweep.alpha * end.variance, np.finfo(float).tiny, 1.0)
        free = problem.is_regression and problem.noise is None
        noise = noise_update(problem, end.latent, determined.sum()) if free else sweep.noise
        quiet = not free or abs(np.log(noise / sweep.noise)) < options.noise_tol
        if still and quiet:
            yield replace(sweep, settled=True), end
            return
        yield sweep, end
        moves, since = sweep.noise_moves or still, since + 1
        due = still or (moves and since >= options.noise_period)
        since = 0 if due else since
        sweep = replace(sweep, noise=noise if due else sweep.noise, noise_moves=moves)
        sweep = _updated(sweep, end, determined, likelihood.bound)


def _updated(sweep: _Sweep, end: Posterior, determined: Array, beta: float) -> _Sweep:
    """Return the sweep after alpha = gamma / mu^2 (eq. 8), without bases that add nothing."""
    with np.errstate(divide="ignore", over="ignore"):
        alpha = determined / end.mean**2
    keep = alpha < _PRUNING_RATIO * beta
    return replace(sweep, index=sweep.index[keep], alpha=alpha[keep], mean=end.mean[keep])
