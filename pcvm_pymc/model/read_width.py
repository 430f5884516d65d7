"""Reading an unknown width: the RBF it is of, and how EM and Gibbs move it."""

from threading import Lock
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Exp
from pytensor.tensor.elemwise import Elemwise

from pcvm_pymc.core.em.widths import FeatureRBFMoves, ScalarRBFMoves
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.model.graphs import numbers, peeled, random_parts, shape_of
from pcvm_pymc.model.read_priors import NUTS


def free_width(Phi: Variable, free: set[Variable]) -> Variable | None:
    """Return the unknown width of an RBF; raise where basis functions are unknown in another way."""
    unknown = random_parts(Phi)
    if not unknown:
        return None
    if len(unknown) == 1 and unknown[0] in free and unknown[0].type.ndim <= 1:
        exponent = _exponent(Phi)
        if exponent is not None:
            squared = _squared_distances(exponent, unknown[0])
            at = np.linspace(0.7, 1.9, shape_of(unknown[0])[0]) if unknown[0].type.ndim else 1.7
            wanted = np.tensordot(at**-2.0, squared, np.ndim(at))
            once = -numbers(exponent, {unknown[0]: at})
            if (squared >= 0).all() and np.allclose(once, wanted, rtol=1e-12, atol=0):
                return unknown[0]
    raise ValueError(
        f"the basis functions depend on {sorted(str(x.name) for x in unknown)} in another way than an RBF, "
        f"exp(-squared_distance / width**2), on its width; needed that, or a kernel without unknowns, {NUTS}"
    )


def width_moves(Phi: Variable, width: Variable) -> ScalarRBFMoves:
    """Return how EM moves an RBF's width: between the smallest and the largest distance of its centres.

    Of the distances between rows and centres, where not every centre is a row.
    """
    exponent = _exponent(Phi)
    assert exponent is not None
    squared = _squared_distances(exponent, width)
    several = squared.ndim > 2
    whole = squared.sum(axis=0) if several else squared
    nearest = whole.argmin(axis=0)
    between = whole[nearest] if (whole.min(axis=0) == 0).all() else whole
    apart = np.sqrt(between[between > 0])
    bounds = (float(apart.min()), float(apart.max())) if apart.size else (1.0, 1.0)
    value = width.type()
    # called for every move: one fused operation takes a third of the time of the graph as it is, and needs no
    # compiler, which would take longer than a chain
    with pytensor.config.change_flags(cxx=""):
        density = pm.compile([value], pm.logp(width, value).sum(), mode=Mode("py", "fast_run"))
    # chains run in threads, and a compiled function has one place for what it is given
    turn = Lock()

    def prior(at: Any) -> float:
        with turn:
            return float(density(at))

    if several:  # a feature may be of no use: its width is large
        return FeatureRBFMoves(squared, (bounds[0], 100.0 * bounds[1]), prior)
    return ScalarRBFMoves(squared, bounds, prior)


def _squared_distances(exponent: Variable, width: Variable) -> Array:
    """Return what is divided by the squared width; one matrix for each of several, the others infinite."""
    if width.type.ndim == 0:
        return -numbers(exponent, {width: 1.0})
    each = np.where(np.eye(shape_of(width)[0]) > 0, 1.0, np.inf)
    return -np.stack([numbers(exponent, {width: alone}) for alone in each])


def _exponent(Phi: Variable) -> Variable | None:
    Phi = peeled(Phi)
    op = Phi.owner and Phi.owner.op
    return (
        Phi.owner.inputs[0] if isinstance(op, Elemwise) and isinstance(op.scalar_op, Exp) else None
    )
