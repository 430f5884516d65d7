"""Classifiers that may be a projection's chosen submodel."""

from typing import Any, Self

import numpy as np

from pcvm_pymc.core.em import log_posterior
from pcvm_pymc.core.problem import Status
from pcvm_pymc.estimators.em_classifier import EMClassifier
from pcvm_pymc.estimators.projection import Projection
from pcvm_pymc.estimators.reference import Reference

__all__ = ["ProjectedClassifier"]


class ProjectedClassifier(EMClassifier):
    """What classifiers share that few vectors can be projected onto."""

    @staticmethod
    def _projected_arguments(reference: Reference, size: int) -> dict[str, Any]:
        """Return arguments of a classifier that is projected onto so many vectors."""
        raise NotImplementedError

    def _take(self, projection: Projection) -> None:
        """Take over weights and bias of a projection's chosen submodel."""
        self.projection_ = projection
        reference, i = projection.reference, projection.index
        centres, bias = reference.centres, projection.path.bias[i]
        weight = projection.path.dense_weight(i, len(centres))
        bias = float(bias) if np.ndim(bias) == 0 else bias
        kept = self._set_weights(centres, weight, bias, reference.width)
        if reference.basis_width is not None:
            self.vector_widths_ = reference.basis_width[kept]
            self._kernel_ = reference.kernel_of(kept)
        Phi = reference.design()
        problem = self._problem(Phi, reference.label, centres, reference.width)
        self.log_posterior_ = log_posterior(problem, weight, self.bias_, Phi @ weight + self.bias_)

    @classmethod
    def from_projection(cls, projection: Projection) -> Self:
        """Return a projection's chosen submodel as a fitted classifier.

        `n_iter_` is 0, since no EM was run here, and `status_` is ``CONVERGED``.

        Parameters
        ----------
        projection : Projection
            From `project`.

        Returns
        -------
        fitted classifier
        """
        reference = projection.reference
        model = cls(
            kernel=reference.kernel,
            width=reference.width,
            basis=reference.basis,
            **cls._projected_arguments(reference, projection.size),
        )
        model.classes_ = reference.classes
        model.n_features_in_ = reference.X.shape[1]
        model._likelihood_ = reference.likelihood
        if "hyperprior" in model.get_params():
            model.hyperprior_ = reference.hyperprior
        model._take(projection)
        model.n_iter_, model.status_ = 0, Status.CONVERGED
        return model
