"""Expectation propagation for signed weights: normal sites for every row and every prior."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.special import gammainccinv, gammaincinv, gammaln, log_ndtr, logsumexp

from pcvm_pymc.core.approximation.laplace import SignedRows
from pcvm_pymc.core.approximation.truncated import truncated_normal_draws
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array, curvature, inverse_mills
from pcvm_pymc.core.pieces.validation import check_real, check_whole
from pcvm_pymc.core.problem import Ended, Status
from pcvm_pymc.core.quadratic import Mask

_TAIL_MASS = 1e-16  # of the mixture over precisions that is left out on either side
# standard deviations below zero from where a half-line's moments are asymptotic series
_FAR = -60.0
# of the standard deviation to the mean: an exponential density, the limit, has one
_MOST_SPREAD = 0.95
_BISECTIONS = 80
_NO_CAVITY = 1e-10  # share of a marginal's precision below which the cavity's is rounding
_SHORTEST = 0.25  # share of the way to which damping falls on its own: shorter steps creep
_LEAST = 1e-2  # share of the way below which no step is tried: negative precisions are then refused
_LOG_2PI = np.log(2.0 * np.pi)


# --- the algorithm ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class PropagationOptions:
    """How expectation propagation runs.

    Attributes
    ----------
    max_iter : int
        Rounds, each of which updates all sites in parallel.
    tol : float
        It has converged once no tilted mean differs from its marginal's by more than this many standard
        deviations, and no variance by more than this share.
    damping : float
        Share of the way to its new value that a site goes, at most; shorter where rounds do not help.
    """

    max_iter: int = 1000
    tol: float = 1e-7
    damping: float = 0.7

    def __post_init__(self) -> None:
        check_whole("max_iter", self.max_iter, 1)
        check_real("tol", self.tol)
        check_real("damping", self.damping, 0.0, 1.0, closed="below")


class Tilted(NamedTuple):
    """Log mass, mean and variance of a tilted density, shape (n,) each."""

    log_mass: Array
    mean: Array
    variance: Array


class _Normal:
    """Sites ``exp(-precision x^2 / 2 + shift x)`` of rows and values, and their product over theta.

    Raises LinAlgError where the product is no density.
    """

    def __init__(self, design: Array, precision: Array, shift: Array) -> None:
        n = len(design)
        matrix = (design * precision[:n, None]).T @ design
        matrix[np.diag_indices_from(matrix)] += precision[n:]
        factor = cholesky(matrix, lower=True)
        linear = design.T @ shift[:n] + shift[n:]
        covariance = cho_solve((factor, True), np.eye(len(matrix)))
        mean = covariance @ linear
        spread = np.einsum("ij,ij->i", design @ covariance, design)
        log_mass = 0.5 * (len(mean) * _LOG_2PI + linear @ mean) - np.log(np.diag(factor)).sum()
        self.precision, self.shift, self.mean = precision, shift, mean
        self.covariance, self.log_mass = 0.5 * (covariance + covariance.T), float(log_mass)
        self.marginal_mean = np.concatenate([design @ mean, mean])
        self.marginal_variance = np.concatenate([spread, np.diag(covariance)])


@dataclass(frozen=True)
class PropagationFit(Ended):
    """Where expectation propagation ends.

    Attributes
    ----------
    mean, covariance : ndarray, shape (n_basis + 1,), (n_basis + 1, n_basis + 1)
        Of sizes and bias.
    log_evidence : float
        Approximate log p(y), the density of weights and bias being normalised.
    cavity_mean, cavity_variance : ndarray, shape (n_obs + n_basis + 1,)
        Marginals without their own factor: of the rows' margins, then of sizes and bias.
    tilted : Tilted
        The same times the factor: their moments are the marginals' at a fixed point.
    row_precision, row_shift : ndarray, shape (n_basis + 1, n_basis + 1), (n_basis + 1,)
        Natural parameters of the product of the rows' sites: precision, and precision times mean.
    bias_site : tuple of float
        The same of the bias' prior.
    hyperprior : Hyperprior
    n_cut : int
        Factors whose tilted variance was cut to that of their cavity; see `propagate`.
    status : Status
    n_iter : int
    change, step : ndarray, shape (n_iter,)
        Distance from the fixed point, as `tol` measures it, and damping of each round.
    """

    mean: Array
    covariance: Array
    log_evidence: float
    cavity_mean: Array
    cavity_variance: Array
    tilted: Tilted
    row_precision: Array
    row_shift: Array
    bias_site: tuple[float, float]
    hyperprior: Hyperprior
    n_cut: int
    status: Status
    n_iter: int
    change: Array
    step: Array

    @cached_property
    def truncated(self) -> tuple[Array, Array]:
        """Mean and covariance, before it is truncated, of a normal on sizes >= 0.

        Each size's prior is replaced by the half-normal factor (a normal one on the half-line) that gives its
        cavity the tilted moments: the expectation propagation of this truncated normal has the same
        fixed point as that of the posterior. (A tilted density may be more spread than any on a half-line
        that is log-concave: then its mean and 0.95 times that are matched.) Where the factors
        are no density together, those of negative precision get E[precision | w], and the tilted mean.
        """
        p, prior = len(self.mean), self.hyperprior
        mean, variance = (each[-p:] for each in self.tilted[1:])
        cavity_mean, cavity = self.cavity_mean[-p:], 1.0 / self.cavity_variance[-p:]
        place, spread = half_line_matching(mean[:-1], variance[:-1])
        total = np.append(1.0 / spread, cavity[-1] + self.bias_site[0])
        linear = np.append(place / spread, cavity_mean[-1] * cavity[-1] + self.bias_site[1])
        try:
            return self._product(total - cavity, linear - cavity * cavity_mean)
        except LinAlgError:
            size = np.sqrt(mean**2 + variance)
            least = np.append(prior.weight_precision(size[:-1]), prior.bias_precision(size[-1]))
            total = np.where(total > cavity, total, cavity + least)
            place = np.append(half_line_location(mean[:-1], 1.0 / total[:-1]), mean[-1])
            return self._product(total - cavity, total * place - cavity * cavity_mean)

    def _product(self, precision: Array, shift: Array) -> tuple[Array, Array]:
        """Return mean and covariance of the product of the sites of rows, weights' sizes and bias."""
        factor = cholesky(self.row_precision + np.diag(precision), lower=True)
        covariance = cho_solve((factor, True), np.eye(len(precision)))
        return covariance @ (self.row_shift + shift), 0.5 * (covariance + covariance.T)

    def draws(self, rng: np.random.Generator, draws: int) -> Array:
        """Return draws of sizes and bias from `truncated`, shape (draws, n_basis + 1)."""
        mean, covariance = self.truncated
        return truncated_normal_draws(mean, covariance, len(mean) - 1, self.mean, rng, draws=draws)


