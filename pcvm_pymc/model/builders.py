"""Builders: data in, an ordinary `pm.Model` out."""

from collections.abc import Mapping
from dataclasses import asdict
from numbers import Integral
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.family import FAMILY, System
from pcvm_pymc.core.pieces.centres import choose_rows
from pcvm_pymc.core.pieces.kernels import (
    Kernel,
    design_matrix,
    median_distance,
    rbf,
    squared_distances,
)
from pcvm_pymc.core.pieces.priors import HalfHorseshoe, Hyperprior, Laplace
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_features, as_labels, as_signs, as_targets, as_width
from pcvm_pymc.model.distributions import (
    ImproperBias,
    ImproperWeight,
    MarginalBias,
    MarginalWeight,
    ProbitBernoulli,
)

__all__ = [
    "basis_at",
    "basis_functions",
    "check_centres",
    "current_or_new_model",
    "gamma_parameters",
    "hyperprior_data",
    "new_data",
    "pcvm_model",
    "stored_width",
    "width_name",
]

type Width = float | TensorVariable
type Covariance = pm.gp.cov.Covariance
type Prior = Hyperprior | HalfHorseshoe


def pcvm_model(
    X: ArrayLike,
    y: ArrayLike,
    *,
    kernel: Kernel | Covariance = "rbf",
    width: Width = 1.0,
    hyperprior: Prior | None = None,
    precision: Literal["marginal", "joint"] = "marginal",
    signs: ArrayLike | None = None,
    basis: ArrayLike | int | None = None,
) -> pm.Model:
    r"""Build the probabilistic classification vector machine (PCVM) as a PyMC model.

    .. math:: P(y = 1 \mid x) = \Phi\Bigl(\sum_j w_j \exp(-\|x - z_j\|^2 / \text{width}^2) + b\Bigr)

    with weights that have the sign of their own basis' label and half-normal sizes, Gaussian bias, and
    Gamma-distributed precisions. Called inside a ``with pm.Model():`` block, it adds its
    variables to that model; otherwise it makes a new one.

    Parameters
    ----------
    X : array_like, shape (n_obs, n_features)
        Training inputs. They are used as they are: standardise columns of different units first.
    y : array_like, shape (n_obs,)
        Labels of any type, two classes; the greater one in sorted order is "1".
    kernel : "rbf", callable or pm.gp.cov.Covariance
        Basis functions: the RBF ``exp(-||x - z||^2 / width^2)``, a function ``(X, Z, width) ->
        (n_obs, n_basis)``, or a PyMC covariance (which has its own lengthscale, so that `width` is
        not used; its parameters may be random variables of the model).
    width : float or TensorVariable
        Width of the RBF. A random variable of the model or an unnamed prior
        (``pm.LogNormal.dist(...)``, then named ``width``) makes it unknown.
    hyperprior : Hyperprior or HalfHorseshoe, optional
        Gamma hyperpriors of the precisions. Default: ``Hyperprior.default``, proper and scaled to
        the data. An improper one can be handed to `find_map_em` only, one with an unknown
        scale (``Hyperprior.learned``) or a `HalfHorseshoe` to samplers only.
    precision : {"marginal", "joint"}
        ``"marginal"`` integrates the precisions out (half-Student-t weights: half as many variables,
        better geometry); ``"joint"`` keeps them as ``precision`` and ``bias_precision``.
    signs : array_like of -1 and +1, shape (n_basis,), optional
        Sign of each weight. Default: the label of its basis. Given apart from `y` they stay
        fixed when labels are simulated, as calibration needs it; `y` may then be of one class.
    basis : array_like, shape (n_basis, n_features), or int, optional
        Centres of the basis functions; needs `signs`. A number takes so many rows of `X`, by k-means++
        within each class (`choose_basis` has other ways). Default: the rows of `X`.

    Returns
    -------
    pm.Model
        Coords ``obs``, ``basis``, ``class``; variables ``magnitude`` (sizes of the weights), ``bias``,
        the deterministics ``weight`` (signed) and ``latent``, and the observed ``label``. Data:
        ``Phi`` and ``width`` (or ``squared_distance`` where the width is random), ``centres``, ``signs``,
        ``hyperprior`` and the labels ``y``.

    Raises
    ------
    ValueError
        For input that cannot be used; the message says what was found and what is needed.

    Notes
    -----
    The signs come from the labels, so that the model is not generative in y: what is well defined
    is the posterior with the signs held as constants.

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
    ['bias', 'magnitude']
    """
    return _binary_model(
        FAMILY["pcvm"],
        X,
        y,
        kernel=kernel,
        width=width,
        hyperprior=hyperprior,
        precision=precision,
        signs=signs,
        basis=basis,
    )


