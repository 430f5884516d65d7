"""A fitted model of few vectors as an ONNX graph in double precision."""

import json
from collections.abc import Mapping
from functools import partialmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.encoding import UNIT, UNKNOWN
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import shown
from pcvm_pymc.export.few_vectors import FewVectors, few_vectors_of

_OPSET = 17
_LARGEST = float(np.finfo(float).max)
_MIDPOINTS = 0.5 * np.arange(0.5, 13.0)  # of the midpoint rule of step .5 for erfc, 16 digits
_NODES = 0.125 * np.arange(-72, 73)  # of the trapezoid rule over a standard normal


def _exponential(s: Any) -> Any:
    """Return exp(-s): where s > 746 zero, not 1e-308 as in some runtimes, enough to choose a class."""
    return s.op("Greater", 746.0).op("Where", 0.0, (s * -1.0).op("Exp"))


#: by the name of the kernel: g(s) as a node
_ONNX_PROFILES: dict[str, Any] = {"rbf": _exponential, "laplacian": _exponential}


def to_onnx(model: Any, *, return_std: bool = False) -> Any:
    """Return a fitted model of few vectors as an ONNX model.

    Parameters
    ----------
    model : fitted classifier or RVMRegressor, Pipeline, search or TransformedTargetRegressor
        As for `to_c`: scalers of a pipeline become part of the graph.
    return_std : bool
        Of a regression also the standard deviation, as for `to_c`.

    Returns
    -------
    onnx.ModelProto
        Input ``X``, doubles of shape (n_rows, n_features): NaN where a feature is missing, and a category by
        the code of its level, as for `to_c`. Of categories ``metadata_props`` has ``levels``, in JSON: by the
        number of each its levels, in the order of their codes. Outputs of a classifier are ``label``, the
        likeliest class, and ``probabilities``, doubles of shape (n_rows, n_classes) in the order of
        ``classes_``; those of a regression ``variable``, the mean, and with `return_std` ``std``, doubles of
        shape (n_rows, 1). Write it by ``onnx.save(to_onnx(model), "model.onnx")``.

    Raises
    ------
    ImportError
        Without ``onnx`` (the extra ``pcvm-pymc[onnx]``).
    ValueError
        As for `to_c`, or if the classes are neither numbers of at most 64 bits nor words.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import PCVMClassifier
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> few = PCVMClassifier(width=1.0, n_vectors=2).fit(X, X[:, 0] > 0)
    >>> [each.name for each in to_onnx(few).graph.output]
    ['label', 'probabilities']
    """
    try:
        from onnx import TensorProto, checker, helper
    except ImportError:
        raise ImportError('to_onnx needs onnx: pip install "pcvm-pymc[onnx]"') from None

    few = few_vectors_of(model, return_std)
    start = _Node([], [], "X")
    mean, variance = _latent(start, few)
    info, double = helper.make_tensor_value_info, TensorProto.DOUBLE
    if few.classes is None:
        ends = {"variable": mean}
        if variance is not None:
            ends["std"] = (variance + few.likelihood.variance).op("Sqrt")
        outputs = [info(name, double, [None, 1]) for name in ends]
    else:
        if variance is not None:  # moved towards zero by its variance
            mean = mean / (variance * few.likelihood.spread + 1.0).op("Sqrt")
        if len(few.weight) == 1:
            mean = (mean * -1.0).op("Concat", mean, axis=1)
        probability, classes = _probability(mean, few), _labels(few.classes)
        # probabilities may be equal by rounding
        label = mean.constant(classes).op("Gather", mean.op("ArgMax", axis=1, keepdims=0))
        ends = {"label": label, "probabilities": probability}
        outputs = [
            info("label", helper.np_dtype_to_tensor_dtype(classes.dtype), [None]),
            info("probabilities", double, [None, len(classes)]),
        ]
    named = [helper.make_node("Identity", [node.name], [name]) for name, node in ends.items()]
    inputs = [info("X", double, [None, len(few.origin)])]
    graph = helper.make_graph(start.nodes + named, "pcvm_pymc", inputs, outputs, start.constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    if few.levels:
        levels = {str(j): each.tolist() for j, each in few.levels.items()}
        helper.set_model_props(made, {"levels": json.dumps(levels, default=str)})
    checker.check_model(made)
    return made


def _labels(classes: NDArray[Any]) -> NDArray[Any]:
    """Return classes in a type of ONNX: flags, whole numbers, doubles, or words."""
    plain = np.array(classes.tolist()) if classes.dtype == object else classes
    kind = {"b": bool, "i": np.int64, "u": np.int64, "f": float}.get(plain.dtype.kind)
    found = plain.astype(str).astype(object) if kind is None else plain.astype(kind)
    if plain.dtype.kind not in "biufU" or found.tolist() != classes.tolist():
        raise ValueError(
            f"classes_={shown(classes.tolist())}; needed words, or numbers of at most 64 bits: "
            "encode them before the fit, as by LabelEncoder"
        )
    return found


class _Node:
    """The output of an ONNX node: arithmetic with it appends nodes to the graph."""

    def __init__(self, nodes: list[Any], constants: list[Any], name: str) -> None:
        self.nodes, self.constants, self.name = nodes, constants, name

    def op(self, kind: str, *others: Any, **attributes: Any) -> "_Node":
        """Return the output of an operation on this one and others."""
        from onnx import helper

        given = [each if isinstance(each, _Node) else self.constant(each) for each in others]
        name = f"n{len(self.nodes)}"
        inputs = [each.name for each in (self, *given)]
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return _Node(self.nodes, self.constants, name)

    def constant(self, value: Any) -> "_Node":
        """Return a constant; numbers are doubles."""
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value), name))
        return _Node(self.nodes, self.constants, name)

    __add__ = partialmethod(op, "Add")
    __sub__ = partialmethod(op, "Sub")
    __mul__ = partialmethod(op, "Mul")
    __truediv__ = partialmethod(op, "Div")
    __matmul__ = partialmethod(op, "MatMul")


