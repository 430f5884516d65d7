"""One reader: the pieces of a model, recognised by the operations of its variables, never by their names."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.distribution import support_point
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.math import Erfc, Sigmoid
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.basic import BernoulliRV, NormalRV, StudentTRV

from pcvm_pymc.core.family import check_solver
from pcvm_pymc.core.pieces.likelihoods import LIKELIHOODS, Likelihood, NoisyProbit
from pcvm_pymc.core.pieces.priors import Prior, SharedHyperprior
from pcvm_pymc.core.pieces.probit import Array, ndtr
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.model.bases import known_width
from pcvm_pymc.model.distributions import ProbitBernoulliRV
from pcvm_pymc.model.graphs import (
    called,
    factors,
    is_random,
    made_of,
    number,
    numbers,
    peeled,
    product,
    random_parts,
    shape_of,
    terms,
)
from pcvm_pymc.model.multinomial import MultinomialProbitRV
from pcvm_pymc.model.read_priors import NUTS, weight_prior, with_bias
from pcvm_pymc.model.read_width import free_width, width_moves

__all__ = ["Parts", "find_parts", "likelihood_name", "read", "targets_of"]


def read(model: pm.Model, solver: str | None = None) -> Problem:
    """Return what solvers and samplers are given, as it stands in a model.

    Parameters
    ----------
    model : pm.Model
        From a builder, transformed from one by `pm.do` or `pm.observe`, or made by hand of the same
        operations: what its variables are called does not matter.
    solver : {"em", "evidence", "bottom-up", "gibbs"}, optional
        For what it is read. EM and Gibbs may move the width of an RBF, for EM an unknown scale is put where
        `Problem.for_mode` has it; the evidence is maximised over precisions, whether the model holds them
        or not.

    Returns
    -------
    Problem

    Raises
    ------
    ValueError
        If there is something in the model that would not be seen, or the solver does not take its
        pieces: what was found, what is needed, and what can take the model.
    """
    parts = find_parts(model)
    foreign = parts.foreign(model)
    if foreign:
        moved = sorted(rv.name for rv in (parts.weight, parts.bias) if rv is not None and rv.name)
        raise ValueError(
            f"weights and bias ({moved}) given {parts.observed.name!r} alone are what is moved here; found "
            f"extra terms {foreign}. Leave them out, use pymc_extras.find_MAP, {NUTS}"
        )
    if parts.precisions and solver != "evidence":
        raise ValueError(
            f"the model has explicit precisions {[rv.name for rv in parts.precisions]}, which are "
            f"integrated out here; build it with precision='marginal', {NUTS}"
        )
    if parts.width is not None and solver not in (None, "em", "gibbs"):
        raise ValueError(
            f"the kernel's width is a random variable, {parts.width.name!r}, which {solver!r} does not move; "
            f"needed a number, {NUTS}"
        )
    if parts.nuisances and solver not in (None, "evidence"):
        raise ValueError(
            f"{[rv.name for rv in parts.nuisances]} of the likelihood is unknown, which {solver!r} does not "
            f"move; needed a number, {NUTS}"
        )
    problem = _problem(model, parts)
    if solver == "em":
        problem = problem.for_mode()
    if solver is not None:
        check_solver(problem, solver)
    return problem


@dataclass(frozen=True)
class Parts:
    """The variables and expressions of a model that are the family's, and what they say.

    Attributes
    ----------
    observed : TensorVariable
        The labels or targets.
    likelihood : Likelihood
        A normal one of unknown noise has NaN.
    hyperprior : Hyperprior, Laplace or HalfHorseshoe
        With a flat bias, or none, e and f are those of a weight, c and d.
    Phi : TensorVariable
        The basis functions, with `width` in them.
    sign : ndarray or None
    weight : TensorVariable
        The free variable: weights, or the sizes of signed ones (an expression of `scales` for a
        half-horseshoe).
    bias : TensorVariable or None
    bias_kind : {"prior", "free", "none"}
    width : TensorVariable or None
        Where it is unknown.
    rate : TensorVariable or None
        Where d is unknown.
    precisions, scales, nuisances : tuple of TensorVariable
        Explicit precisions, scales of a half-horseshoe, unknown parameters of the likelihood.
    """

    observed: Variable
    likelihood: Likelihood
    hyperprior: Prior
    Phi: Variable
    sign: Array | None
    weight: Variable
    bias: Variable | None
    bias_kind: Any
    width: Variable | None = None
    rate: Variable | None = None
    precisions: tuple[Variable, ...] = ()
    scales: tuple[Variable, ...] = ()
    nuisances: tuple[Variable, ...] = ()

    def foreign(self, model: pm.Model) -> list[str]:
        """Return the names of what else is in the model."""
        own = {self.observed, self.weight, self.bias, self.width, self.rate}
        own |= {*self.precisions, *self.scales, *self.nuisances}
        random = [*model.free_RVs, *model.observed_RVs, *model.potentials]
        return sorted(str(each.name) for each in random if each not in own)


def find_parts(model: pm.Model) -> Parts:
    """Return the family's part of a model, whatever else is in it.

    Raises
    ------
    ValueError
        If there is none: what was found, and what is needed.
    """
    found = _observed(model)
    weights = _weights(model, found.latent)
    prior = weight_prior(weights.weight)
    n_scores = weights.shape[1] if len(weights.shape) == 2 else 1
    if found.name == "multinomial probit":
        likelihood: Likelihood = LIKELIHOODS[found.name](n_scores)
    else:
        likelihood = found.make()
    if likelihood.n_scores != n_scores:
        raise ValueError(
            f"{found.variable.name!r} under {found.name!r} has {likelihood.n_scores} score(s), and the "
            f"weights have shape {weights.shape}"
        )
    sign = weights.sign
    if prior.positive and sign is None:  # sizes without signs are weights that are all positive
        sign = np.ones(weights.shape)
    if not prior.positive and sign is not None:
        raise ValueError(
            f"{weights.weight.name!r} has either sign, and is multiplied by signs; needed a size, which "
            f"MarginalWeight declares, {NUTS}"
        )
    hyperprior, bias_kind, precision = with_bias(prior, weights.bias)
    return Parts(
        found.variable,
        likelihood,
        hyperprior,
        weights.Phi,
        sign,
        weights.weight,
        weights.bias,
        bias_kind,
        weights.width,
        prior.rate,
        (*prior.precisions, *precision),
        prior.scales,
        found.nuisances,
    )


def likelihood_name(model: pm.Model) -> str:
    """Return the name of a model's likelihood, whatever its priors are."""
    return _observed(model).name


