"""Several classes: Gibbs beside NUTS, in effective draws of the scores per second.

OMP_NUM_THREADS=1 uv run python benchmarks/class_samplers.py [--sizes N ...] [--classes C ...]
OMP_NUM_THREADS=1 PCVM_DATA=... uv run python benchmarks/class_samplers.py --sets iris glass [--methods gibbs]

Overlapping clouds on a circle in the plane, width 1.5, learned scale, four chains of 1000 draws on one
core. Gibbs keeps one draw in ten sweeps and does not go on until it has converged. Seconds are the samplers'
own, without compilation. `--sets` takes all rows of data sets instead, standardised, at the default width.
"""

import argparse
import warnings

import arviz as az
import numpy as np
import xarray as xr
from sklearn.preprocessing import StandardScaler

from pcvm_pymc import mpcvm_model, sample
from pcvm_pymc.core.pieces.multinomial import class_probabilities
from pcvm_pymc.experiments.datasets import load

WIDTH = 1.5
OPTIONS = {
    "gibbs": {"thin": 10, "max_sweeps": 11_000},
    "nuts": {"nuts_sampler": "pymc"},
}


def clouds(n, n_classes):
    """Return overlapping clouds on a circle, the classes in turn."""
    rng = np.random.default_rng(0)
    label = np.arange(n) % n_classes
    angle = 2 * np.pi * label / n_classes
    return rng.normal(size=(n, 2)) + 1.5 * np.column_stack([np.cos(angle), np.sin(angle)]), label


def measure(model, method):
    """Print how far the chains have come, for the scores and for what the likelihood sees of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = sample(
            model, method=method, cores=1, chains=4, random_seed=1, quiet=True, **OPTIONS[method]
        )
    scores = result["posterior"]["latent"]
    data = xr.Dataset({"scores": scores, "centred": scores - scores.mean("class")})
    few = scores[:, ::20].values  # draws: whose mean changes little
    means = class_probabilities(few.reshape(-1, few.shape[-1])).reshape(few.shape).mean(axis=1)
    ess, rhat = az.ess(data), az.rhat(data)
    seconds = float(result["posterior"].attrs["sampling_time"])
    least = {name: float(ess[name].min()) for name in data}
    print(
        f"  {method:6s} {seconds:6.1f} s, r-hat {float(rhat['scores'].max()):.4f}, less their mean "
        f"{float(rhat['centred'].max()):.4f}; smallest ESS of the "
        f"scores {least['scores']:5.0f} ({least['scores'] / seconds:6.1f} / s), less their mean over the "
        f"classes {least['centred']:5.0f} ({least['centred'] / seconds:6.1f} / s); mean of |scores less "
        f"mean| {float(np.abs(data['centred'].mean(('chain', 'draw'))).mean()):.3f}; largest "
        f"difference of a row's mean probabilities between chains {np.ptp(means, axis=0).max():.3f}",
        flush=True,
    )


def main():
    """Run the cells asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[60, 150, 300])
    parser.add_argument("--classes", type=int, nargs="+", default=[3, 6])
    parser.add_argument("--methods", nargs="+", default=list(OPTIONS), choices=list(OPTIONS))
    parser.add_argument("--sets", nargs="+", default=[])
    options = parser.parse_args()
    for name in options.sets:
        data = load(name, random_state=0)
        model = mpcvm_model(StandardScaler().fit_transform(data.X), data.y)
        print(name, flush=True)
        for method in options.methods:
            measure(model, method)
    if options.sets:
        return
    for n_classes in options.classes:
        for n in options.sizes:
            print(f"N = {n}, C = {n_classes}", flush=True)
            model = mpcvm_model(*clouds(n, n_classes), width=WIDTH)
            for method in options.methods:
                measure(model, method)


if __name__ == "__main__":
    main()
