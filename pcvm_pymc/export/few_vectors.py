"""The numbers that an export consists of: centres, widths and weights of a fitted model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    RobustScaler,
    StandardScaler,
)
from sklearn.utils.validation import check_is_fitted

from pcvm_pymc.core.pieces.encoding import Encoding
from pcvm_pymc.core.pieces.kernels import PerCentre, Radial
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.transforms import Viewed
from pcvm_pymc.core.pieces.validation import check_flag, check_instance, is_real, shown

#: of likelihoods that have an export: those of classes, and those of numbers
LIKELIHOODS = "probit", "logit", "label noise", "multinomial probit", "normal", "student-t"
_ALONE = "Export {} alone, and transform outside of it"


@dataclass(frozen=True)
class FewVectors:
    """The numbers that a model's predictions are computed from.

    Attributes
    ----------
    kernel : Radial
    origin : ndarray, shape (n_features,)
        Subtracted from the features first, so that a large offset costs no digits.
    centres, width : ndarray, shape (n_vectors, n_columns)
    weight : ndarray, shape (n_scores, n_vectors + 1)
        The bias last.
    likelihood : Likelihood
        One of `LIKELIHOODS`, of numbers with its noise.
    covariance : ndarray, shape (n_vectors + 1, n_vectors + 1), optional
        Of weights and, last, bias, where the latent values are averaged over their posterior, or their
        standard deviation is wanted.
    classes : ndarray, shape (n_classes,), optional
        None of a regression.
    encoding : Encoding, optional
        The columns that the features less `origin` become. None: they are these columns.
    levels : mapping of int to ndarray
        Of each category, by its number, in the order of their codes; its origin is zero.
    ranks : mapping of int to (ndarray, ndarray)
        Of columns that become ranks, knots and scores of the map, whose first and last pieces go on. Centres
        are ranked.
    """

    kernel: Radial
    origin: Array
    centres: Array
    width: Array
    weight: Array
    likelihood: Any
    covariance: Array | None
    classes: NDArray[Any] | None
    encoding: Encoding | None
    levels: Mapping[int, NDArray[Any]]
    ranks: Mapping[int, tuple[Array, Array]]

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Return what the columns of the encoding are, each array of shape (n_columns,); else nothing."""
        if self.encoding is None:
            return {}
        columns = self.encoding.columns
        return {
            "feature": self.encoding.features,
            "is_number": np.array([each.level is None for each in columns]),
            "level": np.array([each.level for each in columns], dtype=float),  # NaN of None, too
            "median": np.array([each.median for each in columns]),
        }


def few_vectors_of(model: Any, return_std: bool = False) -> FewVectors:
    """Return centres, weights and link of a fitted model, in the units of its pipeline's input.

    With ``x = s u + t`` for the unscaled features u the kernel is a function of
    ``sum_k (|u_k + t_k / s_k - z_k / s_k| / (width_k / s_k))^order``.

    Raises
    ------
    ValueError
        For an average, a kernel that is not radial, features that are no kernels, a step of a pipeline
        that does not scale or fill single columns, or has seen no number in one, a search without its best
        estimator, or a standard deviation that the vectors do not give.
    """
    check_flag("return_std", return_std)
    if isinstance(model, Pipeline):
        few = few_vectors_of(model[-1], return_std)
        return _before(few, _steps(model.steps[:-1], len(few.origin)))
    check_instance("model", model, BaseEstimator, "a fitted estimator of this package")
    check_is_fitted(model)
    if (inside := predicting(model)) is not model:
        return few_vectors_of(inside, return_std)
    if isinstance(model, TransformedTargetRegressor):
        return _unscaled(few_vectors_of(model.regressor_, return_std), model.transformer_)
    _check_vectors(model)
    kernel: Any = model._kernel_
    centres, likelihood = model.relevance_vectors_, model._likelihood_
    if likelihood.name not in LIKELIHOODS:
        raise ValueError(
            f"likelihood={likelihood.name!r} has no export; needed one of {LIKELIHOODS}"
        )
    width, ranks = np.asarray(kernel.width, dtype=float), {}
    if isinstance(kernel, Viewed) and not (kernel.view.codes or len(kernel.view.without)):
        ranks = {j: each.line() for j, each in kernel.view.ranks.items()}
        kernel, centres = kernel.kernel, kernel.view(centres)
    if isinstance(kernel, PerCentre):
        kernel, width = kernel.kernel, width.reshape(len(centres), -1)
    if not isinstance(kernel, Radial):
        raise ValueError(
            f"kernel={kernel.name!r} has no export; needed 'rbf', 'laplacian', or another function of the "
            "distance in units of the width"
        )
    numbers = likelihood.targets == "numbers"
    if return_std and (not numbers or "_process_" in vars(model)):
        raise ValueError(
            f"return_std=True needs a fitted RVMRegressor(std='weights'); found {shown(model)}"
        )
    return FewVectors(
        kernel,
        np.zeros(model.n_features_in_),
        centres,
        np.broadcast_to(width, centres.shape).copy(),
        np.column_stack([np.atleast_2d(model.weight_), np.atleast_1d(model.bias_)]),
        likelihood.with_noise(model.noise_) if numbers else likelihood,
        getattr(model, "covariance_", None) if return_std or not numbers else None,
        None if numbers else model.classes_,
        model._encoding_,
        model._levels_.of_feature,
        ranks,
    )


