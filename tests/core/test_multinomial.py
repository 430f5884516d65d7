"""The multinomial probit: probabilities, scores and curvatures of several classes."""

import mpmath
import numpy as np
import pytest
from problems import refused, response_mean
from scipy.special import log_ndtr

from pcvm_pymc.core.pieces.class_integrals import gap_of, log_fall, log_ndtr_and_mills
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
from pcvm_pymc.core.pieces.multinomial import class_probabilities, class_terms
from pcvm_pymc.core.pieces.probit import inverse_mills

SPREADS = [1.0, 10.0, 40.0, 100.0]


def scores(n_obs, n_classes, spread, seed=0):
    """Return scores spread uniformly and labels of all ranks."""
    rng = np.random.default_rng(seed)
    latent = rng.uniform(-0.5, 0.5, (n_obs, n_classes)) * spread
    return latent, np.argsort(latent, axis=1)[np.arange(n_obs), rng.integers(n_classes, size=n_obs)]


def reference(row, own):
    """Return log P and score of one row by mpmath, 30 digits, from eqs. 10 and 22-23."""
    with mpmath.workdps(30):
        margin = [mpmath.mpf(float(row[own] - y)) for k, y in enumerate(row) if k != own]

        def rough(e):
            return -(e**2) / 2 + log_ndtr(e[:, None] + row[own] - np.delete(row, own)).sum(axis=1)

        grid = np.linspace(-1, 110, 445)  # the mode, to a quarter, without our own search
        mode, top = mpmath.mpf(float(grid[rough(grid).argmax()])), rough(grid).max()
        # trapezoids of width 1/8: the width of an integrand of 100 classes is above 1/3
        nodes = [mode + mpmath.mpf(j) / 8 for j in range(-110, 111)]
        nodes = [e for e in nodes if top - rough(np.array([float(e)]))[0] < 70]
        tails = [[mpmath.ncdf(e + m) for m in margin] for e in nodes]
        heights = [mpmath.npdf(e) * mpmath.fprod(t) for e, t in zip(nodes, tails, strict=True)]
        total = mpmath.fsum(heights)
        score = np.zeros(len(row))
        for j, (k, m) in enumerate(zip(np.delete(np.arange(len(row)), own), margin, strict=True)):
            nodewise = zip(nodes, heights, tails, strict=True)
            density = [h * mpmath.npdf(e + m) / tail[j] for e, h, tail in nodewise]
            score[k] = -float(mpmath.fsum(density) / total)
        score[own] = -score.sum()
        return float(mpmath.log(total / 8)), score


def test_the_reference_is_the_integral():
    row = np.array([0.3, -1.0, 2.0])
    with mpmath.workdps(30):

        def integrand(e):
            return mpmath.npdf(e) * mpmath.ncdf(e - 1 - 0.3) * mpmath.ncdf(e - 1 - 2)

        exact = mpmath.log(mpmath.quad(integrand, [-mpmath.inf, 0, 2, mpmath.inf]))
    assert reference(row, 1)[0] == pytest.approx(float(exact), abs=1e-14)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(
    ("n_classes", "n_obs"),
    [(2, 3), (3, 3), (11, 1), (26, 1), pytest.param(100, 1, marks=pytest.mark.slow)],
)
def test_against_high_precision(n_classes, n_obs, spread):
    latent, label = scores(n_obs, n_classes, spread, seed=int(spread))
    terms = class_terms(latent, label, accuracy=1e-13)
    coarser = class_terms(latent, label)
    for n in range(n_obs):
        log_probability, score = reference(latent[n], label[n])
        assert terms.log_probability[n] == pytest.approx(log_probability, rel=1e-12, abs=1e-11)
        np.testing.assert_allclose(terms.score[n], score, rtol=1e-10, atol=1e-10)
        assert coarser.log_probability[n] == pytest.approx(log_probability, rel=1e-10, abs=1e-9)
        np.testing.assert_allclose(coarser.score[n], score, rtol=1e-9, atol=1e-9)
        mean = response_mean(latent, label)[n]
        np.testing.assert_allclose(mean, latent[n] + score, rtol=1e-9, atol=1e-9)


