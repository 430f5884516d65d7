"""Basis functions in a PyMC model, stored with the data that recompute them for new rows."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.tensor.variable import TensorVariable

from pcvm_pymc.core.family import System
from pcvm_pymc.core.pieces import kernels, validation
from pcvm_pymc.core.pieces.centres import choose_means, choose_rows
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.model.graphs import is_random, numbers, random_parts
from pcvm_pymc.model.matrices import at_width, matrix
from pcvm_pymc.model.names import Names

_log = logging.getLogger("pymc.pcvm_pymc")

type Width = ArrayLike | TensorVariable | str  # one, or one for each feature; "lognormal"
type AnyKernel = kernels.Kernel | pm.gp.cov.Covariance

_MEDIAN = "width=%.4g: the median distance between rows; select(X, y, over=('width',)) chooses one"
_LOG_NORMAL = "width: unknown, log-normal around %.4g, the median distance between rows"
_WIDTH_SPREAD = 0.7  # of its logarithm
_N_CHECKED = 3  # rows whose basis functions tell whether a kernel is the model's


RANDOM_KERNEL = (
    "the kernel has random variables as parameters; use pm.set_data(**new_data(model, X_new)) and "
    "pm.sample_posterior_predictive"
)


@dataclass(frozen=True)
class Covariance(kernels.KernelPiece):
    """A PyMC covariance as a kernel; its lengthscale is its own.

    Parameters
    ----------
    covariance : pm.gp.cov.Covariance
        Its parameters may be random variables of a model.
    """

    covariance: pm.gp.cov.Covariance
    name: ClassVar[str] = "covariance"

    @property
    def is_random(self) -> bool:
        """Whether a parameter is a random variable."""
        row = np.zeros((1, self.covariance.input_dim))
        return bool(random_parts(self.covariance(row, row)))

    def __call__(self, X: Array, centres: Array) -> Array:
        """Return Phi, shape (n_obs, n_basis)."""
        if self.is_random:
            raise ValueError(RANDOM_KERNEL)
        return kernels.checked_values(numbers(self.covariance(X, centres)))


def as_piece(kernel: AnyKernel, width: Any = None) -> kernels.KernelPiece:
    """Return a kernel given by name, function, piece or covariance, with its width.

    Parameters
    ----------
    kernel : str, callable, KernelPiece or pm.gp.cov.Covariance
    width : float or TensorVariable, optional
        Default: the piece's own; one for a name or a function. A random one leaves the piece as it is.

    Raises
    ------
    ValueError
        If the kernel is not known, or cannot have that width.
    """
    is_covariance = isinstance(kernel, pm.gp.cov.Covariance)
    piece = Covariance(kernel) if is_covariance else kernels.as_kernel(kernel)
    if isinstance(width, TensorVariable):
        if piece.name not in DECLARED_KERNELS:
            known = " or ".join(map(repr, DECLARED_KERNELS))
            raise ValueError(f"width is a random variable; needed kernel={known}, or a pm.gp.cov")
        return piece
    if _has_width(piece):
        return piece.with_width(kernels.as_width(piece.width if width is None else width))
    if width is not None:
        raise ValueError(f"width={width!r} was given with kernel={kernel!r} without one; omit it")
    return piece


def _has_width(piece: kernels.KernelPiece) -> bool:
    return piece.with_width(piece.width) is not piece


#: by the name of the kernel: g(s) as a PyTensor expression, for a random width
DECLARED_KERNELS: dict[str, Callable[[TensorVariable], TensorVariable]] = {
    "rbf": lambda square: pt.exp(-square),
    "laplacian": lambda distance: pt.exp(-distance),
}


def _distances(order: int, ndim: int, X: Array, centres: Array, _: Any) -> Array:
    """Return distances between rows and centres, to a power, separately by feature where `ndim` is 3."""
    if ndim > 2:
        return np.abs(X.T[:, :, None] - centres.T[:, None, :]) ** order
    return kernels.distances(X, centres, order)


def _width_name(kernel_name: str) -> str:
    """Return the name of the width's data, ``width`` where it may be random, else ``kernel_width``."""
    return "width" if kernel_name in DECLARED_KERNELS else "kernel_width"


