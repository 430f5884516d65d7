"""Likelihood, basis functions, weights and bias of a model, recognised by their operations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import scalar
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import BernoulliRV, NormalRV, StudentTRV

from pcvm_pymc.core.pieces.centres import rows_under
from pcvm_pymc.core.pieces.likelihoods import LIKELIHOODS, Likelihood
from pcvm_pymc.core.pieces.priors import Prior, SharedHyperprior
from pcvm_pymc.core.pieces.probit import Array, ndtr
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.quadratic import Index
from pcvm_pymc.model import graphs
from pcvm_pymc.model.distributions import ProbitBernoulliRV
from pcvm_pymc.model.graphs import NotOfFamilyError
from pcvm_pymc.model.matrices import Matrix
from pcvm_pymc.model.multinomial import MultinomialProbitRV
from pcvm_pymc.model.priors import NUTS, weight_prior, with_bias
from pcvm_pymc.model.weighted import WeightedNormalRV, WeightedStudentTRV


@dataclass(frozen=True)
class Parts:
    """The pieces of a model of the family, with the variables that they were recognised from.

    Attributes
    ----------
    observed : TensorVariable
        The labels or targets.
    latent : TensorVariable
        What the likelihood takes.
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
    signed_weight : TensorVariable
        Sizes times signs; the same as `weight` where there are none.
    bias : TensorVariable or None
    bias_kind : {"prior", "free", "none"}
    width : TensorVariable or None
        Where it is unknown.
    rate : TensorVariable or None
        Where d is unknown.
    sample_weight, noise_std : TensorVariable or None
        How often each row counts, and the standard deviation of its noise where each has its own; the
        likelihood's is then NaN.
    precisions, scales : tuple of TensorVariable
        Explicit precisions, scales of a half-horseshoe.
    nuisances : mapping of str to TensorVariable
        Unknown parameters of the likelihood, by their names in it: each is one free scalar.
    """

    observed: Variable
    latent: Variable
    likelihood: Likelihood
    hyperprior: Prior
    Phi: Variable
    sign: Array | None
    weight: Variable
    signed_weight: Variable
    bias: Variable | None
    bias_kind: Any
    width: Variable | None = None
    rate: Variable | None = None
    sample_weight: Variable | None = None
    noise_std: Variable | None = None
    precisions: tuple[Variable, ...] = ()
    scales: tuple[Variable, ...] = ()
    nuisances: Mapping[str, Variable] = field(default_factory=dict)

    @property
    def pieces(self) -> Problem:
        """The problem without its data, which is of the same rows of `FAMILY`."""
        return without_data(self.sign, self.hyperprior, self.likelihood, self.bias_kind)

    @property
    def data(self) -> list[Variable]:
        """Inputs of a builder's basis functions: rows, centres and width; empty for other basis functions."""
        nodes = (x.owner for x in ancestors([self.Phi]) if x.owner is not None)
        return next((node.inputs[:3] for node in nodes if isinstance(node.op, Matrix)), [])

    def basis_row(self, problem: Problem) -> Index:
        """Return the row that each basis function is centred on, -1 for none, shape (n_basis,).

        Of basis functions that were made by hand, as many as rows, each is its row's.
        """
        if self.data:
            return rows_under(*(graphs.numbers(x) for x in self.data[1::-1]))
        n_obs, n_basis = problem.Phi.shape
        return np.arange(n_basis) if n_obs == n_basis else np.full(n_basis, -1)

    def made_width(self, model: pm.Model) -> Variable | None:
        """Return the deterministic of a width that is an expression of variables; else None."""
        inside = set(ancestors([self.Phi]))
        made = [x for x in model.deterministics if x in inside and x.type.ndim < 2]
        return made[-1] if made else None  # the last one is made of the others

    def extra(self, model: pm.Model) -> list[str]:
        """Return the names of further random variables and potentials in the model."""
        known = {self.observed, self.weight, self.bias, self.width, self.rate}
        known |= {*self.precisions, *self.scales, *self.nuisances.values()}
        others = [*model.free_RVs, *model.observed_RVs, *model.potentials]
        return sorted(str(rv.name) for rv in others if rv not in known)


