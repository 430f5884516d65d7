"""Gibbs sampling of the PCVM's posterior, the signs held fixed: compiled by numba, no PyMC.

The probit's latent responses z are drawn (Albert & Chib 1993); precisions and bias are integrated out of
the updates of the weights. Nothing here is in the papers, which stop at the posterior's mode.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg import qr

from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array, log_ndtr

__all__ = ["GibbsProblem", "GibbsState", "Integers", "advance", "factorise"]

# columns of Phi below this share of the largest pivot are rounding: latent values keep nine digits
_RANK_TOLERANCE = 1e-11
_N_NEIGHBOURS = 10
_N_LARGEST = 6
_LOG_SIZE_WIDTH = 2.0  # slice width for log sizes: the marginal prior's own spread is of order one
_SCALE_WIDTH = 0.3
_SINGLE_WIDTH = 1.0
_SMALLEST_SIZE = 1e-300
_MOST_STEPS = 30
_SQRT_HALF = math.sqrt(0.5)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)

type Integers = NDArray[np.int64]

_jit = njit(nogil=True, cache=True, error_model="numpy")


@dataclass(frozen=True)
class GibbsProblem:
    """What a chain needs; made once and shared by all chains.

    Attributes
    ----------
    left : ndarray, shape (n_obs, rank)
        Orthonormal columns.
    right : ndarray, shape (n_basis, rank)
        Phi = left right', to rounding: kernels are close to low rank, which a sweep's time follows.
    sign : ndarray, shape (n_basis,)
    label : ndarray, shape (n_obs,)
    neighbours : ndarray of int, shape (n_basis, k)
        Nearest columns of Phi, with which a weight exchanges size.
    hyperprior : Hyperprior
        Proper; d is learned where its ``rate_shape`` is given.
    """

    left: Array
    right: Array
    sign: Array
    label: Array
    neighbours: Integers
    hyperprior: Hyperprior

    @classmethod
    def of(cls, Phi: Array, label: Array, sign: Array, hyperprior: Hyperprior) -> "GibbsProblem":
        """Return the problem of basis functions `Phi`, shape (n_obs, n_basis).

        Raises
        ------
        ValueError
            If the hyperprior is improper.
        """
        if not hyperprior.is_proper:
            raise ValueError(
                f"hyperprior {hyperprior} is improper: its posterior cannot be sampled; needed all positive"
            )
        left, right = factorise(Phi)
        return cls(left, right, sign, label, _nearest_columns(right), hyperprior)

    score_dims: ClassVar[tuple[str, ...]] = ()

    def start(self, rng: np.random.Generator) -> "GibbsState":
        """Return where a chain begins."""
        return GibbsState.from_prior(self, rng)

    def state_of(self, size: Array, numbers: Array) -> "GibbsState":
        """Return a state that was written down."""
        return GibbsState(size, *map(float, numbers))

    def advance(
        self, state: "GibbsState", rng: np.random.Generator, *, draws: int, thin: int = 1
    ) -> tuple[Array, Array, Array]:
        """Run sweeps, see `advance`."""
        return advance(self, state, rng, draws=draws, thin=thin)

    def latent(self, size: Array, bias: Array, Phi: Array) -> Array:
        """Return the latent function of draws at the rows of `Phi`, shape (draws, n_obs)."""
        return (size * self.sign) @ Phi.T + bias[:, None]

    def log_likelihood(self, latent: Array) -> Array:
        """Return log probabilities of the labels, shape (..., n_obs)."""
        return log_ndtr(self.label * latent)

    @property
    def parameters(self) -> Array:
        """Return c, e, f, and shape and rate of the hyperprior of d (zeros where d is fixed)."""
        prior = self.hyperprior
        shape = prior.rate_shape or 0.0
        return np.array([prior.c, prior.e, prior.f, shape, shape / prior.d])


@dataclass
class GibbsState:
    """Where a chain stands.

    Attributes
    ----------
    size : ndarray, shape (n_basis,)
        Sizes of the weights.
    bias : float
    log_rate : float
        log d, of the rate of the weights' Gamma hyperprior.
    """

    size: Array
    bias: float
    log_rate: float

    @property
    def numbers(self) -> Array:
        """What there is beside the sizes."""
        return np.array([self.bias, self.log_rate])

    @classmethod
    def from_prior(cls, problem: GibbsProblem, rng: np.random.Generator) -> "GibbsState":
        """Return sizes uniform up to the prior's scale, bias zero: overdispersed but not wild."""
        prior = problem.hyperprior
        scale = np.sqrt(prior.d / prior.c)
        return cls(scale * rng.uniform(0.05, 2.0, len(problem.sign)), 0.0, np.log(prior.d))


