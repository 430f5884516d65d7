"""One builder: a row of the family table and data in, an ordinary `pm.Model` out.

What a likelihood or a prior declares stands in one table each, `DECLARED_LIKELIHOODS` and `DECLARED_PRIORS`,
by the name of the piece: a new one is one entry.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from inspect import getfullargspec
from numbers import Integral
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.family import System
from pcvm_pymc.core.pieces.centres import choose_rows
from pcvm_pymc.core.pieces.features import FEATURES, feature_matrix
from pcvm_pymc.core.pieces.kernels import KernelPiece
from pcvm_pymc.core.pieces.likelihoods import ALIASES, LIKELIHOODS, Likelihood
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace, Prior, SharedHyperprior, named_prior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import (
    as_classes,
    as_features,
    as_labels,
    as_signs,
    as_targets,
)
from pcvm_pymc.model.bases import AnyKernel, Width, as_piece, basis_functions, own_variable
from pcvm_pymc.model.distributions import (
    FreeWeight,
    MarginalBias,
    MarginalWeight,
    ProbitBernoulli,
    SharedWeight,
)
from pcvm_pymc.model.improper import (
    ImproperBias,
    ImproperFreeWeight,
    ImproperSharedWeight,
    ImproperWeight,
)
from pcvm_pymc.model.multinomial import MultinomialProbit

__all__ = ["DECLARED_LIKELIHOODS", "DECLARED_PRIORS", "build"]

# the others are named in the data, where the results of pm.sample find them
_TOLD_BY_SHAPES = ("probit", "normal", "multinomial probit")

type Values = dict[str, TensorVariable]


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
    signs: ArrayLike | None = None,
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
        One of the row's; by name (`named_prior`) where a Laplace is among these.
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
    X = as_features(X)
    link, nuisance = _link(row, likelihood, nuisance)
    _check_prior(row, hyperprior, precision)
    targets = _Targets.of(link, y, len(X), one_class=signs is not None)
    within = targets.known if row.signs is not None or targets.is_several else None
    bases = _Bases.of(X, within, (kernel, width, basis, features))
    sign = _signs(row, targets, bases, signs)
    with pm.Model.get_context(error_if_none=False) or pm.Model() as model:
        model.add_coords({"obs": np.arange(len(X)), **targets.coords})
        Phi, typical = bases.declare(model)
        prior = _prior(row, hyperprior, typical, sign, targets)
        form = _Form(sign is None, targets.scores, len(targets.coords.get("class", ())))
        weight, intercept = _declare_prior(prior, precision, form, bias)
        if sign is not None:
            data = pm.Data("signs", sign, dims=form.dims)
            weight = pm.Deterministic("weight", data * weight, dims=form.dims)
        latent = pt.dot(Phi, weight) if intercept is None else pt.dot(Phi, weight) + intercept
        latent = pm.Deterministic("latent", latent, dims=("obs", *targets.scores))
        observed = pm.Data("y", targets.codes, dims="obs")
        DECLARED_LIKELIHOODS[link](latent, observed, **nuisance)
        if link not in _TOLD_BY_SHAPES:
            model.add_coords({"likelihood": [link]})
            pm.Data("likelihood_name", np.ones(1), dims="likelihood")
    return model


# --- what was given, checked --------------------------------------------------------------------


def _link(
    row: System, likelihood: str | Likelihood | None, nuisance: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the likelihood's name, and its parameters that were given."""
    name = row.likelihood if likelihood is None else getattr(likelihood, "name", likelihood)
    name = ALIASES.get(name, name)
    if name not in row.likelihoods:
        raise ValueError(f"likelihood={likelihood!r} is unknown; use one of {row.likelihoods}")
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
        if not isinstance(value, TensorVariable) and not (np.isfinite(value) and value > 0):
            raise ValueError(f"{key}={value} must be positive and finite, in the unit of y")
    return name, given


