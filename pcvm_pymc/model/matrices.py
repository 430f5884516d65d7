"""The design matrix as an operation of rows, centres and width, cached at the training data."""

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import (
    get_numba_type,
    numba_njit,
    register_funcify_and_cache_key,
)
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.pieces.kernels import RBF, KernelPiece, as_width
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.model.graphs import numbers


class Matrix(Op):
    """A NumPy function of rows, centres and width as an operation, cached at the training data.

    Samplers evaluate a model at the same data many thousand times: the value is compared for, and taken. It
    has no derivative: data are no variables. For JAX data are constants, and so is this.

    Parameters
    ----------
    function : callable
        Of rows, centres and width.
    """

    view_map = {0: [6]}  # noqa: RUF012

    def __init__(self, function: Callable[[Array, Array, Any], Array]) -> None:
        self.function = function

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node of rows, centres, width, their values at training, and the matrix there."""
        every = [pt.as_tensor(value) for value in inputs]
        return Apply(self, every, [pt.tensor(dtype="float64", shape=(None,) * every[-1].ndim)])

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        """Return the shape without computing the matrix."""
        return [(*shapes[6][:-2], shapes[0][0], shapes[1][0])]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: list[list[Any]]) -> None:
        """Evaluate in Python."""
        same = all(map(np.array_equal, inputs[:3], inputs[3:6]))
        output_storage[0][0] = inputs[6] if same else self.elsewhere(*inputs[:3])

    def elsewhere(self, X: Array, centres: Array, width: Any) -> Array:
        """Return the matrix at other data."""
        return np.ascontiguousarray(self.function(X, centres, width[()]), dtype=float)


@register_funcify_and_cache_key(Matrix)
def _in_numba(op: Matrix, node: Apply, **kwargs: Any) -> tuple[Callable[..., Any], Any]:
    """Return the operation in numba; Python is called only at other data than those of training."""
    kind, elsewhere = get_numba_type(node.outputs[0].type), op.elsewhere
    piece = next(iter(getattr(op.function, "args", ())), None)
    if type(piece) is RBF:
        return _rbf_in_numba(node.inputs[2].ndim == 0)

    @numba_njit
    def compiled(X, centres, width, X0, centres0, width0, known):  # type: ignore[no-untyped-def]  # noqa: PLR0917
        if _are_same(X, centres, width, X0, centres0, width0):
            return known
        with numba.objmode(out=kind):
            out = elsewhere(X, centres, width)
        return out

    return compiled, None


@numba_njit
def _are_same(X, centres, width, X0, centres0, width0):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    if X.shape != X0.shape or centres.shape != centres0.shape:
        return False
    return (X == X0).all() and (centres == centres0).all() and np.all(width == width0)


def _rbf_in_numba(one_width: bool) -> tuple[Callable[..., Any], str]:
    """Return the operation in numba for the RBF, without Python, so that numba can cache it."""

    @numba_njit
    def compiled(X, centres, width, X0, centres0, width0, known):  # type: ignore[no-untyped-def]  # noqa: PLR0917
        if _are_same(X, centres, width, X0, centres0, width0):
            return known
        out = np.empty((len(X), len(centres)))
        for i in range(len(X)):
            for j in range(len(centres)):
                total = 0.0
                for k in range(X.shape[1]):
                    scale = width.item() if one_width else width[k]
                    total += ((X[i, k] - centres[j, k]) / scale) ** 2
                out[i, j] = np.exp(-total)
        return out

    return compiled, f"{Matrix.__name__} rbf {one_width}"


def at_width(piece: KernelPiece, X: Array, centres: Array, width: Any) -> Array:
    """Return a kernel's basis functions at a width, which is one where it has none."""
    return piece.with_width(as_width(width))(X, centres)


def matrix(
    function: Callable[[Array, Array, Any], Array], *data: Variable
) -> tuple[TensorVariable, Array]:
    """Return a matrix by a function of a model's rows, centres and width, and its value."""
    known = [numbers(values) for values in data]
    value: Array = np.ascontiguousarray(function(known[0], known[1], known[2][()]), dtype=float)
    return Matrix(function)(*data, *known, value), value