def targets_of(model: pm.Model) -> str:
    """Return what a model's targets are: ``"labels"``, ``"classes"`` or ``"numbers"``."""
    return LIKELIHOODS[likelihood_name(model)].targets


# --- likelihoods --------------------------------------------------------------------------------


class _Observed(NamedTuple):
    """The observed variable, its likelihood's name and maker, latent expression, free nuisances."""

    variable: Variable
    name: str
    make: Callable[[], Likelihood]
    latent: Variable
    nuisances: tuple[Variable, ...] = ()


def _observed(model: pm.Model) -> _Observed:
    """Return the one observed variable of a known likelihood whose latent function has a basis."""
    candidates = [
        _LIKELIHOODS[type(rv.owner.op)](rv)
        for rv in model.observed_RVs
        if type(rv.owner.op) in _LIKELIHOODS
    ]
    ours = [each for each in candidates if each and any(map(product, terms(each.latent)))]
    if len(ours) == 1:
        return ours[0]
    found = ", ".join(f"{rv.name!r} ({called(rv)})" for rv in model.observed_RVs) or "none"
    if ours:
        raise ValueError(
            f"the model has {len(ours)} likelihoods of latent functions: {found}; needed one. A row's "
            f"builder has its own: for another likelihood take pcvm_latent(X, y, ...), {NUTS}"
        )
    raise ValueError(
        "the model lacks an observed variable whose latent value is dot(Phi, weight) + bias under "
        f"ProbitBernoulli, pm.Bernoulli(logit_p=), pm.Normal or MultinomialProbit; found {found}. Needed a "
        f"model such as pcvm_model(X, y, ...) builds, {NUTS}"
    )


def _read_probit(rv: Variable) -> _Observed:
    return _Observed(rv, "probit", LIKELIHOODS["probit"], rv.owner.op.dist_params(rv.owner)[0])


