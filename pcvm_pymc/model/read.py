"""One reader: the pieces of a model, recognised by the operations of its variables, never by their names."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from threading import Lock
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.distribution import support_point
from pytensor import scalar
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import BernoulliRV, NormalRV, StudentTRV

from pcvm_pymc.core.em.widths import FeatureWidthMoves, WidthMoves
from pcvm_pymc.core.family import check_solver
from pcvm_pymc.core.pieces.likelihoods import LIKELIHOODS, Likelihood
from pcvm_pymc.core.pieces.priors import Prior, SharedHyperprior
from pcvm_pymc.core.pieces.probit import Array, ndtr
from pcvm_pymc.core.pieces.row_weights import observed_rows
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.model import graphs
from pcvm_pymc.model.distributions import ProbitBernoulliRV
from pcvm_pymc.model.multinomial import MultinomialProbitRV
from pcvm_pymc.model.priors import NUTS, weight_prior, with_bias
from pcvm_pymc.model.weighted import WeightedNormalRV, WeightedStudentTRV


def read(model: pm.Model, solver: str | None = None) -> Problem:
    """Return the problem of a model, as solvers and samplers take it.

    Parameters
    ----------
    model : pm.Model
        From a builder, transformed from one by `pm.do` or `pm.observe`, or made by hand of the same
        operations: what its variables are called does not matter.
    solver : {"em", "evidence", "bottom-up", "gibbs"}, optional
        For what it is read. EM and Gibbs may move the width of an RBF, for EM an unknown scale is put where
        `Problem.for_mode` has it; the evidence is maximised over precisions, whether the model has them
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
    """The pieces of a model of the family, with the variables that they were recognised from.

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
    sample_weight, noise_std : TensorVariable or None
        How often each row counts, and the standard deviation of its noise where each has its own; the
        likelihood's is then NaN.
    precisions, scales, nuisances : tuple of TensorVariable
        Explicit precisions, scales of a half-horseshoe, unknown parameters of the likelihood.
    parameters : mapping of str to TensorVariable
        Of the likelihood, by their names in it: numbers, variables, or expressions of variables.
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
    sample_weight: Variable | None = None
    noise_std: Variable | None = None
    precisions: tuple[Variable, ...] = ()
    scales: tuple[Variable, ...] = ()
    nuisances: tuple[Variable, ...] = ()
    parameters: Mapping[str, Variable] = field(default_factory=dict)

    def foreign(self, model: pm.Model) -> list[str]:
        """Return the names of what else is in the model."""
        known = {self.observed, self.weight, self.bias, self.width, self.rate}
        known |= {*self.precisions, *self.scales, *self.nuisances}
        random = [*model.free_RVs, *model.observed_RVs, *model.potentials]
        return sorted(str(each.name) for each in random if each not in known)


def find_parts(model: pm.Model) -> Parts:
    """Return the pieces of the one latent function of the family in a model; other terms may be there too.

    Raises
    ------
    ValueError
        If there is none: what was found, and what is needed.
    """
    observed, name, latent, parameters = _observed(model)
    Phi, size, sign, bias = _latent_parts(model, latent)
    unknown = graphs.random_parts(Phi)
    outside = set(unknown) - set(model.free_RVs)
    if len(unknown) > 1 or outside or any(x.type.ndim > 1 for x in unknown):
        raise _not_an_rbf(unknown)
    prior, positive, variables = weight_prior(size)
    prior, bias_kind, bias_precision = with_bias(prior, bias)
    variables["precisions"] = (*variables.get("precisions", ()), *bias_precision)
    shape = graphs.shape_of(size)
    n_scores = shape[1] if len(shape) == 2 else 1
    sample_weight, noise_std = parameters.pop("weight", None), None
    if name == "normal" and _is_of_rows(parameters["noise"]):
        noise_std, parameters["noise"] = parameters["noise"], pt.constant(np.nan)
    values: dict[str, Any] = {  # NaN where unknown
        key: np.nan if graphs.random_parts(x) else graphs.number(x, f"{key} of the likelihood")
        for key, x in parameters.items()
    }
    if name == "multinomial probit":
        values = {"n_classes": n_scores}
    likelihood = LIKELIHOODS[name](**values)
    if likelihood.n_scores != n_scores:
        raise ValueError(
            f"{observed.name!r} under {name!r} has {likelihood.n_scores} score(s), and the weights have "
            f"shape {shape}"
        )
    if positive and sign is None:  # sizes without signs are weights that are all positive
        sign = np.ones(shape)
    inner, given = graphs.random_parts(latent), observed.owner.op.dist_params(observed.owner)
    if not positive and sign is not None:
        raise ValueError(
            f"{size.name!r} is unconstrained, and is multiplied by signs; needed a size, which "
            f"MarginalWeight declares, {NUTS}"
        )
    return Parts(
        observed=observed,
        likelihood=likelihood,
        hyperprior=prior,
        Phi=Phi,
        sign=sign,
        weight=size,
        bias=bias,
        bias_kind=bias_kind,
        width=unknown[0] if unknown else None,
        sample_weight=sample_weight,
        noise_std=noise_std,
        nuisances=tuple(x for each in given for x in graphs.random_parts(each) if x not in inner),
        parameters=parameters,
        **variables,
    )


def without_data(sign: Array | None, prior: Prior, likelihood: Likelihood, bias: Any) -> Problem:
    """Return a problem without data, to find the rows of `FAMILY` that have its pieces."""
    Phi = np.empty((0, 0 if sign is None else len(sign)))
    shared = isinstance(prior, SharedHyperprior)
    return Problem(Phi, np.empty(0), sign, prior, likelihood, bias, shared)


def warn_if_counted_twice(model: pm.Model) -> None:
    """Warn where two observed variables have the same values given the same free variables."""
    if len(model.observed_RVs) < 2:
        return
    free = set(model.free_RVs)
    known = [
        (rv.name, graphs.numbers(model.rvs_to_values[rv]), free & set(ancestors([rv])))
        for rv in model.observed_RVs
    ]
    for (one, values, given), (other, others, also_given) in combinations(known, 2):
        if given & also_given and values.size > 1 and np.array_equal(values, others):
            warnings.warn(
                f"{one!r} and {other!r} observe the same data given the same variables: the data count "
                "twice. Where one of them is a builder's, build with pcvm_latent(X, y, ...), which has no "
                "likelihood",
                UserWarning,
                stacklevel=4,
            )


# --- likelihoods --------------------------------------------------------------------------------


# an observed variable: its likelihood's name, latent expression, and parameters
type _Observed = tuple[Variable, str, Variable, dict[str, Variable]]


def _observed(model: pm.Model) -> _Observed:
    """Return the one observed variable of a known likelihood whose latent function has a basis."""
    candidates = filter(None, map(_likelihood, model.observed_RVs))
    ours = [each for each in candidates if _has_basis(each[2])]
    if len(ours) == 1:
        return ours[0]
    found = ", ".join(f"{rv.name!r} ({graphs.called(rv)})" for rv in model.observed_RVs) or "none"
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


def _is_of_rows(noise: Variable) -> bool:
    """Whether a noise is known, and each row has its own."""
    return not (all(noise.type.broadcastable) or graphs.random_parts(noise))


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
    noisy = None
    if name == "logit" or (name == "normal" and not _has_basis(latent)):
        noisy = _flipped_probit(latent)
    if noisy is not None:
        latent, flip = noisy
        if name == "logit":
            name, parameters = "label noise", {"flip": flip}
        else:
            name = "normal-probability"
    elif name == "logit":
        link = graphs.peeled(latent)
        if not graphs.applies(link, scalar.Sigmoid):
            return None
        latent = link.owner.inputs[0]
    return rv, name, latent, parameters


def _flipped_probit(p: Variable) -> tuple[Variable, Variable] | None:
    """Return x and flip of ``flip + (1 - 2 flip) Phi(x)``; None where an expression is another."""
    found = [x.owner.inputs[0] for x in ancestors([p]) if graphs.applies(x, scalar.Erfc)]
    inner = [x for each in found for x in graphs.factors(each) if graphs.random_parts(x)]
    if len(inner) != 1:
        return None

    def at(x: Any) -> Variable:
        return clone_replace(p, {inner[0]: pt.as_tensor(x)}, rebuild_strict=False)

    points = np.array([-40.0, -1.0, 0.3, 2.0])
    expression = at(points)
    value = graphs.numbers(expression, dict.fromkeys(graphs.random_parts(expression), 0.07))
    if not np.allclose(value, value[0] + (1 - 2 * value[0]) * ndtr(points), rtol=1e-12):
        return None
    return inner[0], at(points[:1])


# --- the latent function ------------------------------------------------------------------------


def _latent_parts(
    model: pm.Model, latent: Variable
) -> tuple[Variable, Variable, Array | None, Variable | None]:
    """Return Phi, weights or their sizes, signs, and bias of dot(Phi, sign * weight) + bias."""
    each, free = graphs.terms(latent), set(model.free_RVs)
    inner = next(x for x in each if graphs.product(x))
    others = [x for x in each if x is not inner]
    if len(others) > 1 or any(graphs.product(x) for x in others):
        raise ValueError(
            f"what the likelihood takes has {len(each)} terms, of {graphs.made_of(each)}; that is no row of "
            f"FAMILY. Needed dot(Phi, weight) + bias alone, {NUTS}"
        )
    Phi, weight = graphs.product(inner)  # type: ignore[misc]
    if not graphs.random_parts(weight) and graphs.random_parts(Phi):  # dot(weight, Phi.T)
        Phi, weight = weight.T, Phi
    sign, size = signed(graphs.peeled(weight))
    bias = others[0] if others else None
    moved = [*(graphs.random_parts(size) or [size]), *others]
    unfree = [x for x in moved if x not in free]
    if unfree:
        raise ValueError(
            f"weights and bias are moved together; found not free {graphs.made_of(unfree)}. Needed free "
            f"variables, each a term or factor by itself in dot(Phi, sign * weight) + bias; {NUTS}"
        )
    return Phi, size, sign, bias


def signed(weight: Variable) -> tuple[Array | None, Variable]:
    """Return signs and sizes of signed weights; None and the weights themselves where they are free."""
    if graphs.is_random(weight) or len(graphs.factors(weight)) < 2:
        return None, weight
    both = [graphs.peeled(x) for x in weight.owner.inputs]
    known = [x for x in both if not graphs.random_parts(x)]
    if len(known) != 1 or len(both) != 2:
        return None, weight
    sign = np.asarray(graphs.numbers(known[0]), dtype=float)
    if not np.isin(sign, (-1.0, 1.0)).all():
        raise ValueError(
            f"sizes of weights are multiplied by {np.unique(sign)[:5]}; needed signs, -1 and +1, {NUTS}"
        )
    return sign, both[1] if both[0] is known[0] else both[0]


# --- an unknown width ---------------------------------------------------------------------------


def _not_an_rbf(unknown: list[Variable]) -> ValueError:
    return ValueError(
        f"the basis functions depend on {sorted(str(x.name) for x in unknown)} in another way than an RBF, "
        "exp(-squared_distance / width**2), or a Laplacian, exp(-distance / width), on its width; needed one "
        f"of these, or a kernel without unknowns, {NUTS}"
    )


def _width_moves(Phi: Variable, width: Variable) -> WidthMoves:
    """Return how EM moves a kernel's width: between the smallest and the largest distance of its centres.

    Of the distances between rows and centres, where not every centre is a row.
    """
    basis, n = graphs.peeled(Phi), graphs.shape_of(width)
    if not graphs.applies(basis, scalar.Exp):
        raise _not_an_rbf([width])

    def divided(at: Any) -> Array:
        return -graphs.numbers(basis.owner.inputs[0], {width: at})

    if n:  # of each feature, the other widths infinite
        distance = np.stack([divided(alone) for alone in np.where(np.eye(n[0]) > 0, 1.0, np.inf)])
    else:
        distance = divided(1.0)
    at = np.linspace(0.7, 1.9, n[0]) if n else 1.7
    found, orders = divided(at), []
    for order in (2, 1):
        wanted = np.tensordot(at ** -float(order), distance, len(n))
        if (distance >= 0).all() and np.allclose(found, wanted, rtol=1e-12, atol=0):
            orders.append(order)
    if not orders:
        raise _not_an_rbf([width])
    total = distance.sum(axis=0) if n else distance
    between = total[total.argmin(axis=0)] if (total.min(axis=0) == 0).all() else total
    apart = between[between > 0] ** (1.0 / orders[0])
    bounds = (float(apart.min()), float(apart.max())) if apart.size else (1.0, 1.0)
    value = width.type()
    # evaluated at every move: one fused operation takes a third of the time of the graph as it is, and needs
    # no compiler, which would take longer than a chain
    with pytensor.config.change_flags(cxx=""):
        density = pm.compile([value], pm.logp(width, value).sum(), mode=Mode("py", "fast_run"))
    turn = Lock()  # chains run in threads, and a compiled function has one place for its input

    def prior(at: Any) -> float:
        with turn:
            return float(density(at))

    if n:  # a feature may be of no use: its width is large
        return FeatureWidthMoves(distance, (bounds[0], 100.0 * bounds[1]), prior, orders[0])
    return WidthMoves(distance, bounds, prior, orders[0])


# --- problems -----------------------------------------------------------------------------------


def _problem(model: pm.Model, parts: Parts) -> Problem:
    """Return the problem at the model's data."""
    label, moves = _labels(model, parts), None
    if parts.width is None:
        known = (graphs.numbers(each)[()] for each in model.data_vars if each.name == "width")
        width = next(known, np.nan) * 1.0
        Phi = graphs.numbers(parts.Phi)
    else:
        inside = set(ancestors([parts.Phi]))
        if any(x in inside and x.type.ndim < 2 for x in model.deterministics):
            raise _not_an_rbf([parts.width])  # which the width is made of
        moves = _width_moves(parts.Phi, parts.width)
        width = np.clip(graphs.numbers(support_point(parts.width)), *moves.bounds)[()] * 1.0
        Phi = moves.basis(width)
    if len(Phi) != len(label):
        raise ValueError(
            f"the model's basis functions have {len(Phi)} rows and its labels {len(label)}; "
            "set both in one pm.set_data, see new_data(model, X_new)"
        )
    n_basis = graphs.shape_of(parts.weight)[0]
    if n_basis != Phi.shape[1] or (parts.sign is not None and len(parts.sign) != n_basis):
        raise ValueError(
            f"the model has {Phi.shape[1]} basis functions, {n_basis} weights and "
            f"{'no' if parts.sign is None else len(parts.sign)} signs; set all in one pm.set_data"
        )
    given = (parts.sample_weight, parts.noise_std)
    rows = (None if x is None else np.broadcast_to(graphs.numbers(x), len(Phi)) for x in given)
    likelihood, label = observed_rows(parts.likelihood, label, *rows)
    return Problem(
        Phi,
        label,
        parts.sign,
        parts.hyperprior,
        likelihood,
        parts.bias_kind,
        isinstance(parts.hyperprior, SharedHyperprior),
        width,
        moves,
    )


def _labels(model: pm.Model, parts: Parts) -> NDArray[Any]:
    """Return what was observed, labels as -1. and +1."""
    value = graphs.numbers(model.rvs_to_values[parts.observed])
    if parts.likelihood.targets == "numbers":
        return value.astype(float)
    classes = np.arange(max(parts.likelihood.n_scores, 2))
    if not np.isin(value, classes).all():
        raise ValueError(
            f"{parts.observed.name!r} has the values {np.unique(value)[:5].tolist()}; needed 0 to "
            f"{classes[-1]}"
        )
    return 2.0 * value - 1.0 if parts.likelihood.targets == "labels" else value.astype(np.int64)