def _check_prior(row: System, hyperprior: Any, precision: str) -> None:
    if precision not in ("marginal", "joint"):
        raise ValueError(f"precision={precision!r} is unknown; use 'marginal' or 'joint'")
    if hyperprior is None or ("laplace" in row.priors and isinstance(hyperprior, str)):
        return
    found = f"hyperprior={hyperprior!r}"
    if getattr(hyperprior, "name", None) not in row.priors:
        raise ValueError(
            f"{found} is not a Hyperprior; needed Hyperprior(c, d, e, f), Hyperprior.jeffreys() or another "
            f"of its class methods, or None for the default (priors of this model: {row.priors})"
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

    known: NDArray[Any]
    kind: str
    coords: dict[str, Any]

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


@dataclass(frozen=True)
class _Bases:
    """Basis functions at the rows; `rows` are those on which they stand, None for given centres."""

    X: Array
    centres: Array
    rows: NDArray[np.intp] | None
    kernel: KernelPiece | None
    width: Any
    features: str

    @classmethod
    def of(
        cls, X: Array, within: NDArray[Any] | None, choices: tuple[AnyKernel, Any, Any, str]
    ) -> "_Bases":
        kernel, width, basis, features = choices
        if features not in FEATURES:
            raise ValueError(f"features={features!r} is unknown; use one of {FEATURES}")
        if features != "kernel":
            for name, value in (
                ("basis", basis),
                ("width", width),
                ("kernel", None if kernel == "rbf" else kernel),
            ):
                if value is not None:
                    raise ValueError(
                        f"{name} was given with features={features!r}; needed features='kernel'"
                    )
            return cls(X, X, None, None, None, features)
        piece = as_piece(kernel, width)
        if basis is None or isinstance(basis, Integral):
            rows = np.arange(len(X))
            if basis is not None:
                rows = choose_rows(X, within, int(basis), random_state=0)
            return cls(X, X[rows], rows, piece, width, features)
        return cls(X, as_features(basis, "basis", X.shape[1]), None, piece, width, features)

    def declare(self, model: pm.Model) -> tuple[TensorVariable, Array]:
        """Declare Phi; return it and its numbers."""
        if self.kernel is None:
            numbers = feature_matrix(self.X, self.features)
            model.add_coords({"basis": np.arange(numbers.shape[1])})
            return pm.Data("Phi", numbers, dims=("obs", "basis")), numbers
        n_basis, n_features = self.centres.shape
        model.add_coords({"basis": np.arange(n_basis), "feature": np.arange(n_features)})
        return basis_functions(model, self.kernel, self.X, self.centres, self.width)


def _signs(row: System, targets: _Targets, bases: _Bases, signs: ArrayLike | None) -> Array | None:
    """Return the sign of each weight, by the row's rule or as given; None for a row without one."""
    if row.signs is None:
        return None
    if signs is not None:
        return as_signs(signs, len(bases.centres), *targets.shape)
    if bases.rows is None:
        each = " and class" if targets.is_several else ""
        raise ValueError(
            f"basis was given without signs; needed one sign, -1 or +1, for each centre{each}"
        )
    return row.signs(targets.known[bases.rows], *targets.shape)


def _prior(
    row: System, given: Prior | str | None, typical: Array, sign: Array | None, targets: _Targets
) -> Prior:
    """Return the hyperprior, by default a proper one that is scaled to the data."""
    if isinstance(given, str) or (given is None and row.priors[0] == "laplace"):
        return named_prior(given or "laplace", typical)
    prior = _default_prior(typical, sign, targets) if given is None else given
    if row.shared and isinstance(prior, Hyperprior):
        return SharedHyperprior(**asdict(prior))
    return prior


def _default_prior(typical: Array, sign: Array | None, targets: _Targets) -> Hyperprior:
    """Return `Hyperprior.default`: over several classes its mean scale, for numbers in their unit."""
    if sign is not None and targets.is_several:  # each class has its own signs
        each = [Hyperprior.default(typical, column) for column in sign.T]
        return replace(each[0], d=float(np.mean([one.d for one in each])))
    if targets.kind != "numbers":
        return Hyperprior.default(typical, sign)
    size = _typical_size(targets.known)
    out = Hyperprior.default(typical, sign, latent_size=size)
    return replace(out, f=out.f * (size**2 + float(np.mean(targets.known)) ** 2))


def _typical_size(target: Array) -> float:
    """Return the targets' standard deviation; their size where they are constant, 1 where zero."""
    spread, size = float(np.std(target)), float(np.abs(target).max())
    return spread if spread > 1e-10 * size else size or 1.0


# --- priors -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """Name and dimensions of the weights' variable: free weights, or the sizes of signed ones."""

    free: bool
    scores: tuple[str, ...]
    n_scores: int

    @property
    def name(self) -> str:
        return "weight" if self.free else "magnitude"

    @property
    def dims(self) -> tuple[str, ...]:
        return ("basis", *self.scores)


def _declare_prior(
    prior: Prior, precision: str, form: _Form, bias: str
) -> tuple[TensorVariable, TensorVariable | None]:
    """Declare weights (or their sizes) and bias; the bias is None where there is none."""
    weights, biases = DECLARED_PRIORS[prior.name, precision]
    value = _numbers(prior, form)
    weight = weights(prior, value, form)
    if bias == "free":
        return weight, pm.Flat("bias", dims=form.scores or None)
    return weight, None if bias == "none" else biases(prior, value, form)


def _numbers(prior: Any, form: _Form) -> Values:
    """Declare the hyperprior's numbers as data, and d as unknown where it is learned; return each.

    Beside a precision that scores share stands their number, by which a result knows it.
    """
    numbers = {name: value for name, value in asdict(prior).items() if value is not None}
    if isinstance(prior, SharedHyperprior):
        numbers["n_scores"] = form.n_scores
    pm.modelcontext(None).add_coords({"hyperparameter": list(numbers)})
    data = pm.Data("hyperprior", np.array(list(numbers.values())), dims="hyperparameter")
    value = {name: data[i] for i, name in enumerate(numbers)}
    if prior.rate_shape is not None:
        shape = value["rate_shape"]
        value["d"] = pm.Gamma("rate", alpha=shape, beta=shape / value["d"])
    return value


def _student_weights(prior: Any, value: Values, form: _Form) -> TensorVariable:
    """Declare weights whose Gamma precisions are integrated out (chen2009 eq. 21)."""
    if prior.d > 0:
        proper = FreeWeight if form.free else MarginalWeight
        return proper(form.name, value["c"], value["d"], dims=form.dims)
    improper = ImproperFreeWeight if form.free else ImproperWeight
    return improper(form.name, value["c"], dims=form.dims)


def _student_bias(prior: Any, value: Values, form: _Form) -> TensorVariable:
    """Declare a bias whose Gamma precision is integrated out (chen2009 eq. 22)."""
    dims = form.scores or None
    if prior.f > 0:
        return MarginalBias("bias", value["e"], value["f"], dims=dims)
    return (ImproperFreeWeight if form.free else ImproperBias)("bias", value["e"], dims=dims)


def _normal_weights(prior: Any, value: Values, form: _Form) -> TensorVariable:
    """Declare weights with their Gamma precisions (chen2009 eq. 4)."""
    shared = isinstance(prior, SharedHyperprior)
    dims = form.dims[:1] if shared else form.dims
    sigma = 1 / pt.sqrt(pm.Gamma("precision", alpha=value["c"], beta=value["d"], dims=dims))
    sigma = sigma[:, None] if shared else sigma
    if form.free:
        return pm.Normal(form.name, mu=0.0, sigma=sigma, dims=form.dims)
    return pm.HalfNormal(form.name, sigma=sigma, dims=form.dims)


def _normal_bias(prior: Any, value: Values, form: _Form) -> TensorVariable:
    """Declare the bias with its Gamma precision."""
    dims = form.scores or None
    precision = pm.Gamma("bias_precision", alpha=value["e"], beta=value["f"], dims=dims)
    return pm.Normal("bias", mu=0.0, sigma=1 / pt.sqrt(precision), dims=dims)


def _shared_weights(prior: Any, value: Values, form: _Form) -> TensorVariable:
    """Declare weights of which those of a basis have one Gamma precision, integrated out."""
    n = form.n_scores
    if prior.d > 0:
        return SharedWeight(form.name, value["c"], value["d"], n, dims=form.dims)
    return ImproperSharedWeight(form.name, value["c"], n, dims=form.dims)


def _horseshoe_weights(prior: Any, value: Values, form: _Form) -> TensorVariable:
    """Declare sizes under the regularised half-horseshoe, non-centred (Piironen & Vehtari 2017)."""
    shared = pm.HalfCauchy("global_scale", beta=value["global_scale"])
    local = pm.HalfCauchy("local_scale", beta=1.0, dims=form.dims)
    unit = pm.HalfNormal("unit_magnitude", sigma=1.0, dims=form.dims)
    wide = shared * local
    size = unit * wide / pt.sqrt(1.0 + pt.sqr(wide / value["slab"]))
    return pm.Deterministic(form.name, size, dims=form.dims)


def _laplace_weights(prior: Any, value: Values, form: _Form) -> TensorVariable:
    """Declare weights whose exponential variances are integrated out (Figueiredo & Jain eq. 10)."""
    scale = 1.0 / pt.sqrt(value["gamma"])
    if form.free:
        return pm.Laplace(form.name, mu=0.0, b=scale, dims=form.dims)
    return pm.Exponential(form.name, scale=scale, dims=form.dims)


def _laplace_bias(prior: Any, value: Values, form: _Form) -> TensorVariable:
    """Declare the bias under the prior of a weight."""
    return pm.Laplace("bias", mu=0.0, b=1.0 / pt.sqrt(value["gamma"]), dims=form.scores or None)


#: by the name of the piece and whether precisions are integrated out: what declares weights, and bias
DECLARED_PRIORS: dict[tuple[str, str], tuple[Callable[..., Any], Callable[..., Any]]] = {
    ("gamma", "marginal"): (_student_weights, _student_bias),
    ("gamma", "joint"): (_normal_weights, _normal_bias),
    ("shared gamma", "marginal"): (_shared_weights, _student_bias),
    ("shared gamma", "joint"): (_normal_weights, _normal_bias),
    (Laplace.name, "marginal"): (_laplace_weights, _laplace_bias),
    ("half-horseshoe", "marginal"): (_horseshoe_weights, _student_bias),
}


# --- likelihoods --------------------------------------------------------------------------------


def _probit(latent: TensorVariable, observed: TensorVariable) -> None:
    ProbitBernoulli("label", latent, observed=observed, dims="obs")


def _label_noise(
    latent: TensorVariable, observed: TensorVariable, *, flip: float | TensorVariable = 0.05
) -> None:
    """Declare labels of which a share is flipped; the share may have a prior, called ``flip``."""
    known = not isinstance(flip, TensorVariable)
    flip = pm.Data("flip", flip) if known else own_variable(pm.modelcontext(None), flip, "flip")
    kept = np.float64(0.5) * pt.erfc(-np.sqrt(0.5) * latent)
    p = flip + (np.float64(1.0) - np.float64(2.0) * flip) * kept
    pm.Bernoulli("label", p=p, observed=observed, dims="obs")


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
    "logit": _logit,
    "normal": _normal,
    "student-t": _student_t,
    "multinomial probit": _multinomial_probit,
}