def _binary_model(
    system: System,
    X: ArrayLike,
    y: ArrayLike,
    *,
    kernel: Kernel | Covariance,
    width: Width,
    hyperprior: Prior | None,
    precision: str,
    signs: ArrayLike | None,
    basis: ArrayLike | int | None,
) -> pm.Model:
    """Build a two-class row of the family table."""
    X = as_features(X)
    label, classes = as_labels(y, len(X), one_class=signs is not None)
    if basis is None or isinstance(basis, Integral):
        rows = np.arange(len(X)) if basis is None else choose_rows(X, label, basis, random_state=0)
        centres = X[rows]
    elif signs is None:
        raise ValueError(
            "basis was given without signs; needed one sign, -1 or +1, for each centre"
        )
    else:
        centres = as_features(basis, "basis", X.shape[1])
    if signs is None:
        assert system.signs is not None
        weight_sign = system.signs(label[rows])
    else:
        weight_sign = as_signs(signs, len(centres))
    if hyperprior is not None and not isinstance(hyperprior, Hyperprior | HalfHorseshoe):
        raise ValueError(
            f"hyperprior={hyperprior!r} is not a Hyperprior; needed Hyperprior(c, d, e, f), "
            "Hyperprior.jeffreys() or another of its class methods, a HalfHorseshoe, or None for the default"
        )
    if precision not in ("marginal", "joint"):
        raise ValueError(f"precision={precision!r} is unknown; use 'marginal' or 'joint'")
    if precision == "joint" and hyperprior is not None and not hyperprior.is_proper:
        raise ValueError(
            f"precision='joint' needs a proper hyperprior, found {hyperprior}; use "
            "precision='marginal' for the EM, or leave hyperprior out"
        )
    if precision == "joint" and isinstance(hyperprior, HalfHorseshoe):
        raise ValueError(
            "precision='joint' needs a Hyperprior, found a HalfHorseshoe, which has no precisions; use "
            "precision='marginal'"
        )
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
        hyperprior = hyperprior or Hyperprior.default(typical, weight_sign)
        sign = pm.Data("signs", weight_sign, dims="basis")
        magnitude, bias = _priors(hyperprior, precision)
        weight = pm.Deterministic("weight", sign * magnitude, dims="basis")
        latent = pm.Deterministic("latent", pt.dot(Phi, weight) + bias, dims="obs")
        observed = pm.Data("y", (label > 0).astype("int64"), dims="obs")
        ProbitBernoulli("label", latent, observed=observed, dims="obs")
    return model


def current_or_new_model() -> pm.Model:
    """Return the model on the context stack, or a new one."""
    return pm.Model.get_context(error_if_none=False) or pm.Model()


def hyperprior_data(hyperprior: Prior | Laplace) -> dict[str, TensorVariable]:
    """Declare the hyperprior's numbers as data of the model; return each by its name."""
    values = {name: value for name, value in asdict(hyperprior).items() if value is not None}
    pm.modelcontext(None).add_coords({"hyperparameter": list(values)})
    data = pm.Data("hyperprior", np.array(list(values.values())), dims="hyperparameter")
    return {name: data[i] for i, name in enumerate(values)}


def gamma_parameters(hyperprior: Hyperprior) -> tuple[TensorVariable, ...]:
    """Declare a hyperprior's c, d, e, f as data of the model, and d as unknown where it is to be learned."""
    values = hyperprior_data(hyperprior)
    c, d, e, f = (values[name] for name in "cdef")
    if hyperprior.rate_shape is not None:
        shape = values["rate_shape"]
        d = pm.Gamma("rate", alpha=shape, beta=shape / d)
    return c, d, e, f


