"""Chains of Hamiltonian Monte Carlo that advance together: a kernel, its adaptation, and draws."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.linalg import cholesky, solve_triangular

from pcvm_pymc.core.hamiltonian.density import Coordinates, LogPosterior
from pcvm_pymc.core.hamiltonian.widths import WidthSlice
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS
from pcvm_pymc.core.problem import Values

_LENGTH = 3.0  # longest trajectory, in standard deviations of the whitened posterior
_MOST_STEPS = 64  # gradients of a trajectory, which is cut short where steps are small
_RATE_STEPS = 3  # Metropolis steps of log d given the weights, after each trajectory: cheap
_ACCEPTED = 0.8  # share of proposals that the step size aims at
_DIVERGES = 1000.0  # rise of the energy beyond which a trajectory diverges, as in Stan
_SPREAD = 0.5  # of the chains' first widths around the problem's, in log(width)
#: what is known of a trajectory: the energy is that of its end, before d moves, up to a constant
STATISTICS = ("energy", "acceptance_rate", "diverging", "step_size", "n_steps")
# share of the trajectories of shorter steps, and their factor: for chains where the density bends much
_SHORT_SHARE, _SHORT = 0.1, 0.1

type Density = Callable[[Array], tuple[Array, Array]]


class State(NamedTuple):
    """Where chains are, shape (n_chains, n_parameters), with log densities there and their slopes."""

    place: Array
    value: Array
    slope: Array

    @classmethod
    def at(cls, density: Density, place: Array) -> "State":
        """Return the state of chains at places."""
        return cls(place, *density(place))


# --- the kernel ----------------------------------------------------------------------------------


def transition(density: Density, state: State, step: float, rng: Generator) -> tuple[State, Array]:
    """Move each chain along a trajectory of random length, by leapfrog steps.

    Parameters
    ----------
    density : callable
        Log densities of places, shape (n_chains, n_parameters), and their gradients.
    state : State
    step : float
    rng : numpy.random.Generator

    Returns
    -------
    state : State
        Its end, or where it began if that is rejected.
    statistics : ndarray, shape (n_chains, 5)
        `STATISTICS`.

    References
    ----------
    R. M. Neal (2011), "MCMC using Hamiltonian dynamics", Handbook of Markov Chain Monte Carlo.
    """
    step = step * rng.uniform(0.8, 1.2)
    n_steps = min(1 + int(rng.uniform(0.2, 1.0) * _LENGTH / step), _MOST_STEPS)
    if rng.uniform() < _SHORT_SHARE:
        step *= _SHORT
    momentum = rng.standard_normal(state.place.shape)
    before, end = state.value - 0.5 * (momentum**2).sum(axis=1), state
    with np.errstate(all="ignore"):  # beyond all numbers it is rejected
        for _ in range(n_steps):
            momentum = momentum + 0.5 * step * end.slope
            end = State.at(density, end.place + step * momentum)
            momentum = momentum + 0.5 * step * end.slope
        rise = np.fmax(end.value - 0.5 * (momentum**2).sum(axis=1) - before, -np.inf)
    moved = -rng.standard_exponential(len(rise)) < rise
    kept = State(
        np.where(moved[:, None], end.place, state.place),
        np.where(moved, end.value, state.value),
        np.where(moved[:, None], end.slope, state.slope),
    )
    energy, rate = np.where(moved, -rise, 0.0) - before, np.exp(np.minimum(rise, 0.0))
    known = np.broadcast_arrays(energy, rate, rise < -_DIVERGES, step, n_steps)
    return kept, np.stack(known, axis=1)


def moved_rate(density: LogPosterior, parameters: Array, rng: Generator) -> Array:
    """Move d given the weights, which fix the likelihood, by some steps of a random walk (interweaving).

    The likelihood bends more in v the larger d is, so that trajectories there are often rejected.

    References
    ----------
    Y. Yu and X.-L. Meng (2011), "To center or not to center", Journal of Computational and Graphical
    Statistics 20(3).
    """
    log_rate = parameters[:, density.rate_column]
    at, value = density.rescaled(parameters, log_rate)
    for _ in range(_RATE_STEPS):
        proposed = log_rate + rng.standard_normal(len(at))
        to, its_value = density.rescaled(at, proposed)
        moved = -rng.standard_exponential(len(at)) < its_value - value
        at, log_rate = np.where(moved[:, None], to, at), np.where(moved, proposed, log_rate)
        value = np.where(moved, its_value, value)
    return at


# --- adaptation ----------------------------------------------------------------------------------


class Whitened:
    """A log density in places around a centre, whitened block by block by a covariance that is learned.

    Attributes
    ----------
    coordinates : Coordinates
    centre : ndarray, shape (n_parameters,)
    roots : list of (slice, ndarray, ndarray)
        As those of `Coordinates`.
    """

    def __init__(self, coordinates: Coordinates, mode: Array) -> None:
        self.coordinates, self.centre = coordinates, coordinates.of(mode[None])[0]
        self.roots = coordinates.roots

    def coordinates_of(self, place: Array) -> Array:
        """Return the coordinates of places, shape (n_states, n_parameters)."""
        return self.centre + _times(place, [(block, root.T) for block, root, _ in self.roots])

    def parameters(self, place: Array) -> Array:
        """Return the parameters of places, shape (n_states, n_parameters)."""
        return self.coordinates.parameters(self.coordinates_of(place))

    def of(self, parameters: Array) -> Array:
        """Return the places of parameters, shape (n_states, n_parameters)."""
        away = self.coordinates.of(parameters) - self.centre
        return _times(away, [(block, inverse.T) for block, _, inverse in self.roots])

    def __call__(self, place: Array) -> tuple[Array, Array]:
        """Return log densities of places, shape (n_states,), and their gradients."""
        value, gradient = self.coordinates(self.coordinates_of(place))
        return value, _times(gradient, [(block, root) for block, root, _ in self.roots])

    def learn(self, places: Array) -> None:
        """Whiten by the covariance of places, shape (n, n_parameters), shrunk towards the one before."""
        roots, self.centre = [], self.coordinates_of(places.mean(axis=0, keepdims=True))[0]
        for block, root, inverse in self.roots:
            unit = np.eye(len(root))
            share = len(places) / (len(places) + 4.0 * len(unit))
            factor = cholesky(share * np.cov(places[:, block].T) + (1.0 - share) * unit, lower=True)
            back = solve_triangular(factor, unit, lower=True) @ inverse
            roots.append((block, root @ factor, back))
        self.roots = roots


def _times(places: Array, matrices: list[tuple[slice, Array]]) -> Array:
    """Return the products of places and a matrix for each block of parameters."""
    product = np.empty_like(places)
    for block, matrix in matrices:
        product[:, block] = places[:, block] @ matrix
    return product


# --- chains --------------------------------------------------------------------------------------


class HamiltonianChains:
    """Chains of Hamiltonian Monte Carlo that advance together.

    After each trajectory d moves given the weights, where it is learned, and an unknown width with the
    weights.

    Parameters
    ----------
    density : LogPosterior
    rng : numpy.random.Generator
        Its stream alone decides the draws.
    n_chains : int

    Attributes
    ----------
    step : float
        Step size, which `warm_up` chooses.
    state : State
        In places of `whitened`.
    log_width : ndarray, shape (n_chains, n_widths)
        None of a width that is known.
    """

    step = 0.3

    def __init__(self, density: LogPosterior, rng: Generator, n_chains: int = 4) -> None:
        self.density, self.rng, mode = density, rng, density.mode()
        self.whitened = Whitened(Coordinates(density, mode), mode)
        self.log_width, moves = np.empty((n_chains, 0)), density.problem.moves
        if moves is not None:
            self._slice = WidthSlice.at(density, mode)
            width = np.ravel(density.problem.width)
            away = rng.uniform(-_SPREAD, _SPREAD, (n_chains, len(width)))
            inside = np.isfinite(self._slice.log_prior(np.log(width) + away))
            away[~inside] = 0.0  # outside the prior's support
            self.log_width = np.log(width) + away
        self._at_widths()
        shape = n_chains, len(mode)
        # half of what is taken off is a typical difference
        least = self.whitened(np.zeros(shape))[0] - len(mode)
        place = rng.standard_normal(shape)
        self.state = State.at(self.whitened, place)
        # a chain that starts too far out could not move at the others' step
        while (far := ~(self.state.value > least)).any():
            place = np.where(far[:, None], 0.5 * place, place)
            self.state = State.at(self.whitened, place)

    def _at_widths(self) -> None:
        """Take the basis functions at the chains' widths."""
        if self.log_width.size:
            self.density = replace(self.density, design=self._slice.designs(self.log_width))
            self.whitened.coordinates.take(self.density)

    @property
    def parameters(self) -> Array:
        """The chains' parameters and log widths, shape (n_chains, n_parameters + n_widths)."""
        return np.column_stack([self.whitened.parameters(self.state.place), self.log_width])

    def transition(self) -> Array:
        """Advance by a trajectory and the moves of d and the width; return its statistics."""
        self.state, known = transition(self.whitened, self.state, self.step, self.rng)
        learned = self.density.problem.hyperprior.learns_rate
        if learned or self.log_width.size:
            at, n = self.parameters, self.density.n_parameters
            if learned:
                at = moved_rate(self.density, at, self.rng)
            if self.log_width.size:
                at = self._slice(at, self.rng)
                self.log_width = at[:, n:]
                self._at_widths()
            self.state = State.at(self.whitened, self.whitened.of(at[:, :n]))
        return known

    def warm_up(self, n: int) -> None:
        """Run `n` transitions of burn-in, in which step size and covariance are tuned, the latter twice."""
        for share in (0.2, 0.4, 0.4):
            places = self._tuned(max(int(share * n), 1))
            if len(places) > 1:
                at = self.whitened.parameters(self.state.place)
                later = places[len(places) // 3 :]
                self.whitened.learn(later.reshape(-1, later.shape[2]))
                self.state = State.at(self.whitened, self.whitened.of(at))
        self._tuned(max(n // 5, 1))

    def _tuned(self, n: int) -> Array:
        """Choose the step size in `n` transitions, by dual averaging; return the places on the way.

        References
        ----------
        M. D. Hoffman and A. Gelman (2014), "The No-U-Turn sampler", JMLR 15, section 3.2.
        """
        places, error, log_mean, towards = [], 0.0, 0.0, np.log(3.0 * self.step)
        for k in range(1, n + 1):
            PROGRESS.debug("warm-up, transition %d of %d", k, n)
            error += (_ACCEPTED - self.transition()[:, 1].mean() - error) / (k + 10)
            log_step = np.clip(towards - 20.0 * np.sqrt(k) * error, -9.0, 1.0)
            log_mean += k**-0.75 * (log_step - log_mean)
            self.step = float(np.exp(log_step))
            places.append(self.state.place)
        self.step = float(np.exp(log_mean))
        return np.stack(places)

    def draw(self, n: int, thin: int = 1) -> tuple[Values, dict[str, Array]]:
        """Return `n` states of each chain, one in `thin`, and their log densities and `STATISTICS`.

        Shapes begin with (n_chains, n).
        """
        kept = []
        for k in range(n * thin):
            PROGRESS.debug("transition %d of %d", k + 1, n * thin)
            known = self.transition()
            if k % thin < thin - 1:
                continue
            at = self.whitened.coordinates_of(self.state.place)
            value = self.state.value + self.whitened.coordinates.log_volume(at)
            if self.log_width.size:
                value = value + self._slice.log_prior(self.log_width)
            kept.append((self.parameters, np.column_stack([value, known])))
        states, statistics = (np.stack(draws, axis=1) for draws in zip(*kept, strict=True))
        values = self.density.values(states.reshape(-1, states.shape[2]))
        shaped: Any = (None if x is None else x.reshape(-1, n, *x.shape[1:]) for x in values)
        names = ("lp", *STATISTICS)
        return Values(*shaped), dict(zip(names, np.moveaxis(statistics, 2, 0), strict=True))
