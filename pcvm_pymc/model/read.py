"""The one reading of a PyMC model, by the operations of its variables, never by their names."""

import warnings
from dataclasses import dataclass, replace
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
from pcvm_pymc.model.data import as_model
from pcvm_pymc.model.graphs import NotOfFamilyError
from pcvm_pymc.model.parts import Parts, find_parts, not_an_rbf
from pcvm_pymc.model.priors import NUTS


@dataclass(frozen=True, eq=False)
class Reading:
    """A PyMC model with its pieces and its problem, or why it is of no row of `FAMILY`.

    Solvers, samplers and what packs their results take this object: none reads the model again.

    Attributes
    ----------
    model : pm.Model
    parts : Parts or None
        None where the model has not one latent function of the family under one of its likelihoods.
    extra : list of str
        Names of the random variables and potentials that are no parts.
    problem : Problem or None
        At the model's data. None without parts, with extra terms, and where the basis functions depend on an
        unknown as no kernel of the family does on its width.
    fault : str
        Why there is no problem: what was found, and what is needed.
    """

    model: pm.Model
    parts: Any
    extra: list[str]
    problem: Any
    fault: str

    @property
    def is_declared(self) -> bool:
        """Whether a builder declared the likelihood: the name of one is among the model's data."""
        return "likelihood_name" in self.model.named_vars

    def unseen(self, solver: str) -> str:
        """Return why a solver would leave out terms of the model; empty where it takes all.

        Parameters
        ----------
        solver : {"em", "evidence", "bottom-up", "sampling"}
        """
        if self.parts is None or self.extra:
            return self.fault
        solvers = {name for row in systems_of(self.parts.pieces) for name in row.solvers}
        if solver == "em" and solver not in solvers:
            # what a builder declares is refused by `problem_for`
            return "" if self.is_declared else "the model is of no row of FAMILY that EM takes"
        moved = ("noise",) if solver in ("evidence", "sampling") else ()
        unknown = {key: x.name for key, x in self.parts.nuisances.items() if key not in moved}
        if unknown:
            names = f"{[*unknown.values()]} ({', '.join(unknown)} of the likelihood)"
            needed = f"needed a number, find_map_em, {NUTS}"
            return f"{names} is unknown, which {solver!r} does not move; {needed}"
        return self.fault

    def refusal(self, solver: str) -> str:
        """Return why a solver cannot take the model, whatever its pieces are; empty where it can."""
        parts = self.parts
        if parts is not None and parts.precisions and solver != "evidence":
            names = [rv.name for rv in parts.precisions]
            return f"explicit precisions {names}; needed precision='marginal', {NUTS}"
        if parts is not None and parts.width is not None and solver not in ("em", "sampling"):
            fault = f"the kernel's width is a random variable, {parts.width.name!r}"
            return f"{fault}, which {solver!r} does not move; needed a number, {NUTS}"
        return self.unseen(solver)

    def problem_for(self, solver: str) -> Problem:
        """Return the problem that a solver takes.

        Parameters
        ----------
        solver : {"em", "evidence", "bottom-up", "sampling"}
            EM and samplers may move the width of an RBF; the evidence is maximised over precisions, whether
            the model has them or not.

        Raises
        ------
        ValueError
            If there is something in the model that would not be seen, or the solver does not take its
            pieces: what was found, what is needed, and what can take the model.
        """
        if self.parts is not None and solver != "sampling":
            pieces = self.parts.pieces
            check_solver(pieces.given() if solver == "em" else pieces, solver)
        if refusal := self.refusal(solver):
            raise NotOfFamilyError(refusal)
        problem: Problem = self.problem
        return problem


def read(model: pm.Model | None = None) -> Reading:
    """Read the pieces and the problem of a PyMC model.

    Parameters
    ----------
    model : pm.Model, optional
        From a builder, transformed from one by `pm.do` or `pm.observe`, or made by hand of the same
        operations: what its variables are called does not matter. Default: the one on the context stack.

    Raises
    ------
    TypeError
        If it is no model, or there is none.
    ValueError
        If its data do not fit each other: what was found, and what is needed.

    Warns
    -----
    UserWarning
        If two observed variables have the same values given the same free variables.
    """
    model = as_model(model)
    warn_if_counted_twice(model)
    parts, extra, problem, fault = None, list[str](), None, ""
    try:
        parts = find_parts(model)
        extra = parts.extra(model)
        problem = _problem(model, parts, extra)
    except NotOfFamilyError as error:
        fault = str(error)
    return Reading(model, parts, extra, problem, fault)


def warn_if_counted_twice(model: pm.Model) -> None:
    """Warn where two observed variables have the same values given the same free variables."""
    free = set(model.free_RVs)
    for rv, other in combinations(model.observed_RVs, 2):
        values, others = (graphs.numbers(model.rvs_to_values[x]) for x in (rv, other))
        shared = free & set(ancestors([rv])) & set(ancestors([other]))
        if shared and values.size > 1 and np.array_equal(values, others):
            warnings.warn(
                f"{rv.name!r} and {other.name!r} observe the same data given the same variables: the data "
                "count twice; needed one: in place of a builder pcvm_latent(X, y, ...), which has no "
                "likelihood",
                UserWarning,
                stacklevel=4,
            )


# --- an unknown width ---------------------------------------------------------------------------


def _width_moves(Phi: Variable, width: Variable) -> WidthMoves:
    """Return the basis functions as a function of an unknown width, its bounds and its log density.

    Bounds are the smallest and the largest distance of the centres; of rows and centres, where not every
    centre is a row.
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
    exponent, orders = divided(at), []
    for order in (2, 1):
        wanted = np.tensordot(at ** -float(order), distance, len(n))
        if (distance >= 0).all() and np.allclose(exponent, wanted, rtol=1e-12, atol=0):
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


def _problem(model: pm.Model, parts: Parts, extra: list[str]) -> Problem:
    """Return the problem at the model's data."""
    if extra:
        moved = sorted(rv.name for rv in (parts.weight, parts.bias) if rv is not None and rv.name)
        raise NotOfFamilyError(
            f"found extra terms {extra}; needed {moved} given {parts.observed.name!r} alone. Leave them out, "
            f"use pymc_extras.find_MAP, {NUTS}"
        )
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
    bare = replace(parts.pieces, likelihood=seen.likelihood, row_weight=seen.weight)
    return replace(bare, Phi=Phi, label=label, width=width, moves=moves)


def _labels(model: pm.Model, parts: Parts) -> NDArray[Any]:
    """Return the observed targets, labels of two classes as -1. and +1."""
    value = graphs.numbers(model.rvs_to_values[parts.observed])
    if parts.likelihood.targets == "numbers":
        return value.astype(float)
    classes = np.arange(max(parts.likelihood.n_scores, 2))
    if not np.isin(value, classes).all():
        fault = f"{parts.observed.name!r} has the values {np.unique(value)[:5].tolist()}"
        raise ValueError(f"{fault}; needed 0 to {classes[-1]}")
    return 2.0 * value - 1.0 if parts.likelihood.targets == "labels" else value.astype(np.int64)
