"""Gibbs sampling of the posterior of signed weights: compiled by numba, no PyMC.

The latent responses are drawn (Albert & Chib 1993); given them the scores are independent regressions under
sign rules. Precisions and bias are integrated out of the updates of the weights. Nothing here is in the
papers, which stop at the posterior's mode.
"""

from pcvm_pymc.core.gibbs.chain import advance
from pcvm_pymc.core.gibbs.problem import GibbsProblem, GibbsState, check_gibbs
from pcvm_pymc.core.gibbs.responses import AUGMENTED
