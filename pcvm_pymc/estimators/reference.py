"""What a projection needs of a dense model, and its submodels as classifiers of few vectors."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em import log_posterior
from pcvm_pymc.core.pieces.centres import Centres, Index
from pcvm_pymc.core.pieces.kernels import Kernel, KernelPiece, PerCentre, as_kernel
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem, Status
from pcvm_pymc.core.projection import Target
from pcvm_pymc.estimators.average import Mode
from pcvm_pymc.estimators.base import has_width
from pcvm_pymc.estimators.problems import TrainingData

#: widths that vectors may have where a model is an average over widths, times that of its best mode
WIDTH_FACTORS = (0.6, 1.0, 1.7)


@dataclass(frozen=True)
class Reference:
    """A fitted dense model, as far as a projection needs it.

    Attributes
    ----------
    X : ndarray, shape (n_obs, n_features)
        Training inputs.
    label : ndarray, shape (n_obs,)
        -1. and +1.; numbers of the classes under a likelihood of several scores.
    classes : ndarray, shape (n_classes,)
    centres : Centres
        Of the bases that may be chosen; several may share a place and differ in width.
    probability : ndarray, shape (n_obs,), or (n_obs, n_classes) for several scores
        Of the greater class, or of each, at the training inputs: the posterior mean, the MAP's or an
        average's.
    kernel : str or callable
    width : float or ndarray, shape (n_features,)
        Of all bases, or of an average's best mode.
    hyperprior : Hyperprior
        For the references of the folds.
    likelihood : Likelihood
    kind : type
        Estimator that a submodel becomes.
    basis_width : ndarray, shape (n_basis,) or (n_basis, n_features), optional
        Width of each basis, where they differ.
    held_out : ndarray, shape of `probability`, optional
        The same of each row, itself and its own bases left out. With it no fold is needed to
        choose the number of vectors.
    weight : ndarray, shape (n_obs,), optional
        How often each row counts. Default: once.
    given : ndarray of int, shape (n_obs,), optional
        Numbers of the rows among those that were given, where these are not all.
    groups : ndarray, shape (n_obs,), optional
        Rows of one group are held out together.
    """

    X: Array
    label: NDArray[Any]
    classes: NDArray[Any]
    centres: Centres
    probability: Array
    kernel: Kernel
    width: Any
    hyperprior: Any
    likelihood: Likelihood
    kind: Any
    basis_width: Array | None = None
    held_out: Array | None = None
    weight: Array | None = None
    given: Index | None = None
    groups: NDArray[Any] | None = None

    def averaged(self, held_out: Array) -> "Reference":
        """Return the same of an average of class probabilities, with bases of several widths.

        Parameters
        ----------
        held_out : ndarray, shape (n_obs, n_classes)
            Averages without each row and the bases on it; `probability` has the shape as well.
        """
        both = [each / each.sum(axis=1, keepdims=True) for each in (self.probability, held_out)]
        if self.likelihood.n_scores == 1:
            both = [each[:, 1] for each in both]
        centres, basis_width, n = self.centres, None, len(self.centres)
        if has_width(self.kernel):
            places = np.tile(np.arange(n), len(WIDTH_FACTORS))
            rows, sign = centres.rows[places], centres.signs_of(places)
            centres = Centres(centres.points[places], sign, rows)
            basis_width = np.multiply.outer(np.repeat(WIDTH_FACTORS, n), self.width)
        return replace(
            self, centres=centres, probability=both[0], held_out=both[1], basis_width=basis_width
        )

    def kernel_of(self, columns: Index | slice = slice(None)) -> KernelPiece:
        """Return the kernel of some of the bases, of their widths."""
        if self.basis_width is None:
            return as_kernel(self.kernel, self.width)
        return PerCentre(as_kernel(self.kernel), self.basis_width[columns])

    def design(self) -> Array:
        """Return all basis functions at the training inputs, shape (n_obs, n_basis)."""
        return self.kernel_of()(self.X, self.centres.points)

    @property
    def labels(self) -> Likelihood:
        """How probabilities of labels depend on the latent function."""
        return self.likelihood.of_labels

    def problem(
        self, Phi: Array, columns: Index | slice = slice(None), rows: Index | slice = slice(None)
    ) -> Problem:
        """Return the problem of a fit of some of the bases to some of the rows."""
        sign, label = self.centres.signs_of(columns), self.label[rows]
        weight = None if self.weight is None else self.weight[rows]
        return Problem(Phi, label, sign, self.hyperprior, self.likelihood).weighted(weight)

    def target(
        self,
        Phi: Array,
        columns: Index | slice = slice(None),
        probability: Array | None = None,
        rows: Index | slice = slice(None),
    ) -> Target:
        """Return what is to be approximated, by some of the bases on some of the rows."""
        p = self.probability if probability is None else probability
        weight = None if self.weight is None else self.weight[rows]
        return Target(Phi, self.centres.signs_of(columns), p, weight, likelihood=self.labels)


def reference_of(
    model: Any, data: TrainingData, centres: Centres, held_out: Array | None
) -> Reference:
    """Return a fitted classifier as a reference; with held-out probabilities it is an average."""
    probability, one = model._predictor_.probability(data.X), model._likelihood_.n_scores == 1
    reference = Reference(
        data.X,
        data.label,
        model.classes_,
        centres,
        probability[:, 1] if one and held_out is None else probability,
        kernel=model.kernel,
        width=model.width_,
        hyperprior=getattr(model, "hyperprior_", Hyperprior.plug_in()),
        likelihood=model._likelihood_,
        kind=type(model),
        weight=data.weight,
        given=data.given,
        groups=data.groups,
    )
    return reference if held_out is None else reference.averaged(held_out)


def set_projection(model: Any, projection: Any) -> None:
    """Set weights and bias of a projection's chosen submodel, and their log posterior."""
    reference, i = projection.reference, projection.index
    centres, width, bias = reference.centres, reference.width, projection.path.bias[i]
    weight = projection.path.dense_weight(i, len(centres))
    bias = float(bias) if np.ndim(bias) == 0 else bias
    data = TrainingData(reference.X, reference.label, reference.weight, reference.given)
    kept = model._set_vectors(data, centres, weight, bias, width)
    model.projection_, model._likelihood_ = projection, reference.likelihood
    model._kernel_ = reference.kernel_of(kept)
    if reference.basis_width is not None:
        model.vector_widths_ = reference.basis_width[kept]
    prior = getattr(model, "hyperprior_", None) or Hyperprior.jeffreys()
    shared, every, unknown = model.relevance_vectors_, np.arange(len(kept)), np.nan
    given = (model._kernel_, width, unknown, shared, every, model.weight_.T, bias, unknown)
    model._predictor_ = Mode(*given, kept, reference.likelihood, prior)
    Phi, no_bias = reference.design(), getattr(model, "bias", None) is False
    problem = replace(reference.problem(Phi), hyperprior=prior, bias="none" if no_bias else "prior")
    model.log_posterior_ = log_posterior(problem, weight, bias, Phi @ weight + bias)


