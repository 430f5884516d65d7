"""EM from the top down for several classes: mPCVM1 (Lyu et al. 2020, Algorithm 1, corrected) and mRVM2."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em.binary import EMOptions, Status
from pcvm_pymc.core.em.nonnegative import BorderedGram, solve_nonnegative
from pcvm_pymc.core.pieces.multinomial import ClassTerms, Labels, class_terms
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array

__all__ = [
    "ClassProblem",
    "ClassResult",
    "ClassStart",
    "ClassState",
    "ClassTrace",
    "fit_top_down",
    "initial_class_state",
    "iterate_classes",
    "log_class_posterior",
    "row_curvature",
    "start_response",
]

_SETTLED = 0.05  # on the probit's scale, as for two classes

type Integers = NDArray[np.int64]


@dataclass(frozen=True)
class ClassProblem:
    """What a fit is given.

    Attributes
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
    label : ndarray of int, shape (n_obs,)
        Classes, 0 to n_classes - 1.
    n_classes : int
    sign : ndarray, shape (n_basis, n_classes), or None
        Sign of each weight, -1. or +1. None leaves the weights free.
    hyperprior : Hyperprior
        (u1, v1, u2, v2) of the paper are its (c, d, e, f).
    has_bias : bool
        Whether each class has a bias.
    shared : bool
        Whether a basis is dropped for all classes or for none, as in the mRVM; otherwise each weight
        is dropped by itself.
    """

    Phi: Array
    label: Labels
    n_classes: int
    sign: Array | None
    hyperprior: Hyperprior
    has_bias: bool = True
    shared: bool = False

    @property
    def weight_sign(self) -> Array:
        """Signs as numbers, ones for free weights."""
        if self.sign is not None:
            return self.sign
        return np.ones((self.Phi.shape[1], self.n_classes))

    @property
    def own(self) -> Array:
        """One for the class of each row, zero for the others, shape (n_obs, n_classes)."""
        return (self.label[:, None] == np.arange(self.n_classes)).astype(float)


def start_response(label: Labels, n_classes: int, rng: np.random.Generator | None = None) -> Array:
    """Return first latent responses, shape (n_obs, n_classes).

    The mRVM's authors draw u uniformly and take ``10 + u`` for the own class and u for the others; without
    a generator these are the means, 10.5 and 0.5. The end depends on them wherever the hyperprior is
    improper.
    """
    own = np.asarray(label)[:, None] == np.arange(n_classes)
    if rng is None:
        return np.where(own, 10.5, 0.5)
    return 10.0 * own + rng.uniform(size=own.shape)


@dataclass(frozen=True)
class ClassStart:
    """Where a fit begins.

    Attributes
    ----------
    weight : ndarray, shape (n_basis, n_classes)
    bias : ndarray, shape (n_classes,)
    response : ndarray, shape (n_obs, n_classes), optional
        Latent responses to be used in place of the first E-step; of weights and biases only the
        precisions then matter, by their sizes.
    """

    weight: Array
    bias: Array
    response: Array | None = None

    @classmethod
    def default(cls, problem: ClassProblem) -> "ClassStart":
        """Return the default `start_response`, precisions of one."""
        return cls._of_size_one(problem, start_response(problem.label, problem.n_classes))

    @classmethod
    def random(cls, problem: ClassProblem, rng: np.random.Generator) -> "ClassStart":
        """Return a random `start_response`, precisions of one."""
        return cls._of_size_one(problem, start_response(problem.label, problem.n_classes, rng))

    @classmethod
    def _of_size_one(cls, problem: ClassProblem, response: Array) -> "ClassStart":
        bias = np.full(problem.n_classes, 1.0 if problem.has_bias else 0.0)
        return cls(problem.weight_sign.copy(), bias, response)


@dataclass(frozen=True)
class ClassState:
    """A point of the iteration, with what was computed there."""

    weight: Array
    bias: Array
    latent: Array
    terms: ClassTerms = field(repr=False)
    log_posterior: float

    @property
    def n_active(self) -> int:
        """Number of weights that are not zero."""
        return int(np.count_nonzero(self.weight))


@dataclass(frozen=True)
class ClassTrace:
    """Per iteration, the start first: shape (n_iter + 1,) each."""

    log_posterior: Array
    n_active: Integers
    change: Array


@dataclass(frozen=True)
class ClassResult:
    """The end of a fit for several classes.

    Attributes
    ----------
    weight : ndarray, shape (n_basis, n_classes)
        Signed weights, exactly zero where pruned.
    bias : ndarray, shape (n_classes,)
    latent : ndarray, shape (n_obs, n_classes)
        Scores of the classes at the training inputs.
    log_posterior : float
        Of weights and biases, precisions integrated out; from the bottom up, given the precisions.
    status : Status
    n_iter : int
    trace : ClassTrace
    """

    weight: Array
    bias: Array
    latent: Array
    log_posterior: float
    status: Status
    n_iter: int
    trace: ClassTrace = field(repr=False)

    @property
    def converged(self) -> bool:
        """Whether the iteration came to rest (an empty model included)."""
        return self.status is not Status.ITERATION_LIMIT

    @property
    def support(self) -> NDArray[np.intp]:
        """Relevance vectors: bases with a weight that is not zero in any class."""
        return np.flatnonzero(self.weight.any(axis=1))


def log_class_posterior(
    problem: ClassProblem, weight: Array, bias: Array, terms: ClassTerms
) -> float:
    """Return log p(t | W, b) + log p(W) + log p(b), precisions integrated out (eqs. 11, 17, 18)."""
    prior = problem.hyperprior
    log_weight = prior.log_weights_density(weight, free=problem.sign is None)
    log_bias = sum(prior.log_bias_density(b) for b in bias) if problem.has_bias else 0.0
    return float(terms.log_probability.sum()) + log_weight + log_bias


def initial_class_state(problem: ClassProblem, start: ClassStart) -> ClassState:
    """Return the state at a start, tiny weights pruned.

    Raises
    ------
    ValueError
        If the start has another shape than the problem, or a weight of the wrong sign.
    """
    n_basis = problem.Phi.shape[1]
    for name, value, needed in (
        ("weight", start.weight, (n_basis, problem.n_classes)),
        ("bias", start.bias, (problem.n_classes,)),
        ("response", start.response, problem.own.shape),
    ):
        if value is not None and np.shape(value) != needed:
            raise ValueError(f"start.{name} has shape {np.shape(value)}; needed {needed}")
    wrong = int(np.sum(start.weight * problem.weight_sign < 0)) if problem.sign is not None else 0
    if wrong:
        raise ValueError(
            f"start has {wrong} weight(s) of the wrong sign; needed weight * sign >= 0"
        )
    weight = problem.hyperprior.pruned(np.asarray(start.weight, dtype=float), shared=problem.shared)
    bias = np.asarray(start.bias, dtype=float)
    return _state(problem, weight, bias, problem.Phi @ weight + bias)


def _state(problem: ClassProblem, weight: Array, bias: Array, latent: Array) -> ClassState:
    terms = class_terms(latent, problem.label)
    value = log_class_posterior(problem, weight, bias, terms)
    return ClassState(weight, bias, latent, terms, value)


class _Columns:
    """The columns that some class still uses, and their Gram matrix, which all classes share.

    Under d = 0 nothing comes back, so that both shrink as weights are pruned.
    """

    _COMPACT_BELOW = 0.8

    def __init__(self, problem: ClassProblem) -> None:
        self.problem = problem
        self.index = np.arange(problem.Phi.shape[1])
        self.Phi = problem.Phi
        self._gram: BorderedGram | None = None

    def gram(self, row_weight: Array | None) -> BorderedGram:
        """Return the Gram matrix under `row_weight`; that of unit weights is kept."""
        if row_weight is not None:
            return BorderedGram.of(self.Phi, row_weight)
        if self._gram is None:
            self._gram = BorderedGram.of(self.Phi)
        return self._gram

    def shrink(self, weight: Array) -> None:
        """Leave out columns whose weights are zero for good in every class."""
        if self.problem.hyperprior.d > 0:
            return
        keep = np.flatnonzero(weight[self.index].any(axis=1))
        if len(keep) > self._COMPACT_BELOW * len(self.index):
            return
        if self._gram is not None:
            self._gram = self._gram.take(keep)
        self.index = self.index[keep]
        self.Phi = np.asfortranarray(self.Phi[:, keep])

    def latent(self, weight: Array, bias: Array) -> Array:
        """Return the scores, shape (n_obs, n_classes)."""
        return self.Phi @ weight[self.index] + bias


def row_curvature(terms: ClassTerms) -> Array:
    """Return a bound of each row's curvature in any direction of its scores, shape (n_obs,).

    Minus the second derivative is the Laplacian matrix of a graph over the classes: its largest
    eigenvalue is at most twice a diagonal entry, of which the own class has the largest. EM takes one.
    """
    return np.minimum(1.0, 2.0 * terms.curvature)


def _maximised(
    columns: _Columns,
    state: ClassState,
    options: EMOptions,
    response: Array | None,
    row_weight: Array | None,
) -> tuple[Array, Array]:
    """Return the M-step's weights and biases, class by class (eqs. 28-29, solved jointly)."""
    problem = columns.problem
    if response is None:
        pull = state.latent if row_weight is None else row_weight[:, None] * state.latent
        response = pull + state.terms.score
    gram = columns.gram(row_weight)
    target = response.T @ columns.Phi
    total = response.sum(axis=0)
    weight, bias = np.zeros_like(state.weight), np.zeros_like(state.bias)
    for c in range(problem.n_classes):
        weight[columns.index, c], bias[c] = _maximised_class(
            columns, state, gram, (target[c], float(total[c])), c=c, options=options
        )
    return problem.hyperprior.pruned(weight, shared=problem.shared), bias


