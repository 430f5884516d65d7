"""Machines for several classes with the multinomial probit, for scikit-learn."""

from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em import Start
from pcvm_pymc.core.family import FAMILY, System
from pcvm_pymc.core.pieces.centres import Centres, choose_rows, choose_share
from pcvm_pymc.core.pieces.kernels import Kernel
from pcvm_pymc.core.pieces.likelihoods import Likelihood, as_likelihood
from pcvm_pymc.core.pieces.multinomial import Labels
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_features, check_flag, shown
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.estimators.averaging import CV_AND_VECTORS, AveragingClassifier
from pcvm_pymc.estimators.base import CV_EFFECT, WIDTH_EFFECT
from pcvm_pymc.estimators.cells import OneVsRest, Task
from pcvm_pymc.estimators.em_classifier import IN_CHUNKS, EMClassifier, Training
from pcvm_pymc.estimators.parameters import Conditional
from pcvm_pymc.estimators.projected import ProjectedClassifier
from pcvm_pymc.estimators.reference import Reference
from pcvm_pymc.estimators.selection import class_width_scores

__all__ = ["MPCVMClassifier", "MRVMClassifier"]


#: a quick search that only ranks a width: where it stops, since held-out log densities have come to rest, and
#: of how many bases at the least it takes its few vectors
_RANKING_TOLERANCE, _RANKING_EPOCHS, _RANKING_BASES = 0.1, 100, 300


def _from_the_top(model: Any) -> bool:
    return bool(model.algorithm == "top-down")


class _MultinomialProbitMachine(EMClassifier):
    """What the machines share: bases of every class, their signs, and scores of widths."""

    _rows: ClassVar[dict[str, str]]  # of the family table, by algorithm
    _tolerance: ClassVar[dict[str, float]] = {"em": 1e-4, "bottom-up": 1e-2}
    _choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "algorithm": ("bottom-up", "top-down"),
        "start": ("default", "random"),
        "kernel_dtype": ("float64", "float32"),
    }
    _conditional: ClassVar[tuple[Conditional, ...]] = (WIDTH_EFFECT, CV_EFFECT, IN_CHUNKS)
    _chunk_rules: ClassVar[dict[str, Any]] = {
        "start": lambda value: value == "default",
    }
    _chunk_words = "start='default'"

    @property
    def _has_bias(self) -> bool:
        return "projection_" in vars(self)  # a projection has one

    @property
    def _system(self) -> System:
        return FAMILY[self._rows[self.algorithm]]

    @property
    def _solver(self) -> str:
        return "em" if self.algorithm == "top-down" else "bottom-up"

    @property
    def _prior(self) -> Any:
        return Hyperprior.jeffreys()

    def _likelihood(self, n_classes: int) -> Likelihood:
        row = self._system
        return as_likelihood(row.likelihood, row.likelihoods, n_classes=n_classes)

    def _centres_at(self, basis: Any, X: Array, label: Labels) -> Centres:
        """Return centres of the bases, and the sign of each one's weight in each class."""
        if basis is None or isinstance(basis, Integral):
            n_basis = len(X) if basis is None else int(basis)
            rows = choose_rows(X, label, n_basis, random_state=0, name="basis")
            return Centres(X[rows], self._signs(label[rows]), rows)
        if not isinstance(basis, tuple) or len(basis) != 2:
            raise ValueError(
                f"basis={shown(basis)}; needed None, a number of rows to choose, or (centres, labels)"
            )
        points = as_features(basis[0], "basis", X.shape[1])
        kind = np.asarray(basis[1])
        if kind.shape != (len(points),) or not np.isin(kind, self.classes_).all():
            raise ValueError(
                f"the basis' labels are {kind!r}; needed one of {self.classes_.tolist()} for each centre"
            )
        signs = self._signs(np.searchsorted(self.classes_, kind))
        return Centres(points, signs, np.full(len(points), -1))

    def _signs(self, kind: Labels) -> Any:
        """Return the signs of the weights of bases of given classes, None without a sign rule."""
        rule = self._system.signs
        return None if rule is None else rule(kind, len(self.classes_))

    def _problem(self, Phi: Any, label: Any, centres: Centres, width: Any) -> Problem:
        return Problem(
            Phi,
            label,
            centres.sign,
            self._prior,
            self._likelihood_,
            bias="prior" if self._has_bias else "none",
            shared=centres.sign is None,
            width=width,
        )

    def _start(self, problem: Problem, rng: np.random.Generator) -> Start | None:
        return Start.random(problem, rng) if self.start == "random" else None

    def _scores(self, X: Array, label: NDArray[Any], widths: Array) -> Array:
        centres = self._centres(X, label)
        return class_width_scores(
            X,
            label,
            centres.points,
            centres.sign,
            method=self.width,
            widths=widths,
            kernel=self.kernel,
            hyperprior=self._prior,
            sample_weight=self._weight,
        )