def factorise(Phi: Array, tolerance: float = _RANK_TOLERANCE) -> tuple[Array, Array]:
    """Return (left, right) with Phi = left right' and left' left = I, of numerical rank.

    Pivoted QR, cut off where the pivots fall below `tolerance` times the largest.
    """
    Q, R, order = qr(Phi, mode="economic", pivoting=True)
    pivots = np.abs(np.diag(R))
    rank = max(1, int(np.sum(pivots > tolerance * pivots[0])))
    right = np.zeros((Phi.shape[1], rank))
    right[order] = R[:rank].T
    return np.ascontiguousarray(Q[:, :rank]), right


def _nearest_columns(right: Array) -> Integers:
    """Return for each basis the nearest others, of either sign, shape (n_basis, k)."""
    n_basis = len(right)
    k = min(_N_NEIGHBOURS, n_basis - 1)
    out = np.zeros((n_basis, k), dtype=np.int64)
    squared = np.einsum("jk,jk->j", right, right)
    for j in range(n_basis if k else 0):
        distance = squared - 2.0 * (right @ right[j])
        distance[j] = np.inf
        out[j] = np.argpartition(distance, k - 1)[:k]
    return out


def advance(
    problem: GibbsProblem,
    state: GibbsState,
    rng: np.random.Generator,
    *,
    draws: int,
    thin: int = 1,
) -> tuple[Array, Array, Array]:
    """Run ``draws * thin`` sweeps; `state` moves along.

    Parameters
    ----------
    problem : GibbsProblem
    state : GibbsState
        Changed in place.
    rng : numpy.random.Generator
        Its stream alone decides the draws.
    draws : int
        States kept, one every `thin` sweeps.
    thin : int

    Returns
    -------
    size : ndarray, shape (draws, n_basis)
    bias : ndarray, shape (draws,)
    rate : ndarray, shape (draws,)

    References
    ----------
    J. H. Albert and S. Chib (1993), "Bayesian analysis of binary and polychotomous response data", JASA 88.
    R. M. Neal (2003), "Slice sampling", Annals of Statistics 31(3).
    J. S. Liu and C. Sabatti (2000), "Generalised Gibbs sampler and multigrid Monte Carlo", Biometrika 87.
    """
    scalars = np.array([state.bias, state.log_rate])
    size, bias, rate = _run(
        problem.left,
        problem.right,
        problem.sign,
        problem.label,
        problem.neighbours,
        problem.parameters,
        state.size,
        scalars,
        rng,
        draws,
        thin,
    )
    state.bias, state.log_rate = map(float, scalars)
    return size, bias, rate


# --- compiled: densities -----------------------------------------------------------------------


@_jit
def _log_ndtr(x):  # type: ignore[no-untyped-def]
    """Return log Phi(x): erfc keeps its digits in the tail until it underflows, then its series."""
    if x > 0.0:
        return math.log1p(-0.5 * math.erfc(_SQRT_HALF * x))
    if x > -30.0:
        return math.log(0.5 * math.erfc(-_SQRT_HALF * x))
    s = 1.0 / (x * x)
    series = -s * (1.0 - 3.0 * s * (1.0 - 5.0 * s * (1.0 - 7.0 * s)))
    return -0.5 * x * x - math.log(-x) - _HALF_LOG_2PI + math.log1p(series)


