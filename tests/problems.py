"""Random problems, shared by the tests."""

import errno
import os
from dataclasses import replace

import mpmath
import numpy as np
import pandas as pd
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st
from scipy.stats import gamma, norm

from pcvm_pymc.core.em import Start, WidthMoves
from pcvm_pymc.core.pieces.kernels import RBF, median_distance, squared_distances, width_bounds
from pcvm_pymc.core.pieces.multinomial import class_terms
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import score
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.estimators.measures import classification_measures

PROPER = {
    "plug-in": Hyperprior.plug_in(),
    "heavy": Hyperprior(1.0, 0.01, 0.5, 1.0),
    "half-Cauchy": Hyperprior(0.5, 0.005, 0.5, 1.0),
}
#: trees of one step, also in the first 200 transitions, where PyMC has another limit
SHALLOW = {"max_treedepth": 1, "early_max_treedepth": 1}
SEEDS, BIASES = st.integers(0, 2**32 - 1), st.sampled_from(["prior", "free", "none"])
IMPROPER = {"jeffreys": Hyperprior.jeffreys(), "chen2009": Hyperprior.chen2009()}


def refused(words, call, *args, error=ValueError, **options):
    """Assert that a call is refused by an error, by default a ValueError, whose message has these words."""
    with pytest.raises(error, match=words):
        call(*args, **options)


def printed(capsys, status):
    """Return what the command line printed, where its exit status is 0."""
    assert status == 0
    return capsys.readouterr().out


def complaint(capsys, status):
    """Return what the command line wrote to stderr, where its exit status is 2."""
    assert status == 2
    return capsys.readouterr().err


def interrupted(*_, **__):
    """Stand in for what the user interrupts."""
    raise KeyboardInterrupt


def full_disk(*_, **__):
    """Stand in for a call that finds the disk full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fixed_rng(seed):
    """Return the generator of a seed that ``--seed-shift`` leaves as it is."""
    return np.random.Generator(np.random.PCG64(seed))


def blobs(n, n_features=2, seed=0, gap=1.5, fixed=False):
    """Return two overlapping Gaussian classes: X, labels -1. / +1., both present.

    Fixed ones are the same under every ``--seed-shift``: for what is true of one problem, not of all.
    """
    rng = fixed_rng(seed) if fixed else np.random.default_rng(seed)
    label = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    X = rng.normal(size=(n, n_features))
    X[:, 0] += 0.5 * gap * label
    return X, label


def three_blobs(n=24, seed=5):
    """Return three overlapping classes: X, their numbers, and their names a, b and c."""
    label = np.arange(n) % 3
    centres = 2.0 * np.array([[0, 0], [1, 0], [0, 1]])
    X = np.random.default_rng(seed).normal(size=(n, 2)) + centres[label]
    return X, label, np.array(["a", "b", "c"])[label]


def classes(n, n_classes, seed=0, gap=1.5, fixed=False):
    """Return Gaussian classes around points of a circle: X, labels 0, 1, ..., all present."""
    rng = fixed_rng(seed) if fixed else np.random.default_rng(seed)
    label = np.arange(n) % n_classes
    angle = 2 * np.pi * label / n_classes
    return gap * np.column_stack([np.cos(angle), np.sin(angle)]) + rng.normal(size=(n, 2)), label


def sinc(n=100, noise=0.1, seed=0, end=10.0):
    """Return equally spaced rows and their noisy sinc."""
    x = np.linspace(-end, end, n)[:, None]
    return x, np.sinc(x[:, 0] / np.pi) + noise * np.random.default_rng(seed).normal(size=n)


def linear(X, Z, width):
    """Return a linear kernel, which has both signs."""
    return X @ Z.T / width**2


def laplacian(X, Z, width):
    """Return an exponential kernel of city block distances."""
    return np.exp(-np.abs(X[:, None] - Z[None]).sum(axis=-1) / width)


def at_scale(scale):
    """Return a hyperprior of weights of this size."""
    return Hyperprior(5.0, 5.0 * scale**2, 1.0, 1.0)


def animals(folder, n):
    """Write a table of cats and dogs; return its path."""
    X, label = blobs(n, seed=90)
    frame = pd.DataFrame(X, columns=["height", "weight"])
    frame.assign(sort=np.where(label > 0, "cat", "dog")).to_csv(folder / "animals.csv", index=False)
    return folder / "animals.csv"


def problem(X, label, hyperprior, width=None, *, free_width=False):
    """Return the PCVM's problem with a basis at each row."""
    squared = squared_distances(X, X)
    width = median_distance(X) if width is None else width
    out = Problem(RBF(width)(X, X), label, label.copy(), hyperprior, width=width)
    if free_width:
        out = replace(out, moves=WidthMoves(squared, width_bounds(X)))
    return out


