"""Kernels with their widths, other features of the inputs, and widths that suit the data."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from scipy.linalg import solve_triangular
from scipy.spatial.distance import cdist

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_numbers, check_choice, check_shape, shown

_LARGEST = 1e12  # of a basis function: its squares are summed over the rows

type Kernel = str | Callable[[Array, Array, float], Array] | KernelPiece


def as_width(width: Any) -> Any:
    """Return a kernel width as a positive float, or several, one for each feature, as an array."""
    try:
        out = np.asarray(width, dtype=float)
    except (TypeError, ValueError):
        out = np.empty(0)
    if out.ndim > 1 or out.size == 0 or not (np.isfinite(out).all() and (out > 0).all()):
        fault = f"width={shown(width)} must be positive and finite"
        raise ValueError(f"{fault}: a number, or one for each feature")
    return out if out.ndim else float(out)


class KernelPiece:
    """Base of all kernels k(x, z): called with rows and centres, it returns the basis functions."""

    name: ClassVar[str]
    width: Any = np.nan

    def __call__(self, X: Array, centres: Array) -> Array:
        """Return Phi, shape (n_obs, n_basis)."""
        raise NotImplementedError

    def with_width(self, width: Any) -> Self:
        """Return the same kernel at another width; itself where it has none."""
        fields = getattr(self, "__dataclass_fields__", {})
        return replace(self, width=width) if "width" in fields else self  # type: ignore[type-var]


@dataclass(frozen=True)
class Radial(KernelPiece):
    """Base of kernels g(s) of distances in units of the width, ``sum_j (|x_j - z_j| / width_j)^order``.

    Parameters
    ----------
    width : float or ndarray, shape (n_features,)
        In the unit of the inputs; one for each feature is the vector theta of Chen et al. (2009).
    """

    width: Any = 1.0
    order: ClassVar[int] = 2

    def profile(self, square: Array) -> Array:
        """Return g(s) = exp(-s) for s >= 0, in place of `square`, which is overwritten."""
        np.negative(square, out=square)
        return np.exp(square, out=square)

    def of_distances(self, distance: Array) -> Array:
        """Return g(distance / width^order) at one width, shape of `distance`, which is overwritten."""
        with np.errstate(over="ignore"):  # not by width^2, which may under- or overflow
            for _ in range(self.order):
                distance /= self.width
        return self.profile(distance)

    def __call__(self, X: Array, centres: Array) -> Array:
        """Return Phi, shape (n_obs, n_basis)."""
        n = X.shape[1]
        if np.ndim(self.width) and np.shape(self.width) != (n,):
            raise ValueError(f"width has {len(self.width)} values; needed one or {n}, the features")
        if np.ndim(self.width):
            return self.profile(distances(X / self.width, centres / self.width, self.order))
        return self.of_distances(distances(X, centres, self.order))


@dataclass(frozen=True)
class RBF(Radial):
    """``exp(-||x - z||^2 / width^2)`` (Chen et al. 2009 eq. 13)."""

    name: ClassVar[str] = "rbf"


@dataclass(frozen=True)
class Laplacian(Radial):
    """``exp(-sum_j |x_j - z_j| / width_j)``, for functions that are rough or of few features.

    That of scikit-learn's `laplacian_kernel` with gamma = 1 / width.
    """

    name: ClassVar[str] = "laplacian"
    order: ClassVar[int] = 1


@dataclass(frozen=True, eq=False)
class MatrixRBF(KernelPiece):
    """``exp(-(x - z)' S^-1 (x - z) / width^2)``: the RBF of a quadratic form.

    Kropotov et al. (2006), section VI, write it with 1/2 in place of 1 / width^2: width sqrt(2) is theirs.

    Parameters
    ----------
    matrix : array_like, shape (n_features, n_features)
        S, symmetric and positive definite, in the units of the features, such as their covariance. The
        identity gives the RBF, a diagonal one the RBF with a width for each feature.
    width : float
        A factor for all directions.

    Raises
    ------
    ValueError
        If the matrix is not symmetric and positive definite, or not of as many features as the rows, or the
        width is not one positive number.

    Examples
    --------
    >>> from pcvm_pymc import RVMClassifier
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> X = X @ [[1.0, 0.9], [0.0, 0.3]]
    >>> kernel = MatrixRBF(np.cov(X.T))
    >>> model = RVMClassifier(kernel=kernel, width=2.0).fit(X, X[:, 0] > 0)
    >>> bool(model.score(X, X[:, 0] > 0) > 0.9)
    True
    """

    matrix: Any
    width: Any = 1.0
    name: ClassVar[str] = "matrix-rbf"

    def __post_init__(self) -> None:
        S = np.asarray(as_numbers(self.matrix, "matrix"), dtype=float)
        if S.ndim != 2 or S.shape[0] != S.shape[1] or not np.allclose(S, S.T, atol=0.0):
            raise ValueError(f"matrix has shape {S.shape}; needed a symmetric one of the features")
        least = np.linalg.eigvalsh(S)[0]
        if not least > 0:
            fault = f"matrix has the eigenvalue {least:.3g}"
            raise ValueError(f"{fault}; needed a positive definite one: add to its diagonal")
        if np.ndim(as_width(self.width)):
            raise ValueError(f"width={shown(self.width)}; needed one number with a matrix")

    def __call__(self, X: Array, centres: Array) -> Array:
        """Return Phi, shape (n_obs, n_basis)."""
        S = np.asarray(self.matrix, dtype=float)
        if X.shape[1] != len(S):
            raise ValueError(f"matrix is of {len(S)} features; needed {X.shape[1]}, those of X")
        factor = np.linalg.cholesky(S)
        turned = (solve_triangular(factor, part.T, lower=True).T for part in (X, centres))
        return RBF(self.width)(*turned)


@dataclass(frozen=True)
class LinearSpline(KernelPiece):
    """Vapnik's linear spline, a product over the features; it has no width.

    ``1 + x z + x z m - (x + z) m^2 / 2 + m^3 / 3`` with ``m = min(x, z)`` (Chmielewski et al. 2019
    section 3.1; Vapnik 1998). It is positive definite for x, z >= 0 only: for inputs of both signs it is an
    indefinite function, a legal basis but no covariance.
    """

    name: ClassVar[str] = "linear-spline"

    def __call__(self, X: Array, centres: Array) -> Array:
        """Return Phi, shape (n_obs, n_basis)."""
        out = np.ones((len(X), len(centres)))
        with np.errstate(over="ignore", invalid="ignore"):
            for column, centre in zip(X.T, centres.T, strict=True):
                x, z = column[:, None], centre[None]
                m = np.minimum(x, z)
                out *= 1.0 + x * z + x * z * m - 0.5 * (x + z) * m**2 + m**3 / 3.0
        return checked_values(out)


@dataclass(frozen=True)
class FunctionKernel(KernelPiece):
    """A function ``(X, centres, width) -> Phi`` of the user's own, checked at each call."""

    function: Callable[..., Array]
    width: Any = 1.0
    name: ClassVar[str] = "function"
    takes_width: ClassVar[bool] = True

    def __call__(self, X: Array, centres: Array) -> Array:
        """Return Phi, shape (n_obs, n_basis)."""
        matrix = "the matrix of the kernel"
        width = [self.width] if self.takes_width else []
        Phi = as_numbers(self.function(X, centres, *width), matrix)
        check_shape(matrix, Phi.shape, (len(X), len(centres)), "value for each row and centre")
        return checked_values(Phi)


@dataclass(frozen=True)
class FixedKernel(FunctionKernel):
    """A function ``(X, centres) -> Phi`` without a width, such as scikit-learn's kernels of processes."""

    width: Any = field(default=np.nan, init=False)
    takes_width: ClassVar[bool] = False

    def with_width(self, width: Any) -> Self:
        """Return the kernel itself: its parameters are its own."""
        return self


@dataclass(frozen=True)
class Precomputed(KernelPiece):
    """Values of a kernel that are given: the inputs are its matrix, with the numbers of their rows behind.

    A centre is a training row. Its number says which column of the inputs is its basis function.
    """

    name: ClassVar[str] = "precomputed"

    def __call__(self, X: Array, centres: Array) -> Array:
        """Return Phi, shape (n_obs, n_basis)."""
        return checked_values(X[:, centres[:, -1].astype(np.int64)])


@dataclass(frozen=True)
class PerCentre(KernelPiece):
    """A kernel with a width for each centre.

    Parameters
    ----------
    kernel : KernelPiece
    width : ndarray, shape (n_basis,) or (n_basis, n_features)
        Of each centre that the piece is called with, in their order.
    """

    kernel: KernelPiece
    width: Any
    name: ClassVar[str] = "per centre"

    def __call__(self, X: Array, centres: Array) -> Array:
        """Return Phi, shape (n_obs, n_basis)."""
        Phi = np.empty((len(X), len(centres)))
        distinct, group = np.unique(self.width, axis=0, return_inverse=True)
        for i, width in enumerate(distinct):
            members = np.flatnonzero(group == i)
            Phi[:, members] = self.kernel.with_width(width)(X, centres[members])
        return Phi


def checked_values(Phi: Array) -> Array:
    """Return basis functions; raise where they are not finite, or too large for their squares to be summed.

    Raises
    ------
    ValueError
    """
    largest = float(np.abs(Phi).max(initial=0.0))
    if not largest <= _LARGEST:  # also for NaN
        fault = f"of size {largest:.3g}" if np.isfinite(largest) else "that are not finite"
        words = f"kernel returned values {fault}; needed finite ones of at most {_LARGEST:g}"
        raise ValueError(f"{words}: standardise X")
    return Phi


def as_kernel(kernel: Kernel, width: Any = None) -> KernelPiece:
    """Return a kernel by its name, a function or as given, at a width if one is given.

    Parameters
    ----------
    kernel : str, callable or KernelPiece
        A name in `KERNELS`, such as ``"rbf"``, a function of ``(X, centres, width)`` that returns the
        matrix, or a kernel of scikit-learn's Gaussian processes, whose parameters stay as they are.
    width : float, optional
        Default: the piece's own; one for a name or a function.

    Raises
    ------
    ValueError
        If the kernel is not known.
    """
    if isinstance(kernel, KernelPiece):
        return kernel if width is None else kernel.with_width(width)
    if isinstance(kernel, str) and kernel in KERNELS:
        return KERNELS[kernel]().with_width(1.0 if width is None else width)
    if isinstance(kernel, type):
        name = kernel.__name__
        raise ValueError(f"kernel={name} is a class; needed an object of it: {name}(...)")
    if callable(kernel):
        if hasattr(kernel, "clone_with_theta"):  # of scikit-learn's Gaussian processes
            return FixedKernel(kernel)
        return FunctionKernel(kernel, 1.0 if width is None else width)
    names = ", ".join(map(repr, KERNELS))
    raise ValueError(f"kernel={shown(kernel)} is unknown; use {names} or a function(X, Z, width)")


def distances(X: Array, Z: Array, order: int) -> Array:
    """Return ``sum_k |x_ik - z_jk|^order``, shape (n_obs, n_basis), free of cancellation at any offset."""
    return cdist(X, Z, "sqeuclidean" if order > 1 else "cityblock")


def squared_distances(X: Array, Z: Array) -> Array:
    """Return ||x_i - z_j||^2, shape (n_obs, n_basis)."""
    return distances(X, Z, 2)


# --- features other than kernels -----------------------------------------------------------------

FEATURES = ("linear", "quadratic", "kernel")


def feature_matrix(X: Array, features: str = "linear") -> Array:
    """Return the linear or quadratic features of each row of `X`, shape (n_obs, n_features).

    Parameters
    ----------
    X : ndarray, shape (n_obs, d)
    features : {"linear", "quadratic"}
        The d components; or these, their squares and pairwise products, d + d (d + 1) / 2 in all,
        squares and products in the order of the upper triangle's rows.
    """
    check_choice("features", features, FEATURES[:2])
    if features == "linear":
        return X.copy()
    row, column = np.triu_indices(X.shape[1])
    return np.hstack([X, X[:, row] * X[:, column]])


@dataclass(frozen=True)
class FeatureColumns(KernelPiece):
    """Linear or quadratic features in the form of a kernel: each centre is the index of a feature.

    With it, what streams kernels at centres over chunks of rows also streams features.

    Attributes
    ----------
    features : {"linear", "quadratic"}
    """

    features: str = "linear"
    name: ClassVar[str] = "features"

    def __call__(self, X: Array, centres: Array) -> Array:
        """Return some features of the rows, shape (n_obs, n_some)."""
        return feature_matrix(X, self.features)[:, centres[:, 0].astype(np.int64)]


# --- widths --------------------------------------------------------------------------------------

#: kernels by their names
KERNELS: dict[str, type[KernelPiece]] = {
    kernel.name: kernel for kernel in (RBF, Laplacian, LinearSpline)
}


def _distances_within(X: Array, order: int, most: int = 5000) -> Array:
    """Return the distances between rows that differ, one where none do, of at most so many rows."""
    if len(X) > most:  # with a fixed seed
        X = X[np.sort(np.random.default_rng(0).choice(len(X), most, replace=False))]
    apart = distances(X, X, order)
    apart = apart[apart > 0]
    return apart ** (1.0 / order) if apart.size else np.ones(1)


def width_bounds(X: Array, order: int = 2) -> tuple[float, float]:
    """Return the smallest positive and the largest distance between rows of `X`.

    A narrower kernel separates every row from every other, a wider one none. Rows that all
    coincide give (1, 1). More than 5000 rows are represented by so many of them.
    """
    apart = _distances_within(X, order)
    return float(apart.min()), float(apart.max())


def median_distance(X: Array, order: int = 2) -> float:
    """Return the median distance between rows of `X` that differ; 1 where none do.

    Of a kernel of order 1 the sum of the features' distances. More than 5000 rows are represented by so many
    of them.
    """
    return float(np.median(_distances_within(X, order)))


def width_grid(X: Array, n_widths: int = 9) -> Array:
    """Return widths in geometric progression, from 0.2 to 2.5 times the median distance of rows."""
    return median_distance(X) * np.geomspace(0.2, 2.5, n_widths)
