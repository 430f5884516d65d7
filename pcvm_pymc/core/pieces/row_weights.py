"""Rows that count by weights: a second column of the targets, and the likelihood with it; known noise."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.likelihoods import Likelihood, Normal, RowTerms, StudentT
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_numbers, check_shape

#: a known noise over the spread of the targets, beyond which rounding or the prior decides a fit
_MOST_NOISE = 1e8


def weighted_target(target: NDArray[Any], weight: Array) -> Array:
    """Return targets and the rows' weights as two columns, shape (n_obs, 2)."""
    return np.column_stack([np.asarray(target, dtype=float), weight])


def plain_target(target: NDArray[Any]) -> NDArray[Any]:
    """Return targets without weights, shape (n_obs,)."""
    return np.ascontiguousarray(target[:, 0]) if np.ndim(target) == 2 else np.asarray(target)


def row_weight(target: NDArray[Any]) -> Array | None:
    """Return the rows' weights; None where each counts once."""
    return np.ascontiguousarray(target[:, 1]) if np.ndim(target) == 2 else None


def majority_label(label: NDArray[Any], weight: Array | None) -> float:
    """Return -1. or +1., the label that counts for more; that of numbers of classes is 1."""
    return 1.0 if (label.sum() if weight is None else weight @ label) >= 0 else -1.0


def against_rest(target: NDArray[Any], number: int) -> Array:
    """Return labels -1. and +1. of a class against the rest; weights stay."""
    label, weight = np.where(plain_target(target) == number, 1.0, -1.0), row_weight(target)
    return label if weight is None else weighted_target(label, weight)


def weighted_median(value: Array, weight: Array) -> float:
    """Return the median of values that count by weights, for whole numbers that of repeated values."""
    order = np.argsort(value, kind="stable")
    total = np.cumsum(weight[order])
    low, high = (np.searchsorted(total, 0.5 * total[-1], side) for side in ("left", "right"))
    return float(np.mean(value[order[[low, min(high, len(value) - 1)]]]))


def check_noise(name: str, noise: Any, target: NDArray[Any]) -> None:
    """Raise unless a known noise, of all rows or of each, is near enough to the spread of the targets.

    Parameters
    ----------
    name : str
        Of the argument.
    noise : float or array_like, shape (n_obs,)
        Standard deviations, positive numbers.
    target : ndarray, shape (n_obs,)

    Raises
    ------
    ValueError
        For a noise below 1e-8 or above 1e8 times the standard deviation of the targets, or times their size
        where they are all equal.
    """
    value, size = np.asarray(noise, dtype=float), float(np.std(target) or np.abs(target[0]) or 1.0)
    low, high = size / _MOST_NOISE, size * _MOST_NOISE
    bad = np.flatnonzero((value < low) | (value > high))
    if bad.size:
        where = f" in row {bad[0]}" if value.ndim else ""
        raise ValueError(
            f"{name} has the value {value.flat[bad[0]]:.3g}{where}; needed {low:.3g} to {high:.3g}, which is "
            f"1e-8 to 1e8 times the spread of y: give standard deviations in the unit of y"
        )


def as_noise_std(noise: Any, n_obs: int) -> Array:
    """Return the known standard deviation of each row's noise, shape (n_obs,).

    Raises
    ------
    ValueError
        Unless they are positive and finite numbers, one for each row.
    """
    out = as_numbers(noise, "noise")
    check_shape("noise", out.shape, (n_obs,), "standard deviation for each row of X")
    bad = np.flatnonzero(~((out > 0) & np.isfinite(out)))
    if bad.size:
        fault = f"noise has the value {out[bad[0]]:g} in row {bad[0]}"
        raise ValueError(f"{fault}; needed positive and finite numbers, in the unit of y")
    return out


def known_noise(noise: Array, weight: Array | None = None) -> tuple[Normal, Array]:
    """Return the normal likelihood, and the weights, of rows whose noise is known.

    In its exponent a row of noise s_i is one of noise s that counts ``(s / s_i)^2`` times. With s the
    geometric mean of all s_i, rows that count once have the same normalising constants.

    Parameters
    ----------
    noise : ndarray, shape (n_obs,)
    weight : ndarray, shape (n_obs,), optional
        How often each row counts in addition.
    """
    count = np.ones(len(noise)) if weight is None else weight
    middle = float(np.exp(np.average(np.log(noise), weights=count)))
    return Normal(middle, n_obs=float(count.sum())), count * (middle / noise) ** 2


def observed_rows(
    likelihood: Likelihood,
    target: NDArray[Any],
    weight: Array | None = None,
    noise: Array | None = None,
) -> tuple[Likelihood, NDArray[Any]]:
    """Return the likelihood of rows, weights and known noise in it, and the targets that it takes.

    Parameters
    ----------
    likelihood : Likelihood
        Of a row that counts once.
    target : ndarray, shape (n_obs,)
    weight, noise : ndarray, shape (n_obs,), optional
        How often each row counts, and the known standard deviation of its noise.
    """
    if noise is not None:
        likelihood, weight = known_noise(noise, weight)
    if weight is None:
        return likelihood, target
    return Weighted(likelihood), weighted_target(target, weight)


def _times_weight(name: str) -> Any:
    """Return a method that has the result of the base's method for each row times the row's weight."""

    def method(self: "Weighted", latent: Array, target: NDArray[Any]) -> Array:
        plain, weight = self._split(target)
        each = getattr(self.base, name)(latent, plain)
        return weight.reshape(-1, *[1] * (each.ndim - 1)) * each

    return method