def assert_probit(terms, margin, rtol, of_slope, atol):
    """Assert that the terms of the first of two classes are the probit's."""
    x = margin / np.sqrt(2)
    np.testing.assert_allclose(terms.log_probability, log_ndtr(x), rtol=rtol, atol=atol)
    slope = inverse_mills(x) / np.sqrt(2)
    np.testing.assert_allclose(terms.score[:, 0], slope, rtol=of_slope, atol=atol)


def test_two_classes_are_the_probit():
    margin = np.concatenate([np.linspace(-150, 150, 601), np.linspace(-1, 1, 21)])
    latent = np.column_stack([margin, np.zeros(len(margin))])
    terms = class_terms(latent, np.zeros(len(margin), dtype=int), accuracy=1e-13)
    # far right the probability rounds to one, here for margins above 12.7
    assert_probit(terms, margin, 1e-12, 1e-10, 1e-13)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("n_classes", [2, 3, 11, 26, 100])
def test_probabilities_sum_to_one(n_classes, spread):
    latent, _ = scores(20, n_classes, spread)
    probability = class_probabilities(latent)
    assert probability.min() >= 0
    np.testing.assert_allclose(probability.sum(axis=1), 1.0, rtol=0, atol=1e-12)


def test_bad_input_is_named():
    good = np.zeros((2, 3))
    refused("NaN or infinite", class_probabilities, good * np.nan)
    apart = np.array([[0.0, 1e13]]), np.zeros(1, dtype=int)
    refused(r"latent has scores that are 1e\+13 apart; needed at most", class_terms, *apart)


@pytest.mark.parametrize("gap", [1e2, 1e4, 1e6, 1e8, 1e11])
def test_scores_far_apart_have_terms_all_the_same(gap):
    latent = np.array([[0.0, gap], [gap, 0.0], [0.0, -gap]])
    found = class_terms(latent, np.zeros(3, dtype=int))
    assert_probit(found, latent[:, 0] - latent[:, 1], 1e-9, 1e-9, 1e-12)
    np.testing.assert_allclose(found.curvature, [0.5, 0.0, 0.0], atol=2.0 / gap)
    of_three = np.array([[0.0, gap, gap + 0.3]])
    # the mode is known to rounding; two classes far above bend the log density by thirds, up to logarithms
    expected = np.eye(3) - 1 / 3
    hessian = MultinomialProbit(3).hessian(of_three, np.zeros(1, dtype=int))[0]
    np.testing.assert_allclose(hessian, expected, atol=max(2.0 / gap, 2e-16 * gap))


# --- integrals over the noise of the own class ---------------------------------------------------


def test_log_ndtr_and_its_slope():
    x = np.concatenate([np.linspace(-100, 40, 3001), [-30.0, 0.0, -1e-300, -500.0]])
    log_phi, mills = np.array([log_ndtr_and_mills(each) for each in x]).T
    np.testing.assert_allclose(log_phi, log_ndtr(x), rtol=2e-13, atol=1e-18)
    np.testing.assert_allclose(mills, inverse_mills(x), rtol=2e-12, atol=1e-15)


@pytest.mark.parametrize("x", [-99.0, -101.0, -150.0, -1e4])
def test_the_gap_is_laplaces_continued_fraction(x):
    wanted = -x
    for k in range(40, 1, -1):
        wanted = -x + k / wanted
    rtol = 1e-9 if x > -100.0 else 1e-14  # up to there it is a difference
    assert gap_of(x, float(inverse_mills(x))) == pytest.approx(1.0 / wanted, rel=rtol)


@pytest.mark.parametrize("margin", [[-3.0, 1.0], [-40.0, 0.5, -13.0], [-60.0, -61.0]], ids=str)
@pytest.mark.parametrize("offset", [-0.7, 0.0, 1.3])
def test_the_fall_of_the_integrand_from_its_mode(offset, margin):
    margin, mode = np.array(margin), 1.5
    mills = np.empty(len(margin))
    at = mode + offset
    found = log_fall(mode, offset, margin, mills)
    wanted = 0.5 * (mode**2 - at**2) + (log_ndtr(at + margin) - log_ndtr(mode + margin)).sum()
    assert found == pytest.approx(wanted, rel=1e-10, abs=1e-12)
    np.testing.assert_allclose(mills, inverse_mills(at + margin), rtol=2e-12)
