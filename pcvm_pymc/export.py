"""Export of sparse classifiers: a C function, and an ONNX graph in double precision."""

import re
from dataclasses import dataclass, replace
from functools import partialmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from sklearn.utils.validation import check_is_fitted

from pcvm_pymc.core.pieces.kernels import PerCentre, Radial
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import check_instance, shown


@dataclass(frozen=True)
class FewVectors:
    """The numbers that a classifier's probabilities are computed from.

    Attributes
    ----------
    kernel : str
        Name of a radial kernel.
    centres : ndarray, shape (n_vectors, n_features)
    width : ndarray, shape (n_vectors, n_features)
    weight : ndarray, shape (n_scores, n_vectors + 1)
        The bias last.
    link : {"probit", "logit", "label noise", "multinomial probit"}
    flip : float
        Share of labels that are flipped, zero but under ``"label noise"``.
    covariance : ndarray, shape (n_vectors + 1, n_vectors + 1), optional
        Of weights and, last, bias, where the latent values are averaged over their posterior.
    spread : float
        How much the variance counts, see `Likelihood.moderated`.
    classes : ndarray, shape (n_classes,)
    """

    kernel: str
    centres: Array
    width: Array
    weight: Array
    link: str
    flip: float
    covariance: Array | None
    spread: float
    classes: NDArray[Any]


def few_vectors_of(model: Any) -> FewVectors:
    """Return centres, weights and link of a fitted classifier, in the units of its pipeline's input.

    With ``x = s u + t`` for the unscaled features u the kernel is a function of
    ``sum_k (u_k - (z_k - t_k) / s_k)^2 / (width_k / s_k)^2``.

    Raises
    ------
    ValueError
        For an average, a kernel that is not radial, features that are no kernels, or a step of a pipeline
        that is not a scaler of single columns.
    """
    if isinstance(model, Pipeline):
        few = few_vectors_of(model[-1])
        for name, step in reversed(model.steps[:-1]):
            if step is not None and step != "passthrough":
                slope, shift = _scaling(name, step)
                few = replace(few, centres=(few.centres - shift) / slope, width=few.width / slope)
        return few
    check_instance("model", model, BaseEstimator, "a fitted classifier of this package")
    check_is_fitted(model)
    name = type(model).__name__
    if not hasattr(model, "classes_"):
        raise ValueError(f"{name} is no classifier; needed a fitted classifier of this package")
    if hasattr(model, "components_"):
        raise ValueError(
            f"{name} is an average of {len(model.components_)} modes, which has no few vectors; fit with "
            "n_vectors=..., estimation='projection', 'em' or 'bottom-up'"
        )
    if hasattr(model, "idata_") and not hasattr(model, "projection_"):
        raise ValueError(f"{name} is a posterior, which has no few vectors; fit with n_vectors=...")
    if not hasattr(model, "relevance_vectors_") or not hasattr(model, "_kernel_"):
        raise ValueError(
            f"{name} has no vectors of one kernel; needed features='kernel', and of RVMClassifier two "
            "classes (MRVMClassifier has several in one model)"
        )
    kernel, centres, likelihood = model._kernel_, model.relevance_vectors_, model._likelihood_
    if likelihood.name not in _LINKS:
        raise ValueError(
            f"likelihood={likelihood.name!r} has no export; needed one of {tuple(_LINKS)}"
        )
    width = np.asarray(kernel.width, dtype=float)
    if isinstance(kernel, PerCentre):
        kernel, width = kernel.kernel, width.reshape(len(centres), -1)
    if not isinstance(kernel, Radial):
        raise ValueError(
            f"kernel={kernel.name!r} has no export; needed 'rbf', or another function of the distance in "
            "units of the width"
        )
    return FewVectors(
        kernel.name,
        centres,
        np.broadcast_to(width, centres.shape).copy(),
        np.column_stack([np.atleast_2d(model.weight_), np.atleast_1d(model.bias_)]),
        likelihood.name,
        float(getattr(likelihood, "flip", 0.0)),
        getattr(model, "covariance_", None),
        likelihood.spread,
        model.classes_,
    )


def _scaling(name: str, step: Any) -> tuple[Any, Any]:
    """Return slope and shift of a fitted scaler, by which it turns columns u into slope * u + shift."""
    if isinstance(step, MinMaxScaler) and not step.clip:
        return step.scale_, step.min_
    if isinstance(step, MaxAbsScaler) and not getattr(step, "clip", False):
        return 1.0 / step.scale_, 0.0
    if isinstance(step, StandardScaler | RobustScaler):
        centre = step.mean_ if isinstance(step, StandardScaler) else step.center_
        centred = step.with_mean if isinstance(step, StandardScaler) else step.with_centering
        slope = 1.0 if step.scale_ is None else 1.0 / step.scale_
        return slope, -centre * slope if centred else 0.0
    raise ValueError(
        f"step {name!r} of the pipeline is {shown(step)}, which cannot be part of the export; needed "
        "StandardScaler, MinMaxScaler, MaxAbsScaler or RobustScaler (without clip). Export model[-1] alone, "
        "and give it features that the steps before have transformed"
    )


