"""The probabilistic classification vector machine for scikit-learn."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em import EMResult, fit_em
from pcvm_pymc.core.family import FAMILY, System
from pcvm_pymc.core.pieces.centres import Centres, CentresLike, Index, as_centres
from pcvm_pymc.core.pieces.kernels import Kernel, as_kernel, median_distance
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.estimators.averaging import CV_AND_VECTORS, AveragingClassifier
from pcvm_pymc.estimators.base import WIDTH_EFFECT
from pcvm_pymc.estimators.em_classifier import IN_CHUNKS, Training
from pcvm_pymc.estimators.parameters import (
    Conditional,
    named_likelihood,
)
from pcvm_pymc.estimators.reference import Reference
from pcvm_pymc.estimators.selection import WidthSelection, problem_at, select_width
from pcvm_pymc.estimators.starts import select_start

__all__ = ["PCVMClassifier"]

_ROW = FAMILY["pcvm"]


def _by_em(model: "PCVMClassifier") -> bool:
    return model.estimation != "bottom-up"


def _is_named(value: Any, name: str) -> bool:
    return isinstance(value, str) and value == name


class PCVMClassifier(AveragingClassifier):
    """Probabilistic classification vector machine: an average of posterior modes, or one of them.

    By default modes are found by EM at several widths of the kernel and scales of the weights' prior, and
    their class probabilities are averaged, each weighted by how well it predicts rows that are left out.

    Parameters
    ----------
    kernel : "rbf" or callable
        ``exp(-||x - z||^2 / width^2)``, or a function ``(X, Z, width) -> (n, m)``.
    width : float, "auto", "cv", "evidence", "validity" or "em"
        Width of the basis functions, in the unit of X. ``"auto"`` chooses it inside the training data, with
        the scale, by leaving one out (`select`); under an improper hyperprior and from the bottom up by
        cross-validation. ``"cv"``, ``"evidence"`` and ``"validity"`` choose it by the scores of
        `select_width`, ``"em"`` by maximising the posterior within EM. Standardise columns of different
        units first, as in ``make_pipeline(StandardScaler(), PCVMClassifier())``.
    scale : float, "auto" or None
        Scale sqrt(d / c) of the weights' prior under ``hyperprior="default"``: a number; ``"auto"``, chosen
        by leaving one out; None does so where the width is chosen that way too, and is 1 otherwise.
    basis : None, int or (array_like, array_like)
        Where basis functions stand: on all training rows; on so many of them, chosen by k-means++ within
        each class, see `choose_basis`; or at centres, shape (n_basis, n_features), with the signs of
        their weights.
    likelihood : {"probit", "logit", "label noise", "normal-probability"} or Likelihood
        How labels depend on the latent function: a name, or a piece with its parameters, that the row
        ``"pcvm"`` of `FAMILY` has.
    hyperprior : "default", "plug_in", "jeffreys", "chen2009" or Hyperprior
        ``"default"`` is Gamma(5, 5 scale^2) for the precisions of the weights and Gamma(1, 1) for that of
        the bias: proper, the most accurate, with most weights non-zero; ``"plug_in"`` is the same at scale 1.
        ``"jeffreys"`` (the paper) and ``"chen2009"`` (its authors' program) are improper: few vectors,
        less accurate. Not from the bottom up.
    estimation : {"auto", "average", "em", "projection", "bottom-up"}
        ``"average"`` averages the class probabilities of modes over width and scale, or over the one of
        them that is not given. ``"em"`` keeps one posterior mode, the best. ``"auto"`` averages where one of
        them is left to be chosen under a proper hyperprior, else it is ``"em"``. ``"projection"`` finds the
        submodel of few vectors that is nearest to one mode, see `project`. ``"bottom-up"`` adds and
        deletes bases one at a time by the evidence of their precisions: few vectors, and no fit of all
        bases.
    n_vectors : int, "auto" or None
        Number of vectors at most of the projection of what is fitted, the average or the mode. ``"auto"``
        chooses it by held-out log density. None: no projection, and ``"auto"`` for
        ``estimation="projection"``.
    n_init : int
        Number of starts of EM, chosen among by cross-validated log loss: the default start, an RVM-like
        one, an SVM-like one, then random ones. The paper uses eight. It matters for improper hyperpriors.
    cv : int
        Folds of the inner cross-validation, where something is chosen by it.
    update : {"auto", "newton", "em", "clip"}
        How EM steps, see `EMOptions`; ``"clip"`` with ``hyperprior="chen2009"`` is the authors' recipe.
    max_iter : int
        Most iterations of EM, or of the search; a fit that needs more warns.
    tol : float, optional
        Largest change at which to stop: of a latent value in EM, by default 1e-5 (under ``"clip"`` of a
        weight, 1e-3), of a log precision from the bottom up, by default 1e-2.
    memory_limit : float, optional
        Bytes for what the fit holds beside the data. With a limit the rows go through EM in chunks: the
        basis functions are never held whole, and are computed anew in every iteration. For many rows and few
        bases. A width that is not a number is then chosen on at most 5000 rows.
    kernel_dtype : {"float64", "float32"}
        Precision of the basis functions within a chunk; ``"float32"`` is about twice as fast, its
        probabilities agree to about 1e-4. Needs rows in chunks.
    n_jobs : int, optional
        Threads for rows in chunks, and for predictions; None is one, -1 all processors.
    class_weight : dict, "balanced" or None
        How often rows of a class count, times `sample_weight` of `fit`: by class, or, ``"balanced"``, in
        proportion to one over the class' number of rows.
    random_state : int, numpy.random.Generator or None
        For folds and random starts.

    Attributes
    ----------
    classes_ : ndarray, shape (2,)
    components_ : list of Component
        Of an average only: its modes, each with width, scale, vectors, weights, bias and log loss.
    component_weights_ : ndarray, shape (n_components,)
        Their weights in the average, which sum to one. **What follows, but for** ``classes_`` **and**
        ``selection_`` **, belongs to the best of the modes, not to the average, which has no weights of its
        own.**
    held_out_ : ndarray, shape (n_obs, n_classes)
        Of an average only: its class probabilities at the training rows, each row and its own bases left out;
        NaN where that was not computed.
    selection_ : Cells
        Widths and scales that were tried and how much each counts, where they are chosen by leaving
        one out.
    relevance_vectors_ : ndarray, shape (n_relevance, n_features)
        Centres (by default training rows) whose weight is not zero.
    support_ : ndarray of int, shape (n_relevance,)
        Their numbers among the training rows; -1 for centres that are none.
    weight_ : ndarray, shape (n_relevance,)
        Their weights: positive for rows of ``classes_[1]``, negative for those of ``classes_[0]``.
    bias_ : float
    width_, scale_ : float
        The scale is that of the hyperprior, NaN for one without.
    hyperprior_ : Hyperprior
        Not from the bottom up.
    log_posterior_ : float
        Of these weights and bias, precisions integrated out; from the bottom up, given the precisions.
    n_iter_ : int
    status_ : Status
        How the fit ended; an empty model predicts by its bias alone.
    width_selection_ : WidthSelection
        Scores of the candidates, where the width is chosen by one of the scores of `select_width`.
    projection_ : Projection
        Path, scores and choice, where there is one.
    vector_widths_ : ndarray, shape (n_relevance,) or (n_relevance, n_features)
        Width of each vector, where an average over widths was projected; ``width_`` is that of its best cell.

    Notes
    -----
    `fit` accepts Dask arrays (the extra ``pcvm-pymc[dask]``): the rows stay where Dask keeps them, in chunks,
    and only sums of the size of the basis travel. Predictions for a Dask array are Dask arrays.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), "Probabilistic classification vector machines", IEEE
    Transactions on Neural Networks 20(6), 901-914, eqs. 3-4, 7-12 and 21-25, corrected: see `EMStep`. From
    the bottom up: `pcvm_pymc.core.evidence.fit_bottom_up`; leaving one out: `pcvm_pymc.core.loo`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> model = PCVMClassifier(random_state=0).fit(X, np.where(X[:, 0] > 0, "yes", "no"))
    >>> model.predict([[2.0, 0.0]])
    array(['yes'], dtype='<U3')
    """

    _takes_several = False
    _for_several = "MPCVMClassifier (or sklearn.multiclass.OneVsRestClassifier)"
    _system = _ROW
    _methods = ("auto", "cv", "evidence", "validity", "em")
    _choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "estimation": ("auto", "average", "em", "projection", "bottom-up"),
        "update": ("auto", "newton", "em", "clip"),
        "kernel_dtype": ("float64", "float32"),
    }
    _least: ClassVar[dict[str, int]] = {"n_init": 1, "cv": 2, "max_iter": 1}
    _conditional = (
        WIDTH_EFFECT,
        IN_CHUNKS,
        *(
            Conditional(name, default, ("estimation",), _by_em, "an estimation by EM")
            for name, default in (
                ("hyperprior", "default"),
                ("scale", None),
                ("update", "auto"),
                ("n_init", 1),
            )
        ),
        *CV_AND_VECTORS,
    )
    _chunk_rules: ClassVar[dict[str, Any]] = {
        "update": lambda value: value != "clip",
        "width": lambda value: not _is_named(value, "em"),
        "n_init": lambda value: value == 1,
        "estimation": lambda value: value != "projection",
        "n_vectors": lambda value: value is None,
    }
    _chunk_words = (
        "an update that is not 'clip', a width that is not 'em', n_init=1, an estimation that is not "
        "'projection', and n_vectors=None"
    )

    def __init__(
        self,
        *,
        kernel: Kernel = "rbf",
        width: float | str = "auto",
        basis: CentresLike = None,
        likelihood: Likelihood | str = "probit",
        hyperprior: Hyperprior | str = "default",
        scale: float | str | None = None,
        estimation: str = "auto",
        n_vectors: int | str | None = None,
        n_init: int = 1,
        cv: int = 5,
        random_state: int | np.random.Generator | None = None,
        update: str = "auto",
        max_iter: int = 10_000,
        tol: float | None = None,
        memory_limit: float | None = None,
        kernel_dtype: str = "float64",
        n_jobs: int | None = None,
        class_weight: Any = None,
    ) -> None:
        self._keep(locals())

    @property
    def _solver(self) -> str:
        return "em" if _by_em(self) else "bottom-up"

    @property
    def _system_row(self) -> System:
        return _ROW

    @property
    def _is_plain(self) -> bool:
        return self.n_init == 1 and self.update != "clip" and not _is_named(self.width, "em")

    _plain = ("n_init", "update")
    _plain_words = ", n_init=1, and an update that is not 'clip'"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if _by_em(self):
            self.hyperprior_ = self._prior
        self._likelihood(2)
        if not _by_em(self) and _is_named(self.width, "em"):
            raise ValueError("width='em' is moved by EM; needed an estimation by EM")

    def _likelihood(self, n_classes: int) -> Likelihood:
        return named_likelihood(self.likelihood, _ROW.likelihoods)

    @property
    def _prior(self) -> Any:
        # from the bottom up precisions are estimated, their logarithms flat
        return super()._prior if _by_em(self) else Hyperprior.jeffreys()

    def _centres_at(self, basis: Any, X: Array, label: NDArray[Any]) -> Centres:
        return as_centres(basis, X, label)

    def _problem(self, Phi: Any, label: Any, centres: Centres, width: Any) -> Problem:
        return Problem(Phi, label, centres.sign, self._prior, self._likelihood_, width=width)

    def _chosen_width(self, X: Array, label: NDArray[Any], rng: np.random.Generator) -> Any:
        """Return the width to fit with, or at which EM starts to move it."""
        if self.width == "em":
            return median_distance(X)
        if self.width == "auto" and not _by_em(self):
            return super()._chosen_width(X, label, rng)
        found = select_width(
            X,
            label,
            hyperprior=None if self.width == "evidence" else self._prior,
            likelihood=self._likelihood_,
            kernel=self.kernel,
            basis=self._basis_of(len(X)),
            cv=self.cv,
            method="cv" if self.width == "auto" else self.width,
            options=self._options,
            random_state=rng,
            sample_weight=self._weight,
        )
        return self._noted(found)

    def _noted(self, found: WidthSelection) -> float:
        self.width_selection_ = found
        return found.width

    def _fit_whole(self, data: Training, width: Any, rng: np.random.Generator) -> list[EMResult]:
        """Fit with the basis functions of all rows in memory, from the best of the starts."""
        if not _by_em(self) or self._averages:
            return super()._fit_whole(data, width, rng)
        X, label, centres, weight = data

        def problem_of(rows: Index | None = None) -> Problem:
            return self._problem_of(data, width, rows)

        def design(test: Index, train: Index, at: Any) -> Array:
            return as_kernel(self.kernel, at)(X[test], centres.points[centres.columns_of(train)])

        recipe = select_start(
            X,
            label,
            problem_of,
            n_init=self.n_init,
            cv=self.cv,
            options=self._options,
            design=design,
            rng=rng,
            row_weight=weight,
        )
        problem = problem_of()
        return [fit_em(problem, recipe(problem, rng), self._options)]

    def _problem_of(self, data: Training, width: Any, rows: Index | None) -> Problem:
        """Return the problem, or that of some rows and of the bases that remain with them."""
        X, label, centres, weight = data
        if rows is not None:
            X, label, kept = X[rows], label[rows], centres.columns_of(rows)
            weight = None if weight is None else weight[rows]
            centres = Centres(centres.points[kept], centres.sign[kept], centres.rows[kept])
        return problem_at(
            X,
            label,
            self._prior,
            width,
            centres=centres,
            kernel=self.kernel,
            likelihood=self._likelihood_,
            free_width=_is_named(self.width, "em"),
        ).weighted(weight)

    @staticmethod
    def _projected_arguments(reference: Reference, size: int) -> dict[str, Any]:
        return {
            "hyperprior": reference.hyperprior,
            "likelihood": reference.likelihood,
            "estimation": "projection",
            "n_vectors": max(size, 1),
        }