def predicting(model: Any) -> Any:
    """Return the best estimator of a search, or what is frozen; another model itself."""
    if isinstance(model, FrozenEstimator):
        return model.estimator
    return getattr(model, "best_estimator_", model)


def _check_vectors(model: Any) -> None:
    """Raise unless a fitted model predicts by vectors of its own."""
    name = type(model).__name__
    if not hasattr(model, "_likelihood_"):
        raise ValueError(
            f"{name} is no estimator of this package; needed one, or around it a Pipeline of scalers, a "
            "search with refit=True, or a TransformedTargetRegressor: export the estimator inside it"
        )
    if hasattr(model, "components_"):
        raise ValueError(
            f"{name} is an average of {len(model.components_)} modes, which has no few vectors; fit with "
            "n_vectors=..., estimation='projection', 'em' or 'bottom-up'"
        )
    if hasattr(model, "idata_") and not hasattr(model, "projection_"):
        projects = "n_vectors" in model.get_params()
        remedy = "n_vectors=..." if projects else "estimation='auto'"
        raise ValueError(f"{name} is a posterior, which has no few vectors; fit with {remedy}")
    if vars(model).get("star", False):
        raise ValueError(
            f"{name}(star=True) predicts by all its rows, and has no few vectors; fit with star=False"
        )
    if len(getattr(model, "machines_", ())) > 1:
        raise ValueError(
            f"{name} has a machine for each of {len(model.classes_)} classes; needed two classes "
            "(MRVMClassifier has several in one model)"
        )
    if not hasattr(model, "relevance_vectors_") or not hasattr(model, "_kernel_"):
        raise ValueError(f"{name} has no vectors of a kernel; needed features='kernel'")


class _Singles(NamedTuple):
    """Columns of which each is ``slope * u + shift`` of one input u.

    Attributes
    ----------
    inputs : ndarray of int, shape (n_columns,)
    slope, shift : ndarray, shape (n_columns,)
    fill : ndarray, shape (n_columns,)
        What takes the place of an input that is missing; NaN where nothing does.
    n_inputs : int
    """

    inputs: Any
    slope: Any
    shift: Any
    fill: Any
    n_inputs: int

    @classmethod
    def of(cls, n: int, slope: Any = 1.0, shift: Any = 0.0, fill: Any = np.nan) -> "_Singles":
        """Return all columns in their order."""
        slope, shift, fill = (np.broadcast_to(each, n) for each in (slope, shift, fill))
        return cls(np.arange(n), slope, shift, fill, n)

    def then(self, later: "_Singles") -> "_Singles":
        """Return the columns that a later step makes of these."""
        inputs, slope, shift, fill = (each[later.inputs] for each in self[:4])
        fill = np.where(np.isnan(fill), (later.fill - shift) / slope, fill)
        shift = later.slope * shift + later.shift
        return _Singles(inputs, later.slope * slope, shift, fill, self.n_inputs)


def _steps(steps: Sequence[tuple[str, Any]], n_columns: int) -> _Singles:
    """Return what the steps of a pipeline make, which ends in so many columns."""
    found = _Singles.of(n_columns)
    for name, step in reversed(steps):
        found = _step(f"step {name!r} of the pipeline", step, found.n_inputs).then(found)
    return found


def _step(place: str, step: Any, n_columns: int) -> _Singles:
    """Return what a fitted step makes: so many columns."""
    if step is None or isinstance(step, str):  # passthrough
        return _Singles.of(n_columns)
    if isinstance(step, Pipeline):
        return _steps(step.steps, n_columns)
    remedy = _ALONE.format("model[-1]")
    plain = isinstance(step, SimpleImputer) and not step.add_indicator
    if plain and is_real(step.missing_values) and np.isnan(step.missing_values):
        check_is_fitted(step)
        if np.shape(step.statistics_) != (n_columns,):
            raise ValueError(
                f"{place} drops a column without any value; needed keep_empty_features=True. {remedy}"
            )
        return _Singles.of(n_columns, fill=np.asarray(step.statistics_, dtype=float))
    if isinstance(step, ColumnTransformer) and not step.transformer_weights:
        check_is_fitted(step)
        return _by_column(place, step, n_columns)
    return _Singles.of(n_columns, *scaling(place, step, remedy))


