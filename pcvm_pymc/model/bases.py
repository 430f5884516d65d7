"""Basis functions in a PyMC model, stored with the data that recompute them for new rows."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
from pcvm_pymc.model.names import Names

_log = logging.getLogger("pymc.pcvm_pymc")

type Width = ArrayLike | TensorVariable  # one, or one for each feature
type AnyKernel = kernels.Kernel | pm.gp.cov.Covariance

_MATRIX = ("obs", "basis")
_RECALLED = ("centres", "width", "kernel_width", "inputs", "Phi")
_N_CHECKED = 3  # rows whose basis functions tell whether a kernel is the model's


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
            raise ValueError(
                "the kernel has random variables as parameters, whose draws are the model's; use "
                "pm.set_data(**new_data(model, X_new)) and pm.sample_posterior_predictive"
            )
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
            raise ValueError(
                f"width is a random variable, which needs kernel={' or '.join(map(repr, DECLARED_KERNELS))}; "
                "give a pm.gp.cov object with a random lengthscale for another kernel of unknown width"
            )
        return piece
    if _has_width(piece):
        return piece.with_width(kernels.as_width(piece.width if width is None else width))
    if width is not None:
        raise ValueError(
            f"width={width!r} was given with kernel={kernel!r}, which has no width of that kind; leave it out"
        )
    return piece


def _has_width(piece: kernels.KernelPiece) -> bool:
    return piece.with_width(piece.width) is not piece


#: by the name of the kernel: g(s) as a PyTensor expression, for a random width
DECLARED_KERNELS: dict[str, Callable[[TensorVariable], TensorVariable]] = {
    "rbf": lambda square: pt.exp(-square),
}


def distances(X: Array, centres: Array, ndim: int = 2) -> Array:
    """Return squared distances between rows and centres, separately by feature where `ndim` is 3."""
    if ndim > 2:
        return np.square(X.T[:, :, None] - centres.T[:, None, :])
    return kernels.squared_distances(X, centres)


def own_variable(model: pm.Model, value: TensorVariable, name: str) -> TensorVariable:
    """Return a variable or expression of the model; an unnamed prior becomes a variable of that name.

    Raises
    ------
    ValueError
        If it is a variable of another model.
    """
    if not is_random(value) or value in model.basic_RVs:
        return value
    if value.name is None:
        return model.register_rv(value, name)
    raise ValueError(
        f"{name} is the random variable {value.name!r} of another model; needed one of this model, or a new "
        "unnamed prior such as pm.LogNormal.dist(0, 1)"
    )


def _width_name(kernel_name: str) -> str:
    """Return the name of the width's data, ``width`` for the RBF and ``kernel_width`` for others."""
    return "width" if kernel_name == kernels.RBF.name else "kernel_width"


def known_width(model: pm.Model) -> Any:
    """Return the RBF's width in a model's data, NaN where there is none."""
    return next((v.get_value() for v in model.data_vars if v.name == "width"), np.nan) * 1.0


def kernel_data(model: pm.Model, names: Names | None = None) -> dict[str, Any]:
    """Return the coords and data that `recall_kernel` reconstructs the kernel from."""
    names = names or Names()
    stored = {v.name: v.get_value() for v in model.data_vars}
    own = {name: stored[names(name)] for name in _RECALLED if names(name) in stored}
    check_centres(own)
    kernel = names("kernel")
    return {**own, "kernel": model.coords[kernel]} if kernel in model.coords else own