def propagate(rows: SignedRows, options: PropagationOptions | None = None) -> PropagationFit:
    """Approximate the posterior of sizes and bias by expectation propagation, all sites in parallel.

    Factors are the rows' probits (exact moments), each size's half-Student-t and the bias' Student-t,
    precisions integrated out (`student_tilted`): the constraint of a sign is part of its prior's factor.

    Under a heavy tail a tilted density may have more variance than its cavity, and its site negative
    precision. Where no step leaves all cavities densities, the algorithm restarts with such precisions fixed
    at zero: these sites match means alone. It may still not converge where the data leave a heavy tail
    unbounded, as that of the bias where a class has one row; then `converged` is false.

    Parameters
    ----------
    rows : SignedRows
    options : PropagationOptions, optional

    References
    ----------
    T. Minka (2001), "Expectation propagation for approximate Bayesian inference", UAI. H. Chen, P. Tino and
    X. Yao (2014), "Efficient probabilistic classification vector machine with incremental basis
    function selection", IEEE TNNLS 25(2), where the precisions are given and maximised over.
    """
    options = PropagationOptions() if options is None else options
    least = min(_SHORTEST, options.damping)
    now, step, best, hold = _begin(rows), options.damping, np.inf, False
    changes: list[float] = []
    steps: list[float] = []
    status = Status.ITERATION_LIMIT
    for _ in range(options.max_iter):
        mean, variance, usable = _cavities(now)
        tilted = _tilt(rows, mean, variance)
        if hold:
            tilted = tilted._replace(variance=np.minimum(tilted.variance, variance))
        # the largest gap between tilted and marginal moments; infinite where a cavity is no density
        change = np.inf
        if usable.all():
            of_mean = np.abs(tilted.mean - now.marginal_mean) / np.sqrt(now.marginal_variance)
            of_variance = np.abs(tilted.variance / now.marginal_variance - 1.0)
            change = float(max(of_mean.max(), of_variance.max()))
        changes.append(change)
        steps.append(step)
        if change <= options.tol:
            status = Status.CONVERGED
            break
        step = min(options.damping, 1.05 * step) if change < best else max(least, 0.8 * step)
        best = min(best, change) if np.isfinite(change) else best
        moved = _moved(rows, now, tilted, (mean, variance, usable), step)
        if moved is None and not hold:  # once more, from the beginning
            moved, best, hold = (_begin(rows), options.damping), np.inf, True
        now, step = (now, least) if moved is None else moved
    mean, variance, _ = _cavities(now)
    tilted, n = _tilt(rows, mean, variance), len(rows.design)
    return PropagationFit(
        now.mean,
        now.covariance,
        _log_evidence(now, tilted, mean, variance),
        mean,
        variance,
        tilted,
        (rows.design * now.precision[:n, None]).T @ rows.design,
        rows.design.T @ now.shift[:n],
        (float(now.precision[-1]), float(now.shift[-1])),
        rows.hyperprior,
        int(np.sum(tilted.variance > variance)) if hold else 0,
        status,
        len(changes),
        np.array(changes),
        np.array(steps),
    )


