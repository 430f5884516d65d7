"""Results compared on rows that were held out: one table, the chains' convergence, pictures."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from pcvm_pymc.assessment import plots
from pcvm_pymc.assessment.held_out import Scores, classes_of, held_out, observed, observed_of
from pcvm_pymc.core.pieces import validation
from pcvm_pymc.core.pieces.names import check_same_rows
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.estimators.measures import Rival, scores
from pcvm_pymc.inference import results as stored
from pcvm_pymc.inference.convergence import Convergence, convergence
from pcvm_pymc.model.bases import AnyKernel
from pcvm_pymc.model.data import as_model


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Scores):
    """Results on one test set.

    Attributes
    ----------
    table : pandas.DataFrame
        A row for each: error, AUC, 1-RMSE, log loss and expected calibration error; of regressions log loss,
        RMSE and the share of targets in their 89 % intervals. Then the scale of the weights, the width and
        the likelihood's numbers that it was made at, of draws their medians, of widths per feature the
        median, too; vectors, seconds.
    convergence : dict of str to Convergence
        Of the results with several draws.
    probability : dict of str to ndarray, shape (n_test,), or (n_test, n_classes) of several classes
        Predicted probability of the greater class, or of each; empty of regressions.
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
    >>> found = compare({"MAP": mode, "posterior": draws}, X[20:], X[20:, 0] > 0)
    >>> found.table.columns[:3].tolist()
    ['error', 'AUC', '1-RMSE']
    >>> found.probability["posterior"].shape
    (20,)
    >>> figure = found.plot("calibration")
    """

    convergence: dict[str, Convergence]
    results: dict[str, xr.DataTree | Rival]

    def __repr__(self) -> str:
        verdicts = (f"{name}: {each}" for name, each in self.convergence.items())
        return "\n".join([super().__repr__(), *verdicts])

    def _repr_html_(self) -> str:
        verdicts = (f"<p>{escape(name)}: {each}</p>" for name, each in self.convergence.items())
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
        trees = {name: each for name, each in self.results.items() if not isinstance(each, Rival)}
        pair = [
            [x for name, x in trees.items() if (name in self.convergence) == is_drawn]
            for is_drawn in (False, True)
        ]
        if not all(pair):
            raise ValueError(
                f"plot('weights') of {[*trees]}; needed a point estimate and a result with several draws"
            )
        return plots.plot_weights(pair[0][0], pair[1][0])


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
    """Compare results on held-out rows, of two classes, several, or of regressions.

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
        That of the results whose models have terms of one's own; of several models by the results' names.
        Its observed variable is evaluated at the new rows. The model keeps its data.
    data : mapping of str to array_like, optional
        For such a model: the new rows of its own `pm.Data`, such as groups or offsets, by their names. `X_test`
        is set in each latent function, `y_test` in the observed variable.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        If a test label is not a class of the training set, or results are of different classes or targets; if
        a model, or new rows of its data, are missing or without effect.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model, sample
    >>> X = np.random.default_rng(0).normal(size=(12, 2))
    >>> y = np.arange(12) % 2
    >>> built = pcvm_model(X, y, width=1.0)
    >>> fast = {"draws": 20, "max_sweeps": 200, "cores": 1, "quiet": True}
    >>> posterior = sample(built, random_seed=1, **fast)
    >>> mode = find_map_em(built, progressbar=False)
    >>> compare({"MAP": mode, "posterior": posterior}, X, y).table.index.tolist()
    ['MAP', 'posterior']
    """
    needed = "a mapping of names to results, such as {'MAP': mode, 'posterior': posterior}"
    validation.check_instance("results", results, Mapping, needed)
    if not results:
        raise ValueError(f"results is empty; needed {needed}")
    trees = {
        name: stored.check_result(each, f"results[{name!r}]")
        for name, each in results.items()
        if not isinstance(each, Rival)
    }
    models = _models(trees, model, data)
    check_same_rows(X_test, "X_test", y_test=y_test)
    n_test = len(validation.as_features(X_test, "X_test"))
    classes = _classes(trees, models, y_test)
    label = observed(y_test, classes, "y_test", n_test)
    _warn_of_differences(trees, models)
    table, probability, convergences = {}, {}, {}
    for name, each in results.items():
        if isinstance(each, Rival):
            table[name] = _of_rival(name, each, label, len(classes))
            probability[name] = each.probability
            continue
        own = models.get(name)
        found = held_out(
            trees[name] if own is None else each,
            X_test,
            label,
            kernel=kernel,
            model=own,
            data=data,
        )
        table[name] = found.scores(label) | _made_at(trees[name])
        if found.probability is not None:
            probability[name] = found.probability
        if n_draws(each) > 1:
            convergences[name] = convergence(each, _unknown(trees[name], own))
    return Comparison(
        table=pd.DataFrame(table).T,
        probability=probability,
        label=label,
        classes=classes,
        convergence=convergences,
        results=dict(results),
    )


def _models(
    trees: Mapping[str, xr.DataTree], model: Any, data: Mapping[str, Any] | None
) -> dict[str, pm.Model]:
    """Return the models of results with terms of one's own, by the results' names."""
    own = [name for name, tree in trees.items() if not stored.tells_likelihood(tree)]
    several = isinstance(model, Mapping)
    models = dict(model) if several else {} if model is None else dict.fromkeys(own, model)
    models = {name: as_model(each) for name, each in models.items()}
    if lacking := [name for name in own if name not in models]:
        raise ValueError(
            f"results[{lacking[0]!r}] is of a model with terms of one's own; needed it as model=, and the new "
            "rows of its own pm.Data as data="
        )
    unknown = [f"model[{name!r}]" for name in models if name not in trees]
    known = {name for each in models.values() for name in each.named_vars}
    unknown += [f"data[{name!r}]" for name in data or {} if name not in known]
    unknown += ["model"] if model is not None and not models else []
    if unknown:
        raise ValueError(f"{unknown[0]} has no effect on {[*trees]}; leave it out")
    return models


def _classes(
    trees: Mapping[str, xr.DataTree], models: Mapping[str, pm.Model], y_test: ArrayLike
) -> NDArray[Any]:
    """Return the classes of all results, none of regressions; raise where they differ."""
    found = {name: classes_of(tree, models.get(name)) for name, tree in trees.items()}
    if not found:
        return np.unique(validation.present_labels(y_test, "y_test"))
    told = [name for name, tree in trees.items() if "classes" in tree.attrs]
    first = [*told, *found][0]
    for name, each in found.items():
        if len(each) != len(found[first]) or (name in told and (each != found[first]).any()):
            of = [x.tolist() or "a regression" for x in (each, found[first])]
            raise ValueError(f"{name!r} has the classes {of[0]}; needed {of[1]}, as {first!r} has")
    return found[first]


def _of_rival(name: str, rival: Rival, label: NDArray[Any], n_classes: int) -> dict[str, float]:
    """Return the row of a classifier's predictions; raise unless they are of these rows and classes."""
    shape: Any = (len(label), n_classes)[: 1 + (n_classes > 2)] if n_classes else "a regression"
    if np.shape(rival.probability) != shape:
        raise ValueError(
            f"{name!r} has probabilities of shape {np.shape(rival.probability)}; needed {shape}"
        )
    return scores(label, rival.probability) | {"vectors": rival.vectors, "seconds": rival.seconds}