#: weights up to which cells are found by fits of all scores together; beyond, class by class
_COUPLED = 500
_RANKED_ROWS = 500  # by which cells are found class by class


class MPCVMClassifier(AveragingClassifier, _MultinomialProbitMachine):
    """Multi-class probabilistic classification vector machine: mPCVM1 and mPCVM2.

    A score for each class, each a sum of basis functions; the weight of a row's basis is positive in its own
    class and negative in the others; the class is that of the largest score plus normal noise (the
    multinomial probit).

    Parameters
    ----------
    algorithm : {"top-down", "bottom-up"}
        ``"top-down"`` is EM from all bases: under the default hyperprior the most accurate, under
        ``"jeffreys"`` or ``"chen2009"`` the paper's mPCVM1. ``"bottom-up"``, mPCVM2, adds and deletes bases
        one at a time by the evidence of their precisions.
    kernel : "rbf" or callable
        ``exp(-||x - z||^2 / width^2)``, or a function ``(X, Z, width) -> (n, m)``.
    width : float, "auto", "cv", "evidence" or "validity"
        Width of the basis functions, in the unit of X. ``"auto"`` chooses it with the scale by leaving one
        out; under an improper hyperprior and from the bottom up as ``"cv"``, which takes, of nine, that of
        the smallest cross-validated log loss. ``"evidence"`` and ``"validity"`` take the one with the best
        score of `select_width`, summed over the classes, each against the rest: a fit for each class and
        width. Standardise columns of different units first.
    scale : float, "auto" or None
        As for `PCVMClassifier`.
    basis : None, int or (array_like, array_like)
        Where basis functions stand: on all training rows; on so many of them, chosen by k-means++ within
        each class; or at centres, shape (n_basis, n_features), with their classes.
    hyperprior : "default", "plug_in", "jeffreys", "chen2009" or Hyperprior
        For ``"top-down"``, as for `PCVMClassifier`: the default is proper and keeps most weights,
        ``"jeffreys"`` is the paper's. From the bottom up the precisions are estimated.
    estimation : {"auto", "average", "em", "projection"}
        For ``"top-down"``, as for `PCVMClassifier`.
    n_vectors : int, "auto" or None
        For ``"top-down"``, as for `PCVMClassifier`.
    bias : bool, optional
        Whether each class has a bias. Default: from the top down only, as in the paper.
    start : {"default", "random"}
        First latent responses: 10.5 for the own class and 0.5 for others, or drawn around these.
    update : {"auto", "newton", "em", "clip"}
        For ``"top-down"``: how EM steps, see `EMOptions`; ``"clip"`` is the paper's own, which is not
        monotone.
    cv : int
        Folds of the inner cross-validation, where something is chosen by it.
    max_iter : int
        Most iterations of EM, or of the search; a fit that needs more warns.
    tol : float, optional
        Largest change at which to stop: of a log precision from the bottom up, by default 1e-2, of a latent
        score from the top down, by default 1e-4.
    memory_limit : float, optional
        Bytes for what the fit holds beside the data: the rows go through it in chunks, once for each
        iteration or epoch. Dask arrays are taken too. Room for four matrices of the square of (classes times
        bases), in half of the limit, makes iterations few.
    kernel_dtype, n_jobs, class_weight, random_state
        As for `PCVMClassifier`.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    components_, component_weights_, selection_
        As for `PCVMClassifier`: of an average, whose best mode what follows belongs to.
    relevance_vectors_ : ndarray, shape (n_relevance, n_features)
        Centres (by default training rows) with a weight that is not zero in any class.
    support_ : ndarray of int, shape (n_relevance,)
        Their numbers among the training rows; -1 for given centres.
    weight_ : ndarray, shape (n_classes, n_relevance)
    bias_ : ndarray, shape (n_classes,)
    width_, scale_ : float
        The scale is that of the hyperprior, NaN for one without.
    hyperprior_ : Hyperprior
        From the top down.
    projection_, vector_widths_
        As for `PCVMClassifier`.
    log_posterior_ : float
        Precisions integrated out; from the bottom up, given the precisions.
    n_iter_ : int
    status_ : Status
    widths_, width_scores_ : ndarray, shape (n_widths,)
        The widths that were tried, and what they were chosen by: the mean held-out log probability, as for
        `RVMClassifier`, or the log of evidence or validity.

    References
    ----------
    S. Lyu, X. Tian, Y. Li, B. Jiang and H. Chen (2020), "Multiclass probabilistic classification
    vector machine", IEEE Transactions on Neural Networks and Learning Systems 31(10), Algorithms
    1 and 2, eqs. 2-10, 13-18 and 33-39, corrected: see `pcvm_pymc.core.em` and
    `pcvm_pymc.core.evidence.bottom_up`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MPCVMClassifier(algorithm="bottom-up", width=2.0).fit(X, y)
    >>> len(model.relevance_vectors_) < 15, bool(model.score(X, y) > 0.95)
    (True, True)
    """

    _rows: ClassVar[dict[str, str]] = {
        "bottom-up": "mpcvm_bottom_up",
        "top-down": "mpcvm_top_down",
    }
    _methods = ("auto", "cv", "evidence", "validity")
    _choices: ClassVar[dict[str, tuple[str, ...]]] = {
        **_MultinomialProbitMachine._choices,
        "estimation": ("auto", "average", "em", "projection"),
        "update": ("auto", "newton", "em", "clip"),
    }
    _conditional = (
        WIDTH_EFFECT,
        IN_CHUNKS,
        *(
            Conditional(name, default, ("algorithm",), _from_the_top, "algorithm='top-down'")
            for name, default in (
                ("hyperprior", "default"),
                ("scale", None),
                ("estimation", "auto"),
                ("n_vectors", None),
                ("update", "auto"),
            )
        ),
        *CV_AND_VECTORS,
    )
    _chunk_rules: ClassVar[dict[str, Any]] = {
        "update": lambda value: value != "clip",
        "n_vectors": lambda value: value is None,
        **_MultinomialProbitMachine._chunk_rules,
    }
    _chunk_words = (
        "an update that is not 'clip', n_vectors=None, " + _MultinomialProbitMachine._chunk_words
    )

    def __init__(
        self,
        *,
        algorithm: str = "top-down",
        kernel: Kernel = "rbf",
        width: float | str = "auto",
        basis: Any = None,
        hyperprior: Hyperprior | str = "default",
        scale: float | str | None = None,
        estimation: str = "auto",
        n_vectors: int | str | None = None,
        bias: bool | None = None,
        update: str = "auto",
        start: str = "default",
        max_iter: int = 10_000,
        tol: float | None = None,
        memory_limit: float | None = None,
        kernel_dtype: str = "float64",
        n_jobs: int | None = None,
        cv: int = 5,
        random_state: int | np.random.Generator | None = None,
        class_weight: Any = None,
    ) -> None:
        self._keep(locals())

    @property
    def _has_bias(self) -> bool:
        return self.algorithm == "top-down" if self.bias is None else bool(self.bias)

    @property
    def _system_row(self) -> System:
        return FAMILY["mpcvm_top_down"]

    @property
    def _prior(self) -> Any:
        # from the bottom up precisions are estimated, their logarithms flat
        return super()._prior if _from_the_top(self) else Hyperprior.jeffreys()

    @property
    def _is_plain(self) -> bool:
        return self.start == "default" and self.update != "clip"

    _plain = ("start", "update")
    _plain_words = ", start='default', and an update that is not 'clip'"

    def _few(self, y: NDArray[Any], rng: np.random.Generator) -> NDArray[np.intp]:
        """Return the rows by which cells are found: all where the classes' machines are cheap."""
        most = max(_RANKED_ROWS, 5 * len(self.classes_))
        return np.arange(len(y)) if len(y) <= 1.5 * most else choose_share(y, most, rng)

    def _ranking_task(self, data: Training, middle: Any, moves: tuple[bool, bool]) -> Task:
        task = self._task(data, middle, moves)
        if len(data.centres) * len(self.classes_) <= _COUPLED:
            return task
        return OneVsRest(**vars(task))

    def _most_refits(self, data: Training) -> int:
        n_weights = len(data.centres) * len(self.classes_)
        return self._most_cells if n_weights <= _COUPLED else 3

    def _weighs(self, data: Training) -> bool:
        return len(data.centres) * len(self.classes_) <= 2 * _COUPLED

    @staticmethod
    def _projected_arguments(reference: Reference, size: int) -> dict[str, Any]:
        return {
            "hyperprior": reference.hyperprior,
            "estimation": "projection",
            "n_vectors": max(size, 1),
        }

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if _from_the_top(self):
            self.hyperprior_ = self._prior
        check_flag("bias", self.bias, also=(None,))


