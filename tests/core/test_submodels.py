"""Submodels near class probabilities, of labels and of several classes: optimality, exact cases, paths."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from problems import SEEDS, blobs, fixed_rng, refused

from pcvm_pymc.core.pieces.centres import class_signs
from pcvm_pymc.core.pieces.kernels import RBF, median_distance
from pcvm_pymc.core.pieces.likelihoods import Logit, MultinomialProbit, NoisyProbit, Probit
from pcvm_pymc.core.pieces.probit import ndtr
from pcvm_pymc.core.projection import Submodel, Target, default_sizes, project_path
from pcvm_pymc.core.projection.submodel import addition_gains, fit_submodel, row_terms


def labels(n=40, n_basis=12, seed=0, **kwargs):
    """Return a projection of random smooth probabilities onto RBFs at the first rows."""
    rng = fixed_rng(seed)
    X, label = blobs(n, seed=seed, fixed=True)
    Phi = RBF(median_distance(X))(X, X[:n_basis])
    probability = ndtr(1.5 * np.sin(X[:, 0]) + X[:, 1] * rng.normal())
    return Target(Phi, label[:n_basis], probability, **kwargs)


def classes(seed=0, *, n=30, n_basis=10, n_classes=3, **kwargs):
    """Return a projection of random smooth class probabilities onto RBFs at the first rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    likelihood = MultinomialProbit(n_classes)
    latent = 2 * np.sin(X @ rng.normal(size=(2, n_classes))) + rng.normal(size=n_classes)
    probability = likelihood.probability(latent)
    probability /= probability.sum(axis=1, keepdims=True)
    own = np.array([rng.choice(n_classes, p=each) for each in probability])
    Phi = RBF(median_distance(X))(X, X[:n_basis])
    signs = class_signs(own[:n_basis], n_classes)
    return Target(Phi, signs, probability, likelihood=likelihood, **kwargs)


def terms_of(problem, latent):
    return row_terms(problem.likelihood, latent, problem.probability)


def slopes(problem, model):
    """Return the derivative of the objective in every weight, shape (n_basis, n_scores), and bias."""
    residual = problem.mass[:, None] * terms_of(problem, model.latent).score
    gradient = problem.penalty[:, None] * dense(problem, model) - problem.Phi.T @ residual
    return gradient, -residual.sum(axis=0)


def dense(problem, model):
    """Return the weights of a submodel among zeros, shape (n_basis, n_scores)."""
    weight = np.zeros((problem.Phi.shape[1], problem.n_scores))
    weight[model.columns] = np.reshape(model.weight, (-1, problem.n_scores))
    return weight


def assert_kkt(problem, model, columns, tol=1e-7):
    """Check that no weight that may move would lower the objective, nor any bias."""
    (in_weight, in_bias), weight = slopes(problem, model), dense(problem, model)
    sign = problem.sign.reshape(weight.shape)
    assert_allclose(in_bias, 0, atol=tol)
    assert (weight * sign >= 0).all()
    assert weight[model.columns].any(axis=1).all()
    free = problem.free.copy()
    free[np.setdiff1d(np.arange(len(free)), columns)] = False
    assert_allclose(in_weight[free & (weight != 0)], 0, atol=tol)
    held = free & (weight == 0)
    assert (in_weight[held] * sign[held] >= -tol).all()  # it would go the wrong way


def test_derivatives_are_finite_in_the_tails():
    latent = np.array([-1e3, -40.0, 40.0, 1e3, 0.0])
    for p in (0.0, 1e-300, 0.5, 1.0):
        _, score, curvature = row_terms(Probit(), latent, np.full(5, p))
        assert np.isfinite(score).all()
        assert ((curvature >= 0) & (curvature <= 1)).all()


@given(SEEDS)
@example(268435455)
@settings(max_examples=15)
def test_every_column_at_once_is_the_constrained_optimum(seed):
    """Reach by search what a refit on all columns gives: nothing that a search can miss is left."""
    problem = labels(seed=seed)
    everything = fit_submodel(problem, range(12))
    assert_kkt(problem, everything, np.arange(12), tol=1e-6)
    best = problem.divergence(everything.latent)
    assert project_path(problem, [12]).kl[0] == pytest.approx(best, abs=1e-5)