def recall_kernel(
    stored: Mapping[str, Any], kernel: AnyKernel | None = None
) -> kernels.KernelPiece:
    """Return the kernel that a model was built with, from its stored data.

    Parameters
    ----------
    stored : mapping of str to array_like
        A result's group ``constant_data``: of ``kernel`` (its name; absent: the RBF), ``width`` or
        ``kernel_width``, ``X``, ``centres`` and ``Phi``, those that there are.
    kernel : str, callable, KernelPiece or pm.gp.cov.Covariance, optional
        Needed where it was a function or a covariance, which are not stored.

    Raises
    ------
    ValueError
        If it is needed, or is not the model's.
    """
    name = str(np.ravel(stored["kernel"])[0]) if "kernel" in stored else kernels.RBF.name
    if kernel is None and name not in kernels.KERNELS:
        raise ValueError(
            f"the model's kernel is a {name} of your own, which is not stored; needed kernel=, that one"
        )
    piece = kernels.KERNELS[name]() if kernel is None else as_piece(kernel)
    differs = piece.name != name
    if _width_name(name) in stored:
        width = np.asarray(stored[_width_name(name)])[()]
        if isinstance(kernel, kernels.KernelPiece):
            differs |= not np.array_equal(kernel.width, width)
        piece = piece.with_width(width)
    if not differs and name != kernels.RBF.name and "X" in stored and "Phi" in stored:
        rows, centres, Phi = (np.asarray(stored[key]) for key in ("X", "centres", "Phi"))
        values = piece(rows[:_N_CHECKED], centres)
        differs = not np.allclose(values, Phi[:_N_CHECKED], rtol=1e-9, atol=1e-12)
    if differs:
        raise ValueError(f"the model was not built with kernel={kernel!r}; needed a {name}")
    return piece


@dataclass(frozen=True)
class Bases:
    """Kernel, centres and signs of a model's basis functions, or their features.

    Attributes
    ----------
    X : ndarray, shape (n_obs, n_features)
    centres : ndarray, shape (n_basis, n_features)
    sign : ndarray, shape (n_basis,) or (n_basis, n_classes), or None
        Of each weight; None leaves them free.
    kernel : KernelPiece or None
        None for features that are no kernel.
    width : float or TensorVariable
    features : {"kernel", "linear", "quadratic"}
    """

    X: Array
    centres: Array
    sign: Array | None
    kernel: kernels.KernelPiece | None
    width: Any
    features: str

    def declare(self, names: Names, columns: NDArray[Any]) -> tuple[TensorVariable, Array]:
        """Declare the data that Phi is computed from; return it and its values.

        They are those at the median distance where the width is random. Where nothing in it is unknown,
        NUTS does not compute it at every step. `columns` are the names of the features.
        """
        validation.warn_constant(self.X)
        weighed = isinstance(self.kernel, Covariance | kernels.MatrixRBF) or np.ndim(self.width) > 0
        if not weighed:  # the others weigh the features themselves
            validation.warn_unscaled(self.X, columns.tolist())
        names.add_dims(feature=columns)
        kernel, data = self.kernel, pt.constant(1.0)
        X = pt.cast(names.data("X", self.X, "obs", "feature"), "float64")
        if kernel is None:
            piece = kernels.FeatureColumns(self.features)
            index = np.arange(kernels.feature_matrix(self.X[:1], self.features).shape[1])
            names.add_dims(basis=index)
            return matrix(partial(at_width, piece), X, pt.constant(1.0 * index[:, None]), data)
        names.add_dims(basis=np.arange(len(self.centres)), kernel=[kernel.name])
        points = names.data("centres", self.centres, "basis", "feature")
        if isinstance(kernel, Covariance) and kernel.is_random:
            typical = kernels.RBF(kernels.median_distance(self.X))(self.X, self.centres)
            return names.variable("kernel", kernel.covariance(X, points)), typical
        if kernel.name != kernels.RBF.name:
            names.record("kernel", kernel.name)
        if isinstance(kernel, kernels.Radial) and isinstance(self.width, TensorVariable):
            width = names.variable("width", self.width)
            if random_parts(width) and not is_random(width):
                width = pm.Deterministic(names("width"), width)  # what predictions need
            apart, _ = matrix(partial(_distances, kernel.order, 2 + width.ndim), X, points, data)
            inverse = 1.0 / (pt.sqr(width) if kernel.order > 1 else width)
            exponent = pt.tensordot(inverse, apart, 1) if width.ndim else apart * inverse
            middle = kernels.median_distance(self.X, kernel.order)
            typical = kernel.with_width(middle)(self.X, self.centres)
            return DECLARED_KERNELS[kernel.name](exponent), typical
        if _has_width(kernel):
            data = names.data(_width_name(kernel.name), kernel.width)
        Phi, value = matrix(partial(at_width, kernel), X, points, data)
        if kernel.name == kernels.RBF.name:
            _warn_of_width(value, self.X, np.round(kernel.width, 6))
        return Phi, value


