"""Components: a latent function without a likelihood, added to a model of one's own."""

from typing import Literal

from numpy.typing import ArrayLike
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.family import FAMILY
from pcvm_pymc.core.pieces.priors import LATENT_SIZE, Hyperprior, Prior
from pcvm_pymc.core.pieces.validation import check_real
from pcvm_pymc.model.bases import AnyKernel, Width
from pcvm_pymc.model.build import add_latent


def pcvm_latent(
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    name: str = "latent",
    dim: str = "obs",
    kernel: AnyKernel = "rbf",
    width: Width | None = None,
    hyperprior: str | Prior | None = None,
    precision: Literal["marginal", "joint"] = "marginal",
    signs: ArrayLike | Literal["both"] | None = None,
    basis: ArrayLike | int | None = None,
    bias: bool = True,
) -> TensorVariable:
    r"""Add the PCVM's latent function, without a likelihood, to the model of the block.

    .. math:: f(x) = \sum_j w_j \exp(-\|x - z_j\|^2 / \text{width}^2) + b

    What is done with it is the caller's: further terms, group intercepts, any likelihood. `pcvm_model` is
    this and the row's own likelihood; a second one, added to it, would count the data twice.

    Parameters
    ----------
    X : array_like, shape (n_obs, n_features)
        Inputs, used as they are.
    y : array_like, shape (n_obs,), optional
        Labels of two classes. They are not observed here: the weights take their signs from them. Not needed
        where `signs` are given.
    name : str
        Name of the function. A name other than ``"latent"`` is the prefix of all that belongs to the function
        (``f``, ``f_weight``, the dim ``f_basis``), so that a model may have several.
    dim : str
        Name of the dim of the rows. One that the model has is taken, with its coordinates.
    kernel, width, hyperprior, precision, signs, basis
        As for `pcvm_model`.
    bias : bool
        Whether the function has a bias. Leave it out where you add intercepts of your own.

    Returns
    -------
    TensorVariable
        The deterministic variable of that name, shape (n_obs,).

    Raises
    ------
    TypeError
        Outside a ``with pm.Model()`` block.
    ValueError
        For input that cannot be used, or a name that the model has already.

    Notes
    -----
    With further terms or another likelihood the model is no row of `FAMILY` any more: `sample` takes NUTS,
    and `find_map_em` refuses by name. `new_data(model, X_new, name=...)` gives it new rows.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), "Probabilistic classification vector machines", IEEE
    Transactions on Neural Networks 20(6), eqs. 3-4 and 21-22.

    Examples
    --------
    A linear predictor, intercepts of three groups, and a likelihood of one's own:

    >>> import numpy as np, pymc as pm
    >>> rng = np.random.default_rng(0)
    >>> X, group = rng.normal(size=(30, 2)), np.arange(30) % 3
    >>> y = (X[:, 0] > 0).astype(int)
    >>> with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
    ...     f = pcvm_latent(X, y, width=1.5, bias=False)
    ...     slope = pm.Normal("slope")
    ...     intercept = pm.Normal("intercept", dims="group")
    ...     label = pm.Bernoulli("label", logit_p=f + slope * X[:, 1] + intercept[group], observed=y)
    >>> sorted(each.name for each in model.free_RVs)
    ['intercept', 'magnitude', 'rate', 'slope']
    """
    return add_latent(FAMILY["pcvm"], **locals())


def rvm_latent(
    X: ArrayLike,
    *,
    name: str = "latent",
    dim: str = "obs",
    kernel: AnyKernel = "rbf",
    width: Width | None = None,
    size: float = LATENT_SIZE,
    hyperprior: str | Hyperprior | None = None,
    precision: Literal["marginal", "joint"] = "marginal",
    basis: ArrayLike | int | None = None,
    bias: bool = True,
) -> TensorVariable:
    """Add the relevance vector machine's latent function, without a likelihood, to the model of the block.

    As `pcvm_latent`, with unconstrained weights, so that no labels are needed: for counts, times, numbers.

    Parameters
    ----------
    X, name, dim, kernel, width, precision, bias
        As for `pcvm_latent`.
    size : float
        Prior median size of the function, in the unit of what it is added to: the default hyperprior's scale.
        Not together with a hyperprior.
    hyperprior : str or Hyperprior, optional
        Gamma hyperpriors of the precisions, by name as for `pcvm_model`, proper. Default: scaled to the
        basis functions.
    basis : array_like, shape (n_basis, n_features), int or "kmeans", optional
        Centres of the basis functions. A number takes so many rows of `X`, by k-means++, ``"kmeans"`` 30
        k-means centres. Default: the rows of `X`.

    Returns
    -------
    TensorVariable
        The deterministic variable of that name, shape (n_obs,).

    Raises
    ------
    TypeError
        Outside a ``with pm.Model()`` block.
    ValueError
        For input that cannot be used, or a name that the model has already.

    References
    ----------
    M. E. Tipping (2001), "Sparse Bayesian learning and the relevance vector machine", JMLR 1, 211-244.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> x = np.linspace(-3, 3, 40)[:, None]
    >>> with pm.Model() as model:
    ...     rate = pm.math.exp(rvm_latent(x, width=1.0, basis=10))
    ...     count = pm.Poisson("count", rate, observed=np.arange(40) // 8)
    >>> sorted(each.name for each in model.free_RVs)
    ['bias', 'weight']
    """
    given = locals()
    check_real("size", size)
    if size != LATENT_SIZE and hyperprior is not None:
        raise ValueError(f"size={size!r} was given with a hyperprior, which has its own scale")
    return add_latent(FAMILY["rvm_classification"], y=None, signs=None, **given)
