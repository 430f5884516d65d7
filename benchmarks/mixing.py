"""How soon chains of the Gibbs sampler agree under the learned prior, by the rule that `sample` stops at.

OMP_NUM_THREADS=1 uv run python benchmarks/mixing.py [N ...] [--means]

On every row, with the sign of its label; with ``--means`` on 30 means of rows, with weights of either sign.
CPU seconds of four chains; on two free cores a run takes half as many. Widths by `select_width`.
"""

import argparse
import time

import arviz as az
from sklearn.datasets import make_moons
from sklearn.preprocessing import StandardScaler

from pcvm_pymc import pcvm_model, sample, select_width
from pcvm_pymc.experiments import datasets

SETS = {
    "moons": lambda n: make_moons(n, noise=0.25, random_state=1),
    "ringnorm": lambda n: datasets.ringnorm(n, random_state=1),
    "ripley": lambda n: datasets.ripley_mixture(n, random_state=1),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int, default=[400, 1000])
    parser.add_argument("--means", action="store_true")
    options = parser.parse_args()
    stands = {"basis": "kmeans", "signs": "both"} if options.means else {}
    print("| set | N | width | sweeps a chain | CPU s | worst r-hat | smallest ESS |")
    print("|" + " --- |" * 7)
    for n in options.sizes:
        for name, make in SETS.items():
            X, y = make(n)
            X = StandardScaler().fit_transform(X)
            width = select_width(X, y, random_state=1).width
            model = pcvm_model(X, y, width=width, hyperprior="learned", **stands)
            began = time.process_time()
            posterior = sample(model, method="gibbs", random_seed=1, quiet=True)["posterior"]
            seconds = time.process_time() - began
            latent = posterior.to_dataset()[["latent"]]
            rhat, ess = (
                float(az.rhat(latent)["latent"].max()),
                float(az.ess(latent)["latent"].min()),
            )
            print(
                f"| {name} | {n} | {width:.2f} | {posterior.attrs['sweeps']} | {seconds:.0f} | {rhat:.3f} | "
                f"{ess:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
