"""Leave-one-out at a mode: exact where the objective is quadratic, near refits elsewhere."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import BIASES, SEEDS, at_scale, banana, blobs, fixed_rng, problem, without
from scipy.special import ndtr
from sklearn.datasets import load_iris, make_moons

from pcvm_pymc.core.design import StreamedDesign
from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.loo import _Mode, averaging_weights, check_step, leave_one_out
from pcvm_pymc.core.nonnegative import ridge_solve
from pcvm_pymc.core.pieces import likelihoods
from pcvm_pymc.core.pieces.kernels import RBF, median_distance
from pcvm_pymc.core.pieces.likelihoods import Logit, MultinomialProbit, NoisyProbit, Normal, Probit
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace, SharedHyperprior
from pcvm_pymc.core.problem import Problem

TIGHT = EMOptions(tol=1e-10)
LIKELIHOODS = [Probit(), Logit(), NoisyProbit(0.1), likelihoods.NormalProbability()]
LIKELIHOODS += [likelihoods.StudentT(0.3, 4.0), MultinomialProbit(3)]


def classes(n=66):
    """Return some rows of iris, their classes, and the signs of their bases' weights."""
    X, y = load_iris(return_X_y=True)
    rows = np.arange(0, 150, max(1, 150 // n))
    return X[rows], y[rows], np.where(y[rows][:, None] == np.arange(3), 1.0, -1.0)


def class_problem(width, scale):
    X, y, sign = classes()
    Phi = RBF(width * median_distance(X))(X, X)
    return Problem(Phi, y, sign, at_scale(scale), MultinomialProbit(3))


def two_classes(name, n=66):
    if name == "moons":
        X, y = make_moons(n, noise=0.25, random_state=3)
        return X, 2.0 * y - 1.0
    return banana(n) if name == "banana" else blobs(n, gap=2.0, seed=4)


def refitted(whole, fit, own):
    """Return held-out latent values by a refit for every row."""
    out = []
    for row in range(len(whole.label)):
        part, columns = without(whole, row, own)
        one = fit_em(part, Start(fit.weight[columns], fit.bias), EMOptions(tol=1e-6))
        out.append(whole.Phi[row, columns] @ one.weight + one.bias)
    return np.array(out)


def held_out(whole, fit, own=None):
    rows = np.arange(len(whole.label)) if own is None else own
    return leave_one_out(whole, fit.weight, fit.bias, rows)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), n_scores=st.integers(2, 5))
def test_a_mean_of_the_scores_that_nothing_holds_costs_no_digits(seed, n_scores):
    """Labels know the scores' differences: the mean's variance goes to infinity with the prior's."""
    rng = np.random.default_rng(seed)
    Phi, label = rng.normal(size=(12 * n_scores, 3)), np.arange(12 * n_scores) % n_scores
    whole = Problem(Phi, label, None, at_scale(1.0), MultinomialProbit(n_scores))
    weight, own = rng.normal(size=(3, n_scores)), np.array([0, 1, -1])
    at = whole, weight, np.zeros(n_scores), own
    precise = [{"precision": np.full_like(weight, each)} for each in (1e-8, 1e-12)]
    found, wide = (leave_one_out(*at, **each) for each in precise)
    checked = check_step(*at, **precise[1])
    np.testing.assert_allclose(wide.log_density, found.log_density, rtol=1e-5, atol=1e-6)
    assert np.isfinite(checked.after.log_density).all()


# --- a quadratic objective ----------------------------------------------------------------------