def _maximised_class(
    columns: _Columns,
    state: ClassState,
    gram: BorderedGram,
    target: tuple[Array, float],
    *,
    c: int,
    options: EMOptions,
) -> tuple[Array, float]:
    """Return one class' weights on the columns, and its bias, under the sign rule."""
    problem, prior = columns.problem, columns.problem.hyperprior
    old, sign = state.weight[columns.index, c], problem.weight_sign[columns.index, c]
    # under d = 0 only weights that are not zero can move: the work follows their number
    play = np.flatnonzero(old) if prior.d == 0 else np.arange(len(old))
    mine = gram if len(play) == len(old) else gram.take(play)
    bias_precision = prior.bias_precision(state.bias[c]) if problem.has_bias else np.inf
    bias_scale = 1.0 / np.sqrt(bias_precision)
    alternating = options.bias == "alternating"
    pull = target[0][play]
    if alternating:  # eq. 28: the weights at the old bias, then eq. 29
        pull = pull - state.bias[c] * mine.border
    old, sign = old[play], sign[play]
    active, bias = solve_nonnegative(
        mine,
        sign / np.sqrt(prior.weight_precision(old)),
        0.0 if alternating else bias_scale,
        (pull, target[1]),
        old != 0 if old.any() else np.ones(len(old), dtype=bool),
        constrained=options.update != "clip" and problem.sign is not None,
    )
    if options.update == "clip":
        wrong = active * sign < 0 if problem.sign is not None else np.zeros(len(active), dtype=bool)
        active = np.where(wrong | (np.abs(active) <= options.drop), 0.0, active)
    if alternating:
        shrink = bias_scale**2 / (1.0 + mine.corner * bias_scale**2)
        bias = shrink * (target[1] - float(mine.border @ active))
    out = np.zeros(len(columns.index))
    out[play] = active
    return out, bias


