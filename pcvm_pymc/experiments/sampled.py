"""The PCVM of two classes by draws from its posterior, or by the mode of the same model, for comparisons."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from pcvm_pymc.core.pieces.validation import check_choice


class ModelPCVM(ClassifierMixin, BaseEstimator):
    """`pcvm_model` on k-means centres, with unconstrained weights, at one width: its posterior, or its mode.

    Parameters
    ----------
    width : float
    by : {"posterior", "mode"}
        ``"posterior"`` averages probabilities over the draws of Gibbs, ``"mode"`` takes those of the mode
        that EM finds in the same model.
    draws : int
        Of each of four chains, after as many to tune.
    random_state : int
    """

    def __init__(
        self, *, width: float = 1.0, by: str = "posterior", draws: int = 250, random_state: int = 0
    ) -> None:
        self.width = width
        self.by = by
        self.draws = draws
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Build the model and draw from it, or find its mode."""
        from pcvm_pymc import find_map_em, pcvm_model, sample  # PyMC is slow to import

        check_choice("by", self.by, ("posterior", "mode"))
        X, y = validate_data(self, X, y, dtype=float)
        self.classes_ = np.unique(y)
        if len(self.classes_) != 2:
            raise ValueError(f"y has {len(self.classes_)} classes; needed two")
        model = pcvm_model(X, y, width=self.width, basis="kmeans", signs="both")
        if self.by == "mode":
            self.result_ = find_map_em(model, hyperparameters="given", progressbar=False)
        else:
            self.result_ = sample(
                model,
                draws=self.draws,
                tune=self.draws,
                chains=4,
                cores=1,
                random_seed=self.random_state,
                progressbar=False,
                quiet=True,
            )
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return class probabilities, shape (n_new, 2), averaged over the draws."""
        from pcvm_pymc import predict

        check_is_fitted(self)
        X = validate_data(self, X, dtype=float, reset=False)
        probability = predict(self.result_, X)["predictions"]["probability"]
        greater = probability.mean(("chain", "draw")).to_numpy()
        return np.column_stack([1.0 - greater, greater])

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the more probable class of each row."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]
