"""The relevance vector machine as a PyMC model, and the problem read back from one."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pytensor.tensor.random.basic import BernoulliRV
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.evidence import EvidenceProblem
from pcvm_pymc.core.family import FAMILY
from pcvm_pymc.core.pieces.centres import as_centres
from pcvm_pymc.core.pieces.kernels import Kernel
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_features, as_labels, as_targets
from pcvm_pymc.model.builders import (
    Covariance,
    Width,
    basis_functions,
    current_or_new_model,
    gamma_parameters,
)
from pcvm_pymc.model.distributions import FreeWeight, MarginalBias, ProbitBernoulli

__all__ = ["evidence_problem_of", "likelihood_of", "rvm_model"]

_ROWS = (FAMILY["rvm_regression"], FAMILY["rvm_classification"])
_KNOWN = tuple(likelihood for system in _ROWS for likelihood in system.likelihoods)
_FREE = {"weight", "bias", "noise", "precision", "bias_precision", "rate"}


def rvm_model(
    X: ArrayLike,
    y: ArrayLike,
    *,
    likelihood: Literal["gaussian", "logit", "probit"] = "gaussian",
    kernel: Kernel | Covariance = "rbf",
    width: Width = 1.0,
    hyperprior: Hyperprior | None = None,
    noise: float | TensorVariable | None = None,
    precision: Literal["marginal", "joint"] = "marginal",
    basis: ArrayLike | int | None = None,
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
        Targets for ``"gaussian"``; else labels of any type, two classes.
    likelihood : {"gaussian", "logit", "probit"}
    kernel : "rbf", "linear-spline", callable or pm.gp.cov.Covariance
        As for `pcvm_model`. It need not be positive definite.
    width : float or TensorVariable
        Width of the RBF; a random variable or an unnamed prior makes it unknown (for samplers only).
    hyperprior : Hyperprior, optional
        Gamma hyperpriors of the precisions, in the unit of y; default: proper, scaled to the data.
        Only samplers use it: `fit_evidence` has flat ones on log alpha, as Tipping has.
    noise : float or TensorVariable, optional
        Standard deviation of the targets, or its (unnamed) prior. Default: half-normal with the
        standard deviation of y.
    precision : {"marginal", "joint"}
        ``"marginal"`` integrates the precisions out (Student-t weights: half as many variables);
        ``"joint"`` keeps them as ``precision`` and ``bias_precision``.
    basis : array_like, shape (n_basis, n_features), or int, optional
        Centres of the basis functions. A number takes so many rows of `X`, by k-means++. Default: the rows
        of `X`.

    Returns
    -------
    pm.Model
        Coords ``obs``, ``basis`` (and ``class``); variables ``weight``, ``bias``, ``latent``, ``noise``
        and the observed ``target``, or ``label``. Data: as `pcvm_model`, without signs.

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
    X = as_features(X)
    centres = as_centres(basis, X, None).points
    _check_choices(likelihood, hyperprior, noise, precision)
    observed, coords = _observed(y, len(X), likelihood)
    coords |= {
        "obs": np.arange(len(X)),
        "basis": np.arange(len(centres)),
        "feature": np.arange(X.shape[1]),
    }
    with current_or_new_model() as model:
        model.add_coords(coords)
        pm.Data("centres", centres, dims=("basis", "feature"))
        Phi, typical = basis_functions(model, kernel, X, centres, width)
        hyperprior = hyperprior or _default_hyperprior(typical, observed, likelihood)
        weight, bias = _priors(hyperprior, precision)
        latent = pm.Deterministic("latent", pt.dot(Phi, weight) + bias, dims="obs")
        _declare_observed(model, likelihood, latent, observed, noise)
    return model


def _check_choices(likelihood: str, hyperprior: Any, noise: Any, precision: str) -> None:
    if likelihood not in _KNOWN:
        raise ValueError(f"likelihood={likelihood!r} is unknown; use one of {_KNOWN}")
    if precision not in ("marginal", "joint"):
        raise ValueError(f"precision={precision!r} is unknown; use 'marginal' or 'joint'")
    if noise is not None and likelihood != "gaussian":
        raise ValueError(f"noise was given with likelihood={likelihood!r}, which has none")
    known_noise = noise is not None and not isinstance(noise, TensorVariable)
    if known_noise and not (np.isfinite(noise) and noise > 0):
        raise ValueError(f"noise={noise} must be positive and finite, in the unit of y")
    if hyperprior is None:
        return
    if not isinstance(hyperprior, Hyperprior) or not hyperprior.is_proper:
        raise ValueError(
            f"hyperprior={hyperprior!r}; needed a proper Hyperprior(c, d, e, f), all positive, or None "
            "for the default (fit_evidence uses none)"
        )


def _observed(y: ArrayLike, n_obs: int, likelihood: str) -> tuple[Array, dict[str, Any]]:
    """Return targets, or labels 0 and 1 with the coords of their classes."""
    if likelihood == "gaussian":
        return as_targets(y, n_obs), {}
    label, classes = as_labels(y, n_obs)
    return (label > 0).astype("int64"), {"class": classes}


def _default_hyperprior(Phi: Array, observed: Array, likelihood: str) -> Hyperprior:
    """Return `Hyperprior.default` for weights of either sign, in the unit of the targets."""
    if likelihood != "gaussian":
        return Hyperprior.default(Phi, None)
    problem = EvidenceProblem(Phi, observed)
    out = Hyperprior.default(Phi, None, latent_size=problem.target_scale)
    return replace(out, f=out.f * (problem.target_scale**2 + float(np.mean(observed)) ** 2))


def _priors(hyperprior: Hyperprior, precision: str) -> tuple[TensorVariable, TensorVariable]:
    """Declare weights and bias: normal with Gamma precisions, integrated out or not."""
    c, d, e, f = gamma_parameters(hyperprior)
    if precision == "marginal":
        return FreeWeight("weight", c, d, dims="basis"), MarginalBias("bias", e, f)
    alpha = pm.Gamma("precision", alpha=c, beta=d, dims="basis")
    beta = pm.Gamma("bias_precision", alpha=e, beta=f)
    weight = pm.Normal("weight", mu=0.0, sigma=1 / pt.sqrt(alpha), dims="basis")
    return weight, pm.Normal("bias", mu=0.0, sigma=1 / pt.sqrt(beta))


def _declare_observed(
    model: pm.Model,
    likelihood: str,
    latent: TensorVariable,
    observed: Array,
    noise: float | TensorVariable | None,
) -> None:
    data = pm.Data("y", observed, dims="obs")
    if likelihood == "gaussian":
        sigma = _declare_noise(model, observed, noise)
        pm.Normal("target", mu=latent, sigma=sigma, observed=data, dims="obs")
    elif likelihood == "logit":
        pm.Bernoulli("label", logit_p=latent, observed=data, dims="obs")
    else:
        ProbitBernoulli("label", latent, observed=data, dims="obs")


def _declare_noise(
    model: pm.Model, target: Array, noise: float | TensorVariable | None
) -> TensorVariable:
    if noise is None:
        scale = EvidenceProblem(np.empty((len(target), 0)), target).target_scale
        return pm.HalfNormal("noise", sigma=scale)
    if isinstance(noise, TensorVariable):
        return noise if noise.name is not None else model.register_rv(noise, "noise")
    return pm.Data("noise", float(noise))


def likelihood_of(model: pm.Model) -> str:
    """Return the likelihood of a model of the family: ``"gaussian"``, ``"logit"`` or ``"probit"``."""
    if "target" in model.named_vars:
        return "gaussian"
    return "logit" if isinstance(model["label"].owner.op, BernoulliRV) else "probit"


def evidence_problem_of(model: pm.Model) -> EvidenceProblem:
    """Return what `fit_evidence` maximises, as it stands in a model's data.

    Raises
    ------
    ValueError
        If the model is not an RVM, has an unknown kernel width, or terms of its own.
    """
    free = {rv.name for rv in model.free_RVs}
    missing = {"y", "centres", "weight", "latent"} - set(model.named_vars)
    if missing or "weight" not in free:
        raise ValueError(
            f"the model lacks {sorted(missing) or 'free weights'}; needed a model from rvm_model(X, y, ...)"
        )
    if "Phi" not in model.named_vars:
        raise ValueError(
            "the kernel's width is a random variable; needed a number, since the evidence is maximised "
            "at fixed basis functions (maximise it over several widths, or sample)"
        )
    foreign = sorted(free - _FREE)
    foreign += sorted({rv.name for rv in model.observed_RVs} - {"label", "target"})
    foreign += sorted(potential.name for potential in model.potentials)
    if foreign:
        raise ValueError(f"the evidence is that of an RVM alone; found extra terms {foreign}")
    likelihood = likelihood_of(model)
    observed = np.asarray(model["y"].get_value(), dtype=float)
    known = likelihood == "gaussian" and "noise" not in free
    return EvidenceProblem(
        np.asarray(model["Phi"].get_value()),
        observed if likelihood == "gaussian" else 2.0 * observed - 1.0,
        likelihood,
        noise=float(model["noise"].eval()) if known else None,
    )