def _priors(hyperprior: Prior, precision: str) -> tuple[TensorVariable, TensorVariable]:
    """Declare sizes of the weights and bias (chen2009 eq. 4, or eqs. 21-22 integrated)."""
    if isinstance(hyperprior, HalfHorseshoe):
        values = hyperprior_data(hyperprior)
        magnitude = _half_horseshoe(values["global_scale"], values["slab"])
        return magnitude, MarginalBias("bias", values["e"], values["f"])
    c, d, e, f = gamma_parameters(hyperprior)
    if precision == "joint":
        alpha = pm.Gamma("precision", alpha=c, beta=d, dims="basis")
        beta = pm.Gamma("bias_precision", alpha=e, beta=f)
        magnitude = pm.HalfNormal("magnitude", sigma=1 / pt.sqrt(alpha), dims="basis")
        return magnitude, pm.Normal("bias", mu=0.0, sigma=1 / pt.sqrt(beta))
    if hyperprior.d > 0:
        magnitude = MarginalWeight("magnitude", c, d, dims="basis")
    else:
        magnitude = ImproperWeight("magnitude", c, dims="basis")
    if hyperprior.f > 0:
        return magnitude, MarginalBias("bias", e, f)
    return magnitude, ImproperBias("bias", e)


def _half_horseshoe(global_scale: TensorVariable, slab: TensorVariable) -> TensorVariable:
    """Declare sizes under the regularised half-horseshoe, non-centred (Piironen & Vehtari 2017)."""
    shared = pm.HalfCauchy("global_scale", beta=global_scale)
    local = pm.HalfCauchy("local_scale", beta=1.0, dims="basis")
    unit = pm.HalfNormal("unit_magnitude", sigma=1.0, dims="basis")
    wide = shared * local
    return pm.Deterministic(
        "magnitude", unit * wide / pt.sqrt(1.0 + pt.sqr(wide / slab)), dims="basis"
    )


def basis_functions(
    model: pm.Model, kernel: Kernel | Covariance, X: Array, centres: Array, width: Width
) -> tuple[TensorVariable, Array]:
    """Declare Phi; return it, and its numbers (at the median distance where they are unknown).

    It is plain data where nothing in it is unknown, so that NUTS does not compute it again and again.
    """
    matrix = ("obs", "basis")
    unknown_width = isinstance(width, TensorVariable)
    if _has_random_parameters(kernel):
        inputs = pm.Data("X", X, dims=("obs", "feature"))
        Phi = kernel.full(inputs, model["centres"])
        return Phi, design_matrix("rbf", X, centres, median_distance(X))
    if isinstance(kernel, pm.gp.cov.Covariance) or not unknown_width:
        numbers = basis_at(kernel, X, centres, width)
        if not isinstance(kernel, pm.gp.cov.Covariance):
            pm.Data(width_name(kernel), as_width(width))
        return pm.Data("Phi", numbers, dims=matrix), numbers
    if kernel != "rbf":
        raise ValueError(
            "width is a random variable, which needs kernel='rbf'; give a pm.gp.cov object "
            "with a random lengthscale for another kernel of unknown width"
        )
    if width.name is None:
        width = model.register_rv(width, "width")
    numbers = squared_distances(X, centres)
    squared = pm.Data("squared_distance", numbers, dims=matrix)
    return pt.exp(-squared / pt.sqr(width)), rbf(numbers, median_distance(X))


def width_name(kernel: Kernel) -> str:
    """Return the name of the width's data: a result says by it whether its kernel is the RBF."""
    return "width" if kernel == "rbf" else "kernel_width"


def _has_random_parameters(kernel: Kernel | Covariance) -> bool:
    """Whether a PyMC covariance depends on a random variable."""
    return isinstance(kernel, pm.gp.cov.Covariance) and _is_random(
        kernel.full(np.zeros((1, kernel.input_dim)), np.zeros((1, kernel.input_dim)))
    )


def _is_random(expression: TensorVariable) -> bool:
    """Whether an expression depends on a random variable."""
    return any(
        isinstance(v.owner.op, pt.random.op.RandomVariable)
        for v in ancestors([expression])
        if v.owner is not None
    )


