"""A classifier of few vectors as a C function, which needs nothing but the C99 standard library."""

import re
from dataclasses import dataclass, replace
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
_PROFILES = {"rbf": "exp(-square)"}

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
    arrays = {
        "centre": few.centres,
        "width": few.width,
        "weight": np.column_stack([few.weight, few.bias]),
    }
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
        profile=_PROFILES[few.kernel],
        moderated=moderated,
        several=several,
        probability=probability,
    )


@dataclass(frozen=True)
class FewVectors:
    """What a classifier's probabilities are computed from.

    Attributes
    ----------
    kernel : str
        Name of a radial kernel.
    centres : ndarray, shape (n_vectors, n_features)
    width : ndarray, shape (n_vectors, n_features)
    weight : ndarray, shape (n_scores, n_vectors)
    bias : ndarray, shape (n_scores,)
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
    bias: Array
    link: str
    flip: float
    covariance: Array | None
    spread: float
    classes: NDArray[Any]


def few_vectors_of(model: Any) -> FewVectors:
    """Return the numbers of a fitted classifier, in the unit of its pipeline's input.

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
        np.atleast_2d(model.weight_),
        np.atleast_1d(np.asarray(model.bias_, dtype=float)),
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


def _array(name: str, values: Array) -> str:
    """Return the declaration of numbers, to the last digit; of none a single zero, which is not read."""
    numbers = values.ravel().tolist() or [0.0]
    rows = [", ".join(map(repr, numbers[i : i + 4])) for i in range(0, len(numbers), 4)]
    inner = ",\n    ".join(rows)
    return f"static const double {name}[] = {{\n    {inner}\n}};\n"
