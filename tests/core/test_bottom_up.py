from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import SEEDS, blobs, classes, fixed_rng, refused
from scipy import stats
from scipy.optimize import minimize_scalar

from pcvm_pymc.core.em import fit_em
from pcvm_pymc.core.evidence import BottomUpOptions, fit_bottom_up
from pcvm_pymc.core.evidence.bottom_up import Bases, BottomUpSearch, ScoreModel
from pcvm_pymc.core.family import class_signs
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.likelihoods import Logit, MultinomialProbit, Probit
from pcvm_pymc.core.pieces.multinomial import class_terms
from pcvm_pymc.core.pieces.priors import HalfHorseshoe, Hyperprior
from pcvm_pymc.core.problem import ObservedRows, Problem, Status
from pcvm_pymc.experiments.datasets import load, ripley_mixture


def given_classes(Phi, label, n_classes, sign, *, bias="none", **kwargs):
    likelihood = MultinomialProbit(n_classes)
    return Problem(Phi, label, sign, Hyperprior.jeffreys(), likelihood, bias=bias, **kwargs)


def problem(n=40, n_classes=3, *, seed=0, width=1.5, signs=True, has_bias=False, **kwargs):
    X, label = classes(n, n_classes, seed, fixed=True)
    sign = class_signs(label, n_classes) if signs else None
    Phi = RBF(width)(X, X)
    bias = "prior" if has_bias else "none"
    return given_classes(Phi, label, n_classes, sign, bias=bias, **kwargs)


def two_classes(n=100, *, seed=0, width=3.0, bias="prior"):
    X, label = blobs(n, 3, seed)
    Phi = RBF(width)(X, X)
    return Problem(Phi, label, label.copy(), Hyperprior.jeffreys(), Probit(), bias=bias)


