"""Moves of an unknown width that take the weights along, so that the latent function changes little.

While the weights stay, a width has hardly any room. Here weights given a width are ``m + L x``: mean and
covariance ``L L'`` of a normal approximation of their posterior. The width moves while x stays, as if the
weights were integrated out. What is approximate decides how far it moves, not what is drawn: moves are judged
by the posterior density itself.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from pcvm_pymc.core.hamiltonian.density import LogPosterior
from pcvm_pymc.core.pieces.probit import Array

_LENGTH = 1.5  # of the interval in log(width) that a slice is sought in
_NARROWEST = 1e-6  # then the width stays
_LEAST_CURVATURE = 0.02  # of a row: far from the boundary it would be zero


@dataclass(frozen=True)
class WidthSlice:
    """Slice sampling of the width, with free weights that follow it.

    Attributes
    ----------
    density : LogPosterior
        Of a problem with `moves`.
    curvature, target : ndarray, shape (n_obs, n_scores)
        Normal approximation of the rows: the same in all states, or draws would not be of the posterior.
    precision : ndarray, shape (n_basis + 1, n_scores)
        Of the sizes, at d = 1.
    noise : float
        At which the curvatures are.

    References
    ----------
    I. Murray and R. P. Adams (2010), "Slice sampling covariance hyperparameters of latent Gaussian models",
    NeurIPS 23; R. M. Neal (2003), "Slice sampling", Annals of Statistics 31(3).
    """

    density: LogPosterior
    curvature: Array
    target: Array
    precision: Array
    noise: float

    @classmethod
    def at(cls, density: LogPosterior, mode: Array) -> "WidthSlice":
        """Return the slice sampler whose approximations are those at a mode."""
        (latent, slope, hessian), noise = density.rows(mode), float(density.noise(mode[None])[0])
        curvature = np.einsum("ncc->nc", hessian)
        curvature = np.maximum(curvature, _LEAST_CURVATURE / noise**2)
        precision = density.capped_precision(density.parts(mode[None])[0][0])
        return cls(density, curvature, latent + slope / curvature, precision, noise)

    def __call__(self, states: Array, rng: Generator) -> Array:
        """Return states, shape (n_chains, n_parameters + n_widths), of other widths; of several one moves."""
        n, first = len(states), self.density.n_parameters
        learned = self.density.problem.hyperprior.learns_rate
        share = rng.random(n) if learned else np.zeros(n)
        direction = np.zeros(states.shape[1])
        direction[first + rng.integers(states.shape[1] - first)] = 1.0
        x, level, norm = self._coordinates(states)
        level -= rng.standard_exponential(n)
        low = -_LENGTH * rng.random(n)
        high, moved, moves = low + _LENGTH, states.copy(), np.ones(n, dtype=bool)
        while (moves & (high - low > _NARROWEST)).any():
            t = low + (high - low) * rng.random(n)
            there, value = self._moved(states + t[:, None] * direction, x, share, norm)
            accepted = moves & (value > level)
            moved[accepted] = there[accepted]
            moves &= ~accepted
            low, high = np.where(t < 0.0, t, low), np.where(t < 0.0, high, t)
        return moved

    def _widths(self, log_width: Array) -> list[Array]:
        """Return the widths of states, in the problem's shape."""
        shape = len(log_width), *np.shape(self.density.problem.width)
        return [width[()] for width in np.exp(log_width).reshape(shape)]

    def designs(self, log_width: Array) -> Array:
        """Return the basis functions at the widths of states, with the column of the bias."""
        basis = self.density.problem.moves.basis
        return np.stack([self.density.bordered(basis(width)) for width in self._widths(log_width)])

    def log_prior(self, log_width: Array) -> Array:
        """Return the log prior densities of log widths (n_states, n_widths), shape (n_states,)."""
        of_widths = map(self.density.problem.moves.log_density, self._widths(log_width))
        return np.array([*of_widths]) + log_width.sum(axis=1)

    def _normals(self, A: Array, states: Array) -> list[tuple[Array, Array]]:
        """Return mean and root of the precision of each score's weights and bias, given all else."""
        scale, normals = self.density.parts(states)[2][..., 0], []
        share = (self.noise / self.density.noise(states))[:, None, None] ** 2
        rows = self.curvature.T, self.target.T, self.precision.T
        for curvature, target, precision in zip(*rows, strict=True):
            weighted = A.mT * (share * curvature)
            H = weighted @ A
            np.einsum("ijj->ij", H)[:] += precision / scale**2
            normals.append((np.linalg.solve(H, weighted @ target[:, None]), np.linalg.cholesky(H)))
        return normals

    def _value(self, states: Array, A: Array, normals: list[tuple[Array, Array]]) -> Array:
        """Return log densities of x, log(width) and, where it is learned, log d."""
        value = replace(self.density, design=A)(states)[0]
        value += self.log_prior(states[:, self.density.n_parameters :])
        scale = self.density.parts(states)[2][..., 0]  # of the weights in the parameters
        for _, root in normals:
            value -= np.log(np.einsum("ijj->ij", root) * scale).sum(axis=1)
        return value

    def _coordinates(self, states: Array) -> tuple[list[Array], Array, Array]:
        """Return x of each score, the log densities there, and the norms of the basis functions."""
        A = self.designs(states[:, self.density.n_parameters :])
        size, _, scale = self.density.parts(states)
        normals, weight = self._normals(A, states), scale * size
        x = [root.mT @ (weight[..., [k]] - mean) for k, (mean, root) in enumerate(normals)]
        return x, self._value(states, A, normals), _norms(A)

    def _moved(
        self, states: Array, x: list[Array], share: Array, norm: Array
    ) -> tuple[Array, Array]:
        """Return states of given x at their widths, and their log densities."""
        A = self.designs(states[:, self.density.n_parameters :])
        if share.any():  # d goes along, by a power of the norm of the basis functions
            states[:, self.density.rate_column] -= 2.0 * share * np.log(_norms(A) / norm)
        normals = self._normals(A, states)
        pairs = zip(x, normals, strict=True)
        columns = [mean + np.linalg.solve(root.mT, along) for along, (mean, root) in pairs]
        size = np.concatenate(columns, axis=2) / self.density.parts(states)[2]
        states[:, : self.density.rate_column] = size.reshape(len(states), -1)
        return states, self._value(states, A, normals)


def _norms(A: Array) -> Array:
    """Return the norms of basis functions without their means, which a bias makes up for."""
    Phi = A[..., :-1]
    square = np.square(Phi - Phi.mean(axis=1, keepdims=True)).sum(axis=(1, 2))
    return np.asarray(np.sqrt(np.maximum(square, 1e-200)))
