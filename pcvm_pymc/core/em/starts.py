"""Where EM begins."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pcvm_pymc.core.design import StreamedDesign
from pcvm_pymc.core.em.points import ChunkedRows
from pcvm_pymc.core.nonnegative import solve_nonnegative
from pcvm_pymc.core.pieces.likelihood import majority_label, plain_target
from pcvm_pymc.core.pieces.likelihoods import start_response
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.quadratic import ridge_solve

__all__ = ["Start"]

_RIDGE = 1e-6  # Step 2 of Figueiredo & Jain's algorithm


@dataclass(frozen=True)
class Start:
    """Where a fit begins.

    Parameters
    ----------
    weight : ndarray, shape (n_basis,), or (n_basis, n_scores) for several scores
    bias : float, or ndarray, shape (n_scores,)
    response : ndarray, shape (n_obs,) or (n_obs, n_scores), optional
        Latent responses to be used in place of the first E-step (as the authors' programs do); of weights
        and biases only the precisions then matter, by their sizes.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009) say nothing of a start; `Start.chen2009` is their program's.
    `Start.ridge` is that of M. Figueiredo and A. Jain (2001), section 3, step 2, corrected.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> start = Start(weight=np.where(X[:, 0] > 0, 0.1, -0.1), bias=0.0)
    >>> result = find_map_em(pcvm_model(X, X[:, 0] > 0, width=1.0), start=start, progressbar=False)
    >>> result["optimizer_result"]["status"].item()
    'CONVERGED'
    """

    weight: Array
    bias: Any
    response: Array | None = None

    @classmethod
    def default(cls, problem: Problem) -> "Start":
        """Return a deterministic start.

        One score under a sign rule: zero, or one in size where a prior holds zeros fast (under d = 0
        a weight that is zero stays zero). One score of free weights: the ridge fit, see `ridge`. Several
        scores: precisions of one and the likelihood's first responses.

        Parameters
        ----------
        problem : Problem

        Returns
        -------
        Start
        """
        if problem.n_scores > 1:
            responses = None
            if not isinstance(problem.Phi, StreamedDesign):
                responses = problem.likelihood.response(problem.label)
            return cls._of_size_one(problem, responses)
        if not problem.is_signed:
            return cls.ridge(problem)
        prior: Any = problem.hyperprior
        at_zero = not prior.holds_zeros or prior.penalty > 0
        bias = 0.0 if not prior.holds_zero_bias or prior.penalty > 0 else _majority(problem)
        weight = np.zeros(problem.weight_shape) if at_zero else problem.weight_sign.copy()
        return cls(weight, bias if problem.bias == "prior" else 0.0)

    @classmethod
    def ridge(cls, problem: Problem, ridge: float = _RIDGE) -> "Start":
        """Return the weakly penalised ridge fit to labels -1 and +1 (Figueiredo & Jain, Step 2, corrected).

        The printed ``(eps I + H'H)^-1 H y`` lacks a prime. Under Jeffreys' prior the start decides the end:
        labels 0 and 1 with ``ridge >= 0.1`` end at no weights at all.

        Parameters
        ----------
        problem : Problem
        ridge : float
            The penalty, eps.

        Returns
        -------
        Start
        """
        penalties = {"prior": ridge, "free": 0.0, "none": np.inf}
        n_basis = problem.Phi.shape[1]
        if isinstance(problem.Phi, StreamedDesign):
            rows = ChunkedRows(problem)
            at = rows.first(np.zeros((n_basis, 1)), np.zeros(1))
            (pull, total), scale = rows.gradient(at), np.full(n_basis, ridge**-0.5)
            bias_scale = {"prior": ridge**-0.5, "free": np.inf, "none": 0.0}[problem.bias]
            goal, every = (pull[:, 0], float(total[0])), np.ones(n_basis, dtype=bool)
            gram = rows.unit_gram(at)
            return cls(*solve_nonnegative(gram, scale, bias_scale, goal, every, constrained=False))
        precision = np.full(n_basis, ridge)
        target = np.asarray(plain_target(problem.label), dtype=float)
        return cls(
            *ridge_solve(
                problem.Phi,
                target,
                precision,
                penalties[problem.bias],
                row_weight=problem.row_weight,
            )
        )

    @classmethod
    def random(cls, problem: Problem, rng: np.random.Generator) -> "Start":
        """Return sizes uniform on [0.2, 1.2], as in the authors' program, for weights and bias.

        Several scores: precisions of one and random first responses, as the mRVM's authors have.

        Parameters
        ----------
        problem : Problem
        rng : numpy.random.Generator

        Returns
        -------
        Start
        """
        if problem.n_scores > 1:
            response = start_response(plain_target(problem.label), problem.n_scores, rng)
            return cls._of_size_one(problem, response)
        size = rng.uniform(0.2, 1.2, problem.Phi.shape[1])
        bias = float(rng.choice([-1.0, 1.0]) * rng.uniform(0.2, 1.2))
        return cls(problem.weight_sign * size, 0.0 if problem.bias == "none" else bias)

    @classmethod
    def _of_size_one(cls, problem: Problem, response: Array | None) -> "Start":
        bias = np.full(problem.n_scores, 0.0 if problem.bias == "none" else 1.0)
        return cls(problem.weight_sign.copy(), bias, response)

    @classmethod
    def chen2009(cls, problem: Problem, rng: np.random.Generator) -> "Start":
        """Return the authors' start: random sizes and latent responses ``10 u y + u'``.

        Parameters
        ----------
        problem : Problem
        rng : numpy.random.Generator

        Returns
        -------
        Start

        Raises
        ------
        ValueError
            For several scores.
        """
        if problem.n_scores > 1:
            raise ValueError("start='chen2009' is for two classes; use 'default' or 'random'")
        start = cls.random(problem, rng)
        label = plain_target(problem.label)
        response = 10 * rng.uniform(size=len(label)) * label + rng.uniform(size=len(label))
        return replace(start, response=response)

    @classmethod
    def from_solution(
        cls, problem: Problem, weight: Array, bias: float, rng: np.random.Generator
    ) -> "Start":
        """Return another machine's solution as a start (Chen et al. 2009, footnote 9).

        Zero and wrong-signed weights are replaced by small random values so that
        the first iteration does not prune them.

        Parameters
        ----------
        problem : Problem
        weight : ndarray, shape (n_basis,)
        bias : float
        rng : numpy.random.Generator

        Returns
        -------
        Start
        """
        small = problem.weight_sign * rng.uniform(0.01, 0.1, len(weight))
        right = weight * problem.weight_sign > 0
        return cls(np.where(right, weight, small), bias if bias != 0 else 0.1)


def _majority(problem: Problem) -> float:
    """Return -1. or +1., the larger class."""
    if isinstance(problem.Phi, StreamedDesign):
        return problem.Phi.majority
    return majority_label(plain_target(problem.label), problem.row_weight)