def _by_column(place: str, step: ColumnTransformer, n_columns: int) -> _Singles:
    """Return what a column transformer makes of its inputs."""
    names = list(getattr(step, "feature_names_in_", ()))
    made = _Singles.of(n_columns)
    inputs, slope, shift, fill = (np.array(each) for each in made[:4])
    for name, inner, given in step.transformers_:
        where = step.output_indices_[name]
        if inner == "drop" or where.start == where.stop:
            continue
        chosen: Any = [given] if isinstance(given, str | Integral) else given
        if not isinstance(chosen, slice) and len(chosen) and isinstance(chosen[0], str):
            chosen = [names.index(each) for each in chosen]
        part = _step(f"{name!r} in {place}", inner, where.stop - where.start)
        inputs[where] = np.arange(step.n_features_in_)[chosen][part.inputs]
        slope[where], shift[where], fill[where] = part.slope, part.shift, part.fill
    used, times = np.unique(inputs, return_counts=True)
    if (times > 1).any():
        raise ValueError(
            f"{place} makes more than one column of the inputs {used[times > 1].tolist()}; needed one of "
            f"each. {_ALONE.format('model[-1]')}"
        )
    return _Singles(inputs, slope, shift, fill, step.n_features_in_)


def _before(few: FewVectors, made: _Singles) -> FewVectors:
    """Return a model of the inputs of what the given one takes; codes are not scaled."""
    is_code = np.isin(np.arange(len(few.origin)), list(few.levels))
    slope, shift = np.where(is_code, 1.0, made.slope), np.where(is_code, 0.0, made.shift)
    unknown = np.flatnonzero(np.isnan(slope + shift))
    if len(unknown):
        raise ValueError(
            f"the pipeline's scaler has seen no number in the columns {unknown.tolist()}; needed some in each"
        )
    origin, encoding = np.zeros(made.n_inputs), few.encoding
    origin[made.inputs] = (few.origin - shift) / slope
    if encoding is not None:
        # medians are less the origin, as the centres are
        fill = (made.fill - origin[made.inputs])[encoding.features]
        slope = np.where(few.columns["is_number"], slope[encoding.features], 1.0)
        median = np.where(np.isnan(fill), few.columns["median"] / slope, fill).tolist()
        inputs = made.inputs[encoding.features].tolist()
        changed = zip(encoding.columns, inputs, median, strict=True)
        encoding = Encoding(tuple(e._replace(feature=j, median=value) for e, j, value in changed))
    ranks = {j: (knots / slope[j], scores) for j, (knots, scores) in few.ranks.items()}
    slope = np.where(np.isin(np.arange(len(slope)), list(ranks)), 1.0, slope)
    return replace(
        few,
        origin=origin,
        centres=few.centres / slope,
        width=few.width / slope,
        encoding=encoding,
        levels={int(made.inputs[j]): each for j, each in few.levels.items()},
        ranks=ranks,
    )


def _unscaled(few: FewVectors, transformer: Any) -> FewVectors:
    """Return a regression of targets that a transformer has made, in the units of the given targets."""
    remedy = _ALONE.format("model.regressor_")
    slope, shift = scaling("the transformer of the targets", transformer, remedy)
    slope, shift = float(np.squeeze(slope)), float(np.squeeze(shift))
    weight = few.weight / slope
    weight[:, -1] -= shift / slope
    covariance = None if few.covariance is None else few.covariance / slope**2
    likelihood = few.likelihood.with_noise(few.likelihood.noise / slope)
    return replace(few, weight=weight, covariance=covariance, likelihood=likelihood)


def scaling(place: str, step: Any, remedy: str) -> tuple[Any, Any]:
    """Return slope and shift of a fitted scaler, by which it turns columns u into slope * u + shift."""
    check_is_fitted(step)
    if isinstance(step, FunctionTransformer) and step.func is step.inverse_func is None:
        return 1.0, 0.0
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
        f"{place} is {shown(step)}, which is no scaler of single columns; needed StandardScaler, "
        f"MinMaxScaler, MaxAbsScaler or RobustScaler (without clip). {remedy}"
    )