def basis_at(kernel: Kernel | Covariance, X: Array, centres: Array, width: Any) -> Array:
    """Return Phi, shape (n_obs, n_basis), for any kernel of known parameters."""
    if _has_random_parameters(kernel):
        raise ValueError(
            "the kernel has random variables as parameters, whose draws are the model's; use "
            "pm.set_data(**new_data(model, X_new)) and pm.sample_posterior_predictive"
        )
    if isinstance(kernel, pm.gp.cov.Covariance):  # the lengthscale is its own
        return np.asarray(kernel.full(X, centres).eval())
    return design_matrix(kernel, X, centres, as_width(width))


def stored_width(kernel: Kernel | Covariance, stored: Mapping[Any, Any]) -> Any:
    """Return the width for a kernel among a model's or result's data; raise if it is another kernel's."""
    if isinstance(kernel, pm.gp.cov.Covariance):
        return np.nan
    name = width_name(kernel)
    if name not in stored:
        raise ValueError(
            f"the model was not built with kernel={kernel!r}; needed the kernel that it was built with"
        )
    return stored[name]


def check_centres(stored: Mapping[Any, Any]) -> None:
    """Raise unless a model's or result's basis functions stand at centres."""
    if "centres" not in stored:
        raise ValueError(
            "the model has no kernel, hence no centres; needed features='kernel'. For other features "
            "give Phi itself: pm.set_data (see sparse_probit_model), or use SparseProbitClassifier"
        )


def new_data(
    model: pm.Model,
    X_new: ArrayLike,
    y_new: ArrayLike | None = None,
    *,
    kernel: Kernel | Covariance = "rbf",
) -> dict[str, Any]:
    """Return the keyword arguments with which one `pm.set_data` gives a model new rows.

    Parameters
    ----------
    model : pm.Model
        From a builder, or transformed from one by `pm.do` or `pm.observe`.
    X_new : array_like, shape (n_new, n_features)
    y_new : array_like, shape (n_new,), optional
        Labels 0 and 1 (of several classes: their numbers, from 0), or targets; only
        placeholders (zeros) are needed to predict.
    kernel : "rbf", callable or pm.gp.cov.Covariance
        The kernel that the model was built with.

    Returns
    -------
    dict
        ``new_data`` and ``coords``.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> with pcvm_model(X, X[:, 0] > 0) as model:
    ...     pm.set_data(**new_data(model, X[:5] + 0.1))
    """
    check_centres(model.named_vars)
    centres = model["centres"].get_value()
    X_new = as_features(X_new, "X_new", centres.shape[1])
    observed = np.zeros(len(X_new), dtype=model["y"].dtype)
    if y_new is not None and "target" in model.named_vars:
        observed[:] = as_targets(y_new, len(X_new))
    elif y_new is not None and model.named_vars_to_dims.get("latent") == ("obs", "class"):
        observed[:] = _numbers_of_classes(y_new, len(X_new), len(model.coords["class"]))
    elif y_new is not None:
        observed[:] = as_labels(y_new, len(X_new), one_class=True)[0] > 0
    values: dict[str, Any] = {"y": observed}
    if "X" in model.named_vars:
        values["X"] = X_new
    elif "squared_distance" in model.named_vars:
        values["squared_distance"] = squared_distances(X_new, centres)
    else:
        width = stored_width(kernel, {v.name: v.get_value() for v in model.data_vars})
        values["Phi"] = basis_at(kernel, X_new, centres, width)
    return {"new_data": values, "coords": {"obs": np.arange(len(X_new))}}


def _numbers_of_classes(y_new: ArrayLike, n_new: int, n_classes: int) -> Array:
    """Return numbers of classes, checked."""
    label = np.asarray(y_new)
    if label.shape != (n_new,) or not np.isin(label, np.arange(n_classes)).all():
        raise ValueError(
            f"y_new has shape {label.shape} and values {np.unique(label)[:10]}; needed shape ({n_new},) and "
            f"numbers of classes, 0 to {n_classes - 1}"
        )
    return label
