"""What results say of rows that they were not fitted to, and its scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV
from scipy.special import ndtri

from pcvm_pymc.assessment import plots
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_targets, check_choice, labels_of_rows
from pcvm_pymc.core.probabilities import log_average, normalised
from pcvm_pymc.estimators.measures import scores
from pcvm_pymc.inference import results
from pcvm_pymc.inference.prediction import (
    by_draw,
    latent_draws,
    log_density_draws,
    predict,
    probability_draws,
)
from pcvm_pymc.model.bases import AnyKernel
from pcvm_pymc.model.coordinates import storable
from pcvm_pymc.model.data import new_data
from pcvm_pymc.model.distributions import ProbitBernoulliRV
from pcvm_pymc.model.multinomial import MultinomialProbitRV
from pcvm_pymc.model.names import coordinates, latent_functions

# what is not known is no number
_SHOWN: Any = {"float_format": "{:.4g}".format, "na_rep": "–"}
_OF_CLASSES = BernoulliRV | ProbitBernoulliRV | CategoricalRV | MultinomialProbitRV
_N_TARGETS = 1000  # drawn for an interval of new targets, at least


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


class Held(NamedTuple):
    """What a result says of rows that were held out.

    Attributes
    ----------
    log_density : ndarray, shape (n,)
        Of labels or targets, averaged over draws.
    probability : ndarray, shape (n,) or (n, n_classes), optional
        Of the greater class, or of each.
    error : ndarray, shape (n,), optional
        Targets less their predicted means.
    covered : ndarray, shape (n,), optional
        One where a target is in its 89 % interval, otherwise zero.
    """

    log_density: Array
    probability: Array | None = None
    error: Array | None = None
    covered: Array | None = None

    @classmethod
    def joined(cls, parts: Sequence[Self], order: NDArray[Any]) -> Self:
        """Return what was said of the rows of all parts, in another order."""
        each = zip(*parts, strict=True)
        return cls(*(None if x[0] is None else np.concatenate(x)[order] for x in each))

    def scores(self, label: NDArray[Any]) -> dict[str, float]:
        """Return the scores, given the numbers of the classes or the targets."""
        if self.probability is not None:
            return scores(label, self.probability)
        found = {"log loss": -float(self.log_density.mean())}
        if self.error is not None and self.covered is not None:
            found |= {"RMSE": float(np.sqrt(np.mean(self.error**2)))}
            found |= {"coverage": float(self.covered.mean())}
        return found


def of_the_greater(probability: Array) -> Array:
    """Return probabilities of the greater of two classes, shape (n,); of several those of all, of sum one.

    Two classes under the multinomial probit have a column each.
    """
    if probability.ndim == 1:
        return probability
    each = normalised(probability)
    return each[:, 1] if each.shape[1] == 2 else each


def observed_of(model: pm.Model) -> tuple[Any, str]:
    """Return the observed variable of a model's latent function, and the name of the data in it.

    Raises
    ------
    ValueError
        If there is none, or more, or what was observed is no `pm.Data`.
    """
    functions = {model[name] for name in latent_functions(model)}
    found = [rv for rv in model.observed_RVs if functions & {*ancestors([rv])}]
    if len(found) != 1:
        names = [rv.name for rv in found]
        raise ValueError(f"the observed variables of latent functions are {names}; needed one")
    known = {*model.data_vars}
    data = [x.name for x in ancestors([model.rvs_to_values[found[0]]]) if x in known]
    if len(data) != 1:
        raise ValueError(
            f"{found[0].name!r} was observed as an array; needed a pm.Data, so that new rows can be set"
        )
    return found[0], str(data[0])


def classes_of(result: xr.DataTree, model: pm.Model | None = None) -> NDArray[Any]:
    """Return the classes of a result, by its model if that is given; none where targets are numbers."""
    if model is None:
        likelihood = results.likelihood_of(result)
        n_classes = 0 if likelihood.targets == "numbers" else max(2, likelihood.n_scores)
    else:
        rv, name = observed_of(model)
        seen = model[name].get_value()
        n_classes = max(2, int(seen.max()) + 1) if isinstance(rv.owner.op, _OF_CLASSES) else 0
    told = results.classes_of(result)
    return told if len(told) == n_classes else np.arange(n_classes)


def observed(y: ArrayLike, classes: NDArray[Any], name: str, n_obs: int) -> NDArray[Any]:
    """Return numbers of the classes, or targets where there are none."""
    return coded(y, classes, name, n_obs) if len(classes) else as_targets(y, n_obs)


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


def held_out(
    result: xr.DataTree,
    X: ArrayLike,
    label: NDArray[Any],
    *,
    kernel: AnyKernel | None = None,
    model: pm.Model | None = None,
    data: Mapping[str, ArrayLike] | None = None,
) -> Held:
    """Return what a result says of new rows.

    Parameters
    ----------
    result : DataTree
    X : array_like, shape (n, n_features)
    label : ndarray, shape (n,)
        Numbers of the classes, or targets.
    kernel : str, callable or pm.gp.cov.Covariance, optional
    model : pm.Model, optional
        Of a result with terms of one's own; its data are as before afterwards.
    data : mapping of str to array_like, optional
        The rows of the model's own `pm.Data`.
    """
    if model is not None:
        return _by_model(result, model, X, label, data or {})
    result = results.check_result(result, "result")
    likelihood = results.likelihood_of(result)
    if likelihood.targets == "numbers":
        return _of_numbers(result, X, label, kernel)
    latent = latent_draws(result, X, kernel=kernel)
    target = 2.0 * label - 1.0 if likelihood.targets == "labels" else label
    log_density = log_average(log_density_draws(result, latent, target))
    return Held(log_density, of_the_greater(probability_draws(result, latent).mean(axis=0)))


def _of_numbers(result: xr.DataTree, X: ArrayLike, target: Array, kernel: Any) -> Held:
    """Return what a regression says of new targets; its intervals are those of drawn ones."""
    found = predict(result, X, kernel=kernel)["predictions"].to_dataset()
    latent = found["latent"].values.reshape(-1, len(target))
    error, n_each = target - latent.mean(axis=0), -(-_N_TARGETS // len(latent))
    latent = np.repeat(latent, n_each, axis=0)
    if "latent_sd" in found:  # one draw, of known uncertainty
        normal = ndtri((np.arange(n_each) + 0.5) / n_each)[:, None]
        latent = latent + found["latent_sd"].values[0] * normal
    rng = np.random.default_rng(0)
    drawn = [piece.drawn_targets(f, rng) for piece, f in by_draw(result, latent)]
    low, high = np.percentile(drawn, plots.INTERVAL, axis=0)
    log_density = log_average(log_density_draws(result, latent, target))
    covered = np.where(np.isnan(low), np.nan, (low <= target) & (target <= high))  # unknown noise
    return Held(log_density, error=error, covered=covered)


def _by_model(
    result: xr.DataTree, model: pm.Model, X: ArrayLike, label: NDArray[Any], data: Mapping[str, Any]
) -> Held:
    """Return what a model's own observed variable has at new rows, which `pm.set_data` sets."""
    (rv, own), n_classes = observed_of(model), len(classes_of(result, model))
    values, coords, dims = dict[str, Any](), dict[str, Any](), set()
    for name in latent_functions(model):
        new, dim = new_data(model, X, name=name), model.named_vars_to_dims[name][0]
        values, coords = values | new["new_data"], coords | new["coords"]
        dims.add(dim)
    n_seen = len(coordinates(model, dim))
    values |= {name: data[name] for name in data if name in model.named_vars}
    for x in model.data_vars:
        of_rows = dims & {*(model.named_vars_to_dims.get(x.name) or ())}
        if of_rows and x.name not in {*values, own}:
            raise ValueError(f"data lacks {x.name!r}; needed it for the {len(label)} new rows")
    # each row once for each class; once more where what was not set would be as long as before
    n_sets = max(n_classes, 1)
    n_copies = n_sets + (n_sets * len(label) == n_seen)
    values = {name: np.concatenate([np.asarray(x)] * n_copies) for name, x in values.items()}
    classes = np.repeat(np.arange(n_copies) % n_sets, len(label))
    values[own] = classes if n_classes else np.tile(label, n_copies)
    before = (
        {name: model[name].get_value() for name in values},
        {c: model.coords[c] for c in coords},
    )
    with model:
        try:
            pm.set_data(values, coords={c: np.arange(len(classes)) for c in coords})
            found = pm.compute_log_likelihood(
                result, var_names=[rv.name], extend_inferencedata=False, progressbar=False
            )[rv.name]
        except (ValueError, IndexError) as error:
            raise ValueError(
                f"{rv.name!r} cannot be evaluated at {len(label)} new rows; needed each array of rows in the "
                f"model as a pm.Data, and its rows in data: {error}"
            ) from error
        finally:
            pm.set_data(before[0], coords=before[1])
    draws = found.values.reshape(-1, n_copies, len(label))[:, :n_sets]
    log_density = log_average(draws)
    if not n_classes:
        return Held(log_density[0])
    return Held(log_density[label, np.arange(len(label))], of_the_greater(np.exp(log_density).T))
