"""A classifier of few vectors as an ONNX graph, in double precision."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.estimators.export_c import few_vectors_of
from pcvm_pymc.estimators.few_vectors import FewVectors

__all__ = ["to_onnx"]

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
    few = few_vectors_of(model)
    graph = _Graph()
    basis = _basis(graph, few)
    stacked = np.vstack([few.weight.T, few.bias])
    latent = graph.op("MatMul", basis, graph.constant(stacked))
    if few.is_moderated:
        latent = _moderated(graph, few, basis, latent)
    if few.link == "multinomial probit":
        probability = _several(graph, latent, len(few.classes))
    elif len(few.weight) == 1:
        both = graph.op("Concat", graph.op("Neg", latent), latent, axis=1)
        probability = _linked(graph, few, both)
    else:
        probability = _shares(graph, _linked(graph, few, latent))
    return graph.model(probability, few)


class _Graph:
    """Nodes and constants of a graph; each operation returns the name of its output."""

    def __init__(self) -> None:
        from onnx import helper, numpy_helper

        self.helper, self.from_array = helper, numpy_helper.from_array
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        """Return the name of a constant; numbers are doubles."""
        array = np.asarray(value)
        array = array.astype(float) if array.dtype.kind == "f" else array
        name = f"c{len(self.constants)}"
        self.constants.append(self.from_array(np.array(array), name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Return the name of an operation's output."""
        name = f"n{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def total(self, values: str, axis: int) -> str:
        """Return sums along an axis, which is kept."""
        return self.op("ReduceSum", values, self.constant(np.array([axis])), keepdims=1)

    def model(self, probability: str, few: FewVectors) -> Any:
        """Return the model whose output is the probabilities, and the likeliest class."""
        from onnx import TensorProto, checker

        likeliest = self.op("ArgMax", probability, axis=1, keepdims=0)
        classes, kind = _class_values(few.classes)
        self.nodes.append(
            self.helper.make_node("Gather", [self.constant(classes), likeliest], ["label"])
        )
        self.nodes.append(self.helper.make_node("Identity", [probability], ["probabilities"]))
        info = self.helper.make_tensor_value_info
        n_features, n_classes = few.centres.shape[1], len(few.classes)
        graph = self.helper.make_graph(
            self.nodes,
            "pcvm_pymc",
            [info("X", TensorProto.DOUBLE, [None, n_features])],
            [
                info("label", getattr(TensorProto, kind), [None]),
                info("probabilities", TensorProto.DOUBLE, [None, n_classes]),
            ],
            self.constants,
        )
        opsets = [self.helper.make_opsetid("", _OPSET)]
        made = self.helper.make_model(graph, opset_imports=opsets, ir_version=8)
        checker.check_model(made)
        return made


