"""What results say of rows that they were not fitted to, and its scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV

from pcvm_pymc.assessment import plots
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_targets, check_choice, labels_of_rows
from pcvm_pymc.core.probabilities import log_average, normalised
from pcvm_pymc.estimators.measures import scores
from pcvm_pymc.inference import results
from pcvm_pymc.inference.prediction import latent_draws, log_density_draws, probability_draws
from pcvm_pymc.model.coordinates import storable
from pcvm_pymc.model.data import new_data
from pcvm_pymc.model.distributions import ProbitBernoulliRV
from pcvm_pymc.model.multinomial import MultinomialProbitRV
from pcvm_pymc.model.names import coordinates, latent_functions

# what is not known is no number
_SHOWN: Any = {"float_format": "{:.4g}".format, "na_rep": "–"}
_OF_CLASSES = BernoulliRV | ProbitBernoulliRV | CategoricalRV | MultinomialProbitRV
#: log densities of labels or targets, shape (n,), and probabilities of classes where there are any
type Said = tuple[Array, Array | None]


@dataclass(frozen=True, kw_only=True, repr=False)
class Scores:
    """Scores of predictions for rows that were held out.

    Attributes
    ----------
    table : pandas.DataFrame
    probability : dict of str to ndarray, shape (n,), or (n, n_classes) of several classes
        Predicted probability of the greater class, or of each; empty where targets are numbers.
    label : ndarray, shape (n,)
        Numbers of the classes: 0 and 1, of several from 0; or the targets.
    classes : ndarray, shape (n_classes,)
    """

    table: pd.DataFrame
    probability: dict[str, Array]
    label: NDArray[Any]
    classes: NDArray[Any]

    def __repr__(self) -> str:
        return self.table.to_string(**_SHOWN)

    def _repr_html_(self) -> str:
        return str(self.table.to_html(**_SHOWN))

    def plot(self, kind: str = "calibration") -> Figure:
        """Draw the calibration of the predictions and return the figure.

        Parameters
        ----------
        kind : {"calibration"}

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ValueError
            If the kind is unknown, or there are no class probabilities.
        """
        check_choice("kind", kind, ("calibration",))
        return plots.plot_calibration(self.label, self.probability, classes=self.classes)


def score(label: NDArray[Any], said: Said) -> dict[str, float]:
    """Return the scores of what was said of rows, given the numbers of their classes, or targets."""
    log_density, probability = said
    if probability is None:
        return {"log loss": -float(log_density.mean())}
    return scores(label, probability)


def observed_of(model: pm.Model) -> tuple[Any, str]:
    """Return the observed variable of a model's latent function, and the name of the data in it.

    Raises
    ------
    ValueError
        If there is none, or more, or what was observed is no `pm.Data`.
    """
    functions, known = {model[name] for name in latent_functions(model)}, {*model.data_vars}
    ours = [rv for rv in model.observed_RVs if functions & {*ancestors([rv])}]
    data = [x.name for x in ancestors(map(model.rvs_to_values.get, ours)) if x in known]
    if len(ours) != 1 or len(data) != 1:
        raise ValueError(
            f"the model observes {[x.name for x in ours]} of its latent functions, as the pm.Data {data}; "
            "needed one variable, observed=pm.Data(...), so that new rows can be set"
        )
    return ours[0], data[0]


def classes_of(result: xr.DataTree, name: str, model: pm.Model | None = None) -> NDArray[Any]:
    """Return the classes of a result, by its model if that is given: none where targets are numbers.

    Raises
    ------
    ValueError
        For a regression, by its name.
    """
    told = results.classes_of(result)
    if model is not None:
        rv, _ = observed_of(model)
        seen = result["observed_data"][rv.name]
        n_classes = max(2, int(seen.max()) + 1) if isinstance(rv.owner.op, _OF_CLASSES) else 0
    else:
        likelihood = results.likelihood_of(result)
        n_classes = max(2, likelihood.n_scores)
        if likelihood.targets == "numbers":
            raise ValueError(
                f"{name} is of a regression under the {likelihood.name!r} likelihood; needed classes"
            )
    return told if len(told) == n_classes else np.arange(n_classes)


def coded(y: ArrayLike, classes: Array, name: str, n_obs: int) -> NDArray[Any]:
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
    if not len(classes):
        return as_targets(y, n_obs)
    y = labels_of_rows(y, n_obs, name)
    if classes.dtype.kind == "U" and y.dtype.kind in "OS":
        y = storable(y, name)  # as the classes, which have the order of what they were before
    if np.isin(y, classes).all():
        order = np.argsort(classes)
        return order[np.searchsorted(classes, y, sorter=order)]
    if classes.tolist() == [0, 1] and y.dtype.kind in "biuf" and np.isin(y, (-1, 1)).all():
        return (y > 0).astype(np.int64)  # a plain PyMC result, which has no classes
    unknown = sorted(set(y.tolist()) - set(classes.tolist()), key=str)
    raise ValueError(f"{name} has labels {unknown[:5]}; needed the classes {classes.tolist()}")


def said_of(
    result: xr.DataTree,
    X: ArrayLike,
    label: NDArray[Any],
    *,
    kernel: Any = None,
    model: pm.Model | None = None,
    data: Mapping[str, Any] | None = None,
) -> Said:
    """Return log densities and class probabilities of new rows.

    Parameters
    ----------
    result : DataTree
    X : array_like, shape (n, n_features)
    label : ndarray, shape (n,)
        Numbers of the classes, or targets.
    kernel : str, callable or pm.gp.cov.Covariance, optional
    model : pm.Model, optional
        Of a result with user-defined terms. Its data are put back.
    data : mapping of str to array_like, optional
        The rows of its further `pm.Data`.
    """
    if model is not None:
        log_density, probability = _by_model(result, X, label, model, data or {})
    else:
        result = results.check_result(result, "result")
        latent = latent_draws(result, X, kernel=kernel)
        labels = results.likelihood_of(result).targets == "labels"
        draws = log_density_draws(result, latent, 2.0 * label - 1.0 if labels else label)
        log_density = log_average(draws)
        probability = probability_draws(result, latent).mean(axis=0)
    if probability is not None and probability.ndim > 1:
        each = normalised(probability)  # the multinomial probit has a column for each of two, too
        probability = each[:, 1] if each.shape[1] == 2 else each
    return log_density, probability


def _by_model(
    result: xr.DataTree, X: ArrayLike, label: Array, model: pm.Model, data: Mapping[str, Any]
) -> Said:
    """Return what a model's own observed variable has at new rows; the model's data are put back."""
    (rv, seen), n_classes = observed_of(model), len(classes_of(result, "", model))
    values, coords = dict[str, Any](), set[str]()
    for name in latent_functions(model):
        new, rows = new_data(model, X, name=name), model.named_vars_to_dims[name][0]
        values, coords = values | new["new_data"], coords | new["coords"].keys()
    values |= {name: x for name, x in data.items() if name in model.named_vars}
    # each row once for each class; once more where data that are not set would be as long as before
    n, n_sets = len(label), max(n_classes, 1)
    n_copies = n_sets + (n_sets * n == len(coordinates(model, rows)))
    values = {name: np.concatenate([np.asarray(x)] * n_copies) for name, x in values.items()}
    every = np.arange(n * n_copies) // n % n_sets if n_classes else np.tile(label, n_copies)
    values[seen] = every.astype(model[seen].type.dtype)
    before = {name: model[name].get_value() for name in values}
    known = {c: model.coords[c] for c in coords}
    with model:
        try:
            pm.set_data(values, coords=dict.fromkeys(coords, np.arange(n * n_copies)))
            how = {"var_names": [rv.name], "extend_inferencedata": False, "progressbar": False}
            found = pm.compute_log_likelihood(result, **how)[rv.name]
        except (ValueError, IndexError) as error:
            raise ValueError(
                f"{rv.name!r} cannot be evaluated at {n} new rows of {[*values]}; needed what is known of "
                "rows as pm.Data of the model, and the new ones in data"
            ) from error
        finally:
            pm.set_data(before, coords=known)
    log_density = log_average(found.values.reshape(-1, n_copies, n)[:, :n_sets])
    if not n_classes:
        return log_density[0], None
    return log_density[label, np.arange(n)], np.exp(log_density).T
