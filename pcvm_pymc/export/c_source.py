"""A fitted model of few vectors as C source."""

from typing import Any

import numpy as np

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.export.c_names import check_c_name
from pcvm_pymc.export.few_vectors import few_vectors_of

# @ is the function's name and an underscore: no two exports, nor a local, have a name in common
_SOURCE = """/* {name}: {what}, {few.link}, of {n_vectors} vectors.
   x: {n_features} features.{written} */
#include <math.h>

enum {{ @n_vectors = {n_vectors}, @n_features = {n_features}, @n_scores = {n_scores} }};

{arrays}
static void @latent(const double *x, double *f)
{{
    double phi[@n_vectors + 1];
    for (int j = 0; j < @n_vectors; j++) {{
        double square = 0.0;
        for (int k = 0; k < @n_features; k++) {{
            int i = j * @n_features + k;
            double u = (x[k] - @origin[k] - @centre[i]) / @width[i];
            square += u * u;
        }}
        phi[j] = {profile};
    }}
    phi[@n_vectors] = 1.0;
    for (int c = 0; c < @n_scores; c++) {{
        f[c] = 0.0;
        for (int j = 0; j <= @n_vectors; j++) f[c] += @weight[c * (@n_vectors + 1) + j] * phi[j];
    }}{variance}
}}
"""

_VARIANCE = """
    double variance = 0.0;
    for (int i = 0; i <= @n_vectors; i++)
        for (int j = 0; j <= @n_vectors; j++)
            variance += phi[i] * @covariance[i * (@n_vectors + 1) + j] * phi[j];
    variance = variance < 0.0 ? 0.0 : variance;
    """
_STD = "f[1] = sqrt({noise} + variance);"
# the latent value is moved towards zero by its variance
_MODERATED = "f[0] /= sqrt(1.0 + {spread!r} * variance);"

_MEAN = """
double {name}(const double *x)
{{
    double f[1];
    @latent(x, f);
    return f[0];
}}
"""

_MEAN_AND_STD = """
double {name}(const double *x, double *std)
{{
    double f[2];
    @latent(x, f);
    *std = f[1];
    return f[0];
}}
"""

_CLASSES = """
static double @link(double f)
{{
    return {link};
}}
{several}
void {name}(const double *x, double *p)
{{
    double f[@n_scores], total = 0.0;
    @latent(x, f);{before}
    for (int c = 0; c < {n_classes}; c++) total += p[c] = {probability};
    for (int c = 0; c < {n_classes}; c++) p[c] /= total;
}}
"""

#: by the name of the kernel: g(s) in C, s = ||x - z||^2 / width^2
_C_PROFILES = {"rbf": "exp(-square)"}

_PROBIT = "0.5 * erfc(-f / 1.4142135623730951)"
_LINKS = {
    "probit": _PROBIT,
    "logit": "f > 0 ? 1.0 / (1.0 + exp(-f)) : exp(f) / (1.0 + exp(f))",
    "label noise": "{flip!r} + (1.0 - 2.0 * {flip!r}) * " + _PROBIT,
    "multinomial probit": _PROBIT,
}

_SEVERAL = """
/* the trapezoid rule over the own class' noise t, a standard normal */
static double @own(const double *f, int c)
{{
    double sum = 0.0;
    for (int i = -72; i <= 72; i++) {{
        double t = 0.125 * i, product = 0.125 * 0.3989422804014327 * exp(-0.5 * t * t);
        for (int j = 0; j < @n_scores; j++)
            if (j != c) product *= @link(t + f[c] - f[j]);
        sum += product;
    }}
    return sum;
}}
"""

_REST = """
/* all may say no: the logarithm of the probit, by its series where that is not a number of C's */
static double @log_link(double f)
{{
    double r = 1.0 / (f * f);
    if (f > -37.0) return log(@link(f));
    return -0.5 * f * f - log(-2.5066282746310002 * f)
        + log1p(-r * (1.0 - r * (3.0 - r * (15.0 - 105.0 * r))));
}}
"""
_LARGEST = """
    double largest = -1e300;
    for (int c = 0; c < @n_scores; c++) {{
        f[c] = @log_link(f[c] < -1e140 ? -1e140 : f[c]);
        if (f[c] > largest) largest = f[c];
    }}"""