@dataclass(frozen=True)
class Weighted(Likelihood):
    """A likelihood with row weights: a row of weight two counts as the row twice.

    The weights are the second column of the targets (`weighted_target`), so that a selection of rows selects
    their weights too; rows of targets of shape (n_obs,) count once.

    Parameters
    ----------
    base : Likelihood
        Of one row that counts once.
    """

    base: Likelihood
    name = property(lambda self: self.base.name)
    targets = property(lambda self: self.base.targets)
    spread = property(lambda self: self.base.spread)
    n_scores = property(lambda self: self.base.n_scores)
    #: that of a row that counts once; that of another is this times its weight
    bound = property(lambda self: self.base.bound)
    noise = property(lambda self: self.base.noise)

    def _split(self, target: NDArray[Any]) -> tuple[NDArray[Any], Array]:
        """Return targets as the base takes them, and weights."""
        plain, weight = plain_target(target), row_weight(target)
        if self.base.targets == "classes":
            plain = np.ascontiguousarray(plain, dtype=np.int64)
        return plain, np.ones(len(plain)) if weight is None else weight

    log_density = _times_weight("log_density")
    score = _times_weight("score")
    curvature = _times_weight("curvature")
    hessian = _times_weight("hessian")

    def value_and_score(self, latent: Array, target: NDArray[Any]) -> tuple[Array, Array]:
        """Return weighted log density and slope of each row."""
        plain, weight = self._split(target)
        value, slope = self.base.value_and_score(latent, plain)
        return weight * value, weight.reshape(-1, *[1] * (slope.ndim - 1)) * slope

    def terms(self, latent: Array, target: NDArray[Any], *, rough: bool = False) -> RowTerms:
        """Return the weighted terms of rows, see `Likelihood.terms`."""
        plain, weight = self._split(target)
        terms = self.base.terms(latent, plain, rough=rough)
        values = latent[:, 0] if self.n_scores == 1 else latent
        log_likelihood = float(weight @ self.base.log_density(values, plain))
        return RowTerms(log_likelihood, weight[:, None] * terms.slope, weight * terms.curvature)

    def probability(self, latent: Array) -> Array:
        """Return the base's."""
        return self.base.probability(latent)

    def response(self, target: NDArray[Any]) -> Array | None:
        """Return the base's, of a row that counts once."""
        return self.base.response(self._split(target)[0])

    def with_noise(self, noise: float) -> "Weighted":
        """Return the same likelihood of another scale; itself where it has none."""
        return replace(self, base=self.base.with_noise(noise))

    def middle(self, target: NDArray[Any]) -> float:
        """Return about where numbers lie, weights counted."""
        plain, weight = self._split(target)
        if isinstance(self.base, StudentT):
            return weighted_median(plain, weight)
        return float(np.average(plain, weights=weight))

    def of_scaled_rows(self, target: NDArray[Any]) -> tuple[Likelihood, Array, Array]:
        """Return the likelihood of rows times the roots of their weights, their numbers, and the roots.

        Latent values are multiplied, too. The log likelihood, and its slope and curvature in the weights of
        the basis functions, are those of repeated rows.

        Raises
        ------
        ValueError
            If a weight is zero, or the likelihood is neither normal nor Student-t.
        """
        plain, weight = self._split(target)
        if not (weight > 0).all():
            row = int(np.argmin(weight))
            raise ValueError(f"row {row} has the weight {weight[row]:g}; needed positive ones")
        root, base = np.sqrt(weight), self.base
        if isinstance(base, StudentT):
            return ScaledStudentT(base.noise, base.degrees, root), root * plain, root
        if not isinstance(base, Normal):
            raise ValueError(f"likelihood={base.name!r} takes no weights of rows; needed 'normal'")
        n_obs = float(weight.sum()) if base.n_obs is None else base.n_obs
        return replace(base, n_obs=n_obs), root * plain, root


@dataclass(frozen=True, eq=False)
class ScaledStudentT(StudentT):
    """Student-t noise of rows that are multiplied by the roots of their weights.

    The expected precision is that of a row that counts once: the factors of residual and basis functions make
    up its weight.

    Parameters
    ----------
    root : ndarray, shape (n_obs,)
    """

    root: Any = None

    @property
    def n_obs(self) -> float:
        """How many rows they count for."""
        return float(self.root @ self.root)

    def _of_plain(self, name: str, latent: Array, target: Array) -> Array:
        """Return what a method says of rows as they were."""
        base = StudentT(self.noise, self.degrees)
        return np.asarray(getattr(base, name)(latent / self.root, target / self.root))

    def middle(self, target: Array) -> float:
        """Return the median of the rows as they were."""
        return weighted_median(target / self.root, self.root**2)

    def log_density(self, latent: Array, target: Array) -> Array:
        """Return the weighted Student-t log density."""
        return self.root**2 * self._of_plain("log_density", latent, target)

    def curvature(self, latent: Array, target: Array) -> Array:
        """Return the expected precision of each row that counts once."""
        return self._of_plain("curvature", latent, target)

    def hessian(self, latent: Array, target: Array) -> Array:
        """Return minus the second derivative of each row that counts once, shape (n_obs, 1, 1)."""
        return self._of_plain("hessian", latent, target)
