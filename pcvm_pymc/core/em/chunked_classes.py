"""EM from the top down for several classes over rows that are only seen as sums (Lyu et al. 2020)."""

from collections.abc import Callable

import numpy as np

from pcvm_pymc.core.em.binary import EMOptions
from pcvm_pymc.core.em.chunked import ChunkedMachine, ChunkedProblem
from pcvm_pymc.core.em.mpcvm import ClassResult, ClassTrace, row_curvature, start_response
from pcvm_pymc.core.em.rows import Rows, RowTerms
from pcvm_pymc.core.pieces.multinomial import Labels, class_terms
from pcvm_pymc.core.pieces.probit import Array

__all__ = ["fit_classes_chunked", "multinomial_terms_of_rows"]


def multinomial_terms_of_rows(latent: Array, label: Labels) -> RowTerms:
    """Return the terms of classes 0 to n_classes - 1 at scores, shape (n_rows, n_classes)."""
    terms = class_terms(latent, label)
    return RowTerms(float(terms.log_probability.sum()), terms.score, row_curvature(terms))


def _first_terms(latent: Array, label: Labels) -> RowTerms:
    """Return the default `start_response` in place of the slopes."""
    log_probability = class_terms(latent, label).log_probability
    return RowTerms(
        float(log_probability.sum()), start_response(label, latent.shape[1]), np.ones(len(label))
    )


def fit_classes_chunked(
    rows: Rows,
    problem: ChunkedProblem,
    n_classes: int,
    *,
    has_bias: bool = True,
    shared: bool = False,
    options: EMOptions | None = None,
    callback: Callable[[int, float], None] | None = None,
) -> ClassResult:
    """Run EM to its end over rows of several classes that are only ever seen as sums.

    The iterations are those of `fit_top_down` from its default start.

    Parameters
    ----------
    rows : Rows
        Labels 0 to n_classes - 1.
    problem : ChunkedProblem
        Signs of shape (n_basis, n_classes), or None.
    n_classes : int
    has_bias : bool
        Whether each class has a bias.
    shared : bool
        Whether a basis is dropped for all classes or for none, as in the mRVM.
    options : EMOptions, optional
        ``update="clip"`` and ``bias="alternating"``, the paper's recipe, are not available.
    callback : callable, optional
        Called with the iteration's number and log posterior after each iteration.

    Returns
    -------
    ClassResult
        Its `latent` is empty.

    Raises
    ------
    ValueError
        For the paper's recipe.
    """
    machine = ChunkedMachine(
        rows,
        problem,
        n_scores=n_classes,
        terms=multinomial_terms_of_rows,
        first_terms=_first_terms,
        has_bias=has_bias,
        shared=shared,
    )
    bias = np.full(n_classes, 1.0 if has_bias else 0.0)
    end = machine.run(machine.sign.copy(), bias, options or EMOptions(), callback)
    return ClassResult(
        end.weight,
        end.bias,
        np.empty((0, n_classes)),
        end.log_posterior,
        end.status,
        len(end.trace[0]) - 1,
        ClassTrace(*end.trace),
    )
