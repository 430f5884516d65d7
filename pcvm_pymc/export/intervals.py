"""Posterior intervals of an estimator inside a pipeline or a search."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.compose import TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import check_instance, check_real


def predict_interval(model: Any, X: ArrayLike, *, probability: float = 0.89) -> Array:
    """Return the posterior intervals of an estimator, also of the last step of a pipeline.

    The other steps transform the rows before. Of a search the best estimator is taken, of a
    TransformedTargetRegressor the ends are transformed as its predictions are.

    Parameters
    ----------
    model : estimator or Pipeline
        Fitted; with an estimator of this package that has intervals, see its own ``predict_interval``.
    X : array_like, shape (n_new, n_features)
        As `model` takes them.
    probability : float
        Of the interval, above 0 and below 1.

    Returns
    -------
    ndarray, shape (n_new, n_classes, 2), or (n_new, 2) of a regression
        Lower and upper end of the probability of each class of ``classes_``, or of the targets' mean.

    Raises
    ------
    NotFittedError
        Before a fit.
    ValueError
        If the rows or the probability cannot be used, or the estimator has no intervals.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from pcvm_pymc import PCVMClassifier, predict_interval
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> pipeline = make_pipeline(StandardScaler(), PCVMClassifier())
    >>> predict_interval(pipeline.fit(X, X[:, 0] > 0), X[:5]).shape
    (5, 2, 2)
    """
    check_real("probability", probability, 0.0, 1.0)
    check_instance("model", model, BaseEstimator, "a fitted estimator of this package")
    check_is_fitted(model)
    if isinstance(model, Pipeline):
        rows = model[:-1].transform(X) if len(model) > 1 else X
        return predict_interval(model[-1], rows, probability=probability)
    if isinstance(model, TransformedTargetRegressor):
        ends = predict_interval(model.regressor_, X, probability=probability)
        given = model.transformer_.inverse_transform(ends.reshape(-1, 1))
        return np.sort(np.reshape(given, ends.shape), axis=-1)
    inside = model.estimator if isinstance(model, FrozenEstimator) else model
    inside = getattr(inside, "best_estimator_", inside)
    if inside is not model:
        return predict_interval(inside, X, probability=probability)
    own = getattr(model, "predict_interval", None)
    if own is None:
        raise ValueError(
            f"{type(model).__name__} has no intervals; needed PCVMClassifier, MPCVMClassifier or another "
            "estimator of this package, or around it a Pipeline, a search with refit=True, or a "
            "TransformedTargetRegressor"
        )
    return own(X, probability=probability)
