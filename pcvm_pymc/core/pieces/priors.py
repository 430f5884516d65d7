"""Hyperpriors of weights and bias, with their precisions integrated out or given."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import gammaln

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import check_real

PRUNING_PRECISION = 1e12  # nu of chen2009, appendix C: expected precisions above it are pruned
WEIGHT_CUTOFF = 1.0 / PRUNING_PRECISION  # sizes below which an improper prior's density is constant
LATENT_SIZE = 2.0  # default of the prior median size of the centred latent function
RATE_SHAPE = 0.5  # of a learned d under signs of labels, where it is Gamma
# of the logarithm of a learned d without signs, where it is log-normal: at 2.5 it predicts as well, but
# chains of separable labels mix 30 times more slowly
RATE_SPREAD = 1.5
SCALE_SPREAD = 0.7  # standard deviation of a weak prior of log sqrt(d / c), the scale of a mode
_LOG_2, _LOG_2PI = np.log(2.0), np.log(2.0 * np.pi)


@dataclass(frozen=True)
class Hyperprior:
    """Gamma(c, d) on the precision of each weight and Gamma(e, f) on that of the bias.

    Both in shape and rate. With the precision integrated out a weight is half-Student-t with ``2 c``
    degrees of freedom and scale ``sqrt(d / c)``, the bias Student-t with ``2 e`` and
    ``sqrt(f / e)`` (Chen et al. 2009, eqs. 21-22).

    Parameters
    ----------
    c, d : float
        Shape and rate for the weights. Proper if and only if both are positive. ``d = 0`` gives the
        scale-free density ``|w|^-(2c+1)``, which only the EM can use; then ``c > -1/2``.
    e, f : float
        The same for the bias.
    rate_shape, rate_spread : float, optional
        Either makes d unknown, so that the data set the scale: with a Gamma hyperprior of this shape and of
        mean `d`, or a log-normal one of median `d`, whose log d has this standard deviation. Jointly with the
        weights d has no mode: see `pcvm_pymc.core.marginal`.

    Raises
    ------
    ValueError
        If a value is not finite, a rate negative, a shape too small for its rate, or d has two hyperpriors.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), "Probabilistic classification vector machines", IEEE
    Transactions on Neural Networks 20(6), eqs. 4, 21-22 and 24-25, corrected.

    Examples
    --------
    >>> Hyperprior.jeffreys().is_proper
    False
    """

    c: float
    d: float
    e: float
    f: float
    rate_shape: float | None = None
    rate_spread: float | None = None

    def __post_init__(self) -> None:
        for name, rate_name in (("c", "d"), ("e", "f")):
            shape, rate = getattr(self, name), getattr(self, rate_name)
            check_real(name, shape, -np.inf)
            check_real(rate_name, rate, closed=True)
            least = 0.0 if rate > 0 else -0.5
            if shape <= least:
                fault = f"{name}={shape} must be greater than {least} when {rate_name}={rate}"
                raise ValueError(f"{fault}; see jeffreys()")
        given = {"rate_shape": self.rate_shape, "rate_spread": self.rate_spread}
        for name, number in ((name, x) for name, x in given.items() if x is not None):
            check_real(name, number)
            if self.d == 0 or None not in given.values():
                raise ValueError(f"d={self.d} with {given}; needed d > 0 and one of them, or none")

    @classmethod
    def jeffreys(cls) -> Self:
        """Return the improper prior of the paper, all zero: density 1/abs(w). For EM only."""
        return cls(0.0, 0.0, 0.0, 0.0)

    @classmethod
    def chen2009(cls) -> Self:
        """Return the improper prior of the authors' program: density abs(w)^(-1/2). For EM only.

        The expected precision ``1 / (2 w^2)`` of the paper's appendix C (and of its authors' program)
        is that of this prior, formally c = -1/4 and d = 0, not of c = d = 0.
        """
        return cls(-0.25, 0.0, -0.25, 0.0)

    @classmethod
    def plug_in(cls) -> Self:
        """Return the proper hyperprior (5, 5) for weights and (1, 1) for the bias, for the MAP.

        Its mode is among the best by log loss in ``notebooks/hyperprior_comparison.ipynb``; the classifiers
        take it at several scales. The posterior is overconfident under it: sample with `learned`.
        """
        return cls(5.0, 5.0, 1.0, 1.0)

    @classmethod
    def default(cls, Phi: Array, signs: Array | None, *, latent_size: float = LATENT_SIZE) -> Self:
        """Return a proper hyperprior for sampling whose scale is fixed, by the basis functions.

        Weights with two degrees of freedom (c = 1), and d such that the prior median size of the latent
        function, less its mean over the rows (which the bias absorbs), is `latent_size`. With one sign per
        class the latent function grows with the number of overlapping bases: a fixed scale saturates it.

        Parameters
        ----------
        Phi : ndarray, shape (n_obs, n_basis)
        signs : ndarray, shape (n_basis,), or None
            None where weights have either sign: they do not add up.
        latent_size : float
            Prior median size of the centred latent function.
        """
        return cls._scaled(1.0, Phi, signs, latent_size)

    @classmethod
    def learned(cls, Phi: Array, signs: Array | None, *, latent_size: float = LATENT_SIZE) -> Self:
        """Return the hyperprior whose scale is left to the data: d has a wide hyperprior.

        Of those tried it predicts best (``benchmarks/README.md``), and depends least on the number of bases.
        Where all weights of a class have one sign, d is Gamma and c = 1/2: many weights near zero, few large;
        more mass far from zero would tilt the latent function towards a density estimate of each class.
        Unconstrained weights, which cancel, have c = 5, as for `plug_in`, and a log-normal d.

        Parameters
        ----------
        Phi : ndarray, shape (n_obs, n_basis)
        signs : ndarray, shape (n_basis,), or None
        latent_size : float
            Prior median size of the centred latent function where d is at its mean.
        """
        c = 5.0 if signs is None else 0.5
        of_rate = {"rate_spread": RATE_SPREAD} if signs is None else {"rate_shape": RATE_SHAPE}
        return replace(cls._scaled(c, Phi, signs, latent_size), **of_rate)

    @classmethod
    def _scaled(cls, c: float, Phi: Array, signs: Array | None, latent_size: float) -> Self:
        """Return a proper hyperprior of shape c whose latent function has a prior median size."""
        scale = latent_size / prior_latent_size(Phi, signs, c)
        return cls(c, c * scale**2, 0.5, 0.5)

    name: ClassVar[str] = "gamma"
    penalty: ClassVar[float] = 0.0

    @property
    def is_proper(self) -> bool:
        """Whether prior and posterior can be normalised: all four values positive."""
        return min(self.c, self.d, self.e, self.f) > 0

    @property
    def learns_rate(self) -> bool:
        """Whether d is unknown."""
        return self.rate_shape is not None or self.rate_spread is not None

    @property
    def has_mode(self) -> bool:
        """Whether EM finds a mode: not with an unknown scale."""
        return not self.learns_rate

    def at_rate(self, d: float) -> Self:
        """Return the prior whose d is known."""
        return replace(self, d=float(d), rate_shape=None, rate_spread=None)

    def log_rate_density(self, log_d: Any) -> tuple[Any, Any]:
        """Return the log density of log d, of an unknown d, and its slope in log d."""
        away: Any = log_d - np.log(self.d)
        if (spread := self.rate_spread) is not None:
            constant = -0.5 * _LOG_2PI - np.log(spread)
            return constant - 0.5 * (away / spread) ** 2, -away / spread**2
        shape: Any = self.rate_shape
        share = shape * np.exp(away)
        return shape * (np.log(shape) + away) - gammaln(shape) - share, shape - share

    @property
    def holds_zeros(self) -> bool:
        """Whether a weight that EM has brought to zero stays there: d = 0."""
        return self.d == 0

    @property
    def holds_zero_bias(self) -> bool:
        """The same for the bias: f = 0."""
        return self.f == 0

    def weight_precision(self, weight: Array) -> Array:
        """Return E[alpha | w] = (2c + 1) / (w^2 + 2d) (Chen et al. 2009 eq. 24, corrected)."""
        return _mean_precision(weight, self.c, self.d)

    def weight_curvature_ratio(self, weight: Array) -> Array:
        """Return the second derivative of minus the log density in units of E[alpha | w].

        One at zero, negative beyond ``w^2 = 2 d``: the expected precision is a bound of the curvature.
        """
        return _curvature_ratio(weight, self.d)

    def bias_curvature_ratio(self, bias: Array) -> Array:
        """Return the same of biases, in units of E[beta | b]."""
        return _curvature_ratio(bias, self.f)

    def bias_precision(self, bias: Any) -> Any:
        """Return E[beta | b] = (2e + 1) / (b^2 + 2f) of a bias, or of an array of them.

        Chen et al. (2009) eq. 25, corrected.
        """
        return _mean_precision(np.asarray(bias, dtype=float), self.e, self.f)

    def log_weight_density(self, weight: Array) -> Array:
        """Return log p(w) with the precision integrated out (Chen et al. 2009 eq. 21)."""
        half_line = _LOG_2 if self.d > 0 else 0.0  # an improper density is not normalised
        return half_line + _log_mixture_density(weight, self.c, self.d)

    def log_weights_density(self, weight: Array, *, free: bool) -> float:
        """Return the log density of all weights; free ones have either sign instead of a half-line."""
        total = float(self.log_weight_density(weight).sum())
        return total - weight.size * float(_LOG_2) if free and self.d > 0 else total

    def pruned(self, weight: Array, *, shared: bool = False, size: Array | float = 1.0) -> Array:
        """Return the weights, zero where the expected precision exceeds 1e12 (chen2009, appendix C).

        `shared` drops a basis for all scores or for none; `size` is that of the basis functions.
        """
        beyond = self.weight_precision(weight * size) > PRUNING_PRECISION
        if shared:
            beyond = np.broadcast_to(beyond.all(axis=1, keepdims=True), weight.shape)
        return np.where(beyond, 0.0, weight)

    def log_bias_density(self, bias: Any) -> Any:
        """Return log p(b), of one or each, the precision integrated out (Chen et al. 2009 eq. 22)."""
        return _log_mixture_density(np.asarray(bias, dtype=float), self.e, self.f)


@dataclass(frozen=True)
class SharedHyperprior(Hyperprior):
    """`Hyperprior` with one precision for the weights that a basis has in all scores.

    With it integrated out they are jointly Student-t: a basis serves all scores or none (Damoulas et al.
    2008, the mRVM). The parameters are those of `Hyperprior`.
    """

    name: ClassVar[str] = "shared gamma"

    def weight_precision(self, weight: Array) -> Array:
        """Return E[alpha | w] = (2c + C) / (||w||^2 + 2d) of each basis, shape of `weight`."""
        size, n_scores = np.linalg.norm(weight, axis=-1, keepdims=True), weight.shape[-1]
        precision = _mean_precision(size, self.c + 0.5 * (n_scores - 1), self.d)
        return np.broadcast_to(precision, weight.shape)

    def weight_curvature_ratio(self, weight: Array) -> Array:
        """Return ones, the bound: the second derivatives of a basis' weights are coupled."""
        return np.ones_like(weight)

    def log_weight_density(self, weight: Array) -> Array:
        """Return log p(w) of each basis, shape (..., n_basis), of weights (..., n_basis, n_scores)."""
        n_scores, square = weight.shape[-1], np.square(weight).sum(axis=-1)
        if self.d == 0:
            return -(2 * self.c + n_scores) * np.log(np.maximum(np.sqrt(square), WEIGHT_CUTOFF))
        shape = self.c + 0.5 * n_scores
        constant = gammaln(shape) - gammaln(self.c) - 0.5 * n_scores * (_LOG_2PI + np.log(self.d))
        constant += n_scores * _LOG_2  # on half-lines
        return constant - shape * np.log1p(square / (2 * self.d))


