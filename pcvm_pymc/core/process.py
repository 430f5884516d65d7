"""A Gaussian process on the training rows: how far a regression may be off, also away from its rows."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.special import softmax

from pcvm_pymc.core.pieces.kernels import KernelPiece
from pcvm_pymc.core.pieces.probit import Array

MOST_ROWS = 500  # of a process: its eigenvectors take some hundredths of a second
_AMPLITUDES = (0.1, 10.0)  # where the search starts, multiples of the targets' variance
_LOG_BOUNDS = (-16.0, 12.0)  # of amplitude and noise over the targets' variance
#: of the posterior, amplitudes in units of the noise's variance, and the log prior of each
RATIOS = np.exp(np.linspace(-7.0, 16.0, 116))
_LOG_PRIOR = -np.logaddexp(*np.multiply.outer([0.5, -0.5], np.log(RATIOS / 9.0)))
NOISE_SHAPE, NOISE_RATE = 1.0, 0.1  # Gamma prior of the noise's precision, for targets of unit size
_LEAST_EIGENVALUE = 1e-10  # share of the largest: below, directions are rounding


@dataclass(frozen=True)
class Process:
    """A Gaussian process with covariance ``amplitude * kernel``, given noisy targets.

    Attributes
    ----------
    kernel : KernelPiece
    rows : ndarray, shape (n_obs, n_features)
    vectors : ndarray, shape (n_obs, n_obs)
        Eigenvectors of the kernel matrix, one in each column; of rows with weights, of the matrix times their
        roots on both sides, and each value of a vector times its row's root.
    variance : ndarray, shape (n_obs,)
        Of the targets along each eigenvector, noise included.
    target : ndarray, shape (n_obs,)
        Centred targets along each eigenvector.
    mean, amplitude, noise : float
        Mean of the targets; variances of function and noise, which maximise the evidence.
    """

    kernel: KernelPiece
    rows: Array
    vectors: Array
    variance: Array
    target: Array
    mean: float
    amplitude: float
    noise: float

    @classmethod
    def fit(
        cls,
        kernel: KernelPiece,
        X: Array,
        y: Array,
        noise: float | None = None,
        weight: Array | None = None,
    ) -> "Process":
        """Return the process of the highest evidence: Rasmussen & Williams (2006), eq. 5.8, at fixed widths.

        A row of weight w has the noise's variance over w, and as many normalising constants of the noise.

        Parameters
        ----------
        kernel : KernelPiece
            Positive definite, one at distance zero.
        X : ndarray, shape (n_obs, n_features)
        y : ndarray, shape (n_obs,)
        noise : float, optional
            Known variance of the noise.
        weight : ndarray, shape (n_obs,), optional
            How often each row counts.
        """
        mean = float(np.average(y, weights=weight))
        spread = float(np.average((y - mean) ** 2, weights=weight)) or 1.0
        root, copies = (1.0, 0.0) if weight is None else (np.sqrt(weight), weight.sum() - len(y))
        values, vectors = eigh(kernel(X, X) * np.multiply.outer(root, root))
        values, target = np.maximum(values, 0.0), vectors.T @ (root * (y - mean))
        vectors = (root * vectors.T).T
        of_unit = target**2 / spread

        def lost(logs: Array) -> tuple[float, Array]:
            """Return the negative log evidence, but for a constant, and its gradient."""
            amplitude, noise = np.exp(logs)
            variance = amplitude * values + noise
            square = of_unit / variance
            slope = 0.5 * (1.0 - square) / variance
            gradient = np.array([slope @ values * amplitude, slope.sum() * noise + 0.5 * copies])
            log_det = np.log(variance).sum() + copies * logs[1]
            return 0.5 * float(log_det + square.sum()), gradient

        known = [np.log(max(noise / spread, np.exp(_LOG_BOUNDS[0])))] * 2 if noise else _LOG_BOUNDS
        bounds = [_LOG_BOUNDS, known]
        starts = ([np.log(amplitude), np.clip(np.log(0.1), *known)] for amplitude in _AMPLITUDES)
        ends = [minimize(lost, x, jac=True, bounds=bounds) for x in starts]
        amplitude, noise = spread * np.exp(min(ends, key=lambda end: float(end.fun)).x)
        return cls(kernel, X, vectors, amplitude * values + noise, target, mean, amplitude, noise)

    def moments(self, X: Array) -> tuple[Array, Array]:
        """Return mean and variance of new targets, noise included, shape (n_new,) each."""
        cross = self.amplitude * (self.kernel(X, self.rows) @ self.vectors)
        mean = self.mean + cross @ (self.target / self.variance)
        known = (cross**2 / self.variance).sum(axis=1)
        return mean, np.maximum(self.amplitude - known, 0.0) + self.noise


@dataclass(frozen=True)
class ProcessPosterior:
    """The posterior of a Gaussian process of unknown amplitude and noise at one kernel: independent draws.

    The function is ``Phi w + b``, with w normal of covariance ``amplitude * inv(gram)``, and what the kernel
    leaves over away from the centres. The bias has a flat prior, the noise's precision a Gamma(1, 0.1), and
    the root of amplitude over noise variance a half-Cauchy of scale 3, on a grid. Weights, bias and noise are
    integrated out of the density of that ratio.

    Attributes
    ----------
    root : ndarray, shape (n_basis, n_kept)
        Weights of functions of amplitude one that are orthogonal over the rows.
    eigenvalues : ndarray, shape (n_kept,)
        Their sums of squares over the rows.
    along : ndarray, shape (n_kept, 2)
        Their products with targets and with ones.
    squares : ndarray, shape (n_ratios, 2, 2)
        Products of targets and ones with the inverse of the targets' covariance, in units of the noise's.
    residual : ndarray, shape (n_ratios,)
        The same of the targets, the bias fitted.
    log_density : ndarray, shape (n_ratios,)
        Of targets and each ratio, up to a constant that all kernels share.
    shape : float
        Of the Gamma that the noise's precision has, given the ratio.
    noise : float
        NaN where it is unknown.

    References
    ----------
    C. E. Rasmussen and C. K. I. Williams (2006), "Gaussian Processes for Machine Learning", sections 2.7 and
    8.3.4 (projected process).
    """

    root: Array
    eigenvalues: Array
    along: Array
    squares: Array
    residual: Array
    log_density: Array
    shape: float
    noise: float

    @classmethod
    def of(
        cls,
        Phi: Array,
        gram: Array,
        target: Array,
        noise: float,
        weight: Array | None = None,
    ) -> "ProcessPosterior":
        """Return the posterior for targets of unit size.

        Parameters
        ----------
        Phi : ndarray, shape (n_obs, n_basis)
        gram : ndarray, shape (n_basis, n_basis)
            The kernel at the centres.
        target : ndarray, shape (n_obs,)
        noise : float
            Known standard deviation of the noise; NaN where it is unknown.
        weight : ndarray, shape (n_obs,), optional
            How often each row counts.
        """
        weight = np.ones(len(target)) if weight is None else weight
        values, vectors = eigh(gram)
        kept, of_row = values > _LEAST_EIGENVALUE * values[-1], np.sqrt(weight)[:, None]
        root = vectors[:, kept] / np.sqrt(values[kept])
        both = np.column_stack([target, np.ones(len(target))])
        A, both = of_row * (Phi @ root), of_row * both
        eigenvalues, rotation = eigh(A.T @ A)
        eigenvalues, along = np.maximum(eigenvalues, 0.0), rotation.T @ (A.T @ both)
        shrunk = 1.0 / (1.0 / RATIOS[:, None] + eigenvalues)
        squares = both.T @ both - np.einsum("rk,ki,kj->rij", shrunk, along, along)
        ones, shape = squares[:, 1, 1], NOISE_SHAPE + 0.5 * (weight.sum() - 1.0)
        residual = np.maximum(squares[:, 0, 0] - squares[:, 0, 1] ** 2 / ones, 0.0)
        log_det = np.log1p(np.multiply.outer(RATIOS, eigenvalues)).sum(axis=1) + np.log(ones)
        of_noise = 0.5 * residual / noise**2
        if np.isnan(noise):
            of_noise = shape * np.log(NOISE_RATE + 0.5 * residual)
        density = _LOG_PRIOR - 0.5 * log_det - of_noise
        return cls(root @ rotation, eigenvalues, along, squares, residual, density, shape, noise)

    def draws(self, n: int, rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
        """Return weights, shape (n, n_basis), and bias, amplitude and noise, shape (n,) each."""
        at = rng.choice(len(RATIOS), n, p=softmax(self.log_density))
        variance = np.full(n, self.noise**2)
        if np.isnan(self.noise):
            variance = (NOISE_RATE + 0.5 * self.residual[at]) / rng.gamma(self.shape, size=n)
        _, (cross, ones) = self.squares[at].transpose(1, 2, 0)
        bias = cross / ones + np.sqrt(variance / ones) * rng.standard_normal(n)
        shrunk = 1.0 / (1.0 / RATIOS[at, None] + self.eigenvalues)
        mean = shrunk * (self.along[:, 0] - bias[:, None] * self.along[:, 1])
        noisy = mean + np.sqrt(variance[:, None] * shrunk) * rng.standard_normal(mean.shape)
        return noisy @ self.root.T, bias, RATIOS[at] * variance, np.sqrt(variance)