def papers_step():
    """Return a problem, a start, and the responses at it (Chen et al. 2009, eqs. 11-12): no sign binds."""
    X, label = blobs(6, seed=4, gap=8.0)
    prob, start = problem(X, label, Hyperprior(1.0, 0.5, 1.0, 0.5), 1.0), Start(0.3 * label, 0.1)
    latent = prob.Phi @ start.weight + start.bias
    return prob, start, latent + score(latent, label)


def predicted(model, rows):
    """Return a fit's probabilities, or of a regression mean and standard deviation."""
    if hasattr(model, "predict_proba"):
        return model.predict_proba(rows)
    return np.column_stack(model.predict(rows, return_std=True))


def reported(name, out, **options):
    """Run an experiment in a folder without a progress bar; return its report."""
    from pcvm_pymc.experiments.reporting import report_of  # which imports much
    from pcvm_pymc.experiments.running import reproduce

    reproduce(name, out=out, progressbar=False, **options)
    return report_of(out)


def map_result(model):
    """Return the result of EM on a PyMC model."""
    from pcvm_pymc import find_map_em  # which imports PyMC

    return find_map_em(model, progressbar=False)


def basis_of(model):
    """Return the basis functions of a PyMC model at its data."""
    from pcvm_pymc.model.graphs import numbers
    from pcvm_pymc.model.parts import find_parts

    return numbers(find_parts(model).Phi)


def log_normal_density(width, spread=0.5):
    """Return the log density of a width whose logarithm is normal; scipy's takes forty times as long."""
    z = np.log(width) / spread
    return -0.5 * z * z - np.log(width * spread * np.sqrt(2 * np.pi))


def value_point(model, values):
    """Return values of a PyMC model's variables as its point: value variables, transformed."""
    point = {}
    for name, value in values.items():
        variable = model[name]
        transform, inputs = model.rvs_to_transforms[variable], variable.owner.inputs
        point[model.rvs_to_values[variable].name] = (
            value if transform is None else transform.forward(pt.as_tensor(value), *inputs).eval()
        )
    return point


def point_of(model, state):
    """Return an EM state as a point of a model, an unknown d at unit scale."""
    from pcvm_pymc.model.read import read  # PyMC is slow to import
    from pcvm_pymc.model.steps import PointMap, _em_point

    return _em_point(PointMap(read(model)), state, state.width)


def assert_probabilities(probability, log_probability=None, atol=1e-14):
    """Probabilities of classes, along the last axis, are none above one, of sum one, and their logarithms."""
    n_classes = probability.shape[-1]
    assert ((probability >= 0.0) & (probability <= 1.0)).all()
    assert abs(probability.sum(axis=-1) - 1.0).max() <= 1e-15 * n_classes
    if log_probability is not None:
        assert (log_probability <= 0.0).all()
        np.testing.assert_allclose(np.exp(log_probability), probability, rtol=0, atol=atol)


