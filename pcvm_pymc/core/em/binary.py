"""EM for the maximum a posteriori PCVM (Chen, Tino & Yao 2009, Algorithm 1, corrected)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from pcvm_pymc.core.em.nonnegative import BorderedGram, Gram, Mask, PartialGram, solve_nonnegative
from pcvm_pymc.core.em.results import EMResult, EMTrace
from pcvm_pymc.core.pieces.kernels import log_width_derivative, rbf
from pcvm_pymc.core.pieces.likelihoods import Likelihood, Probit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array, curvature, latent_mean, log_likelihood, score
from pcvm_pymc.core.problem import Status

__all__ = [
    "EMOptions",
    "EMResult",
    "EMState",
    "EMTrace",
    "Problem",
    "Start",
    "Status",
    "fit_em",
    "initial_state",
    "iterate",
    "log_joint",
    "log_posterior",
    "relevance_start",
    "width_gradient",
]


_SETTLED = 0.05  # on the probit's scale: no probability moves by more than 0.02


@dataclass(frozen=True)
class Problem:
    """What a fit is given.

    Attributes
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
        Basis functions at the training inputs.
    label : ndarray, shape (n_obs,)
        Labels, -1. or +1.
    sign : ndarray, shape (n_basis,), or None
        Sign of each weight, -1. or +1. None leaves the weights free.
    hyperprior : Hyperprior
    squared_distance : ndarray, shape (n_obs, n_basis), optional
        Needed only where the RBF's width is optimised.
    width : float
        The RBF's width with which `Phi` was made.
    width_bounds : tuple of float, optional
        Bounds between which EM moves the width; None keeps it.
    log_width_density : callable, optional
        Log prior density of the width, a function of the width; None is flat.
    """

    Phi: Array
    label: Array
    sign: Array | None
    hyperprior: Hyperprior
    squared_distance: Array | None = None
    width: float = 1.0
    width_bounds: tuple[float, float] | None = None
    log_width_density: Callable[[float], float] | None = None
    # as `core.problem.Problem`, which will stand in its place, has them
    likelihood: ClassVar[Likelihood] = Probit()
    bias: ClassVar[str] = "prior"

    @property
    def weight_sign(self) -> Array:
        """Signs as numbers, ones for free weights."""
        return np.ones(self.Phi.shape[1]) if self.sign is None else self.sign


@dataclass(frozen=True)
class EMOptions:
    """How EM runs.

    Attributes
    ----------
    update : {"auto", "newton", "em", "clip"}
        ``"em"`` is the papers' EM with the exact non-negative M-step. ``"newton"`` takes only the
        precisions as missing data and the probit's own curvature instead of the bound (one) that the
        latent responses amount to (a row's is renewed once it has moved by a tenth); it has the same
        fixed points in fewer iterations, and falls back to the ``"em"`` step where it would lower the
        log posterior. ``"clip"`` is what the authors' program does: an unconstrained solve, then
        wrong-signed and small weights are dropped; it is not monotone. ``"auto"`` takes ``"newton"``,
        but under an improper weight prior only once an ``"em"`` step prunes nothing and moves no latent
        value by more than 0.05: before that, the longer steps end in poorer local maxima.
    bias : {"joint", "alternating"}
        Whether weights and bias are solved for together, or in turn as eqs. 11 and 12 print it.
    max_iter : int
    tol : float
        EM stops once no latent value changes by more than this in one iteration (for ``"clip"``: no
        weight, the authors' rule).
    drop : float
        ``"clip"`` only: weights at most this large are dropped.
    """

    update: Literal["auto", "newton", "em", "clip"] = "auto"
    bias: Literal["joint", "alternating"] = "joint"
    max_iter: int = 10_000
    tol: float = 1e-5
    drop: float = 1e-3

    def __post_init__(self) -> None:
        for name, allowed in (
            ("update", ("auto", "newton", "em", "clip")),
            ("bias", ("joint", "alternating")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown; use one of {allowed}")
        if self.max_iter < 1:
            raise ValueError(f"max_iter={self.max_iter} must be at least 1")
        if not self.tol > 0:
            raise ValueError(f"tol={self.tol} must be positive")

    @classmethod
    def chen2009(cls) -> "EMOptions":
        """Return the authors' program: clip and drop, bias in turn, 500 iterations, change 1e-3."""
        return cls(update="clip", bias="alternating", max_iter=500, tol=1e-3, drop=1e-3)


@dataclass(frozen=True)
class Start:
    """Where a fit begins.

    Attributes
    ----------
    weight : ndarray, shape (n_basis,)
    bias : float
    response : ndarray, shape (n_obs,), optional
        Latent responses to be used in place of the first E-step (as the authors' program does).
    """

    weight: Array
    bias: float
    response: Array | None = None

    @classmethod
    def default(cls, problem: Problem) -> "Start":
        """Return a deterministic start: zero, or one in size where a prior holds zeros fast.

        Under an improper prior (d = 0) a weight that is zero stays zero, so that the start must
        be away from it.
        """
        prior, n = problem.hyperprior, problem.Phi.shape[1]
        majority = 1.0 if problem.label.sum() >= 0 else -1.0
        return cls(
            np.zeros(n) if prior.d > 0 else problem.weight_sign.copy(),
            0.0 if prior.f > 0 else majority,
        )

    @classmethod
    def random(cls, problem: Problem, rng: np.random.Generator) -> "Start":
        """Return sizes uniform on [0.2, 1.2], as in the authors' program, for weights and bias."""
        size = rng.uniform(0.2, 1.2, problem.Phi.shape[1])
        return cls(
            problem.weight_sign * size, float(rng.choice([-1.0, 1.0]) * rng.uniform(0.2, 1.2))
        )

    @classmethod
    def chen2009(cls, problem: Problem, rng: np.random.Generator) -> "Start":
        """Return the authors' start: random sizes and latent responses ``10 u y + u'``."""
        start = cls.random(problem, rng)
        n_obs = len(problem.label)
        response = 10 * rng.uniform(size=n_obs) * problem.label + rng.uniform(size=n_obs)
        return replace(start, response=response)

    @classmethod
    def from_solution(
        cls, problem: Problem, weight: Array, bias: float, rng: np.random.Generator
    ) -> "Start":
        """Return another machine's solution as a start (Chen et al. 2009, footnote 9).

        Zero and wrong-signed weights are replaced by small random values so that
        the first iteration does not prune them.
        """
        small = problem.weight_sign * rng.uniform(0.01, 0.1, len(weight))
        right = weight * problem.weight_sign > 0
        return cls(np.where(right, weight, small), bias if bias != 0 else 0.1)


@dataclass(frozen=True)
class EMState:
    """A point of the iteration, with what was computed there."""

    weight: Array
    bias: float
    latent: Array
    width: float
    log_posterior: float

    @property
    def n_active(self) -> int:
        """Number of weights that are not zero."""
        return int(np.count_nonzero(self.weight))


def log_posterior(
    problem: Problem, weight: Array, bias: float, latent: Array, width: float | None = None
) -> float:
    """Return log p(y | w, b) + log p(w) + log p(b), precisions integrated out (eqs. 21-22).

    A width with a prior adds its log density; `width` defaults to the problem's.
    """
    prior = problem.hyperprior
    log_width = 0.0
    if problem.log_width_density is not None:
        log_width = problem.log_width_density(problem.width if width is None else width)
    return (
        log_likelihood(latent, problem.label)
        + prior.log_weights_density(weight, free=problem.sign is None)
        + prior.log_bias_density(bias)
        + log_width
    )


def log_joint(
    problem: Problem, weight: Array, bias: float, precision: Array, bias_precision: float
) -> float:
    """Return log p(y, w, b, alpha, beta): the precisions explicit."""
    prior = problem.hyperprior
    return (
        log_likelihood(problem.Phi @ weight + bias, problem.label)
        + float(prior.log_joint_weight_density(weight, precision).sum())
        + prior.log_joint_bias_density(bias, bias_precision)
    )


def width_gradient(
    basis: Array, squared_distance: Array, width: float, weight: Array, residual: Array
) -> float:
    """Return dQ / d log(width) = 2 sum{ (r w') o dPhi/dlog(width) }, r = H - Phi w - b 1.

    Chen et al. (2009) eq. 10, corrected: the printed form has the sign reversed and lacks b.
    `basis` and `squared_distance` have shape (n_obs, n_basis), `residual` shape (n_obs,).
    """
    derivative = log_width_derivative(basis, squared_distance, width) @ weight
    return 2.0 * float(residual @ derivative)


def initial_state(problem: Problem, start: Start) -> EMState:
    """Return the state at a start, tiny weights pruned.

    Raises
    ------
    ValueError
        If a weight has the wrong sign: its prior density is zero.
    """
    weight = problem.hyperprior.pruned(np.asarray(start.weight, dtype=float))
    wrong = 0 if problem.sign is None else int(np.sum(weight * problem.sign < 0))
    if wrong:
        raise ValueError(
            f"start has {wrong} weight(s) of the wrong sign; needed weight * sign >= 0 "
            "(Start.from_solution mends another machine's solution)"
        )
    latent = problem.Phi @ weight + start.bias
    return EMState(
        weight,
        float(start.bias),
        latent,
        problem.width,
        log_posterior(problem, weight, start.bias, latent),
    )


class _Columns:
    """The columns still in play, their basis functions and (for unit row weights) Gram matrix.

    Under d = 0 nothing comes back, so that all three shrink as weights are pruned.
    """

    _COMPACT_BELOW = 0.7

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.index = np.arange(problem.Phi.shape[1])
        self.Phi = problem.Phi
        self.squared_distance = problem.squared_distance
        self.width = problem.width
        self._gram: BorderedGram | None = None
        self._partial: PartialGram | None = None

    def gram(self) -> BorderedGram:
        """Return the Gram matrix under unit row weights."""
        if self._gram is None:
            self._partial = None  # not both in memory
            self._gram = BorderedGram.of(self.Phi)
        return self._gram

    def curved_gram(self, row_weight: Array, passive: Mask) -> PartialGram:
        """Return a Gram matrix under row weights near those given, on the columns to be asked for."""
        if self._partial is None:
            self._gram = None
            self._partial = PartialGram(self.Phi)
        self._partial.follow(row_weight, passive)
        return self._partial

    def shrink(self, weight: Array) -> None:
        """Leave out columns whose weight is zero for good, once that saves real work."""
        if self.problem.hyperprior.d > 0:
            return
        keep = np.flatnonzero(weight[self.index])
        if len(keep) > self._COMPACT_BELOW * len(self.index):
            return
        if self._gram is not None:
            self._gram = self._gram.take(keep)
        self.index = self.index[keep]
        self.Phi = np.asfortranarray(self.Phi[:, keep])
        if self._partial is not None:
            self._partial.take(keep, self.Phi)
        if self.squared_distance is not None:
            self.squared_distance = self.squared_distance[:, keep]

    def set_width(self, width: float, Phi: Array) -> None:
        """Replace the basis functions by those of another width."""
        self.width, self.Phi = width, Phi
        self._gram = self._partial = None


def _working_response(latent: Array, label: Array, row_weight: Array | None) -> Array:
    """Return W f + g, shape (n_obs,); for unit weights W the mean of the E-step, eq. 23."""
    if row_weight is None:
        return latent_mean(latent, label)
    return row_weight * latent + score(latent, label)


def _maximise_weights(
    columns: _Columns,
    state: EMState,
    options: EMOptions,
    response: Array | None,
    row_weight: Array | None,
) -> tuple[Array, float]:
    """Return the M-step's weights (all of them) and bias: chen2009 eqs. 11-12 under the sign rule."""
    problem, prior = columns.problem, columns.problem.hyperprior
    old = state.weight[columns.index]
    scale = problem.weight_sign[columns.index] / np.sqrt(prior.weight_precision(old))
    bias_scale = 1.0 / np.sqrt(prior.bias_precision(state.bias))
    passive: Mask = (old != 0) if np.any(old) else np.ones(len(old), dtype=bool)
    gram: Gram
    if row_weight is None:
        gram = columns.gram()
    else:
        gram = columns.curved_gram(row_weight, passive)
        row_weight = gram.row_weight
    if response is None:
        response = _working_response(state.latent, problem.label, row_weight)
    total = float(response.sum())
    constrained = options.update != "clip" and problem.sign is not None
    alternating = options.bias == "alternating"
    target = response @ columns.Phi
    if alternating:  # eq. 11: the weights at the old bias, then eq. 12
        target = target - state.bias * gram.border
    active, bias = solve_nonnegative(
        gram,
        scale,
        0.0 if alternating else bias_scale,
        (target, total),
        passive,
        constrained=constrained,
    )
    if options.update == "clip":
        wrong = active * problem.weight_sign[columns.index] < 0
        active = np.where(wrong | (np.abs(active) <= options.drop), 0.0, active)
    if alternating:
        shrink = bias_scale**2 / (1.0 + gram.corner * bias_scale**2)
        bias = shrink * (total - float(gram.border @ active))
    weight = np.zeros(len(state.weight))
    weight[columns.index] = active
    return prior.pruned(weight), bias


def _state_at(columns: _Columns, weight: Array, bias: float) -> EMState:
    latent = columns.Phi @ weight[columns.index] + bias
    value = log_posterior(columns.problem, weight, bias, latent, columns.width)
    return EMState(weight, bias, latent, columns.width, value)


def _improve_width(columns: _Columns, state: EMState) -> EMState:
    """Return the state after one damped Gauss-Newton step on log(width); never a worse one.

    The slope is the corrected eq. 10 at the current E-step, where H - Phi w - b is the score.
    """
    problem, bounds = columns.problem, columns.problem.width_bounds
    if bounds is None or columns.squared_distance is None or state.n_active == 0:
        return state
    weight = state.weight[columns.index]
    residual = score(state.latent, problem.label)
    derivative = log_width_derivative(columns.Phi, columns.squared_distance, state.width) @ weight
    slope, bend = _log_width_prior_derivatives(problem, state.width)
    slope += float(residual @ derivative)
    bend += float(curvature(state.latent, problem.label) @ derivative**2)
    step = np.clip(slope / (bend + 1e-12), -0.5, 0.5)
    for _ in range(6):
        width = float(np.clip(state.width * np.exp(step), *bounds))
        if width == state.width:
            return state
        Phi = rbf(columns.squared_distance, width)
        latent = Phi @ weight + state.bias
        value = log_posterior(problem, state.weight, state.bias, latent, width)
        if value >= state.log_posterior:
            columns.set_width(width, Phi)
            return EMState(state.weight, state.bias, latent, width, value)
        step /= 2
    return state


def _log_width_prior_derivatives(problem: Problem, width: float) -> tuple[float, float]:
    """Return slope and (non-negative) downward curvature of the width's log prior in log(width)."""
    if problem.log_width_density is None:
        return 0.0, 0.0
    h = 1e-4
    below, here, above = (problem.log_width_density(width * np.exp(k * h)) for k in (-1, 0, 1))
    return (above - below) / (2 * h), max(0.0, (2 * here - above - below) / h**2)


def _is_settled(old: EMState, new: EMState) -> bool:
    """Whether EM has chosen its vectors: nothing was pruned and the latent function hardly moves."""
    return new.n_active == old.n_active and float(np.abs(new.latent - old.latent).max()) < _SETTLED


def _next_state(
    columns: _Columns, state: EMState, options: EMOptions, response: Array | None, newton: bool
) -> EMState:
    """Return the state after one E-step and one M-step."""
    new: EMState | None = None
    if newton:
        row_weight = curvature(state.latent, columns.problem.label)
        new = _state_at(columns, *_maximise_weights(columns, state, options, None, row_weight))
        if not new.log_posterior >= state.log_posterior:
            new = None
    if new is None:
        new = _state_at(columns, *_maximise_weights(columns, state, options, response, None))
    columns.shrink(new.weight)
    return _improve_width(columns, new)


def iterate(
    problem: Problem, start: Start | EMState, options: EMOptions | None = None
) -> Iterator[EMState]:
    """Yield the state after each EM iteration, without end; the caller stops."""
    options = options or EMOptions()
    response = None if isinstance(start, EMState) else start.response
    state = start if isinstance(start, EMState) else initial_state(problem, start)
    columns = _Columns(problem)
    careful = options.update == "auto" and problem.hyperprior.d == 0
    while True:
        newton = options.update in ("auto", "newton") and not careful and response is None
        new = _next_state(columns, state, options, response, newton)
        careful = careful and not _is_settled(state, new)
        state, response = new, None
        yield state


def fit_em(
    problem: Problem,
    start: Start | None = None,
    options: EMOptions | None = None,
    callback: Callable[[int, EMState], None] | None = None,
) -> EMResult:
    """Run EM to its end.

    Parameters
    ----------
    problem : Problem
    start : Start, optional
        Default: `Start.default`.
    options : EMOptions, optional
    callback : callable, optional
        Called with the iteration's number and state after each iteration.

    Returns
    -------
    EMResult

    Notes
    -----
    With ``update`` ``"newton"`` or ``"em"`` the log posterior never decreases.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), "Probabilistic classification vector machines", IEEE
    Transactions on Neural Networks 20(6), 901-914.
    """
    options = options or EMOptions()
    start = start or Start.default(problem)
    old = initial_state(problem, start)
    rows = [(old.log_posterior, old.n_active, np.nan, old.width)]
    status = Status.ITERATION_LIMIT
    for n_iter, state in enumerate(iterate(problem, start, options), 1):
        change = _change(old, state, options)
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
    columns = [np.asarray(column) for column in zip(*rows, strict=True)]
    return EMResult(
        weight=old.weight,
        bias=old.bias,
        width=old.width,
        latent=old.latent,
        log_posterior=old.log_posterior,
        status=status,
        n_iter=len(rows) - 1,
        trace=EMTrace(*columns),
    )


def _change(old: EMState, new: EMState, options: EMOptions) -> float:
    """Return the largest change of the latent function (of the weights for the authors' recipe)."""
    if options.update == "clip":
        return float(np.abs(new.weight - old.weight).max(initial=0.0))
    return float(np.abs(new.latent - old.latent).max())


def relevance_start(problem: Problem, rng: np.random.Generator) -> Start:
    """Return an RVM-like start: a few steps of the same EM without the sign rule (footnote 9).

    Without signs the model is a sparse Bayesian (ARD) probit machine; its zero and wrong-signed weights
    become small random values.
    """
    free = replace(problem, sign=None, hyperprior=Hyperprior.jeffreys(), width_bounds=None)
    machine = fit_em(free, Start(problem.weight_sign.copy(), 0.1), EMOptions(max_iter=50))
    return Start.from_solution(problem, machine.weight, machine.bias, rng)