def classifier_of(projection: Any) -> Any:
    """Return a projection's chosen submodel as a fitted classifier.

    `n_iter_` is 0, since no EM was run here, and `status_` is ``CONVERGED``.
    """
    reference, centres = projection.reference, projection.reference.centres
    if reference.basis_width is not None:  # the same places once for each width
        n = len(centres) // len(np.unique(reference.basis_width, axis=0))
        centres = Centres(centres.points[:n], centres.signs_of(slice(n)), centres.rows[:n])
    basis: Any = None
    if not np.array_equal(centres.points, reference.X):
        signs = centres.sign
        if signs is None:  # unused there, but required
            signs = np.repeat(reference.classes[:1], len(centres))
        elif signs.ndim == 2:
            signs = reference.classes[signs.argmax(axis=1)]
        basis = (centres.points, signs)
    arguments = {
        "kernel": reference.kernel,
        "width": reference.width,
        "basis": basis,
        "hyperprior": reference.hyperprior,
        "likelihood": reference.likelihood,
        "estimation": "projection",
        "n_vectors": max(projection.size, 1),
        "algorithm": "top-down",  # that of the dense machine
    }
    known = reference.kind._get_param_names()
    if "n_vectors" not in known:  # a machine without that estimation
        del arguments["estimation"]
    model = reference.kind(**{name: arguments[name] for name in arguments if name in known})
    model.classes_, model.n_features_in_ = reference.classes, reference.X.shape[1]
    if "hyperprior" in known:
        model.hyperprior_ = reference.hyperprior
    set_projection(model, projection)
    model.n_iter_, model.status_ = 0, Status.CONVERGED
    return model
