"""What every solver is given: basis functions, rows with weights, and the pieces of a system."""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.likelihoods import Likelihood, Normal, Probit, RowTerms
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.row_weights import against_rest, times_weight


class Status(Enum):
    """How a fit ended.

    Its value says it in words; results have the name (``optimizer_result``), estimators the
    member (``status_``).

    Examples
    --------
    >>> Status["CONVERGED"].value
    'changes fell below tol'
    """

    CONVERGED = "changes fell below tol"
    ITERATION_LIMIT = "max_iter iterations were done before convergence"
    EMPTY_MODEL = "every weight was pruned: the model is its bias alone"
    ROUNDING = "no step raises the log posterior, for rounding: rescale the features or the kernel"
    STUCK = "no step raises the log posterior, which may have a kink there: use another density, or NUTS"
    SHORT_STEPS = "the bound's steps fell below tol short of the maximum: use update='auto'"
    DIVERGED = "scores grew without bound, as Algorithm 2 of Lyu et al. (2020) does as printed"
    BEST_OF_CYCLE = "steps went on without a better evidence: the best state was kept"

    def __reduce__(self) -> tuple[type["Status"], tuple[str]]:
        """Return how skops makes it again; pickle has its own way."""
        return type(self), (self.value,)


class Values(NamedTuple):
    """States of chains in the model's own terms; leading dimensions are those of states.

    Attributes
    ----------
    weight : ndarray, shape (..., n_basis, n_scores)
    bias : ndarray, shape (..., n_scores)
    rate : ndarray, shape (...)
        d of the weights' hyperprior, a constant where it is not learned; 1 under a Laplace, which has none.
    noise : ndarray, shape (...)
        Scale of targets that are numbers, a constant where it is known; else 1.
    width : ndarray, shape (...) or (..., n_features), optional
        Where it is unknown.
    """

    weight: Array
    bias: Array
    rate: Array
    noise: Array
    width: Any = None

    def latent(self, Phi: Array) -> Array:
        """Return the latent function of each state, shape (..., n_rows, n_scores)."""
        return np.asarray(np.matmul(Phi, self.weight) + self.bias[..., None, :])


class Ended:
    """How a solver's iteration ended, by its result's fields ``status`` and ``n_iter``."""

    status: Status
    n_iter: int

    @property
    def converged(self) -> bool:
        """Whether the iteration converged (an empty model included)."""
        short = Status.ITERATION_LIMIT, Status.STUCK, Status.SHORT_STEPS, Status.DIVERGED
        return self.status not in short


@dataclass(frozen=True)
class EMTrace:
    """Per iteration, the start first: shape (n_iter + 1,) each."""

    log_posterior: Array
    n_active: NDArray[np.int64]
    change: Array
    width: Array


@dataclass(frozen=True)
class EMResult(Ended):
    """The end point of a fit.

    Attributes
    ----------
    weight : ndarray, shape (n_basis,), or (n_basis, n_scores) for several scores
        Signed weights, exactly zero where pruned.
    bias : float, or ndarray, shape (n_scores,)
    width : float or ndarray, shape (n_features,)
    latent : ndarray, shape (n_obs,) or (n_obs, n_scores)
        Latent function at the training inputs; empty where rows are in chunks.
    log_posterior : float
        Log posterior of weights and bias, precisions integrated out; from the bottom up, given the
        precisions.
    status : Status
    n_iter : int
    trace : EMTrace
    rate : float
        d of the weights' hyperprior; NaN where it has none.
    criterion : dict of str to float
        What estimates of hyperparameters maximise, there: ``log_marginal``, of the labels and the logarithms
        of what is unknown, or ``elpd_loo``, the sum of leave-one-out log densities. Empty without estimates.
    """

    weight: Array
    bias: Any
    width: Any
    latent: Array
    log_posterior: float
    status: Status
    n_iter: int
    trace: EMTrace = field(repr=False)
    rate: float = np.nan
    criterion: dict[str, float] = field(default_factory=dict)

    @property
    def support(self) -> NDArray[np.intp]:
        """Bases with a weight that is not zero in any score."""
        return np.flatnonzero(self.weight.reshape(len(self.weight), -1).any(axis=1))


