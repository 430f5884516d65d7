from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from pcvm_pymc.core.pieces.centres import class_signs
from pcvm_pymc.core.pieces.kernels import median_distance, rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import Logit, MultinomialProbit, NoisyProbit, Probit
from pcvm_pymc.core.projection import Submodel, Target, project_path
from pcvm_pymc.core.projection.submodel import addition_gains, fit_submodel, row_terms, scan

SEEDS = st.integers(0, 2**32 - 1)


def target(seed=0, *, n=30, n_basis=10, n_classes=3, **kwargs):
    """Return a projection of random smooth class probabilities onto RBFs at the first rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    likelihood = MultinomialProbit(n_classes)
    latent = 2 * np.sin(X @ rng.normal(size=(2, n_classes))) + rng.normal(size=n_classes)
    probability = likelihood.probability(latent)
    probability /= probability.sum(axis=1, keepdims=True)
    own = np.array([rng.choice(n_classes, p=each) for each in probability])
    Phi = rbf(squared_distances(X, X[:n_basis]), median_distance(X))
    signs = class_signs(own[:n_basis], n_classes)
    return Target(Phi, signs, probability, likelihood=likelihood, **kwargs)


def slopes(problem, model):
    """Return the derivative of the objective in every weight and bias."""
    residual = problem.mass[:, None] * problem.terms(model.latent).score
    weight = np.zeros(problem.sign.shape)
    weight[model.columns] = model.weight
    return problem.penalty[:, None] * weight - problem.Phi.T @ residual, -residual.sum(axis=0)


def assert_kkt(problem, model, columns, tol=1e-6):
    """Check that no weight that may move would lower the objective, nor any bias."""
    in_weight, in_bias = slopes(problem, model)
    assert_allclose(in_bias, 0, atol=tol)
    weight = np.zeros(problem.sign.shape)
    weight[model.columns] = model.weight
    assert (weight * problem.sign >= 0).all()
    free = problem.free.copy()
    free[np.setdiff1d(np.arange(len(free)), columns)] = False
    assert_allclose(in_weight[free & (weight != 0)], 0, atol=tol)
    assert (in_weight[free & (weight == 0)] <= tol).all()  # it may only fall


@given(SEEDS, st.integers(2, 5))
@settings(max_examples=15)
def test_derivatives_of_the_divergence(seed, n_classes):
    rng = np.random.default_rng(seed)
    n = 4
    latent = 2 * rng.normal(size=(n, n_classes))
    probability = rng.dirichlet(np.ones(n_classes), n)
    probability[0] = np.eye(n_classes)[0]  # a label that is certain
    signs, piece = class_signs(np.zeros(1, int), n_classes), MultinomialProbit(n_classes)
    share = rng.uniform(0.1, 1, n)
    problem = Target(np.ones((n, 1)), signs, probability, share, likelihood=piece)
    terms = problem.terms(latent)
    h = 1e-4
    for i in range(n):
        for c in range(n_classes):
            step = np.zeros(latent.shape)
            step[i, c] = h
            above, below = (problem.divergence(latent + k * step) for k in (1, -1))
            slope = problem.mass[i] * terms.score[i, c]
            assert -(above - below) / (2 * h) == pytest.approx(slope, abs=1e-6)
            up, down = (problem.terms(latent + k * step).score[i] for k in (1, -1))
            assert_allclose(-(up - down) / (2 * h), terms.hessian[i, c], atol=1e-5)


@given(SEEDS, st.sampled_from([Probit(), Logit(), NoisyProbit(0.1)]))
@settings(max_examples=15)
def test_derivatives_of_the_divergence_of_labels(seed, likelihood):
    rng = np.random.default_rng(seed)
    latent, p = 2 * rng.normal(size=5), rng.uniform(size=5)
    concave = not isinstance(likelihood, NoisyProbit)
    if (
        not concave and seed % 2
    ):  # where the reference is matched, the curvature is the divergence's own
        p, concave = likelihood.probability(latent), True
    terms = row_terms(likelihood, latent, p)
    above, below = (row_terms(likelihood, latent + h, p) for h in (1e-5, -1e-5))
    slope = (above.log_density - below.log_density) / 2e-5
    assert_allclose(terms.score[:, 0], slope, atol=1e-8)
    bend = -(above.score - below.score)[:, 0] / 2e-5
    if concave:
        assert_allclose(terms.hessian[:, 0, 0], bend, atol=1e-7)
    assert (terms.hessian[:, 0, 0] >= 0).all()


@given(SEEDS)
@settings(max_examples=20)
def test_a_refit_satisfies_the_kkt_conditions(seed):
    problem = target(seed)
    columns = np.random.default_rng(seed).choice(10, 4, replace=False)
    model = fit_submodel(problem, columns)
    assert_kkt(problem, model, columns)
    null = fit_submodel(problem, [])
    mean = problem.likelihood.probability(np.reshape(null.bias, (1, -1)))[0]
    assert_allclose(mean, problem.probability.mean(axis=0), atol=1e-7)
    assert model.objective <= null.objective * (1 + 1e-12)  # where nothing is gained: rounding


@given(SEEDS)
@settings(max_examples=10)
def test_a_reference_in_the_span_is_recovered(seed):
    problem = target(seed, n_basis=8, ridge=1e-12)
    weight = problem.sign * np.random.default_rng(seed).uniform(0, 2, problem.sign.shape)
    probability = problem.likelihood.probability(problem.Phi @ weight + [0.3, -0.2, 0.0])
    problem = replace(problem, probability=probability / probability.sum(axis=1, keepdims=True))
    path = project_path(problem, [1, 4, 8])
    assert path.kl[-1] < 1e-8
    fitted = problem.likelihood.probability(path.latent(problem.Phi)[-1])
    assert_allclose(fitted, problem.probability, atol=1e-3)


@given(SEEDS)
@settings(max_examples=10)
def test_two_classes_with_a_score_each_are_the_probit(seed):
    """The difference of two scores with unit noise each is the probit's latent function times sqrt 2."""
    several = target(seed, n_classes=2)
    one = Target(several.Phi, several.sign[:, 1], several.probability[:, 1], ridge=2e-8)
    for columns in ([], [1, 4], [0, 2, 3, 5, 8]):
        models = [fit_submodel(each, columns) for each in (several, one)]
        assert_array_equal(models[0].columns, models[1].columns)
        assert models[0].objective == pytest.approx(models[1].objective, abs=1e-8)
        difference = (models[0].latent[:, 1] - models[0].latent[:, 0]) / np.sqrt(2.0)
        assert_allclose(difference, models[1].latent, atol=1e-3)
        gains = [
            addition_gains(each, scan(each, model))
            for each, model in zip((several, one), models, strict=True)
        ]
        assert_allclose(gains[0], gains[1], rtol=1e-2, atol=1e-6)