# --- C -----------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_SOURCE = """/* {name}: class probabilities of a {few.link} classifier of {n_vectors} vectors.
   Classes, in the order of p: {classes}.
   x: {n_features} features; p: {n_classes} probabilities, which are written. */
#include <math.h>

enum {{ N_VECTORS = {n_vectors}, N_FEATURES = {n_features}, N_SCORES = {n_scores}, N_CLASSES = {n_classes} }};

{arrays}
static double link(double f)
{{
    return {link};
}}

static void latent(const double *x, double *f)
{{
    double phi[N_VECTORS + 1];
    for (int j = 0; j < N_VECTORS; j++) {{
        double square = 0.0;
        for (int k = 0; k < N_FEATURES; k++) {{
            double u = (x[k] - centre[j * N_FEATURES + k]) / width[j * N_FEATURES + k];
            square += u * u;
        }}
        phi[j] = {profile};
    }}
    phi[N_VECTORS] = 1.0;
    for (int c = 0; c < N_SCORES; c++) {{
        f[c] = 0.0;
        for (int j = 0; j <= N_VECTORS; j++) f[c] += weight[c * (N_VECTORS + 1) + j] * phi[j];
    }}{moderated}
}}
{several}
void {name}(const double *x, double *p)
{{
    double f[N_SCORES], total = 0.0;
    latent(x, f);
    for (int c = 0; c < N_CLASSES; c++) total += p[c] = {probability};
    for (int c = 0; c < N_CLASSES; c++) p[c] /= total;
}}
"""

#: by the name of the kernel: g(s) in C, s = ||x - z||^2 / width^2
_C_PROFILES = {"rbf": "exp(-square)"}

_LINKS = {
    "probit": "0.5 * erfc(-f / 1.4142135623730951)",
    "logit": "f > 0 ? 1.0 / (1.0 + exp(-f)) : exp(f) / (1.0 + exp(f))",
    "label noise": "{flip!r} + (1.0 - 2.0 * {flip!r}) * 0.5 * erfc(-f / 1.4142135623730951)",
    "multinomial probit": "0.5 * erfc(-f / 1.4142135623730951)",
}

# the latent value is moved towards zero by its variance
_MODERATED = """
    double variance = 0.0;
    for (int i = 0; i <= N_VECTORS; i++)
        for (int j = 0; j <= N_VECTORS; j++)
            variance += phi[i] * covariance[i * (N_VECTORS + 1) + j] * phi[j];
    f[0] /= sqrt(1.0 + {spread!r} * (variance > 0.0 ? variance : 0.0));"""

_SEVERAL = """
/* the trapezoid rule over the own class' noise t, a standard normal */
static double own(const double *f, int c)
{
    double sum = 0.0;
    for (int i = -72; i <= 72; i++) {
        double t = 0.125 * i, product = 0.125 * 0.3989422804014327 * exp(-0.5 * t * t);
        for (int j = 0; j < N_CLASSES; j++)
            if (j != c) product *= link(t + f[c] - f[j]);
        sum += product;
    }
    return sum;
}
"""


def to_c(model: Any, name: str = "predict_proba") -> str:
    """Return a fitted classifier of few vectors as C source.

    Parameters
    ----------
    model : fitted classifier, or Pipeline
        Of a radial kernel, with vectors of its own: a projection, a posterior mode, or a relevance vector
        machine. Scalers of a pipeline (`StandardScaler`, `MinMaxScaler`, `MaxAbsScaler`, `RobustScaler`)
        become part of centres and widths, so that the function takes unscaled features.
    name : str
        Of the function ``void name(const double *x, double *p)``, which writes the class probabilities of one
        row in the order of ``classes_``.

    Returns
    -------
    str
        C99, with ``math.h`` alone.

    Raises
    ------
    ValueError
        If the classifier has no few vectors (an average), its kernel is not radial, a step of the pipeline
        is not one of these scalers, or the name is none of C's.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import PCVMClassifier
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> model = PCVMClassifier(estimation="bottom-up", width=2.0).fit(X, X[:, 0] > 0)
    >>> "void is_right(const double *x, double *p)" in to_c(model, "is_right")
    True
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"name={shown(name)}; needed a name of C's, letters, digits and underscores"
        )
    few = few_vectors_of(model)
    arrays = {"centre": few.centres, "width": few.width, "weight": few.weight}
    probability, moderated, several = "link(f[c])", "", ""
    if few.link == "multinomial probit":
        probability, several = "own(f, c)", _SEVERAL
    elif len(few.weight) == 1:
        probability = "link(c ? f[0] : -f[0])"
    if few.covariance is not None:
        arrays["covariance"] = few.covariance
        moderated = _MODERATED.format(spread=few.spread)
    return _SOURCE.format(
        name=name,
        few=few,
        n_vectors=len(few.centres),
        n_features=few.centres.shape[1],
        n_scores=len(few.weight),
        n_classes=len(few.classes),
        classes=", ".join(str(each).replace("*/", "* /") for each in few.classes),
        arrays="".join(_array(each, values) for each, values in arrays.items()),
        link=_LINKS[few.link].format(flip=few.flip),
        profile=_C_PROFILES[few.kernel],
        moderated=moderated,
        several=several,
        probability=probability,
    )