@_jit
def _log_size_density(size, c, rate):  # type: ignore[no-untyped-def]
    """Return the half-Student-t's log density in the size, without its constant (chen2009 eq. 21)."""
    return -(c + 0.5) * math.log1p(size * size / (2.0 * rate))


@_jit
def _coordinate_density(x, c, rate, linear, bend):  # type: ignore[no-untyped-def]
    """Return the log density of x = log size given all else: prior, Jacobian, Gaussian in the size."""
    size = math.exp(x)
    return x + _log_size_density(size, c, rate) + linear * size - 0.5 * bend * size * size


@_jit
def _transfer_density(t, first, second, direction, c, rate, linear, bend):  # type: ignore[no-untyped-def]
    """Return the log density along sizes (first + t, second + direction t)."""
    prior = _log_size_density(first + t, c, rate)
    prior += _log_size_density(second + direction * t, c, rate)
    return prior + linear * t - 0.5 * bend * t * t


@_jit
def _scale_density(t, size, latent, label, bias, log_rate, par):  # type: ignore[no-untyped-def]
    """Return the log density along (sizes, bias) -> e^t (sizes, bias), z integrated out.

    A learned d goes along as e^2t d, which leaves the prior of the sizes as it is; a fixed d does not.
    """
    c, e, f = par[0], par[1], par[2]
    factor = math.exp(t)
    total = t - (e + 0.5) * math.log1p(bias * bias * factor * factor / (2.0 * f))
    if par[3] > 0.0:
        moved = log_rate + 2.0 * t
        total += par[3] * moved - par[4] * math.exp(moved)
    else:
        rate = math.exp(log_rate - 2.0 * t)
        for j in range(len(size)):
            total += t + _log_size_density(size[j], c, rate)
    for i in range(len(label)):
        total += _log_ndtr(label[i] * factor * (latent[i] + bias))
    return total


@_jit
def _single_density(t, size, move, latent, label, c, rate):  # type: ignore[no-untyped-def]
    """Return the log density along size -> e^t size of one weight, z integrated out.

    `move` is what the weight adds to the latent function now, `latent` the whole of it with the bias.
    """
    factor = math.exp(t)
    total = t + _log_size_density(size * factor, c, rate)
    for i in range(len(label)):
        total += _log_ndtr(label[i] * (latent[i] + (factor - 1.0) * move[i]))
    return total


@_jit
def _log_rate_density(x, size, par):  # type: ignore[no-untyped-def]
    """Return the log density of x = log d given the sizes, precisions integrated out."""
    rate = math.exp(x)
    total = par[3] * x - par[4] * rate - 0.5 * len(size) * x
    for j in range(len(size)):
        total += _log_size_density(size[j], par[0], rate)
    return total


# --- compiled: draws ---------------------------------------------------------------------------


@_jit
def _upper_tail(a, rng):  # type: ignore[no-untyped-def]
    """Draw a standard normal above `a` (Robert 1995: exponential proposals in the tail)."""
    if a <= 0.4:
        while True:
            t = rng.standard_normal()
            if t > a:
                return t
    slope = 0.5 * (a + math.sqrt(a * a + 4.0))
    while True:
        t = a + rng.standard_exponential() / slope
        if rng.standard_exponential() > 0.5 * (t - slope) ** 2:
            return t


@_jit
def _draw_responses(latent, bias, label, response, rng):  # type: ignore[no-untyped-def]
    """Draw z given the latent function: N(f, 1) on the label's side of zero."""
    for i in range(len(label)):
        mean = label[i] * (latent[i] + bias)
        response[i] = label[i] * (mean + _upper_tail(-mean, rng))