def find_parts(model: pm.Model) -> Parts:
    """Find the pieces of a model with one latent function of the family; it may have further terms.

    Raises
    ------
    NotOfFamilyError
        If there is none: what was found, and what is needed.
    """
    observed, name, latent, parameters = _observed(model)
    Phi, size, sign, weight, bias = _latent_parts(model, latent)
    unknown = graphs.random_parts(Phi)
    outside = set(unknown) - set(model.free_RVs)
    if len(unknown) > 1 or outside or any(x.type.ndim > 1 for x in unknown):
        raise not_an_rbf(unknown)
    prior, sign, variables = weight_prior(size, sign)
    prior, bias_kind, bias_precision = with_bias(prior, bias)
    variables["precisions"] = (*variables.get("precisions", ()), *bias_precision)
    shape = graphs.shape_of(size)
    n_scores = shape[1] if len(shape) == 2 else 1
    sample_weight, noise_std = parameters.pop("weight", None), None
    noise: Any = parameters.get("noise")
    # known, and each row has its own
    if name == "normal" and not (all(noise.type.broadcastable) or graphs.random_parts(noise)):
        noise_std, parameters["noise"] = noise, pt.constant(np.nan)
    values: dict[str, Any] = {"n_classes": n_scores} if name == "multinomial probit" else {}
    nuisances, inside = {}, set(ancestors([latent]))
    for key, x in parameters.items():
        if unknown_number := graphs.random_parts(x):
            nuisances[key], values[key] = _scalar(x, key, unknown_number, model, inside), np.nan
        else:
            values[key] = graphs.number(x, f"{key} of the likelihood")
    likelihood = LIKELIHOODS[name](**values)
    if likelihood.n_scores != n_scores:
        fault = f"{observed.name!r} under {name!r} has {likelihood.n_scores} score(s)"
        raise NotOfFamilyError(f"{fault}, and the weights have shape {shape}")
    variables |= {"sample_weight": sample_weight, "noise_std": noise_std, "nuisances": nuisances}
    variables["width"] = unknown[0] if unknown else None
    known = (observed, latent, likelihood, prior, Phi, sign, size, weight, bias, bias_kind)
    return Parts(*known, **variables)


def _scalar(
    x: Variable, key: str, unknown: list[Variable], model: pm.Model, latent: set[Variable]
) -> Variable:
    """Return the free scalar that a likelihood's parameter is, of the unknowns in it.

    Raises
    ------
    NotOfFamilyError
        If it is anything else, which no solver of the family would see.
    """
    rv, names = unknown[0], [str(variable.name) for variable in unknown]
    alone = len(names) == 1 and rv.type.ndim == 0 and rv in model.free_RVs and rv not in latent
    if alone and all((graphs.numbers(x, {rv: at}) == at).all() for at in (0.3, 0.07)):
        return rv
    raise NotOfFamilyError(
        f"{key} of the likelihood depends on {names} and is not one free scalar alone; needed that, a number "
        f"or data, or find_map_em, which takes any expression, {NUTS}"
    )


def not_an_rbf(unknown: list[Variable]) -> NotOfFamilyError:
    """Return the error for basis functions whose unknowns are not the width of an RBF or Laplacian."""
    return NotOfFamilyError(
        f"the basis functions depend on {sorted(str(x.name) for x in unknown)} in another way than an RBF or "
        f"a Laplacian on its width; needed one of these, or a kernel without unknowns, {NUTS}"
    )


def without_data(sign: Array | None, prior: Prior, likelihood: Likelihood, bias: Any) -> Problem:
    """Return a problem without data, to find the rows of `FAMILY` that have its pieces."""
    Phi = np.empty((0, 0 if sign is None else len(sign)))
    shared = isinstance(prior, SharedHyperprior)
    return Problem(Phi, np.empty(0), sign, prior, likelihood, bias, shared)


# --- likelihoods --------------------------------------------------------------------------------


# an observed variable: its likelihood's name, latent expression, and parameters
type _Observed = tuple[Variable, str, Variable, dict[str, Variable]]


def _observed(model: pm.Model) -> _Observed:
    """Return the one observed variable of a known likelihood whose latent function has a basis."""
    candidates = filter(None, map(_likelihood, model.observed_RVs))
    ours = [candidate for candidate in candidates if _has_basis(candidate[2])]
    if len(ours) == 1:
        return ours[0]
    laws = graphs.described(*model.observed_RVs)
    if ours:
        raise NotOfFamilyError(
            f"the model has {len(ours)} likelihoods of latent functions: {laws}; needed one: for another "
            f"than a builder's own take pcvm_latent(X, y, ...), {NUTS}"
        )
    raise NotOfFamilyError(
        "the model lacks an observed variable of dot(Phi, weight) + bias under a likelihood of the family; "
        f"found {laws}. Needed a model such as pcvm_model(X, y, ...) builds, {NUTS}"
    )


def _has_basis(latent: Variable) -> bool:
    return any(map(graphs.product, graphs.terms(latent)))


#: by the operation of the observed variable: its likelihood, and what the parameters are
_OPERATIONS = {
    ProbitBernoulliRV: ("probit", "latent"),
    MultinomialProbitRV: ("multinomial probit", "latent"),
    BernoulliRV: ("logit", "latent"),
    NormalRV: ("normal", "latent", "noise"),
    StudentTRV: ("student-t", "degrees", "latent", "noise"),
    WeightedNormalRV: ("normal", "latent", "noise", "weight"),
    WeightedStudentTRV: ("student-t", "degrees", "latent", "noise", "weight"),
}