def _next_state(
    columns: _Columns,
    state: ClassState,
    options: EMOptions,
    response: Array | None,
    newton: bool,
) -> ClassState:
    """Return the state after one E-step and one M-step."""
    for row_weight in (row_curvature(state.terms), None) if newton else (None,):
        weight, bias = _maximised(columns, state, options, response, row_weight)
        new = _state(columns.problem, weight, bias, columns.latent(weight, bias))
        if row_weight is None or new.log_posterior >= state.log_posterior:
            break
    columns.shrink(new.weight)
    return new


def _is_settled(old: ClassState, new: ClassState) -> bool:
    """Whether EM has chosen its vectors: nothing was pruned and the scores hardly move."""
    return new.n_active == old.n_active and _change(old, new) < _SETTLED


def _change(old: ClassState, new: ClassState) -> float:
    return float(np.abs(new.latent - old.latent).max())


def iterate_classes(
    problem: ClassProblem, start: ClassStart | ClassState, options: EMOptions | None = None
) -> Iterator[ClassState]:
    """Yield the state after each EM iteration, without end; the caller stops."""
    options = options or EMOptions()
    response = None if isinstance(start, ClassState) else start.response
    state = start if isinstance(start, ClassState) else initial_class_state(problem, start)
    columns = _Columns(problem)
    careful = options.update == "auto" and problem.hyperprior.d == 0
    while True:
        newton = options.update in ("auto", "newton") and not careful and response is None
        new = _next_state(columns, state, options, response, newton)
        careful = careful and not _is_settled(state, new)
        state, response = new, None
        yield state