def _class_values(classes: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """Return classes as ONNX has them, and the name of their type."""
    if classes.dtype.kind in "iu":
        return classes.astype(np.int64), "INT64"
    if classes.dtype.kind == "b":
        return classes, "BOOL"
    if classes.dtype.kind == "f":
        return classes.astype(float), "DOUBLE"
    return np.array([str(each) for each in classes], dtype=object), "STRING"


#: by the name of the kernel: the operations that make g(s), s = ||x - z||^2 / width^2
_PROFILES: dict[str, Callable[[_Graph, str], str]] = {
    "rbf": lambda graph, square: graph.op("Exp", graph.op("Neg", square)),
}


def _basis(graph: _Graph, few: FewVectors) -> str:
    """Return the basis functions and a constant, shape (n_rows, n_vectors + 1).

    ``sum_k (x_k - z_jk)^2 / width_jk^2`` by two matrix products, about the centres' mean.
    """
    n_vectors, n_features = few.centres.shape
    origin = few.centres.mean(axis=0) if n_vectors else np.zeros(n_features)
    centres, inverse = few.centres - origin, few.width**-2.0
    x = graph.op("Sub", "X", graph.constant(origin))
    square = graph.op("MatMul", graph.op("Mul", x, x), graph.constant(inverse.T))
    cross = graph.op("MatMul", x, graph.constant((2.0 * centres * inverse).T))
    own = graph.constant((centres**2 * inverse).sum(axis=1))
    distance = graph.op("Add", graph.op("Sub", square, cross), own)
    phi = _PROFILES[few.kernel](graph, distance)
    ones = graph.op("Exp", graph.op("MatMul", x, graph.constant(np.zeros((n_features, 1)))))
    return graph.op("Concat", phi, ones, axis=1)


def _moderated(graph: _Graph, few: FewVectors, basis: str, mean: str) -> str:
    """Return latent values moved towards zero by their variance."""
    assert few.covariance is not None
    product = graph.op("MatMul", basis, graph.constant(few.covariance[0]))
    variance = graph.total(graph.op("Mul", product, basis), 1)
    size = graph.op("Mul", graph.op("Abs", variance), graph.constant(few.spread))
    return graph.op("Div", mean, graph.op("Sqrt", graph.op("Add", size, graph.constant(1.0))))


def _linked(graph: _Graph, few: FewVectors, latent: str) -> str:
    if few.link == "logit":
        one = graph.constant(1.0)
        return graph.op("Div", one, graph.op("Add", one, graph.op("Exp", graph.op("Neg", latent))))
    phi = _normal_cdf(graph, latent)
    if few.flip == 0.0:
        return phi
    kept = graph.op("Mul", phi, graph.constant(1.0 - 2.0 * few.flip))
    return graph.op("Add", kept, graph.constant(few.flip))


def _polynomial(graph: _Graph, x: str, coefficients: tuple[float, ...]) -> str:
    """Return a polynomial by Horner's rule, the highest power first."""
    value = graph.constant(coefficients[0])
    for each in coefficients[1:]:
        value = graph.op("Add", graph.op("Mul", value, x), graph.constant(each))
    return value


def _normal_cdf(graph: _Graph, z: str) -> str:
    """Return Phi(z): ONNX' Erf is of single precision in most runtimes."""
    size = graph.op("Abs", z)
    bell = graph.op("Exp", graph.op("Mul", graph.op("Mul", z, z), graph.constant(-0.5)))
    inner = graph.op("Min", size, graph.constant(_FAR))  # beyond, the polynomials would overflow
    ratio = graph.op(
        "Div", _polynomial(graph, inner, _NUMERATOR), _polynomial(graph, inner, _DENOMINATOR)
    )
    near = graph.op("Mul", bell, ratio)
    fraction = graph.op("Add", size, graph.constant(0.65))
    for k in (4.0, 3.0, 2.0, 1.0):
        fraction = graph.op("Add", size, graph.op("Div", graph.constant(k), fraction))
    scaled = graph.op("Mul", fraction, graph.constant(float(np.sqrt(2.0 * np.pi))))
    far = graph.op("Div", bell, scaled)
    tail = graph.op("Where", graph.op("Less", size, graph.constant(_FAR)), near, far)
    upper = graph.op("Sub", graph.constant(1.0), tail)
    return graph.op("Where", graph.op("Greater", z, graph.constant(0.0)), upper, tail)


def _shares(graph: _Graph, values: str) -> str:
    return graph.op("Div", values, graph.total(values, 1))


def _several(graph: _Graph, latent: str, n_classes: int) -> str:
    """Return the multinomial probit's probabilities by the trapezoid rule over the own class' noise."""
    own = graph.op("Unsqueeze", latent, graph.constant(np.array([2])))  # (n_rows, own, 1)
    nodes, density = graph.constant(_NODES), np.exp(-0.5 * _NODES**2) / np.sqrt(2.0 * np.pi)
    product = None
    for j in range(n_classes):
        other = graph.op("Gather", own, graph.constant(np.array([j])), axis=1)
        shifted = graph.op("Add", graph.op("Sub", own, other), nodes)  # (n_rows, own, n_nodes)
        mine = graph.constant((np.arange(n_classes) == j)[:, None])
        factor = graph.op("Where", mine, graph.constant(1.0), _normal_cdf(graph, shifted))
        product = factor if product is None else graph.op("Mul", product, factor)
    assert product is not None
    rule = graph.constant((0.125 * density)[:, None])
    return _shares(
        graph, graph.op("Squeeze", graph.op("MatMul", product, rule), graph.constant(np.array([2])))
    )
