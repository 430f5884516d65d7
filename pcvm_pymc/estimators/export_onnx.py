"""A classifier of few vectors as an ONNX graph, in double precision."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.estimators.export_c import FewVectors, few_vectors_of

_OPSET = 17
# G. West (2005), "Better approximations to cumulative normal functions", after Hart: 15 digits
_NUMERATOR = (
    3.52624965998911e-02,
    0.700383064443688,
    6.37396220353165,
    33.912866078383,
    112.079291497871,
    221.213596169931,
    220.206867912376,
)
_DENOMINATOR = (
    8.83883476483184e-02,
    1.75566716318264,
    16.064177579207,
    86.7807322029461,
    296.564248779674,
    637.333633378831,
    793.826512519948,
    440.413735824752,
)
_FAR = 7.07106781186547
_NODES = 0.125 * np.arange(-72, 73)  # of the trapezoid rule over a standard normal


#: by the name of the kernel: g(s), s = ||x - z||^2 / width^2, as a node
_PROFILES: dict[str, Any] = {"rbf": lambda square: (square * -1.0).op("Exp")}


def to_onnx(model: Any) -> Any:
    """Return a fitted classifier of few vectors as an ONNX model.

    Parameters
    ----------
    model : fitted classifier, or Pipeline
        As for `to_c`: scalers of a pipeline become part of the graph.

    Returns
    -------
    onnx.ModelProto
        Input ``X``, doubles of shape (n_rows, n_features); outputs ``label``, the likeliest class, and
        ``probabilities``, doubles of shape (n_rows, n_classes) in the order of ``classes_``. Write it by
        ``onnx.save(to_onnx(model), "model.onnx")``.

    Raises
    ------
    ImportError
        Without ``onnx`` (the extra ``pcvm-pymc[onnx]``).
    ValueError
        If the classifier has no few vectors (an average), its kernel is not radial, or a step of the
        pipeline is not a scaler of single columns.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import PCVMClassifier
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> few = PCVMClassifier(width=1.0, n_vectors=2).fit(X, X[:, 0] > 0)
    >>> [each.name for each in to_onnx(few).graph.output]
    ['label', 'probabilities']
    """
    from onnx import TensorProto, checker, helper

    few = few_vectors_of(model)
    latent = _latent(_Node([], [], "X"), few)
    if few.link == "multinomial probit":
        probability = _several(latent, len(few.classes))
    else:
        if len(few.weight) == 1:
            latent = (latent * -1.0).op("Concat", latent, axis=1)
        if few.link == "logit":
            probability = ((latent * -1.0).op("Exp") + 1.0).op("Reciprocal")
        else:
            probability = _normal_cdf(latent) * (1.0 - 2.0 * few.flip) + few.flip
    probability = probability / probability.op("ReduceSum", [1], keepdims=1)
    classes, kind = _class_values(few.classes)
    label = probability.constant(classes).op("Gather", probability.op("ArgMax", axis=1, keepdims=0))
    named = [
        helper.make_node("Identity", [label.name], ["label"]),
        helper.make_node("Identity", [probability.name], ["probabilities"]),
    ]
    info, double = helper.make_tensor_value_info, TensorProto.DOUBLE
    graph = helper.make_graph(
        probability.nodes + named,
        "pcvm_pymc",
        [info("X", double, [None, few.centres.shape[1]])],
        [
            info("label", getattr(TensorProto, kind), [None]),
            info("probabilities", double, [None, len(few.classes)]),
        ],
        probability.constants,
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    checker.check_model(made)
    return made


class _Node:
    """The output of a node of a graph: arithmetic with it adds nodes, in which numbers are constants."""

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

    def __add__(self, other: Any) -> "_Node":
        return self.op("Add", other)

    def __sub__(self, other: Any) -> "_Node":
        return self.op("Sub", other)

    def __mul__(self, other: Any) -> "_Node":
        return self.op("Mul", other)

    def __truediv__(self, other: Any) -> "_Node":
        return self.op("Div", other)

    def __matmul__(self, other: Any) -> "_Node":
        return self.op("MatMul", other)


def _class_values(classes: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """Return classes as ONNX has them, and the name of their type."""
    kinds = {"i": (np.int64, "INT64"), "b": (bool, "BOOL"), "f": (float, "DOUBLE")}
    if classes.dtype.kind.replace("u", "i") in kinds:
        dtype, name = kinds[classes.dtype.kind.replace("u", "i")]
        return classes.astype(dtype), name
    return np.array([str(each) for each in classes], dtype=object), "STRING"


def _latent(x: _Node, few: FewVectors) -> _Node:
    """Return the latent values, shape (n_rows, n_scores).

    ``sum_k (x_k - z_jk)^2 / width_jk^2`` by two matrix products, about the centres' mean.
    """
    n_vectors, n_features = few.centres.shape
    origin = few.centres.mean(axis=0) if n_vectors else np.zeros(n_features)
    centres, inverse = few.centres - origin, few.width**-2.0
    x = x - origin
    square = (x * x) @ inverse.T - x @ (2.0 * centres * inverse).T
    phi = _PROFILES[few.kernel](square + (centres**2 * inverse).sum(axis=1))
    ones = (x @ np.zeros((n_features, 1))).op("Exp")
    phi = phi.op("Concat", ones, axis=1)
    latent = phi @ np.vstack([few.weight.T, few.bias])
    if few.covariance is None:
        return latent
    # moved towards zero by its variance
    variance = ((phi @ few.covariance) * phi).op("ReduceSum", [1], keepdims=1)
    return latent / (variance.op("Abs") * few.spread + 1.0).op("Sqrt")


def _polynomial(x: _Node, coefficients: tuple[float, ...]) -> _Node:
    """Return a polynomial by Horner's rule, the highest power first."""
    value = x * coefficients[0] + coefficients[1]
    for each in coefficients[2:]:
        value = value * x + each
    return value


def _normal_cdf(z: _Node) -> _Node:
    """Return Phi(z): ONNX' Erf is of single precision in most runtimes."""
    size, bell = z.op("Abs"), (z * z * -0.5).op("Exp")
    inner = size.op("Min", _FAR)  # beyond, the polynomials would overflow
    near = bell * _polynomial(inner, _NUMERATOR) / _polynomial(inner, _DENOMINATOR)
    fraction = size + 0.65
    for k in (4.0, 3.0, 2.0, 1.0):
        fraction = size + fraction.op("Reciprocal") * k
    far = bell / (fraction * np.sqrt(2.0 * np.pi))
    tail = size.op("Less", _FAR).op("Where", near, far)
    return z.op("Greater", 0.0).op("Where", tail * -1.0 + 1.0, tail)


def _several(latent: _Node, n_classes: int) -> _Node:
    """Return the multinomial probit's probabilities by the trapezoid rule over the own class' noise."""
    own = latent.op("Unsqueeze", [2])  # (n_rows, own, 1)
    product = latent.constant(0.125 * np.exp(-0.5 * _NODES**2) / np.sqrt(2.0 * np.pi))
    for j in range(n_classes):
        shifted = own - own.op("Gather", [j], axis=1) + _NODES  # (n_rows, own, n_nodes)
        mine = 1.0 * (np.arange(n_classes) == j)[:, None]
        product = product * _normal_cdf(shifted).op("Max", mine)  # one for the own class
    return product.op("ReduceSum", [2], keepdims=0)