def _begin(rows: SignedRows) -> _Normal:
    """Return first sites: the probits' curvature and slope at zero, and the priors' at half their scale."""
    prior, (n, p) = rows.hyperprior, rows.design.shape
    weight, bias = (prior.c + 0.5) / prior.d, (prior.e + 0.5) / prior.f
    precision = np.concatenate([np.full(n, 2.0 / np.pi), np.full(p - 1, weight), [bias]])
    shift = np.concatenate(
        [np.full(n, np.sqrt(2.0 / np.pi)), np.full(p - 1, 0.5 * np.sqrt(weight)), [0.0]]
    )
    return _Normal(rows.design, precision, shift)


def _cavities(now: _Normal) -> tuple[Array, Array, Mask]:
    """Return means and variances of the cavities, and which of them are densities.

    One that knows nothing, or less for rounding, counts as 1e5 times as wide as the marginal.
    """
    inverse = 1.0 / now.marginal_variance
    precision = inverse - now.precision
    linear = now.marginal_mean * inverse - now.shift
    variance = 1.0 / np.maximum(precision, _NO_CAVITY * inverse)
    is_flat = precision < _NO_CAVITY * inverse
    mean = np.where(is_flat, now.marginal_mean, linear * variance)
    return mean, variance, precision > -_NO_CAVITY * inverse