@dataclass(frozen=True)
class Laplace:
    r"""Laplace density on weights and bias: normal with variances that are exponential.

    .. math:: w \sim N(0, \tau), \quad p(\tau) = \tfrac{\gamma}{2} e^{-\gamma \tau / 2}
       \quad\Rightarrow\quad p(w) = \tfrac{\sqrt\gamma}{2} e^{-\sqrt\gamma |w|}

    Parameters
    ----------
    gamma : float
        Rate of the variances' exponential distribution; the weights' penalty is its square root.

    Raises
    ------
    ValueError
        If it is not positive and finite.

    References
    ----------
    M. Figueiredo and A. Jain (2001), "Bayesian learning of sparse classifiers", CVPR, eqs. 9-12.

    Examples
    --------
    >>> Laplace(4.0).penalty
    2.0
    """

    gamma: float
    name: ClassVar[str] = "laplace"
    is_proper: ClassVar[bool] = True
    has_mode: ClassVar[bool] = True
    holds_zeros: ClassVar[bool] = True
    holds_zero_bias: ClassVar[bool] = True
    learns_rate: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_real("gamma", self.gamma)

    @property
    def penalty(self) -> float:
        """The L1 penalty, sqrt(gamma)."""
        return float(np.sqrt(self.gamma))

    def weight_precision(self, weight: Array) -> Array:
        """Return E[1 / tau | w] = sqrt(gamma) / abs(w) (Figueiredo & Jain 2001 eq. 12, corrected).

        The printed form has gamma in place of its square root.
        """
        with np.errstate(divide="ignore", over="ignore"):
            return self.penalty / np.abs(weight)

    def weight_curvature_ratio(self, weight: Array) -> Array:
        """Return zeros, the second derivative of minus the log density away from zero."""
        return np.zeros_like(weight)

    def log_weight_density(self, weight: Array) -> Array:
        """Return log p(w), variances integrated out."""
        return np.log(self.penalty / 2.0) - self.penalty * np.abs(weight)

    def log_weights_density(self, weight: Array, *, free: bool) -> float:
        """Return the log density of all weights; on a half-line, where they are not free, twice as high."""
        total = float(self.log_weight_density(weight).sum())
        return total if free else total + weight.size * float(_LOG_2)

    def pruned(self, weight: Array, *, shared: bool = False, size: Array | float = 1.0) -> Array:
        """Return the weights as they are: EM brings them to zero in the limit only."""
        return weight

    # the bias has the weights' density
    bias_precision, log_bias_density = weight_precision, log_weight_density
    bias_curvature_ratio = weight_curvature_ratio