@_jit
def _slice_coordinate(size, c, rate, linear, bend, rng):  # type: ignore[no-untyped-def]
    """Draw a size given all else by a slice in its logarithm, stepping out."""
    x = math.log(size)
    level = _coordinate_density(x, c, rate, linear, bend) - rng.standard_exponential()
    low = x - _LOG_SIZE_WIDTH * rng.random()
    high = low + _LOG_SIZE_WIDTH
    while _coordinate_density(low, c, rate, linear, bend) > level:
        low -= _LOG_SIZE_WIDTH
    while _coordinate_density(high, c, rate, linear, bend) > level:
        high += _LOG_SIZE_WIDTH
    while True:
        new = low + (high - low) * rng.random()
        if _coordinate_density(new, c, rate, linear, bend) > level:
            return math.exp(new)
        if new < x:
            low = new
        else:
            high = new


@_jit
def _slice_transfer(first, second, direction, floor, c, rate, linear, bend, rng):  # type: ignore[no-untyped-def]
    """Draw t along (first + t, second + direction t), both sizes kept above `floor`."""
    level = _transfer_density(0.0, first, second, direction, c, rate, linear, bend)
    level -= rng.standard_exponential()
    least = floor - first
    if direction < 0.0:  # what one gains the other loses: the slice is within a bounded interval
        low, high = least, second - floor
    else:
        least = max(least, floor - second)
        width = math.exp(math.log(1e-3) + rng.random() * math.log(1e4))
        low = -width * rng.random()
        high = low + width
        left = int(_MOST_STEPS * rng.random())
        right = _MOST_STEPS - 1 - left
        while (
            left > 0
            and low > least
            and _transfer_density(low, first, second, direction, c, rate, linear, bend) > level
        ):
            low -= width
            left -= 1
        while (
            right > 0
            and _transfer_density(high, first, second, direction, c, rate, linear, bend) > level
        ):
            high += width
            right -= 1
        low = max(low, least)
    while True:
        t = low + (high - low) * rng.random()
        if _transfer_density(t, first, second, direction, c, rate, linear, bend) > level:
            return t
        if t < 0.0:
            low = t
        else:
            high = t


@_jit
def _slice_scale(size, latent, label, bias, log_rate, par, rng):  # type: ignore[no-untyped-def]
    """Draw the logarithm of a common factor of sizes and bias (and of d, where that is learned)."""
    level = _scale_density(0.0, size, latent, label, bias, log_rate, par)
    level -= rng.standard_exponential()
    low = -_SCALE_WIDTH * rng.random()
    high = low + _SCALE_WIDTH
    left = int(_MOST_STEPS * rng.random())  # bounded: the target can be flat
    right = _MOST_STEPS - 1 - left
    while left > 0 and _scale_density(low, size, latent, label, bias, log_rate, par) > level:
        low -= _SCALE_WIDTH
        left -= 1
    while right > 0 and _scale_density(high, size, latent, label, bias, log_rate, par) > level:
        high += _SCALE_WIDTH
        right -= 1
    while True:
        t = low + (high - low) * rng.random()
        if _scale_density(t, size, latent, label, bias, log_rate, par) > level:
            return t
        if t < 0.0:
            low = t
        else:
            high = t


@_jit
def _slice_log_rate(x, size, par, rng):  # type: ignore[no-untyped-def]
    """Draw log d given the sizes."""
    level = _log_rate_density(x, size, par) - rng.standard_exponential()
    low = x - _SCALE_WIDTH * rng.random()
    high = low + _SCALE_WIDTH
    while _log_rate_density(low, size, par) > level:
        low -= _SCALE_WIDTH
    while _log_rate_density(high, size, par) > level:
        high += _SCALE_WIDTH
    while True:
        new = low + (high - low) * rng.random()
        if _log_rate_density(new, size, par) > level:
            return new
        if new < x:
            low = new
        else:
            high = new


@_jit
def _slice_single(size, floor, move, latent, label, c, rate, rng):  # type: ignore[no-untyped-def]
    """Draw the logarithm of a factor of one size, which is kept above `floor`."""
    level = _single_density(0.0, size, move, latent, label, c, rate) - rng.standard_exponential()
    least = math.log(floor / size)
    low = -_SINGLE_WIDTH * rng.random()
    high = low + _SINGLE_WIDTH
    while low > least and _single_density(low, size, move, latent, label, c, rate) > level:
        low -= _SINGLE_WIDTH
    while _single_density(high, size, move, latent, label, c, rate) > level:
        high += _SINGLE_WIDTH
    low = max(low, least)
    while True:
        t = low + (high - low) * rng.random()
        if _single_density(t, size, move, latent, label, c, rate) > level:
            return t
        if t < 0.0:
            low = t
        else:
            high = t