def choose_bases(
    row: System,
    X: Array,
    within: NDArray[Any] | None,
    shape: tuple[int, ...],
    *,
    kernel: AnyKernel = "rbf",
    width: Width | None = None,
    basis: Any = None,
    features: str = "kernel",
    signs: ArrayLike | str | None = None,
) -> Bases:
    """Return the bases for the arguments of a builder.

    Parameters
    ----------
    row : System
        Without a rule for signs weights are free.
    X : ndarray, shape (n_obs, n_features)
    within : ndarray, shape (n_obs,), or None
        Labels, within each of which rows are chosen, and which the signs come from.
    shape : tuple of int
        Of one basis' weights: empty, or (n_classes,).
    kernel, width, basis, features, signs
        As for `pcvm_pymc.pcvm_model` and `pcvm_pymc.sparse_probit_model`.
    """
    validation.check_choice("features", features, kernels.FEATURES)
    if features != "kernel":
        is_rbf = isinstance(kernel, str) and kernel == "rbf"
        given = {"basis": basis, "width": width, "kernel": None if is_rbf else kernel}
        for name, value in given.items():
            if value is not None:
                fault = f"{name} was given with features={features!r} ({validation.shown(value)})"
                raise ValueError(f"{fault}; needed features='kernel', or leave it out")
        return Bases(X, X, None, None, None, features)
    has_width = isinstance(kernel, kernels.KernelPiece | pm.gp.cov.Covariance)
    is_named = isinstance(width, str)
    if is_named:
        validation.check_choice("width", width, ("lognormal",))
    if is_named or (width is None and not has_width and _has_width(as_piece(kernel))):
        order = getattr(as_piece(kernel), "order", 2)
        middle = kernels.median_distance(X, order)  # the centre of the estimators' grid
        _log.info(_LOG_NORMAL if is_named else _MEDIAN, middle)
        width = pm.LogNormal.dist(np.log(middle), _WIDTH_SPREAD) if is_named else middle
    piece = as_piece(kernel, width)
    if isinstance(width, TensorVariable) and (row.signs is None or signs is not None):
        within = None  # centres of each class make narrow widths look too good
    centres, known = _centres(X, within, basis)
    if isinstance(signs, str):
        validation.check_choice("signs", signs, ("both",))
    if row.signs is None or isinstance(signs, str):
        return Bases(X, centres, None, piece, width, features)
    if signs is not None:
        sign = validation.as_signs(signs, len(centres), *shape)
    elif known is not None:
        sign = row.signs(known, *shape)
    else:
        fault = "basis was given without signs; needed one, -1 or +1, for each centre"
        if within is None:
            fault = "neither y nor signs were given; needed labels y of two classes"
        raise ValueError(f"{fault}, or signs='both' (rvm_latent's weights have none)")
    return Bases(X, centres, sign, piece, width, features)


def _centres(
    X: Array, within: NDArray[Any] | None, basis: Any
) -> tuple[Array, NDArray[Any] | None]:
    """Return centres, and the labels of the rows that they are, or whose means they are."""
    if basis is None:
        return X, within
    if isinstance(basis, str) and basis == "kmeans":
        return choose_means(X, within, random_state=0)
    if isinstance(basis, bool | np.bool_ | str):
        raise ValueError(f"basis={basis!r}; needed centres, a number of rows, or 'kmeans'")
    if isinstance(basis, Integral):
        rows = choose_rows(X, within, int(basis), random_state=0, name="basis")
        return X[rows], None if within is None else within[rows]
    return validation.as_features(basis, "basis", X.shape[1]), None


def _warn_of_width(Phi: Array, X: Array, width: Any) -> None:
    """Warn where an RBF's basis functions are nearly constant or nearly an identity matrix.

    Parameters
    ----------
    Phi : ndarray, shape (n_obs, n_basis)
        Values of the RBF.
    X : ndarray, shape (n_obs, n_features)
        The rows, for the width that the message recommends.
    width : float or array_like
        The width of `Phi`, for the message.
    """
    if np.quantile(Phi, 0.05) > 0.95:
        fault = "constant (95 % of their values are above 0.95); needed a narrower one"
    elif np.median(np.where(Phi < 1 - 1e-9, Phi, 0.0).max(axis=1)) < 0.02:
        fault = (
            "an identity matrix (half of the rows are far from other centres); needed a wider one"
        )
    else:
        return
    validation.warn_input(
        f"under width={width} the basis functions are nearly {fault}, near {kernels.median_distance(X):.3g}, "
        "the median distance between rows (the default), or that of select(X, y, over=('width',))"
    )