def recall_kernel(
    stored: Mapping[str, Any], kernel: AnyKernel | None = None
) -> kernels.KernelPiece:
    """Return the kernel that a model was built with, from its stored data.

    Parameters
    ----------
    stored : mapping of str to array_like
        Coords and data of the model, as `kernel_data` returns them or as a result's group
        ``constant_data`` has them: of ``kernel`` (its name; absent: the RBF), ``width`` or
        ``kernel_width``, ``inputs``, ``centres`` and ``Phi``, those that there are.
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
            f"the model's kernel is a {name} of your own, which is not stored; needed kernel=, the kernel "
            "that it was built with"
        )
    piece = kernels.KERNELS[name]() if kernel is None else as_piece(kernel)
    differs = piece.name != name
    if _width_name(name) in stored:
        width = np.asarray(stored[_width_name(name)])[()]
        if isinstance(kernel, kernels.KernelPiece):
            differs = differs or not np.array_equal(kernel.width, width)
        piece = piece.with_width(width)
    if not differs and name != kernels.RBF.name and "inputs" in stored and "Phi" in stored:
        rows, centres, Phi = (np.asarray(stored[each]) for each in ("inputs", "centres", "Phi"))
        values = piece(rows[:_N_CHECKED], centres)
        differs = not np.allclose(values, Phi[:_N_CHECKED], rtol=1e-9, atol=1e-12)
    if differs:
        raise ValueError(
            f"the model was not built with kernel={kernel!r}; needed the kernel that it was built with, "
            f"a {name}"
        )
    return piece


def check_centres(stored: Mapping[Any, Any]) -> None:
    """Raise unless a model's or result's basis functions have centres."""
    if "centres" not in stored:
        raise ValueError(
            "the model has no kernel, hence no centres; needed features='kernel'. For other features "
            "give Phi itself: pm.set_data (see sparse_probit_model), or use SparseProbitClassifier"
        )


@dataclass(frozen=True)
class Bases:
    """Kernel and centres of a model's basis functions, or their features.

    Attributes
    ----------
    X : ndarray, shape (n_obs, n_features)
    centres : ndarray, shape (n_basis, n_features)
    is_given : bool
        Whether the centres were given, not chosen among the rows or from them.
    known : ndarray, shape (n_basis,), or None
        Labels of the rows that they are, or whose means they are.
    kernel : KernelPiece or None
        None for features that are no kernel.
    width : float or TensorVariable
    features : {"kernel", "linear", "quadratic"}
    """

    X: Array
    centres: Array
    is_given: bool
    known: NDArray[Any] | None
    kernel: kernels.KernelPiece | None
    width: Any
    features: str

    @classmethod
    def of(
        cls,
        X: Array,
        within: NDArray[Any] | None,
        *,
        kernel: AnyKernel,
        width: Any,
        basis: Any,
        features: str,
    ) -> "Bases":
        """Return the basis for the arguments of a builder; rows are chosen within each label of `within`."""
        validation.check_choice("features", features, kernels.FEATURES)
        if features != "kernel":
            defaults = (("basis", basis, None), ("width", width, None), ("kernel", kernel, "rbf"))
            for name, value, default in defaults:
                if not (value is default or (isinstance(value, str) and value == default)):
                    raise ValueError(
                        f"{name} was given with features={features!r}, found {validation.shown(value)}; "
                        "needed features='kernel', or leave it out"
                    )
            return cls(X, X, True, None, None, None, features)
        own_width = isinstance(kernel, kernels.KernelPiece | pm.gp.cov.Covariance)
        if width is None and not own_width and _has_width(as_piece(kernel)):
            width = kernels.median_distance(X)  # the centre of the estimators' grid
            _log.info(
                "width=%.4g: the median distance between rows; select(X, y, over=('width',)).width "
                "chooses one",
                width,
            )
        piece = as_piece(kernel, width)
        if isinstance(basis, bool | np.bool_ | str) and basis != "kmeans":
            raise ValueError(
                f"basis={basis!r}; needed centres, a number of rows to choose, or 'kmeans'"
            )
        if isinstance(basis, str):
            centres, known = choose_means(X, within, random_state=0)
        elif basis is None:
            centres, known = X, within
        elif isinstance(basis, Integral):
            rows = choose_rows(X, within, int(basis), random_state=0, name="basis")
            centres, known = X[rows], None if within is None else within[rows]
        else:
            centres = validation.as_features(basis, "basis", X.shape[1])
            return cls(X, centres, True, None, piece, width, features)
        return cls(X, centres, False, known, piece, width, features)

    def declare(
        self, model: pm.Model, names: Names, columns: NDArray[Any]
    ) -> tuple[TensorVariable, Array]:
        """Declare Phi; return it and its values (at the median distance where the width is random).

        Phi is plain data where nothing in it is unknown, so that NUTS does not compute it at every step.
        `columns` are the names of the features.
        """
        validation.warn_constant(self.X)
        # these weigh the features themselves
        weighed = isinstance(self.kernel, Covariance | kernels.MatrixRBF) or np.ndim(self.width) > 0
        if not weighed:
            validation.warn_unscaled(self.X, columns.tolist())
        model.add_coords(names.coords({"feature": columns}))
        if self.kernel is None:
            matrix = kernels.feature_matrix(self.X, self.features)
            model.add_coords(names.coords({"basis": np.arange(matrix.shape[1])}))
            return pm.Data(names("Phi"), matrix, dims=names.dims("obs", "basis")), matrix
        kernel, X, centres = self.kernel, self.X, self.centres
        coords = {"basis": np.arange(len(centres)), "kernel": [kernel.name]}
        model.add_coords(names.coords(coords))
        points = pm.Data(names("centres"), centres, dims=names.dims("basis", "feature"))
        is_random = isinstance(kernel, Covariance) and kernel.is_random
        # a random covariance is computed from the inputs, others are data; results need the inputs
        name = names("X" if is_random else "inputs")
        inputs = pm.Data(name, X, dims=names.dims("obs", "feature"))
        if isinstance(kernel, Covariance) and is_random:
            typical = kernels.rbf(kernels.squared_distances(X, centres), kernels.median_distance(X))
            return kernel.covariance(inputs, points), typical
        if kernel.name != kernels.RBF.name:  # its coordinate names the kernel in results
            pm.Data(names("kernel_name"), np.ones(1), dims=names.dims("kernel"))
        if isinstance(kernel, kernels.Radial) and isinstance(self.width, TensorVariable):
            width = own_variable(model, self.width, names("width"))
            apart = distances(X, centres, 2 + width.ndim)
            dims = names.dims("feature", *_MATRIX)[-apart.ndim :]
            squared = pm.Data(names("squared_distance"), apart, dims=dims)
            inverse = 1.0 / pt.sqr(width)
            square = pt.tensordot(inverse, squared, 1) if width.ndim else squared * inverse
            typical = kernel.with_width(kernels.median_distance(X))(X, centres)
            return DECLARED_KERNELS[kernel.name](square), typical
        if _has_width(kernel):
            pm.Data(names(_width_name(kernel.name)), kernel.width)
        Phi = kernel(X, centres)
        if kernel.name == kernels.RBF.name:
            _warn_of_width(Phi, X, np.round(kernel.width, 6))
        return pm.Data(names("Phi"), Phi, dims=names.dims(*_MATRIX)), Phi


def with_signs(
    row: System, bases: Bases, signs: ArrayLike | str | None, shape: tuple[int, ...]
) -> tuple[Bases, Array | None]:
    """Return the bases with the sign of each weight, by the row's rule or as given.

    Parameters
    ----------
    row : System
        Without a rule the signs are None.
    bases : Bases
    signs : array_like, "both" or None
        ``"both"`` takes each basis function twice, once with a positive and once with a negative weight.
    shape : tuple of int
        Of one basis' weights: empty, or (n_classes,).
    """
    if row.signs is None:
        return bases, None
    n_basis = len(bases.centres)
    if isinstance(signs, str):
        validation.check_choice("signs", signs, ("both",))
        either = np.repeat([1.0, -1.0], n_basis).reshape(-1, *(1 for _ in shape))
        twice = replace(bases, centres=np.tile(bases.centres, (2, 1)), known=None)
        return twice, np.broadcast_to(either, (2 * n_basis, *shape)).copy()
    if signs is not None:
        return bases, validation.as_signs(signs, n_basis, *shape)
    if bases.is_given:
        each = " and class" if shape else ""
        raise ValueError(
            f"basis was given without signs; needed one sign, -1 or +1, for each centre{each}, or "
            "signs='both'"
        )
    if bases.known is None:
        raise ValueError(
            "neither y nor signs were given; needed labels y of two classes, which the weights take their "
            "signs from, or signs (rvm_latent has unconstrained weights)"
        )
    return bases, row.signs(bases.known, *shape)


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
        found = "nearly constant: 95 % of their values are above 0.95; needed a narrower one"
    elif np.median(np.where(Phi < 1 - 1e-9, Phi, 0.0).max(axis=1)) < 0.02:
        found = (
            "nearly an identity matrix: half of the rows have no value above 0.02 at another centre; "
            "needed a wider one"
        )
    else:
        return
    validation.warn_input(
        f"under width={width} the basis functions are {found}, near the median distance between rows, "
        f"{kernels.median_distance(X):.3g} (the default), or select(X, y, over=('width',)).width"
    )