@pytest.mark.fixed_seeds  # a search may end in another optimum
@pytest.mark.parametrize("seed", range(6))
def test_the_path_is_near_the_best_subsets_by_enumeration(seed):
    """Greedy steps need not be the best: on these six problems they gain at least .69 of what is possible."""
    problem = labels(n=30, n_basis=10, seed=seed)
    null = problem.divergence(fit_submodel(problem, []).latent)
    for size, found in zip((1, 2), project_path(problem, [1, 2]).kl, strict=True):
        best = min(fit_submodel(problem, each).objective for each in combinations(range(10), size))
        assert null - found > 0.65 * (null - best)


def test_row_weights_are_repeated_rows():
    problem = labels()
    repeated = np.r_[np.arange(40), np.arange(10)]
    twice = Target(problem.Phi[repeated], problem.sign, problem.probability[repeated])
    weighted = replace(problem, row_weight=1.0 + (np.arange(40) < 10))
    one, other = project_path(twice, [3]), project_path(weighted, [3])
    assert_array_equal(one.columns[0], other.columns[0])
    assert_allclose(one.weights[0], other.weights[0], atol=1e-6)


@pytest.mark.fixed_seeds  # elsewhere a copy may be chosen
def test_duplicate_columns_add_nothing():
    problem = labels()
    doubled = replace(
        problem,
        Phi=np.hstack([problem.Phi, problem.Phi, np.zeros((40, 1)), np.ones((40, 1))]),
        sign=np.r_[problem.sign, problem.sign, 1.0, 1.0],
    )
    one, other = (project_path(each, range(1, 7)) for each in (problem, doubled))
    assert_allclose(one.kl, other.kl, rtol=0.05, atol=1e-7)
    for columns in other.columns:
        assert len(np.unique(columns % 12)) == len(columns)
        assert not np.isin(columns, [24, 25]).any()  # zeros, and a second bias


@pytest.mark.parametrize("several", [False, True])
def test_gains_are_half_of_raos_statistics(several):
    problem = replace(classes(ridge=0.3), sign=None) if several else labels(ridge=0.3)
    model, Phi = fit_submodel(problem, [1, 4]), problem.Phi
    Z = np.column_stack([Phi, np.ones(len(Phi))])
    terms, gain = terms_of(problem, model.latent), addition_gains(problem, model)
    n = len(Z.T)
    own = np.arange(several, problem.n_scores)  # the first class has none
    H = np.einsum("i,ij,icd,ik->cjdk", problem.mass, Z, terms.hessian[:, own][:, :, own], Z)
    H = H.reshape(n * len(own), -1) + np.diag(np.tile(np.append(problem.penalty, 0), len(own)))
    score = (Z.T @ (problem.mass[:, None] * terms.score[:, own])).T.ravel()
    free = np.ones(n - 1, bool) if several else score[:-1] * problem.sign > 0
    known = np.ravel([np.append(model.columns, n - 1) + n * c for c in range(len(own))])
    for j in np.setdiff1d(np.flatnonzero(free), model.columns):
        new = j + n * np.arange(len(own))
        solved = np.linalg.solve(H[np.ix_(known, known)], H[np.ix_(known, new)])
        left = H[np.ix_(new, new)] - H[np.ix_(new, known)] @ solved
        wanted = 0.5 * score[new] @ np.linalg.solve(left, score[new])
        assert gain[j] == pytest.approx(wanted, rel=1e-9)
    assert np.count_nonzero(gain) > 2


def test_sizes_by_default():
    assert default_sizes(5).tolist() == [0, 1, 2, 3, 4, 5]
    sizes = default_sizes(400)
    assert sizes[0] == 0
    assert sizes[-1] == 400
    assert (np.diff(sizes) > 0).all()
    assert len(sizes) < 35


