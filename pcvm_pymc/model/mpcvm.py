"""Builders of models of several classes under the multinomial probit: mPCVM and mRVM."""

from dataclasses import replace
from numbers import Integral
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.em.mpcvm import ClassProblem
from pcvm_pymc.core.family import class_signs
from pcvm_pymc.core.gibbs import GibbsProblem
from pcvm_pymc.core.pieces import likelihoods
from pcvm_pymc.core.pieces.centres import choose_rows
from pcvm_pymc.core.pieces.kernels import Kernel
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_features
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.model.builders import (
    Covariance,
    Width,
    basis_functions,
    current_or_new_model,
    gamma_parameters,
)
from pcvm_pymc.model.distributions import (
    FreeWeight,
    ImproperBias,
    ImproperFreeWeight,
    ImproperWeight,
    MarginalBias,
    MarginalWeight,
)
from pcvm_pymc.model.multinomial import MultinomialProbit
from pcvm_pymc.model.steps import hyperprior_of

__all__ = [
    "class_gibbs_problem_of",
    "class_problem_of",
    "has_several_classes",
    "mpcvm_model",
    "mrvm_model",
]

type Integers = NDArray[np.int64]

_WEIGHTS = ("basis", "class")


def mpcvm_model(
    X: ArrayLike,
    y: ArrayLike,
    *,
    kernel: Kernel | Covariance = "rbf",
    width: Width = 1.0,
    hyperprior: Hyperprior | None = None,
    precision: Literal["marginal", "joint"] = "marginal",
    signs: ArrayLike | None = None,
    basis: ArrayLike | int | None = None,
) -> pm.Model:
    r"""Build the PCVM of several classes (mPCVM) as a PyMC model.

    The scores are :math:`f_c(x) = \sum_j w_{jc} \exp(-\|x - z_j\|^2 / \text{width}^2) + b_c`, and the class
    is that of the largest of the responses, normal around the scores. A weight is positive for
    the class of its own basis and negative for the others. Called inside a
    ``with pm.Model():`` block, it adds its variables to that model.

    Parameters
    ----------
    X : array_like, shape (n_obs, n_features)
        Training inputs. They are used as they are: standardise columns of different units first.
    y : array_like, shape (n_obs,)
        Labels of any type, two classes or more.
    kernel : "rbf", callable or pm.gp.cov.Covariance
        As for `pcvm_model`.
    width : float or TensorVariable
        As for `pcvm_model`.
    hyperprior : Hyperprior, optional
        Gamma hyperpriors of the precisions. Default: ``Hyperprior.default``, proper and scaled to
        the data. An improper one can be handed to `find_map_em` only.
    precision : {"marginal", "joint"}
        ``"marginal"`` integrates the precisions out; ``"joint"`` keeps them.
    signs : array_like of -1 and +1, shape (n_basis, n_classes), optional
        Default: +1 for the class of a basis, -1 for the others.
    basis : array_like, shape (n_basis, n_features), or int, optional
        Centres of the basis functions; needs `signs`. A number takes so many rows of `X`, by k-means++
        within each class. Default: the rows of `X`.

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
    X = as_features(X)
    label, classes = _as_classes(y, len(X))
    centres, kind = _centres(X, label, basis)
    if kind is None and signs is None:
        raise ValueError("basis was given without signs; needed -1 or +1 for each centre and class")
    if signs is None:
        assert kind is not None
        sign = class_signs(kind, len(classes))
    else:
        sign = np.asarray(signs, dtype=float)
    shape = (len(centres), len(classes))
    if sign.shape != shape or not np.isin(sign, (-1.0, 1.0)).all():
        raise ValueError(f"signs has shape {sign.shape}; needed -1 and +1 in the shape {shape}")
    return _class_model(X, (label, classes), centres, sign, kernel, width, hyperprior, precision)


def mrvm_model(
    X: ArrayLike,
    y: ArrayLike,
    *,
    kernel: Kernel | Covariance = "rbf",
    width: Width = 1.0,
    hyperprior: Hyperprior | None = None,
    precision: Literal["marginal", "joint"] = "marginal",
    basis: ArrayLike | int | None = None,
) -> pm.Model:
    """Build the relevance vector machine of several classes as a PyMC model.

    As `mpcvm_model`, with weights of either sign (``weight`` is then a free variable), each of its
    own precision.

    Parameters
    ----------
    X, y, kernel, width, hyperprior, precision
        As for `mpcvm_model`.
    basis : array_like, shape (n_basis, n_features), or int, optional
        Centres of the basis functions. A number takes so many rows of `X`. Default: the rows of `X`.

    Returns
    -------
    pm.Model

    Raises
    ------
    ValueError
        For input that cannot be used; the message says what was found and what is needed.

    Notes
    -----
    The authors' program has no biases; here each class has one, as in `mpcvm_model`. What is said
    there of a common shift holds here too.

    References
    ----------
    I. Psorakis, T. Damoulas and M. Girolami (2010), "Multiclass relevance vector machines: sparsity and
    accuracy", IEEE Transactions on Neural Networks 21(10).
    """
    X = as_features(X)
    observed = _as_classes(y, len(X))
    centres, _ = _centres(X, observed[0], basis)
    return _class_model(X, observed, centres, None, kernel, width, hyperprior, precision)


def _centres(
    X: Array, label: Integers, basis: ArrayLike | int | None
) -> tuple[Array, Integers | None]:
    """Return the centres and, where they are rows, their classes."""
    if basis is None:
        return X, label
    if isinstance(basis, Integral):
        rows = choose_rows(X, label, int(basis), random_state=0)
        return X[rows], label[rows]
    return as_features(basis, "basis", X.shape[1]), None


def _as_classes(y: ArrayLike, n_obs: int) -> tuple[Integers, NDArray[Any]]:
    """Return labels as numbers of their classes, and the classes in sorted order."""
    y = np.asarray(y)
    if y.shape != (n_obs,):
        raise ValueError(f"y has shape {y.shape}; needed ({n_obs},), one label for each row of X")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError("y has values that are NaN or infinite; needed a class for each row")
    classes, label = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y has {len(classes)} class; needed two or more")
    return label.astype(np.int64), classes


def _check_choices(hyperprior: Any, precision: str) -> None:
    if precision not in ("marginal", "joint"):
        raise ValueError(f"precision={precision!r} is unknown; use 'marginal' or 'joint'")
    if hyperprior is None:
        return
    if not isinstance(hyperprior, Hyperprior) or hyperprior.rate_shape is not None:
        raise ValueError(
            f"hyperprior={hyperprior!r}; needed Hyperprior(c, d, e, f) of known scale, or None for the "
            "default"
        )
    if precision == "joint" and not hyperprior.is_proper:
        raise ValueError(
            f"precision='joint' needs a proper hyperprior, found {hyperprior}; use "
            "precision='marginal' for the EM, or leave hyperprior out"
        )


def _default_hyperprior(Phi: Array, sign: Array | None) -> Hyperprior:
    """Return `Hyperprior.default`, its scale the mean over the classes (each has its own signs)."""
    if sign is None:
        return Hyperprior.default(Phi, None)
    each = [Hyperprior.default(Phi, column) for column in sign.T]
    return replace(each[0], d=float(np.mean([one.d for one in each])))


def _class_model(
    X: Array,
    observed: tuple[Integers, NDArray[Any]],
    centres: Array,
    sign: Array | None,
    *choices: Any,
) -> pm.Model:
    """Build a model of several classes, with signs or without."""
    kernel, width, hyperprior, precision = choices
    _check_choices(hyperprior, precision)
    label, classes = observed
    coords = {
        "obs": np.arange(len(X)),
        "basis": np.arange(len(centres)),
        "feature": np.arange(X.shape[1]),
        "class": classes,
    }
    with current_or_new_model() as model:
        model.add_coords(coords)
        pm.Data("centres", centres, dims=("basis", "feature"))
        Phi, typical = basis_functions(model, kernel, X, centres, width)
        hyperprior = hyperprior or _default_hyperprior(typical, sign)
        name = "weight" if sign is None else "magnitude"
        weight, bias = _priors(name, hyperprior, precision)
        if sign is not None:
            signs = pm.Data("signs", sign, dims=_WEIGHTS)
            weight = pm.Deterministic("weight", signs * weight, dims=_WEIGHTS)
        latent = pm.Deterministic("latent", pt.dot(Phi, weight) + bias, dims=("obs", "class"))
        data = pm.Data("y", label, dims="obs")
        MultinomialProbit("label", latent, observed=data, dims="obs")
    return model


def _priors(
    name: str, hyperprior: Hyperprior, precision: str
) -> tuple[TensorVariable, TensorVariable]:
    """Declare weights (or their sizes) and biases (Lyu et al. 2020 eqs. 13-18, corrected)."""
    c, d, e, f = gamma_parameters(hyperprior)
    free = name == "weight"
    if precision == "joint":
        alpha = pm.Gamma("precision", alpha=c, beta=d, dims=_WEIGHTS)
        beta = pm.Gamma("bias_precision", alpha=e, beta=f, dims="class")
        sigma = 1 / pt.sqrt(alpha)
        if free:
            weight = pm.Normal(name, mu=0.0, sigma=sigma, dims=_WEIGHTS)
        else:
            weight = pm.HalfNormal(name, sigma=sigma, dims=_WEIGHTS)
        return weight, pm.Normal("bias", mu=0.0, sigma=1 / pt.sqrt(beta), dims="class")
    if hyperprior.d > 0:
        weight = (FreeWeight if free else MarginalWeight)(name, c, d, dims=_WEIGHTS)
    else:
        weight = (ImproperFreeWeight if free else ImproperWeight)(name, c, dims=_WEIGHTS)
    if hyperprior.f > 0:
        return weight, MarginalBias("bias", e, f, dims="class")
    return weight, ImproperBias("bias", e, dims="class")


def has_several_classes(model: pm.Model) -> bool:
    """Whether a model is one of `mpcvm_model` or `mrvm_model`: scores for each class."""
    return tuple(model.named_vars_to_dims.get("latent") or ()) == ("obs", "class")


def class_gibbs_problem_of(model: pm.Model) -> GibbsProblem:
    """Return what the Gibbs sampler draws from, as it stands in a model's data.

    Raises
    ------
    ValueError
        If the model has other terms, an unknown width, or weights of either sign.
    """
    if "signs" not in model.named_vars:
        raise ValueError(
            "the model's weights have either sign; the Gibbs sampler needs a sign rule (mpcvm_model)"
        )
    found = class_problem_of(model, "Gibbs sampling draws")
    likelihood = likelihoods.MultinomialProbit(found.n_classes)
    return GibbsProblem.of(
        Problem(found.Phi, found.label, found.sign, found.hyperprior, likelihood)
    )


def class_problem_of(model: pm.Model, purpose: str = "EM maximises over") -> ClassProblem:
    """Return what EM maximises, as it stands in a model's data.

    Raises
    ------
    ValueError
        If the model has terms that EM does not maximise over, or an unknown width.
    """
    signed = "signs" in model.named_vars
    allowed = {"magnitude" if signed else "weight", "bias"}
    free = {rv.name for rv in model.free_RVs}
    foreign = sorted(free - allowed)
    foreign += sorted({rv.name for rv in model.observed_RVs} - {"label"})
    foreign += sorted(potential.name for potential in model.potentials)
    absent = sorted(allowed - free)
    if foreign or absent or "Phi" not in model.named_vars:
        raise ValueError(
            f"{purpose} {sorted(allowed)} given label alone, at a known width; found extra "
            f"terms {foreign} and not free {absent}. Use precision='marginal' and a number as "
            "width, or sample by NUTS"
        )
    Phi, label = (np.asarray(model[name].get_value()) for name in ("Phi", "y"))
    if len(Phi) != len(label):
        raise ValueError(
            f"the model's basis functions have {len(Phi)} rows and its labels {len(label)}; "
            "set both in one pm.set_data, see new_data(model, X_new, y_new)"
        )
    return ClassProblem(
        Phi,
        label,
        len(model.coords["class"]),
        np.asarray(model["signs"].get_value(), dtype=float) if signed else None,
        hyperprior_of(model),
    )
