"""Several classes: NUTS beside a trial of Gibbs, in effective draws of the scores per CPU second.

OMP_NUM_THREADS=1 uv run python benchmarks/class_samplers.py [--sizes N ...] [--classes C ...] [--draws S]

The trial draws the responses (Albert & Chib 1993), then each class as `core.gibbs` draws a binary machine,
its own compiled moves included; last a common factor of all sizes and biases and a common shift of the
biases, the responses integrated out. Four chains each; compilation is not counted for either.
"""

import argparse
import math
import time
import warnings

import arviz as az
import numpy as np
import xarray as xr
from numba import njit

from pcvm_pymc import Hyperprior, mpcvm_model, sample
from pcvm_pymc.core import gibbs
from pcvm_pymc.core.bases import design_matrix
from pcvm_pymc.core.family import class_signs
from pcvm_pymc.core.multinomial import multinomial_terms, rule_of
from pcvm_pymc.model.steps import hyperprior_of

WIDTH = 1.5
SCALE_EVERY = 5  # sweeps: the common factor takes most of a sweep's time, for its integrals
_WIDTH_OF_SLICE = 0.3


def clouds(n, n_classes):
    """Return overlapping clouds on a circle, the classes in turn."""
    rng = np.random.default_rng(0)
    label = np.arange(n) % n_classes
    angle = 2 * np.pi * label / n_classes
    return rng.normal(size=(n, 2)) + 1.5 * np.column_stack([np.cos(angle), np.sin(angle)]), label


@njit
def draw_responses(latent, label, response, rng):
    """Draw each response given the others of its row: the own class' stays the largest."""
    n_classes = latent.shape[1]
    for i in range(len(label)):
        own, largest = label[i], -np.inf
        for k in range(n_classes):
            if k != own:
                least = latent[i, k] - response[i, own]
                response[i, k] = latent[i, k] - gibbs._upper_tail(least, rng)
                largest = max(largest, response[i, k])
        least = largest - latent[i, own]
        response[i, own] = latent[i, own] + gibbs._upper_tail(least, rng)


@njit
def scale_density(t, size, latent, bias, label, par, spacing, drop):
    """Return the log density along (sizes, biases) -> e^t (sizes, biases), responses integrated out."""
    factor, rate = math.exp(t), math.exp(math.log(par[5]) - 2.0 * t)
    total = 0.0
    for each in bias:
        total += t - (par[1] + 0.5) * math.log1p(each * each * factor * factor / (2.0 * par[2]))
    for each in size.ravel():
        total += t + gibbs._log_size_density(each, par[0], rate)
    return total + multinomial_terms(factor * latent, label, spacing, drop)[0].sum()


@njit
def slice_scale(size, latent, bias, label, par, spacing, drop, rng):
    """Draw the logarithm of a common factor."""
    level = scale_density(0.0, size, latent, bias, label, par, spacing, drop)
    level -= rng.standard_exponential()
    low = -_WIDTH_OF_SLICE * rng.random()
    high = low + _WIDTH_OF_SLICE
    while scale_density(low, size, latent, bias, label, par, spacing, drop) > level:
        low -= _WIDTH_OF_SLICE
    while scale_density(high, size, latent, bias, label, par, spacing, drop) > level:
        high += _WIDTH_OF_SLICE
    while True:
        t = low + (high - low) * rng.random()
        if scale_density(t, size, latent, bias, label, par, spacing, drop) > level:
            return t
        if t < 0.0:
            low = t
        else:
            high = t


@njit
def shift(bias, e, f, rng):
    """Move all biases together, which the likelihood does not see: a Metropolis step under the prior."""
    t, ratio = rng.standard_normal(), 0.0
    for each in bias:
        ratio += math.log1p(each * each / (2.0 * f)) - math.log1p((each + t) ** 2 / (2.0 * f))
    if -rng.standard_exponential() < (e + 0.5) * ratio:
        bias += t


