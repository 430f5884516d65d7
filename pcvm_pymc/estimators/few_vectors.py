"""A fitted classifier of few vectors as plain numbers, from which it is exported."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from pcvm_pymc.core.pieces.kernels import KernelPiece, PerCentre, Radial
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import check_instance

__all__ = ["FewVectors"]

_LINKS = ("probit", "logit", "label noise", "multinomial probit")


@dataclass(frozen=True)
class FewVectors:
    """What a classifier's probabilities are computed from.

    Attributes
    ----------
    kernel : str
        Name of a radial kernel.
    centres : ndarray, shape (n_vectors, n_features)
    width : ndarray, shape (n_vectors, n_features)
    weight : ndarray, shape (n_scores, n_vectors)
    bias : ndarray, shape (n_scores,)
    link : {"probit", "logit", "label noise", "multinomial probit"}
    flip : float
        Share of labels that are flipped, zero but under ``"label noise"``.
    covariance : ndarray, shape (n_scores, n_vectors + 1, n_vectors + 1), optional
        Of weights and, last, bias, where the latent values are averaged over their posterior.
    spread : float
        How much the variance counts, see `Likelihood.moderated`.
    classes : ndarray, shape (n_classes,)
    """

    kernel: str
    centres: Array
    width: Array
    weight: Array
    bias: Array
    link: str
    flip: float
    covariance: Array | None
    spread: float
    classes: NDArray[Any]

    @classmethod
    def of(cls, model: Any) -> "FewVectors":
        """Return the numbers of a fitted classifier.

        Raises
        ------
        ValueError
            For an average, a kernel that is not radial, or features that are no kernels.
        """
        check_instance("model", model, BaseEstimator, "a fitted classifier of this package")
        check_is_fitted(model)
        name = type(model).__name__
        if not hasattr(model, "classes_"):
            raise ValueError(f"{name} is no classifier; needed a fitted classifier of this package")
        if hasattr(model, "components_"):
            raise ValueError(
                f"{name} is an average of {len(model.components_)} modes, which has no few vectors; fit with "
                "n_vectors=..., estimation='projection', 'em' or 'bottom-up'"
            )
        if not hasattr(model, "relevance_vectors_") or not hasattr(model, "_kernel_"):
            raise ValueError(
                f"{name} has no vectors of one kernel; needed features='kernel', and of RVMClassifier two "
                "classes (MRVMClassifier has several in one model)"
            )
        centres, weight = model.relevance_vectors_, np.atleast_2d(model.weight_)
        covariance = None
        if hasattr(model, "covariance_"):
            covariance = np.asarray(model.covariance_)[None]
        likelihood = model._likelihood_
        if likelihood.name not in _LINKS:
            raise ValueError(
                f"likelihood={likelihood.name!r} has no export; needed one of {_LINKS}"
            )
        kernel, width = _radial(model._kernel_, centres)
        return cls(
            kernel,
            centres,
            width,
            weight,
            np.atleast_1d(np.asarray(model.bias_, dtype=float)),
            likelihood.name,
            float(getattr(likelihood, "flip", 0.0)),
            covariance,
            likelihood.spread,
            model.classes_,
        )

    @property
    def is_moderated(self) -> bool:
        """Whether the latent value is moved towards zero by its variance."""
        return self.covariance is not None


def _radial(kernel: KernelPiece, centres: Array) -> tuple[str, Array]:
    """Return the name of a radial kernel, and its width at each vector and feature."""
    if isinstance(kernel, PerCentre):
        inner, width = kernel.kernel, np.asarray(kernel.width, dtype=float)
        width = width[:, None] if width.ndim == 1 else width
    else:
        inner, width = kernel, np.asarray(kernel.width, dtype=float)
    if not isinstance(inner, Radial):
        raise ValueError(
            f"kernel={inner.name!r} has no export; needed 'rbf', or another function of the distance in "
            "units of the width"
        )
    return inner.name, np.broadcast_to(width, centres.shape).copy()