def fit_top_down(
    problem: ClassProblem,
    start: ClassStart | None = None,
    options: EMOptions | None = None,
    callback: Callable[[int, ClassState], None] | None = None,
) -> ClassResult:
    """Run EM to its end: mPCVM1 with signs; mRVM2 without, shared and without bias.

    Parameters
    ----------
    problem : ClassProblem
    start : ClassStart, optional
        Default: `ClassStart.default`.
    options : EMOptions, optional
        ``"clip"`` is the paper's M-step: an unconstrained solve, wrong signs set to zero.
    callback : callable, optional
        Called with the iteration's number and state after each iteration.

    Notes
    -----
    Unless ``update`` is ``"clip"``, the log posterior never decreases from the first iteration on
    (the responses of the start are not those of its weights).

    References
    ----------
    S. Lyu, X. Tian, Y. Li, B. Jiang and H. Chen (2020), "Multiclass probabilistic classification
    vector machine", IEEE Transactions on Neural Networks and Learning Systems 31(10), Algorithm 1,
    corrected: weights and bias solved for together, the sign rule exact, the integrals by a rule
    that holds in the tails. mRVM2: I. Psorakis, T. Damoulas and M. A. Girolami (2010), "Multiclass
    relevance vector machines: sparsity and accuracy", IEEE Transactions on Neural Networks 21(10).
    """
    options = options or EMOptions()
    start = start or ClassStart.default(problem)
    old = initial_class_state(problem, start)
    rows = [(old.log_posterior, old.n_active, np.nan)]
    status = Status.ITERATION_LIMIT
    for n_iter, state in enumerate(iterate_classes(problem, start, options), 1):
        change = _change(old, state)
        stop = (
            change if options.update != "clip" else float(np.abs(state.weight - old.weight).max())
        )
        rows.append((state.log_posterior, state.n_active, change))
        old = state
        if callback is not None:
            callback(n_iter, state)
        if stop <= options.tol:
            status = Status.CONVERGED
            break
        if n_iter == options.max_iter:
            break
    if old.n_active == 0:
        status = Status.EMPTY_MODEL
    trace = ClassTrace(*(np.asarray(column) for column in zip(*rows, strict=True)))
    return ClassResult(
        old.weight, old.bias, old.latent, old.log_posterior, status, len(rows) - 1, trace
    )