@dataclass(frozen=True)
class ObservedRows:
    """Targets under a likelihood, in rows that count by weights: a row of weight two is the row twice.

    A likelihood has the values of rows that count once; its methods here multiply them by the weights.

    Parameters
    ----------
    likelihood : Likelihood
    target : ndarray, shape (n_obs,)
        Labels -1. and +1., numbers of classes, or numbers, as the likelihood has them.
    weight : ndarray, shape (n_obs,), optional
        How often each row counts; None for once.
    """

    likelihood: Likelihood
    target: NDArray[Any]
    weight: Array | None = None

    @classmethod
    def of(
        cls,
        likelihood: Likelihood,
        target: NDArray[Any],
        weight: Array | None = None,
        noise: Array | None = None,
    ) -> "ObservedRows":
        """Return rows with weights, and with a known noise where it is given.

        In its exponent a row of noise s_i is one of noise s that counts ``(s / s_i)^2`` times. With s the
        geometric mean of all s_i, rows that count once have the same normalising constants.

        Parameters
        ----------
        likelihood : Likelihood
        target : ndarray, shape (n_obs,)
        weight : ndarray, shape (n_obs,), optional
            How often each row counts.
        noise : ndarray, shape (n_obs,), optional
            Known standard deviation of each row's normal noise.
        """
        if noise is None:
            return cls(likelihood, target, weight)
        count = np.ones(len(noise)) if weight is None else weight
        middle = float(np.exp(np.average(np.log(noise), weights=count)))
        normal = Normal(middle, n_obs=float(count.sum()))
        return cls(normal, target, count * (middle / noise) ** 2)

    def __getitem__(self, rows: Any) -> "ObservedRows":
        """Return some of the rows."""
        weight = None if self.weight is None else self.weight[rows]
        return ObservedRows(self.likelihood, self.target[rows], weight)

    def copies(self, n: int) -> "ObservedRows":
        """Return all rows so many times, one copy after the other."""
        weight = None if self.weight is None else np.tile(self.weight, n)
        return ObservedRows(self.likelihood, np.tile(self.target, n), weight)

    @property
    def n_obs(self) -> float:
        """How many targets there are: the likelihood's number, the sum of the weights, or the rows."""
        known = getattr(self.likelihood, "n_obs", None)
        return known or (len(self.target) if self.weight is None else float(self.weight.sum()))

    def log_density(self, latent: Array) -> Array:
        """Return the log density of each row's target, shape (n_obs,)."""
        return times_weight(self.weight, self.likelihood.log_density(latent, self.target))

    def log_likelihood(self, latent: Array) -> float:
        """Return the log density, summed over the rows."""
        likelihood: Any = self.likelihood
        if self.weight is None:
            return float(likelihood.log_likelihood(latent, self.target))
        if not likelihood.is_quadratic:
            return float(self.weight @ likelihood.log_density(latent, self.target))
        root = np.sqrt(self.weight)  # normal rows of a known number: the weights may sum to another
        counted = replace(likelihood, n_obs=self.n_obs)
        return float(counted.log_likelihood(root * latent, root * self.target))

    def score(self, latent: Array) -> Array:
        """Return the slope of each row's log density in its latent values, shape of `latent`."""
        return times_weight(self.weight, self.likelihood.score(latent, self.target))

    def curvature(self, latent: Array) -> Array:
        """Return the downward curvature of each row, shape (n_obs,)."""
        return times_weight(self.weight, self.likelihood.curvature(latent, self.target))

    def hessian(self, latent: Array) -> Array:
        """Return minus the second derivatives of each row, shape (n_obs, n_scores, n_scores)."""
        return times_weight(self.weight, self.likelihood.hessian(latent, self.target))

    def value_and_score(self, latent: Array) -> tuple[Array, Array]:
        """Return log density and slope of each row together, to about 1e-4."""
        value, slope = self.likelihood.value_and_score(latent, self.target)
        return times_weight(self.weight, value), times_weight(self.weight, slope)

    def terms(self, latent: Array, *, rough: bool = False) -> RowTerms:
        """Return log density, slope and curvature at latent values of shape (n_obs, n_scores)."""
        return self.likelihood.terms(latent, self.target, rough=rough).weighted(self.weight)


