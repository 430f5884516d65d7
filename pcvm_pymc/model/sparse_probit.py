"""The sparse probit as a PyMC model, and the problem read back from one."""

from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.em.sparse_probit import FEATURES, SparseProblem, feature_matrix, named_prior
from pcvm_pymc.core.pieces.centres import Basis, as_centres
from pcvm_pymc.core.pieces.kernels import Kernel
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace
from pcvm_pymc.core.pieces.validation import as_features, as_labels, as_width
from pcvm_pymc.model.builders import current_or_new_model, hyperprior_data, width_name
from pcvm_pymc.model.distributions import (
    FreeWeight,
    ImproperFreeWeight,
    MarginalBias,
    ProbitBernoulli,
)
from pcvm_pymc.model.rvm import likelihood_of
from pcvm_pymc.model.steps import hyperprior_of

__all__ = ["is_sparse_probit", "sparse_probit_model", "sparse_problem_of"]

type Prior = Laplace | Hyperprior


def sparse_probit_model(
    X: ArrayLike,
    y: ArrayLike,
    *,
    features: Literal["linear", "quadratic", "kernel"] = "linear",
    prior: Literal["laplace", "student", "jeffreys"] | Prior = "laplace",
    bias: Literal["penalised", "free"] = "penalised",
    kernel: Kernel = "rbf",
    width: float = 1.0,
    basis: Basis = None,
) -> pm.Model:
    r"""Build the sparse probit classifier as a PyMC model.

    .. math:: P(y = 1 \mid x) = \Phi\Bigl(\sum_j w_j h_j(x) + b\Bigr)

    with weights of either sign that a heavy-peaked prior draws to zero. Called inside a ``with
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
    kernel : "rbf", "linear-spline" or callable
        For ``features="kernel"``. The paper's h is ``width / sqrt(2)``.
    width : float
    basis : int or array_like, shape (n_basis, n_features), optional
        For ``features="kernel"``: centres of the kernels, or how many rows to choose by k-means++.
        Default: the rows of `X`.

    Returns
    -------
    pm.Model
        Coords ``obs``, ``basis`` and ``class``; variables ``weight``, ``bias``, the deterministic
        ``latent`` and the observed ``label``. Data: ``Phi`` (the features), ``hyperprior``, ``y``, and
        for a kernel ``centres`` and its width. With a kernel `new_data` and `predict` serve as for
        `pcvm_model`; otherwise new rows come by ``pm.set_data({"Phi": Phi_new, "y": zeros}, coords={"obs":
        range(n_new)})``, ``Phi_new`` from `pcvm_pymc.core.em.sparse_probit.feature_matrix`.

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
    X = as_features(X)
    label, classes = as_labels(y, len(X))
    if features not in FEATURES:
        raise ValueError(f"features={features!r} is unknown; use one of {FEATURES}")
    if bias not in ("penalised", "free"):
        raise ValueError(f"bias={bias!r} is unknown; use 'penalised' or 'free'")
    if basis is not None and features != "kernel":
        raise ValueError(f"basis was given with features={features!r}; needed features='kernel'")
    centres = as_centres(basis, X, None).points
    numbers = feature_matrix(X, features, centres=centres, kernel=kernel, width=as_width(width))
    density = named_prior(prior, numbers)
    coords = {"obs": np.arange(len(X)), "basis": np.arange(numbers.shape[1]), "class": classes}
    with current_or_new_model() as model:
        model.add_coords(coords)
        if features == "kernel":
            model.add_coords({"feature": np.arange(X.shape[1])})
            pm.Data("centres", centres, dims=("basis", "feature"))
            pm.Data(width_name(kernel), as_width(width))
        Phi = pm.Data("Phi", numbers, dims=("obs", "basis"))
        weight, intercept = _priors(density, bias)
        latent = pm.Deterministic("latent", pt.dot(Phi, weight) + intercept, dims="obs")
        observed = pm.Data("y", (label > 0).astype("int64"), dims="obs")
        ProbitBernoulli("label", latent, observed=observed, dims="obs")
    return model


def _priors(prior: Prior, bias: str) -> tuple[TensorVariable, TensorVariable]:
    """Declare weights and bias, their variances integrated out."""
    value = hyperprior_data(prior)
    if isinstance(prior, Laplace):
        scale = 1.0 / pt.sqrt(value["gamma"])
        weight = pm.Laplace("weight", mu=0.0, b=scale, dims="basis")
    elif prior.d > 0:
        weight = FreeWeight("weight", value["c"], value["d"], dims="basis")
    else:
        weight = ImproperFreeWeight("weight", value["c"], dims="basis")
    if bias == "free":
        return weight, pm.Flat("bias")
    if isinstance(prior, Laplace):
        return weight, pm.Laplace("bias", mu=0.0, b=scale)
    if prior.f > 0:
        return weight, MarginalBias("bias", value["e"], value["f"])
    return weight, ImproperFreeWeight("bias", value["e"])


def is_sparse_probit(model: pm.Model) -> bool:
    """Whether a model is one of probit labels and weights of either sign (a probit RVM's is too)."""
    names = {"weight", "bias", "Phi", "hyperprior", "label", "y"}
    return (
        names <= set(model.named_vars)
        and model["weight"] in model.free_RVs
        and likelihood_of(model) == "probit"
    )


def sparse_problem_of(model: pm.Model) -> SparseProblem:
    """Return what EM maximises, as it stands in a model's data.

    Raises
    ------
    ValueError
        If the model has terms that this EM does not maximise over.
    """
    foreign = sorted({rv.name for rv in model.free_RVs} - {"weight", "bias"})
    foreign += sorted({rv.name for rv in model.observed_RVs} - {"label"})
    foreign += sorted(potential.name for potential in model.potentials)
    if foreign:
        raise ValueError(
            f"EM maximises over ['bias', 'weight'] given label alone; found extra terms {foreign}. Use "
            "pymc_extras.find_MAP, or sample"
        )
    label = 2.0 * np.asarray(model["y"].get_value()) - 1.0
    return SparseProblem(
        np.asarray(model["Phi"].get_value()), label, hyperprior_of(model), _bias_kind(model)
    )


def _bias_kind(model: pm.Model) -> Any:
    return "free" if isinstance(model["bias"].owner.op, type(pm.Flat.rv_op)) else "penalised"