@given(SEEDS)
@settings(max_examples=10)
def test_free_weights_of_a_path_are_balanced_and_nothing_bars_them(seed):
    problem = replace(target(seed), sign=None)
    path = project_path(problem, range(11))
    assert (np.diff(path.objective) <= 0).all()
    for i, (columns, weight) in enumerate(zip(path.columns, path.weights, strict=True)):
        assert_allclose(weight.sum(axis=1), 0, atol=1e-9 * (1 + np.abs(weight).max(initial=0)))
        model = fit_submodel(problem, columns)
        in_weight, in_bias = free_slopes(problem, model)
        assert_allclose(in_weight[columns], 0, atol=1e-6)
        assert_allclose(in_bias, 0, atol=1e-6)
        assert model.objective == pytest.approx(path.objective[i], abs=1e-9)


def free_slopes(problem, model):
    """Return the derivative of the objective in what moves: the first class is held at zero."""
    residual = problem.mass[:, None] * problem.terms(model.latent).score
    weight = np.zeros((problem.Phi.shape[1], problem.n_scores))
    weight[model.columns] = model.weight
    return (problem.penalty[:, None] * weight - problem.Phi.T @ residual)[:, 1:], -residual.sum(
        axis=0
    )


@given(SEEDS)
@settings(max_examples=10)
def test_divergence_falls_along_the_path(seed):
    problem = target(seed)
    path = project_path(problem, range(11))
    assert (np.diff(path.objective) <= 0).all()
    assert (np.diff(path.kl) <= 1e-8).all()
    for i, (columns, weight) in enumerate(zip(path.columns, path.weights, strict=True)):
        assert len(columns) <= path.sizes[i]
        assert (weight * problem.sign[columns] >= 0).all()
        assert weight.any(axis=1).all()
        dense = path.dense_weight(i, 10)
        assert_allclose(path.latent(problem.Phi)[i], problem.Phi @ dense + path.bias[i], atol=1e-10)
        assert problem.divergence(path.latent(problem.Phi)[i]) == pytest.approx(
            path.kl[i], abs=1e-7
        )


