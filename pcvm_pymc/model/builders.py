"""Builders: data in, an ordinary `pm.Model` out. Their arguments go to `build` as they are."""

from dataclasses import replace
from typing import Literal

import pymc as pm
from numpy.typing import ArrayLike
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.family import FAMILY
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace, Prior
from pcvm_pymc.core.pieces.validation import check_choice, check_flag
from pcvm_pymc.model.bases import AnyKernel, Width
from pcvm_pymc.model.build import build

# two rows of one machine
_BOTH = (*FAMILY["rvm_regression"].likelihoods, *FAMILY["rvm_classification"].likelihoods)
_RVM = replace(FAMILY["rvm_regression"], likelihoods=_BOTH)


def pcvm_model(
    X: ArrayLike,
    y: ArrayLike,
    *,
    likelihood: str | Likelihood = "probit",
    kernel: AnyKernel = "rbf",
    width: Width | None = None,
    hyperprior: str | Prior | None = None,
    precision: Literal["marginal", "joint"] = "marginal",
    signs: ArrayLike | Literal["both"] | None = None,
    basis: ArrayLike | int | None = None,
) -> pm.Model:
    r"""Build the probabilistic classification vector machine (PCVM) as a PyMC model.

    .. math:: P(y = 1 \mid x) = \Phi\Bigl(\sum_j w_j \exp(-\|x - z_j\|^2 / \text{width}^2) + b\Bigr)

    with weights that have the sign of their own basis' label and half-normal sizes, Gaussian bias, and
    Gamma-distributed precisions. Called inside a ``with pm.Model():`` block, it adds its
    variables to that model; otherwise it makes a new one.

    Parameters
    ----------
    X : array_like or pm.Data, shape (n_obs, n_features)
        Training inputs. They are used as they are: standardise columns of different units first. A `pm.Data`
        of your own model is taken as it is, under its own name and dims: `pm.set_data` changes the model.
    y : array_like or pm.Data, shape (n_obs,)
        Labels of any type, two classes; the greater one in sorted order is "1". A `pm.Data` has 0 and 1.
    likelihood : {"probit", "logit", "label noise", "normal-probability"} or Likelihood
        A piece of `pcvm_pymc.core.pieces.likelihoods` has its own parameters: ``NoisyProbit(0.1)``, a tenth
        of the labels flipped, or ``NoisyProbit(pm.Beta.dist(1, 9))``, an unknown share: ``flip``.
    kernel : "rbf", "laplacian", "linear-spline", callable, KernelPiece or pm.gp.cov.Covariance
        Basis functions: the RBF ``exp(-||x - z||^2 / width^2)``, a function ``(X, Z, width) ->
        (n_obs, n_basis)``, or a PyMC covariance (which has its own lengthscale in place of `width`;
        its parameters may be random variables of the model).
    width : float, array_like of shape (n_features,), TensorVariable of either shape or "lognormal", optional
        Width of the RBF, or one for each feature. Default: the median distance between rows, which is logged;
        of a `KernelPiece` its own. ``"lognormal"`` makes it unknown, around that distance, with a standard
        deviation of its logarithm of 0.7; so does a random variable of the model or an unnamed prior
        (``pm.LogNormal.dist(...)``, a copy of which is named ``width``); an expression of several is a
        deterministic of that name, which EM and NUTS take. In a result it is
        ``posterior["posterior"]["width"]``: the attribute ``.width`` of a DataTree is xarray's own.
    hyperprior : str, Hyperprior, Laplace or HalfHorseshoe, optional
        Gamma hyperpriors of the precisions, or exponential ones of the variances (chen2009's appendix A:
        sizes are then exponential). By name a method of `Hyperprior`. Default: ``"learned"``, whose scale is
        the variable ``rate``: it predicts best of those tried, its posterior as well as the point of
        `find_map_em`, which estimates it. ``"default"`` has a fixed scale, ``"plug_in"`` is what
        `PCVMClassifier` takes at scale 1. The papers' are improper and for `find_map_em` only
        (``Hyperprior.jeffreys()``), a `HalfHorseshoe` is for samplers only.
    precision : {"marginal", "joint"}
        ``"marginal"`` integrates the precisions out (half-Student-t weights: half as many variables,
        better geometry); ``"joint"`` keeps them as ``precision`` and ``bias_precision``.
    signs : array_like of -1 and +1, shape (n_basis,), or "both", optional
        Sign of each weight. Default: the label of its basis. Given apart from `y` they stay
        fixed when labels are simulated, as calibration needs it; `y` may then be of one class. ``"both"``
        leaves the weights free, Student-t: the prior then has no labels.
    basis : array_like, shape (n_basis, n_features), int or "kmeans", optional
        Centres of the basis functions; needs `signs`. A number takes so many rows of `X`, by k-means++
        within each class (`choose_basis` has other ways), ``"kmeans"`` 30 k-means centres. With
        ``signs="both"`` it is the posterior that predicts best of those tried, and is drawn soonest; of an
        unknown width centres are then found without the labels. Default: the rows of `X`, as in the paper.

    Returns
    -------
    pm.Model
        Coords ``obs``, ``basis``, ``class``, ``kernel`` (its name); variables ``magnitude`` (sizes of the
        weights), ``bias`` and, of an unknown scale, ``rate``, the deterministics ``weight`` (signed) and
        ``latent``, and the observed ``label``. Data, which can be set and change what follows from them:
        ``X``, ``centres``, ``width`` (a random one is a variable), ``signs``, ``hyperprior``, labels ``y``.

    Raises
    ------
    ValueError
        For input that cannot be used, and names that the model in the block has already; the message says
        what was found and what is needed. The model is then as it was.

    Warns
    -----
    InputWarning
        Where one column of `X` has fifty times the spread of another, and where the basis functions are
        nearly an identity matrix or nearly constant under `width`.

    Notes
    -----
    ``pm.set_data({"X": X_new})`` gives the model new rows, with placeholders for their labels where there are
    more or fewer. In a model of your own, to which this one was added, and after `pm.do`, these have to be
    set too: ``pm.set_data(**new_data(model, X_new))``, which names your own `pm.Data`. Samplers compute the
    basis functions once, unless the width is random.

    What the index of a table and labels are becomes coordinates. What no file can keep (time zones, periods,
    intervals, several levels, mixed types) is kept as text, which is logged.

    Where the signs come from the labels, the model is not generative in y: what is well defined
    is the posterior with the signs as constants.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), "Probabilistic classification vector machines", IEEE
    Transactions on Neural Networks 20(6), eqs. 3-4 and 21-22.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0, width=1.5)
    >>> sorted(v.name for v in model.free_RVs)
    ['bias', 'magnitude', 'rate']
    >>> with model:
    ...     pm.set_data({"X": X[:5] + 0.1})
    >>> model["latent"].shape.eval()
    array([5])

    An unknown share of the labels is flipped:

    >>> from pcvm_pymc.core.pieces.likelihoods import NoisyProbit
    >>> noise = NoisyProbit(pm.Beta.dist(1, 9))
    >>> noisy = pcvm_model(X, X[:, 0] > 0, likelihood=noise)
    >>> sorted(v.name for v in noisy.free_RVs)
    ['bias', 'flip', 'magnitude', 'rate']
    """
    return build(FAMILY["pcvm"], **locals())


