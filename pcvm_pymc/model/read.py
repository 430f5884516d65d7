"""One reader: the pieces of a model, recognised by the operations of its variables, never by their names."""

import warnings
from dataclasses import replace
from itertools import combinations
from threading import Lock
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pymc.distributions.distribution import support_point
from pytensor import scalar
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pcvm_pymc.core.em.widths import FeatureWidthMoves, WidthMoves
from pcvm_pymc.core.family import check_solver, systems_of
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import ObservedRows, Problem
from pcvm_pymc.model import graphs
from pcvm_pymc.model.parts import NotOfFamilyError, Parts, find_parts, not_an_rbf, without_data
from pcvm_pymc.model.priors import NUTS


def read(model: pm.Model, solver: str | None = None, parts: Parts | None = None) -> Problem:
    """Return the problem of a model, as solvers and samplers take it.

    Parameters
    ----------
    model : pm.Model
        From a builder, transformed from one by `pm.do` or `pm.observe`, or made by hand of the same
        operations: what its variables are called does not matter.
    solver : {"em", "evidence", "bottom-up", "sampling"}, optional
        For what it is read. EM and samplers may move the width of an RBF; the evidence is maximised over
        precisions, whether the model has them or not.
    parts : Parts, optional
        Of the model, where they were found already.

    Returns
    -------
    Problem

    Raises
    ------
    ValueError
        If there is something in the model that would not be seen, or the solver does not take its
        pieces: what was found, what is needed, and what can take the model.
    """
    parts = find_parts(model) if parts is None else parts
    foreign = parts.foreign(model)
    if foreign:
        moved = sorted(rv.name for rv in (parts.weight, parts.bias) if rv is not None and rv.name)
        raise NotOfFamilyError(
            f"found extra terms {foreign}; needed {moved} given {parts.observed.name!r} alone. Leave them "
            f"out, use pymc_extras.find_MAP, {NUTS}"
        )
    if solver == "em":
        pieces = without_data(*parts.pieces).given()
        if "likelihood_name" in model.named_vars:  # a row's builder declares it
            check_solver(pieces, solver)
        elif not any(solver in row.solvers for row in systems_of(pieces)):
            raise NotOfFamilyError("the model is of no row of FAMILY that EM takes")
    if parts.precisions and solver != "evidence":
        names = [rv.name for rv in parts.precisions]
        raise ValueError(f"explicit precisions {names}; needed precision='marginal', {NUTS}")
    if parts.width is not None and solver not in (None, "em", "sampling"):
        fault = f"the kernel's width is a random variable, {parts.width.name!r}"
        raise ValueError(f"{fault}, which {solver!r} does not move; needed a number, {NUTS}")
    taken = ("noise", "evidence"), ("noise", "sampling")
    unknown = {k: x.name for k, x in parts.nuisances.items() if (k, solver) not in taken}
    if unknown and solver is not None:
        found = f"{[*unknown.values()]} ({', '.join(unknown)} of the likelihood) is unknown"
        raise NotOfFamilyError(
            f"{found}, which {solver!r} does not move; needed a number, find_map_em, {NUTS}"
        )
    problem = _problem(model, parts)
    if solver not in (None, "sampling"):
        check_solver(problem.given() if solver == "em" else problem, solver)
    return problem


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
                "twice; needed one: in place of a builder pcvm_latent(X, y, ...), which has no likelihood",
                UserWarning,
                stacklevel=4,
            )


# --- an unknown width ---------------------------------------------------------------------------


def _width_moves(Phi: Variable, width: Variable) -> WidthMoves:
    """Return how EM moves a kernel's width: between the smallest and the largest distance of its centres.

    Of the distances between rows and centres, where not every centre is a row.
    """
    basis, n = graphs.peeled(Phi), graphs.shape_of(width)
    if not graphs.applies(basis, scalar.Exp):
        raise not_an_rbf([width])

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
        raise not_an_rbf([width])
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
        known = [x for x in parts.data[2:] if x in model.data_vars]
        width = graphs.numbers(known[0])[()] * 1.0 if known else np.nan
        Phi = graphs.numbers(parts.Phi)
    else:
        if parts.made_width(model) is not None:
            raise not_an_rbf([parts.width])
        moves = _width_moves(parts.Phi, parts.width)
        width = np.clip(graphs.numbers(support_point(parts.width)), *moves.bounds)[()] * 1.0
        Phi = moves.basis(width)
    if len(Phi) != len(label):
        raise ValueError(
            f"the model's basis functions have {len(Phi)} rows and its labels {len(label)}; set both in one "
            "pm.set_data, see new_data(model, X_new)"
        )
    n_basis = graphs.shape_of(parts.weight)[0]
    n_signs = n_basis if parts.sign is None else len(parts.sign)
    if not n_basis == Phi.shape[1] == n_signs:
        fault = f"{Phi.shape[1]} basis functions, {n_basis} weights and {n_signs} signs, if any"
        raise ValueError(f"the model has {fault}; set all in one pm.set_data")
    given = (parts.sample_weight, parts.noise_std)
    rows = (None if x is None else np.broadcast_to(graphs.numbers(x), len(Phi)) for x in given)
    seen = ObservedRows.of(parts.likelihood, label, *rows)
    bare = replace(without_data(*parts.pieces), likelihood=seen.likelihood, row_weight=seen.weight)
    return replace(bare, Phi=Phi, label=label, width=width, moves=moves)


def _labels(model: pm.Model, parts: Parts) -> NDArray[Any]:
    """Return what was observed, labels as -1. and +1."""
    value = graphs.numbers(model.rvs_to_values[parts.observed])
    if parts.likelihood.targets == "numbers":
        return value.astype(float)
    classes = np.arange(max(parts.likelihood.n_scores, 2))
    if not np.isin(value, classes).all():
        found = f"{parts.observed.name!r} has the values {np.unique(value)[:5].tolist()}"
        raise ValueError(f"{found}; needed 0 to {classes[-1]}")
    return 2.0 * value - 1.0 if parts.likelihood.targets == "labels" else value.astype(np.int64)
