"""A Gaussian process on the training rows: how far a regression may be off, also away from its rows."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import minimize

from pcvm_pymc.core.pieces.kernels import KernelPiece
from pcvm_pymc.core.pieces.probit import Array

MOST_ROWS = 500  # of a process: its eigenvectors take some hundredths of a second
_AMPLITUDES = (0.1, 10.0)  # where the search starts, multiples of the targets' variance
_LOG_BOUNDS = (-16.0, 12.0)  # of amplitude and noise over the targets' variance


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
        starts = ([np.log(each), np.clip(np.log(0.1), *known)] for each in _AMPLITUDES)
        ends = [minimize(lost, x, jac=True, bounds=bounds) for x in starts]
        amplitude, noise = spread * np.exp(min(ends, key=lambda end: float(end.fun)).x)
        return cls(kernel, X, vectors, amplitude * values + noise, target, mean, amplitude, noise)

    def moments(self, X: Array) -> tuple[Array, Array]:
        """Return mean and variance of new targets, noise included, shape (n_new,) each."""
        cross = self.amplitude * (self.kernel(X, self.rows) @ self.vectors)
        mean = self.mean + cross @ (self.target / self.variance)
        known = (cross**2 / self.variance).sum(axis=1)
        return mean, np.maximum(self.amplitude - known, 0.0) + self.noise
