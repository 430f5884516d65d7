"""The log posterior that Hamiltonian Monte Carlo draws from, in coordinates that are nearly independent.

Precisions are integrated out; weights are free or have known signs. Nothing here is in the papers, which stop
at the posterior's mode.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from pcvm_pymc.core.pieces.priors import typical_size
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem, Values

_FARTHEST = 1e6  # latent values beyond are those of a trajectory that diverges
_TOGETHER = 400  # parameters, at most, that are whitened together: products with more cost too much
_FIRST_NOISE = 0.3  # where an unknown noise begins, in standard deviations of the targets


@dataclass(frozen=True)
class LogPosterior:
    """Log posterior density of unconstrained parameters, with its gradient.

    Parameters are v, shape (n_basis + 1, n_scores), as a row, then log d and the log noise where these are
    unknown. Weights are ``sqrt(d) v`` and biases ``sqrt(f) v``, with v Student-t of ``2 c`` and ``2 e``
    degrees of freedom: their scale does not depend on d, which would make a funnel. Under a sign rule a
    weight is ``sign sqrt(d) log(1 + e^v)``. Under a Laplace prior weights and biases are v. An unknown noise
    is half-normal, with the standard deviation of the targets.

    Parameters
    ----------
    problem : Problem
        With a proper `Hyperprior`, `SharedHyperprior` or `Laplace`; noise that is NaN is unknown.
    design : ndarray, shape (n_states, n_obs, n_basis + 1) or (1, n_obs, n_basis + 1)
        Basis functions and a column for the bias, of each state or of all. Default: those of the problem.
    """

    problem: Problem
    design: Any = None

    def __post_init__(self) -> None:
        if self.design is None:
            object.__setattr__(self, "design", self.bordered(self.problem.Phi)[None])

    def bordered(self, Phi: Array) -> Array:
        """Return basis functions with the column of the bias, ones or, without a bias, zeros."""
        return np.column_stack([Phi, np.full(len(Phi), float(self.problem.bias != "none"))])

    @cached_property
    def _unit(self) -> Any:
        """The prior of v without signs."""
        prior = self.problem.hyperprior
        return replace(prior.at_rate(1.0), f=1.0) if hasattr(prior, "d") else prior

    @cached_property
    def _noise_size(self) -> float | None:
        """Scale of the prior of an unknown noise; None where there is none."""
        likelihood: Any = self.problem.likelihood
        unknown = likelihood.targets == "numbers" and np.isnan(getattr(likelihood, "noise", 1.0))
        if not unknown:
            return None
        return typical_size(self.problem.label, self.problem.row_weight)

    @property
    def rate_column(self) -> int:
        """Column of log d in the parameters: the number of sizes."""
        return int(self.design.shape[2]) * self.problem.n_scores

    @property
    def n_parameters(self) -> int:
        """The number of parameters; in a state the logarithms of unknown widths follow them."""
        learned = self.problem.hyperprior.learns_rate
        return self.rate_column + learned + (self._noise_size is not None)

    def parts(self, parameters: Array) -> tuple[Array, Array, Array]:
        """Return sizes and their slope in v, shape (n_states, n_basis + 1, n_scores), and scales."""
        prior, n_scores = self.problem.hyperprior, self.problem.n_scores
        size = parameters[:, : self.rate_column].reshape(len(parameters), -1, n_scores)
        slope = np.ones_like(size)
        if self.problem.sign is not None:
            sign, v = self.problem.sign.reshape(-1, n_scores), size[:, :-1]
            slope[:, :-1] = sign * expit(v)
            size = np.concatenate([sign * np.logaddexp(0.0, v), size[:, -1:]], axis=1)
        scale = np.full((len(parameters), size.shape[1], 1), np.sqrt(getattr(prior, "d", 1.0)))
        if prior.learns_rate:
            scale[:] = np.exp(0.5 * parameters[:, self.rate_column])[:, None, None]
        scale[:, -1] = np.sqrt(getattr(prior, "f", 1.0))
        return size, slope, scale

    def noise(self, parameters: Array) -> Array:
        """Return the noise of states, shape (n_states,)."""
        if self._noise_size is not None:
            return np.asarray(np.exp(parameters[:, self.n_parameters - 1]))
        return np.full(len(parameters), getattr(self.problem.likelihood, "noise", 1.0))

    def values(self, parameters: Array) -> Values:
        """Return the weights, biases, d, noise and unknown widths of states, a row each."""
        size, _, scale = self.parts(parameters)
        weight, width = scale * size, np.exp(parameters[:, self.n_parameters :])
        widths = None if not width.size else width if np.ndim(self.problem.width) else width[:, 0]
        bias = weight[:, -1] * self.design[0, 0, -1]
        return Values(weight[:, :-1], bias, scale[:, 0, 0] ** 2, self.noise(parameters), widths)

    def precision(self, size: Array) -> Array:
        """Return the precisions expected at sizes; they also give the slope of the log prior density."""
        weight, bias = self._unit.weight_precision(size[..., :-1, :]), size[..., -1:, :]
        of_bias = np.zeros_like if self.problem.bias == "free" else self._unit.bias_precision
        return np.minimum(np.concatenate([weight, of_bias(bias)], axis=-2), np.finfo(float).max)

    def __call__(self, parameters: Array) -> tuple[Array, Array]:
        """Return log densities of states, shape (n_states,), up to a constant, and their gradients.

        States whose latent values are out of all bounds have density zero.
        """
        prior, n, n_obs = self.problem.hyperprior, len(parameters), self.design.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            size, slope, scale = self.parts(parameters)
            latent = self.design @ (scale * size)
            unit = np.ones(n) if self._noise_size is None else self.noise(parameters)
            latent /= unit[:, None, None]
            outside = ~(np.abs(latent).max(axis=(1, 2)) < _FARTHEST)
        latent[outside] = 0.0

        # the likelihood, in units of an unknown noise
        flat = latent.reshape(n * n_obs, -1) if latent.shape[2] > 1 else latent.ravel()
        rows = self.problem.observed.copies(n)
        if self._noise_size is not None:
            target = rows.target / np.repeat(unit, n_obs)
            rows = replace(rows, likelihood=rows.likelihood.with_noise(1.0), target=target)
        density, score = rows.value_and_score(flat)
        data_slope = self.design.mT @ score.reshape(n, n_obs, -1)

        # the prior of the sizes, and the Jacobian of log(1 + e^v)
        with np.errstate(over="ignore", invalid="ignore"):
            data_slope = data_slope * scale / unit[:, None, None]
            of_prior = self._unit.log_weight_density(size[:, :-1]).reshape(n, -1).sum(axis=1)
            if self.problem.bias != "free":
                of_prior += self._unit.log_bias_density(size[:, -1]).sum(axis=1)
            value = density.reshape(n, -1).sum(axis=1) + of_prior
            gradient = (data_slope - self.precision(size) * size) * slope
            if self.problem.sign is not None:
                value += log_expit(parameters[:, : gradient[0, :-1].size]).sum(axis=1)
                gradient[:, :-1] += 1.0 - np.abs(slope[:, :-1])
            gradient = gradient.reshape(n, -1)

            # d, by its logarithm
            if prior.learns_rate:
                of_rate, rate_slope = prior.log_rate_density(parameters[:, self.rate_column])
                value += of_rate
                scale_slope = 0.5 * (data_slope[:, :-1] * size[:, :-1]).sum(axis=(1, 2))
                gradient = np.column_stack([gradient, scale_slope + rate_slope])

            # noise ~ N+(0, size^2), by its logarithm
            if self._noise_size is not None:
                square, count = (unit / self._noise_size) ** 2, self.problem.observed.n_obs
                value += (1.0 - count) * np.log(unit) - 0.5 * square
                scale_slope = (score * (rows.target - flat)).reshape(n, -1).sum(axis=1)
                gradient = np.column_stack([gradient, scale_slope - count + 1.0 - square])
        value[outside], gradient[outside] = -np.inf, 0.0
        return value, gradient

    def rescaled(self, parameters: Array, log_rate: Array) -> tuple[Array, Array]:
        """Return the states of the same weights at other d, and the log density of these log d given them."""
        size, prior = self.parts(parameters)[0][:, :-1], self.problem.hyperprior
        factor = np.exp(0.5 * (parameters[:, self.rate_column] - log_rate))
        size = factor[:, None, None] * size
        density = self._unit.log_weight_density(size).reshape(len(size), -1).sum(axis=1)
        density += prior.log_rate_density(log_rate)[0] - 0.5 * size[0].size * log_rate
        if self.problem.sign is not None:  # v of log(1 + e^v)
            size = np.abs(size) + np.log(-np.expm1(-np.abs(size)))
        moved = parameters.copy()
        moved[:, : size[0].size] = size.reshape(len(size), -1)
        moved[:, self.rate_column] = log_rate
        return moved, density

    def mode(self) -> Array:
        """Return the parameters of highest density that a search from small weights finds.

        An unknown noise stays where it begins: as many bases as rows could do without any.
        """
        start, prior = np.full(self.n_parameters, 0.1), self.problem.hyperprior
        if prior.learns_rate:
            start[self.rate_column] = np.log(prior.d)
        if self._noise_size is not None:
            start[-1] = np.log(_FIRST_NOISE * self._noise_size)

        def falling(parameters: Array) -> tuple[float, Array]:
            value, gradient = self(parameters[None])
            if self._noise_size is not None:
                gradient[:, -1] = 0.0
            return float(-value[0] if np.isfinite(value[0]) else 1e300), -gradient[0]

        end = minimize(falling, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
        return np.asarray(end.x)

    def rows(self, mode: Array) -> tuple[Array, Array, Array]:
        """Return latent values at a mode, slopes of the rows' log density, and minus its second derivatives.

        Shapes are (n_obs, n_scores), twice, and (n_obs, n_scores, n_scores).
        """
        (size, _, scale), rows = self.parts(mode[None]), self.problem.observed
        latent = self.design[0] @ (scale[0] * size[0])
        if self._noise_size is not None:
            noise = float(self.noise(mode[None])[0])
            rows = replace(rows, likelihood=rows.likelihood.with_noise(noise))
        if latent.shape[1] > 1:
            return latent, rows.value_and_score(latent)[1], rows.hessian(latent)
        slope = rows.value_and_score(latent[:, 0])[1]
        curvature = rows.curvature(latent[:, 0])  # never negative
        return latent, slope[:, None], curvature[:, None, None]

    def capped_precision(self, size: Array) -> Array:
        """Return the precisions expected at sizes; under a Laplace no more than its variance has."""
        prior = self.problem.hyperprior
        most = np.inf if hasattr(prior, "d") else 0.5 * prior.penalty**2
        return np.minimum(self.precision(size), most)

    def curvature(self, mode: Array) -> tuple[Array, Array]:
        """Return minus the second derivatives at a mode, and the share of the prior of v on their diagonal.

        The prior's curvature is the precision expected there, so that it is positive.
        """
        A, prior = self.design[0], self.problem.hyperprior
        (size, slope, scale), n_scores = self.parts(mode[None]), self.problem.n_scores
        columns, hessian = scale[0] * slope[0], self.rows(mode)[2]
        design = np.zeros((len(A), n_scores, self.n_parameters))
        for c in range(n_scores):
            design[:, c, c : columns.size : n_scores] = A * columns[:, c]
        given, J = self.capped_precision(size[0]), np.abs(slope[0])
        diagonal = of_prior = (J**2 * given + J * (1.0 - J)).ravel()  # J = 1 without signs
        if prior.learns_rate:
            design[:, :, len(diagonal)] = 0.5 * A[:, :-1] @ (scale[0] * size[0])[:-1]
            d = float(scale[0, 0, 0]) ** 2
            bend = prior.rate_spread**-2 if prior.rate_spread else prior.rate_shape * d / prior.d
            diagonal = np.append(diagonal, max(bend, 0.1))
        if self._noise_size is not None:
            diagonal = np.append(diagonal, 2.0 * self.problem.observed.n_obs)
        curved_design = np.einsum("ncd,ndp->ncp", hessian, design).reshape(-1, self.n_parameters)
        return design.reshape(-1, self.n_parameters).T @ curved_design + np.diag(diagonal), of_prior


class Coordinates:
    """Coordinates z of the parameters, in which d and the sizes v of one score are nearly independent.

    Where d is learned, weights have ``v = D^(-1/2) (1 + d / d_0 G)^(-1/2) z``. D is the curvature of the
    prior at the mode, whose d is d_0, and G that of the likelihood, in units of the prior's. Directions in
    which the likelihood bends more than the prior keep their weight as d moves, the others their v.
    Otherwise the coordinates are the parameters: of several scores that takes half as many seconds.

    Attributes
    ----------
    eigenvalues, vectors : ndarray, shape (n_states, n_basis) and (n_states, n_basis, n_basis)
        Of G at the basis functions of each state; one of all where the width is known.
    roots : list of (slice, ndarray, ndarray)
        Blocks of coordinates, and S with its inverse: ``inv(S S')`` is their precision at the mode. All are
        one block; where several scores have many, those of each score, and d.

    References
    ----------
    O. Papaspiliopoulos, G. O. Roberts and M. Skold (2007), "A general framework for the parametrization of
    hierarchical models", Statistical Science 22(1): between centred and non-centred, direction by direction.
    """

    def __init__(self, density: LogPosterior, mode: Array) -> None:
        n_scores, end = density.problem.n_scores, density.rate_column
        learned = density.problem.hyperprior.learns_rate
        n_weights = end - 1 if n_scores == 1 and learned else 0
        self.column = end if learned else 0
        self.v, self.middle = slice(n_weights), mode[self.column]
        H, of_prior = density.curvature(mode)
        self.unit = np.sqrt(of_prior[self.v])
        (_, slope, scale), hessian = density.parts(mode[None]), density.rows(mode)[2]
        self._row = np.sqrt(hessian[:, :1, 0])
        self._column = (scale * slope)[0, :n_weights, 0] / self.unit
        self.take(density)
        slopes = np.eye(len(H))  # of the parameters in z
        turn, shifted = self.vectors[0], 1.0 + self.eigenvalues[0]
        slopes[self.v, self.v] = (turn / np.sqrt(shifted)) @ turn.T / self.unit[:, None]
        H = slopes.T @ H @ slopes
        blocks = [slice(None)]
        if n_scores > 1 and end > _TOGETHER:
            blocks = [slice(c, end, n_scores) for c in range(n_scores)]
            blocks += [slice(end, None)] * learned
        inverses = [(block, cholesky(H[block, block])) for block in blocks]
        self.roots = [
            (block, solve_triangular(root, np.eye(len(root))), root) for block, root in inverses
        ]

    def take(self, density: LogPosterior) -> None:
        """Take the basis functions of another density, as after a move of the width."""
        self.density = density
        A = self._row * density.design[:, :, self.v] * self._column
        self.eigenvalues, self.vectors = np.linalg.eigh(A.mT @ A)
        self.eigenvalues = np.maximum(self.eigenvalues, 0.0)

    def _root(self, parameters: Array) -> Array:
        """Return sqrt(1 + l d / d_0) at the states' d, shape (n_states, n_basis) or (n_states, 0)."""
        ratio = np.exp(parameters[:, [self.column]] - self.middle)
        return np.sqrt(1.0 + ratio * self.eigenvalues)

    def parameters(self, z: Array) -> Array:
        """Return the parameters of coordinates, shape (n_states, n_parameters)."""
        parameters = z.copy()
        along = _turned(z[:, self.v], self.vectors) / self._root(z)
        parameters[:, self.v] = _turned(along, self.vectors.mT) / self.unit
        return parameters

    def of(self, parameters: Array) -> Array:
        """Return the coordinates of parameters, shape (n_states, n_parameters)."""
        z = parameters.copy()
        along = _turned(self.unit * parameters[:, self.v], self.vectors) * self._root(parameters)
        z[:, self.v] = _turned(along, self.vectors.mT)
        return z

    def __call__(self, z: Array) -> tuple[Array, Array]:
        """Return the log densities of coordinates, shape (n_states,), and their gradients."""
        root = self._root(z)
        value, gradient = self.density(self.parameters(z))
        slope = _turned(gradient[:, self.v] / self.unit, self.vectors) / root
        along = _turned(z[:, self.v], self.vectors)
        gradient[:, self.v] = _turned(slope, self.vectors.mT)
        share = 1.0 - root**-2
        gradient[:, self.column] -= 0.5 * (share * (1.0 + slope * along)).sum(axis=1)
        return value - np.log(root).sum(axis=1), gradient

    def log_volume(self, z: Array) -> Array:
        """Return the log determinant of the coordinates in the parameters, shape (n_states,)."""
        return np.log(self._root(z)).sum(axis=1)


def _turned(rows: Array, matrices: Array) -> Array:
    """Return the product of each row and its matrix, or the one of all."""
    return np.asarray((rows[:, None, :] @ matrices)[:, 0])