@given(SEEDS)
@settings(max_examples=10)
def test_the_order_of_the_classes_does_not_matter(seed):
    problem = target(seed, n_classes=4)
    order = np.random.default_rng(seed).permutation(4)
    other = replace(problem, sign=problem.sign[:, order], probability=problem.probability[:, order])
    one, two = (project_path(each, range(6)) for each in (problem, other))
    assert_allclose(one.kl, two.kl, atol=1e-7)
    for i in range(6):
        assert_array_equal(one.columns[i], two.columns[i])
        assert_allclose(one.weights[i][:, order], two.weights[i], atol=2e-2)
        assert_allclose(one.bias[i][order], two.bias[i], atol=2e-2)


def test_classes_that_are_never_taken_for_each_other():
    """Two groups of classes far apart: their biases' difference has no curvature at all."""
    rng = np.random.default_rng(0)
    own = np.repeat(np.arange(4), 8)
    probability = np.zeros((32, 4))
    share = rng.uniform(0.1, 0.9, 32)
    probability[np.arange(32), own] = share
    probability[np.arange(32), own ^ 1] = 1 - share
    X = rng.normal(size=(32, 2)) + 30.0 * (own >= 2)[:, None]
    Phi = rbf(squared_distances(X, X), 20.0)
    problem = Target(Phi, class_signs(own, 4), probability, likelihood=MultinomialProbit(4))
    path = project_path(problem, range(13))
    assert (np.diff(path.objective) <= 0).all()
    assert path.kl[2] < 0.2
    assert path.kl[0] > 0.5


def test_the_path_ends_with_the_first_submodel_that_is_enough():
    problem = target(3)
    whole = project_path(problem, [0, 1, 2, 3, 5, 8])
    goal = whole.kl[3]
    asked = []

    def enough(model: Submodel) -> bool:
        asked.append(model.n_vectors)
        return problem.divergence(model.latent) <= goal * (1 + 1e-9)

    path = project_path(problem, [0, 1, 2, 3, 5, 8], until=enough)
    assert path.sizes.tolist() == [0, 1, 2, 3] == asked
    assert_array_equal(path.kl, whole.kl[:4])


def test_a_reference_without_a_class_is_refused():
    with pytest.raises(ValueError, match="of class 2 is 0 in every row"):
        replace(target(), probability=np.tile([0.5, 0.5, 0.0], (30, 1)))


@given(SEEDS, st.sampled_from([Logit(), NoisyProbit(0.05)]))
@settings(max_examples=10)
def test_labels_of_other_likelihoods(seed, likelihood):
    """A reference of the same kind in the span is recovered, as under the probit."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(30, 2))
    sign = np.where(rng.uniform(size=6) < 0.5, 1.0, -1.0)
    Phi = rbf(squared_distances(X, X[:6]), median_distance(X))
    probability = likelihood.probability(Phi @ (sign * rng.uniform(0.5, 2, 6)) - 0.1)
    problem = Target(Phi, sign, probability, likelihood=likelihood, ridge=1e-12)
    path = project_path(problem, [0, 2, 6])
    assert path.kl[-1] < 1e-8
    fitted = likelihood.probability(path.latent(Phi)[-1])
    assert_allclose(fitted, probability, atol=1e-3)
    assert likelihood.probability(path.bias[:1])[0] == pytest.approx(probability.mean(), abs=1e-6)