def _read_logit(rv: Variable) -> _Observed | None:
    """Return the logit where the probability is the logistic function of something."""
    probability = peeled(rv.owner.op.dist_params(rv.owner)[0])
    op = probability.owner and probability.owner.op
    if not (isinstance(op, Elemwise) and isinstance(op.scalar_op, Sigmoid)):
        return None
    return _Observed(rv, "logit", LIKELIHOODS["logit"], probability.owner.inputs[0])


def _read_bernoulli(rv: Variable) -> _Observed | None:
    return _read_logit(rv) or _read_label_noise(rv)


def _read_label_noise(rv: Variable) -> _Observed | None:
    """Return the probit with label noise where the probability is flip + (1 - 2 flip) Phi(something)."""
    found = _flipped_probit(rv.owner.op.dist_params(rv.owner)[0])
    if found is None:
        return None
    latent, flip, unknown = found
    make = partial(NoisyProbit, np.nan if unknown else flip)
    return _Observed(rv, NoisyProbit.name, make, latent, unknown)


def _flipped_probit(p: Variable) -> tuple[Variable, float, tuple[Variable, ...]] | None:
    """Return x, the number, and what is unknown in it, of ``number + (1 - 2 number) Phi(x)``."""
    nodes = [x.owner for x in ancestors([p]) if x.owner]
    found = [each for each in nodes if isinstance(getattr(each.op, "scalar_op", None), Erfc)]
    inner = [x for each in found for x in factors(each.inputs[0]) if random_parts(x)]
    if len(inner) != 1:
        return None
    at = np.array([-40.0, -1.0, 0.3, 2.0])
    of = clone_replace(p, {inner[0]: pt.as_tensor(at)}, rebuild_strict=False)
    value = numbers(of, dict.fromkeys(random_parts(of), 0.07))
    flip = float(value[0])
    if not np.allclose(value, flip + (1 - 2 * flip) * ndtr(at), rtol=1e-12):
        return None
    return inner[0], flip, tuple(set(random_parts(p)) - set(random_parts(inner[0])))


def _read_normal(rv: Variable) -> _Observed:
    """Return the normal likelihood, of numbers or around a probability, unknown noise NaN."""
    mean, noise = rv.owner.op.dist_params(rv.owner)
    unknown = tuple(random_parts(noise))
    found = None if any(map(product, terms(mean))) else _flipped_probit(mean)
    name, latent = ("normal", mean) if found is None else ("normal-probability", found[0])

    def make() -> Likelihood:
        return LIKELIHOODS[name](np.nan if unknown else number(noise, "the noise"))

    return _Observed(rv, name, make, latent, unknown)


def _read_student(rv: Variable) -> _Observed:
    """Return the Student-t likelihood, its scale and degrees of freedom NaN where they are unknown."""
    degrees, mean, noise = rv.owner.op.dist_params(rv.owner)
    unknown = tuple(random_parts(noise) + random_parts(degrees))

    def make() -> Likelihood:
        scale, nu = (
            np.nan if random_parts(x) else number(x, "a parameter") for x in (noise, degrees)
        )
        return LIKELIHOODS["student-t"](scale, nu)

    return _Observed(rv, "student-t", make, mean, unknown)


def _read_multinomial(rv: Variable) -> _Observed:
    latent = rv.owner.op.dist_params(rv.owner)[0]
    return _Observed(rv, "multinomial probit", LIKELIHOODS["multinomial probit"], latent)


_LIKELIHOODS: dict[type, Callable[[Variable], _Observed | None]] = {
    ProbitBernoulliRV: _read_probit,
    BernoulliRV: _read_bernoulli,
    NormalRV: _read_normal,
    StudentTRV: _read_student,
    MultinomialProbitRV: _read_multinomial,
}


# --- the latent function ------------------------------------------------------------------------


class _Weights(NamedTuple):
    """The parts of dot(Phi, sign * weight) + bias."""

    Phi: Variable
    width: Variable | None
    weight: Variable
    shape: tuple[int, ...]
    sign: Array | None
    bias: Variable | None


