"""One builder: a row of the family table and data in, an ordinary `pm.Model` out.

What a likelihood or a prior declares stands in one table each, `DECLARED_LIKELIHOODS` and `DECLARED_PRIORS`,
by the name of the piece: a new one is one entry.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from inspect import getfullargspec
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.family import System
from pcvm_pymc.core.pieces.arguments import check_choice, check_flag, is_real, shown
from pcvm_pymc.core.pieces.frames import Frame
from pcvm_pymc.core.pieces.likelihoods import ALIASES, LIKELIHOODS, Likelihood
from pcvm_pymc.core.pieces.memory import check_room
from pcvm_pymc.core.pieces.priors import (
    LATENT_SIZE,
    RATE_SHAPE,
    Hyperprior,
    Prior,
    SharedHyperprior,
    named_prior,
)
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import (
    as_classes,
    as_labels,
    as_targets,
)
from pcvm_pymc.model.bases import AnyKernel, Bases, Width, own_variable, with_signs
from pcvm_pymc.model.data import KernelModel
from pcvm_pymc.model.declare_priors import DECLARED_PRIORS, Form, declare_prior
from pcvm_pymc.model.distributions import ProbitBernoulli
from pcvm_pymc.model.multinomial import MultinomialProbit
from pcvm_pymc.model.names import Names

__all__ = ["DECLARED_LIKELIHOODS", "add_latent", "build"]

# proper ones; an improper one, of which nothing can be sampled, is asked for in full
_NAMES = ("default", "learned", "plug_in")
# the others are named in the data, where the results of pm.sample find them
_TOLD_BY_SHAPES = ("probit", "normal", "multinomial probit")


def build(
    row: System,
    X: ArrayLike,
    y: ArrayLike,
    *,
    likelihood: str | Likelihood | None = None,
    kernel: AnyKernel = "rbf",
    width: Width | None = None,
    hyperprior: Prior | str | None = None,
    precision: str = "marginal",
    signs: ArrayLike | str | None = None,
    basis: ArrayLike | int | None = None,
    bias: str = "prior",
    features: str = "kernel",
    **nuisance: Any,
) -> pm.Model:
    """Build a row of the family table as a PyMC model; on the context stack's, where there is one.

    Parameters
    ----------
    row : System
    X : array_like, shape (n_obs, n_features)
    y : array_like, shape (n_obs,)
    likelihood : str or Likelihood, optional
        One of the row's. Default: its own.
    kernel, width, precision, signs, basis
        As for `pcvm_pymc.pcvm_model`.
    hyperprior : Hyperprior, Laplace, HalfHorseshoe or str, optional
        One of the row's, or its name: of `named_prior` where a Laplace comes first among these, else that of
        a method of `Hyperprior`.
    bias : {"prior", "free", "none"}
        Whether the bias has the hyperprior's density, a flat one, or is not there.
    features : {"kernel", "linear", "quadratic"}
    **nuisance
        Parameters of the likelihood, numbers or priors; None for its default.

    Raises
    ------
    ValueError
        For input that cannot be used; the message says what was found and what is needed.
    """
    frame = Frame.of(X)
    X = frame.values
    link, nuisance = _link(row, likelihood, nuisance)
    targets = _Targets.of(link, y, len(X), one_class=signs is not None)
    choices = kernel, width, basis, features
    prior: dict[str, Any] = {"hyperprior": hyperprior, "precision": precision, "bias": bias}
    function = _Function.of(row, frame, targets, choices, signs=signs, **prior)
    with pm.Model.get_context(error_if_none=False) or KernelModel() as model:
        latent = function.declare(model, Names())
        model.add_coords(targets.coords)
        observed = pm.Data("y", targets.codes, dims="obs")
        DECLARED_LIKELIHOODS[link](latent, observed, **nuisance)
        if link not in _TOLD_BY_SHAPES:
            model.add_coords({"likelihood": [link]})
            pm.Data("likelihood_name", np.ones(1), dims="likelihood")
    if isinstance(model, KernelModel) and not isinstance(kernel, str):
        model.kernel = kernel
    return model


def add_latent(
    row: System,
    X: ArrayLike,
    y: ArrayLike | None,
    names: Names,
    *,
    kernel: AnyKernel,
    width: Width | None,
    hyperprior: Prior | str | None,
    precision: str,
    signs: ArrayLike | str | None,
    basis: ArrayLike | int | None,
    bias: bool,
    size: float = LATENT_SIZE,
) -> TensorVariable:
    """Add a row's latent function alone to the model of the block; see `pcvm_pymc.pcvm_latent`."""
    check_flag("bias", bias)
    frame = Frame.of(X)
    X = frame.values
    if y is None:
        targets = _Targets(None, "labels", {}, size)
    else:
        targets = _Targets.of(row.likelihood, y, len(X), one_class=signs is not None)
    choices = kernel, width, basis, "kernel"
    prior: dict[str, Any] = {
        "hyperprior": hyperprior,
        "precision": precision,
        "bias": "prior" if bias else "none",
    }
    function = _Function.of(row, frame, targets, choices, signs=signs, **prior)
    with pm.modelcontext(None) as model:
        return function.declare(model, names)