@settings(max_examples=25)
@given(SEEDS, st.integers(4, 25), st.integers(1, 30), BIASES)
def test_a_quadratic_objective_gives_the_refits_of_all_rows(seed, n, n_basis, bias):
    rng = np.random.default_rng(seed)
    Phi, target = rng.normal(size=(n, n_basis)), rng.normal(size=n)
    own = rng.integers(-1, n, size=n_basis)  # several on one row, or on none
    precision, noise = np.exp(rng.normal(size=n_basis)), 0.7
    prior = Hyperprior(1.0, 1.0, 1.0, 1e12)  # the bias' precision does not follow it
    whole = Problem(Phi, target, None, prior, Normal(noise), bias=bias)
    ridge = {"prior": 1.5e-12, "free": 0.0, "none": np.inf}[bias]

    def solved(rows, columns):
        row_weight = np.full(len(rows), noise**-2)
        basis = Phi[np.ix_(rows, columns)]
        return ridge_solve(basis, target[rows], precision[columns], ridge, row_weight=row_weight)

    weight, offset = solved(np.arange(n), np.arange(n_basis))
    found = leave_one_out(whole, weight, offset, own, precision=precision)
    for row in range(n):
        columns = np.flatnonzero(own != row)
        some, one = solved(np.delete(np.arange(n), row), columns)
        wanted = Phi[row, columns] @ some + one
        assert found.latent[row] == pytest.approx(wanted, abs=1e-6 if bias == "prior" else 1e-8)
    wanted = Normal(noise).log_density(found.latent, target)
    np.testing.assert_allclose(found.log_density, wanted, atol=1e-10)


def stationary(whole, fit, row, own):
    """Return held-out latent values by dense systems of all values, and the gains of two further steps.

    Where the quadratic model without the row ends; after a Newton step, and another; with zeros that enter,
    each as if it were the only one. And what the objective gains by the steps, and the zeros.
    """
    n, C, prior = len(whole.label), whole.n_scores, whole.hyperprior
    at_mode = np.vstack([fit.weight.reshape(-1, C), np.broadcast_to(fit.bias, (1, C))])
    value = at_mode.T.ravel()
    J = np.stack([np.kron(np.eye(C), each) for each in np.column_stack([whole.Phi, np.ones(n)])])
    bend = whole.likelihood.hessian((J @ value)[:, 0] if C == 1 else J @ value, whole.label)
    bends = np.einsum("icv,icd,idu->ivu", J, bend, J)
    rest, mine = np.arange(n) != row, np.tile(np.append(own == row, False), C)

    def ridge(value):
        at = value.reshape(C, -1).T
        biases = [whole.bias_precision(float(each)) for each in at[-1]]
        return np.vstack([prior.weight_precision(at[:-1]), biases]).T.ravel()

    def slope(value):
        latent = (J @ value)[:, 0] if C == 1 else J @ value
        score = whole.likelihood.score(latent, whole.label).reshape(n, C)
        return np.einsum("icv,ic->v", J[rest], score[rest]) - ridge(value) * value

    def solved(H, pull, held):
        out = np.zeros(pull.shape)
        out[~held] = np.linalg.solve(H[np.ix_(~held, ~held)], pull[~held])
        return out

    out = value == 0
    H = bends[rest].sum(axis=0) + np.diag(ridge(value))
    step = np.where(mine, -value, 0.0)
    end = value + step + solved(H, slope(value) - H @ step, mine | out)
    sign = np.vstack([whole.sign.reshape(-1, C), np.zeros(C)]).T.ravel()
    ratios = prior.weight_curvature_ratio(at_mode[:-1]), prior.bias_curvature_ratio(at_mode[-1])
    own_bend = np.vstack(ratios).T.ravel()
    H = bends.sum(axis=0) + np.diag(ridge(value) * own_bend)
    follow = solved(H, -H * out, out)
    at, gains, ends = np.where(end * sign < 0, 0.0, end), [], [end]
    for _ in range(2):
        pull = np.where(mine | ((at == 0) & (slope(at) * sign < 0)), 0.0, slope(at))
        rests = out | ((at == 0) & (pull == 0))
        change = solved(H - bends[row], pull, rests)
        at = np.where((at + change) * sign < 0, 0.0, at + change)
        gains, ends = [*gains, 0.5 * pull @ change], [*ends, at]
    reach, W = J[row] @ (np.diag(out) + follow), bend[row]
    more = np.linalg.inv(np.eye(C) - J[row] @ solved(H, J[row].T, rests) @ W)  # without the row's W
    alone = H.diagonal() + np.einsum("vu,vu->u", H, follow)
    entering = np.where(out, pull / (alone - np.einsum("cv,cd,dv->v", reach, W @ more, reach)), 0.0)
    latent = [*(J[row] @ each for each in ends), J[row] @ at + more @ reach @ entering]
    return np.column_stack(latent), [*gains, 0.5 * pull @ entering]


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: each.name)
def test_the_formula_is_the_stationary_point_of_the_quadratic_model(likelihood):
    if likelihood.n_scores > 1:
        whole = class_problem(1.0, 2.0)
    else:
        bias = "free" if likelihood.name == "logit" else "prior"
        whole = problem(*two_classes("moons", 40), at_scale(2.0))
        whole = replace(whole, likelihood=likelihood, bias=bias)
    fit, own = fit_em(whole, None, TIGHT), np.arange(len(whole.label))
    own[1] = own[0]  # two on one row
    found = held_out(whole, fit, own)
    checked = check_step(whole, fit.weight, fit.bias, own)
    assert np.abs(found.latent - fit.latent).max() > 0.01
    for row in (0, 1, 7, 30):
        wanted, (gain, left, entry) = stationary(whole, fit, row, own)
        for k, each in ((0, found), (2, checked.after)):
            np.testing.assert_allclose(np.atleast_1d(each.latent[row]), wanted[:, k], atol=1e-6)
        three = wanted.T[1:, 0] if whole.n_scores == 1 else wanted.T[1:]
        change = np.ptp(likelihood.log_density(three, np.repeat(whole.label[row], 3)))
        left = 30.0 * gain if left > 0.1 * gain or gain > 0.1 else left
        doubt = max(change, 10.0 * (left + entry))
        assert checked.doubt[row] == pytest.approx(doubt, rel=1e-6, abs=1e-6)


