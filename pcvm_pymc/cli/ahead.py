"""The sampler compiled ahead of its use: ``python -m pcvm_pymc.cli.ahead [CLASSES]``.

It leaves what it compiles in numba's cache, as any first use does: some ten seconds of one core, once for
each installation and for two classes and more, which a process of its own can do while there is other work.
"""

import os
import sys

import numpy as np

from pcvm_pymc.core.gibbs.chain import advance
from pcvm_pymc.core.gibbs.problem import GibbsProblem
from pcvm_pymc.core.pieces.centres import class_signs
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.problem import Problem


def compile_sampler(n_classes: int = 2) -> None:
    """Draw once from a posterior of a few rows: one compilation serves every problem of one score.

    Another one serves every problem of several, which those of more than two classes are.
    """
    Phi = np.eye(2 * n_classes) + 0.1
    sign, label = np.repeat([1.0, -1.0], 2), np.arange(2 * n_classes) % n_classes
    prior = Hyperprior(1.0, 1.0, 1.0, 1.0, rate_shape=1.0)
    if n_classes == 2:
        found = GibbsProblem.of(Problem(Phi, sign, sign, prior))
    else:
        pieces = class_signs(label, n_classes), prior, MultinomialProbit(n_classes)
        found = GibbsProblem.of(Problem(Phi, label, *pieces))
    rng = np.random.default_rng(0)
    advance(found, found.start(rng), rng, draws=1)


if __name__ == "__main__":
    if hasattr(os, "nice"):  # not on Windows
        os.nice(19)  # what is waited for first comes first
    compile_sampler(*map(int, sys.argv[1:]))
