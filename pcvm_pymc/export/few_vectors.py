"""Parameters of a fitted estimator for an export: centres, widths, weights and link."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from pcvm_pymc.core.pieces.encoding import UNKNOWN
from pcvm_pymc.core.pieces.kernels import PerCentre, Radial
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.transforms import TransformedKernel
from pcvm_pymc.core.pieces.validation import check_flag, check_instance, shown

#: of likelihoods that have an export: those of classes, and those of numbers
LIKELIHOODS = "probit", "logit", "label noise", "multinomial probit", "normal", "student-t"


@dataclass(frozen=True)
class FewVectors:
    """Parameters that an estimator of few vectors predicts from.

    Attributes
    ----------
    kernel : Radial
    n_features : int
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
    columns : mapping of str to ndarray, each of shape (n_columns,)
        Of what the features become: `feature` is its number, `is_number` whether it stays one, with `median`
        in place of NaN. Else it is an indicator of `level`, NaN of a missing one and infinity of all that are
        unknown. Empty: the columns are the features.
    words : mapping of int to ndarray
        Levels of those categories that are no numbers, and are given by codes, in the order of these.
    ranks : mapping of int to (ndarray, ndarray)
        Of columns that become ranks, knots and scores of the map, whose first and last pieces go on. Centres
        are ranked.
    """

    kernel: Radial
    n_features: int
    centres: Array
    width: Array
    weight: Array
    likelihood: Any
    covariance: Array | None
    classes: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]]
    words: Mapping[int, NDArray[Any]]
    ranks: Mapping[int, tuple[Array, Array]]


def few_vectors_of(model: Any, return_std: bool, remedy: str = "") -> FewVectors:
    """Return the parameters of a fitted estimator of this package for an export.

    Raises
    ------
    ValueError
        For an average, a kernel that is not radial, features that are no kernels, or a standard deviation
        that the vectors do not give; for another object with the remedy.
    """
    check_flag("return_std", return_std)
    check_instance("model", model, BaseEstimator, "a fitted estimator of this package")
    check_is_fitted(model)
    _check_vectors(model, remedy)
    kernel: Any = model._kernel_
    centres, likelihood = model.relevance_vectors_, model._likelihood_
    if likelihood.name not in LIKELIHOODS:
        fault = f"likelihood={likelihood.name!r} has no export"
        raise ValueError(f"{fault}; needed one of {LIKELIHOODS}")
    width, ranks = np.asarray(kernel.width, dtype=float), {}
    transform = kernel.transform if isinstance(kernel, TransformedKernel) else None
    if transform is not None and not (transform.codes or len(transform.without)):
        ranks = {j: scores.line() for j, scores in transform.ranks.items()}
        kernel, centres = kernel.kernel, transform(centres)
    if isinstance(kernel, PerCentre):
        kernel, width = kernel.kernel, width.reshape(len(centres), -1)
    if not isinstance(kernel, Radial):
        raise ValueError(
            f"kernel={kernel.name!r} has no export; needed 'rbf', 'laplacian', or another function of the "
            "distance in units of the width"
        )
    numbers, levels = likelihood.targets == "numbers", model._levels_.of_feature
    words = {j: x for j, x in levels.items() if not all(isinstance(v, Real) for v in x.tolist())}
    if return_std and (not numbers or "_process_" in vars(model)):
        raise ValueError(
            f"return_std=True needs a fitted RVMRegressor(std='weights'); found {shown(model)}"
        )
    return FewVectors(
        kernel,
        model.n_features_in_,
        centres,
        np.broadcast_to(width, centres.shape).copy(),
        np.column_stack([np.atleast_2d(model.weight_), np.atleast_1d(model.bias_)]),
        likelihood.with_noise(model.noise_) if numbers else likelihood,
        getattr(model, "covariance_", None) if return_std or not numbers else None,
        None if numbers else model.classes_,
        _columns(model._encoding_, levels, words),
        words,
        ranks,
    )


def _columns(encoding: Any, levels: Any, words: Any) -> dict[str, NDArray[Any]]:
    """Return feature, kind, level and median of each encoded column, as `FewVectors` has them."""
    if encoding is None:
        return {}
    code = np.array([column.level for column in encoding.columns], dtype=float)  # NaN of None, too
    level = np.where(code == UNKNOWN, np.inf, code)
    for j in set(levels) - set(words):
        known = (encoding.features == j) & (code >= 0)
        level[known] = levels[j][code[known].astype(int)].astype(float)
    return {
        "feature": encoding.features,
        "is_number": np.array([column.level is None for column in encoding.columns]),
        "level": level,
        "median": np.array([column.median for column in encoding.columns]),
    }


def _check_vectors(model: Any, remedy: str) -> None:
    """Raise unless a fitted estimator predicts from few vectors: not an average, nor a posterior."""
    name = type(model).__name__
    if not hasattr(model, "_likelihood_"):
        raise ValueError(f"{name} is no estimator of this package; {remedy}")
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