@given(SEEDS, st.integers(2, 5))
@settings(max_examples=15)
def test_derivatives_of_the_divergence(seed, n_classes):
    rng = np.random.default_rng(seed)
    n = 4
    latent = 2 * rng.normal(size=(n, n_classes))
    probability = rng.dirichlet(np.ones(n_classes), n)
    probability[0] = np.eye(n_classes)[0]  # a label that is certain
    signs, piece = class_signs(np.zeros(1, int), n_classes), MultinomialProbit(n_classes)
    problem = Target(np.ones((n, 1)), signs, probability, rng.uniform(0.1, 1, n), likelihood=piece)
    terms = terms_of(problem, latent)
    h = 1e-4
    for i in range(n):
        for c in range(n_classes):
            step = np.zeros(latent.shape)
            step[i, c] = h
            above, below = (problem.divergence(latent + k * step) for k in (1, -1))
            slope = problem.mass[i] * terms.score[i, c]
            assert -(above - below) / (2 * h) == pytest.approx(slope, abs=1e-6)
            up, down = (terms_of(problem, latent + k * step).score[i] for k in (1, -1))
            assert_allclose(-(up - down) / (2 * h), terms.hessian[i, c], atol=1e-5)


@given(SEEDS, st.sampled_from([Probit(), Logit(), NoisyProbit(0.1)]))
@settings(max_examples=15)
def test_derivatives_of_the_divergence_of_labels(seed, likelihood):
    rng = np.random.default_rng(seed)
    latent, p = 2 * rng.normal(size=5), rng.uniform(size=5)
    concave = not isinstance(likelihood, NoisyProbit)
    # where the reference is matched, the curvature is the divergence's own
    if not concave and seed % 2:
        p, concave = likelihood.probability(latent), True
    terms = row_terms(likelihood, latent, p)
    above, below = (row_terms(likelihood, latent + h, p) for h in (1e-5, -1e-5))
    assert_allclose(terms.score[:, 0], (above.log_density - below.log_density) / 2e-5, atol=1e-8)
    bend = -(above.score - below.score)[:, 0] / 2e-5
    if concave:
        assert_allclose(terms.hessian[:, 0, 0], bend, atol=1e-7)
    assert (terms.hessian[:, 0, 0] >= 0).all()


@given(SEEDS)
@settings(max_examples=40)
def test_a_refit_satisfies_the_kkt_conditions(seed):
    rng = np.random.default_rng(seed)
    for problem, tol in ((labels(seed=seed), 1e-7), (classes(seed), 1e-6)):
        columns = rng.choice(problem.Phi.shape[1], 5, replace=False)
        model, null = fit_submodel(problem, columns), fit_submodel(problem, [])
        assert_kkt(problem, model, columns, tol)
        assert set(model.columns) <= set(columns.tolist())
        assert null.n_vectors == 0
        bias = null.bias if problem.n_scores == 1 else np.reshape(null.bias, (1, -1))
        mean, closed = problem.likelihood.probability(bias), problem.mass @ problem.probability
        close = 1e-12 if problem.n_scores == 1 else 1e-7  # labels' bias has a closed form
        assert_allclose(np.ravel(mean), np.ravel(closed), rtol=0, atol=close)
        assert model.objective <= null.objective * (1 + 1e-12)  # where nothing is gained: rounding


@given(SEEDS, st.sampled_from([Probit(), Logit(), NoisyProbit(0.05), MultinomialProbit(3)]))
@settings(max_examples=25)
def test_a_reference_in_the_span_is_recovered(seed, likelihood):
    if likelihood.n_scores > 1:
        problem, bias = classes(seed, n_basis=8, ridge=1e-12), [0.3, -0.2, 0.0]
    else:
        problem, bias = labels(30, 6, seed, ridge=1e-12, likelihood=likelihood), -0.1
    weight = problem.sign * np.random.default_rng(seed).uniform(0.5, 2, problem.sign.shape)
    probability = likelihood.probability(problem.Phi @ weight + bias)
    if likelihood.n_scores > 1:
        probability /= probability.sum(axis=1, keepdims=True)
    problem = replace(problem, probability=probability)
    path = project_path(problem, [0, 2, 4, len(weight)])
    assert path.kl[-1] < 1e-8
    fitted = likelihood.probability(path.latent(problem.Phi)[-1])
    assert_allclose(fitted, probability, atol=1e-3)
    assert_allclose(likelihood.probability(path.bias[:1])[0], probability.mean(axis=0), atol=1e-6)


