"""A fitted model of few vectors as an ONNX graph in double precision."""

from collections.abc import Mapping
from functools import partialmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.encoding import UNIT
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.export.few_vectors import FewVectors

OPSET = 17  # and later ones: these operations did not change
_LARGEST = float(np.finfo(float).max)
_MIDPOINTS = 0.5 * np.arange(0.5, 13.0)  # of the midpoint rule of step .5 for erfc, 16 digits
_NODES = 0.125 * np.arange(-72, 73)  # of the trapezoid rule over a standard normal


def _exponential(s: Any) -> Any:
    """Return exp(-s): where s > 746 zero, not 1e-308 as in some runtimes, enough to choose a class."""
    return s.op("Greater", 746.0).op("Where", 0.0, (s * -1.0).op("Exp"))


#: by the name of the kernel: g(s) as a node
_ONNX_PROFILES: dict[str, Any] = {"rbf": _exponential, "laplacian": _exponential}


class Node:
    """A tensor of a graph that skl2onnx makes: arithmetic with it appends nodes.

    Attributes
    ----------
    scope, container : Scope and ModelComponentContainer of skl2onnx
    name : str
    """

    def __init__(self, scope: Any, container: Any, name: str) -> None:
        self.scope, self.container, self.name = scope, container, name

    def op(self, kind: str, *others: Any, **attributes: Any) -> "Node":
        """Append an operation on this tensor and others; return its output."""
        given = [x if isinstance(x, Node) else self.constant(x) for x in others]
        inputs, name = [node.name for node in (self, *given)], self._new_name(kind)
        self.container.add_node(kind, inputs, name, name=name, **attributes)
        return Node(self.scope, self.container, name)

    def constant(self, value: Any) -> "Node":
        """Return a constant; numbers are doubles."""
        from onnx import helper

        value, name = np.array(value), self._new_name("constant")
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        self.container.add_initializer(name, kind, value.shape, value.ravel().tolist())
        return Node(self.scope, self.container, name)

    def _new_name(self, kind: str) -> str:
        return self.scope.get_unique_variable_name(f"pcvm_{kind}")

    __add__ = partialmethod(op, "Add")
    __sub__ = partialmethod(op, "Sub")
    __mul__ = partialmethod(op, "Mul")
    __truediv__ = partialmethod(op, "Div")
    __matmul__ = partialmethod(op, "MatMul")


def predictions(x: Node, few: FewVectors) -> list[Node]:
    """Return what a model predicts, for doubles of shape (n_rows, n_features).

    These are label and class probabilities; of a regression the mean, and with a covariance the standard
    deviation.
    """
    mean, variance = _latent(x, few)
    if few.classes is None:
        if variance is None:
            return [mean]
        return [mean, (variance + few.likelihood.variance).op("Sqrt")]
    if variance is not None:  # moved towards zero by its variance
        mean = mean / (variance * few.likelihood.spread + 1.0).op("Sqrt")
    if len(few.weight) == 1:
        mean = (mean * -1.0).op("Concat", mean, axis=1)
    # probabilities may be equal by rounding
    likeliest = mean.op("ArgMax", axis=1, keepdims=0)
    label = mean.constant(few.classes).op("Gather", likeliest)
    return [label, _probability(mean, few)]


def _latent(x: Node, few: FewVectors) -> tuple[Node, Node | None]:
    """Return latent values, shape (n_rows, n_scores), and their variance, shape (n_rows, 1)."""
    if len(few.centres):
        phi = _basis(x, few)
    else:  # the constant alone: not every runtime has empty arrays
        phi = x.op("Gather", [0], axis=1).op("IsNaN").op("Where", 1.0, 1.0)
    latent = phi @ few.weight.T
    if few.covariance is None:
        return latent, None
    variance = ((phi @ few.covariance) * phi).op("ReduceSum", [1], keepdims=1)
    return latent, variance.op("Max", 0.0)


def _basis(x: Node, few: FewVectors) -> Node:
    """Return the basis functions of the centres and the constant, shape (n_rows, n_centres + 1).

    Differences are taken before they are squared: products of matrices lose digits far from zero.
    """
    columns = _encoded(x, few.columns) if few.columns else x
    columns = _ranked(columns, few.ranks, few.centres.shape[1]) if few.ranks else columns
    scaled = (columns.op("Unsqueeze", [1]) - few.centres) / few.width
    terms = scaled.op("Abs") if few.kernel.order == 1 else scaled * scaled
    distance = terms.op("ReduceSum", [2], keepdims=0)
    return _ONNX_PROFILES[few.kernel.name](distance).op("Pad", [0, 0, 0, 1], 1.0)


