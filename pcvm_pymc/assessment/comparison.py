"""Results compared on rows that were held out: one table, the chains' convergence, pictures."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pcvm_pymc.assessment import held_out, plots
from pcvm_pymc.core.pieces import validation
from pcvm_pymc.core.pieces.names import check_same_rows
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.estimators.measures import Rival
from pcvm_pymc.inference import results as stored
from pcvm_pymc.inference.convergence import Convergence, convergence
from pcvm_pymc.model.bases import AnyKernel
from pcvm_pymc.model.data import as_model


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(held_out.Scores):
    """Results on one test set.

    Attributes
    ----------
    table : pandas.DataFrame
        A row for each: error, AUC, 1-RMSE, log loss and expected calibration error; where a model's own
        observed variable has no classes the log loss alone. Then the scale, the width and the likelihood's
        numbers, such as ``flip``, that it was made at: of draws the median, of widths per feature, too. At
        last vectors and seconds.
    convergence : dict of str to Convergence
        Of the results with several draws.
    probability : dict of str to ndarray, shape (n_test,), or (n_test, n_classes) of several classes
        Predicted probability of the greater class, or of each.
    label : ndarray, shape (n_test,)
        Numbers of the classes: 0 and 1, of several from 0; or the targets.
    classes : ndarray, shape (n_classes,)
    results : dict of str to DataTree or Rival
        As they were given.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import compare, find_map_em, pcvm_model, sample
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> y = X[:, 0] > 0
    >>> model = pcvm_model(X[:20], y[:20], width=1.0, hyperprior="default")
    >>> mode = find_map_em(model, progressbar=False)
    >>> draws = sample(model, draws=200, thin=1, random_seed=1, quiet=True)
    >>> results = {"MAP": mode, "posterior": draws}
    >>> found = compare(results, X[20:], y[20:])
    >>> found.table.columns[:3].tolist()
    ['error', 'AUC', '1-RMSE']
    >>> found.probability["posterior"].shape
    (20,)
    >>> figure = found.plot("calibration")
    """

    convergence: dict[str, Convergence]
    results: dict[str, xr.DataTree | Rival]

    def __repr__(self) -> str:
        verdicts = (f"{name}: {verdict}" for name, verdict in self.convergence.items())
        return "\n".join([super().__repr__(), *verdicts])

    def _repr_html_(self) -> str:
        verdicts = (
            f"<p>{escape(name)}: {verdict}</p>" for name, verdict in self.convergence.items()
        )
        return "".join([super()._repr_html_(), *verdicts])

    def plot(self, kind: str = "calibration") -> Figure:
        """Draw one picture and return its figure.

        Parameters
        ----------
        kind : {"calibration", "weights"}
            Observed against predicted frequencies; weights of the first point estimate and of the first
            result with several draws.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ValueError
            If the kind is unknown, there are no class probabilities, or no such two results of one basis.
        """
        validation.check_choice("kind", kind, ("calibration", "weights"))
        if kind == "calibration":
            return super().plot()
        trees = {name: x for name, x in self.results.items() if isinstance(x, xr.DataTree)}
        points = [tree for name, tree in trees.items() if name not in self.convergence]
        drawn = [trees[name] for name in self.convergence]
        if not (points and drawn):
            needed = "needed a point estimate and a result with several draws"
            raise ValueError(f"plot('weights') of {[*self.results]}; {needed}")
        return plots.plot_weights(points[0], drawn[0])


def active_count(weight: ArrayLike, share: float = 0.95) -> Array:
    """Return how many bases of each draw make up `share` of the sum of ``|w|``, shape (n_draws,).

    Draws of a posterior are never exactly zero, so that they cannot be counted as the MAP's are.

    Parameters
    ----------
    weight : array_like, shape (n_draws, n_basis) or (n_draws, n_basis, n_classes)
        Of several classes a basis has the sum of its sizes.
    share : float
    """
    size = np.abs(np.asarray(weight, dtype=float))
    size = np.sort(size.reshape(*size.shape[:2], -1).sum(axis=-1), axis=1)[:, ::-1]
    cumulative = np.cumsum(size, axis=1)
    return np.sum(cumulative < share * cumulative[:, -1:], axis=1) + 1.0 * (cumulative[:, -1] > 0)


def vector_count(result: xr.DataTree) -> float:
    """Return how many bases a result has: of a point those not zero, of draws `active_count` on average."""
    if "weight" not in result["posterior"]:  # several latent functions
        return np.nan
    weight = stored.weights_of(result)[0]
    if len(weight) > 1:
        return float(active_count(weight).mean())
    return float(np.count_nonzero(weight[0].reshape(weight.shape[1], -1).any(axis=1)))


def compare(
    results: Mapping[str, xr.DataTree | Rival],
    X_test: ArrayLike,
    y_test: ArrayLike,
    *,
    kernel: AnyKernel | None = None,
    model: pm.Model | Mapping[str, pm.Model] | None = None,
    data: Mapping[str, ArrayLike] | None = None,
) -> Comparison:
    """Compare results on held-out rows, of two classes or several.

    A warning says where results are of models that differ in more than how they were inferred.

    Parameters
    ----------
    results : mapping of str to DataTree or Rival
        Of any number, in any order: from `find_map_em`, `fit_evidence`, `sample`, `pymc.sample`,
        `pymc_extras.find_MAP` or an approximation (`pymc.fit`); or another classifier's predictions for the
        same rows.
    X_test : array_like or table, shape (n_test, n_features)
    y_test : array_like, shape (n_test,)
        Labels in the code of the training labels, or targets.
    kernel : str, callable or pm.gp.cov.Covariance, optional
        The kernel that the models were built with; needed where it was a function or a covariance.
    model : pm.Model or mapping of str to pm.Model, optional
        That of the results whose models have user-defined terms; of several models by the results' names.
        Its observed variable is evaluated at the new rows. The model keeps its data.
    data : mapping of str to array_like, optional
        For such a model: the new rows of its own `pm.Data`, such as groups or offsets, by their names.
        `X_test` is set in each latent function, `y_test` in the observed variable.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        If a test label is not a class of the training set, or results are of different classes, or of a
        regression; if a model, or new rows of its data, are missing or without effect.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model, sample
    >>> X = np.random.default_rng(0).normal(size=(12, 2))
    >>> y = np.arange(12) % 2
    >>> built = pcvm_model(X, y, width=1.0)
    >>> fast = {"draws": 20, "max_iter": 200, "cores": 1, "quiet": True}
    >>> posterior = sample(built, random_seed=1, **fast)
    >>> mode = find_map_em(built, progressbar=False)
    >>> found = compare({"MAP": mode, "posterior": posterior}, X, y)
    >>> found.table.index.tolist()
    ['MAP', 'posterior']
    """
    needed = "a mapping of names to results, such as {'MAP': mode, 'posterior': posterior}"
    validation.check_instance("results", results, Mapping, needed)
    if not results:
        raise ValueError(f"results is empty; needed {needed}")
    trees = {
        name: stored.check_result(result, f"results[{name!r}]")
        for name, result in results.items()
        if not isinstance(result, Rival)
    }
    models = _models(trees, model, data)
    check_same_rows(X_test, "X_test", y_test=y_test)
    n_test = len(validation.as_features(X_test, "X_test"))
    found = {k: held_out.classes_of(tree, repr(k), models.get(k)) for k, tree in trees.items()}
    if len(numbers := {len(classes) for classes in found.values()}) > 1:
        raise ValueError(f"{[*found]} have {sorted(numbers)} classes; needed as many of each")
    told = [found[name] for name, tree in trees.items() if "classes" in tree.attrs]
    classes = ([*told, *found.values()] or [np.unique(y_test)])[0]  # none where targets are numbers
    label = held_out.coded(y_test, classes, "y_test", n_test)
    parts = {name: _parts(tree, models.get(name)) for name, tree in trees.items()}
    _warn_of_differences({name: pieces for name, (_, pieces, _) in parts.items()})
    said, table, convergences = dict[str, held_out.Said](), {}, {}
    for name, result in results.items():
        if isinstance(result, Rival):
            shape = (n_test, len(classes))[: 1 + (len(classes) > 2)]
            stated, seen = f"{name!r}, its probability,", np.shape(result.probability)
            validation.check_shape(stated, seen, shape, "for each row of X_test and class")
            said[name] = np.empty(0), result.probability
            about = {"vectors": result.vectors, "seconds": result.seconds}
        else:
            about, _, unknown = parts[name]
            how: Any = {"kernel": kernel, "model": models.get(name), "data": data}
            said[name] = held_out.said_of(result, X_test, label, **how)
            if result["posterior"]["chain"].size * result["posterior"]["draw"].size > 1:
                convergences[name] = convergence(result, unknown)
        table[name] = held_out.score(label, said[name]) | about
    frame, last = pd.DataFrame(table).T, ["scale", "width", "vectors", "seconds"]
    frame = frame.reindex(columns=[*frame.columns.drop(last, errors="ignore"), *last])
    probability = {name: p for name, (_, p) in said.items() if p is not None}
    rows: Any = {"probability": probability, "label": label, "classes": classes}
    return Comparison(table=frame, convergence=convergences, results=dict(results), **rows)


def _models(
    trees: Mapping[str, xr.DataTree], model: Any, data: Mapping[str, Any] | None
) -> dict[str, pm.Model]:
    """Return the models of results with user-defined terms, by the results' names."""
    own = [name for name, tree in trees.items() if not stored.tells_likelihood(tree)]
    given = model if isinstance(model, Mapping) else dict.fromkeys(own if model else (), model)
    models = {name: as_model(each) for name, each in given.items()}
    if lacking := [name for name in own if name not in models]:
        raise ValueError(
            f"results[{lacking[0]!r}] is of a model with user-defined terms; needed this as model=, and as "
            "data= the new rows of its own pm.Data. For an estimator take Rival(its class probabilities)"
        )
    unused = [f"model[{name!r}]" for name in models if name not in trees]
    known = {name for each in models.values() for name in each.named_vars}
    unused += [f"data[{name!r}]" for name in data or {} if name not in known]
    if unused or (model and not models):
        raise ValueError(f"{[*unused, 'model'][0]} has no effect on {[*trees]}; leave it out")
    return models