@dataclass(frozen=True)
class _Function:
    """A row's latent function, checked, and not declared yet."""

    row: System
    frame: Frame
    targets: "_Targets"
    bases: Bases
    sign: Array | None
    hyperprior: Prior | str
    precision: str
    bias: str

    @classmethod
    def of(
        cls,
        row: System,
        frame: Frame,
        targets: "_Targets",
        choices: tuple[AnyKernel, Any, Any, str],
        *,
        hyperprior: Prior | str | None,
        precision: str,
        signs: ArrayLike | str | None,
        bias: str,
    ) -> "_Function":
        hyperprior = _named(row, hyperprior)
        _check_prior(row, hyperprior, precision)
        within = targets.known if row.signs is not None or targets.is_several else None
        bases = Bases.of(frame.values, within, choices)
        bases, sign = with_signs(row, bases, signs, targets.shape)
        if choices[-1] == "kernel":
            check_room(len(frame.values), len(bases.centres))
        return cls(row, frame, targets, bases, sign, hyperprior, precision, bias)

    def declare(self, model: pm.Model, names: Names) -> TensorVariable:
        """Declare the function and all that it is made of; return it."""
        targets = self.targets
        names.check_free(model)
        names.add_rows(model, self.frame.index)
        if targets.is_several:
            model.add_coords(names.coords(targets.coords))
        Phi, typical = self.bases.declare(model, names, self.frame.columns)
        prior = _prior(self.row, self.hyperprior, typical, self.sign, targets)
        n_scores = len(targets.coords.get("class", ()))
        form = Form(self.sign is None, targets.scores, n_scores, names)
        weight, intercept = declare_prior(prior, self.precision, form, self.bias)
        if self.sign is not None:
            data = pm.Data(names("signs"), self.sign, dims=form.dims)
            weight = pm.Deterministic(names("weight"), data * weight, dims=form.dims)
        latent = pt.dot(Phi, weight) if intercept is None else pt.dot(Phi, weight) + intercept
        return pm.Deterministic(names.latent, latent, dims=names.dims("obs", *targets.scores))


# --- what was given, checked --------------------------------------------------------------------