@st.composite
def awkward_data(draw):
    """Return inputs with duplicated rows, constant features, a lonely point, scales 1e-6 to 1e6."""
    n = draw(st.integers(2, 60))
    n_features = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = rng.normal(size=(n, n_features))
    if draw(st.booleans()):
        X[rng.integers(n)] = X[rng.integers(n)]
    if draw(st.booleans()):
        X[:, rng.integers(n_features)] = 3.0
    if draw(st.booleans()):
        X[: n // 2 + 1] = X[0]
    label = np.where(rng.uniform(size=n) < 0.5, 1.0, -1.0)
    if draw(st.booleans()):
        label[:] = -1.0  # one lonely point of the other class
    label[0], label[1] = 1.0, -1.0
    return X * 10.0 ** draw(st.integers(-6, 6)), label


def banana(n, seed=0, fixed=False):
    """Return two classes that curve around each other: X, labels -1. / +1."""
    rng = fixed_rng(seed) if fixed else np.random.default_rng(seed)
    label = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    turn = rng.uniform(0.0, np.pi, size=n)
    X = np.column_stack([label * np.cos(turn), label * (np.sin(turn) - 0.4)])
    return X + 0.35 * rng.normal(size=X.shape), label


def printed_measures(model, X, y):
    """Return error, AUC and 1-RMSE in percent, which chen2009 prints."""
    found = classification_measures(y, model.predict(X), model.classes_, model.predict_proba(X))
    return [100 * found[name] for name in ("error", "AUC", "1-RMSE")]


def log_joint(problem, weight, bias, precision, bias_precision):
    """Return log p(labels, weights, bias, precisions) of a PCVM (chen2009 eq. 4 and appendix A)."""
    prior = problem.hyperprior
    value = problem.likelihood.log_likelihood(problem.Phi @ weight + bias, problem.label)
    value += np.sum(np.log(2) + norm.logpdf(weight, 0, precision**-0.5))
    value += np.sum(gamma.logpdf(precision, prior.c, scale=1 / prior.d))
    value += norm.logpdf(bias, 0, bias_precision**-0.5)
    return float(value + gamma.logpdf(bias_precision, prior.e, scale=1 / prior.f))


def response_mean(latent, label):
    """Return the means of the latent responses given the classes (Lyu et al. 2020 eqs. 22-23)."""
    return latent + class_terms(latent, label).score


def mp_log_ndtr(x):
    """Return log Phi in 60 digits."""
    with mpmath.workdps(60):
        x = mpmath.mpf(x) / mpmath.sqrt(2)
        return mpmath.log(mpmath.erfc(-x) / 2) if x < 0 else mpmath.log1p(-mpmath.erfc(x) / 2)


def mp_mills(x):
    """Return its derivative, phi / Phi."""
    with mpmath.workdps(60):
        x = mpmath.mpf(x)
        density = mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi)
        return density / (mpmath.erfc(-x / mpmath.sqrt(2)) / 2)


def without(whole, row, own):
    """Return the problem without a row and its bases, and which bases are left."""
    rows, columns = np.delete(np.arange(len(whole.label)), row), np.flatnonzero(own != row)
    sign = None if whole.sign is None else whole.sign[columns]
    Phi = whole.Phi[np.ix_(rows, columns)]
    return replace(whole, Phi=Phi, label=whole.label[rows], sign=sign), columns


def slopes(problem, result):
    """Return the slopes of the log posterior in weights and biases: shapes (n_basis, C) and (C,).

    Weights and biases at zero have no slope of their prior: it is zero, or keeps them there.
    """
    weight, bias = result.weight.reshape(-1, problem.n_scores), np.atleast_1d(result.bias)
    score = problem.likelihood.score(result.latent, problem.label).reshape(-1, problem.n_scores)
    pull, of_bias = np.zeros(weight.shape), np.zeros(bias.shape)
    prior, active, is_there = problem.hyperprior, weight != 0, bias != 0
    pull[active] = prior.weight_precision(weight)[active] * weight[active]
    of_bias[is_there] = prior.bias_precision(bias[is_there]) * bias[is_there]
    return problem.Phi.T @ score - pull, score.sum(axis=0) - of_bias


def assert_monotone(log_posterior):
    """Assert that a trace never falls."""
    assert (np.diff(log_posterior) >= -1e-9 * (1 + np.abs(log_posterior[1:]))).all()


def with_groups(X, y, place):
    """Return a model of a latent function and the levels of three groups."""
    import pymc as pm  # slow to import

    import pcvm_pymc as pcvm

    with pm.Model(coords={"group": range(3)}) as model:
        f = pcvm.pcvm_latent(X, y, width=1.2, hyperprior="default", bias=False)
        level = pm.Normal("level", dims="group")
        place = pm.Data("place", place, dims="obs")
        pm.Bernoulli("sick", logit_p=f + level[place], observed=pm.Data("seen", y), dims="obs")
    return model