def sparse_probit_model(
    X: ArrayLike,
    y: ArrayLike,
    *,
    features: Literal["linear", "quadratic", "kernel"] = "linear",
    prior: Literal["laplace", "student", "jeffreys"] | Laplace | Hyperprior = "laplace",
    bias: Literal["penalised", "free"] = "penalised",
    kernel: AnyKernel = "rbf",
    width: Width | None = None,
    basis: ArrayLike | int | None = None,
) -> pm.Model:
    r"""Build the sparse probit classifier as a PyMC model.

    .. math:: P(y = 1 \mid x) = \Phi\Bigl(\sum_j w_j h_j(x) + b\Bigr)

    with unconstrained weights, which a prior peaked at zero makes sparse. Called inside a ``with
    pm.Model():`` block, it adds its variables to that model; otherwise it makes a new one.

    Parameters
    ----------
    X : array_like, shape (n_obs, d)
        Training inputs, used as they are: standardise them first.
    y : array_like, shape (n_obs,)
        Labels of any type, two classes; the greater one in sorted order is "1".
    features : {"linear", "quadratic", "kernel"}
        The components of x; also their squares and pairwise products; or a kernel at each row of `X`.
    prior : {"laplace", "student", "jeffreys"}, Laplace or Hyperprior
        ``"laplace"`` is ``Laplace(1.0)``; ``"student"`` the proper ``Hyperprior.default``, scaled to
        the data; ``"jeffreys"`` the paper's own, without a parameter and improper: for `find_map_em`
        only, samplers refuse it.
    bias : {"penalised", "free"}
        ``"penalised"`` gives the bias the prior of a weight, as the paper's constant feature has, or
        that of the `Hyperprior`; ``"free"`` a flat one.
    kernel, width
        For ``features="kernel"``: as for `pcvm_model`. The paper's h is ``width / sqrt(2)``.
    basis : array_like, shape (n_basis, n_features), int or "kmeans", optional
        For ``features="kernel"``: centres of the kernels, or how many rows to choose by k-means++;
        ``"kmeans"`` 30 k-means centres. Default: the rows of `X`.

    Returns
    -------
    pm.Model
        Coords ``obs``, ``basis`` and ``class``; variables ``weight``, ``bias``, the deterministic
        ``latent`` and the observed ``label``. Data: ``X``, ``hyperprior``, ``y``, and
        for a kernel ``centres`` and its width. New rows come as for `pcvm_model`.

    Raises
    ------
    ValueError
        For input that cannot be used; the message says what was found and what is needed.

    References
    ----------
    M. Figueiredo and A. Jain (2001), "Bayesian learning of sparse classifiers", CVPR, eqs. 8-10 and
    14.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> noise = np.random.default_rng(1).normal(size=60)
    >>> model = sparse_probit_model(X, X[:, 0] + noise > 0, prior="jeffreys")
    >>> result = find_map_em(model, progressbar=False)
    >>> result["optimizer_result"]["n_active"].item()
    1
    """
    given = locals()
    check_choice("bias", bias, ("penalised", "free"))
    given["hyperprior"] = given.pop("prior")
    given["bias"] = "prior" if bias == "penalised" else "free"
    return build(FAMILY["sparse_probit"], **given)