# --- beside refits -------------------------------------------------------------------------------


def two_class_problem(name, width, scale):
    X, label = two_classes(name)
    return problem(X, label, at_scale(scale), width * median_distance(X))


def free_problem(prior):
    X, label = two_classes("blobs")
    return Problem(np.column_stack([X, X**2, np.sin(X)]), label, None, prior)


def shared_problem():
    X, y, _ = classes(50)
    Phi = RBF(median_distance(X))(X, X)
    prior = SharedHyperprior(1.0, 1.0, 1.0, 1.0)
    return Problem(Phi, y, None, prior, MultinomialProbit(3), bias="none", shared=True)


WIDTHS_AND_SCALES = ((0.6, 1.0), (2.0, 3.0), (0.3, 10.0))
#: problems and the least share of their rows that is not in doubt
BESIDE_REFITS = {
    **{
        f"{name}, width {width}, scale {scale}": (
            partial(two_class_problem, name, width, scale),
            {"moons": 0.4, "banana": 0.2, "blobs": 0.3}[name],
        )
        for name in ("moons", "banana", "blobs")
        for width, scale in WIDTHS_AND_SCALES
    },
    "classes, narrow": (partial(class_problem, 0.5, 1.0), 0.8),
    "classes, wide scale": (partial(class_problem, 1.0, 3.0), 0.8),
    "Laplace": (partial(free_problem, Laplace(1.0)), 0.4),
    "Student": (partial(free_problem, Hyperprior(1.0, 0.5, 0.5, 0.5)), 0.8),
    "shared": (shared_problem, 0.9),
}


@pytest.mark.fixed_seeds  # the shares are those of these problems
@pytest.mark.parametrize("case", BESIDE_REFITS)
def test_rows_are_near_their_refits_or_in_doubt(case):
    make, least = BESIDE_REFITS[case]
    whole = make()
    n_obs, n_basis = whole.Phi.shape
    own = np.arange(n_obs) if n_basis == n_obs else np.full(n_basis, -1)
    fit = fit_em(whole, None, EMOptions(tol=1e-6))
    checked = check_step(whole, fit.weight, fit.bias, own)
    wanted = whole.likelihood.log_density(refitted(whole, fit, own), whole.label)
    inside = whole.likelihood.log_density(fit.latent, whole.label)
    near = checked.doubt <= 0.003
    error = np.abs(checked.after.log_density - wanted)[near]
    assert near.mean() >= least
    assert error.max() < 0.01
    assert error.mean() < 0.1 * np.abs(inside - wanted)[near].mean()
    if "scale 1.0" in case or case in ("classes, narrow", "Student", "shared"):
        found = held_out(whole, fit, own)  # the mean needs no refits where weights are moderate
        assert found.log_loss == pytest.approx(-wanted.mean(), abs=0.006)


