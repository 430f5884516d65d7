"""A classifier of few vectors as a C function, which needs nothing but the C99 standard library."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import shown
from pcvm_pymc.estimators.few_vectors import FewVectors

__all__ = ["few_vectors_of", "to_c"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_HEAD = """/* {name}: class probabilities of a {link} classifier of {n_vectors} vectors.
   Classes, in the order of p: {classes}.
   x: {n_features} features; p: {n_classes} probabilities, which are written. */
#include <math.h>

enum {{ N_VECTORS = {n_vectors}, N_FEATURES = {n_features}, N_SCORES = {n_scores}, N_CLASSES = {n_classes} }};

"""

_KERNEL = """
static void basis(const double *x, double *phi)
{
    for (int j = 0; j < N_VECTORS; j++) {
        double square = 0.0;
        for (int k = 0; k < N_FEATURES; k++) {
            double u = (x[k] - centre[j * N_FEATURES + k]) / width[j * N_FEATURES + k];
            square += u * u;
        }
        phi[j] = PROFILE;
    }
    phi[N_VECTORS] = 1.0;
}

static double latent(const double *phi, int c)
{
    double sum = 0.0;
    for (int j = 0; j <= N_VECTORS; j++) sum += weight[c * (N_VECTORS + 1) + j] * phi[j];
    return sum;
}
"""

#: by the name of the kernel: g(s) in C, s = ||x - z||^2 / width^2
_PROFILES = {"rbf": "exp(-square)"}

_MODERATED = """
static double moderated(const double *phi, double mean)
{
    double variance = 0.0;
    for (int i = 0; i <= N_VECTORS; i++)
        for (int j = 0; j <= N_VECTORS; j++)
            variance += phi[i] * covariance[i * (N_VECTORS + 1) + j] * phi[j];
    return mean / sqrt(1.0 + SPREAD * (variance > 0.0 ? variance : 0.0));
}
"""

_LINKS = {
    "probit": "0.5 * erfc(-f / 1.4142135623730951)",
    "logit": "f > 0 ? 1.0 / (1.0 + exp(-f)) : exp(f) / (1.0 + exp(f))",
    "label noise": "FLIP + (1.0 - 2.0 * FLIP) * 0.5 * erfc(-f / 1.4142135623730951)",
}

_TWO = """
void {name}(const double *x, double *p)
{{
    double phi[N_VECTORS + 1], f;
    basis(x, phi);
    f = {value};
    p[0] = link(-f);
    p[1] = link(f);
}}
"""

_AGAINST_REST = """
void {name}(const double *x, double *p)
{{
    double phi[N_VECTORS + 1], total = 0.0;
    basis(x, phi);
    for (int c = 0; c < N_CLASSES; c++) total += p[c] = link(latent(phi, c));
    for (int c = 0; c < N_CLASSES; c++) p[c] /= total;
}}
"""

_SEVERAL = """
/* the trapezoid rule over the own class' noise t, a standard normal */
void {name}(const double *x, double *p)
{{
    double phi[N_VECTORS + 1], f[N_SCORES], total = 0.0;
    basis(x, phi);
    for (int c = 0; c < N_SCORES; c++) f[c] = latent(phi, c);
    for (int c = 0; c < N_CLASSES; c++) {{
        p[c] = 0.0;
        for (int i = -72; i <= 72; i++) {{
            double t = 0.125 * i, product = 0.125 * 0.3989422804014327 * exp(-0.5 * t * t);
            for (int j = 0; j < N_CLASSES; j++)
                if (j != c) product *= link(t + f[c] - f[j]);
            p[c] += product;
        }}
        total += p[c];
    }}
    for (int c = 0; c < N_CLASSES; c++) p[c] /= total;
}}
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
    several = few.link == "multinomial probit"
    link = _LINKS["probit" if several else few.link]
    parts = [
        _HEAD.format(
            name=name,
            link=few.link,
            n_vectors=len(few.centres),
            n_features=few.centres.shape[1],
            n_scores=len(few.weight),
            n_classes=len(few.classes),
            classes=", ".join(str(each).replace("*/", "* /") for each in few.classes),
        ),
        _array("centre", few.centres),
        _array("width", few.width),
        _array("weight", np.column_stack([few.weight, few.bias])),
        f"#define FLIP {few.flip!r}\n",
        _KERNEL.replace("PROFILE", _PROFILES[few.kernel]),
        f"\nstatic double link(double f)\n{{\n    return {link};\n}}\n",
    ]
    value = "latent(phi, 0)"
    if few.is_moderated:
        parts += [
            f"#define SPREAD {few.spread!r}\n",
            _array("covariance", few.covariance),
            _MODERATED,
        ]
        value = "moderated(phi, latent(phi, 0))"
    if several:
        parts.append(_SEVERAL.format(name=name))
    elif len(few.weight) > 1:
        parts.append(_AGAINST_REST.format(name=name))
    else:
        parts.append(_TWO.format(name=name, value=value))
    return "".join(parts)


def few_vectors_of(model: Any) -> FewVectors:
    """Return the numbers of a fitted classifier in the unit of its pipeline's input.

    With ``x = s u + t`` for the unscaled features u the kernel is a function of
    ``sum_k (u_k - (z_k - t_k) / s_k)^2 / (width_k / s_k)^2``.

    Raises
    ------
    ValueError
        If the classifier cannot be exported, or a step before it is not a scaler of single columns.
    """
    if not isinstance(model, Pipeline):
        return FewVectors.of(model)
    few = FewVectors.of(model[-1])
    for name, step in reversed(model.steps[:-1]):
        if step is not None and step != "passthrough":
            slope, shift = _scaling(name, step)
            few = replace(few, centres=(few.centres - shift) / slope, width=few.width / slope)
    return few


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


def _array(name: str, values: Array | None) -> str:
    """Return the declaration of numbers, to the last digit; of none a single zero, which is not read."""
    numbers = [0.0] if values is None or not values.size else values.ravel().tolist()
    rows = [", ".join(map(repr, numbers[i : i + 4])) for i in range(0, len(numbers), 4)]
    inner = ",\n    ".join(rows)
    return f"static const double {name}[] = {{\n    {inner}\n}};\n"