class MRVMClassifier(ProjectedClassifier, _MultinomialProbitMachine):
    """Multi-class relevance vector machine with the multinomial probit: mRVM1 and mRVM2.

    As `MPCVMClassifier`, without a sign rule and without biases. What `project` returns has biases, too.

    Parameters
    ----------
    algorithm : {"bottom-up", "top-down"}
        ``"bottom-up"``, mRVM1, adds and deletes bases one at a time, each with one precision for all classes;
        ``"top-down"``, mRVM2, is EM from all bases with a precision for each class, and drops a basis
        when it is out of all of them.
    kernel : "rbf", "linear-spline" or callable
        ``exp(-||x - z||^2 / width^2)``, Vapnik's spline, or a function ``(X, Z, width) -> (n, m)``.
    width : float, "auto", "evidence" or "validity"
        As for `MPCVMClassifier`; the validity is the relevance vector machine's.
    basis : None, int or (array_like, array_like)
        As for `MPCVMClassifier`.
    search : {"quick", "paper"}
        From the bottom up: ``"paper"`` makes one change of a basis before responses are computed anew,
        ``"quick"`` two, and lets the responses run ahead, see `BottomUpOptions`; it ends higher on most data,
        and gives way to ``"paper"`` where it ends without any basis.
    start : {"default", "random"}
        First latent responses: 10.5 for the own class and 0.5 for others, or drawn around these, as
        the authors do.
    cv : int
        Folds of the inner cross-validation, for ``width="auto"``.
    max_iter, tol
        As for `MPCVMClassifier`.
    memory_limit, kernel_dtype, n_jobs, class_weight
        As for `MPCVMClassifier`.
    random_state : int, numpy.random.Generator or None
        For folds and random starts.

    Attributes
    ----------
    classes_, relevance_vectors_, support_, weight_, bias_, width_, log_posterior_, n_iter_, status_
        As for `MPCVMClassifier`; the biases are zero.
    projection_
        Of a submodel that `project` chose.
    widths_, width_scores_ : ndarray, shape (n_widths,)
        As for `MPCVMClassifier`.

    References
    ----------
    T. Damoulas, Y. Ying, M. A. Girolami and C. Campbell (2008), "Inferring sparse kernel combinations and
    relevance vectors", ICMLA; I. Psorakis, T. Damoulas and M. A. Girolami (2010), "Multiclass
    relevance vector machines: sparsity and accuracy", IEEE Transactions on Neural Networks 21(10);
    of the search, S. Lyu et al. (2020), eqs. 33-39, corrected: see `pcvm_pymc.core.evidence.fit_bottom_up`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> MRVMClassifier(width=2.0).fit(X, y).weight_.shape[0]
    3
    """

    _rows: ClassVar[dict[str, str]] = {
        "bottom-up": "mrvm_bottom_up",
        "top-down": "mrvm_top_down",
    }
    _choices: ClassVar[dict[str, tuple[str, ...]]] = {
        **_MultinomialProbitMachine._choices,
        "search": ("quick", "paper"),
    }
    _conditional: ClassVar[tuple[Conditional, ...]] = (
        *_MultinomialProbitMachine._conditional,
        Conditional(
            "search",
            "quick",
            ("algorithm",),
            lambda model: not _from_the_top(model),
            "algorithm='bottom-up'",
        ),
    )

    def __init__(
        self,
        *,
        algorithm: str = "bottom-up",
        search: str = "quick",
        start: str = "default",
        kernel: Kernel = "rbf",
        width: float | str = "auto",
        basis: Any = None,
        cv: int = 5,
        max_iter: int = 10_000,
        tol: float | None = None,
        memory_limit: float | None = None,
        kernel_dtype: str = "float64",
        n_jobs: int | None = None,
        random_state: int | np.random.Generator | None = None,
        class_weight: Any = None,
    ) -> None:
        self._keep(locals())

    @property
    def _is_quick(self) -> bool:
        return self.search == "quick" and not _from_the_top(self)

    @property
    def _looser(self) -> dict[str, Any]:
        if not self._is_quick:
            return super()._looser
        tol = max(_RANKING_TOLERANCE, self.tol or 0.0)
        return {**super()._looser, "tol": tol, "max_iter": min(_RANKING_EPOCHS, self.max_iter)}

    def _fewer_bases(self, X: Array, y: NDArray[Any]) -> dict[str, Any]:
        most = max(_RANKING_BASES, 5 * len(self.classes_))
        if not self._is_quick or self.basis is not None or len(X) <= most:
            return {}
        rows = choose_rows(X, y, most, random_state=0)
        return {"basis": (X[rows], y[rows])}

    @staticmethod
    def _projected_arguments(reference: Reference, size: int) -> dict[str, Any]:
        return {"algorithm": "top-down"}  # that of the dense machine