def _likelihood(rv: Variable) -> _Observed | None:
    """Return the likelihood of an observed variable; None if it is not of the family."""
    op = rv.owner.op
    if type(op) not in _OPERATIONS:
        return None
    name, *names = _OPERATIONS[type(op)]
    parameters = dict(zip(names, op.dist_params(rv.owner), strict=True))
    latent = parameters.pop("latent")
    link = graphs.peeled(latent)
    if name == "logit" and graphs.applies(link, scalar.Sigmoid):
        latent = link.owner.inputs[0]
    elif name == "logit" or (name == "normal" and not _has_basis(latent)):
        noisy = _flipped_probit(latent)
        if noisy is None:
            return None
        latent, flip = noisy
        if name == "normal" and (graphs.random_parts(flip) or graphs.numbers(flip).any()):
            return None
        flipped = ("label noise", {"flip": flip})
        name, parameters = flipped if name == "logit" else ("normal-probability", parameters)
    return rv, name, latent, parameters


def _flipped_probit(p: Variable) -> tuple[Variable, Variable] | None:
    """Return x and flip of ``flip + (1 - 2 flip) Phi(x)``; None where an expression is another."""
    tails = [x.owner.inputs[0] for x in ancestors([p]) if graphs.applies(x, scalar.Erfc)]
    inner = [x for tail in tails for x in graphs.factors(tail) if graphs.random_parts(x)]
    if len(inner) != 1:
        return None
    latent, shape = inner[0].type(), graphs.shape_of(inner[0])
    (expression,) = graph_replace([p], {inner[0]: latent})
    given = {rv: np.full(graphs.shape_of(rv), 0.07) for rv in graphs.random_parts(expression)}

    at = [{**given, latent: np.full(shape, point)} for point in (-40.0, -1.0, 0.3, 2.0)]
    flip, *computed = (graphs.numbers(expression, values) for values in at)
    wanted = [flip + (1 - 2 * flip) * ndtr(values[latent]) for values in at[1:]]
    if not np.allclose(computed, wanted, rtol=1e-12):
        return None
    lowest = latent.type.filter_variable(pt.constant(at[0][latent]))
    return inner[0], graph_replace([expression], {latent: lowest})[0]


# --- the latent function ------------------------------------------------------------------------


def _latent_parts(
    model: pm.Model, latent: Variable
) -> tuple[Variable, Variable, Array | None, Variable, Variable | None]:
    """Return Phi, weights or sizes, signs, their product, and bias of dot(Phi, sign * weight) + bias."""
    terms, free = graphs.terms(latent), set(model.free_RVs)
    inner = next(x for x in terms if graphs.product(x))
    others = [x for x in terms if x is not inner]
    if len(others) > 1 or any(graphs.product(x) for x in others):
        fault = f"the likelihood takes {len(terms)} terms, of {graphs.made_of(terms)}"
        raise NotOfFamilyError(f"{fault}; needed dot(Phi, weight) + bias alone, {NUTS}")
    Phi, weight = graphs.product(inner)  # type: ignore[misc]
    if not graphs.random_parts(weight) and graphs.random_parts(Phi):  # dot(weight, Phi.T)
        Phi, weight = weight.T, Phi
    sign, size = signed(graphs.peeled(weight))
    bias = others[0] if others else None
    moved = [*(graphs.random_parts(size) or [size]), *others]
    unfree = [x for x in moved if x not in free]
    if unfree:
        raise NotOfFamilyError(
            f"found not free {graphs.made_of(unfree)}; needed free variables, each by itself a term or "
            f"factor in dot(Phi, sign * weight) + bias, {NUTS}"
        )
    return Phi, size, sign, weight, bias


def signed(weight: Variable) -> tuple[Array | None, Variable]:
    """Return signs and sizes of signed weights; None and the weights themselves where they are free."""
    both = weight.owner.inputs if graphs.applies(weight, scalar.Mul) else []
    both = [graphs.peeled(x) for x in both]
    known = [x for x in both if not graphs.random_parts(x)]
    if len(known) != 1 or len(both) != 2:
        return None, weight
    sign = np.asarray(graphs.numbers(known[0]), dtype=float)
    if not np.isin(sign, (-1.0, 1.0)).all():
        raise NotOfFamilyError(
            f"sizes are times {np.unique(sign)[:5]}; needed signs, -1 and +1, {NUTS}"
        )
    return sign, both[1] if both[0] is known[0] else both[0]
