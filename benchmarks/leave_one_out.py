"""Leave-one-out from one factorisation beside refits of every row, on the cells that carry weight.

``OMP_NUM_THREADS=1 PCVM_DATA=... python benchmarks/leave_one_out.py [SET:ROWS ...]`` prints, for each cell of
width and scale with more than 2 % of an average's weight, the mean leave-one-out log loss by refits, what
the quadratic model and the whole method differ from it, and processor seconds beside those of the cell's fit.
"""

import argparse
import time
import warnings
from dataclasses import replace

import numpy as np

from pcvm_pymc.assessment.leave_one_out import FittedMode, _scored, fitted_problems
from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.loo import leave_one_out
from pcvm_pymc.estimators.multiclass import MPCVMClassifier
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.experiments.datasets import load
from pcvm_pymc.experiments.head_to_head import stratified_draws

SETS = (
    "wisconsin_diagnostic:120",
    "banana:120",
    "heart:120",
    "ripley:120",
    "ringnorm:120",
    "twonorm:120",
    "thyroid:120",
    "diabetis:120",
    "image:120",
    "iris:90",
    "wine:90",
    "glass:80",
)


def refitted(problem, result):
    """Return the log densities of all rows, each by a fit without it and its basis."""
    n, options = len(problem.label), EMOptions(tol=1e-4, max_iter=3000)
    density = np.empty(n)
    for i in range(n):
        keep = np.delete(np.arange(n), i)
        part = replace(
            problem,
            Phi=problem.Phi[np.ix_(keep, keep)],
            label=problem.label[keep],
            sign=problem.sign[keep],
        )
        fit = fit_em(part, Start(result.weight[keep], result.bias), options)
        latent = problem.Phi[[i]][:, keep] @ fit.weight + fit.bias
        density[i] = problem.likelihood.log_density(latent, problem.label[[i]])[0]
    return density


def timed(function):
    """Return a call's value and its processor seconds."""
    began = time.process_time()
    value = function()
    return value, time.process_time() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*", default=SETS)
    warnings.simplefilter("ignore")
    print("set, width, scale, weight: refits | quadratic, whole | s of the fit, quadratic, whole")
    worst = 0.0
    for each in parser.parse_args().sets:
        name, rows = each.split(":")
        data = load(name, random_state=0)
        y = np.unique(data.y, return_inverse=True)[1]
        draw = next(stratified_draws(data.X, y, int(rows), len(y) - int(rows), seed=3))
        kind = PCVMClassifier if y.max() == 1 else MPCVMClassifier
        model = kind(random_state=0).fit(draw[0], draw[1])
        for share, problem, weight, bias, own, _ in fitted_problems(model, draw[0], draw[1])[0]:
            loose = EMOptions(tol=1e-2)
            fit, fit_seconds = timed(lambda p=problem, o=loose: fit_em(p, None, o))
            mode = (problem, weight, bias, own)
            quadratic, seconds = timed(lambda m=mode: leave_one_out(*m))
            whole, whole_seconds = timed(lambda m=mode: _scored([FittedMode(1.0, *m)]))
            exact = -refitted(problem, replace(fit, weight=weight, bias=bias)).mean()
            off = -whole.elpd / len(draw[0]) - exact
            worst = max(worst, abs(off))
            print(
                f"{name:20s} {np.mean(problem.width):6.2f} "
                f"{np.sqrt(problem.hyperprior.d / problem.hyperprior.c):5.2f}"
                f" {share:.2f}: {exact:.4f} | {quadratic.log_loss - exact:+.4f} {off:+.4f} | "
                f"{fit_seconds:.3f} {seconds:.3f} {whole_seconds:.3f}",
                flush=True,
            )
    print(f"worst: {worst:.4f} nats")


if __name__ == "__main__":
    main()
