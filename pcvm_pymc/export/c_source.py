"""A fitted model of few vectors as C source."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.encoding import UNIT, UNKNOWN
from pcvm_pymc.export.c_names import check_c_name
from pcvm_pymc.export.few_vectors import FewVectors, few_vectors_of

# @ is the function's name and an underscore: no two exports, nor a local, have a name in common
_SOURCE = """/* {name}: {what}, {few.likelihood.name}, of {few.centres.shape[0]} vectors.
   x: {written} */
#include <math.h>

enum {{
    @n_vectors = {few.centres.shape[0]},
    @n_features = {few.origin.shape[0]},
    @n_columns = {few.centres.shape[1]},
    @n_scores = {few.weight.shape[0]}
}};

{arrays}{rank}
static void @latent(const double *x, double *f)
{{
    double phi[@n_vectors + 1], z[@n_columns];{columns}
    for (int j = 0; j < @n_vectors; j++) {{
        double distance = 0.0;
        for (int k = 0; k < @n_columns; k++) {{
            int i = j * @n_columns + k;
            double u = (z[k] - @centre[i]) / @width[i];
            distance += {term};
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

_NUMBERS = """
    for (int k = 0; k < @n_columns; k++) z[k] = x[k] - @origin[k];"""

_ENCODED = f"""
    /* indicators of levels and of what is missing; then numbers, and levels that are unknown */
    int known[@n_features] = {{0}};
    for (int k = 0; k < @n_columns; k++) {{
        double value = x[@feature[k]];
        int is_here = isnan(@level[k]) ? isnan(value) : value == @level[k];
        if (is_here) known[@feature[k]] = 1;
        z[k] = is_here ? {UNIT!r} : 0.0;
    }}
    for (int k = 0; k < @n_columns; k++) {{
        int i = @feature[k];
        if (@is_number[k]) z[k] = isnan(x[i]) ? @median[k] : x[i] - @origin[i];
        else if (@level[k] == {UNKNOWN!r} && !known[i]) z[k] = {UNIT!r};
    }}"""

_RANK = """
/* the score of a value: a line between knots, of which the first and the last go on */
static double @rank(double x, int first, int last)
{
    int i = first;
    while (i < last - 2 && x > @knot[i + 1]) i++;
    return @score[i] + (@score[i + 1] - @score[i]) * (x - @knot[i]) / (@knot[i + 1] - @knot[i]);
}
"""

_VARIANCE = """
    double variance = 0.0;
    for (int i = 0; i <= @n_vectors; i++)
        for (int j = 0; j <= @n_vectors; j++)
            variance += phi[i] * @covariance[i * (@n_vectors + 1) + j] * phi[j];
    variance = variance < 0.0 ? 0.0 : variance;
    """

_MEAN = """
double {name}(const double *x{argument})
{{
    double f[2];
    @latent(x, f);{before}
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
    @latent(x, f);
    for (int c = 0; c < {few.classes.shape[0]}; c++) total += p[c] = {probability};
    for (int c = 0; c < {few.classes.shape[0]}; c++) p[c] /= total;
}}
"""

#: by the name of the kernel: g(s) in C
_C_PROFILES = {"rbf": "exp(-distance)", "laplacian": "exp(-distance)"}
_C_TERMS = {1: "fabs(u)", 2: "u * u"}  # of a feature in s, by the kernel's order

_PROBIT = "0.5 * erfc(-f / 1.4142135623730951)"
_LINKS = {
    "probit": _PROBIT,
    "logit": "f > 0 ? 1.0 / (1.0 + exp(-f)) : exp(f) / (1.0 + exp(f))",
    "label noise": "{flip} + (1.0 - 2.0 * {flip}) * " + _PROBIT,
    "multinomial probit": _PROBIT,
}

_SEVERAL = """
/* the trapezoid rule over the own class' noise t, a standard normal */
static double @own(const double *f, int c)
{
    double sum = 0.0;
    for (int i = -72; i <= 72; i++) {
        double t = 0.125 * i, product = 0.125 * 0.3989422804014327 * exp(-0.5 * t * t);
        for (int j = 0; j < @n_scores; j++)
            if (j != c) product *= @link(t + f[c] - f[j]);
        sum += product;
    }
    return sum;
}
"""

_REST = """
/* all may say no: the logarithm of the probit, by its series where the probit is too small */
static double @log_link(double f)
{
    double g = f < -1e140 ? -1e140 : f, r = 1.0 / (g * g);
    double series = log1p(-r * (1.0 - r * (3.0 - r * (15.0 - 105.0 * r))));
    return g < -37.0 ? series - 0.5 * g * g - log(-2.5066282746310002 * g) : log(@link(g));
}

static double @own(const double *f, int c)
{
    double sum = 0.0;
    for (int j = 0; j < @n_scores; j++) sum += exp(@log_link(f[j]) - @log_link(f[c]));
    return 1.0 / sum;
}
"""


def to_c(model: Any, name: str | None = None, *, return_std: bool = False) -> str:
    """Return a fitted model of few vectors as C source.

    Parameters
    ----------
    model : fitted classifier or RVMRegressor, Pipeline, search or TransformedTargetRegressor
        Of a radial kernel, with vectors of its own: a projection, a posterior mode, or a relevance vector
        machine. Scalers of a pipeline (`StandardScaler`, `MinMaxScaler`, `MaxAbsScaler`, `RobustScaler`)
        become part of centres and widths, so that the function takes unscaled features; a `SimpleImputer` and
        a `ColumnTransformer` of these become part, too. A scaler of a `TransformedTargetRegressor` becomes
        part of the weights. Of a fitted search (`GridSearchCV`) the best estimator is exported.
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
        C99, with ``math.h`` alone. ``x`` has the features of a row as they are given, in the order of the
        columns of the fit. Where a model was fitted to categories or missing values, NaN is a missing one. A
        category is the code of its level, which scalers of a pipeline leave as it is. The comment at the top
        of the source lists the codes; any other number is a level that is unknown.

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
    >>> model = PCVMClassifier(estimation="bottom-up", width=2.0)
    >>> model = model.fit(X, X[:, 0] > 0)
    >>> "void is_right(const double *x, double *p)" in to_c(model, "is_right")
    True
    """
    if name is not None:
        check_c_name(name)
    few = few_vectors_of(model, return_std)
    arrays = {"origin": few.origin, "centre": few.centres, "width": few.width, "weight": few.weight}
    arrays |= few.columns
    columns, first = _NUMBERS if few.encoding is None else _ENCODED, 0
    if few.ranks:
        parts = zip(*few.ranks.values(), strict=True)
        arrays |= dict(zip(("knot", "score"), map(np.concatenate, parts), strict=True))
    for k, (knots, _) in few.ranks.items():
        columns += f"\n    z[{k}] = @rank(z[{k}], {first}, {first + len(knots)});"
        first += len(knots)
    what, body, argument, several, before = "mean of a target", _MEAN, "", "", ""
    written = _features(few)
    probability, variance, link = "@link(c ? f[0] : -f[0])", "", few.likelihood.name
    if return_std:
        variance = f"f[1] = sqrt({_number(few.likelihood.variance)} + variance);"
        written += "\n   std: its standard deviation, noise included, is written."
        argument, before = ", double *std", "\n    *std = f[1];"
    if few.classes is not None:
        what, body = "class probabilities", _CLASSES
        # the latent value is moved towards zero by its variance
        variance = f"f[0] /= sqrt(1.0 + {few.likelihood.spread!r} * variance);"
        for c, each in enumerate(few.classes.tolist()):
            written += f"\n   p[{c}]: that of {_escaped(each)}, is written."
        if len(few.weight) > 1:
            probability, several = "@own(f, c)", _REST if link == "probit" else _SEVERAL
    if few.covariance is not None:
        arrays["covariance"] = few.covariance
    name = name or ("predict" if few.classes is None else "predict_proba")
    source = (_SOURCE + body).format(
        name=name,
        few=few,
        arrays="".join(_array(each, values) for each, values in arrays.items()),
        link=_LINKS.get(link, "").format(flip=_number(getattr(few.likelihood, "flip", 0.0))),
        profile=_C_PROFILES[few.kernel.name],
        term=_C_TERMS[few.kernel.order],
        columns=columns,
        rank=_RANK if few.ranks else "",
        variance="" if few.covariance is None else _VARIANCE + variance,
        **{"what": what, "written": written, "argument": argument, "before": before},
        **{"several": several, "probability": probability},
    )
    return source.replace("@", f"{name}_")


def _features(few: FewVectors) -> str:
    """Return what the comment of the source says of the features, codes of levels among them."""
    lines = [f"{len(few.origin)} features."]
    if few.encoding is not None:
        lines = [f"{len(few.origin)} features; NaN is a missing one (compile without -ffast-math)."]
    for j, levels in few.levels.items():
        lines += [f"x[{j}] = {c}: the level {_escaped(each)}." for c, each in enumerate(levels)]
        lines.append(f"x[{j}] = any other number: an unknown level.")
    return "\n   ".join(lines)


def _escaped(value: Any) -> str:
    """Return a value as a comment can have it: in one line, without its end."""
    words = " ".join(ascii(value).splitlines())
    return words.replace("*", "\\x2a").replace("@", "\\x40")


def _array(name: str, values: NDArray[Any]) -> str:
    """Return the C declaration of an array, with all digits (a single zero if it is empty)."""
    kind, shown = ("double", _number) if values.dtype.kind == "f" else ("int", str)
    numbers = values.astype(kind).ravel().tolist() or [0.0]
    rows = [", ".join(map(shown, numbers[i : i + 4])) for i in range(0, len(numbers), 4)]
    inner = ",\n    ".join(rows)
    return f"static const {kind} @{name}[] = {{\n    {inner}\n}};\n"


def _number(value: float) -> str:
    """Return a number in C, with all digits."""
    if np.isnan(value):
        return "NAN"
    return repr(float(value)) if np.isfinite(value) else "HUGE_VAL"