def to_c(model: Any, name: str | None = None, *, return_std: bool = False) -> str:
    """Return a fitted model of few vectors as C source.

    Parameters
    ----------
    model : fitted classifier or RVMRegressor, Pipeline, search or TransformedTargetRegressor
        Of a radial kernel, with vectors of its own: a projection, a posterior mode, or a relevance vector
        machine. Scalers of a pipeline (`StandardScaler`, `MinMaxScaler`, `MaxAbsScaler`, `RobustScaler`)
        become part of centres and widths, so that the function takes unscaled features; such a scaler of a
        `TransformedTargetRegressor` becomes part of the weights. Of a fitted search (`GridSearchCV`) the
        best estimator is exported.
    name : str, optional
        Of the function ``void predict_proba(const double *x, double *p)``, which writes the class
        probabilities of one row in the order of ``classes_``; or of ``double predict(const double *x)``,
        which returns the mean of a regression. These are the default names. All else in the source begins
        with the name and an underscore.
    return_std : bool
        Of a regression also the standard deviation of a target, noise included, as ``predict`` returns it
        under ``RVMRegressor(std="weights")``: ``double predict(const double *x, double *std)``.

    Returns
    -------
    str
        C99, with ``math.h`` alone.

    Raises
    ------
    ValueError
        If the model has no few vectors (an average), its kernel is not radial, a step of the pipeline is not
        one of these scalers, the standard deviation needs all rows (``std="process"``), or the name is none
        of C's or is a keyword or a library's function.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import PCVMClassifier
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> model = PCVMClassifier(estimation="bottom-up", width=2.0).fit(X, X[:, 0] > 0)
    >>> "void is_right(const double *x, double *p)" in to_c(model, "is_right")
    True
    """
    if name is not None:
        check_c_name(name)
    few = few_vectors_of(model, return_std)
    arrays = {"origin": few.origin, "centre": few.centres, "width": few.width, "weight": few.weight}
    what, written, several, before, probability = "class probabilities", "", "", "", "@link(f[c])"
    if few.classes is None:
        what, body, end = "mean of a target", _MEAN_AND_STD if return_std else _MEAN, _STD
        written = "\n   std: its standard deviation, noise included, is written." * return_std
    else:
        body, end = _CLASSES, _MODERATED
        # an escaped label cannot end the comment, or begin another
        labels = [ascii(each) for each in few.classes.tolist()]
        lines = [f"\n   p[{c}]: that of {each}, is written." for c, each in enumerate(labels)]
        written = "".join(lines).replace("*/", "*\\/").replace("/*", "/\\*")
        if few.link == "multinomial probit":
            probability, several = "@own(f, c)", _SEVERAL
        elif len(few.weight) == 1:
            probability = "@link(c ? f[0] : -f[0])"
        elif few.link == "probit":
            probability, several, before = "exp(f[c] - largest)", _REST, _LARGEST
    variance = ""
    if few.covariance is not None:
        arrays["covariance"], variance = few.covariance, _VARIANCE + end
    name = name or ("predict" if few.classes is None else "predict_proba")
    parts = {
        "arrays": "".join(_array(each, values) for each, values in arrays.items()),
        "profile": _C_PROFILES[few.kernel],
        "variance": variance.format(spread=few.spread, noise=_number(few.noise)),
        "link": _LINKS.get(few.link, "").format(flip=few.flip),
        **{"several": several.format(), "before": before.format(), "probability": probability},
    }
    template = (_SOURCE + body).replace("@", f"{name}_")
    return template.format(
        **{part: text.replace("@", f"{name}_") for part, text in parts.items()},
        **{"name": name, "what": what, "written": written, "few": few},
        n_vectors=len(few.centres),
        n_features=few.centres.shape[1],
        n_scores=len(few.weight),
        n_classes=0 if few.classes is None else len(few.classes),
    )


def _array(name: str, values: Array) -> str:
    """Return the C declaration of an array, with all digits (a single zero if it is empty)."""
    numbers = values.ravel().tolist() or [0.0]
    rows = [", ".join(map(_number, numbers[i : i + 4])) for i in range(0, len(numbers), 4)]
    inner = ",\n    ".join(rows)
    return f"static const double @{name}[] = {{\n    {inner}\n}};\n"


def _number(value: float) -> str:
    """Return a number in C, with all digits."""
    return repr(value) if np.isfinite(value) else "HUGE_VAL"
