"""A fitted model of few vectors as C source."""

import re
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from pcvm_pymc.core.pieces.encoding import UNIT
from pcvm_pymc.core.pieces.validation import shown
from pcvm_pymc.export.few_vectors import FewVectors, few_vectors_of

# of the program, what a model needs: an array or a kind of likelihood that it has
_BLOCK = re.compile(r"#if (\w+)\n(.*?)(?:#else\n(.*?))?#endif\n", re.DOTALL)
# @ is the function's name and an underscore: no two exports, nor a local, have a name in common
_PROGRAM = Path(__file__).with_name("predict.c").read_text(encoding="ascii")
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
_REMEDY = (
    "needed a fitted estimator of it, or a pipeline of a StandardScaler and one. Export best_estimator_ of a "
    "search and regressor_ of a TransformedTargetRegressor, and do outside of C what other steps do"
)
# with what is appended, names stay within 63 characters, which C99 distinguishes
_NAME = re.compile("[A-Za-z](_?[A-Za-z0-9]){,49}")


def to_c(model: Any, name: str | None = None, *, return_std: bool = False) -> str:
    """Return a fitted model of few vectors as C source.

    Parameters
    ----------
    model : fitted classifier or RVMRegressor, or Pipeline of a StandardScaler and one
        Of a radial kernel, with vectors of its own: a projection, a posterior mode, or a relevance vector
        machine. After a scaler the function takes unscaled features.
    name : str, optional
        Of the function ``void predict_proba(const double *x, double *p)``, which writes the class
        probabilities of one row in the order of ``classes_``; or of ``double predict(const double *x)``,
        which returns the mean of a regression. These are the default names. All else in the source begins
        with the name and an underscore. Take none that a library of your program has, such as ``exp``.
    return_std : bool
        Of a regression also the standard deviation of a target, noise included, as ``predict`` returns it
        under ``RVMRegressor(std="weights")``: ``double predict(const double *x, double *std)``.

    Returns
    -------
    str
        C99, with ``math.h`` alone. ``x`` has the features of a row as they are given, in the order of the
        columns of the fit. Where a model was fitted to categories or missing values, NaN is a missing one. A
        category of words is the code of its level, which the comment at the top of the source lists; any
        other number is a level that is unknown.

    Raises
    ------
    ValueError
        If the model is neither of these, has no few vectors (an average), or its kernel is not radial, if the
        standard deviation needs all rows (``std="process"``), or if C or C++ cannot have the name.

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
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ValueError(
            f"name={shown(name)}; needed a letter of ASCII, then at most 49 letters, digits and single "
            "underscores between them"
        )
    scaler, model = _scaler_and_last(model)
    few = few_vectors_of(model, return_std, _REMEDY)
    is_several, link = len(few.weight) > 1, few.likelihood.name
    arrays = _arrays(few, scaler)
    has = dict.fromkeys(arrays, True)
    has |= {"rest": is_several and link == "probit", "several": is_several and link != "probit"}
    if few.classes is None:
        use = f"f[1] = sqrt({_number(few.likelihood.variance)} + variance);"
    else:
        has["classes"] = True
        # the latent value is moved towards zero by its variance
        use = f"f[0] /= sqrt(1.0 + {few.likelihood.spread!r} * variance);"
    name = name or ("predict_proba" if has.get("classes") else "predict")
    selected = _BLOCK.sub(lambda at: at[2] if has.get(at[1]) else at[3] or "", _PROGRAM)
    source = Template(selected).substitute(
        name=name,
        what=f"{'class probabilities' if has.get('classes') else 'mean of a target'}, {link}",
        comment="\n   ".join(_comment(few)),
        n_vectors=few.centres.shape[0],
        n_features=few.n_features,
        n_columns=few.centres.shape[1],
        n_scores=len(few.weight),
        n_ranks=len(few.ranks),
        n_classes=0 if few.classes is None else len(few.classes),
        arrays="".join(_array(array, values) for array, values in arrays.items()),
        unit=repr(UNIT),
        term=_C_TERMS[few.kernel.order],
        profile=_C_PROFILES[few.kernel.name],
        use_of_variance=use,
        link=_LINKS.get(link, "").format(flip=_number(getattr(few.likelihood, "flip", 0.0))),
        probability="@own(f, c)" if is_several else "@link(c ? f[0] : -f[0])",
        argument=", double *std" if return_std else "",
        store="\n    *std = f[1];" if return_std else "",
    )
    return source.replace("@", f"{name}_")


def _arrays(few: FewVectors, scaler: Any) -> dict[str, NDArray[Any]]:
    """Return the constant arrays of the C program, by their names in it."""
    arrays = {"centre": few.centres, "width": few.width, "weight": few.weight, **few.columns}
    if scaler is not None:
        arrays["mean"] = np.zeros(few.n_features) + (scaler.mean_ if scaler.with_mean else 0.0)
        arrays["scale"] = np.ones(few.n_features) * (scaler.scale_ if scaler.with_std else 1.0)
    if few.ranks:
        knots, scores = zip(*few.ranks.values(), strict=True)
        arrays |= {"knot": np.concatenate(knots), "score": np.concatenate(scores)}
        arrays["start"] = np.cumsum([0, *map(len, knots)])
        arrays["ranked"] = np.array(list(few.ranks))
    if few.covariance is not None:
        arrays["covariance"] = few.covariance
    return arrays


def _comment(few: FewVectors) -> list[str]:
    """Return the lines of the comment on features, codes of categories and outputs."""
    missing = "; NaN is a missing one (compile without -ffast-math)" if few.columns else ""
    lines = [f"x: {few.n_features} features{missing}."]
    for j, levels in few.words.items():
        lines += [f"x[{j}] = {c}: the level {_escaped(level)}." for c, level in enumerate(levels)]
        lines.append(f"x[{j}] = any other number: an unknown level.")
    if few.classes is not None:
        classes = enumerate(few.classes.tolist())
        lines += [f"p[{c}]: that of {_escaped(value)}, is written." for c, value in classes]
    elif few.covariance is not None:
        lines.append("std: its standard deviation, noise included, is written.")
    return lines


def _scaler_and_last(model: Any) -> tuple[StandardScaler | None, Any]:
    """Return the StandardScaler before an estimator, or None, and the estimator."""
    if isinstance(model, Pipeline) and len(model) == 2 and isinstance(model[0], StandardScaler):
        check_is_fitted(model[0])
        return model[0], model[-1]
    return None, model


def _escaped(value: Any) -> str:
    """Return a value as text for a C comment: one line that cannot end the comment."""
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
