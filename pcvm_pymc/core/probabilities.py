"""Class probabilities at latent values, their sums and averages, and intervals under mixtures of normals."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, logsumexp, ndtr, ndtri

from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array

_DRAWS = 1000  # of the scores of several classes, over all parts of a mixture
_HALVINGS = 60  # of the interval around a mixture's quantile: to the last digit
_NODES = 200  # of the quadrature over the precision of Student-t noise
_ROUNDING = 1e-14  # of the largest eigenvalue: below, an eigenvalue is zero


def class_probability(likelihood: Likelihood, latent: Array) -> Array:
    """Return probabilities, shape (n_new, n_classes), at latent values.

    Parameters
    ----------
    likelihood : Likelihood
        Of several scores; or of one, then with one latent value for two classes, and with one for each of
        each of several classes against the rest.
    latent : ndarray, shape (n_new,) or (n_new, n_classes)
    """
    if latent.ndim == 1:  # the likelihoods of labels are mirror images
        return np.column_stack([likelihood.probability(-latent), likelihood.probability(latent)])
    if likelihood.n_scores > 1:
        return likelihood.probability(latent)
    return np.exp(log_class_probability(likelihood, latent))


def log_class_probability(likelihood: Likelihood, latent: Array) -> Array:
    """Return logarithms of class probabilities, exact in the tails; see `class_probability`."""
    ones, likelihood = np.ones(len(latent)), likelihood.of_labels
    if latent.ndim == 1:
        return np.column_stack([likelihood.log_density(latent, sign * ones) for sign in (-1, 1)])
    if likelihood.n_scores > 1:
        numbers = range(latent.shape[1])
        densities = [likelihood.log_density(latent, np.full(len(latent), c)) for c in numbers]
        return log_normalised(np.column_stack(densities))
    # all machines may say no
    return log_normalised(np.column_stack([likelihood.log_density(f, ones) for f in latent.T]))


def class_numbers(label: NDArray[Any], n_classes: int) -> NDArray[np.intp]:
    """Return the numbers of labels' classes; of two classes labels may be -1. and +1."""
    return np.asarray(label > 0 if n_classes == 2 else label, dtype=np.intp)


class LatentNormal(NamedTuple):
    """A part of the latent function's posterior at new rows.

    Attributes
    ----------
    share : float
        Its weight in the mixture.
    mean : ndarray, shape (n_new, n_scores)
    covariance : ndarray, shape (n_new, n_scores, n_scores)
    """

    share: float
    mean: Array
    covariance: Array


def probability_interval(
    likelihood: Likelihood, parts: list[LatentNormal], probability: float
) -> Array:
    """Return equal-tailed intervals of class probabilities, shape (n_new, n_classes, 2).

    Of one score exact. Of several by draws, the same standard normals at all rows and in all calls.

    Parameters
    ----------
    likelihood : Likelihood
    parts : list of LatentNormal
        Of a mixture.
    probability : float
        Of the interval.
    """
    tails = 0.5 * (1.0 - probability), 0.5 * (1.0 + probability)
    n_scores = parts[0].mean.shape[1]
    if n_scores == 1:  # one class' probability rises with the latent function, the other's falls
        shares = np.array([part.share for part in parts])
        mean = np.column_stack([part.mean[:, 0] for part in parts])
        sd = np.sqrt(np.column_stack([part.covariance[:, 0, 0] for part in parts]))
        ends = [_quantile(shares, mean, sd, tail) for tail in tails]
        both = [class_probability(likelihood, end) for end in ends]
        return np.sort(np.stack(both, axis=-1), axis=-1)
    cuts = np.round(_DRAWS * np.cumsum([0.0, *(part.share for part in parts)])).astype(int)
    normals = np.split(np.random.default_rng(0).standard_normal((cuts[-1], n_scores)), cuts[1:-1])
    each_part = []
    for part, normal in zip(parts, normals, strict=True):
        # by the symmetric root of the covariance: signs and order of eigenvectors depend on rounding, and so
        # on which rows are predicted together
        values, vectors = np.linalg.eigh(part.covariance)
        values = np.where(values > _ROUNDING * values[:, -1:], values, 0.0)
        root = (vectors * np.sqrt(values)[:, None, :]) @ vectors.swapaxes(1, 2)
        each_part.append(part.mean + np.einsum("ncd,sd->snc", root, normal))
    draws = np.concatenate(each_part)
    flat = class_probability(likelihood, draws.reshape(-1, n_scores))
    limits = np.quantile(flat.reshape(draws.shape), tails, axis=0)
    return np.moveaxis(limits, 0, -1)


def student_t_interval(likelihood: Any, mean: Array, variance: Array, probability: float) -> Array:
    """Return equal-tailed intervals of new targets under Student-t noise, shape (n_new, 2).

    Latent values are normal, of this mean and variance. The noise is normal given its precision, which has a
    Gamma distribution: the targets are a mixture of normals over it, here by quadrature.
    """
    node, share = np.polynomial.legendre.leggauss(_NODES)
    half = 0.5 * likelihood.degrees
    precision = gammaincinv(half, 0.5 * (node + 1.0)) / half
    sd = np.sqrt(variance[:, None] + likelihood.noise**2 / precision)
    reach = _quantile(0.5 * share, np.zeros((1, 1)), sd, 0.5 * (1.0 + probability))
    return np.column_stack([mean - reach, mean + reach])


def _quantile(shares: Array, mean: Array, sd: Array, tail: float) -> Array:
    """Return quantiles of mixtures of normals, shape (n_new,), by bisection."""
    ends = mean + ndtri(tail) * sd
    low, high = ends.min(axis=1), ends.max(axis=1)
    for _ in range(_HALVINGS if len(shares) > 1 else 0):
        middle = 0.5 * (low + high)
        with np.errstate(divide="ignore", invalid="ignore"):
            below = ndtr((middle[:, None] - mean) / sd) @ shares < tail
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


def normalised(probability: Array) -> Array:
    """Return probabilities of classes, along the last axis, of sum one: none is above one.

    An average's weights sum to one but for rounding, as does what a quadrature gives.
    """
    return probability / probability.sum(axis=-1, keepdims=True)


def log_normalised(log_probability: Array) -> Array:
    """Return logarithms of class probabilities of sum one: none is above zero, and tails are exact.

    The likeliest class has minus the logarithm of one plus what the others have of it. Where all are beyond
    the largest number, none is likelier than another.
    """
    log_probability = np.maximum(log_probability, np.finfo(float).min)
    away = log_probability - log_probability.max(axis=-1, keepdims=True)
    others = np.sort(np.exp(away), axis=-1)[..., :-1]
    return away - np.log1p(others.sum(axis=-1, keepdims=True))


def log_average(log_density: Array, share: Any = None) -> Array:
    """Return logarithms of averages over the first axis; rounding lifts none above the largest part.

    Shares go in by their logarithms: as factors of a sum, a tiny one of the largest part leaves no digits.
    """
    share = 1.0 / len(log_density) if share is None else share
    with np.errstate(divide="ignore"):  # a share of zero
        parts = log_density + np.log(share)
    return np.minimum(logsumexp(parts, axis=0), log_density.max(axis=0))