def _link(
    row: System, likelihood: str | Likelihood | None, nuisance: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the likelihood's name, and its parameters that were given."""
    name = row.likelihood if likelihood is None else getattr(likelihood, "name", likelihood)
    name = ALIASES.get(name, name) if isinstance(name, str) else None
    if name not in row.likelihoods:
        raise ValueError(f"likelihood={shown(likelihood)} is unknown; use one of {row.likelihoods}")
    has = getfullargspec(DECLARED_LIKELIHOODS[name]).kwonlyargs
    given = {key: value for key, value in nuisance.items() if value is not None}
    for key in given:
        if key not in has:
            raise ValueError(f"{key} was given with likelihood={likelihood!r}, which has none")
        if isinstance(likelihood, Likelihood):
            raise ValueError(
                f"{key} was given beside {likelihood!r}, which has its own; leave it out"
            )
    if isinstance(likelihood, Likelihood):
        given = {key: getattr(likelihood, key) for key in has}
    for key, value in given.items():
        known = not isinstance(value, TensorVariable)
        if known and not (is_real(value) and np.isfinite(value) and value > 0):
            raise ValueError(f"{key}={shown(value)} must be positive and finite, in the unit of y")
    return name, given


def _named(row: System, given: Prior | str | None) -> Prior | str:
    """Return the hyperprior, a name where the data are needed for it."""
    if given is None:
        return row.hyperprior
    if row.hyperprior == "laplace" or not isinstance(given, str) or given != "plug_in":
        return given
    return Hyperprior.plug_in()


def _check_prior(row: System, hyperprior: Any, precision: str) -> None:
    check_choice("precision", precision, ("marginal", "joint"))
    of_laplace = row.hyperprior == "laplace"
    if isinstance(hyperprior, str) and (of_laplace or hyperprior in _NAMES):
        return
    found = f"{'prior' if of_laplace else 'hyperprior'}={shown(hyperprior)}"
    if getattr(hyperprior, "name", None) not in row.priors:
        raise ValueError(
            f"{found} is not a Hyperprior; needed Hyperprior(c, d, e, f), Hyperprior.jeffreys() or another "
            f"of its class methods, a name of {_NAMES}, or None for the default (priors of this model: "
            f"{row.priors})"
        )
    if "em" not in row.solvers and not hyperprior.is_proper:
        raise ValueError(
            f"{found}; needed a proper Hyperprior(c, d, e, f), all positive, or None for the default "
            "(fit_evidence uses none)"
        )
    if precision == "joint" and not hyperprior.is_proper:
        raise ValueError(
            f"precision='joint' needs a proper hyperprior, found {hyperprior}; use "
            "precision='marginal' for the EM, or leave hyperprior out"
        )
    if (hyperprior.name, precision) not in DECLARED_PRIORS:
        raise ValueError(
            f"precision='joint' needs a Hyperprior, found a {type(hyperprior).__name__}, which has no "
            "precisions; use precision='marginal'"
        )


@dataclass(frozen=True)
class _Targets:
    """Labels -1. and +1., numbers of classes, or targets, as the likelihood has them."""

    known: Any  # as an array; a function without a likelihood may have none
    kind: str
    coords: dict[str, Any]
    size: float = LATENT_SIZE  # of the latent function, where targets do not tell

    @classmethod
    def of(cls, link: str, y: ArrayLike, n_obs: int, *, one_class: bool) -> "_Targets":
        kind = LIKELIHOODS[link].targets
        if kind == "numbers":
            return cls(as_targets(y, n_obs), kind, {})
        known, classes = (
            as_classes(y, n_obs) if kind == "classes" else as_labels(y, n_obs, one_class=one_class)
        )
        return cls(known, kind, {"class": classes})

    @property
    def is_several(self) -> bool:
        return self.kind == "classes"

    @property
    def scores(self) -> tuple[str, ...]:
        return ("class",) if self.is_several else ()

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.coords["class"]),) if self.is_several else ()

    @property
    def codes(self) -> NDArray[Any]:
        return (self.known > 0).astype("int64") if self.kind == "labels" else self.known


def _prior(
    row: System, given: Prior | str, typical: Array, sign: Array | None, targets: _Targets
) -> Prior:
    """Return the hyperprior, that of a name scaled to the data."""
    prior: Any = given
    if isinstance(given, str):
        if row.hyperprior == "laplace":
            return named_prior(given, typical)
        prior = _scaled_prior(given, typical, sign, targets)
    if row.shared and isinstance(prior, Hyperprior):
        return SharedHyperprior(**asdict(prior))
    return prior