def _parts(
    result: xr.DataTree, model: pm.Model | None
) -> tuple[dict[str, float], dict[str, Any], list[str]]:
    """Return what a result was made at, its model's pieces, and what was drawn besides the weights."""
    groups = ("posterior", "constant_data", "observed_data")
    drawn, data, seen = (result[group].to_dataset() for group in groups)
    every, prior, end = {**data, **drawn}, dict[str, float](), result.get("optimizer_result", {})
    if "hyperprior" in data:
        prior = {name: float(f"{x:.6g}") for name, x in data["hyperprior"].to_series().items()}
    rate, c = np.median(every.get("rate", prior.get("d", 0.0))), prior.get("c", 0.0)
    has_scale = min(rate, c) > 0 and "evidence_trace" not in result.children
    width = every.get("width", every.get("kernel_width", np.array(np.nan)))
    numbers = {
        "scale": np.sqrt(rate / c) if has_scale else np.nan,
        "width": width,
        **{name: every[name] for name in ("noise", "flip", "degrees") if name in every},
        "vectors": vector_count(result),
        "seconds": end.get("seconds", drawn.attrs.get("sampling_time", np.nan)),
    }
    if model is None:
        unknown = [*stored.nuisance_of(result)]
        likelihood = repr(replace(stored.likelihood_of(result), **dict.fromkeys(unknown, np.nan)))
    else:
        dims = {x.name: model.named_vars_to_dims.get(x.name) or ("",) for x in model.free_RVs}
        unknown = [name for name, each in dims.items() if not str(each[0]).endswith("basis")]
        likelihood = f"{held_out.observed_of(model)[0].name} of {', '.join(sorted(dims))}"
    of_basis = [data[name].values.T for name in ("centres", "signs") if name in data]
    pieces = {
        "labels": [x.values.astype(float).tobytes() for x in seen.values()],
        "likelihood": likelihood,
        "prior": prior,
        "kernel": str(data["kernel"].values[0]) if "kernel" in data.coords else "rbf",
        "width": "unknown" if "width" in drawn else str(width.values),
        "basis": {row.tobytes() for row in np.vstack(of_basis).T} if of_basis else set(),
    }
    return {name: float(np.median(x)) for name, x in numbers.items()}, pieces, unknown


def _warn_of_differences(parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Warn where results are of models that differ in more than how they were inferred."""
    said = []
    for name, each in parts.items():
        first, wanted = next(iter(parts.items()))
        differ = [
            key + f" ({x}, not {wanted[key]})" * (key not in ("labels", "basis"))
            for key, x in each.items()
            if x != wanted[key]
        ]
        said += [f"{name!r} differs from {first!r} in {', '.join(differ)}"] if differ else []
    if said:
        validation.warn_input(f"results are not of one model: {'; '.join(said)}")
