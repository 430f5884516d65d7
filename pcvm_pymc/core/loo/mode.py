"""The quadratic model of the objective at a posterior mode, and what it says of every row's removal."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from pcvm_pymc.core.design import ArrayRows, BasisFunctions, StreamedDesign, row_blocks
from pcvm_pymc.core.pieces.priors import SharedHyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.quadratic import cross_product

__all__ = ["Block", "Index", "Mode"]

type Index = NDArray[np.intp]
#: rows, their basis functions and their targets
type Block = tuple[slice, Array, NDArray[Any]]

_BLOCK = 4096  # rows that are taken at a time
_SOLVED = 256  # rows whose columns of the factor's inverse are held at a time
_TINY = 1e-300


class Mode:
    """A posterior mode, and the inverse of the quadratic model there.

    The values in play are the active weights, score by score, each score's bias last; they are counted in
    the prior's standard deviations.
    """

    def __init__(
        self, problem: Problem, weight: Array, bias: Any, own: Index, precision: Array | None
    ) -> None:
        n_scores = problem.n_scores
        self.problem, self.own = problem, own
        self.weight = np.reshape(weight, (-1, n_scores))
        self.bias = np.broadcast_to(np.asarray(bias, dtype=float), (n_scores,))
        prior: Any = problem.hyperprior
        #: whether precisions do not follow the weights, score by score
        self.is_fixed = precision is not None or isinstance(prior, SharedHyperprior)
        known = prior.weight_precision(self.weight) if precision is None else precision
        self.precision = np.reshape(known, self.weight.shape)
        self.bias_ridge = np.array([problem.bias_precision(float(b)) for b in self.bias])
        self.has_bias = np.isfinite(self.bias_ridge)
        self.columns = [np.flatnonzero(each) for each in self.weight.T]
        self.sizes = [
            len(each) + int(has) for each, has in zip(self.columns, self.has_bias, strict=True)
        ]
        self.ends = np.cumsum([0, *self.sizes])
        ridge = self.gathered(self.precision, self.bias_ridge)
        self.is_ridged = ridge > 0
        self.scale = np.where(self.is_ridged, 1.0 / np.sqrt(np.maximum(ridge, _TINY)), 1.0)
        self.value = self.gathered(self.weight, self.bias) / self.scale

    # --- values in play ------------------------------------------------------------------------

    def part(self, c: int) -> slice:
        """Return where a score's values stand."""
        return slice(int(self.ends[c]), int(self.ends[c + 1]))

    def gathered(self, weight: Array, bias: Array) -> Array:
        """Return what belongs to the values in play, shape (n_values, ...).

        From arrays of shape (n_basis, n_scores, ...) and (n_scores, ...).
        """
        parts = [
            np.concatenate([weight[columns, c], bias[c][None]])[: self.sizes[c]]
            for c, columns in enumerate(self.columns)
        ]
        return np.concatenate(parts)

    def scatter(self, values: Array, weight: Array, bias: Array) -> None:
        """Write values in play into arrays of shape (n_basis, n_scores, ...) and (n_scores, ...)."""
        for c, columns in enumerate(self.columns):
            part = values[self.part(c)]
            weight[columns, c] = part[: len(columns)]
            if self.has_bias[c]:
                bias[c] = part[-1]

    @cached_property
    def own_values(self) -> Index:
        """The values in play that go with each row, shape (n_obs, n_most); -1 where fewer do."""
        found: list[list[int]] = [[] for _ in range(self.problem.Phi.shape[0])]
        for c, columns in enumerate(self.columns):
            for place, row in enumerate(self.own[columns].tolist()):
                if row >= 0:
                    found[row].append(int(self.ends[c]) + place)
        out = np.full((len(found), max(map(len, found), default=0)), -1)
        for row, each in enumerate(found):
            out[row, : len(each)] = each
        return out

    # --- rows ----------------------------------------------------------------------------------

    def shaped(self, latent: Array) -> Array:
        """Return latent values, shape (n_rows, n_scores), as the likelihood has them."""
        return latent[:, 0] if self.problem.n_scores == 1 else latent

    @cached_property
    def label(self) -> NDArray[Any]:
        """Targets of all rows."""
        Phi: Any = self.problem.Phi
        in_chunks = isinstance(self.problem.Phi, StreamedDesign)
        return np.asarray(Phi.rows.label if in_chunks else self.problem.label)

    def blocks(self) -> Iterator[Block]:
        """Yield all rows, some at a time."""
        problem = self.problem
        if not isinstance(problem.Phi, StreamedDesign):
            for rows in row_blocks(len(problem.Phi), _BLOCK):
                yield rows, problem.Phi[rows], self.label[rows]
            return
        chunks = problem.Phi
        if not isinstance(chunks.rows, ArrayRows):
            raise ValueError(
                f"rows are {type(chunks.rows).__name__}; leaving one out needs rows in memory or in chunks "
                "of an array"
            )
        basis = BasisFunctions(chunks.centres, chunks.kernel)
        for rows in row_blocks(chunks.rows.n_obs, chunks.rows.chunk):
            yield rows, basis(np.asarray(chunks.rows.X[rows], dtype=float)), self.label[rows]

    def designs(self, Phi: Array) -> list[Array]:
        """Return each score's scaled columns at some rows, the bias' last."""
        out = []
        for c, columns in enumerate(self.columns):
            scale, size = self.scale[self.part(c)], len(columns)
            one = np.empty((len(Phi), self.sizes[c]))
            np.multiply(Phi[:, columns], scale[:size], out=one[:, :size])
            one[:, size:] = scale[size:]
            out.append(one)
        return out

    # --- the quadratic model -------------------------------------------------------------------

    @cached_property
    def root(self) -> Array:
        """L^-1, lower triangular, of the quadratic model's matrix H = L L', shape (n_values, n_values)."""
        H = np.zeros((len(self.value), len(self.value)), order="F")
        if not len(H):  # an empty model without a bias
            return H
        for _, Phi, label in self.blocks():
            latent = self.shaped(Phi @ self.weight + self.bias)
            self._add_rows(H, self.designs(Phi), self.problem.likelihood.hessian(latent, label))
        H[np.diag_indices(len(H))] += np.where(self.is_ridged, 1.0, 1e-10)
        factor, failed = lapack.dpotrf(H, lower=1)
        if failed:  # a flat bias where every row is certain, and rounding
            H[np.diag_indices(len(H))] += 1e-8 * max(1.0, float(H.diagonal().max()))
            factor, _ = lapack.dpotrf(H, lower=1)
        return lapack.dtrtri(factor, lower=1, overwrite_c=1)[0]

    def _add_rows(self, H: Array, designs: list[Array], bend: Array) -> None:
        """Add what some rows bend to the lower triangle of the quadratic model's matrix."""
        for c, one in enumerate(designs):
            for k, other in enumerate(designs[: c + 1]):
                own = bend[:, c, k, None]
                at = (self.part(c), self.part(k))
                if c == k and own.min(initial=0.0) >= 0.0:
                    H[at] += cross_product(one * np.sqrt(own))
                else:
                    H[at] += (one * own).T @ other

    @cached_property
    def inverse(self) -> Array:
        """The inverse of the quadratic model's matrix, shape (n_values, n_values)."""
        lower = np.tril(lapack.dlauum(self.root, lower=1)[0])
        return lower + np.tril(lower, -1).T

    @cached_property
    def diagonal(self) -> Array:
        """Curvature of each weight at the mode, active or not, shape (n_basis, n_scores)."""
        total = np.zeros(self.weight.shape)
        for _, Phi, label in self.blocks():
            latent = self.shaped(Phi @ self.weight + self.bias)
            own = np.einsum("icc->ic", self.problem.likelihood.hessian(latent, label))
            total += np.square(Phi).T @ own
        return total + self.precision

    def own_block(self, rows: Index) -> tuple[Array, Array]:
        """Return G_kk and w_k of the values that go with rows; ones and zeros where there are fewer."""
        own = self.own_values[rows]
        missing = own < 0
        block = self.inverse[own[:, :, None], own[:, None, :]]
        block[missing[:, :, None] | missing[:, None, :]] = 0.0
        row, place = np.nonzero(missing)
        block[row, place, place] = 1.0
        return block, self._own_weight(own)

    def _own_weight(self, own: Index) -> Array:
        """Return w_k of the values that go with rows; zeros where there are fewer."""
        return np.where(own >= 0, self.value[own], 0.0)

    def removed(self) -> tuple[Array, Array, Array]:
        """Return held-out latent values, log densities, and how far each latent value moved."""
        likelihood, parts = self.problem.likelihood, []
        for rows, Phi, label in self.blocks():
            latent = Phi @ self.weight + self.bias
            spread, shift = self._without_own(self.designs(Phi), self.own_values[rows])
            slope = likelihood.terms(latent, label).slope
            bend = likelihood.hessian(self.shaped(latent), label)
            right = shift - np.einsum("icd,id->ic", spread, slope)
            matrix = np.eye(latent.shape[1]) - spread @ bend
            moved = np.linalg.solve(matrix, right[:, :, None])[:, :, 0]
            held = latent + moved
            parts.append((held, likelihood.log_density(self.shaped(held), label), moved))
        held, density, moved = (np.concatenate(each) for each in zip(*parts, strict=True))
        return held, density, moved

    def _without_own(self, designs: list[Array], own: Index) -> tuple[Array, Array]:
        """Return J G J' of each row, and the latent values' move, once what goes with it is held at zero."""
        parts = []
        for rows in row_blocks(len(own), _SOLVED):
            spread, tie, block = self._spread([each[rows] for each in designs], own[rows])
            shift = np.zeros(spread.shape[:2])
            if own.shape[1]:
                value = self._own_weight(own[rows])[:, :, None]
                solved = np.linalg.solve(block, np.concatenate([tie, value], axis=2))
                spread -= np.einsum("ikc,ikd->icd", tie, solved[:, :, :-1])
                shift -= np.einsum("ikc,ik->ic", tie, solved[:, :, -1])
            parts.append((spread, shift))
        spread, shift = (np.concatenate(each) for each in zip(*parts, strict=True))
        return spread, shift

    def _spread(self, designs: list[Array], own: Index) -> tuple[Array, Array, Array]:
        """Return J G J' of each row, and (G J')_k and G_kk of the values k that go with it.

        G = R'R with the triangular R of `root`: products of columns of R and of R J'.
        """
        n_rows, n_scores = len(own), len(designs)
        spread = np.empty((n_rows, n_scores, n_scores))
        tie, block = np.zeros((*own.shape, n_scores)), np.zeros((*own.shape, own.shape[1]))
        column = [
            np.where(own[:, k] >= 0, self.root[:, own[:, k]], 0.0) for k in range(own.shape[1])
        ]
        solved = [self._solved(c, one) for c, one in enumerate(designs)]
        for c, one in enumerate(solved):
            start = int(self.ends[c])  # above it there are zeros
            for k, other in enumerate(solved[: c + 1]):
                spread[:, c, k] = np.einsum("ij,ij->j", one, other[start - int(self.ends[k]) :])
                spread[:, k, c] = spread[:, c, k]
            for k, each in enumerate(column):
                tie[:, k, c] = np.einsum("ij,ij->j", each[start:], one)
        for k, one in enumerate(column):
            for m, other in enumerate(column[: k + 1]):
                block[:, k, m] = block[:, m, k] = np.einsum("ij,ij->j", one, other)
            missing = own[:, k] < 0
            block[missing, k, k] = 1.0
        return spread, tie, block

    def _solved(self, c: int, design: Array) -> Array:
        """Return R J' of some rows' columns of a score, without the zeros above."""
        part = self.part(c)
        top = blas.dtrmm(1.0, self.root[part, part], design.T, lower=1)
        if part.stop == len(self.root):
            return top
        return np.concatenate([top, self.root[part.stop :, part] @ design.T])

    def applied(self, rows: Index, values: Array) -> Array:
        """Return G times columns, one for each row, what goes with the row held at zero."""
        out = self.inverse @ values
        own = self.own_values[rows]
        if own.shape[1]:
            block, _ = self.own_block(rows)
            each = np.arange(len(rows))[:, None]
            at = np.where(own >= 0, out[own, each], 0.0)
            out = self._less(out, rows, np.linalg.solve(block, at[:, :, None])[:, :, 0])
        return out

    def _less(self, values: Array, rows: Index, share: Array) -> Array:
        """Return columns less G's columns of what goes with each row, so that it comes to zero."""
        own = self.own_values[rows]
        for k in range(own.shape[1]):
            there = np.where(own[:, k] >= 0, share[:, k], 0.0)
            values = values - self.inverse[:, own[:, k]] * there
        column, place = np.nonzero(own >= 0)
        values[own[column, place], column] = 0.0
        return values

    def ends_without(self, rows: Index, moved: Array) -> Array:
        """Return where the quadratic model puts all values without each row, shape (n_values, n_rows)."""
        likelihood, right = self.problem.likelihood, np.zeros((len(self.value), len(rows)))
        for block, Phi, label in self.blocks():
            inside = np.flatnonzero((rows >= block.start) & (rows < block.stop))
            if len(inside) == 0:
                continue
            at = rows[inside] - block.start
            latent, target = Phi[at] @ self.weight + self.bias, label[at]
            bend = likelihood.hessian(self.shaped(latent), target)
            pull = likelihood.terms(latent, target).slope
            pull = pull - np.einsum("icd,id->ic", bend, moved[inside])
            for c, one in enumerate(self.designs(Phi[at])):
                right[self.part(c), inside] = -(one * pull[:, c, None]).T
        value = self.value[:, None] + self.applied(rows, right)
        if not self.own_values.shape[1]:
            return value
        inverse, own_value = self.own_block(rows)
        return self._less(value, rows, np.linalg.solve(inverse, own_value[:, :, None])[:, :, 0])