def test_a_quadratic_objective_leaves_no_doubt_and_a_saddle_all():
    rng = fixed_rng(0)
    Phi, target, precision = rng.normal(size=(20, 4)), rng.normal(size=20), np.ones(4)
    whole = Problem(Phi, target, None, Hyperprior(1.0, 1.0, 1.0, 1.0), Normal(0.5), bias="free")
    weight, bias = ridge_solve(Phi, target, precision, 0.0, row_weight=np.full(20, 4.0))
    own = np.array([0, 1, 1, -1])
    found = leave_one_out(whole, weight, bias, own, precision=precision)
    checked = check_step(whole, weight, bias, own, precision=precision)
    np.testing.assert_allclose(checked.after.latent, found.latent, atol=1e-8)
    assert checked.doubt.max() < 1e-8
    wider, at = replace(whole, Phi=np.column_stack([Phi, target])), np.append(weight, 0.0)
    other = check_step(wider, at, bias, np.append(own, -1), precision=np.append(precision, 1.0))
    assert other.doubt.max() < 1e-8  # what the evidence has pruned does not enter
    mode = _Mode(whole, weight, bias, own, precision)  # the prior's bound is its curvature here
    np.testing.assert_allclose(np.tril(mode.curved.factor), np.tril(mode.model.factor), rtol=1e-9)
    # without a row a weight of zero may enter
    slope = 4.0 * Phi.T * target
    edge = replace(whole, hyperprior=Laplace(np.abs(slope.sum(axis=1)).max() ** 2), bias="none")
    enters = np.abs(slope.sum(axis=1, keepdims=True) - slope).max(axis=0) > edge.hyperprior.penalty
    doubt = check_step(edge, np.zeros(4), 0.0, np.full(4, -1)).doubt
    np.testing.assert_array_equal(doubt > 0, enters)
    total = target.sum()  # weights of tiny columns do not enter, the bias does
    alone = replace(edge, Phi=1e-6 * Phi, hyperprior=Laplace(16.0 * total**2), bias="prior")
    enters, at_zero = np.abs(total - target) > abs(total), (np.zeros(4), 0.0, np.full(4, -1))
    assert 0 < enters.mean() < 1
    np.testing.assert_array_equal(check_step(alone, *at_zero).doubt > 0, enters)
    beyond = np.abs(slope.sum(axis=1, keepdims=True) - slope) - edge.hyperprior.penalty
    gain = np.square(beyond.clip(0.0)).T @ (1.0 / (8.0 * np.square(Phi).sum(axis=0)))
    assert (doubt >= 9.999 * gain).all()
    # whose curvature is negative everywhere
    flat = replace(whole, hyperprior=Hyperprior.jeffreys())
    assert np.isinf(check_step(flat, 1e-3 * weight, bias, own).doubt).all()
    # a bias of zero where its prior has a pole is none
    pole = replace(whole, hyperprior=Hyperprior(1.0, 1.0, 0.0, 0.0), bias="prior")
    both = pole, replace(pole, bias="none")
    at_pole, none = (check_step(each, weight, 0.0, own).doubt for each in both)
    np.testing.assert_allclose(at_pole, none)


# --- what must not matter ------------------------------------------------------------------------