def _weights(model: pm.Model, latent: Variable) -> _Weights:
    """Return the parts of the latent function."""
    each, free = terms(latent), set(model.free_RVs)
    inner = next(x for x in each if product(x))
    others = [x for x in each if x is not inner]
    if len(others) > 1 or any(product(x) for x in others):
        raise ValueError(
            f"what the likelihood takes has {len(each)} terms, of {made_of(each)}; that is no row of FAMILY. "
            f"Needed dot(Phi, weight) + bias alone, {NUTS}"
        )
    Phi, weight = product(inner)  # type: ignore[misc]
    if not random_parts(weight) and random_parts(Phi):  # dot(weight, Phi.T)
        Phi, weight = weight.T, Phi
    sign, size = _signed(weight)
    parts = random_parts(size)
    bias = others[0] if others else None
    unfree = [x for x in (*(parts or [size]), bias) if x is not None and x not in free]
    if unfree:
        raise ValueError(
            f"weights and bias are moved together; found not free {made_of(unfree)}. Needed free "
            f"variables, each a term or factor by itself in dot(Phi, sign * weight) + bias; {NUTS}"
        )
    shape = shape_of(size) if is_random(size) else np.shape(numbers(size, _ones(parts)))
    return _Weights(Phi, free_width(Phi, free), size, shape, sign, bias)


def _ones(variables: list[Variable]) -> dict[Variable, Any]:
    return {each: np.ones(shape_of(each)) for each in variables}


def _signed(weight: Variable) -> tuple[Array | None, Variable]:
    """Return signs and sizes of signed weights; None and the weights themselves where they are free."""
    weight = peeled(weight)
    if is_random(weight):
        return None, weight
    both = [peeled(x) for x in weight.owner.inputs] if len(factors(weight)) > 1 else []
    known = [x for x in both if not random_parts(x)]
    if len(known) != 1 or len(both) != 2:
        return None, weight
    sign = np.asarray(numbers(known[0]), dtype=float)
    if not np.isin(sign, (-1.0, 1.0)).all():
        raise ValueError(
            f"sizes of weights are multiplied by {np.unique(sign)[:5]}; needed signs, -1 and +1, {NUTS}"
        )
    return sign, both[1] if both[0] is known[0] else both[0]


# --- problems -----------------------------------------------------------------------------------


def _problem(model: pm.Model, parts: Parts) -> Problem:
    """Return the problem at the model's data."""
    label = _labels(model, parts)
    width, moves = known_width(model), None
    if parts.width is None:
        Phi = numbers(parts.Phi)
    else:
        moves = width_moves(parts.Phi, parts.width)
        width = np.clip(numbers(support_point(parts.width)), *moves.bounds)[()] * 1.0
        Phi = moves.basis(width)
    if len(Phi) != len(label):
        raise ValueError(
            f"the model's basis functions have {len(Phi)} rows and its labels {len(label)}; "
            "set both in one pm.set_data, see new_data(model, X_new, y_new)"
        )
    n_basis = shape_of(parts.weight)[0] if is_random(parts.weight) else Phi.shape[1]
    if n_basis != Phi.shape[1] or (parts.sign is not None and len(parts.sign) != n_basis):
        raise ValueError(
            f"the model has {Phi.shape[1]} basis functions, {n_basis} weights and "
            f"{'no' if parts.sign is None else len(parts.sign)} signs; set all in one pm.set_data"
        )
    return Problem(
        Phi,
        label,
        parts.sign,
        parts.hyperprior,
        parts.likelihood,
        parts.bias_kind,
        isinstance(parts.hyperprior, SharedHyperprior),
        width,
        moves,
    )


def _labels(model: pm.Model, parts: Parts) -> NDArray[Any]:
    """Return what was observed, labels as -1. and +1."""
    value = numbers(model.rvs_to_values[parts.observed])
    if parts.likelihood.targets == "numbers":
        return value.astype(float)
    classes = np.arange(max(parts.likelihood.n_scores, 2))
    if not np.isin(value, classes).all():
        raise ValueError(
            f"{parts.observed.name!r} has the values {np.unique(value)[:5].tolist()}; needed 0 to "
            f"{classes[-1]}"
        )
    return 2.0 * value - 1.0 if parts.likelihood.targets == "labels" else value.astype(np.int64)
