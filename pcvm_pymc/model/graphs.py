"""Reading PyTensor graphs: terms, factors and random variables of an expression, and its values."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytensor
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor import scalar
from pytensor.compile import SharedVariable, ViewOp
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import io_toposort, walk
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import SpecifyShape

from pcvm_pymc.core.pieces.probit import Array


class NotOfFamilyError(ValueError):
    """A model is of no row of `FAMILY`, or has more in it than the solvers of a row would see."""


def applies(x: Variable, operation: Any) -> bool:
    """Whether an expression is the result of an operation on each element."""
    op = None if x.owner is None else x.owner.op
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, operation)


def peeled(x: Variable) -> Variable:
    """Return an expression without names, casts and added or dropped dimensions around it."""
    op = None if x.owner is None else x.owner.op
    bare = applies(x, scalar.Identity | scalar.Cast) or isinstance(op, ViewOp | SpecifyShape)
    if isinstance(op, DimShuffle):
        kept = [axis for axis in op.new_order if axis != "x"]
        bare = kept == sorted(kept)
    return peeled(x.owner.inputs[0]) if bare else x


def _operands(x: Variable, operation: type[scalar.ScalarOp]) -> list[Variable]:
    """Return the operands of nested sums or products; else the expression alone."""
    x = peeled(x)
    if not applies(x, operation):
        return [x]
    return [part for operand in x.owner.inputs for part in _operands(operand, operation)]


#: the terms of a sum, and the factors of a product, element by element
terms = partial(_operands, operation=scalar.Add)
factors = partial(_operands, operation=scalar.Mul)


def product(x: Variable) -> tuple[Variable, Variable] | None:
    """Return both sides of a matrix product; None where the expression is none."""
    x = peeled(x)
    op = None if x.owner is None else x.owner.op
    if isinstance(op, Blockwise):
        op = op.core_op
    return tuple(x.owner.inputs) if isinstance(op, Dot) else None


def is_random(x: Variable) -> bool:
    """Whether a variable is the outcome of a distribution."""
    return x.owner is not None and isinstance(x.owner.op, RandomVariable | SymbolicRandomVariable)


def described(*variables: Variable) -> str:
    """Return the names of random variables with those of their distributions."""
    laws = [getattr(x.owner.op, "_print_name", (type(x.owner.op).__name__,))[0] for x in variables]
    both = zip(variables, laws, strict=True)
    return ", ".join(f"{x.name!r} ({law})" for x, law in both) or "none"


def random_parts(x: Variable) -> list[Variable]:
    """Return the random variables that an expression depends on directly, each once."""
    every = walk([x], lambda v: [] if is_random(v) or not v.owner else v.owner.inputs, bfs=False)
    return [variable for variable in every if is_random(variable)]


def made_of(expressions: Iterable[Variable]) -> str:
    """Return the names of the random variables that each expression is or depends on directly.

    Of an expression without any its own name.
    """
    names = (sorted(str(part.name) for part in random_parts(x) or [x]) for x in expressions)
    return ", ".join(map(str, names))


def numbers(x: Variable, given: Mapping[Variable, Any] | None = None) -> Array:
    """Return an expression's value, at given values of the random variables in it."""
    at = {k: np.asarray(v, dtype=k.dtype) for k, v in (given or {}).items()}
    with np.errstate(all="ignore"):
        try:
            return np.array(_evaluated(x, at))  # not a view of the model's data
        except NotImplementedError:
            function = pytensor.function(list(at), x, mode="FAST_COMPILE", on_unused_input="ignore")
            return np.asarray(function(*at.values()))


def _evaluated(x: Variable, given: Mapping[Variable, Any]) -> Any:
    """Evaluate a graph once, node by node, which is ten times faster than to compile it.

    Not of operations in place, nor of those that decide themselves which of their inputs are computed.
    """
    value = dict(given)
    for node in io_toposort(list(value), [x]):
        if node.op.destroy_map:
            raise NotImplementedError(f"{node.op} overwrites what it is given")
        stored: list[list[Any]] = [[None] for _ in node.outputs]
        node.op.prepare_node(node, None, None, "py")  # else NumPy divides whole numbers as such
        node.op.perform(node, [_value(operand, value) for operand in node.inputs], stored)
        value |= zip(node.outputs, (result for (result,) in stored), strict=True)
    return _value(x, value)


def _value(x: Variable, value: Mapping[Variable, Any]) -> Any:
    """Return the value of a variable: computed, constant or shared."""
    if isinstance(x, Constant):
        return x.data
    return x.get_value(borrow=True) if isinstance(x, SharedVariable) else value[x]


def number(x: Variable, what: str) -> float:
    """Return an expression's value as a number; raise unless all its elements are equal."""
    values = np.unique(numbers(x))
    if len(values) != 1:
        raise NotOfFamilyError(
            f"{what} has {len(values)} values; needed one for all, or sample by NUTS"
        )
    return float(values[0])


def shape_of(x: Variable) -> tuple[int, ...]:
    """Return the shape of an expression without draws, which improper distributions refuse."""
    if not is_random(x):
        return np.shape(numbers(x, {part: np.ones(shape_of(part)) for part in random_parts(x)}))
    op, node = x.owner.op, x.owner
    size = op.size_param(node)
    if size is None or (isinstance(size, Constant) and size.data is None):
        return tuple(int(n) for n in numbers(x.shape))
    batch = tuple(int(n) for n in np.atleast_1d(numbers(size)))
    if op.ndim_supp == 0:
        return batch
    return (*batch[: x.type.ndim - op.ndim_supp], int(number(op.dist_params(node)[-1], "n_scores")))