def _array(name: str, values: Array) -> str:
    """Return the C declaration of an array, with all digits (a single zero if it is empty)."""
    numbers = values.ravel().tolist() or [0.0]
    rows = [", ".join(map(repr, numbers[i : i + 4])) for i in range(0, len(numbers), 4)]
    inner = ",\n    ".join(rows)
    return f"static const double {name}[] = {{\n    {inner}\n}};\n"


# --- ONNX --------------------------------------------------------------------------------------

_OPSET = 17
_MIDPOINTS = 0.5 * np.arange(0.5, 13.0)  # of the midpoint rule of step .5 for erfc, 16 digits
_NODES = 0.125 * np.arange(-72, 73)  # of the trapezoid rule over a standard normal


#: by the name of the kernel: g(s), s = ||x - z||^2 / width^2, as a node
_ONNX_PROFILES: dict[str, Any] = {"rbf": lambda square: (square * -1.0).op("Exp")}


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
    try:
        from onnx import TensorProto, checker, helper
    except ImportError:
        raise ImportError('to_onnx needs onnx: pip install "pcvm-pymc[onnx]"') from None

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
    types = {"b": bool, "i": np.int64, "u": np.int64, "f": float}
    kind = types.get(few.classes.dtype.kind)
    classes = few.classes.astype(str).astype(object) if kind is None else few.classes.astype(kind)
    label = probability.constant(classes).op("Gather", probability.op("ArgMax", axis=1, keepdims=0))
    ends = {"label": label, "probabilities": probability}
    named = [helper.make_node("Identity", [node.name], [name]) for name, node in ends.items()]
    info, double = helper.make_tensor_value_info, TensorProto.DOUBLE
    of_label = helper.np_dtype_to_tensor_dtype(classes.dtype)
    graph = helper.make_graph(
        probability.nodes + named,
        "pcvm_pymc",
        [info("X", double, [None, few.centres.shape[1]])],
        [info("label", of_label, [None]), info("probabilities", double, [None, len(classes)])],
        probability.constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    checker.check_model(made)
    return made


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


def _latent(x: _Node, few: FewVectors) -> _Node:
    """Return the latent values, shape (n_rows, n_scores).

    ``sum_k (x_k - z_jk)^2 / width_jk^2`` by two matrix products, about the centres' mean.
    """
    n_vectors, n_features = few.centres.shape
    origin = few.centres.mean(axis=0) if n_vectors else np.zeros(n_features)
    centres, inverse = few.centres - origin, few.width**-2.0
    x = x - origin
    square = (x * x) @ inverse.T - x @ (2.0 * centres * inverse).T
    phi = _ONNX_PROFILES[few.kernel](square + (centres**2 * inverse).sum(axis=1))
    ones = (x @ np.zeros((n_features, 1))).op("Exp")
    phi = phi.op("Concat", ones, axis=1)
    latent = phi @ few.weight.T
    if few.covariance is None:
        return latent
    # moved towards zero by its variance
    variance = ((phi @ few.covariance) * phi).op("ReduceSum", [1], keepdims=1)
    return latent / (variance.op("Abs") * few.spread + 1.0).op("Sqrt")


def _normal_cdf(z: _Node) -> _Node:
    """Return Phi(z): ONNX' Erf is of single precision in most runtimes.

    erfc by the midpoint rule, with the residue of the pole (D. Hunter and T. Regan 1972, "A note on the
    evaluation of the complementary error function", Mathematics of Computation 26).
    """
    x = z.op("Abs") * np.sqrt(0.5)
    square = x * x
    total = x * 0.0
    for t in _MIDPOINTS:
        total = total + (square + t**2).op("Reciprocal") * np.exp(-(t**2))
    residue = x.op("Less", 2.0 * np.pi).op("Where", (x * (-4.0 * np.pi)).op("Sigmoid"), 0.0)
    tail = total * x * (square * -1.0).op("Exp") * (0.5 / np.pi) + residue
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