@dataclass(frozen=True)
class Problem:
    """A model of labelled rows for all solvers: basis functions, labels, weights, signs, prior, likelihood.

    Attributes
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
        Basis functions at the training inputs. EM also takes a `pcvm_pymc.core.design.StreamedDesign`,
        computed in chunks of rows.
    label : ndarray, shape (n_obs,)
        Labels -1. and +1., numbers of classes, or targets, as the likelihood has them. None where the design
        is streamed: its rows have labels and weights.
    sign : ndarray, shape (n_basis,), or (n_basis, n_scores) for several scores, or None
        Sign of each weight, -1. or +1. None leaves the weights free.
    hyperprior : Hyperprior, Laplace or HalfHorseshoe
        Prior of weights and bias.
    likelihood : Likelihood
    bias : {"prior", "free", "none"}
        Whether the bias has the hyperprior's density, a flat one, or is not there.
    shared : bool
        Whether a basis is dropped for all scores or for none, as in the mRVM.
    width : float or ndarray, shape (n_features,)
        With which `Phi` was made; NaN where there is none.
    moves : WidthMoves or FeatureWidthMoves, optional
        The basis functions as a function of the width, which EM and Gibbs may then move.
    log_hyper_density : float
        Log density of what is unknown and stands where `given` has put it; part of the log posterior.
    row_weight : ndarray, shape (n_obs,), optional
        How often each row counts: a row of weight two is the row twice. None for once.
    """

    Phi: Any
    label: Any
    sign: Array | None
    hyperprior: Any
    likelihood: Likelihood = field(default_factory=Probit)
    bias: Literal["prior", "free", "none"] = "prior"
    shared: bool = False
    width: Any = 1.0
    moves: Any = None
    log_hyper_density: float = 0.0
    row_weight: Array | None = None

    def __post_init__(self) -> None:
        if self.bias not in ("prior", "free", "none"):
            raise ValueError(f"bias={self.bias!r} is unknown; use 'prior', 'free' or 'none'")
        shape = self.weight_shape
        if self.sign is not None and np.shape(self.sign) != shape:
            raise ValueError(f"sign has shape {np.shape(self.sign)}; needed {shape}")

    @property
    def observed(self) -> ObservedRows:
        """The rows, in memory or an array in chunks: labels under the likelihood, with their weights."""
        if self.label is not None:
            return ObservedRows(self.likelihood, self.label, self.row_weight)
        return ObservedRows(self.likelihood, self.Phi.rows.label, self.Phi.rows.weight)

    def part(self, rows: Any, columns: Any) -> "Problem":
        """Return the problem of some rows and some basis functions, as they are."""
        sign = None if self.sign is None else self.sign[columns]
        some, Phi = self.observed[rows], self.Phi[:, columns][rows]
        how: dict[str, Any] = {"label": some.target, "row_weight": some.weight, "sign": sign}
        return replace(self, Phi=Phi, moves=None, **how)

    def against_rest(self, number: int, likelihood: Likelihood | None = None) -> "Problem":
        """Return the problem of one class, by its number, against the rest; under the probit by default."""
        Phi, label = self.Phi, self.label
        if label is None:
            Phi = Phi.against_rest(number)
        else:
            label = against_rest(label, number)
        sign = None if self.sign is None else self.sign[:, number]
        piece = likelihood or Probit()
        return replace(self, Phi=Phi, label=label, sign=sign, likelihood=piece)

    def machines(self, n_classes: int, likelihood: Likelihood | None = None) -> list["Problem"]:
        """Return the problems of each class against the rest, of two classes of one; itself for none."""
        numbers = range(n_classes) if n_classes > 2 else range(1, n_classes)
        return [self.against_rest(c, likelihood) for c in numbers] or [self]

    def given(self, *, d: float | None = None, width: float | None = None) -> "Problem":
        """Return the problem with an unknown d at a value, at c by default, and a width that moves no more.

        At c the weights are of unit scale.
        """
        out, prior = self, self.hyperprior
        if prior.learns_rate:
            known = prior.at_rate(prior.c if d is None else d)
            density = prior.log_rate_density(np.log(known.d))[0] - np.log(known.d)
            out = replace(out, hyperprior=known, log_hyper_density=float(density))
        if width is not None:
            density = self.moves.log_density(width) + out.log_hyper_density
            known = {"width": width, "moves": None, "log_hyper_density": density}
            out = replace(out, Phi=self.moves.basis(width), **known)
        return out

    def latent(self, values: Values) -> Array:
        """Return the rows' latent values in states, shape (..., n_obs, n_scores), each at its own width."""
        if values.width is None:
            return values.latent(self.Phi)
        shape = values.rate.shape
        widths = values.width.reshape(-1, *values.width.shape[len(shape) :])
        of_one = (x.reshape(-1, *x.shape[len(shape) :]) for x in (values.weight, values.bias))
        states = zip(*of_one, widths, strict=True)
        flat = np.stack([self.moves.basis(at[()]) @ w + b for w, b, at in states])
        return flat.reshape(*shape, *flat.shape[1:])

    def log_density(self, values: Values, latent: Array) -> Array:
        """Return log densities of the rows, times their weights, in states, shape (..., n_obs)."""
        flat = latent.reshape(-1, *latent.shape[values.rate.ndim :])
        flat = flat[..., 0] if flat.shape[2] == 1 else flat
        known = [self.likelihood.with_noise(noise) for noise in values.noise.ravel().tolist()]
        rows = [replace(self.observed, likelihood=likelihood) for likelihood in known]
        density = np.stack([some.log_density(f) for some, f in zip(rows, flat, strict=True)])
        return density.reshape(*values.rate.shape, -1)

    def log_prior(self, weight: Array, bias: Any) -> float:
        """Return log p(w) + log p(b) (+ log p(d)), precisions integrated out; a free or no bias adds 0."""
        prior = self.hyperprior
        value = prior.log_weights_density(weight, free=not self.is_signed) + self.log_hyper_density
        if self.bias == "prior":
            value += sum(map(prior.log_bias_density, np.atleast_1d(bias).tolist()))
        return float(value)

    def bias_precision(self, bias: float) -> float:
        """Return the expected precision of a bias: zero where it is free, infinite where there is none."""
        if self.bias == "prior":
            return float(self.hyperprior.bias_precision(bias))
        return 0.0 if self.bias == "free" else np.inf

    @property
    def n_scores(self) -> int:
        """Latent values of a row."""
        return self.likelihood.n_scores

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weights: (n_basis,), or (n_basis, n_scores) for several scores."""
        n_basis = self.Phi.shape[1]
        return (n_basis,) if self.n_scores == 1 else (n_basis, self.n_scores)

    @property
    def weight_sign(self) -> Array:
        """Signs as numbers, ones for free weights."""
        return np.ones(self.weight_shape) if self.sign is None else self.sign

    @property
    def is_signed(self) -> bool:
        """Whether there is a sign rule."""
        return self.sign is not None
