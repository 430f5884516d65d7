"""The probabilistic classification vector machine for scikit-learn."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, override

from pcvm_pymc.core.family import FAMILY
from pcvm_pymc.core.pieces.kernels import Kernel
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.estimators import base
from pcvm_pymc.estimators.classifier import KernelClassifier
from pcvm_pymc.estimators.estimation import estimator, refuse
from pcvm_pymc.estimators.formulation import named_likelihood
from pcvm_pymc.estimators.modes import Modes, automatic, from_bottom_up
from pcvm_pymc.estimators.training import STREAMED


def drawn(model: Any) -> base.Estimation:
    """Return the posterior as an estimation; its scale is learned, and needs no choice."""
    from pcvm_pymc.estimators.posterior import PCVMPosterior  # slow: compiled

    scale = {} if model._has_width else {"scale": 1.0}  # is learned
    return PCVMPosterior.of(model, chooser=Modes.of(model, options=None, **scale))


#: what a PCVM's `estimation` names
ESTIMATIONS: dict[str, Any] = {
    "auto": automatic,
    "average": partial(Modes.of, averages=True),
    "em": Modes.of,
    "projection": automatic,
    "posterior": drawn,
    "bottom-up": from_bottom_up,
}


@estimator
class PCVMClassifier(KernelClassifier):
    """Probabilistic classification vector machine: an average of posterior modes, or one of them.

    By default modes are found by EM for several kernels, widths and scales of the weights' prior, and
    their class probabilities are averaged, each weighted by how well it predicts rows that are left out.

    Parameters
    ----------
    kernel : "auto", "rbf", "laplacian", "linear-spline", "precomputed" or callable
        ``"rbf"`` is ``exp(-||x - z||^2 / width^2)``, ``"laplacian"`` ``exp(-sum_j |x_j - z_j| / width_j)``,
        a function ``(X, Z, width) -> (n, m)``, or a kernel object of scikit-learn's Gaussian processes, whose
        parameters stay as they are. ``"precomputed"``: X is the kernel of all pairs of training rows, shape
        (n_obs, n_obs), and that of new rows with these, (n_new, n_obs). ``"auto"`` weighs both named first
        in the average, and both once more of the ranks of those columns that are skewed or have long tails
        (`selection_` has the weights). It is the RBF where no average over widths is fitted to rows in
        memory: a given width, one mode, few vectors, more than 3,000 rows, or rows in chunks.
    width : float, array_like, "auto", "shared", "cv", "evidence", "validity" or "em"
        Width of the basis functions, in the unit of X: one, or one for each feature. Standardise columns of
        different units first, as in ``make_pipeline(StandardScaler(), PCVMClassifier())``.

        - ``"auto"`` (of the RBF) learns a width for each feature. Held-out rows of five folds decide how much
          it counts against one width. With one feature, or fewer than five rows of a class, it is
          ``"shared"``.
        - ``"shared"`` chooses one, with the scale, by leave-one-out (`select`); under an improper hyperprior
          and from the bottom up by cross-validation.
        - ``"cv"``, ``"evidence"`` and ``"validity"`` choose it by the scores of `select`.
        - ``"em"`` maximises the posterior over it within EM.
    basis : "auto", None, int or (array_like, array_like)
        Centres of the basis functions: None is all training rows; a number so many of them, chosen by
        k-means++ within each class, see `choose_basis`; or given centres, shape (n_basis, n_features), with
        the signs of their weights. ``"auto"`` is None up to 3,000 rows, 2,000 centres above, half of them
        rows that a fit to the other half predicts badly. Then width and scale are chosen on 2,000 rows and
        500 bases, one mode is fitted, and the rows go through EM in chunks of single precision, in half a
        gibibyte.
    n_vectors : int, "auto" or None
        At most so many relevance vectors: what is fitted is projected onto them. ``"auto"`` takes the
        smallest number that loses at most .003 nats a row against an average at the training rows (at new
        rows of 30 problems .0033 in the mean, .050 at worst), or, of one mode, that has a held-out log
        density within one standard error of the best. None: no projection, and ``"auto"`` for
        ``estimation="projection"``.
    estimation : {"auto", "average", "em", "projection", "posterior", "bottom-up"}
        What is fitted.

        - ``"auto"``: ``"average"`` if width or scale is chosen under a proper hyperprior, else ``"em"``.
        - ``"average"``: posterior modes over kernel, width and scale, whose class probabilities are averaged.
        - ``"em"``: one posterior mode, the best.
        - ``"projection"``: few vectors whose probabilities are nearest to those of ``"auto"``, see `project`.
        - ``"bottom-up"``: few vectors, added and deleted one at a time by the evidence of their precisions;
          there is no fit of all bases. As in the papers; `n_vectors` mostly predicts better.
        - ``"posterior"``: draws from the posterior at each kernel and width that leave-one-out gives weight,
          by Hamiltonian Monte Carlo until the mixture of these, each with its share of the states, has
          r-hat of the latent function of at most 1.01 and an effective sample size of at least 400; a
          `ConvergenceWarning` says where its options end it before. Probabilities are posterior means, and
          `predict_interval` has the draws' quantiles. Its bases are 30 k-means centres, or `basis` of them,
          with unconstrained weights; given centres keep their signs, as in the paper, and are drawn by Gibbs
          sampling where `sample` would. The scale is learned.
    random_state : int, numpy.random.Generator or None
        For folds and random starts.
    categorical_features : "from_dtype", None or array_like of bool, int or str
        Columns of X that are categories: those of the type of a table for categories; none; or a mask,
        numbers or names. A level is an indicator, and the levels of a category have one width. ``"auto"`` for
        the kernel also weighs codes of levels that have an order, as numbers and ordered types do. A
        missing value is a level, too; a level that no training row has is as far from each of them as they
        are from each other. In columns of numbers the median takes the place of a missing value, and where
        training rows lack it an indicator says so. Vectors and widths are in these columns.
    options : EMOptions, BottomUpOptions or PosteriorOptions, optional
        How the solver runs and when it stops: EM, the search of ``"bottom-up"``, the chains of
        ``"posterior"``. A fit that needs more iterations than its options allow warns.
    memory_limit : float, optional
        Bytes for the fit, the data not counted. With a limit the rows go through EM in chunks: the basis
        functions are never in memory as a whole, and are computed in every iteration. For many rows and few
        bases. A width that is not a number is then chosen on at most 5000 rows.
    class_weight : dict, "balanced" or None
        How often rows of a class count, times `sample_weight` of `fit`: by class, or, ``"balanced"``, in
        proportion to one over the class' number of rows. Zero leaves a class out.
    likelihood : {"probit", "logit", "label noise", "normal-probability"} or Likelihood
        How labels depend on the latent function: a name, or an object of
        `pcvm_pymc.core.pieces.likelihoods` with its parameters, such as ``NoisyProbit(0.1)``.
    hyperprior : "default", "plug_in", "jeffreys", "chen2009" or Hyperprior
        ``"default"`` is Gamma(5, 5 scale^2) for the precisions of the weights and Gamma(1, 1) for that of
        the bias: proper, the most accurate, with most weights non-zero; ``"plug_in"`` is the same at scale 1.
        ``"jeffreys"`` (the paper) and ``"chen2009"`` (its authors' program) are improper: few vectors,
        less accurate. Not from the bottom up.
    scale : float, "auto" or None
        Scale sqrt(d / c) of the weights' prior under ``hyperprior="default"``: a number; ``"auto"``, chosen
        by leave-one-out; None does so where the width is chosen that way too, and is 1 otherwise.
    cv : int, splitter or iterable
        Folds of the inner cross-validation, where something is chosen by it: how many, or a splitter of
        scikit-learn, whose `groups` are those of `fit`, or pairs ``(train, test)`` of numbers of rows. With
        leave-one-out they decide between one width and widths of the features, and hold out each row once.
    verbose : bool
        Whether to print how far a fit is, a line every two seconds at most.

    Attributes
    ----------
    classes_ : ndarray, shape (2,)
    average_ : Average
        Of an average only: its modes and their weights.
    components_ : list of Mode
        Of an average only: its modes, each with kernel, width, scale, vectors, weights, bias and log loss.
    component_weights_ : ndarray, shape (n_components,)
        Their weights in the average, which sum to one. **What follows, but for** ``classes_`` **and**
        ``selection_`` **, belongs to the best of the modes, not to the average, which has no weights of its
        own.**
    held_out_ : ndarray, shape (n_obs, n_classes)
        Of an average only: its class probabilities at the training rows, each row and its own bases left out;
        NaN where that was not computed. They are approximate: one Newton step from the fit. Of 5,744 rows 858
        were off by more than .01 nats, the worst by 1.66, and in the mean they were .007 nats too good; `loo`
        refits where the step is in doubt. Widths per feature have seen the rows, so that with them it is
        somewhat optimistic, too. With ``groups`` whole groups are left out, by refits.
    idata_ : xarray.DataTree
        Of a posterior only, for ArviZ, in the groups of `sample`: draws, their log likelihood, labels that
        they predict (``posterior_predictive``), their trajectories (``sample_stats``, empty of Gibbs
        sampling) and the data. Labels are numbers of the classes, which the attribute ``classes`` lists;
        ``obs`` has numbers of rows. The group ``convergence`` has kernels and widths with their shares,
        ``rhat`` and ``ess`` of the mixture (of all states of its chains, of which the draws are some). Of the
        attributes below a posterior has the centres of its bases, ``width_`` (of the largest share) and what
        is said of the features.
    selection_ : HyperparameterSearch
        Kernels, widths and scales that were tried and how much each counts, where they are chosen by
        leaving one out. Its ``kernels`` are the weights of the kernels, its ``plot()`` draws all.
    relevance_vectors_ : ndarray, shape (n_relevance, n_columns)
        Centres (by default training rows) whose weight is not zero. Of a table of numbers the columns are
        the features. There are more where X has categories or missing values, and one more, the row's
        number, where it is a kernel. ``X[support_]`` are training rows as they were given.
    support_ : ndarray of int, shape (n_relevance,)
        Their numbers among the training rows; -1 for centres that are none.
    weight_ : ndarray, shape (n_relevance,)
        Their weights: positive for rows of ``classes_[1]``, negative for those of ``classes_[0]``.
    bias_ : float
        Value of the latent function where all basis functions are zero, thus far from all centres.
    width_, scale_ : float
        The width is an array where each feature has its own. The scale is that of the hyperprior, NaN for
        one without.
    feature_widths_ : ndarray, shape (n_features,)
        Width of each feature, in units of X, of the best mode; of the RBF only.
    feature_relevance_ : ndarray, shape (n_features,)
        1 / width^2, normalised to sum one: how much a feature, in its units, moves the basis functions. The
        mean over one width and the learned ones by their weights; drawn by `plot_feature_relevance`.
        NaN where no widths per feature were learned or given: `sklearn.inspection.permutation_importance`
        measures what any fit makes of its features.
    feature_importances_ : ndarray, shape (n_features,)
        The same for scikit-learn's ``RFE`` and ``SelectFromModel``, also where one width predicts better than
        the learned ones, so that an elimination can go on; AttributeError where `feature_relevance_` is NaN
        otherwise.
    feature_relevance_folds_ : ndarray, shape (n_folds, n_features)
        The same by the widths learned from the rows outside each fold: how sure it is. No rows where no
        widths per feature were learned.
    hyperprior_ : Hyperprior
        Not from the bottom up.
    log_posterior_ : float
        Of these weights and bias, precisions integrated out; from the bottom up, given the precisions.
    n_iter_ : int
        Iterations of EM, or steps from the bottom up; for a posterior, transitions of each chain, the most
        of several widths; 0 where few vectors were found by projection.
    status_ : Status
        How the fit ended; an empty model predicts by its bias alone.
    width_selection_ : HyperparameterSearch
        Widths that were tried and their scores, where the width is chosen by folds, evidence or validity.
    projection_ : Projection
        Path, scores and choice, where there is one.
    vector_widths_ : ndarray, shape (n_relevance,) or (n_relevance, n_features)
        Width of each vector, where an average over widths was projected; ``width_`` is that of its best mode.

    Notes
    -----
    `fit` accepts Dask arrays (the extra ``pcvm-pymc[dask]``): the rows stay where Dask keeps them, in chunks,
    and only sums of the size of the basis travel. Predictions for a Dask array are Dask arrays.

    Rows in chunks, the posterior at several widths and predictions run in as many threads as
    ``joblib.parallel_config(n_jobs=...)`` says around the call, by default one.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), "Probabilistic classification vector machines", IEEE
    Transactions on Neural Networks 20(6), 901-914, eqs. 3-4, 7-12 and 21-25, corrected: see `EMStep`. From
    the bottom up: `pcvm_pymc.core.evidence.fit_bottom_up`; leave-one-out: `pcvm_pymc.core.loo`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = np.where(X[:, 0] > 0, "yes", "no")
    >>> model = PCVMClassifier(random_state=0).fit(X, y)
    >>> model.predict([[2.0, 0.0]])
    array(['yes'], dtype='<U3')
    """

    kernel: Kernel = "auto"
    n_vectors: int | str | None = None
    likelihood: Likelihood | str = "probit"
    hyperprior: Hyperprior | str = "default"
    scale: float | str | None = None
    cv: Any = 5

    _system = FAMILY["pcvm"]
    _weighed = ("rbf", "laplacian")
    _is_multiclass = False
    _multiclass_name = "MPCVMClassifier (or sklearn.multiclass.OneVsRestClassifier)"
    _parameter_constraints = base.constraints(
        "auto shared cv evidence validity em", estimation=" ".join(ESTIMATIONS)
    )
    _estimations: ClassVar[Mapping[str, Any]] = ESTIMATIONS

    @override
    def _check(self, in_chunks: bool) -> None:
        self._likelihood()
        if in_chunks and self._width_rule == "em":
            refuse(self, "width estimation", f"{STREAMED} another width than 'em'")

    @override
    def _likelihood(self) -> Likelihood:
        return named_likelihood(self.likelihood, self._system.likelihoods)