# --- compiled: moves ---------------------------------------------------------------------------


@_jit
def _update_sizes(right, sign, border, norm, spread, size, slope, c, rate, rng):  # type: ignore[no-untyped-def]
    """Draw each size in turn; `slope` is left' Omega (z - Phi w), Omega = I - 11' / spread."""
    rank = right.shape[1]
    ones = border[-rank:]
    for j in range(len(size)):
        bend = norm[j] - border[j] * border[j] / spread
        linear = sign[j] * np.dot(right[j], slope) + bend * size[j]
        new = max(_slice_coordinate(size[j], c, rate, linear, bend, rng), _SMALLEST_SIZE)
        delta = sign[j] * (new - size[j])
        size[j] = new
        shared = delta * border[j] / spread
        for k in range(rank):
            slope[k] -= delta * right[j, k] - shared * ones[k]


@_jit
def _transfer(first, second, floor, right, sign, border, spread, size, slope, c, rate, rng):  # type: ignore[no-untyped-def]
    """Move weight from one basis to another, their signed sum kept: f changes by t (phi_1 - phi_2)."""
    rank = right.shape[1]
    ones = border[-rank:]
    inner, bend = 0.0, 0.0
    for k in range(rank):
        difference = right[first, k] - right[second, k]
        inner += difference * slope[k]
        bend += difference * difference
    edge = border[first] - border[second]
    bend = max(bend - edge * edge / spread, 0.0)
    s = sign[first]
    direction = -s * sign[second]
    t = _slice_transfer(size[first], size[second], direction, floor, c, rate, s * inner, bend, rng)
    size[first] = max(size[first] + t, _SMALLEST_SIZE)
    size[second] = max(size[second] + direction * t, _SMALLEST_SIZE)
    shared = s * t * edge / spread
    for k in range(rank):
        slope[k] -= s * t * (right[first, k] - right[second, k]) - shared * ones[k]


@_jit
def _transfer_between_neighbours(  # type: ignore[no-untyped-def]
    neighbours, right, sign, border, spread, size, slope, c, rate, rng
):
    """Exchange size with a neighbour, drawn without regard to the state."""
    k = neighbours.shape[1]
    if k == 0:
        return
    for j in range(len(size)):
        other = neighbours[j, int(rng.random() * k)]
        _transfer(j, other, 0.0, right, sign, border, spread, size, slope, c, rate, rng)


@_jit
def _transfer_between_largest(right, sign, border, spread, size, slope, c, rate, rng):  # type: ignore[no-untyped-def]
    """Exchange size among the largest weights, along ridges that single updates climb slowly.

    Which are the largest depends on the state: each move is restricted to states in which they stay so
    (a size that would fall below the next largest is refused), hence leaves the posterior invariant.
    """
    n_largest = min(_N_LARGEST, len(size) - 1)
    if n_largest < 2:
        return
    order = np.argsort(-size)
    floor = size[order[n_largest]]
    largest = np.sort(order[:n_largest])  # the moves' order must not depend on the sizes either
    for i in range(n_largest):
        for j in range(i):
            _transfer(
                largest[i],
                largest[j],
                floor,
                right,
                sign,
                border,
                spread,
                size,
                slope,
                c,
                rate,
                rng,
            )