def _tilt(rows: SignedRows, mean: Array, variance: Array) -> Tilted:
    """Return the moments of every cavity times its factor."""
    prior, n = rows.hyperprior, len(rows.design)
    parts = (
        probit_tilted(mean[:n], variance[:n]),
        student_tilted(mean[n:-1], variance[n:-1], prior.c, prior.d, half=True),
        student_tilted(mean[-1:], variance[-1:], prior.e, prior.f, half=False),
    )
    return Tilted(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _moved(
    rows: SignedRows, now: _Normal, tilted: Tilted, cavity: tuple[Array, Array, Mask], step: float
) -> tuple[_Normal, float] | None:
    """Return the sites a step towards the tilted moments, and the step; None where no step is possible.

    The step is halved until the product of the sites and all cavities are densities.
    """
    mean, variance, usable = cavity
    precision = np.where(usable, 1.0 / tilted.variance - 1.0 / variance, now.precision)
    shift = np.where(usable, tilted.mean / tilted.variance - mean / variance, now.shift)
    way = precision - now.precision, shift - now.shift
    while step > _LEAST:
        with suppress(LinAlgError):
            there = now.precision + step * way[0], now.shift + step * way[1]
            moved = _Normal(rows.design, *there)
            if _cavities(moved)[2].all():
                return moved, step
        step *= 0.5
    return None


def _log_evidence(now: _Normal, tilted: Tilted, mean: Array, variance: Array) -> float:
    """Return the log integral of all sites, each scaled to its factor's mass under its cavity."""
    share = 1.0 + variance * now.precision
    total = mean / variance + now.shift
    ratio = 0.5 * (total * total * variance / share - mean * mean / variance - np.log(share))
    return float(np.sum(tilted.log_mass - ratio) + now.log_mass)


# --- moments of a normal density times one factor, of n cavities at a time --------------------------


def probit_tilted(mean: Array, variance: Array) -> Tilted:
    """Return the moments of N(x; mean, variance) Phi(x) (Rasmussen & Williams 2006, eqs. 3.82 to 3.86)."""
    root = np.sqrt(1.0 + variance)
    z, one = mean / root, np.ones_like(mean)
    slope, row_curvature = inverse_mills(z) / root, curvature(z, one) / root**2
    return Tilted(log_ndtr(z), mean + variance * slope, variance * (1.0 - variance * row_curvature))


def half_line_tilted(mean: Array, variance: Array) -> Tilted:
    """Return the moments of N(x; mean, variance) on x >= 0."""
    sd = np.sqrt(variance)
    z = np.asarray(mean / sd)
    near = np.maximum(z, _FAR)
    mills = inverse_mills(near)
    shift, spread = near + mills, 1.0 - mills * (near + mills)
    far = np.minimum(z, _FAR)
    x2 = 1.0 / np.square(far)
    far_shift = -(1.0 - x2 * (2.0 - x2 * (10.0 - 74.0 * x2))) / far
    far_spread = x2 * (1.0 - x2 * (6.0 - x2 * (50.0 - 518.0 * x2)))
    is_far = z < _FAR
    return Tilted(
        log_ndtr(z),
        sd * np.where(is_far, far_shift, shift),
        variance * np.where(is_far, far_spread, spread),
    )


def student_tilted(
    mean: Array, variance: Array, shape: float, rate: float, *, half: bool
) -> Tilted:
    """Return the moments of N(x; mean, variance) times a Student-t, on x >= 0 (twice as high) or everywhere.

    The Student-t is a mixture of normals with precisions from Gamma(shape, rate); given the precision the
    moments are exact. Over its logarithm the integrand is a mixture of log-Gamma densities, one for
    each x, whatever the cavity: the trapezoid rule's error is their Fourier transform, below 1e-11 here.

    Parameters
    ----------
    mean, variance : ndarray, shape (n,)
    shape, rate : float
        Of the precision's Gamma distribution: 2 shape degrees of freedom, scale sqrt(rate / shape).
    half : bool
        Whether x >= 0.
    """
    log_precision, log_weight = _precisions(mean, variance, shape, rate)
    precision = np.exp(log_precision)
    m, v = mean[:, None], variance[:, None]
    shrink = 1.0 + precision * v
    total = v + 1.0 / precision
    log_given = log_weight - 0.5 * (np.log(2.0 * np.pi * total) + m * m / total)
    inner = Tilted(np.zeros_like(log_given), m / shrink, v / shrink)
    if half:
        inner = half_line_tilted(m / shrink, v / shrink)
        log_given = log_given + inner.log_mass + np.log(2.0)
    log_mass = logsumexp(log_given, axis=1)
    share = np.exp(log_given - log_mass[:, None])
    centre = np.sum(share * inner.mean, axis=1)
    away = inner.mean - centre[:, None]
    return Tilted(log_mass, centre, np.sum(share * (inner.variance + away * away), axis=1))


def _precisions(mean: Array, variance: Array, shape: float, rate: float) -> tuple[Array, Array]:
    """Return nodes over the logarithm of the precision, shape (n, n_nodes), and their log weights."""
    spacing = min(0.25, 0.8 / np.sqrt(shape + 0.5))
    largest = np.maximum(mean, 0.0) - np.minimum(mean, 0.0) + 9.0 * np.sqrt(variance)
    least, most = gammaincinv(shape + 0.5, _TAIL_MASS), gammainccinv(shape + 0.5, _TAIL_MASS)
    low = np.log(least) - np.log(rate + 0.5 * largest**2)
    high = np.log(most) - np.log(rate)
    n_nodes = int(np.ceil((high - low.min()) / spacing)) + 1
    t = high - spacing * np.arange(n_nodes)[None, :]
    t = np.broadcast_to(t, (len(mean), n_nodes))
    log_density = shape * (np.log(rate) + t) - rate * np.exp(t) - gammaln(shape)
    return t, log_density + np.log(spacing)


def half_line_matching(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Return mean and variance of the normals that have given moments on x >= 0.

    The standard deviation on a half-line is less than the mean: a greater one counts as 0.95 times the mean.

    Parameters
    ----------
    mean, variance : ndarray, shape (n,)
        Of the truncated density; means are positive.
    """
    ratio, one = np.minimum(np.sqrt(variance) / mean, _MOST_SPREAD), np.ones_like(mean)

    def is_left(score: Array) -> Mask:  # the ratio falls as the normal moves to the right
        found = half_line_tilted(score, one)
        return np.sqrt(found.variance) > ratio * found.mean

    score = _bisected(is_left, np.full_like(mean, _FAR), 1.0 / ratio)
    sd = mean / half_line_tilted(score, one).mean
    return score * sd, sd * sd


def half_line_location(mean: Array, variance: Array) -> Array:
    """Return locations of normals whose truncation to x >= 0 has the given means, shape (n,)."""
    sd, one = np.sqrt(variance), np.ones_like(mean)

    def is_left(score: Array) -> Mask:
        return sd * half_line_tilted(score, one).mean < mean

    return sd * _bisected(is_left, -2.0 * np.maximum(sd / mean, 1.0), mean / sd)


def _bisected(is_left: Callable[[Array], Mask], low: Array, high: Array) -> Array:
    """Return by bisection where a condition, true on the left, becomes false."""
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        left = is_left(middle)
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    return 0.5 * (low + high)