@pytest.mark.parametrize("signs", [True, False])
@given(st.integers(2, 6), SEEDS, st.sampled_from([0.1, 1.0, 5.0, 100.0]), st.booleans())
@settings(max_examples=15)
def test_it_ends_with_finite_numbers_and_right_signs(signs, n_classes, seed, width, has_bias):
    kwargs = {"signs": signs, "shared": not signs, "has_bias": has_bias}
    given_ = problem(30, n_classes, seed=seed, width=width, **kwargs)
    result = fit_bottom_up(given_, options=BottomUpOptions(max_iter=150))
    assert np.isfinite(result.latent).all()
    assert np.abs(result.latent).max() < 1e3
    np.testing.assert_allclose(result.latent, given_.Phi @ result.weight + result.bias, atol=1e-9)
    if signs:
        assert (result.weight * given_.sign >= 0).all()
    if not has_bias:
        assert (result.bias == 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_wide_bases_come_to_rest(seed):
    X, label = ripley_mixture(300, random_state=seed)
    Phi = RBF(12.0 * np.std(X))(X, X)
    result = fit_bottom_up(given_classes(Phi, (label > 0).astype(int), 2, None, shared=True))
    assert result.status is Status.CONVERGED
    assert np.abs(result.latent).max() < 100.0


@given(st.permutations(range(3)), SEEDS)
@settings(max_examples=10)
def test_the_names_of_the_classes_mean_nothing(order, seed):
    order = np.array(order)
    given_ = problem(30, seed=seed)
    label = order[given_.label]
    other = given_classes(given_.Phi, label, 3, class_signs(label, 3))
    options = BottomUpOptions(max_iter=40)
    one, two = fit_bottom_up(given_, options=options), fit_bottom_up(other, options=options)
    np.testing.assert_allclose(two.latent[:, order], one.latent, atol=1e-6)


def test_duplicate_and_empty_columns():
    given_ = problem(30, seed=6)
    Phi = np.hstack([given_.Phi, given_.Phi[:, :5], np.zeros((30, 2))])
    sign = np.vstack([given_.sign, given_.sign[:5], np.ones((2, 3))])
    result = fit_bottom_up(given_classes(Phi, given_.label, 3, sign))
    assert np.isfinite(result.latent).all()
    assert not result.weight[35:].any()


@pytest.mark.parametrize(("scale", "status"), [(1.0, Status.CONVERGED), (0.0, Status.EMPTY_MODEL)])
def test_only_a_model_without_any_weight_is_empty(scale, status):
    label = np.where(np.arange(30) % 2, 1.0, -1.0)
    column = scale * np.where(np.arange(30) < 24, label, -label)  # right four times of five
    one = Problem(column[:, None], label, np.ones(1), Hyperprior.jeffreys(), Probit(), bias="none")
    result = fit_bottom_up(one)
    assert (len(result.support), result.status) == (int(scale), status)


def log_marginal(columns, alpha, responses, beta=1.0):
    """Return log p(z | alpha) of responses, shape (n_obs, n_responses), that share the precisions."""
    C = np.eye(len(columns)) / beta + (columns / alpha) @ columns.T
    inverse = np.linalg.solve(C, responses)
    n_responses = responses.shape[1]
    return -0.5 * np.vdot(responses, inverse) - 0.5 * n_responses * np.linalg.slogdet(C)[1]


def best_by_search(columns, alpha, place, responses):
    """Return the best precision of a member by search, and what it gains over the column being out."""

    def value(log_alpha):
        changed = alpha.copy()
        changed[place] = np.exp(log_alpha)
        return log_marginal(columns, changed, responses)

    found = minimize_scalar(lambda x: -value(x), bounds=(-12.0, 12.0), options={"xatol": 1e-9})
    others = np.arange(len(alpha)) != place
    without = log_marginal(columns[:, others], alpha[others], responses)
    return np.exp(found.x), value(found.x) - without


def members_and_responses(n_responses, seed=3):
    """Return a machine of two members and responses that depend on some columns."""
    given_ = problem(30, n_responses, seed=seed, width=1.0, signs=False, shared=True)
    rng = fixed_rng(seed)
    responses = given_.Phi[:, [4, 11]] @ rng.normal(0.0, 2.0, (2, n_responses))
    responses += rng.normal(size=responses.shape)
    machine = ScoreModel(Bases(given_))
    machine.set_to(np.array([4, 20]), np.array([0.8, 1.7]))
    return given_, machine, responses


@pytest.mark.parametrize("n_responses", [1, 2, 5])
def test_what_is_added_has_the_precision_and_gain_of_the_joint_evidence_of_all_classes(n_responses):
    given_, machine, responses = members_and_responses(n_responses)
    pulled = given_.Phi.T @ responses
    outside = np.setdiff1d(np.arange(30), machine.index)
    searched = {}
    for j in outside:
        columns = given_.Phi[:, [*machine.index, j]]
        best = best_by_search(columns, np.append(machine.alpha, 1.0), 2, responses)
        if best[1] > 1e-6:
            searched[j] = best
    assert len(searched) > 2
    machine.improve(pulled, None)
    chosen = max(searched, key=lambda j: searched[j][1])
    assert machine.index[-1] == chosen
    assert machine.alpha[-1] == pytest.approx(searched[chosen][0], rel=1e-4)


def test_s_is_that_of_the_covariance_of_responses_of_any_precision():
    machine = ScoreModel(Bases(replace(two_classes(30), likelihood=Logit())))
    machine.set_to(np.array([4, 20]), np.array([0.8, 1.7]))
    columns = machine.bases.columns
    C = 4.0 * np.eye(30) + (columns[:, [4, 20]] / [0.8, 1.7]) @ columns[:, [4, 20]].T
    np.testing.assert_allclose(machine.S, (columns * np.linalg.solve(C, columns)).sum(axis=0))


def test_a_column_that_was_deleted_three_times_stays_out():
    given_, _, responses = members_and_responses(1)
    machine, pulled, added = ScoreModel(Bases(given_)), given_.Phi.T @ responses, []
    for _ in range(4):
        machine.improve(pulled, None)
        added += machine.index.tolist()
        machine.improve(0.0 * pulled, None)
        assert len(machine.index) == 0
    assert added[0] == added[1] == added[2] != added[3]


def machine_of(given_, result, options=None):
    """Return the machine with which a fit ended: its search once more."""
    return search_of(given_, result, options).machines[0]


def search_of(given_, result, options=None):
    search = BottomUpSearch(given_, options or BottomUpOptions())
    for _ in range(result.n_iter):
        search.step()
    return search


LOG_POSTERIORS = [
    *(problem(60, seed=4, signs=False, shared=True, has_bias=each) for each in (True, False)),
    *(problem(60, seed=4, has_bias=each) for each in (True, False)),
    *(
        two_classes(seed=4, width=each) for each in (3.0, 0.7)
    ),  # without a bias in the end, and with one
]


@pytest.mark.parametrize("given_", LOG_POSTERIORS)
def test_the_log_posterior_by_hand(given_):
    """Half-normals of the signed weights (each twice a normal's density), normals of all others."""
    result, n = fit_bottom_up(given_), len(given_.label)
    assert result.status is Status.CONVERGED
    assert 2 <= len(result.support) < 30
    if given_.n_scores > 1:
        assert np.mean(result.latent.argmax(axis=1) != given_.label) < 0.35
    if given_.sign is None:
        assert (result.weight[result.support] != 0).all()  # kept for all classes
    search = search_of(given_, result)
    wanted = given_.likelihood.log_likelihood(result.latent, given_.label)
    weight, bias = result.weight.reshape(n, -1), np.atleast_1d(result.bias)
    for c in range(given_.n_scores):
        kept = search.machines[0 if given_.shared else c]
        value = np.append(weight[:, c], bias[c])[kept.index]
        density = stats.norm.logpdf(value, scale=kept.alpha**-0.5)
        if given_.sign is not None:
            of_weights = kept.index < n
            scale = kept.alpha[of_weights] ** -0.5
            density[of_weights] = stats.halfnorm.logpdf(np.abs(value[of_weights]), scale=scale)
        wanted += density.sum()
    assert result.log_posterior == pytest.approx(wanted, abs=1e-7)
    trace = result.trace
    assert result.log_posterior > trace.log_posterior[0]
    assert len(trace.width) == len(trace.change) == len(trace.n_active) == result.n_iter + 1
    assert given_.shared or (trace.n_active[0], trace.n_active[-1]) == (0, len(result.support))


@pytest.mark.parametrize("bias", ["prior", "none"])
@pytest.mark.parametrize("seed", range(3))
def test_two_classes_end_where_no_change_is_admissible_and_the_slopes_vanish(bias, seed):
    given_ = two_classes(seed=seed, bias=bias)
    result = fit_bottom_up(given_, options=BottomUpOptions(tol=1e-9, max_iter=20_000))
    assert result.status is Status.CONVERGED
    assert result.weight.shape == (100,)
    assert isinstance(result.bias, float)
    assert result.latent.shape == (100,)
    assert (result.weight * given_.sign >= 0).all()
    latent = given_.Phi @ result.weight + result.bias
    np.testing.assert_allclose(result.latent, latent, atol=1e-9)
    machine = machine_of(given_, result)
    kept, columns = machine, machine.bases.columns
    every = np.append(result.weight, result.bias)[: columns.shape[1]]
    slope = columns.T @ given_.likelihood.score(latent, given_.label)
    # inside: zero slope of the log posterior at these precisions
    np.testing.assert_allclose(slope[kept.index], kept.alpha * every[kept.index], atol=1e-4)
    assert (every[np.setdiff1d(np.arange(len(every)), kept.index)] == 0).all()
    # by direct construction: each precision is the best, and no column that may come would stay
    z = latent + given_.likelihood.score(latent, given_.label)
    for j in range(len(every)):
        inside = kept.index == j
        A = columns[:, kept.index[~inside]]
        C = np.eye(100) + (A / kept.alpha[~inside]) @ A.T
        pull = np.linalg.solve(C, columns[:, j])
        s, q = columns[:, j] @ pull, z @ pull
        if inside.any():
            assert kept.alpha[inside][0] == pytest.approx(s**2 / (q**2 - s), rel=1e-4)
        elif j < 100 and q * given_.sign[j] > 0:
            assert q**2 <= s * (1 + 1e-6)


@pytest.mark.parametrize("size", [3.0, 30.0, 300.0])
def test_precisions_are_set_one_after_another_each_under_the_new_ones_before(size):
    given_ = two_classes(seed=4)
    machine = machine_of(given_, fit_bottom_up(given_))
    m, pulled = len(machine.index), size * np.random.default_rng(1).normal(size=(101, 1))
    alpha, gram = machine.alpha.copy(), machine.bases.beta * machine.cross[:, machine.index]
    moved = machine.reestimate(pulled)
    old = alpha.copy()
    for j in range(m):
        covariance = np.linalg.inv(np.diag(alpha) + gram)
        variance = covariance[j, j]
        s, q = 1 / variance - alpha[j], covariance[j] @ pulled[machine.index, 0] / variance
        alpha[j] = s**2 / (q**2 - s) if q**2 > s else alpha[j]
    np.testing.assert_allclose(machine.alpha, alpha, rtol=1e-8)
    assert moved == pytest.approx(np.abs(np.log(alpha / old)).max())


def test_two_classes_are_told_apart_as_well_as_by_em():
    """Ripley's mixture: at most half a per cent more errors than the EM's, with few vectors."""
    errors = {"em": [], "bottom-up": []}
    X_test, test = ripley_mixture(4000, random_state=100)
    for seed in range(4):
        X, label = ripley_mixture(250, random_state=seed)
        Phi, Phi_test = RBF(0.5)(X, X), RBF(0.5)(X_test, X)
        mode = fit_em(Problem(Phi, label, label.copy(), Hyperprior.jeffreys()))
        found = fit_bottom_up(Problem(Phi, label, label.copy(), Hyperprior.jeffreys()))
        assert 2 <= len(found.support) <= 10
        for name, each in (("em", mode), ("bottom-up", found)):
            errors[name].append(np.mean(np.sign(Phi_test @ each.weight + each.bias) != test))
    assert np.mean(errors["bottom-up"]) <= np.mean(errors["em"]) + 0.005


def test_the_default_start_for_two_classes_is_the_e_step_at_zero():
    given_ = two_classes(seed=1)
    bases = BottomUpSearch(given_, BottomUpOptions()).bases
    start = np.sqrt(2 / np.pi) * given_.label
    np.testing.assert_allclose(bases.rhs[:, 0], bases.columns.T @ start, atol=1e-10)


def test_bad_arguments_are_named():
    given_ = problem()
    words, two = "'bottom-up' does not take; use em or evidence or nuts", two_classes()
    refused(words, fit_bottom_up, replace(two, sign=None))
    other = replace(two, hyperprior=HalfHorseshoe(0.1))
    refused("found a half-horseshoe prior", fit_bottom_up, other)
    refused("bias='free' has no precision", fit_bottom_up, replace(given_, bias="free"))
    refused("found a width that may move", fit_bottom_up, replace(given_, moves=object()))


# --- several changes under the same responses, which run ahead ------------------------------------


def shared_problem(seed=0):
    return problem(90, seed=seed, width=2.0, signs=False, shared=True)


def test_momentum_ends_where_em_ends():
    """At precisions that rest, the weights are the mode: their slope is zero."""
    known = shared_problem()
    options = BottomUpOptions(tol=1e-7, momentum=0.8, max_iter=20_000)
    result = fit_bottom_up(known, options)
    assert result.status is Status.CONVERGED
    slope = known.likelihood.terms(result.latent, known.label).slope
    kept = machine_of(known, result, options)
    pull = kept.alpha[:, None] * result.weight[kept.index]
    np.testing.assert_allclose((known.Phi.T @ slope)[kept.index], pull, atol=1e-3)


def test_momentum_takes_fewer_epochs():
    known = shared_problem()
    options = (BottomUpOptions(momentum=share, max_iter=20_000) for share in (0.0, 0.8))
    plain, ahead = (fit_bottom_up(known, each) for each in options)
    assert plain.status is ahead.status is Status.CONVERGED
    assert ahead.n_iter < 0.8 * plain.n_iter


def test_a_rough_search_tells_its_end_exactly():
    known = shared_problem()
    result = fit_bottom_up(known, BottomUpOptions.quick())
    np.testing.assert_allclose(result.latent, known.Phi @ result.weight, atol=1e-12)
    exact = fit_bottom_up(known, BottomUpOptions(most=2, momentum=0.8))
    np.testing.assert_allclose(result.log_posterior, exact.log_posterior, atol=0.05)
    assert result.trace.log_posterior[-1] == result.log_posterior
    assert result.trace.change[-1] != result.trace.change[-2]


def test_a_quick_search_is_as_good_as_the_papers():
    gain = []
    for seed in range(4):
        known = shared_problem(seed)
        options = BottomUpOptions.quick(), BottomUpOptions()
        quick, paper = (fit_bottom_up(known, each) for each in options)
        gain.append(quick.log_posterior - paper.log_posterior)
    assert np.mean(gain) > 0.0


@pytest.mark.parametrize("n_classes", [2, 3, 8])
def test_rough_terms_have_three_digits(n_classes):
    rng = np.random.default_rng(n_classes)
    latent = 4.0 * rng.normal(size=(500, n_classes))
    label = rng.integers(n_classes, size=500)
    piece = MultinomialProbit(n_classes)
    rough, exact = piece.terms(latent, label, rough=True), piece.terms(latent, label)
    np.testing.assert_allclose(rough.slope, exact.slope, atol=1e-3)
    assert abs(rough.log_likelihood - exact.log_likelihood) < 1e-3 * 500
    assert np.abs(rough.slope - exact.slope).max() > 1e-9  # it is another rule
    assert np.abs(class_terms(latent, label, accuracy=1e-3).score - exact.slope).max() < 1e-3


def test_rough_terms_of_weighted_rows_are_those_of_repeated_rows():
    rng = np.random.default_rng(0)
    latent, label = rng.normal(size=(40, 3)), rng.integers(3, size=40)
    count = rng.integers(1, 4, size=40)
    piece = MultinomialProbit(3)
    weighted = ObservedRows(piece, label, count).terms(latent, rough=True)
    repeated = piece.terms(np.repeat(latent, count, axis=0), np.repeat(label, count), rough=True)
    assert weighted.log_likelihood == pytest.approx(repeated.log_likelihood, abs=1e-2)
    np.testing.assert_allclose(weighted.slope.sum(axis=0), repeated.slope.sum(axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iris", "wine", "glass", "wisconsin_original", "crabs"])
def test_no_divergence_in_40_fits(name, data_folder):
    """mPCVM2 over real sets and widths of 1/4 to 4 times the root of the number of features."""
    loaded = load(name, folder=data_folder)
    known = ~np.isnan(loaded.X).any(axis=1)
    X, label = loaded.X[known], np.unique(loaded.y[known], return_inverse=True)[1]
    X, n_classes = (X - X.mean(axis=0)) / X.std(axis=0), label.max() + 1
    for factor, seed in product(np.geomspace(0.25, 4, 8), range(5)):
        rows = np.random.default_rng(seed).permutation(len(X))[:250]
        Phi = RBF(factor * np.sqrt(X.shape[1]))(X[rows], X[rows])
        sign = class_signs(label[rows], n_classes)
        result = fit_bottom_up(given_classes(Phi, label[rows], n_classes, sign))
        assert np.isfinite(result.latent).all()
        assert np.abs(result.latent).max() < 1e3
        assert np.mean(result.latent.argmax(axis=1) != label[rows]) < 0.6