@_jit
def _update_a_large_one(left, right, sign, label, size, latent, bias, c, rate, rng):  # type: ignore[no-untyped-def]
    """Draw one of the largest sizes with the responses integrated out; its latent function follows.

    A weight far above the others' scale (that of a lonely row) moves by the responses' unit noise at a time
    where they are given. Which are the largest must not change, as in the transfers between them.
    """
    n_largest = min(_N_LARGEST, len(size) - 1)
    if n_largest < 1:
        return
    order = np.argsort(-size)
    j = order[int(rng.random() * n_largest)]
    column = np.dot(left, right[j])
    move = sign[j] * size[j] * column
    t = _slice_single(size[j], size[order[n_largest]], move, latent + bias, label, c, rate, rng)
    delta = sign[j] * size[j] * (math.exp(t) - 1.0)
    size[j] *= math.exp(t)
    latent += delta * column


@_jit
def _sums_of_columns(left, right):  # type: ignore[no-untyped-def]
    """Return Phi' 1 for each basis with left' 1 behind it, and the squared norms of Phi's columns."""
    n_obs, rank = left.shape
    ones = np.zeros(rank)
    for i in range(n_obs):
        for k in range(rank):
            ones[k] += left[i, k]
    norm = np.empty(len(right))
    for j in range(len(right)):
        norm[j] = np.dot(right[j], right[j])
    return np.concatenate((np.dot(right, ones), ones)), norm


@_jit
def _update_machine(  # type: ignore[no-untyped-def]
    left, right, sign, neighbours, border, norm, prior, inside, response, size, bias, rng
):
    """Draw sizes (in place) and bias given the responses; return the bias, and Phi w.

    `prior` holds c, e, f and d; `inside` is ``right' w`` of the old weights.
    """
    c, e, f, rate = prior
    ones = border[-right.shape[1] :]
    precision = rng.gamma(e + 0.5, 1.0) / (f + 0.5 * bias * bias)
    spread = len(left) + precision  # the bias integrated out: Omega = I - 11' / spread
    total = response.sum()
    slope = np.dot(response, left) - inside - ones * ((total - np.dot(ones, inside)) / spread)
    _update_sizes(right, sign, border, norm, spread, size, slope, c, rate, rng)
    _transfer_between_neighbours(neighbours, right, sign, border, spread, size, slope, c, rate, rng)
    _transfer_between_largest(right, sign, border, spread, size, slope, c, rate, rng)
    latent = np.dot(left, np.dot(sign * size, right))
    return (total - latent.sum()) / spread + rng.standard_normal() / math.sqrt(spread), latent


@_jit
def _run(  # type: ignore[no-untyped-def]
    left, right, sign, label, neighbours, par, size, scalars, rng, draws, thin
):
    """Run sweeps, keep one state in `thin`; `size` and `scalars` (bias, log d) move along."""
    n_obs, n_basis = len(left), len(size)
    border, norm = _sums_of_columns(left, right)
    kept_size = np.empty((draws, n_basis))
    kept_bias = np.empty(draws)
    kept_rate = np.empty(draws)
    response = np.empty(n_obs)
    bias, log_rate = scalars[0], scalars[1]
    c, e, f = par[0], par[1], par[2]
    for sweep in range(draws * thin):
        # anew each time: what is kept of a chain is its sizes, bias and d
        inside = np.dot(sign * size, right)
        latent = np.dot(left, inside)
        _draw_responses(latent, bias, label, response, rng)
        rate = math.exp(log_rate)
        bias, latent = _update_machine(
            left,
            right,
            sign,
            neighbours,
            border,
            norm,
            (c, e, f, rate),
            inside,
            response,
            size,
            bias,
            rng,
        )
        _update_a_large_one(left, right, sign, label, size, latent, bias, c, rate, rng)
        t = _slice_scale(size, latent, label, bias, log_rate, par, rng)
        size *= math.exp(t)
        bias *= math.exp(t)
        if par[3] > 0.0:
            log_rate = _slice_log_rate(log_rate + 2.0 * t, size, par, rng)
        if (sweep + 1) % thin == 0:
            kept = sweep // thin
            kept_size[kept] = size
            kept_bias[kept] = bias
            kept_rate[kept] = math.exp(log_rate)
    scalars[0], scalars[1] = bias, log_rate
    return kept_size, kept_bias, kept_rate
