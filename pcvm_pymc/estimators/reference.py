"""What a projection needs of a fitted dense model or of an average of several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.pieces.centres import Centres, CentresLike, Index
from pcvm_pymc.core.pieces.kernels import Kernel, KernelPiece, PerCentre, as_kernel
from pcvm_pymc.core.pieces.likelihoods import Likelihood, NormalProbability, Probit
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.projection import Target
from pcvm_pymc.estimators.base import has_width

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
    make_classifier : callable
        ``(projection) -> classifier``, of the chosen submodel, see `classifier_of`.
    basis_width : ndarray, shape (n_basis,) or (n_basis, n_features), optional
        Width of each basis, where they differ.
    held_out : ndarray, shape of `probability`, optional
        The same of each row, itself and its own bases left out. With it no fold is needed to
        choose the number of vectors.
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
    make_classifier: Callable[[Any], Any]
    basis_width: Array | None = None
    held_out: Array | None = None

    def averaged(self, held_out: Array, *, factors: Sequence[float] = WIDTH_FACTORS) -> "Reference":
        """Return the same of an average of class probabilities, with bases of several widths.

        Parameters
        ----------
        held_out : ndarray, shape (n_obs, n_classes)
            Averages without each row and the bases on it; `probability` has the shape as well.
        factors : sequence of float
            Widths of the bases over `width`.
        """
        both = [each / each.sum(axis=1, keepdims=True) for each in (self.probability, held_out)]
        if self.likelihood.n_scores == 1:
            both = [each[:, 1] for each in both]
        centres, basis_width, n = self.centres, None, len(self.centres)
        if has_width(self.kernel):
            places = np.tile(np.arange(n), len(factors))
            rows, sign = centres.rows[places], centres.signs_of(places)
            centres = Centres(centres.points[places], sign, rows)
            width = np.asarray(self.width)
            basis_width = np.concatenate([np.stack([width * f] * n) for f in factors])
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
        # its density is one of numbers; the labels are the probit's
        return Probit() if isinstance(self.likelihood, NormalProbability) else self.likelihood

    def target(
        self, Phi: Array, columns: Index | slice = slice(None), probability: Array | None = None
    ) -> Target:
        """Return what is to be approximated, by some of the bases."""
        p = self.probability if probability is None else probability
        return Target(Phi, self.centres.signs_of(columns), p, likelihood=self.labels)

    @property
    def basis(self) -> CentresLike:
        """The argument ``basis=`` that gives these centres."""
        centres = self.centres
        if self.basis_width is not None:  # the same places once for each width
            n = len(centres) // len(np.unique(self.basis_width, axis=0))
            centres = Centres(centres.points[:n], centres.signs_of(slice(n)), centres.rows[:n])
        if np.array_equal(centres.points, self.X):
            return None
        if centres.sign is None:  # unused there, but required
            return centres.points, np.repeat(self.classes[:1], len(centres))
        if self.likelihood.n_scores > 1:
            return centres.points, self.classes[centres.sign.argmax(axis=1)]
        return centres.points, centres.sign