def _scaled_prior(name: str, typical: Array, sign: Array | None, targets: _Targets) -> Hyperprior:
    """Return the named hyperprior: of several classes at their mean scale, of numbers in their unit."""
    scaled = Hyperprior.learned if name == "learned" else Hyperprior.default
    if sign is not None and targets.is_several:  # each class has its own signs
        each = [Hyperprior.default(typical, column) for column in sign.T]
        shape = RATE_SHAPE if name == "learned" else None
        return replace(each[0], d=float(np.mean([one.d for one in each])), rate_shape=shape)
    if targets.kind != "numbers":
        out = scaled(typical, sign, latent_size=targets.size)
        return replace(out, f=out.f * (targets.size / LATENT_SIZE) ** 2)
    size = _typical_size(targets.known)
    out = scaled(typical, sign, latent_size=size)
    return replace(out, f=out.f * (size**2 + float(np.mean(targets.known)) ** 2))


def _typical_size(target: Array) -> float:
    """Return the targets' standard deviation; their size where they are constant, 1 where zero."""
    spread, size = float(np.std(target)), float(np.abs(target).max())
    return spread if spread > 1e-10 * size else size or 1.0


# --- likelihoods --------------------------------------------------------------------------------


def _probit(latent: TensorVariable, observed: TensorVariable) -> None:
    ProbitBernoulli("label", latent, observed=observed, dims="obs")


def _label_noise(
    latent: TensorVariable, observed: TensorVariable, *, flip: float | TensorVariable = 0.05
) -> None:
    """Declare labels of which a share is flipped; the share may have a prior, called ``flip``."""
    known = not isinstance(flip, TensorVariable)
    flip = pm.Data("flip", flip) if known else own_variable(pm.modelcontext(None), flip, "flip")
    p = flip + (np.float64(1.0) - np.float64(2.0) * flip) * _ndtr(latent)
    pm.Bernoulli("label", p=p, observed=observed, dims="obs")


def _ndtr(latent: TensorVariable) -> TensorVariable:
    return np.float64(0.5) * pt.erfc(-np.sqrt(0.5) * latent)


def _normal_probability(
    latent: TensorVariable, observed: TensorVariable, *, noise: float | TensorVariable = 0.5
) -> None:
    """Declare labels as numbers, normal around their probability."""
    sigma = _noise(observed, noise)
    pm.Normal("label", mu=_ndtr(latent), sigma=sigma, observed=observed, dims="obs")


def _logit(latent: TensorVariable, observed: TensorVariable) -> None:
    pm.Bernoulli("label", logit_p=latent, observed=observed, dims="obs")


def _normal(
    latent: TensorVariable, observed: TensorVariable, *, noise: float | TensorVariable | None = None
) -> None:
    """Declare targets, and their standard deviation, which is half-normal unless it is given."""
    sigma = _noise(observed, noise)
    pm.Normal("target", mu=latent, sigma=sigma, observed=observed, dims="obs")


def _noise(observed: TensorVariable, noise: float | TensorVariable | None) -> TensorVariable:
    """Declare the scale of targets, which is half-normal unless it is given."""
    if noise is None:
        return pm.HalfNormal("noise", sigma=_typical_size(observed.get_value()))
    if not isinstance(noise, TensorVariable):
        return pm.Data("noise", float(noise))
    return own_variable(pm.modelcontext(None), noise, "noise")


def _student_t(
    latent: TensorVariable,
    observed: TensorVariable,
    *,
    noise: float | TensorVariable | None = None,
    degrees: float | TensorVariable = 4.0,
) -> None:
    """Declare targets with outliers; the degrees of freedom may have a prior, called ``degrees``."""
    known = not isinstance(degrees, TensorVariable)
    model, sigma = pm.modelcontext(None), _noise(observed, noise)
    nu = pm.Data("degrees", degrees) if known else own_variable(model, degrees, "degrees")
    pm.StudentT("target", nu=nu, mu=latent, sigma=sigma, observed=observed, dims="obs")


def _multinomial_probit(latent: TensorVariable, observed: TensorVariable) -> None:
    MultinomialProbit("label", latent, observed=observed, dims="obs")


#: by the name of the piece: what declares the observed variable; its keywords are nuisance parameters
DECLARED_LIKELIHOODS: dict[str, Callable[..., None]] = {
    "probit": _probit,
    "label noise": _label_noise,
    "normal-probability": _normal_probability,
    "logit": _logit,
    "normal": _normal,
    "student-t": _student_t,
    "multinomial probit": _multinomial_probit,
}