def rvm_model(
    X: ArrayLike,
    y: ArrayLike,
    *,
    likelihood: str | Likelihood = "normal",
    kernel: AnyKernel = "rbf",
    width: Width | None = None,
    hyperprior: str | Hyperprior | None = None,
    noise: ArrayLike | TensorVariable | None = None,
    precision: Literal["marginal", "joint"] = "marginal",
    basis: ArrayLike | int | None = None,
    sample_weight: ArrayLike | None = None,
) -> pm.Model:
    r"""Build the relevance vector machine (RVM) as a PyMC model.

    .. math:: f(x) = \sum_j w_j \phi_j(x) + b,\qquad w_j \sim N(0, 1 / \alpha_j)

    with a precision for each weight: targets normal around f, or labels with the logit or probit of
    f. `fit_evidence` maximises its evidence over the precisions, as the papers do; for NUTS they have
    proper Gamma hyperpriors. Called inside a ``with pm.Model():`` block, it adds its variables
    to that model; otherwise it makes a new one.

    Parameters
    ----------
    X : array_like, shape (n_obs, n_features)
        Training inputs, used as they are: standardise columns of different units first.
    y : array_like, shape (n_obs,)
        Targets for ``"normal"`` and ``"student-t"``; else labels of any type, two classes.
    likelihood : {"normal", "student-t", "logit", "probit"} or Likelihood
        ``"student-t"``: targets with outliers, of four degrees of freedom; ``StudentT(0.3, 3.0)`` of
        `pcvm_pymc.core.pieces.likelihoods` has its own. ``"gaussian"`` is another spelling of ``"normal"``.
    kernel : "rbf", "laplacian", "linear-spline", callable, KernelPiece or pm.gp.cov.Covariance
        As for `pcvm_model`. It need not be positive definite.
    width : float, array_like of shape (n_features,), or TensorVariable of either shape, optional
        Width of the RBF, or one for each feature. Default: the median distance between rows, which is logged.
        A random variable, an unnamed prior or ``"lognormal"`` makes it unknown (for samplers only).
    hyperprior : str or Hyperprior, optional
        Gamma hyperpriors of the precisions, by name as for `pcvm_model`, in the unit of y; default: proper,
        scaled to the data. Only samplers use it: `fit_evidence` has flat ones on log alpha, as Tipping has.
        The bias is around zero in it, and samplers begin there: standardise targets whose mean is many of
        their standard deviations. The evidence has the bias around the middle of the targets.
    noise : float, TensorVariable or array_like of shape (n_obs,), optional
        Standard deviation of the targets (scale under ``"student-t"``), in the unit of y: a number, an
        unnamed prior or a variable; under ``"normal"`` also an array or `pm.Data` of each row's known one.
        Predictions are then of the function alone, since the noise of new rows is not known. Default:
        half-normal with the standard deviation of y.
    precision : {"marginal", "joint"}
        ``"marginal"`` integrates the precisions out (Student-t weights: half as many variables);
        ``"joint"`` keeps them as ``precision`` and ``bias_precision``.
    basis : array_like, shape (n_basis, n_features), int or "kmeans", optional
        Centres of the basis functions. A number takes so many rows of `X`, by k-means++, ``"kmeans"`` 30
        k-means centres. Default: the rows of `X`.
    sample_weight : array_like, shape (n_obs,), optional
        Of numbers: how often each row counts, positive; two is the row twice, without a second basis function
        on it. The log density of a row is multiplied by it. The default width, and the part of the basis
        functions in the default hyperprior, are those of the rows as they are.

    Returns
    -------
    pm.Model
        Coords ``obs``, ``basis`` (and ``class``); variables ``weight``, ``bias``, ``latent``, ``noise``
        and the observed ``target``, or ``label``. Data: as `pcvm_model`, without signs; ``sample_weight``,
        and ``noise_std``, that of each row, where they are given (for new rows one and infinity, until they
        are set).

    Raises
    ------
    ValueError
        For input that cannot be used; the message says what was found and what is needed.

    References
    ----------
    M. E. Tipping (2001), "Sparse Bayesian learning and the relevance vector machine", JMLR 1,
    211-244; A. Chmielewski-Anders et al. (2019), eqs. 1-2 and 10.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(-5, 5, 30)[:, None]
    >>> model = rvm_model(x, np.sinc(x[:, 0]), width=2.0)
    >>> sorted(v.name for v in model.free_RVs)
    ['bias', 'noise', 'weight']
    """
    return build(_RVM, **locals())


