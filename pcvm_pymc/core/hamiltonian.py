"""Hamiltonian Monte Carlo from the posterior of a kernel machine, for any likelihood and weighted rows.

Precisions are integrated out; weights are free or have known signs. Several chains advance together: their
latent functions are one matrix product. Nothing here is in the papers, which stop at the posterior's mode.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cholesky, eigh, solve_triangular
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from pcvm_pymc.core.pieces.priors import typical_size
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS
from pcvm_pymc.core.pieces.row_weights import plain_target
from pcvm_pymc.core.problem import Problem

_FARTHEST = 1e6  # latent values beyond are those of a trajectory that diverges
_LENGTH = 3.0  # longest trajectory, in standard deviations of the whitened posterior
_MOST_STEPS = 64  # gradients of a trajectory, which is cut short where steps are small
_TOGETHER = 400  # parameters, at most, that are whitened together: products with more cost too much
_RATE_STEPS = 3  # Metropolis steps of log d given the weights, after each trajectory: cheap
_FIRST_NOISE = 0.3  # where an unknown noise begins, in standard deviations of the targets
_ACCEPTED = 0.8  # share of proposals that the step size aims at
_DIVERGES = 1000.0  # rise of the energy beyond which a trajectory diverges, as in Stan
#: what is known of a trajectory: the energy is that of its end, before d moves, up to a constant
STATISTICS = ("energy", "acceptance_rate", "diverging", "step_size", "n_steps")
# share of the trajectories of shorter steps, and their factor: for chains where the density bends much
_SHORT_SHARE, _SHORT = 0.1, 0.1


class Values(NamedTuple):
    """States of chains in the model's own terms.

    Attributes
    ----------
    weight : ndarray, shape (n_states, n_basis, n_scores)
    bias : ndarray, shape (n_states, n_scores)
    rate : ndarray, shape (n_states,)
        d of the weights' hyperprior, a constant where it is not learned; 1 under a Laplace, which has none.
    noise : ndarray, shape (n_states,)
        Scale of targets that are numbers, a constant where it is known; else 1.
    """

    weight: Array
    bias: Array
    rate: Array
    noise: Array

    def latent(self, Phi: Array) -> Array:
        """Return the latent function of each state, shape (n_states, n_rows, n_scores)."""
        return np.asarray(np.matmul(Phi, self.weight) + self.bias[:, None])


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
    """

    problem: Problem

    @cached_property
    def _design(self) -> Array:
        Phi = self.problem.Phi
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
        target = plain_target(self.problem.label)
        return typical_size(target, self.problem.row_weight) if unknown else None

    @property
    def rate_column(self) -> int:
        """Column of log d in the parameters: the number of sizes."""
        return self._design.shape[1] * self.problem.n_scores

    @property
    def n_parameters(self) -> int:
        """The number of parameters."""
        learned = self.problem.hyperprior.learns_rate
        return self.rate_column + learned + (self._noise_size is not None)

    def _parts(self, parameters: Array) -> tuple[Array, Array, Array]:
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

    def _noise(self, parameters: Array) -> Array:
        """Return the noise of states, shape (n_states,)."""
        if self._noise_size is not None:
            return np.asarray(np.exp(parameters[:, -1]))
        return np.full(len(parameters), getattr(self.problem.likelihood, "noise", 1.0))

    def values(self, parameters: Array) -> Values:
        """Return the weights, biases, d and noise of states, shape (n_states, n_parameters)."""
        size, _, scale = self._parts(parameters)
        weight = scale * size
        bias = weight[:, -1] * self._design[0, -1]
        return Values(weight[:, :-1], bias, scale[:, 0, 0] ** 2, self._noise(parameters))

    def _precision(self, size: Array) -> Array:
        """Return the precisions expected at sizes; they also give the slope of the log prior density."""
        weight, bias = self._unit.weight_precision(size[..., :-1, :]), size[..., -1:, :]
        of_bias = np.zeros_like if self.problem.bias == "free" else self._unit.bias_precision
        return np.minimum(np.concatenate([weight, of_bias(bias)], axis=-2), np.finfo(float).max)

    def __call__(self, parameters: Array) -> tuple[Array, Array]:
        """Return log densities of states, shape (n_states,), up to a constant, and their gradients.

        States whose latent values are out of all bounds have density zero.
        """
        A, prior, n = self._design, self.problem.hyperprior, len(parameters)
        likelihood = self.problem.likelihood
        with np.errstate(over="ignore", invalid="ignore"):
            size, slope, scale = self._parts(parameters)
            columns = (scale * size).transpose(1, 0, 2).reshape(A.shape[1], -1)
            latent = (A @ columns).reshape(len(A), n, -1)
            unit = np.ones(n) if self._noise_size is None else self._noise(parameters)
            latent /= unit[:, None]
            outside = ~(np.abs(latent).max(axis=(0, 2)) < _FARTHEST)
        latent[:, outside] = 0.0

        # the likelihood, in units of an unknown noise
        flat = latent.reshape(-1, latent.shape[2]) if latent.shape[2] > 1 else latent.ravel()
        target = np.repeat(np.asarray(self.problem.label), n, axis=0)
        if self._noise_size is not None:
            likelihood = likelihood.with_noise(1.0)
            target.reshape(len(target), -1)[:, 0] /= np.tile(unit, len(A))
        density, score = likelihood.value_and_score(flat, target)
        data_slope = (A.T @ score.reshape(len(A), -1)).reshape(A.shape[1], n, -1).transpose(1, 0, 2)

        # the prior of the sizes, and the Jacobian of log(1 + e^v)
        with np.errstate(over="ignore", invalid="ignore"):
            data_slope = data_slope * scale / unit[:, None, None]
            of_prior = self._unit.log_weight_density(size[:, :-1]).reshape(n, -1).sum(axis=1)
            if self.problem.bias != "free":
                of_prior += self._unit.log_bias_density(size[:, -1]).sum(axis=1)
            value = density.reshape(-1, n).sum(axis=0) + of_prior
            gradient = (data_slope - self._precision(size) * size) * slope
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
                square, n_obs = (unit / self._noise_size) ** 2, self.problem.n_obs
                value += (1.0 - n_obs) * parameters[:, -1] - 0.5 * square
                scale_slope = (score * (plain_target(target) - flat)).reshape(-1, n).sum(axis=0)
                gradient = np.column_stack([gradient, scale_slope - n_obs + 1.0 - square])
        value[outside], gradient[outside] = -np.inf, 0.0
        return value, gradient

    def rescaled(self, parameters: Array, log_rate: Array) -> tuple[Array, Array]:
        """Return the states of the same weights at other d, and the log density of these log d given them."""
        size, prior = self._parts(parameters)[0][:, :-1], self.problem.hyperprior
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

        found = minimize(falling, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
        return np.asarray(found.x)

    def curvature(self, mode: Array) -> tuple[Array, Array]:
        """Return minus the second derivatives at a mode, and the share of the prior of v on their diagonal.

        The prior's curvature is the precision expected there, so that it is positive.
        """
        A, prior, target = self._design, self.problem.hyperprior, np.asarray(self.problem.label)
        (size, slope, scale), n_scores = self._parts(mode[None]), self.problem.n_scores
        likelihood = self.problem.likelihood
        if self._noise_size is not None:
            likelihood = likelihood.with_noise(float(self._noise(mode[None])[0]))
        columns = scale[0] * slope[0]
        latent = A @ (scale[0] * size[0])
        if n_scores > 1:
            hessian = likelihood.hessian(latent, target)
        else:  # never negative
            hessian = likelihood.curvature(latent[:, 0], target)[:, None, None]
        design = np.zeros((len(A), n_scores, self.n_parameters))
        for c in range(n_scores):
            design[:, c, c : columns.size : n_scores] = A * columns[:, c]
        # at zero the precision under a Laplace is infinite, that of its variance is not
        most = np.inf if hasattr(prior, "d") else 0.5 * prior.penalty**2
        given, J = np.minimum(self._precision(size[0]), most), np.abs(slope[0])
        diagonal = of_prior = (J**2 * given + J * (1.0 - J)).ravel()  # J = 1 without signs
        if prior.learns_rate:
            design[:, :, len(diagonal)] = 0.5 * A[:, :-1] @ (scale[0] * size[0])[:-1]
            d = float(scale[0, 0, 0]) ** 2
            bend = prior.rate_spread**-2 if prior.rate_spread else prior.rate_shape * d / prior.d
            diagonal = np.append(diagonal, max(bend, 0.1))
        if self._noise_size is not None:
            diagonal = np.append(diagonal, 2.0 * self.problem.n_obs)
        curved_design = np.einsum("ncd,ndp->ncp", hessian, design).reshape(-1, self.n_parameters)
        return design.reshape(-1, self.n_parameters).T @ curved_design + np.diag(diagonal), of_prior


class Coordinates:
    """Coordinates z of the parameters, in which d and the sizes v of one score are nearly independent.

    Where d is learned, weights have ``v = R (z / sqrt(1 + l d / d_0))``. R diagonalises the curvatures at the
    mode, whose d is d_0: that of the prior to ones, that of the likelihood to l. Directions in which the
    likelihood bends more than the prior keep their weight as d moves, the others their v. Otherwise the
    coordinates are the parameters: of several scores that takes half as many seconds.

    Attributes
    ----------
    eigenvalues : ndarray, shape (n_basis,) or (0,)
        l.
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
        self.density, self.column = density, end if learned else 0
        self.v, self.middle = slice(n_weights), mode[self.column]
        H, of_prior = density.curvature(mode)
        D = of_prior[self.v]
        shifted, self.R = eigh(H[self.v, self.v], np.diag(D))
        shifted = np.maximum(shifted, 1.0)  # 1 + l
        self.eigenvalues, self.inverse = shifted - 1.0, self.R.T * D
        slopes = np.eye(len(H))  # of the parameters in z
        slopes[self.v, self.v] = self.R / np.sqrt(shifted)
        share = self.eigenvalues / shifted
        slopes[self.v, self.column] -= 0.5 * self.R @ (share * (self.inverse @ mode[self.v]))
        H = slopes.T @ H @ slopes
        H[self.column, self.column] += 0.5 * (share / shifted).sum()  # of the Jacobian
        blocks = [slice(None)]
        if n_scores > 1 and end > _TOGETHER:
            blocks = [slice(c, end, n_scores) for c in range(n_scores)]
            blocks += [slice(end, None)] * learned
        inverses = [(block, cholesky(H[block, block])) for block in blocks]
        self.roots = [
            (block, solve_triangular(each, np.eye(len(each))), each) for block, each in inverses
        ]

    def _root(self, parameters: Array) -> Array:
        """Return sqrt(1 + l d / d_0) at the states' d, shape (n_states, n_basis) or (n_states, 0)."""
        ratio = np.exp(parameters[:, [self.column]] - self.middle)
        return np.sqrt(1.0 + ratio * self.eigenvalues)

    def parameters(self, z: Array) -> Array:
        """Return the parameters of coordinates, shape (n_states, n_parameters)."""
        found = z.copy()
        found[:, self.v] = (z[:, self.v] / self._root(z)) @ self.R.T
        return found

    def of(self, parameters: Array) -> Array:
        """Return the coordinates of parameters, shape (n_states, n_parameters)."""
        found = parameters.copy()
        found[:, self.v] = (parameters[:, self.v] @ self.inverse.T) * self._root(parameters)
        return found

    def __call__(self, z: Array) -> tuple[Array, Array]:
        """Return the log densities of coordinates, shape (n_states,), and their gradients."""
        root = self._root(z)
        value, gradient = self.density(self.parameters(z))
        slope = (gradient[:, self.v] @ self.R) / root
        gradient[:, self.v] = slope
        share = 1.0 - root**-2
        gradient[:, self.column] -= 0.5 * (share * (1.0 + slope * z[:, self.v])).sum(axis=1)
        return value - np.log(root).sum(axis=1), gradient


def _times(places: Array, matrices: list[tuple[slice, Array]]) -> Array:
    """Return the products of places and a matrix for each block of parameters."""
    found = np.empty_like(places)
    for block, matrix in matrices:
        found[:, block] = places[:, block] @ matrix
    return found


@dataclass
class HamiltonianChains:
    """Chains of Hamiltonian Monte Carlo that advance together, whitened block by block by a covariance.

    After each trajectory d moves given the weights, where it is learned (interweaving).

    Attributes
    ----------
    density : LogPosterior
    rng : numpy.random.Generator
        Its stream alone decides the draws.
    n_chains : int
    step : float
        Step size, which `warm_up` chooses.
    place : ndarray, shape (n_chains, n_parameters)
        Where the chains are, in whitened `Coordinates` around `centre`.

    References
    ----------
    R. M. Neal (2011), "MCMC using Hamiltonian dynamics", Handbook of Markov Chain Monte Carlo; M. D. Hoffman
    and A. Gelman (2014), "The No-U-Turn sampler", JMLR 15, section 3.2 for the step size; Y. Yu and X.-L.
    Meng (2011), "To center or not to center", Journal of Computational and Graphical Statistics 20(3).
    """

    density: LogPosterior
    rng: np.random.Generator
    n_chains: int = 4
    step: float = 0.3
    coordinates: Coordinates = field(init=False)
    centre: Array = field(init=False)
    roots: list[tuple[slice, Array, Array]] = field(init=False)
    place: Array = field(init=False)

    def __post_init__(self) -> None:
        mode = self.density.mode()
        self.coordinates = Coordinates(self.density, mode)
        self.centre, self.roots = self.coordinates.of(mode[None])[0], self.coordinates.roots
        self._move_to(np.zeros((1, len(self.centre))))
        least = self.value[0] - len(self.centre)  # half of that is a typical difference
        self._move_to(self.rng.standard_normal((self.n_chains, len(self.centre))))
        # a chain that starts too far out could not move at the others' step
        while (far := ~(self.value > least)).any():
            self._move_to(np.where(far[:, None], 0.5 * self.place, self.place))

    @property
    def parameters(self) -> Array:
        """The chains' parameters, shape (n_chains, n_parameters)."""
        return self.coordinates.parameters(self._unwhitened(self.place))

    def _unwhitened(self, place: Array) -> Array:
        return self.centre + _times(place, [(block, root.T) for block, root, _ in self.roots])

    def whitened(self, parameters: Array) -> Array:
        """Return the places of parameters, shape (n_states, n_parameters)."""
        away = self.coordinates.of(parameters) - self.centre
        return _times(away, [(block, each.T) for block, _, each in self.roots])

    def _at(self, place: Array) -> tuple[Array, Array]:
        value, gradient = self.coordinates(self._unwhitened(place))
        return value, _times(gradient, [(block, root) for block, root, _ in self.roots])

    def _move_to(self, place: Array) -> None:
        self.place, (self.value, self.slope) = place, self._at(place)

    def transition(self) -> Array:
        """Move each chain along a trajectory of random length; return `STATISTICS`, a row for each chain."""
        step = self.step * self.rng.uniform(0.8, 1.2)
        n_steps = min(1 + int(self.rng.uniform(0.2, 1.0) * _LENGTH / step), _MOST_STEPS)
        if self.rng.uniform() < _SHORT_SHARE:
            step *= _SHORT
        momentum = self.rng.standard_normal(self.place.shape)
        before = self.value - 0.5 * (momentum**2).sum(axis=1)
        place, value, slope = self.place, self.value, self.slope
        with np.errstate(all="ignore"):  # beyond all numbers it is rejected
            for _ in range(n_steps):
                momentum = momentum + 0.5 * step * slope
                place = place + step * momentum
                value, slope = self._at(place)
                momentum = momentum + 0.5 * step * slope
            rise = np.fmax(value - 0.5 * (momentum**2).sum(axis=1) - before, -np.inf)
        moved = -self.rng.standard_exponential(self.n_chains) < rise
        self.place = np.where(moved[:, None], place, self.place)
        self.value = np.where(moved, value, self.value)
        self.slope = np.where(moved[:, None], slope, self.slope)
        if self.density.problem.hyperprior.learns_rate:
            self._move_rate()
        energy, rate = np.where(moved, -rise, 0.0) - before, np.exp(np.minimum(rise, 0.0))
        return np.stack(np.broadcast_arrays(energy, rate, rise < -_DIVERGES, step, n_steps), axis=1)

    def _move_rate(self) -> None:
        """Move d given the weights, which fix the likelihood, by some steps of a random walk.

        The likelihood bends more in v the larger d is, so that trajectories there are often rejected.
        """
        density, at = self.density, self.parameters
        log_rate = at[:, density.rate_column]
        at, value = density.rescaled(at, log_rate)
        for _ in range(_RATE_STEPS):
            proposed = log_rate + self.rng.standard_normal(self.n_chains)
            to, its_value = density.rescaled(at, proposed)
            moved = -self.rng.standard_exponential(self.n_chains) < its_value - value
            at, log_rate = np.where(moved[:, None], to, at), np.where(moved, proposed, log_rate)
            value = np.where(moved, its_value, value)
        self._move_to(self.whitened(at))

    def warm_up(self, n: int) -> None:
        """Reach the posterior in `n` transitions, and learn the covariance, twice, and the step size."""
        for share in (0.2, 0.4, 0.4):
            seen = self._tuned(max(int(share * n), 1))
            if len(seen) > 1:
                self._learn_covariance(seen[len(seen) // 3 :])
        self._tuned(max(n // 5, 1))

    def _tuned(self, n: int) -> Array:
        """Choose the step size in `n` transitions, by dual averaging; return the places on the way."""
        seen, error, log_mean, towards = [], 0.0, 0.0, np.log(3.0 * self.step)
        for k in range(1, n + 1):
            PROGRESS.debug("warm-up, transition %d of %d", k, n)
            error += (_ACCEPTED - self.transition()[:, 1].mean() - error) / (k + 10)
            log_step = np.clip(towards - 20.0 * np.sqrt(k) * error, -9.0, 1.0)
            log_mean += k**-0.75 * (log_step - log_mean)
            self.step = float(np.exp(log_step))
            seen.append(self.place)
        self.step = float(np.exp(log_mean))
        return np.stack(seen)

    def _learn_covariance(self, seen: Array) -> None:
        """Whiten by the covariance of places, shrunk towards what was the covariance before."""
        flat, at, roots = seen.reshape(-1, seen.shape[2]), self.parameters, []
        self.centre = self._unwhitened(flat.mean(axis=0, keepdims=True))[0]
        for block, root, inverse in self.roots:
            one = np.eye(len(root))
            share = len(flat) / (len(flat) + 4.0 * len(one))
            factor = cholesky(share * np.cov(flat[:, block].T) + (1.0 - share) * one, lower=True)
            whiten = solve_triangular(factor, one, lower=True)
            roots.append((block, root @ factor, whiten @ inverse))
        self.roots = roots
        self._move_to(self.whitened(at))

    def draw(self, n: int, thin: int = 1) -> tuple[Array, Array]:
        """Return `n` states of each chain, one in `thin`, and `STATISTICS`, shape (n_chains, n, ...) each."""
        kept = []
        for k in range(n * thin):
            PROGRESS.debug("transition %d of %d", k + 1, n * thin)
            known = self.transition()
            if k % thin == thin - 1:
                kept.append((self.parameters, known))
        states, statistics = (np.stack(each, axis=1) for each in zip(*kept, strict=True))
        return states, statistics
