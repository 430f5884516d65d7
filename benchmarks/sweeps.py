"""Effective draws of the latent function for each CPU second of the Gibbs sampler's sweeps alone.

``OMP_NUM_THREADS=1 uv run python benchmarks/sweeps.py ripley:250:default moons:500:learned means:250``: rows
of Ripley's mixture or of two moons, every one a basis of width 0.6, or 30 means of the mixture with weights
of either sign. Four chains for each seed; another state of the package is measured by PYTHONPATH.
"""

import sys
import time

import arviz as az
import numpy as np
import xarray as xr
from cases import WIDTH, mixture, moons

from pcvm_pymc import Hyperprior, pcvm_model
from pcvm_pymc.core.gibbs import GibbsProblem, advance
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.likelihoods import Probit
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.model.read import read

SEEDS, CHAINS, TUNE, DRAWS, THIN = 4, 4, 500, 300, 6


def problem(data, n, prior="default"):
    """Return what the sampler needs of a case."""
    if data == "means":
        X, y = mixture(n)
        return GibbsProblem.of(
            read(pcvm_model(X, y, width=0.64, basis="kmeans", signs="both"), "gibbs")
        )
    X, y = {"ripley": mixture, "moons": moons}[data](n)
    sign = np.where(y > 0, 1.0, -1.0)
    Phi = RBF(WIDTH)(X, X)
    return GibbsProblem.of(
        Problem(Phi, sign, sign, getattr(Hyperprior, prior)(Phi, sign), Probit())
    )


def effective(posterior, seed):
    """Return the smallest effective sample size, and CPU seconds."""
    latent, seconds = [], 0.0
    for rng in np.random.default_rng(seed).spawn(CHAINS):
        state = posterior.start(rng)
        advance(posterior, state, rng, draws=1, thin=TUNE)
        began = time.process_time()
        size, bias, _ = advance(posterior, state, rng, draws=DRAWS, thin=THIN)
        seconds += time.process_time() - began
        latent.append(posterior.latent(size, bias))
    found = az.ess(xr.Dataset({"latent": (("chain", "draw", "obs"), np.array(latent))}))
    return float(found["latent"].min()), seconds


if __name__ == "__main__":
    for case in sys.argv[1:]:
        data, n, *prior = case.split(":")
        posterior = problem(data, int(n), *prior)
        ess, seconds = np.transpose([effective(posterior, seed) for seed in range(SEEDS)])
        sweeps = CHAINS * DRAWS * THIN
        print(
            f"{case}: {1e3 * ess.mean() / sweeps:.1f} effective of 1,000 sweeps "
            f"(seeds {np.round(1e3 * ess / sweeps)}), {1e6 * seconds.mean() / sweeps:.0f} us a sweep, "
            f"{(ess / seconds).mean():.0f} effective a CPU second",
            flush=True,
        )