def mpcvm_model(
    X: ArrayLike,
    y: ArrayLike,
    *,
    kernel: AnyKernel = "rbf",
    width: Width | None = None,
    hyperprior: str | Hyperprior | None = None,
    precision: Literal["marginal", "joint"] = "marginal",
    signs: ArrayLike | Literal["both"] | None = None,
    basis: ArrayLike | int | None = None,
) -> pm.Model:
    r"""Build the PCVM of several classes (mPCVM) as a PyMC model.

    The scores are :math:`f_c(x) = \sum_j w_{jc} \exp(-\|x - z_j\|^2 / \text{width}^2) + b_c`, and the class
    has the largest of the responses, normal around the scores. A weight is positive for
    the class of its own basis and negative for the others. Called inside a
    ``with pm.Model():`` block, it adds its variables to that model.

    Parameters
    ----------
    X : array_like, shape (n_obs, n_features)
        Training inputs. They are used as they are: standardise columns of different units first.
    y : array_like, shape (n_obs,)
        Labels of any type, two classes or more.
    kernel, width
        As for `pcvm_model`.
    hyperprior : str or Hyperprior, optional
        Gamma hyperpriors of the precisions, by name and default (``"learned"``, here with c = 1) as for
        `pcvm_model`. An improper one can be handed to `find_map_em` only.
    precision : {"marginal", "joint"}
        ``"marginal"`` integrates the precisions out; ``"joint"`` keeps them.
    signs : array_like of -1 and +1, shape (n_basis, n_classes), or "both", optional
        Default: +1 for the class of a basis, -1 for the others.
    basis : array_like, shape (n_basis, n_features), int or "kmeans", optional
        Centres of the basis functions; needs `signs`. A number takes so many rows of `X`, by k-means++
        within each class, ``"kmeans"`` 30 k-means centres, or 10 of each class. Default: the rows of `X`,
        whose posterior predicts better.

    Returns
    -------
    pm.Model
        Coords ``obs``, ``basis``, ``class``; variables ``magnitude`` (basis, class), ``bias`` (class), the
        deterministics ``weight`` (basis, class) and ``latent`` (obs, class), and the observed ``label``
        (numbers of the classes). Data as in `pcvm_model`.

    Raises
    ------
    ValueError
        For input that cannot be used; the message says what was found and what is needed.

    Notes
    -----
    A common shift of the scores of all classes changes nothing in the likelihood: it is the priors of
    biases and weights alone that make the posterior proper along it. Differences of scores and class
    probabilities are what the data determine.

    References
    ----------
    S. Lyu, X. Tian, Y. Li, B. Jiang and H. Chen (2020), "Multiclass probabilistic classification vector
    machine", IEEE Transactions on Neural Networks and Learning Systems 31(10), eqs. 2-10, 13-18.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = mpcvm_model(X, np.digitize(X[:, 0], [-0.5, 0.5]))
    >>> model.named_vars_to_dims["latent"]
    ('obs', 'class')
    """
    return build(FAMILY["mpcvm_top_down"], **locals())


