"""The E-step of a search from the bottom up: expected responses, of rows in memory or streamed."""

from typing import Any, NamedTuple

import numpy as np

from pcvm_pymc.core.design import FirstResponses
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem


class Responses(NamedTuple):
    """The E-step: what the rows contribute at some weights.

    Attributes
    ----------
    pulled : ndarray, shape (n_columns, n_scores)
        ``beta Phi' z``, z the expected responses.
    log_likelihood : float
    moved : float
        The largest change of a latent value.
    latent : ndarray, shape (n_obs, n_scores)
        Empty for a streamed design.
    """

    pulled: Array
    log_likelihood: float
    moved: float
    latent: Array


class DenseBases:
    """Basis functions in memory (and a constant), and the columns of their Gram matrix that were needed.

    Attributes
    ----------
    columns : ndarray, shape (n_obs, n_columns)
        Times the square roots of the rows' weights, so that all products are weighted.
    square : ndarray, shape (n_columns,)
        Their squared norms.
    beta : float
        Precision of a response: the bound of the likelihood's curvature.
    """

    def __init__(self, problem: Problem) -> None:
        Phi, self.problem, self.beta = problem.Phi, problem, problem.likelihood.bound
        self.columns = Phi if problem.bias == "none" else np.hstack([Phi, np.ones((len(Phi), 1))])
        weight = problem.row_weight
        self._weight = np.ones((1, 1)) if weight is None else weight[:, None]
        if weight is not None:
            self.columns = np.sqrt(self._weight) * self.columns
        self.square = np.einsum("ij,ij->j", self.columns, self.columns)
        self._latent = np.zeros((len(problem.label), problem.n_scores))
        self._products: dict[int, Array] = {}

    def products(self, n: int) -> Array:
        """Return ``Phi' phi_n``, shape (n_columns,)."""
        if n not in self._products:
            self._products[n] = np.ascontiguousarray(self.columns[:, n]) @ self.columns
        return self._products[n]

    def first(self, start: Array | None) -> Responses:
        """Return the responses of the first epoch: those given, or the likelihood's own."""
        problem, shape = self.problem, self._latent.shape
        terms = problem.likelihood.terms(self._latent, problem.label)
        if start is None:
            start = problem.likelihood.response(problem.label)
        if start is None:
            start = terms.slope / (self._weight * self.beta)
        if np.shape(start) != shape and (problem.n_scores > 1 or np.shape(start) != shape[:1]):
            raise ValueError(f"start has shape {np.shape(start)}; needed {shape}")
        pulled = self._projected(self.beta * np.reshape(start, shape))
        return Responses(pulled, terms.log_likelihood, np.nan, self._latent)

    def at(self, weight: Array, bias: Array, is_rough: bool) -> Responses:
        """Return the responses at weights, shape (n_basis, n_scores), and biases."""
        likelihood, old = self.problem.likelihood, self._latent
        used = np.flatnonzero(weight.any(axis=1))
        self._latent = self.problem.Phi[:, used] @ weight[used] + bias
        terms_of = likelihood.rough_terms if is_rough else likelihood.terms
        terms = terms_of(self._latent, self.problem.label)
        pulled = self._projected(self.beta * self._latent + terms.slope / self._weight)
        moved = float(np.abs(self._latent - old).max())
        return Responses(pulled, terms.log_likelihood, moved, self._latent)

    def _projected(self, response: Array) -> Array:
        return ((np.sqrt(self._weight) * response).T @ self.columns).T


class StreamedBases:
    """The same of a streamed design: one pass for the Gram matrix, and one for each E-step.

    ``Phi' W (beta f + ...) = beta (Phi' W Phi) w + Phi' g``, with g the slopes of the rows.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.beta = problem, problem.likelihood.bound
        n_scores = problem.n_scores
        self._at = np.zeros((problem.Phi.shape[1], n_scores)), np.zeros(n_scores)
        self._none = np.empty((0, n_scores))
        several = problem.likelihood.n_scores > 1
        terms = FirstResponses(problem.likelihood) if several else problem.likelihood.terms
        sums = problem.Phi.sums(self._at, terms, gram="unit")
        gram = np.tril(sums.gram.gram) + np.tril(sums.gram.gram, -1).T
        if problem.bias != "none":
            border = sums.gram.border[:, None]
            gram = np.block([[gram, border], [border.T, np.array([[sums.gram.corner]])]])
        self.gram, self.square = gram, np.diag(gram).copy()
        # the first responses of several scores come in place of slopes
        pulled = (self.beta if several else 1.0) * self._slopes(sums)
        self._first = Responses(pulled, sums.log_likelihood, np.nan, self._none)

    def _slopes(self, sums: Any) -> Array:
        return sums.pull if self.problem.bias == "none" else np.vstack([sums.pull, sums.total])

    def products(self, n: int) -> Array:
        """Return ``Phi' phi_n``, shape (n_columns,)."""
        return self.gram[n]

    def first(self, start: Array | None) -> Responses:
        """Return the likelihood's own responses of the first epoch."""
        if start is not None:
            raise ValueError(
                f"start of shape {np.shape(start)} was given for rows in chunks, whose responses are not "
                "held; needed None, the likelihood's own, or basis functions in memory"
            )
        return self._first

    def at(self, weight: Array, bias: Array, is_rough: bool) -> Responses:
        """Return the responses at weights, shape (n_basis, n_scores), and biases."""
        likelihood = self.problem.likelihood
        terms = likelihood.rough_terms if is_rough else likelihood.terms
        sums = self.problem.Phi.sums((weight, bias), terms, old=self._at)
        self._at = weight.copy(), bias.copy()
        every = weight if self.problem.bias == "none" else np.vstack([weight, bias])
        used = np.flatnonzero(every.any(axis=1))
        pulled = self.beta * (self.gram[:, used] @ every[used]) + self._slopes(sums)
        return Responses(pulled, sums.log_likelihood, sums.change, self._none)
