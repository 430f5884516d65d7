"""Kernel validity: how far kernels may shift before the likelihood falls (Kropotov et al. 2006)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx

from pcvm_pymc.core.evidence import EvidenceProblem, EvidenceResult
from pcvm_pymc.core.pieces.kernels import RBF, MatrixRBF
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.priors import HalfHorseshoe
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.row_weights import row_weight
from pcvm_pymc.core.problem import EMResult, Problem
from pcvm_pymc.core.quadratic import QuadraticModel

_LOG_HALF_SQRT_2PI = 0.5 * np.log(np.pi / 2.0)


@dataclass(frozen=True)
class Validity:
    """Validity of a fitted machine's kernels.

    Attributes
    ----------
    log_validity : float
        ``log_likelihood + sum_i determined_i sum_j log_stability_ij`` (eqs. 14-15).
    log_likelihood : float
        Of the training targets at the fitted weights.
    determined : ndarray, shape (n_kernels,)
        How far the data determine each weight, gamma of eq. 9, in [0, 1].
    log_stability : ndarray, shape (n_kernels, n_varying)
        Logarithm of A_ij (eq. 13) in standard deviations of the feature; features that do not vary
        are left out.
    active : ndarray of int, shape (n_kernels,)
        Which bases these kernels are.
    """

    log_validity: float
    log_likelihood: float
    determined: Array
    log_stability: Array
    active: NDArray[np.int64]


def centre_derivatives(
    X: Array,
    centres: Array,
    weight: Array,
    kernel: RBF | MatrixRBF,
    *,
    score: Array,
    curvature: Array,
) -> tuple[Array, Array]:
    """Return slope a and downward curvature b of the log likelihood in each centre's coordinates.

    For the latent function ``sum_i w_i exp(-sum_j (x_j - z_ij)^2 / width_j^2) + b``, at fixed weights
    (below eq. 13).

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
    centres : ndarray, shape (n_kernels, n_features)
    weight : ndarray, shape (n_kernels,)
    kernel : RBF or MatrixRBF
    score, curvature : ndarray, shape (n_obs,)
        Slope of the log likelihood in the latent values, and minus its second derivative.

    Returns
    -------
    a, b : ndarray, shape (n_kernels, n_features)
    """
    n_features = X.shape[1]
    S = np.eye(n_features) if isinstance(kernel, RBF) else np.asarray(kernel.matrix, dtype=float)
    S = S * np.square(kernel.width)
    # P of exp(-(x - z)' P (x - z))
    form, height = np.linalg.inv(S), weight * kernel(X, centres)
    a, b = np.empty(centres.shape), np.empty(centres.shape)
    slope = score @ height
    for j in range(n_features):
        # d f / d z_j = 2 w K u_j and d^2 f / d z_j^2 = w K (4 u_j^2 - 2 P_jj), u = P (x - z)
        others = np.flatnonzero(form[j]).tolist()
        u = sum(form[j, k] * (X[:, k, None] - centres[:, k]) for k in others)
        moved = height * u
        a[:, j] = 2.0 * (score @ moved)
        b[:, j] = 4.0 * (curvature @ moved**2 - score @ (moved * u)) + 2.0 * form[j, j] * slope
    return a, b


def log_stability(a: Array, b: Array) -> Array:
    """Return log A of eq. 13, shape of `a`: the tail of the likelihood's local approximation.

    ``A = int_0^inf exp(-|a| t - b t^2 / 2) dt`` where the log likelihood bends downwards (b > 0), and
    ``1 / |a|``, the integral at b = 0, where it does not. Infinite where both vanish.

    Notes
    -----
    Corrected: the print has the two conditions swapped, and its value at a = 0 is half of Laplace's, not all
    of it. ``exp(a^2 / 2 b) erfc(|a| / sqrt(2 b))``, which overflows, is ``erfcx(|a| / sqrt(2 b))``.
    """
    size = np.abs(a)
    with np.errstate(divide="ignore"):
        line = -np.log(size)
        root = np.sqrt(np.where(b > 0, b, 1.0))
        curved = _LOG_HALF_SQRT_2PI - np.log(root) + np.log(erfcx(size / root / np.sqrt(2.0)))
    # erfcx(x) is 1 / (x sqrt(pi)) to double precision long before it underflows
    return np.where((b > 0) & (size < 1e100 * root), curved, line)


def kernel_validity(
    X: Array,
    target: Array,
    weight: Array,
    latent: Array,
    determined: Array,
    *,
    kernel: RBF | MatrixRBF,
    likelihood: Likelihood,
    centres: Array | None = None,
) -> Validity:
    """Return the validity of RBF kernels.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
    target : ndarray, shape (n_obs,)
    weight : ndarray, shape (n_basis,)
        A kernel of weight zero counts for nothing (Theorem 1).
    latent : ndarray, shape (n_obs,)
        Latent function at the training rows, bias included.
    determined : ndarray, shape (n_kernels,)
        gamma of the kernels whose weight is not zero, in their order.
    kernel : RBF or MatrixRBF
        The paper's sigma is ``width / sqrt(2)``.
    likelihood : Likelihood
    centres : ndarray, shape (n_basis, n_features), optional
        Default: the rows of `X`.

    Notes
    -----
    A shift has the unit of x, so that the printed validity at two widths compares differently in metres
    and in feet. It is measured here in standard deviations of the feature, and features that do not
    vary have no part in it.
    """
    active = np.flatnonzero(weight)
    count = row_weight(target)
    middle = np.average(X, axis=0, weights=count)
    spread = np.sqrt(np.average((X - middle) ** 2, axis=0, weights=count))
    varies = np.ptp(X, axis=0) > 0
    known = (X if centres is None else centres)[active], weight[active], kernel
    score, curvature = likelihood.score(latent, target), likelihood.curvature(latent, target)
    a, b = centre_derivatives(X, *known, score=score, curvature=curvature)
    stability = log_stability(a, b)[:, varies] - np.log(spread[varies])
    counts = determined > 0  # a kernel that the data say nothing about may be as stable as it likes
    value = likelihood.log_likelihood(latent, target)
    total = value + float(determined[counts] @ stability[counts].sum(axis=1))
    return Validity(total, value, determined, stability, active)


def rvm_validity(
    X: Array,
    problem: EvidenceProblem,
    result: EvidenceResult,
    *,
    kernel: RBF | MatrixRBF,
    centres: Array | None = None,
) -> Validity:
    """Return the kernel validity of a relevance vector machine, as in the paper.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
        Training inputs.
    problem : EvidenceProblem
        With ``Phi = kernel(X, centres)``.
    result : EvidenceResult
        Its fit, by `fit_rvm`.
    kernel : RBF or MatrixRBF
    centres : ndarray, shape (n_basis, n_features), optional
        Default: the rows of `X`.

    References
    ----------
    D. A. Kropotov, D. P. Vetrov and N. O. Ptashko (2006), "A compromise between accuracy and
    stability for RBF kernel selection in relevance vector machines for classification", eqs. 12-15,
    corrected: see `log_stability` and `kernel_validity`; in eq. 7, of Sigma, the sign of the curvature.
    """
    determined = 1.0 - result.alpha[result.active] * np.diag(result.covariance)[:-1]
    target, likelihood = problem.given
    determined = np.clip(determined, 0.0, 1.0)[result.weight[result.active] != 0]
    fit, known = (target, result.weight, result.latent), likelihood.with_noise(result.noise)
    return kernel_validity(X, *fit, determined, kernel=kernel, likelihood=known, centres=centres)


def pcvm_validity(
    X: Array, problem: Problem, result: EMResult, *, centres: Array | None = None
) -> Validity:
    """Return the kernel validity of a PCVM, or of a machine with free weights, at its posterior mode.

    An extension of the paper's: the precision of a weight is its expected one, ``E[alpha | w]``, so that
    under Jeffreys' hyperprior ``gamma_i = 1 - Sigma_ii / w_i^2``.

    Parameters
    ----------
    X : ndarray, shape (n_obs, n_features)
    problem : Problem
        With an RBF kernel at each centre, of the width that the fit ended with.
    result : EMResult
        Its fit, by `fit_em`.
    centres : ndarray, shape (n_basis, n_features), optional
        Default: the rows of `X`.

    Raises
    ------
    ValueError
        If there are several scores, or the prior is a half-horseshoe.

    References
    ----------
    See `rvm_validity`.
    """
    likelihood = problem.likelihood
    if likelihood.n_scores > 1:
        fault = f"found {likelihood.n_scores} scores, needed one"
        raise ValueError(f"{fault}: take each class against the rest")
    prior = problem.hyperprior
    if isinstance(prior, HalfHorseshoe):
        raise ValueError("a half-horseshoe prior has no expected precisions; needed one of EM")
    every = np.where(np.square(result.weight) > 0, result.weight, 0.0)  # or it underflows
    active = np.flatnonzero(every)
    points, weight, kernel = X if centres is None else centres, every[active], RBF(result.width)
    rows, bias = [(kernel(X, points[active]), problem.label)], np.array([result.bias])
    precision = prior.weight_precision(weight)[:, None]
    of_bias = np.array([problem.bias_precision(result.bias)])
    model = QuadraticModel(weight[:, None], bias, precision, of_bias).over(rows, likelihood)
    determined = np.clip(1.0 - np.diag(model.inverse)[: len(active)], 0.0, 1.0)
    fit = problem.label, every, result.latent, determined
    return kernel_validity(X, *fit, kernel=kernel, likelihood=likelihood, centres=centres)