@given(SEEDS)
@settings(max_examples=10)
def test_two_classes_with_a_score_each_are_the_probit(seed):
    """The difference of two scores with unit noise each is the probit's latent function times sqrt 2."""
    several = classes(seed, n_classes=2)
    one = Target(several.Phi, several.sign[:, 1], several.probability[:, 1], ridge=2e-8)
    for columns in ([], [1, 4], [0, 2, 3, 5, 8]):
        models = [fit_submodel(each, columns) for each in (several, one)]
        assert_array_equal(models[0].columns, models[1].columns)
        assert models[0].objective == pytest.approx(models[1].objective, abs=1e-8)
        difference = (models[0].latent[:, 1] - models[0].latent[:, 0]) / np.sqrt(2.0)
        assert_allclose(difference, models[1].latent, atol=1e-3)
        gains = [addition_gains(*each) for each in zip((several, one), models, strict=True)]
        assert_allclose(gains[0], gains[1], rtol=1e-2, atol=1e-6)


@given(SEEDS)
@settings(max_examples=10)
def test_free_weights_of_a_path_are_balanced_and_nothing_bars_them(seed):
    problem = replace(classes(seed), sign=None)
    path = project_path(problem, range(11))
    assert (np.diff(path.objective) <= 0).all()
    for i, (columns, weight) in enumerate(zip(path.columns, path.weights, strict=True)):
        assert_allclose(weight.sum(axis=1), 0, atol=1e-9 * (1 + np.abs(weight).max(initial=0)))
        model = fit_submodel(problem, columns)
        in_weight, in_bias = slopes(problem, model)
        assert_allclose(in_weight[columns, 1:], 0, atol=1e-6)  # the first class is held at zero
        assert_allclose(in_bias, 0, atol=1e-6)
        assert model.objective == pytest.approx(path.objective[i], abs=1e-9)


@given(SEEDS, st.booleans())
@example(4888, False)  # weights of 350: the divergence rises by 1e-6 for less of the ridge
@settings(max_examples=15)
def test_divergence_falls_along_the_path(seed, several):
    problem = classes(seed) if several else labels(seed=seed)
    n_basis = problem.Phi.shape[1]
    path = project_path(problem, range(n_basis + 1))
    assert (np.diff(path.objective) <= 0).all()
    ridge = path.objective - path.kl
    assert (ridge >= -1e-12).all()
    # but for what the ridge of huge weights gives back
    back = 0.0 if several else np.maximum(-np.diff(ridge), 0.0)
    assert (np.diff(path.kl) <= 1e-8 + back).all()
    for i, (columns, weight) in enumerate(zip(path.columns, path.weights, strict=True)):
        assert len(columns) <= path.sizes[i]
        assert (weight * problem.sign[columns] >= 0).all()
        assert weight.reshape(-1, problem.n_scores).any(axis=1).all()
        latent = path.latent(problem.Phi)[i]
        every = problem.Phi @ path.dense_weight(i, n_basis) + path.bias[i]
        assert_allclose(latent, every, atol=1e-10)
        close = 1e-7 if several else 1e-12
        assert problem.divergence(latent) == pytest.approx(path.kl[i], abs=close)
        if not several:
            model = Submodel(columns, weight, path.bias[i], latent, path.kl[i])
            assert_kkt(problem, model, columns, tol=1e-6)


@given(SEEDS)
@settings(max_examples=10)
def test_the_order_of_the_classes_does_not_matter(seed):
    problem = classes(seed, n_classes=4)
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
    Phi = RBF(20.0)(X, X)
    problem = Target(Phi, class_signs(own, 4), probability, likelihood=MultinomialProbit(4))
    path = project_path(problem, range(13))
    assert (np.diff(path.objective) <= 0).all()
    assert path.kl[2] < 0.2
    assert path.kl[0] > 0.5


def test_the_path_ends_with_the_first_submodel_that_is_enough():
    problem = classes(3)
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
    none = np.tile([0.5, 0.5, 0.0], (30, 1))
    refused("of class 2 is 0 in every row", replace, classes(), probability=none)
    refused("one class only", replace, labels(), probability=np.ones(40))