def _encoded(x: Node, columns: Mapping[str, NDArray[Any]]) -> Node:
    """Return the columns of an encoding, shape (n_rows, n_columns)."""
    feature, is_number, level, median = columns.values()
    value = x.op("Gather", feature, axis=1)
    is_missing = value.op("IsNaN")
    is_here = value.op("Equal", level).op("Or", is_missing.op("And", np.isnan(level)))
    # whether the level is that of any column of the feature
    together = 1.0 * (feature[:, None] == feature)
    is_none = (is_here.op("Where", 1.0, 0.0) @ together).op("Equal", 0.0)
    indicator = is_here.op("Or", is_none.op("And", np.isinf(level))).op("Where", UNIT, 0.0)
    return x.constant(is_number).op("Where", is_missing.op("Where", median, value), indicator)


def _ranked(columns: Node, ranks: Mapping[int, tuple[Array, Array]], n_columns: int) -> Node:
    """Return the columns with some mapped to ranks, by a piecewise linear function of knots and scores."""
    ranked = columns
    for k, (knots, scores) in ranks.items():
        low, high = np.r_[-_LARGEST, knots[1:-1]], np.r_[knots[1:-1], _LARGEST]
        slope = np.diff(scores) / np.diff(knots)
        piece = columns.op("Gather", [k], axis=1).op("Max", low).op("Min", high) - knots[:-1]
        score = (piece * slope).op("ReduceSum", [1], keepdims=1) + scores[0]
        ranked = ranked.constant(np.arange(n_columns) == k).op("Where", score, ranked)
    return ranked


def _probability(latent: Node, few: FewVectors) -> Node:
    """Return class probabilities, shape (n_rows, n_classes), of a latent value for each class."""
    if few.likelihood.name == "multinomial probit":
        probability = _several(latent, len(few.weight))
    elif few.likelihood.name == "probit" and len(few.weight) > 1:  # all may say no
        return _log_normal_cdf(latent).op("Softmax", axis=1)
    elif few.likelihood.name == "logit":
        probability = ((latent * -1.0).op("Exp") + 1.0).op("Reciprocal")
    else:
        flip = getattr(few.likelihood, "flip", 0.0)
        probability = _normal_cdf(latent) * (1.0 - 2.0 * flip) + flip
    return probability / probability.op("ReduceSum", [1], keepdims=1)


def _normal_cdf(z: Node) -> Node:
    """Return Phi(z): ONNX' Erf is of single precision in most runtimes."""
    tail, _ = _tail(z)
    return z.op("Greater", 0.0).op("Where", tail * -1.0 + 1.0, tail)


def _log_normal_cdf(z: Node) -> Node:
    """Return log Phi(z), also where Phi(z) is zero in double precision."""
    _, log_tail = _tail(z)
    return z.op("Less", -9.0).op("Where", log_tail, _normal_cdf(z).op("Log"))


def _tail(z: Node) -> tuple[Node, Node]:
    """Return Phi(-|z|), and its logarithm for |z| > 9.

    erfc by the midpoint rule, with the residue of the pole (D. Hunter and T. Regan 1972, "A note on the
    evaluation of the complementary error function", Mathematics of Computation 26).
    """
    x = z.op("Abs").op("Min", 1e140) * np.sqrt(0.5)
    square = x * x
    total = x * 0.0
    for t in _MIDPOINTS:
        total = total + (square + t**2).op("Reciprocal") * np.exp(-(t**2))
    scaled = total * x * (0.5 / np.pi)
    residue = x.op("Less", 2.0 * np.pi).op("Where", (x * (-4.0 * np.pi)).op("Sigmoid"), 0.0)
    return scaled * (square * -1.0).op("Exp") + residue, scaled.op("Log") - square


def _several(latent: Node, n_classes: int) -> Node:
    """Return the multinomial probit's probabilities by the trapezoid rule over the own class' noise."""
    own = latent.op("Unsqueeze", [2])  # (n_rows, own, 1)
    product = latent.constant(0.125 * np.exp(-0.5 * _NODES**2) / np.sqrt(2.0 * np.pi))
    for j in range(n_classes):
        other = _normal_cdf(own - own.op("Gather", [j], axis=1) + _NODES)  # (n_rows, own, n_nodes)
        is_other = latent.constant((np.arange(n_classes) != j)[:, None])
        product = product * is_other.op("Where", other, 1.0)
    return product.op("ReduceSum", [2], keepdims=0)