def n_draws(result: xr.DataTree) -> int:
    """Return the number of draws of all chains."""
    return int(result["posterior"].sizes["chain"] * result["posterior"].sizes["draw"])


def _unknown(result: xr.DataTree, model: pm.Model | None) -> list[str]:
    """Return the names of what was drawn beside the weights of the latent function."""
    if model is None:
        return list(stored.nuisance_of(result))
    dims = {x.name: model.named_vars_to_dims.get(x.name) or ("",) for x in model.free_RVs}
    return [name for name, each in dims.items() if not str(each[0]).endswith("basis")]


def _made_at(result: xr.DataTree) -> dict[str, float]:
    """Return the scale, the width and the likelihood's numbers of a result, its bases and seconds."""
    drawn, data = (result[group].to_dataset() for group in ("posterior", "constant_data"))
    every, prior = data.assign(drawn), _prior(data)
    numbers = {}
    if stored.tells_likelihood(result):
        numbers = {**vars(stored.likelihood_of(result)), **stored.nuisance_of(result)}
    width = every.get("width", every.get("kernel_width", np.nan))
    rate, c = float(np.median(every.get("rate", prior.get("d", 0.0)))), prior.get("c", 0.0)
    has_scale = min(rate, c) > 0 and "evidence_trace" not in result.children
    end: Any = result.get("optimizer_result", {})
    told = drawn.attrs.get("sampling_time", np.nan)
    return {
        "scale": np.sqrt(rate / c) if has_scale else np.nan,
        "width": float(np.median(width)),
        **{
            name: float(np.median(x)) for name, x in numbers.items() if np.asarray(x).dtype == float
        },
        "vectors": vector_count(result),
        "seconds": float(end.get("seconds", told)),
    }


