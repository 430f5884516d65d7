"""Machines for several classes with the multinomial probit, for scikit-learn."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, override

from pcvm_pymc.core.family import FAMILY, System
from pcvm_pymc.core.pieces.kernels import Kernel
from pcvm_pymc.core.pieces.likelihoods import Likelihood, MultinomialProbit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.estimators import base
from pcvm_pymc.estimators.classifier import KernelClassifier
from pcvm_pymc.estimators.estimation import estimator
from pcvm_pymc.estimators.modes import Modes, from_bottom_up
from pcvm_pymc.estimators.pcvm import ESTIMATIONS

# many rows: centres from the bottom up (four times as many gain half a point in four times the seconds), and
# values of basis functions: in double and single precision 0.7 GB, and a fit takes as much again
_FEW_BASES, _MANY_VALUES = 500, 6e7


def _multinomial(model: KernelClassifier) -> Likelihood:
    """Return the multinomial probit; before a fit knows its classes, of two."""
    return MultinomialProbit(len(vars(model).get("classes_", (0, 1))))


def _drawn(model: Any) -> base.Estimation:
    from pcvm_pymc.estimators.posterior import Posterior  # slow: compiled

    return Posterior.of(model, chooser=from_bottom_up(model, quick=True, options=None))


@estimator
class MPCVMClassifier(KernelClassifier):
    """Multi-class probabilistic classification vector machine: mPCVM1 and mPCVM2.

    A score for each class, each a sum of basis functions; the weight of a row's basis is positive in its own
    class and negative in the others; the class is that of the largest score plus normal noise (the
    multinomial probit).

    Parameters
    ----------
    kernel : "auto", "rbf", "laplacian", "linear-spline", "precomputed" or callable
        As for `PCVMClassifier`. ``"auto"`` weighs several where classes times bases are at most 1,000: of
        more, candidates are scored class by class, which does not tell kernels apart.
    width : float, array_like, "auto", "shared", "cv", "evidence" or "validity"
        Width of the basis functions, in the unit of X: one, or one for each feature. ``"auto"`` learns one
        for each feature, see `PCVMClassifier`; ``"shared"`` chooses one with the scale by leave-one-out;
        under an improper hyperprior and from the bottom up as ``"cv"``, which takes, of nine, that of
        the smallest cross-validated log loss. ``"evidence"`` and ``"validity"`` take the one with the best
        score of `select`, summed over the classes, each against the rest: a fit for each class and
        width. Standardise columns of different units first.
    basis : "auto", None, int or (array_like, array_like)
        Centres of the basis functions: None is all training rows; a number so many of them, chosen by
        k-means++ within each class; or given centres, shape (n_basis, n_features), with their classes.
        ``"auto"`` is None up to 3,000 rows; above, 2,000 centres (of more than 30,000 rows fewer, so that
        they stay below 0.7 GB; 500 from the bottom up), width and scale are chosen on 2,000 rows, and one
        mode is fitted.
    n_vectors : int, "auto" or None
        As for `PCVMClassifier`.
    estimation : {"auto", "average", "em", "projection", "posterior", "bottom-up"}
        As for `PCVMClassifier`. ``"em"`` is from all bases: under ``hyperprior="jeffreys"`` or ``"chen2009"``
        the paper's mPCVM1. ``"bottom-up"`` is mPCVM2.
    random_state
        As for `PCVMClassifier`.
    categorical_features : "from_dtype", None or array_like of bool, int or str
        As for `PCVMClassifier`, missing values included.
    options : EMOptions, BottomUpOptions or PosteriorOptions, optional
        As for `PCVMClassifier`; by default EM stops at changes of a latent score of 1e-4.
    memory_limit : float, optional
        Bytes for the fit, the data not counted: the rows go through it in chunks, once for each
        iteration or epoch. Dask arrays are taken too. Room for four matrices of the square of (classes times
        bases), in half of the limit, makes iterations few.
    class_weight
        As for `PCVMClassifier`.
    hyperprior : "default", "plug_in", "jeffreys", "chen2009" or Hyperprior
        As for `PCVMClassifier`: the default is proper and keeps most weights,
        ``"jeffreys"`` is the paper's. From the bottom up the precisions are estimated.
    scale : float, "auto" or None
        As for `PCVMClassifier`.
    bias : bool, optional
        Whether each class has a bias. Default: from the top down only, as in the paper.
    cv
        As for `PCVMClassifier`.
    verbose
        As for `PCVMClassifier`.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    average_, components_, component_weights_, held_out_, idata_, selection_
        As for `PCVMClassifier`: of an average, whose best mode what follows belongs to.
    relevance_vectors_ : ndarray, shape (n_relevance, n_columns)
        Centres (by default training rows) with a weight that is not zero in any class; columns as for
        `PCVMClassifier`.
    support_ : ndarray of int, shape (n_relevance,)
        Their numbers among the training rows; -1 for given centres.
    weight_ : ndarray, shape (n_classes, n_relevance)
    bias_ : ndarray, shape (n_classes,)
        Score of each class where all basis functions are zero, thus far from all centres.
    width_, scale_ : float
        The scale is that of the hyperprior, NaN for one without.
    feature_widths_, feature_relevance_, feature_relevance_folds_
        As for `PCVMClassifier`.
    hyperprior_ : Hyperprior
        From the top down.
    projection_, vector_widths_
        As for `PCVMClassifier`.
    log_posterior_ : float
        Precisions integrated out; from the bottom up, given the precisions.
    n_iter_ : int
        Iterations of the fit, as for `PCVMClassifier`.
    status_ : Status
        How the fit ended.
    width_selection_
        As for `PCVMClassifier`.

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
    >>> model = MPCVMClassifier(estimation="bottom-up", width=2.0).fit(X, y)
    >>> len(model.relevance_vectors_) < 15, bool(model.score(X, y) > 0.95)
    (True, True)
    """

    kernel: Kernel = "auto"
    n_vectors: int | str | None = None
    hyperprior: Hyperprior | str = "default"
    scale: float | str | None = None
    bias: bool | None = None
    cv: Any = 5

    _likelihood = _multinomial
    _weighed = ("rbf", "laplacian")
    _parameter_constraints = base.constraints(
        "auto shared cv evidence validity", estimation=" ".join(ESTIMATIONS)
    )
    _estimations: ClassVar[Mapping[str, Any]] = ESTIMATIONS

    @property
    @override
    def _system(self) -> System:
        return FAMILY["mpcvm_bottom_up" if self.estimation == "bottom-up" else "mpcvm_top_down"]

    @override
    def _bias(self, *, by_em: bool) -> str:
        return "prior" if (by_em if self.bias is None else self.bias) else "none"

    @override
    def _many_bases(self, n_obs: int) -> int:
        most = min(super()._many_bases(n_obs), int(_MANY_VALUES / n_obs))
        return _FEW_BASES if self.estimation == "bottom-up" else most


@estimator
class MRVMClassifier(KernelClassifier):
    """Multi-class relevance vector machine with the multinomial probit: mRVM1 and mRVM2.

    As `MPCVMClassifier`, without a sign rule and without biases. What `project` returns has biases, too.

    Parameters
    ----------
    kernel : "rbf", "laplacian", "linear-spline", "precomputed" or callable
        ``exp(-||x - z||^2 / width^2)``, Vapnik's spline, or a function ``(X, Z, width) -> (n, m)``.
    width : float, array_like, "auto", "shared", "evidence" or "validity"
        As for `MPCVMClassifier`; the validity is the relevance vector machine's.
    basis : "auto", None, int or (array_like, array_like)
        As for `MPCVMClassifier`.
    estimation : {"auto", "bottom-up", "em", "posterior"}
        ``"auto"`` is ``"bottom-up"``, mRVM1: bases are added and deleted one at a time, each with one
        precision for all classes. ``"em"``, mRVM2, is EM from all bases with a precision for each class, and
        drops a basis when it is out of all of them. ``"posterior"`` draws, as for `PCVMClassifier`, at the
        width of the fit from the bottom up and under the proper prior of `mrvm_model`, in which a basis has
        one precision for all classes; without biases. Its bases are 30 k-means centres, 10 of each class
        where that is more, or `basis` of them.
    random_state : int, numpy.random.Generator or None
        For folds.
    categorical_features : "from_dtype", None or array_like of bool, int or str
        As for `PCVMClassifier`, missing values included (indicators alone).
    options : BottomUpOptions, EMOptions or PosteriorOptions, optional
        As for `MPCVMClassifier`. By default the search from the bottom up is ``BottomUpOptions.quick()``: it
        makes two changes of bases before responses are computed again, and lets these run ahead. It ends
        higher on most data, and gives way to the papers' search, ``BottomUpOptions()``, where it ends
        without any basis.
    memory_limit, class_weight
        As for `MPCVMClassifier`.
    cv : int, splitter or iterable
        As for `PCVMClassifier`. Folds of the inner cross-validation, for ``width="auto"`` and ``"shared"``.
    verbose
        As for `MPCVMClassifier`.

    Attributes
    ----------
    classes_, relevance_vectors_, support_, weight_, bias_, width_, log_posterior_, n_iter_, status_
        As for `MPCVMClassifier`; the biases are zero.
    feature_widths_, feature_relevance_, feature_relevance_folds_
        As for `RVMClassifier`.
    idata_ : xarray.DataTree
        Of a posterior only, as for `PCVMClassifier`.
    projection_
        Of a submodel that `project` chose.
    width_selection_
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

    cv: Any = 5

    _likelihood = _multinomial
    _parameter_constraints = base.constraints(
        "auto shared evidence validity", estimation="auto bottom-up em posterior"
    )
    _estimations: ClassVar[Mapping[str, Any]] = {
        "auto": partial(from_bottom_up, quick=True),
        "bottom-up": partial(from_bottom_up, quick=True),
        "em": Modes.of,
        "posterior": _drawn,
    }

    @property
    @override
    def _system(self) -> System:
        return FAMILY["mrvm_top_down" if self.estimation == "em" else "mrvm_bottom_up"]

    @override
    def _bias(self, *, by_em: bool) -> str:
        return "none"

    @override
    def _many_bases(self, n_obs: int) -> int:
        return _FEW_BASES
