"""One width for each feature: the vector theta of chen2009, in core, models, results and estimators."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from problems import SHALLOW, assert_monotone, blobs, map_result, point_of, refused
from sklearn.base import clone

import pcvm_pymc as pcvm
from pcvm_pymc.core.em import EMOptions, FeatureWidthMoves, Start, WidthMoves, fit_em
from pcvm_pymc.core.pieces.kernels import RBF, Laplacian, as_kernel, distances
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.model.read import read

X, LABEL = blobs(50, 3, seed=2, gap=3.0)
WIDTHS = np.array([1.0, 3.0, 2.0])


KERNELS = pytest.mark.parametrize("kernel", [RBF, Laplacian])


def moves_of(X, bounds=(0.05, 500.0), order=2):
    apart = np.abs(X.T[:, :, None] - X.T[:, None, :])
    return FeatureWidthMoves(apart**order, bounds, order=order)


@KERNELS
def test_equal_widths_are_one_width(kernel):
    one, three = kernel(1.7)(X, X[:9]), kernel(np.full(3, 1.7))(X, X[:9])
    np.testing.assert_allclose(three, one, rtol=1e-12)
    found = as_kernel(kernel.name, WIDTHS)(X, X[:9])
    wanted = moves_of(X, order=kernel.order).basis(WIDTHS)
    np.testing.assert_allclose(found, wanted[:, :9], rtol=1e-12)
    refused("width has 2 values; needed one or 3, the features", RBF(np.ones(2)), X, X)


@KERNELS
def test_slopes_in_log_widths_by_finite_differences(kernel):
    moves, weight = moves_of(X, order=kernel.order), np.random.default_rng(0).normal(size=50)
    found = moves.latent_slope(moves.basis(WIDTHS), WIDTHS, weight)
    h = 1e-6
    for k in range(3):
        step = np.exp(h * (np.arange(3) == k))
        wanted = (moves.basis(WIDTHS * step) - moves.basis(WIDTHS / step)) @ weight / (2 * h)
        np.testing.assert_allclose(found[:, k], wanted, atol=1e-7)


@KERNELS
def test_em_widens_features_that_do_not_matter_and_never_lowers_the_log_posterior(kernel):
    X = np.random.default_rng(3).normal(size=(120, 3))
    label = np.where(np.abs(X[:, 0]) < 0.7, 1.0, -1.0)  # the first feature alone tells the classes
    moves, width = moves_of(X, order=kernel.order), np.full(3, 2.0)
    Phi, prior = moves.basis(width), pcvm.Hyperprior.plug_in()
    problem = Problem(Phi, label, label.copy(), prior, width=width, moves=moves)
    result = fit_em(problem, None, EMOptions(max_iter=3000, tol=1e-4))
    assert_monotone(result.trace.log_posterior)
    assert result.trace.width.shape == (result.n_iter + 1, 3)
    assert result.width[1:].min() > 2 * result.width[0]
    latent = kernel(result.width)(X, X) @ result.weight + result.bias
    np.testing.assert_allclose(result.latent, latent, atol=1e-9)


@KERNELS
def test_one_feature_moves_as_a_scalar_width_does(kernel):
    x = X[:, :1]
    apart = distances(x, x, kernel.order)
    moves = WidthMoves(apart, (0.05, 50.0), order=kernel.order)
    given_ = moves.basis(1.0), LABEL, LABEL.copy(), pcvm.Hyperprior.plug_in()
    scalar = Problem(*given_, moves=moves)
    vector = replace(scalar, width=np.ones(1), moves=moves_of(x, (0.05, 50.0), kernel.order))
    start = Start.default(scalar)
    one, other = (fit_em(each, start, EMOptions(max_iter=40)) for each in (scalar, vector))
    assert other.width[0] == pytest.approx(one.width, rel=1e-6)
    assert other.log_posterior == pytest.approx(one.log_posterior, abs=1e-6)
    known = replace(moves, prior=lambda width: -5e4 * float(np.log(width / 3.0)) ** 2)
    pulled = fit_em(replace(scalar, moves=known), start, EMOptions(max_iter=4))
    assert pulled.width == pytest.approx(3.0, rel=0.001)  # two of the longest steps, then Newton's
    kinked = replace(moves, prior=lambda width: -1e4 * abs(float(np.log(width / 3.0))))
    near = replace(scalar, Phi=moves.basis(2.8), width=2.8, moves=kinked)
    halved = fit_em(near, start, EMOptions(max_iter=1)).width
    assert 2.8 < halved < 3.2  # the longest step was too long
    of_two = replace(scalar, label=(LABEL > 0) * 1, sign=None, likelihood=MultinomialProbit(2))
    refused("EM moves the width of one score only", fit_em, of_two)


def test_a_model_of_known_widths_remembers_them():
    model = pcvm.pcvm_model(X, LABEL, width=[1.0, 3.0, 2.0])
    result = pcvm.find_map_em(model, hyperparameters="given", progressbar=False)
    found = pcvm.predict(result, X[:4])["predictions"]["latent"].values[0, 0]
    np.testing.assert_allclose(found, result["posterior"]["latent"].values[0, 0, :4], atol=1e-10)
    estimator = pcvm.PCVMClassifier(
        width=[1.0, 3.0, 2.0], hyperprior=read(model).problem_for("em").given().hyperprior
    )
    again = clone(estimator).fit(X, LABEL)
    np.testing.assert_allclose(again.decision_function(X[:4]), found, atol=1e-5)
    np.testing.assert_array_equal(again.width_, WIDTHS)


def test_a_prior_on_the_widths_under_em_and_nuts():
    model = pcvm.pcvm_model(X[:24], LABEL[:24], width=pm.LogNormal.dist(0.0, 1.0, shape=3))
    problem = read(model).problem_for("em")
    assert problem.width.shape == (3,)
    assert map_result(model)["posterior"]["width"].dims[2:] == ("feature",)
    alone = fit_em(problem.given())
    logp = model.compile_logp(jacobian=False, mode="FAST_COMPILE")
    assert float(logp(point_of(model, alone))) == pytest.approx(alone.log_posterior, abs=1e-7)
    few = {"draws": 5, "tune": 5, "chains": 1, "random_seed": 1} | SHALLOW
    posterior = pcvm.sample(model, method="nuts", **few, progressbar=False, quiet=True)
    assert posterior["posterior"]["width"].shape == (1, 5, 3)
    found = pcvm.predict(posterior, X[:3] + 0.1)["predictions"]["latent"].values[0, 4]
    last = posterior["posterior"].to_dataset().isel(chain=0, draw=4)
    basis = RBF(last["width"].values)(X[:3] + 0.1, X[:24])
    wanted = basis @ last["weight"].values + last["bias"].values
    np.testing.assert_allclose(found, wanted, atol=1e-9)


@pytest.mark.parametrize("width", [[1.0, -1.0, 1.0], [], [[1.0]], [1.0, np.nan, 1.0], ["a", 1, 2]])
def test_widths_that_cannot_be_used_are_named(width):
    words = r"width=.* (must be positive and finite|is not a number)"
    refused(words, pcvm.pcvm_model, X, LABEL, width=width)
