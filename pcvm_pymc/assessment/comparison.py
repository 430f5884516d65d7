"""MAP and posterior compared: one table, the convergence verdict, pictures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from pcvm_pymc.assessment import plots
from pcvm_pymc.core.pieces import validation
from pcvm_pymc.core.pieces.names import check_same_rows
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.probabilities import normalised
from pcvm_pymc.estimators.measures import Rival, scores
from pcvm_pymc.inference import results
from pcvm_pymc.inference.convergence import Convergence, convergence
from pcvm_pymc.inference.prediction import predict
from pcvm_pymc.model.bases import AnyKernel
from pcvm_pymc.model.coordinates import storable

# what a rival does not tell is no number
_SHOWN: Any = {"float_format": "{:.4g}".format, "na_rep": "–"}


@dataclass(frozen=True, repr=False)
class Comparison:
    """MAP, posterior and rivals on one test set.

    Attributes
    ----------
    table : pandas.DataFrame
        A row for each: error, AUC, 1-RMSE, log loss, expected calibration error, vectors, seconds.
    convergence : Convergence
    probability : dict of str to ndarray, shape (n_test,), or (n_test, n_classes) of several classes
        Predicted probability of the greater class, or of each.
    label : ndarray of int, shape (n_test,)
        Numbers of the classes: 0 and 1, of several from 0.
    classes : ndarray, shape (n_classes,)
    map_result, posterior : DataTree

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import compare, find_map_em, pcvm_model, sample
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> y = X[:, 0] > 0
    >>> model = pcvm_model(X[:20], y[:20], width=1.0, hyperprior="default")
    >>> mode = find_map_em(model, progressbar=False)
    >>> draws = sample(model, draws=200, thin=1, random_seed=1, quiet=True)
    >>> found = compare(mode, draws, X[20:], X[20:, 0] > 0)
    >>> found.table.columns[:3].tolist()
    ['error', 'AUC', '1-RMSE']
    >>> found.probability["posterior mean"].shape
    (20,)
    >>> figure = found.plot("calibration")
    """

    table: pd.DataFrame
    convergence: Convergence
    probability: dict[str, Array]
    label: NDArray[Any]
    classes: NDArray[Any]
    map_result: xr.DataTree
    posterior: xr.DataTree

    def __repr__(self) -> str:
        return f"{self.table.to_string(**_SHOWN)}\n{self.convergence}"

    def _repr_html_(self) -> str:
        return f"{self.table.to_html(**_SHOWN)}<p>{self.convergence}</p>"

    def plot(self, kind: str = "calibration") -> Figure:
        """Draw one picture and return its figure.

        Parameters
        ----------
        kind : {"calibration", "weights"}
            Observed against predicted frequencies; weights of mode and posterior.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ValueError
            If the kind is unknown.
        """
        validation.check_choice("kind", kind, ("calibration", "weights"))
        if kind == "weights":
            return plots.plot_weights(self.map_result, self.posterior)
        return plots.plot_calibration(self.label, self.probability, classes=self.classes)


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
    weight = results.weights_of(result)[0]
    if len(weight) > 1:
        return float(active_count(weight).mean())
    return float(np.count_nonzero(weight[0].reshape(weight.shape[1], -1).any(axis=1)))


def of_the_greater(probability: Array) -> Array:
    """Return probabilities of the greater of two classes, shape (n,); of several those of all, of sum one.

    Two classes under the multinomial probit have a column each.
    """
    if probability.ndim == 1:
        return probability
    each = normalised(probability)
    return each[:, 1] if each.shape[1] == 2 else each


def compare(
    map_result: xr.DataTree,
    posterior: xr.DataTree,
    X_test: ArrayLike,
    y_test: ArrayLike,
    *,
    kernel: AnyKernel | None = None,
    rivals: Mapping[str, Rival | xr.DataTree] | None = None,
) -> Comparison:
    """Compare the MAP plug-in and the posterior mean on held-out rows, of two classes or several.

    Parameters
    ----------
    map_result : DataTree
        From `find_map_em` or `pymc_extras.find_MAP`.
    posterior : DataTree
        From `sample`, `pymc.sample` or an approximation (`pymc.fit`), of the same model.
    X_test : array_like, shape (n_test, n_features)
    y_test : array_like, shape (n_test,)
        Labels in the code of the training labels.
    kernel : str, callable or pm.gp.cov.Covariance, optional
        The kernel that the models were built with; needed where it was a function or a covariance.
    rivals : mapping of str to Rival or DataTree, optional
        Other classifiers' predictions for the same rows, or results of other models (another prior,
        a MAP under another hyperprior), which are asked for theirs.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        If a test label is not a class of the training set, a result is of other classes, or of a regression,
        or the mode stands in place of the posterior.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model, sample
    >>> X = np.random.default_rng(0).normal(size=(12, 2))
    >>> y = np.arange(12) % 2
    >>> model = pcvm_model(X, y, width=1.0)
    >>> fast = {"draws": 20, "max_iter": 200, "cores": 1, "quiet": True}
    >>> posterior = sample(model, random_seed=1, **fast)
    >>> mode = find_map_em(model, progressbar=False)
    >>> compare(mode, posterior, X, y).table.index.tolist()
    ['MAP plug-in', 'posterior mean']
    """
    map_result = results.check_result(map_result, "map_result")
    posterior = results.check_result(posterior, "posterior")
    validation.check_instance(
        "rivals", rivals, Mapping, "a mapping of names to Rival or DataTree", optional=True
    )
    n_classes = _n_classes("MAP plug-in", map_result)
    _check_same_model(map_result, posterior)
    check_same_rows(X_test, "X_test", y_test=y_test)
    X_test = validation.as_features(X_test, "X_test")
    # a plain result of PyMC has none
    classes = results.classes_of(map_result if "classes" in map_result.attrs else posterior)
    label = coded(y_test, classes, "y_test", len(X_test))
    shape = (len(label),) if n_classes == 2 else (len(label), n_classes)
    entrants = {"MAP plug-in": map_result, "posterior mean": posterior, **(rivals or {})}
    for name, each in tuple(entrants.items()):
        if isinstance(each, Rival):
            if np.shape(each.probability) != shape:
                raise ValueError(
                    f"{name!r} has probabilities of shape {np.shape(each.probability)}; needed {shape}"
                )
            continue
        entrants[name] = results.check_result(each, f"rivals[{name!r}]")
        if (found := _n_classes(name, entrants[name])) != n_classes:
            raise ValueError(f"{name!r} has {found} classes; needed {n_classes}, as the MAP has")
    entries = {
        name: each if isinstance(each, Rival) else rival_of(each, X_test, kernel)
        for name, each in entrants.items()
    }
    table = {
        name: scores(label, each.probability) | {"vectors": each.vectors, "seconds": each.seconds}
        for name, each in entries.items()
    }
    return Comparison(
        table=pd.DataFrame(table).T,
        convergence=convergence(posterior, list(results.nuisance_of(posterior))),
        probability={name: each.probability for name, each in entries.items()},
        label=label,
        classes=classes,
        map_result=map_result,
        posterior=posterior,
    )


def _check_same_model(map_result: xr.DataTree, posterior: xr.DataTree) -> None:
    """Raise unless these are a mode and a posterior of one model: its labels, prior, width and bases."""
    both = map_result, posterior
    one, many = (
        each["posterior"].sizes["chain"] * each["posterior"].sizes["draw"] for each in both
    )
    if one > 1 or many < 2:
        raise ValueError(
            f"map_result has {one} draws and posterior {many}; needed a mode (find_map_em) and a posterior "
            "(sample), in this order: compare(mode, posterior, X_test, y_test, rivals={name: other result})"
        )
    found, given = (each["constant_data"] for each in both)
    of_one, of_many = map(results.target_of, both)
    differs = [] if np.array_equal(of_one, of_many) else ["labels"]
    for name in ("width", "hyperprior"):
        first, other = (each[name].values if name in each else () for each in (found, given))
        if not np.array_equal(first, other):
            differs.append(name)
    if "centres" in found and "centres" in given:
        bases = {row.tobytes() for row in found["centres"].values}
        if not bases.issuperset(row.tobytes() for row in given["centres"].values):
            differs.append("centres")
    if differs:
        raise ValueError(
            f"map_result has other {', '.join(differs)} than posterior; needed one model, others in rivals="
        )


def _n_classes(name: str, result: xr.DataTree) -> int:
    """Return the number of classes of a result; raise for a regression."""
    likelihood = results.likelihood_of(result)
    if likelihood.targets == "numbers":
        raise ValueError(
            f"{name!r} is a regression under the {likelihood.name!r} likelihood; needed results of classes"
        )
    return max(2, likelihood.n_scores)


def rival_of(result: xr.DataTree, X_test: ArrayLike, kernel: AnyKernel | None = None) -> Rival:
    """Return a result's predictions, number of bases and time."""
    probability = predict(result, X_test, kernel=kernel)["predictions"]["probability"]
    mean = of_the_greater(probability.mean(("chain", "draw")).values)
    end: Any = result.get("optimizer_result", {})
    told = result["posterior"].attrs.get("sampling_time", np.nan)
    return Rival(mean, vector_count(result), float(end.get("seconds", told)))


def coded(y: ArrayLike, classes: Array, name: str, n_obs: int) -> NDArray[np.int64]:
    """Return labels as numbers of the training classes; of 0 and 1 also -1 and +1.

    Parameters
    ----------
    y : array_like, shape (n,)
    classes : ndarray, shape (n_classes,)
    name : str
        Of the argument.
    n_obs : int
        Number of rows.

    Raises
    ------
    ValueError
        If there is not a label for each row, or one is none of the classes.
    """
    y = validation.labels_of_rows(y, n_obs, name)
    if classes.dtype.kind == "U" and y.dtype.kind in "OS":
        y = storable(y, name)  # as the classes, which have the order of what they were before
    if np.isin(y, classes).all():
        order = np.argsort(classes)
        return order[np.searchsorted(classes, y, sorter=order)]
    if classes.tolist() == [0, 1] and y.dtype.kind in "biuf" and np.isin(y, (-1, 1)).all():
        return (y > 0).astype(np.int64)  # a plain PyMC result, which has no classes
    unknown = sorted(set(y.tolist()) - set(classes.tolist()), key=str)
    raise ValueError(f"{name} has labels {unknown[:5]}; needed the classes {classes.tolist()}")