@njit
def run(left, right, sign, label, neighbours, par, size, bias, rng, draws, tune, rule):
    """Return the scores of each sweep after `tune` of them, shape (draws, n_obs, n_classes)."""
    n_obs = len(left)
    n_classes = size.shape[1]
    ones = left.T @ np.ones(n_obs)
    border = np.concatenate((right @ ones, ones))
    norm = (right * right).sum(axis=1)
    latent = np.empty((n_obs, n_classes))
    response = np.zeros((n_obs, n_classes))
    for i in range(n_obs):
        response[i, label[i]] = 1.0
    kept = np.empty((draws, n_obs, n_classes))
    c, e, f, rate = par[0], par[1], par[2], par[5]
    for sweep in range(-tune, draws):
        for k in range(n_classes):
            latent[:, k] = left @ ((sign[:, k] * size[:, k]) @ right) + bias[k]
        for _ in range(2):
            draw_responses(latent, label, response, rng)
        for k in range(n_classes):
            own_sign, own = sign[:, k].copy(), size[:, k].copy()
            precision = rng.gamma(e + 0.5, 1.0) / (f + 0.5 * bias[k] * bias[k])
            spread = n_obs + precision
            inside = (own_sign * own) @ right
            target = response[:, k].copy()
            total = target.sum()
            slope = target @ left - inside - ones * ((total - ones @ inside) / spread)
            at = (right, own_sign, border, norm, spread, own, slope, c, rate, rng)
            gibbs._update_sizes(*at)
            moved = (right, own_sign, border, spread, own, slope, c, rate, rng)
            gibbs._transfer_between_neighbours(neighbours, *moved)
            gibbs._transfer_between_largest(*moved)
            alone = left @ ((own_sign * own) @ right)
            bias[k] = (total - alone.sum()) / spread + rng.standard_normal() / math.sqrt(spread)
            size[:, k], latent[:, k] = own, alone + bias[k]
        if sweep >= 0:
            kept[sweep] = latent
        if sweep % SCALE_EVERY:
            continue
        t = slice_scale(size, latent, bias, label, par, rule[0], rule[1], rng)
        size *= math.exp(t)
        bias *= math.exp(t)
        shift(bias, e, f, rng)
    return kept


def by_gibbs(X, label, hyperprior, draws):
    """Return the scores of four chains, and CPU seconds."""
    n_classes = label.max() + 1
    Phi = design_matrix("rbf", X, X, WIDTH)
    problem = gibbs.GibbsProblem.of(Phi, np.ones(len(X)), np.ones(len(X)), hyperprior)
    sign = class_signs(label, n_classes)
    par = np.append(problem.parameters, hyperprior.d)

    def chain(rng, draws, tune):
        size = np.sqrt(hyperprior.d / hyperprior.c) * rng.uniform(0.05, 2.0, sign.shape)
        return run(
            problem.left,
            problem.right,
            sign,
            label,
            problem.neighbours,
            par,
            size,
            np.zeros(n_classes),
            rng,
            draws,
            tune,
            rule_of(1e-6),
        )

    chain(np.random.default_rng(9), 1, 1)
    began = time.process_time()
    kept = [chain(rng, draws, draws) for rng in np.random.default_rng(1).spawn(4)]
    return np.stack(kept), time.process_time() - began


def by_nuts(model):
    """Return the scores of four chains, and the sampler's seconds (tuning included)."""
    result = sample(
        model,
        method="nuts",
        nuts_sampler="pymc",
        cores=1,
        chains=4,
        random_seed=1,
        quiet=True,
        progressbar=False,
    )
    return result["posterior"]["latent"].values, float(result["posterior"].attrs["sampling_time"])


def report(name, latent, seconds):
    """Print how far the chains have come, for the scores and for what the likelihood sees of them."""
    centred = latent - latent.mean(axis=-1, keepdims=True)
    data = xr.Dataset(
        {
            "scores": (("chain", "draw", "obs", "class"), latent),
            "centred": (("chain", "draw", "obs", "class"), centred),
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ess, rhat = az.ess(data), az.rhat(data)
    least = {key: float(ess[key].min()) for key in data}
    print(
        f"  {name:6s} {seconds:7.1f} s; r-hat {float(rhat['scores'].max()):.4f}; smallest ESS of the scores "
        f"{least['scores']:6.0f} ({least['scores'] / seconds:6.1f} / s), less their mean "
        f"{least['centred']:6.0f} ({least['centred'] / seconds:6.1f} / s); mean of |scores less mean| "
        f"{np.abs(centred.mean(axis=(0, 1))).mean():.4f}",
        flush=True,
    )


def main():
    """Run the cells asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[60, 150])
    parser.add_argument("--classes", type=int, nargs="+", default=[3, 6])
    parser.add_argument("--draws", type=int, default=20_000, help="sweeps of each Gibbs chain")
    options = parser.parse_args()
    for n_classes in options.classes:
        for n in options.sizes:
            X, label = clouds(n, n_classes)
            print(f"N = {n}, C = {n_classes}", flush=True)
            model = mpcvm_model(X, label, width=WIDTH)
            hyperprior = hyperprior_of(model)
            assert isinstance(hyperprior, Hyperprior)
            report("Gibbs", *by_gibbs(X, label, hyperprior, options.draws))
            report("NUTS", *by_nuts(model))


if __name__ == "__main__":
    main()