def test_the_order_of_rows_and_the_names_of_classes_do_not_matter():
    X, label = two_classes("moons")
    whole = problem(X, label, at_scale(3.0), 0.4)
    fit = fit_em(whole, None, TIGHT)
    found, order = held_out(whole, fit), np.random.default_rng(0).permutation(len(X))
    moved = replace(whole, Phi=whole.Phi[order], label=label[order])
    own = np.argsort(order)  # the bases stay where they are
    other = leave_one_out(moved, fit.weight, fit.bias, own)
    np.testing.assert_allclose(other.latent, found.latent[order], atol=1e-8)
    swapped = replace(whole, label=-label, sign=-label)
    mirror = leave_one_out(swapped, -fit.weight, -fit.bias, np.arange(len(X)))
    np.testing.assert_allclose(mirror.latent, -found.latent, atol=1e-8)
    np.testing.assert_allclose(mirror.log_density, found.log_density, atol=1e-8)


def test_rows_on_a_cluster_are_refused():
    whole = problem(*blobs(20), at_scale(1.0))
    fit = fit_em(whole)

    class DaskRows:
        n_obs, label = 20, whole.label

    with pytest.raises(ValueError, match="rows are DaskRows; needed"):
        held_out(replace(whole, Phi=StreamedDesign(DaskRows(), np.zeros((20, 1)), RBF(1.0))), fit)


@pytest.mark.parametrize("bias", ["none", "free"])
def test_a_model_without_weights_predicts_by_its_bias(bias):
    label = np.where(np.arange(20) < 12, 1.0, -1.0)
    whole = Problem(np.ones((20, 3)), label, None, Hyperprior.jeffreys(), Logit(), bias=bias)
    rate = np.log(12 / 8) if bias == "free" else 0.0
    found = leave_one_out(whole, np.zeros(3), rate, np.full(3, -1))
    wanted = np.where(label > 0, np.log(11 / 8), np.log(12 / 7)) if bias == "free" else np.zeros(20)
    np.testing.assert_allclose(found.latent, wanted, atol=0.01)


# --- weights of an average ------------------------------------------------------------------------


@settings(max_examples=25)
@given(SEEDS, st.integers(1, 6), st.integers(2, 80))
def test_weights_sum_to_one_and_go_with_their_fits(seed, n_fits, n):
    rng = np.random.default_rng(seed)
    density, prior = -rng.gamma(1.0, size=(n_fits, n)), rng.normal(size=n_fits)
    weights, order = averaging_weights(density, prior), rng.permutation(n_fits)
    assert weights.sum() == pytest.approx(1.0)
    assert (weights >= 0).all()
    np.testing.assert_allclose(averaging_weights(density[order], prior[order]), weights[order])
    np.testing.assert_allclose(averaging_weights(density - 3.0, prior + 2.0), weights)


def test_equal_fits_share_and_a_dominated_one_gets_nothing():
    density = np.log(np.random.default_rng(1).uniform(0.3, 1.0, size=60))
    weights = averaging_weights(np.stack([density, density, density - 1.0]))
    np.testing.assert_allclose(weights, [0.5, 0.5, 0.0], atol=1e-6)
    flat = np.tile(density, (3, 1))
    log_prior = np.array([0.0, 1.0, -2.0])
    wanted = np.exp(log_prior) / np.exp(log_prior).sum()
    np.testing.assert_allclose(averaging_weights(flat, log_prior), wanted, atol=1e-9)
    assert averaging_weights(density[None]) == pytest.approx([1.0])


def test_noise_of_the_rows_keeps_the_weights_from_the_best():
    rng = np.random.default_rng(2)
    density = -rng.gamma(1.0, size=(2, 100))
    density[0] += 0.1 - density[0].mean() + density[1].mean()  # ten nats better in all
    weights = averaging_weights(density)
    assert weights[0] > weights[1] > np.exp(-10.0) * 100
    many = -rng.gamma(1.0, size=(2, 5000)) + [[0.0], [3.0]]
    ahead = many[0] - many[1]  # by 50 nats, together with the prior
    weights = averaging_weights(many, np.array([50.0 - ahead.sum(), 0.0]))
    assert weights[0] == pytest.approx(ndtr(50.0 / ahead.std() / 5000**0.5), abs=0.05)