def _latent(x: _Node, few: FewVectors) -> tuple[_Node, _Node | None]:
    """Return latent values, shape (n_rows, n_scores), and their variance, shape (n_rows, 1)."""
    from onnx import numpy_helper

    if len(few.centres):
        phi = _basis(x, few)
    else:  # the constant alone: not every runtime has empty arrays
        rows = x.op("Shape", end=1).op("Concat", [1], axis=0)
        phi = rows.op("ConstantOfShape", value=numpy_helper.from_array(np.ones(1)))
    latent = phi @ few.weight.T
    if few.covariance is None:
        return latent, None
    variance = ((phi @ few.covariance) * phi).op("ReduceSum", [1], keepdims=1)
    return latent, variance.op("Max", 0.0)


def _basis(x: _Node, few: FewVectors) -> _Node:
    """Return the basis functions of the centres and the constant, shape (n_rows, n_centres + 1).

    Differences are taken before they are squared: products of matrices lose digits far from zero.
    """
    columns = (x - few.origin) if few.encoding is None else _encoded(x - few.origin, **few.columns)
    columns = _ranked(columns, few.ranks, few.centres.shape[1]) if few.ranks else columns
    scaled = (columns.op("Unsqueeze", [1]) - few.centres) / few.width
    terms = scaled.op("Abs") if few.kernel.order == 1 else scaled * scaled
    distance = terms.op("ReduceSum", [2], keepdims=0)
    return _ONNX_PROFILES[few.kernel.name](distance).op("Pad", [0, 0, 0, 1], 1.0)


def _encoded(
    x: _Node, feature: NDArray[Any], is_number: NDArray[Any], level: Array, median: Array
) -> _Node:
    """Return the columns of an encoding, shape (n_rows, n_columns), of features less their origin."""
    value = x.op("Gather", feature, axis=1)
    is_missing = value.op("IsNaN")
    is_here = value.op("Equal", level).op("Or", is_missing.op("And", np.isnan(level)))
    # whether the level is that of any column of the feature
    together = 1.0 * (feature[:, None] == feature)
    is_unknown = (is_here.op("Where", 1.0, 0.0) @ together).op("Equal", 0.0)
    indicator = is_here.op("Or", is_unknown.op("And", level == UNKNOWN)).op("Where", UNIT, 0.0)
    return x.constant(is_number).op("Where", is_missing.op("Where", median, value), indicator)


def _ranked(columns: _Node, ranks: Mapping[int, tuple[Array, Array]], n_columns: int) -> _Node:
    """Return columns of which some become ranks: sums of pieces that are constant outside their knots."""
    found = columns
    for k, (knots, scores) in ranks.items():
        low, high = np.r_[-_LARGEST, knots[1:-1]], np.r_[knots[1:-1], _LARGEST]
        slope = np.diff(scores) / np.diff(knots)
        piece = columns.op("Gather", [k], axis=1).op("Max", low).op("Min", high) - knots[:-1]
        score = (piece * slope).op("ReduceSum", [1], keepdims=1) + scores[0]
        found = found.constant(np.arange(n_columns) == k).op("Where", score, found)
    return found


def _probability(latent: _Node, few: FewVectors) -> _Node:
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


def _normal_cdf(z: _Node) -> _Node:
    """Return Phi(z): ONNX' Erf is of single precision in most runtimes."""
    tail, _ = _tail(z)
    return z.op("Greater", 0.0).op("Where", tail * -1.0 + 1.0, tail)


def _log_normal_cdf(z: _Node) -> _Node:
    """Return log Phi(z), also where Phi(z) is zero in double precision."""
    _, log_tail = _tail(z)
    return z.op("Less", -9.0).op("Where", log_tail, _normal_cdf(z).op("Log"))


def _tail(z: _Node) -> tuple[_Node, _Node]:
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


def _several(latent: _Node, n_classes: int) -> _Node:
    """Return the multinomial probit's probabilities by the trapezoid rule over the own class' noise."""
    own = latent.op("Unsqueeze", [2])  # (n_rows, own, 1)
    product = latent.constant(0.125 * np.exp(-0.5 * _NODES**2) / np.sqrt(2.0 * np.pi))
    for j in range(n_classes):
        other = _normal_cdf(own - own.op("Gather", [j], axis=1) + _NODES)  # (n_rows, own, n_nodes)
        is_other = latent.constant((np.arange(n_classes) != j)[:, None])
        product = product * is_other.op("Where", other, 1.0)
    return product.op("ReduceSum", [2], keepdims=0)
