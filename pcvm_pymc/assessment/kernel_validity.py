"""The kernel validity of fitted relevance vector machines."""

from typing import Any

from numpy.typing import ArrayLike
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from pcvm_pymc.core.pieces.kernels import MatrixRBF
from pcvm_pymc.core.pieces.names import check_same_rows
from pcvm_pymc.core.pieces.validation import as_targets
from pcvm_pymc.core.validity import Validity, kernel_validity
from pcvm_pymc.estimators.rvm import RVMClassifier, RVMRegressor
from pcvm_pymc.estimators.training import TrainingData


def validity(model: Any, X: ArrayLike, y: ArrayLike) -> Validity:
    """Return how far the kernels of a fitted machine may shift before its likelihood falls.

    A diagnostic of kernels, for classification and regression: of several machines fitted to the same rows
    the one of the highest ``log_validity`` has kernels that fit and are stable.

    Parameters
    ----------
    model : RVMClassifier (of two classes) or RVMRegressor
        Fitted, with ``kernel="rbf"`` or a `MatrixRBF`.
    X : array_like, shape (n_obs, n_features)
        The rows that it was fitted to.
    y : array_like, shape (n_obs,)
        Their labels or targets.

    Returns
    -------
    Validity
        ``log_validity``, the log likelihood in it, and of each kernel how far the data determine its weight
        and the logarithm of its stability along each feature.

    Raises
    ------
    ValueError
        If the model is another, or has another kernel or more than two classes, or the rows are not as many
        as the targets.

    References
    ----------
    D. A. Kropotov, D. P. Vetrov and N. O. Ptashko (2006), eqs. 12-15, corrected: see
    `pcvm_pymc.core.validity`. Regression and kernels with a matrix are what their section VI proposes.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import RVMRegressor
    >>> x = np.linspace(-5, 5, 60)[:, None]
    >>> y = np.sinc(x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=60)
    >>> narrow = RVMRegressor(width=0.2).fit(x, y)
    >>> fitting = RVMRegressor(width=1.0).fit(x, y)
    >>> low, high = validity(narrow, x, y), validity(fitting, x, y)
    >>> bool(low.log_validity < high.log_validity)
    True
    """
    if not isinstance(model, RVMClassifier | RVMRegressor):
        kind = type(model).__name__
        raise ValueError(f"model is a {kind}; needed a fitted RVM, or select(X, y, by='validity')")
    check_is_fitted(model)
    if model.estimation == "posterior":
        raise ValueError("the model is a posterior; needed a fit, estimation='auto'")
    fitted = model._predictor_.machines
    kernel: Any = fitted[0].kernel
    if kernel.name not in ("rbf", MatrixRBF.name):
        raise ValueError(f"kernel={model.kernel!r}; needed 'rbf' or a MatrixRBF, of known slopes")
    check_same_rows(X, y=y)
    rows, (machine, *others) = model._inputs(X), fitted
    if others:
        raise ValueError(
            f"the model has {len(model.classes_)} classes; needed two: one of machines_"
        )
    if vars(model).get("noise_") == 0.0:
        raise ValueError("the model has a known noise of each row; needed a fit without")
    if is_classifier(model):
        target = 2.0 * model._known_labels(y, len(rows)) - 1.0
    else:
        target = as_targets(y, len(rows))
    data = TrainingData(rows, target).merged()
    rows, target = data.X, data.label
    latent: Any = model.latent_moments(rows)[0] if is_classifier(model) else model.predict(rows)
    result, weight = machine.result, machine.row_weight
    likelihood: Any = model._likelihood_.with_noise(result.noise)
    if weight is not None and len(weight) != len(rows):
        raise ValueError(f"X has {len(rows)} rows; needed the {len(weight)} of weight in the fit")
    pieces: dict[str, Any] = {"kernel": kernel, "likelihood": likelihood}
    pieces |= {"centres": model.relevance_vectors_, "row_weight": weight}
    return kernel_validity(rows, target, model.weight_, latent, result.determined, **pieces)