@dataclass(frozen=True)
class HalfHorseshoe:
    r"""Regularised half-horseshoe on the weights: a sparse prior whose posterior suits NUTS.

    .. math:: |w_i| \sim N^+(0, \tau^2 \tilde\lambda_i^2), \quad
       \tilde\lambda_i^2 = \frac{s^2 \lambda_i^2}{s^2 + \tau^2 \lambda_i^2}, \quad
       \lambda_i \sim C^+(0, 1), \quad \tau \sim C^+(0, \tau_0^2)

    with slab s, signs as in the PCVM, and Gamma(e, f) on the bias' precision. It is not in the papers. With a
    fixed tau, chains hardly move between sets of large weights.

    Parameters
    ----------
    global_scale : float
        tau_0, the scale of tau. See `default`.
    slab : float
        s, about the largest size that a weight takes.
    e, f : float
        Shape and rate of the bias' precision.

    Raises
    ------
    ValueError
        If a value is not positive and finite.

    References
    ----------
    J. Piironen and A. Vehtari (2017), "Sparsity information and regularization in the horseshoe
    and other shrinkage priors", Electronic Journal of Statistics 11(2), eq. 3.12 for the scale.

    Examples
    --------
    >>> HalfHorseshoe.default(100, 100).slab
    2.0
    """

    global_scale: float
    slab: float = 2.0
    e: float = 0.5
    f: float = 0.5
    name: ClassVar[str] = "half-horseshoe"
    is_proper: ClassVar[bool] = True
    has_mode: ClassVar[bool] = False
    learns_rate: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("global_scale", "slab", "e", "f"):
            check_real(name, getattr(self, name))

    @classmethod
    def default(cls, n_basis: int, n_obs: int, *, n_expected: int = 5) -> Self:
        """Return the prior at whose global scale about `n_expected` weights are large.

        The scale is ``n_expected / ((n_basis - n_expected) sqrt(n_obs))`` (Piironen & Vehtari 2017,
        eq. 3.12), `n_expected` at most half of the weights.
        """
        few = min(n_expected, max(1, n_basis // 2))
        return cls(few / (max(n_basis - few, 1) * np.sqrt(n_obs)))


type Prior = Hyperprior | HalfHorseshoe | Laplace


def hyperprior_from(names: Iterable[object], values: Iterable[float]) -> Any:
    """Return the hyperprior of a model's or a result's named numbers."""
    numbers = {str(name): float(value) for name, value in zip(names, values, strict=True)}
    if "gamma" in numbers:
        return Laplace(**numbers)
    if numbers.pop("n_scores", 1.0) > 1:
        return SharedHyperprior(**numbers)
    return HalfHorseshoe(**numbers) if "slab" in numbers else Hyperprior(**numbers)


PRIORS = ("jeffreys", "laplace", "student")


def named_prior(
    prior: str | Laplace | Hyperprior, Phi: Array, *, gamma: float = 1.0
) -> Laplace | Hyperprior:
    """Return a prior by its name in `PRIORS`, or as given; raise for others, or of unknown scale.

    ``"student"`` is `Hyperprior.default` for basis functions `Phi`; `gamma` is that of ``"laplace"``.
    """
    if isinstance(prior, Laplace) or (isinstance(prior, Hyperprior) and prior.has_mode):
        return prior
    if isinstance(prior, str) and prior in PRIORS:
        if prior == "laplace":
            return Laplace(gamma)
        return Hyperprior.default(Phi, None) if prior == "student" else Hyperprior.jeffreys()
    fault = f"prior={prior!r}; needed one of {PRIORS}"
    raise ValueError(f"{fault}, a Laplace or a Hyperprior with rate_shape=None")


_N_PRIOR_DRAWS = 200  # of all weights: the median over draws and rows is to set a scale
ROUNDING = 1e-15  # share of the size of targets that is no spread: the last digit


def prior_latent_size(Phi: Array, signs: Array | None, c: float) -> float:
    """Return the prior median of abs(Phi w - its mean over rows) for weights of unit scale (d = c).

    From draws with a fixed seed: the same data give the same hyperprior. Constant basis functions give one.
    """
    rng = np.random.default_rng(20090601)
    weight = rng.standard_t(2 * c, size=(_N_PRIOR_DRAWS, Phi.shape[1]))
    latent = (weight if signs is None else np.abs(weight) * signs) @ Phi.T
    typical = float(np.median(np.abs(latent - latent.mean(axis=1, keepdims=True))))
    return typical if typical > 0 else 1.0


def typical_size(target: Array, weight: Array | None = None) -> float:
    """Return the standard deviation of targets; their magnitude if constant, 1 if all zero."""
    apart = target - np.average(target, weights=weight)
    spread = float(np.sqrt(np.average(np.square(apart), weights=weight)))
    size = float(np.abs(target).max())
    return spread if spread > ROUNDING * size else size or 1.0


def _mean_precision[T: (Array, np.float64)](value: T, shape: float, rate: float) -> T:
    with np.errstate(divide="ignore", over="ignore"):
        return (2 * shape + 1) / (value * value + 2 * rate)


def _curvature_ratio(value: Array, rate: float) -> Array:
    """Return ``(2 rate - v^2) / (2 rate + v^2)``; one at zero."""
    square = np.square(value)
    share = np.divide(square, 2 * rate + square, out=np.zeros_like(square), where=square > 0)
    return 1.0 - 2.0 * share


def _log_mixture_density[T: (Array, np.float64)](value: T, shape: float, rate: float) -> T:
    """Return the log density of a Student-t, as a Gamma mixture of normals; scale-free for rate 0."""
    if rate == 0:
        return -(2 * shape + 1) * np.log(np.maximum(np.abs(value), WEIGHT_CUTOFF))
    constant = _mixture_constant(shape, rate)
    return constant - (shape + 0.5) * np.log1p(value * value / (2 * rate))


@cache
def _mixture_constant(shape: float, rate: float) -> np.float64:
    """Return the logarithm of what normalises it: as long to compute as the density of 100 weights."""
    out: np.float64 = gammaln(shape + 0.5) - gammaln(shape) - 0.5 * (_LOG_2PI + np.log(rate))
    return out
