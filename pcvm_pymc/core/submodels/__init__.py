"""Projection of a reference's class probabilities onto sign-constrained submodels of few vectors.

The submodel f_S = Phi_S w_S + b nearest to a reference with probabilities p minimises the
Kullback-Leibler divergence of their Bernoulli distributions,

    KL = sum_i q_i { p_i log p_i / Phi(f_i) + (1 - p_i) log (1 - p_i) / Phi(-f_i) },   w_j sign_j >= 0,

a convex probit likelihood of fractional labels; for several classes a sum over classes under the
multinomial probit, a vector having a weight for each. `fractional` has what is particular to a
likelihood. What is hard is the choice of S: `refit` fits one S, `scans` says which columns promise to
improve it, `l1` proposes whole supports, and `search` looks for the best of each size.
"""

from pcvm_pymc.core.submodels.fractional import probability_derivatives, row_terms
from pcvm_pymc.core.submodels.l1 import l1_supports
from pcvm_pymc.core.submodels.refit import Submodel, fit_submodel
from pcvm_pymc.core.submodels.scans import (
    Scan,
    addition_gains,
    best_additions,
    best_exchanges,
    exchange_gains,
    scan,
)
from pcvm_pymc.core.submodels.search import (
    ProjectionPath,
    SearchOptions,
    default_sizes,
    project_path,
)
from pcvm_pymc.core.submodels.target import Target

__all__ = [
    "ProjectionPath",
    "Scan",
    "SearchOptions",
    "Submodel",
    "Target",
    "addition_gains",
    "best_additions",
    "best_exchanges",
    "default_sizes",
    "exchange_gains",
    "fit_submodel",
    "l1_supports",
    "probability_derivatives",
    "project_path",
    "row_terms",
    "scan",
]