def mrvm_model(
    X: ArrayLike,
    y: ArrayLike,
    *,
    shared: bool = False,
    kernel: AnyKernel = "rbf",
    width: Width | None = None,
    hyperprior: str | Hyperprior | None = None,
    precision: Literal["marginal", "joint"] = "marginal",
    basis: ArrayLike | int | None = None,
) -> pm.Model:
    """Build the relevance vector machine of several classes as a PyMC model.

    As `mpcvm_model`, with unconstrained weights (``weight`` is then a free variable).

    Parameters
    ----------
    X, y, kernel, width, precision
        As for `mpcvm_model`.
    hyperprior : str or Hyperprior, optional
        Gamma hyperpriors of the precisions, by name as for `mpcvm_model`; default: ``"default"``, proper and
        of a fixed scale. An improper one can be handed to `find_map_em` only.
    shared : bool
        Whether the weights that a basis has for all classes share one precision, so that a basis serves
        all of them or none (they are then jointly Student-t, and ``precision`` has the dim ``basis``
        alone); otherwise each weight has its own.
    basis : array_like, shape (n_basis, n_features), int or "kmeans", optional
        Centres of the basis functions. A number takes so many rows of `X`, ``"kmeans"`` k-means centres.
        Default: the rows of `X`.

    Returns
    -------
    pm.Model
        As from `mpcvm_model`, without ``magnitude`` and ``signs``.

    Raises
    ------
    ValueError
        For input that cannot be used; the message says what was found and what is needed.

    Notes
    -----
    The authors' program has no biases; here each class has one, as in `mpcvm_model`. What is said
    there of a common shift is true here too.

    References
    ----------
    T. Damoulas, Y. Ying, M. Girolami and C. Campbell (2008), "Inferring sparse kernel combinations and
    relevance vectors", ICMLA.
    I. Psorakis, T. Damoulas and M. Girolami (2010), "Multiclass relevance vector machines: sparsity and
    accuracy", IEEE Transactions on Neural Networks 21(10).

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = mrvm_model(X, X.argmax(axis=1) + (X[:, 0] > 1), width=1.0)
    >>> [each.name for each in model.free_RVs], len(model.coords["class"])
    (['weight', 'bias'], 3)
    """
    given = locals()
    check_flag("shared", given.pop("shared"))
    return build(FAMILY["mrvm_bottom_up" if shared else "mrvm_top_down"], **given)
