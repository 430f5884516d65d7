"""Gibbs sampling of the posterior of signed weights: compiled by numba, no PyMC.

The latent responses are drawn (Albert & Chib 1993); given them the weights are a regression under a sign
rule. Precisions and bias are integrated out of the updates of the weights. Nothing here is in the
papers, which stop at the posterior's mode.
"""

from pcvm_pymc.core.gibbs.chain import GibbsChains, advance
from pcvm_pymc.core.gibbs.problem import GibbsProblem, GibbsState