def _prior(data: xr.Dataset) -> dict[str, float]:
    """Return the numbers of a model's prior."""
    if "hyperprior" not in data:
        return {}
    names = data["hyperparameter"].values.tolist()
    return dict(zip(names, data["hyperprior"].values.tolist(), strict=True))


def _model_of(result: xr.DataTree, model: pm.Model | None) -> dict[str, tuple[str, Any]]:
    """Return what a result's model is made of, by its parts: what is said of them, and what they are."""
    drawn, data = (result[group].to_dataset() for group in ("posterior", "constant_data"))
    if model is None:
        numbers = vars(stored.likelihood_of(result)).items()
        known = {k: x for k, x in numbers if isinstance(x, float) and x == x and k not in drawn}
        likelihood = " ".join([stored.likelihood_of(result).name, *_listed(known)])
    else:
        likelihood = (
            f"{observed_of(model)[0].name} of {', '.join(sorted(x.name for x in model.free_RVs))}"
        )
    seen = result["observed_data"].to_dataset().data_vars.values()
    centres = data["centres"].values if "centres" in data else np.empty((0, 0))
    signs = data["signs"].values if "signs" in data else np.empty((len(centres), 0))
    bases = np.column_stack([centres, signs])
    width = data.get("width", data.get("kernel_width", np.nan))
    said = {
        "labels": ("others", [x.values.astype(float).tobytes() for x in seen]),
        "likelihood": (likelihood, None),
        "prior": (", ".join(_listed(_prior(data))), None),
        "kernel": (str(data["kernel"].values[0]) if "kernel" in data.coords else "rbf", None),
        "width": ("unknown" if "width" in drawn else validation.shown(width.values.tolist()), None),
        "basis": (f"{len(bases)} functions", {row.tobytes() for row in bases}),
    }
    return said


def _listed(numbers: Mapping[str, float]) -> list[str]:
    return [f"{name}={x:.6g}" for name, x in numbers.items()]


def _warn_of_differences(trees: Mapping[str, xr.DataTree], models: Mapping[str, pm.Model]) -> None:
    """Warn where results are of models that differ in more than how they were inferred."""
    parts = {name: _model_of(tree, models.get(name)) for name, tree in trees.items()}
    said = []
    for name, each in list(parts.items())[1:]:
        first, other = next(iter(parts.items()))
        differ = [
            f"{key} {each[key][0]} for {other[key][0]}" for key in each if each[key] != other[key]
        ]
        if differ:
            said.append(f"{name!r} differs from {first!r} in {'; '.join(differ)}")
    if said:
        validation.warn_input(
            f"the results are of different models, not of one by different inference: {'. '.join(said)}"
        )
