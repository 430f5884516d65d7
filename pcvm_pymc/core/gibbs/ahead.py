"""The sampler compiled ahead of its use: ``python -m pcvm_pymc.core.gibbs.ahead``.

It leaves what it compiles in numba's cache, as any first use does: half a minute of one core, once for each
installation, which a process of its own can do while there is other work.
"""

import numpy as np

from pcvm_pymc.core.gibbs.problem import GibbsProblem, advance
from pcvm_pymc.core.pieces.likelihoods import Probit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.problem import Problem

__all__ = ["compile_sampler"]


def compile_sampler() -> None:
    """Draw once from a posterior of four rows: one compilation serves every problem."""
    Phi, sign = np.eye(4) + 0.1, np.array([1.0, 1.0, -1.0, -1.0])
    prior = Hyperprior.learned(Phi, sign)
    problem = GibbsProblem.of(Problem(Phi, sign, sign, prior, Probit()))
    rng = np.random.default_rng(0)
    advance(problem, problem.start(rng), rng, draws=1)


if __name__ == "__main__":
    compile_sampler()
