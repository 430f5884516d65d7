"""EM for the sparse probit of Figueiredo & Jain (2001): features, start, solves and iteration."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.linalg import cho_factor, cho_solve, svd

from pcvm_pymc.core.em.binary import EMOptions, EMResult, EMState, EMTrace, Status
from pcvm_pymc.core.pieces.kernels import Kernel, design_matrix
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace
from pcvm_pymc.core.pieces.probit import Array, curvature, latent_mean, log_likelihood, score

__all__ = [
    "FEATURES",
    "PRIORS",
    "SparseProblem",
    "feature_matrix",
    "fit_sparse_probit",
    "iterate",
    "log_posterior",
    "named_prior",
    "ridge_solve",
    "ridge_start",
    "state_at",
]

PRIORS = ("jeffreys", "laplace", "student")
FEATURES = ("linear", "quadratic", "kernel")
_RIDGE = 1e-6  # Step 2 of the paper's algorithm
_SETTLED = 0.05  # on the probit's scale, as in core.em
_NEGLIGIBLE = 1e-4  # largest share in the latent function of a weight that is tried at zero
_LEAST_CURVATURE = 1e-12
_LARGEST_SQUARE = 1e10
_PRUNED = 1e-6  # the weight of an expected precision of 1e12, as in core.priors


@dataclass(frozen=True)
class SparseProblem:
    """What a fit is given.

    Attributes
    ----------
    Phi : ndarray, shape (n_obs, n_features)
        Features of the training inputs, without a column for the bias.
    label : ndarray, shape (n_obs,)
        Labels, -1. or +1.
    prior : Laplace or Hyperprior
        `Hyperprior.jeffreys` is the paper's own choice; a proper one makes weights Student-t.
    bias : {"penalised", "free"}
        ``"penalised"`` gives the bias the prior of a weight (the paper's constant feature) or that of
        the `Hyperprior`; ``"free"`` a flat one.
    """

    Phi: Array
    label: Array
    prior: Laplace | Hyperprior
    bias: Literal["penalised", "free"] = "penalised"

    @property
    def holds_zeros(self) -> bool:
        """Whether a weight that EM has brought to zero stays there."""
        return isinstance(self.prior, Laplace) or self.prior.d == 0

    @cached_property
    def size(self) -> Array:
        """Largest size of each feature, shape (n_features,)."""
        return np.abs(self.Phi).max(axis=0, initial=0.0)


def feature_matrix(
    X: Array,
    features: str = "linear",
    *,
    centres: Array | None = None,
    kernel: Kernel = "rbf",
    width: float = 1.0,
) -> Array:
    """Return the features of each row of `X`, shape (n_obs, n_features).

    Parameters
    ----------
    X : ndarray, shape (n_obs, d)
    features : {"linear", "quadratic", "kernel"}
        The d components; these, their squares and pairwise products, d + d (d + 1) / 2 in all,
        squares and products in the order of the upper triangle's rows; or a kernel at `centres`.
    centres : ndarray, shape (n_centres, d), optional
        For ``"kernel"``. Default: `X`.
    kernel : str or callable
        As for `design_matrix`. The paper's h is ``width / sqrt(2)``.
    width : float

    Raises
    ------
    ValueError
        If `features` is unknown.
    """
    if features == "linear":
        return X.copy()
    if features == "quadratic":
        row, column = np.triu_indices(X.shape[1])
        return np.hstack([X, X[:, row] * X[:, column]])
    if features == "kernel":
        return design_matrix(kernel, X, X if centres is None else centres, width)
    raise ValueError(f"features={features!r} is unknown; use one of {FEATURES}")


def named_prior(
    prior: str | Laplace | Hyperprior, Phi: Array, *, gamma: float = 1.0
) -> Laplace | Hyperprior:
    """Return a prior by its name, or as it was given.

    Parameters
    ----------
    prior : {"jeffreys", "laplace", "student"}, Laplace or Hyperprior
    Phi : ndarray, shape (n_obs, n_features)
        To which ``"student"``, `Hyperprior.default`, is scaled.
    gamma : float
        Of ``"laplace"``.

    Raises
    ------
    ValueError
        For another one, or one of unknown scale.
    """
    if isinstance(prior, Laplace) or (isinstance(prior, Hyperprior) and prior.rate_shape is None):
        return prior
    if isinstance(prior, str) and prior in PRIORS:
        if prior == "laplace":
            return Laplace(gamma)
        return Hyperprior.default(Phi, None) if prior == "student" else Hyperprior.jeffreys()
    raise ValueError(
        f"prior={prior!r}; needed one of {PRIORS}, a Laplace(gamma) or a Hyperprior(c, d, e, f) of "
        "fixed scale (rate_shape=None)"
    )


def log_posterior(problem: SparseProblem, weight: Array, bias: float, latent: Array) -> float:
    """Return log p(y | w, b) + log p(w) + log p(b), variances integrated out; a free bias adds 0."""
    prior = problem.prior
    log_weight = prior.log_weight_density(weight)
    if isinstance(prior, Hyperprior) and prior.d > 0:
        log_weight = log_weight - np.log(2.0)  # its density is that of sizes; here both signs
    log_bias = prior.log_bias_density(bias) if problem.bias == "penalised" else 0.0
    return log_likelihood(latent, problem.label) + float(log_weight.sum()) + log_bias


def ridge_solve(
    Phi: Array,
    response: Array,
    precision: Array,
    bias_precision: float,
    *,
    row_weight: Array | None = None,
    dual: bool | None = None,
) -> tuple[Array, float]:
    r"""Minimise ``|response - Phi w - b|^2 + w' diag(precision) w + bias_precision b^2``.

    By ``w = T (I + T Phi' Phi T)^-1 T Phi' v``, ``T = precision^(-1/2)`` (Figueiredo & Jain 2001
    eq. 16), which takes infinite precisions as weights of zero, or by its dual ``T Phi'_T (I + Phi_T
    Phi_T')^-1 v``, ``Phi_T = Phi T``.

    Parameters
    ----------
    Phi : ndarray, shape (n_obs, n_features)
    response : ndarray, shape (n_obs,)
    precision : ndarray, shape (n_features,)
        Positive, infinity included.
    bias_precision : float
        0 leaves the bias free.
    row_weight : ndarray, shape (n_obs,), optional
        Positive weights of the squares. Default: ones.
    dual : bool, optional
        Whether to solve n_obs equations in place of n_features. Default: whichever are fewer.

    Returns
    -------
    weight : ndarray, shape (n_features,)
    bias : float
    """
    root = np.ones(len(response)) if row_weight is None else np.sqrt(row_weight)
    kept = np.flatnonzero(np.isfinite(precision))
    scale = 1.0 / np.sqrt(precision[kept])
    A = root[:, None] * Phi[:, kept] * scale
    v = root * response
    free = bias_precision == 0
    if free:  # what the bias explains is projected out
        unit = root / np.linalg.norm(root)
        A = A - np.outer(unit, unit @ A)
        v = v - unit * (unit @ v)
    elif np.isfinite(bias_precision):
        scale = np.append(scale, 1.0 / np.sqrt(bias_precision))
        A = np.column_stack([A, root * scale[-1]])
    solution = scale * _unit_ridge(A, v, A.shape[1] > A.shape[0] if dual is None else dual)
    weight = np.zeros(Phi.shape[1])
    weight[kept] = solution[: len(kept)]
    if free:
        residual = response - Phi[:, kept] @ weight[kept]
        return weight, float((root**2) @ residual / (root @ root))
    return weight, float(solution[-1]) if len(solution) > len(kept) else 0.0


def _unit_ridge(A: Array, v: Array, dual: bool) -> Array:
    """Return (I + A'A)^-1 A'v."""
    if A.shape[1] == 0:
        return np.zeros(0)
    gram = A @ A.T if dual else A.T @ A
    if gram.diagonal().max() > _LARGEST_SQUARE:  # the Gram matrix has lost what the identity adds
        U, size, Vt = svd(A, full_matrices=False, check_finite=False)
        return Vt.T @ (size / (1.0 + size**2) * (U.T @ v))
    gram[np.diag_indices_from(gram)] += 1.0
    factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
    if dual:
        return A.T @ cho_solve(factor, v, check_finite=False)
    return cho_solve(factor, A.T @ v, check_finite=False)


def ridge_start(problem: SparseProblem, ridge: float = _RIDGE) -> EMState:
    """Return the weakly penalised ridge fit to labels -1 and +1 (the paper's Step 2, corrected).

    The printed ``(eps I + H'H)^-1 H y`` lacks a prime. Under Jeffreys' prior the start decides the end:
    labels 0 and 1 with ``ridge >= 0.1`` end at no weights at all.
    """
    n_features = problem.Phi.shape[1]
    bias_ridge = 0.0 if problem.bias == "free" else ridge
    return state_at(
        problem, *ridge_solve(problem.Phi, problem.label, np.full(n_features, ridge), bias_ridge)
    )


def state_at(problem: SparseProblem, weight: Array, bias: float) -> EMState:
    """Return the state at a point; Jeffreys' prior prunes what is less than 1e-6 of the latent."""
    if isinstance(problem.prior, Hyperprior):
        if problem.prior.d == 0:
            weight = np.where(np.abs(weight) * problem.size <= _PRUNED, 0.0, weight)
        if problem.prior.f == 0 and problem.bias == "penalised" and abs(bias) <= _PRUNED:
            bias = 0.0
    active = np.flatnonzero(weight)
    latent = problem.Phi[:, active] @ weight[active] + bias
    return EMState(weight, bias, latent, np.nan, log_posterior(problem, weight, bias, latent))


def _expected_precision(problem: SparseProblem, state: EMState) -> tuple[Array, float]:
    """Return the E-step of the variances: eq. 12 (corrected), 14 or the Student-t's."""
    if problem.bias == "free":
        return problem.prior.weight_precision(state.weight), 0.0
    prior = problem.prior
    return prior.weight_precision(state.weight), prior.bias_precision(state.bias)


def _em_step(problem: SparseProblem, state: EMState) -> EMState:
    """Do the paper's Steps 3 and 4."""
    response = latent_mean(state.latent, problem.label)
    return state_at(
        problem, *ridge_solve(problem.Phi, response, *_expected_precision(problem, state))
    )


def _newton_step(problem: SparseProblem, state: EMState) -> EMState:
    """Do the same with the probit's own curvature; the EM step where that would lower the density."""
    row_weight = np.maximum(curvature(state.latent, problem.label), _LEAST_CURVATURE)
    response = state.latent + score(state.latent, problem.label) / row_weight
    precision = _expected_precision(problem, state)
    new = state_at(problem, *ridge_solve(problem.Phi, response, *precision, row_weight=row_weight))
    return new if new.log_posterior >= state.log_posterior else _em_step(problem, state)


def _mend_zeros(problem: SparseProblem, state: EMState, penalty: float) -> EMState:
    """Zero negligible weights, and release zeros, as the L1 optimality conditions ask.

    EM brings a Laplace weight to zero in the limit only, and a weight that is zero does not come
    back. Either change is made only where it raises the log posterior.
    """
    residual = score(state.latent, problem.label)
    penalised = problem.bias == "penalised"
    gradient = np.append(problem.Phi.T @ residual, residual.sum() if penalised else 0.0)
    size = np.append(problem.size, 1.0)
    value = np.append(state.weight, state.bias)
    changeable = np.append(state.weight != 0, penalised and state.bias != 0)
    small = (np.abs(value) * size <= _NEGLIGIBLE) & (np.abs(gradient) <= penalty) & changeable
    away = (value == 0) & (np.abs(gradient) > penalty * (1 + 1e-9))
    release = np.sign(gradient) * _NEGLIGIBLE / np.maximum(size, _LEAST_CURVATURE)
    for chosen, new_value in ((small, np.zeros_like(value)), (away, release)):
        if chosen.any():
            point = np.where(chosen, new_value, np.append(state.weight, state.bias))
            new = state_at(problem, point[:-1], float(point[-1]))
            state = new if new.log_posterior > state.log_posterior else state
    return state


def iterate(
    problem: SparseProblem, state: EMState, options: EMOptions | None = None
) -> Iterator[EMState]:
    """Yield the state after each iteration, without end; the log posterior never decreases."""
    update = (options or EMOptions()).update
    if update == "clip":
        raise ValueError("update='clip' is for signed weights; use 'auto', 'newton' or 'em'")
    convex = isinstance(problem.prior, Laplace)
    careful = update == "auto" and problem.holds_zeros and not convex
    while True:
        step = _em_step if careful or update == "em" else _newton_step
        new = step(problem, state)
        if isinstance(problem.prior, Laplace):
            new = _mend_zeros(problem, new, problem.prior.penalty)
        careful = careful and (
            new.n_active < state.n_active or np.abs(new.latent - state.latent).max() > _SETTLED
        )
        state = new
        yield state


def fit_sparse_probit(
    problem: SparseProblem,
    start: EMState | None = None,
    options: EMOptions | None = None,
    callback: Callable[[int, EMState], None] | None = None,
) -> EMResult:
    """Run EM to its end.

    Parameters
    ----------
    problem : SparseProblem
    start : EMState, optional
        Default: `ridge_start`.
    options : EMOptions, optional
        As for `pcvm_pymc.core.em.binary.fit_em`, without ``"clip"``; `bias` and `drop` are not used.
    callback : callable, optional
        Called with the iteration's number and state after each iteration.

    Returns
    -------
    EMResult
        Its width is NaN.

    Notes
    -----
    Under Jeffreys' prior EM is a local search: the result depends on the start. With ``"auto"`` the
    longer Newton steps begin once an EM step moves little, as for the PCVM. A column's scaling then
    changes its weight's unit alone (as far as the start's ridge is negligible; columns far from unit
    size are to be standardised first). Under the Laplace prior the end point is the maximum, the L1-penalised
    probit; its penalty depends on the columns' units.

    References
    ----------
    M. Figueiredo and A. Jain (2001), "Bayesian learning of sparse classifiers", CVPR, section 3,
    corrected.
    """
    options = options or EMOptions()
    old = start or ridge_start(problem)
    rows = [(old.log_posterior, old.n_active, np.nan, old.width)]
    status = Status.ITERATION_LIMIT
    for n_iter, state in enumerate(iterate(problem, old, options), 1):
        change = float(np.abs(state.latent - old.latent).max())
        rows.append((state.log_posterior, state.n_active, change, state.width))
        old = state
        if callback is not None:
            callback(n_iter, state)
        if change <= options.tol:
            status = Status.CONVERGED
            break
        if n_iter == options.max_iter:
            break
    if old.n_active == 0:
        status = Status.EMPTY_MODEL
    trace = EMTrace(*(np.asarray(column) for column in zip(*rows, strict=True)))
    return EMResult(
        old.weight,
        old.bias,
        np.nan,
        old.latent,
        old.log_posterior,
        status,
        len(rows) - 1,
        trace,
    )
