"""What a search from the bottom up asks of the rows: held, or in chunks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pcvm_pymc.core.design import FirstResponses, StreamedDesign
from pcvm_pymc.core.pieces.likelihood import RowTerms
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem

__all__ = ["ALIGNED", "ChunkedBases", "HeldBases", "Seen", "bases_of", "each_row"]

ALIGNED = 1e-9  # of phi' phi: by how much rounding may move S
# what S is at the least of a column that is none of those in the model again
_DISTINCT = 10.0 * ALIGNED


class Seen(NamedTuple):
    """What the rows say at some weights.

    Attributes
    ----------
    pulled : ndarray, shape (n_columns, n_scores)
        ``beta Phi' z``, z the responses there.
    log_likelihood : float
    moved : float
        The largest change of a latent value.
    latent : ndarray, shape (n_obs, n_scores)
        Empty for rows in chunks.
    """

    pulled: Array
    log_likelihood: float
    moved: float
    latent: Array


def each_row(problem: Problem) -> Array:
    """Return how often each row counts, shape (n_obs, 1); (1, 1) where each counts once."""
    return np.ones((1, 1)) if problem.row_weight is None else problem.row_weight[:, None]


def terms_of(problem: Problem, is_rough: bool) -> Callable[[Array, Any], RowTerms]:
    """Return what gives the likelihood's terms."""
    return problem.likelihood.rough_terms if is_rough else problem.likelihood.terms


class HeldBases:
    """The bases (and a constant), and those columns of their Gram matrix that were asked for.

    Attributes
    ----------
    columns : ndarray, shape (n_obs, n_columns)
        Of weighted rows times the weights' square roots, so that all products are weighted.
    square : ndarray, shape (n_columns,)
        Their squared norms.
    beta : float
        Precision of a response: the bound of the likelihood's curvature.
    each : ndarray, shape (n_obs, 1) or (1, 1)
        How often the rows count.
    rounding : ndarray, shape (n_columns,)
        What S is at the least of a column that is not one of those in the model again.
    is_rough : bool
        Whether the likelihood's terms may be rough.
    """

    def __init__(self, problem: Problem, *, is_rough: bool = False) -> None:
        Phi = problem.Phi
        self.problem = problem
        self.is_rough = is_rough
        self.columns = Phi if problem.bias == "none" else np.hstack([Phi, np.ones((len(Phi), 1))])
        self.each = each_row(problem)
        if problem.row_weight is not None:
            self.columns = np.sqrt(self.each) * self.columns
        self.square = np.einsum("ij,ij->j", self.columns, self.columns)
        self.beta = problem.likelihood.bound
        self.rounding = _DISTINCT * self.beta * self.square
        self.latent = np.zeros((len(problem.label), problem.n_scores))
        self._products: dict[int, Array] = {}

    def products(self, n: int) -> Array:
        """Return ``Phi' phi_n``, shape (n_columns,)."""
        if n not in self._products:
            self._products[n] = np.ascontiguousarray(self.columns[:, n]) @ self.columns
        return self._products[n]

    def first(self, response: Array | None) -> Seen:
        """Return the rows at weights of zero, with responses of shape (n_obs, n_scores)."""
        assert response is not None
        value = self.problem.likelihood.terms(self.latent, self.problem.label).log_likelihood
        return Seen(self._projected(self.beta * response), value, np.nan, self.latent)

    def at(self, weight: Array, bias: Array) -> Seen:
        """Return the rows at weights, shape (n_basis, n_scores), and biases, with the responses there."""
        problem, old = self.problem, self.latent
        used = np.flatnonzero(weight.any(axis=1))
        self.latent = problem.Phi[:, used] @ weight[used] + bias
        terms = terms_of(problem, self.is_rough)(self.latent, problem.label)
        response = self.beta * self.latent + terms.slope / self.each
        moved = float(np.abs(self.latent - old).max())
        return Seen(self._projected(response), terms.log_likelihood, moved, self.latent)

    def _projected(self, pull: Array) -> Array:
        """Return ``Phi'`` times what has shape (n_obs, n_scores), each row as often as it counts."""
        return ((np.sqrt(self.each) * pull).T @ self.columns).T


class ChunkedBases:
    """The same of rows in chunks: one pass for their Gram matrix, and one at each weights.

    ``Phi' W (beta f + ...) = beta (Phi' W Phi) w + Phi' g``, with g the slopes of the rows.

    Attributes
    ----------
    square, beta, rounding, is_rough
        As for `HeldBases`.
    """

    def __init__(self, problem: Problem, *, is_rough: bool = False) -> None:
        self.problem = problem
        self.is_rough = is_rough
        self.chunks: StreamedDesign = problem.Phi
        self.beta = problem.likelihood.bound
        shape = (problem.Phi.shape[1], problem.n_scores)
        self.point = np.zeros(shape), np.zeros(problem.n_scores)
        several = problem.likelihood.n_scores > 1
        terms = FirstResponses(problem.likelihood) if several else problem.likelihood.terms
        sums = self._sums(self.point, terms, "unit")
        lower = np.tril(sums.gram.gram)
        gram = lower + np.tril(lower, -1).T
        if problem.bias != "none":
            border = sums.gram.border[:, None]
            gram = np.block([[gram, border], [border.T, np.array([[sums.gram.corner]])]])
        self.gram = gram
        self.square = np.diag(gram).copy()
        self.rounding = _DISTINCT * self.beta * self.square
        # the first responses of several scores are those, not slopes
        scale = self.beta if several else 1.0
        self._first = Seen(scale * self._pull(sums), sums.log_likelihood, np.nan, self._nothing)

    @property
    def _nothing(self) -> Array:
        return np.empty((0, self.problem.n_scores))

    def products(self, n: int) -> Array:
        """Return ``Phi' phi_n``, shape (n_columns,)."""
        return self.gram[n]

    def first(self, response: Array | None) -> Seen:
        """Return the rows at weights of zero, with the likelihood's first responses."""
        assert response is None
        return self._first

    def at(self, weight: Array, bias: Array) -> Seen:
        """Return the rows at weights, shape (n_basis, n_scores), and biases, with the responses there."""
        sums = self._sums((weight, bias), terms_of(self.problem, self.is_rough), "none")
        self.point = weight.copy(), bias.copy()
        every = weight if self.problem.bias == "none" else np.vstack([weight, bias])
        used = np.flatnonzero(every.any(axis=1))
        pulled = self.beta * (self.gram[:, used] @ every[used]) + self._pull(sums)
        return Seen(pulled, sums.log_likelihood, sums.change, self._nothing)

    def _pull(self, sums: Any) -> Array:
        return sums.pull if self.problem.bias == "none" else np.vstack([sums.pull, sums.total])

    def _sums(self, point: tuple[Array, Array], terms: Any, gram: str) -> Any:
        return self.chunks.sums(point, terms, old=self.point, gram=gram)


def bases_of(problem: Problem, *, is_rough: bool = False) -> HeldBases | ChunkedBases:
    """Return a problem's bases, held or in chunks."""
    kind = ChunkedBases if isinstance(problem.Phi, StreamedDesign) else HeldBases
    return kind(problem, is_rough=is_rough)
