from dataclasses import replace

import numpy as np
import pytest
from calibration import assert_means
from problems import blobs, problem, refused
from scipy import stats
from scipy.special import ndtr

from pcvm_pymc.core import approximation
from pcvm_pymc.core.approximation import PropagationOptions, SignedRows, fit_laplace, propagate
from pcvm_pymc.core.approximation.propagation import half_line_tilted, probit_tilted, student_tilted
from pcvm_pymc.core.approximation.truncated import truncated_normal_draws
from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.pieces.likelihoods import Logit
from pcvm_pymc.core.pieces.priors import HalfHorseshoe, Hyperprior, Laplace
from pcvm_pymc.core.problem import Problem

PLUG_IN = Hyperprior.plug_in()
CAVITIES = [(0.0, 1.0), (3.0, 0.2), (-8.0, 1.0), (-2.0, 4e2), (30.0, 0.01), (0.5, 1e6), (-45, 25.0)]


def moments_by_quadrature(density, mean, variance, low=-np.inf):
    """Return log mass, mean and variance of a density, by pieces around zero and around a cavity's mean."""
    sd = np.sqrt(variance)
    ends = [0.0, *(mean + sd * np.arange(-12.0, 12.5, 1.5))]
    ends += [sign * 10.0**k for k in np.arange(-3, 5, 0.5) for sign in (-1, 1)]
    ends = np.unique(np.clip(ends, max(low, mean - 12 * sd), max(mean, 0.0) + 12 * sd))
    node, share = np.polynomial.legendre.leggauss(60)
    half = 0.5 * np.diff(ends)
    x = ends[:-1, None] + half[:, None] * (1.0 + node)
    weight = half[:, None] * share * density(x)
    mass, centre = weight.sum(), (weight * x).sum() / weight.sum()
    return np.array([np.log(mass), centre, (weight * (x - centre) ** 2).sum() / mass])


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("prior", [(5.0, 5.0), (0.5, 0.3), (1.0, 20.0), (50.0, 50.0)])
def test_moments_under_a_student_are_the_integrals(prior, half):
    c, d = prior
    for mean, variance in CAVITIES:
        found = student_tilted(np.array([mean]), np.array([variance]), c, d, half=half)

        def density(x, mean=mean, variance=variance):
            height = stats.t.pdf(x, 2 * c, scale=np.sqrt(d / c)) * (2.0 if half else 1.0)
            return height * stats.norm.pdf(x, mean, np.sqrt(variance))

        wanted = moments_by_quadrature(density, mean, variance, 0.0 if half else -np.inf)
        np.testing.assert_allclose(np.ravel(found), wanted, rtol=1e-9, atol=1e-10)


def test_moments_under_a_probit_and_on_a_half_line_are_the_integrals():
    for mean, variance in CAVITIES[:3]:
        args, sd = (np.array([mean]), np.array([variance])), np.sqrt(variance)

        def normal(x, mean=mean, sd=sd):
            return stats.norm.pdf(x, mean, sd)

        wanted = moments_by_quadrature(lambda x, f=normal: f(x) * ndtr(x), mean, variance)
        np.testing.assert_allclose(np.ravel(probit_tilted(*args)), wanted, rtol=1e-7, atol=1e-9)
        wanted = moments_by_quadrature(normal, mean, variance, low=0.0)
        np.testing.assert_allclose(np.ravel(half_line_tilted(*args)), wanted, rtol=1e-7, atol=1e-9)


def test_far_half_lines_join_the_near_ones():
    at = half_line_tilted(np.array([-60.0 + 1e-12, -60.0 - 1e-12]), np.ones(2))
    np.testing.assert_allclose(at.mean[0], at.mean[1], rtol=2e-11)
    np.testing.assert_allclose(at.variance[0], at.variance[1], rtol=1e-8)
    far = half_line_tilted(np.array([-1e6]), np.ones(1))  # nearly exponential
    np.testing.assert_allclose([far.mean[0], far.variance[0]], [1e-6, 1e-12], rtol=1e-9)


def lonely(phi=0.8, prior=PLUG_IN, sign=1.0):
    """Return one weight, one row."""
    label, sign = np.ones(1), np.array([sign])
    return SignedRows.of(Problem(np.array([[phi]]), label, sign, prior, width=1.0))


# what it misses of the log evidence and of the means: little where the priors are nearly normal
NEARLY = {Hyperprior(50.0, 50.0, 50.0, 50.0): 0.01, Hyperprior(5.0, 5.0, 5.0, 5.0): 0.03}


@pytest.mark.parametrize("prior", NEARLY, ids=str)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_weight_and_one_row_are_nearly_the_integrals(prior, sign):
    fit = propagate(lonely(prior=prior, sign=sign))
    size, bias = np.arange(0.01, 30.0, 0.02), np.arange(-60.0, 60.0, 0.2)
    joint = np.exp(prior.log_weight_density(size))[:, None] * np.exp(prior.log_bias_density(bias))
    joint *= ndtr(0.8 * sign * size[:, None] + bias)
    mean = np.array([(joint.sum(1) * size).sum(), (joint.sum(0) * bias).sum()]) / joint.sum()
    assert fit.converged
    assert fit.log_evidence == pytest.approx(np.log(joint.sum() * 0.02 * 0.2), abs=NEARLY[prior])
    np.testing.assert_allclose(fit.mean, mean, atol=NEARLY[prior])


def test_one_factor_for_each_value_is_exact():
    # the row does not see the weight; the bias' prior is normal but for 1e-6
    fit = propagate(lonely(phi=0.0, prior=Hyperprior(5.0, 5.0, 1e6, 1e6)))
    student = stats.t(10)
    mean, square = 2 * student.expect(lambda x: x, lb=0), student.var()
    assert fit.converged
    assert fit.mean[0] == pytest.approx(mean, rel=1e-6)
    assert fit.covariance[0, 0] == pytest.approx(square - mean**2, rel=1e-6)
    assert fit.mean[1] == pytest.approx(1 / np.sqrt(np.pi), rel=1e-5)  # of N(b; 0, 1) Phi(b)
    assert fit.log_evidence == pytest.approx(np.log(0.5), abs=1e-6)


@pytest.fixture(scope="module")
def fitted():
    X, label = blobs(24, seed=3)
    found = problem(X, label, PLUG_IN)
    return found, SignedRows.of(found), propagate(SignedRows.of(found))


def test_at_the_fixed_point_tilted_moments_are_the_marginals(fitted):
    _, rows, fit = fitted
    assert fit.converged
    assert fit.n_iter == len(fit.change) == len(fit.step)
    assert fit.change[-1] <= 1e-7 < fit.change[0]
    theta = slice(-len(fit.mean), None)
    np.testing.assert_allclose(fit.tilted.mean[theta], fit.mean, atol=1e-6)
    np.testing.assert_allclose(fit.tilted.variance[theta], np.diag(fit.covariance), rtol=1e-6)
    n = len(rows.design)
    np.testing.assert_allclose(fit.tilted.mean[:n], rows.design @ fit.mean, atol=1e-6)
    spread = np.einsum("ij,jk,ik->i", rows.design, fit.covariance, rows.design)
    np.testing.assert_allclose(fit.tilted.variance[:n], spread, rtol=1e-6)


def test_damping_moves_the_way_and_not_the_end(fitted):
    _, rows, fit = fitted
    slow = propagate(rows, PropagationOptions(damping=0.3))
    assert slow.n_iter > fit.n_iter
    assert slow.step.max() <= 0.3
    np.testing.assert_allclose(slow.mean, fit.mean, atol=1e-6)
    assert slow.log_evidence == pytest.approx(fit.log_evidence, abs=1e-6)
    short = propagate(rows, PropagationOptions(max_iter=3))
    assert not short.converged
    assert short.n_iter == 3


def test_the_truncated_normal_has_the_fits_moments(fitted):
    # the same fixed point, hence the same moments up to what expectation propagation misses of either
    _, _, fit = fitted
    drawn = fit.draws(np.random.default_rng(1), 4000)
    sd = np.sqrt(np.diag(fit.covariance))
    assert drawn[:, :-1].min() >= 0.0
    assert np.abs((drawn.mean(0) - fit.mean) / sd).max() < 0.15
    np.testing.assert_allclose(drawn.std(0) / sd, 1.0, atol=0.15)
    assert_means_are_left(fit)


def assert_means_are_left(fit):
    """Check that what replaces the priors leaves the tilted means; return its precisions."""
    (mean, covariance), p = fit.truncated, len(fit.mean)
    precision, cavity = np.linalg.inv(covariance), 1.0 / fit.cavity_variance[-p:]
    factor = precision - fit.row_precision
    total = np.diag(factor) + cavity
    place = (precision @ mean - fit.row_shift + cavity * fit.cavity_mean[-p:]) / total
    found = np.append(half_line_tilted(place[:-1], 1.0 / total[:-1]).mean, place[-1])
    np.testing.assert_allclose(found, fit.tilted.mean[-p:], rtol=1e-6, atol=1e-9)
    return np.diag(factor)


def test_normals_on_a_half_line_have_the_moments_asked_for():
    wanted, module = np.array([[0.3, 2.0, 9.0], [0.05, 0.4, 0.01]]), approximation.propagation
    found = half_line_tilted(*module.half_line_matching(*wanted))
    np.testing.assert_allclose(found[1:], wanted, rtol=1e-9)
    found = half_line_tilted(module.half_line_location(*wanted), wanted[1])
    np.testing.assert_allclose(found.mean, wanted[0], rtol=1e-9)


@pytest.mark.parametrize("c", [1.0, 0.5])
def test_heavy_tails_converge_and_are_drawn(c):
    X, label = blobs(30, seed=4)
    fit = propagate(SignedRows.of(problem(X, label, Hyperprior(c, 0.2, 0.5, 0.5))))
    assert fit.converged
    drawn = fit.draws(np.random.default_rng(1), 2000)
    sd = np.sqrt(np.diag(fit.covariance))
    assert np.abs((drawn.mean(0) - fit.mean) / sd).max() < 0.2
    # no density by the tilted variances: those wider than their cavity get E[precision | w]
    fit = replace(fit, bias_site=(-1e-3, 0.0))
    p, prior = len(fit.mean), fit.hyperprior
    mean, variance = (each[-p:] for each in fit.tilted[1:])
    spread = approximation.propagation.half_line_matching(mean[:-1], variance[:-1])[1]
    own = np.append(1.0 / spread - 1.0 / fit.cavity_variance[-p:-1], -1e-3)
    c, d = np.repeat([[prior.c, prior.e], [prior.d, prior.f]], [p - 1, 1], axis=1)
    wanted = np.where(own > 0, own, (2 * c + 1) / (mean**2 + variance + 2 * d))
    np.testing.assert_allclose(assert_means_are_left(fit), wanted, rtol=1e-6, atol=1e-9)


def test_truncated_draws_have_the_integrals_moments():
    """Two values above zero, the third normal given them; moments of what draws beyond 5 do not move."""
    mean = np.array([-0.5, 0.3, 0.2])
    covariance = np.array([[1, 0.6, 0.3], [0.6, 1, -0.2], [0.3, -0.2, 2]])
    rng = np.random.default_rng(5)
    drawn = truncated_normal_draws(mean, covariance, 2, np.zeros(3), rng, draws=20_000)
    assert drawn[:, :2].min() >= 0.0
    side = np.linspace(0.0, 7.0, 141)
    half = np.where((side == 0) | (side == 7), 0.5, 1.0)  # the trapezoid rule
    node, weight = np.polynomial.hermite_e.hermegauss(20)
    one, two, z = np.meshgrid(side, side, node, indexing="ij")
    given = np.linalg.solve(covariance[:2, :2], covariance[:2, 2])
    third = mean[2] + (one - mean[0]) * given[0] + (two - mean[1]) * given[1]
    third = third + np.sqrt(covariance[2, 2] - covariance[2, :2] @ given) * z
    pair = np.stack([one[..., 0], two[..., 0]], axis=-1)
    density = stats.multivariate_normal(mean[:2], covariance[:2, :2]).pdf(pair)
    p = (density * half[:, None] * half)[..., None] * weight
    p = p.ravel() / p.sum()

    def functions(points):
        products = points[:, :, None] * points[:, None, :]
        return np.hstack([points, products[:, *np.triu_indices(3)]])

    points = np.column_stack([one.ravel(), two.ravel(), third.ravel()])
    assert_means(functions(drawn), p @ functions(points))


def test_laplace_expands_the_log_posterior_at_its_mode(fitted):
    found, rows, _ = fitted
    end = fit_em(found, Start.default(found), EMOptions(tol=1e-10))
    mode = np.append(np.abs(end.weight), end.bias)
    fit = fit_laplace(rows, mode)
    assert fit.is_exact

    def log_posterior(theta):
        prior = PLUG_IN.log_weight_density(theta[:-1]).sum() + PLUG_IN.log_bias_density(theta[-1])
        return prior + np.log(ndtr(rows.design @ theta)).sum()

    step, p = 1e-4, len(mode)
    inverse = np.linalg.inv(fit.covariance)
    slope = inverse @ (fit.mean - mode)
    for j in range(p):
        up, down = mode + step * np.eye(p)[j], mode - step * np.eye(p)[j]
        ends = log_posterior(up), log_posterior(mode), log_posterior(down)
        assert (ends[0] - ends[2]) / (2 * step) == pytest.approx(slope[j], abs=1e-5)
        bend = (ends[0] - 2 * ends[1] + ends[2]) / step**2
        assert bend == pytest.approx(-inverse[j, j], rel=1e-4)
    assert np.abs(slope[mode > 0]).max() < 1e-6
    assert slope[mode == 0].max(initial=-1.0) < 0.0


def test_laplace_takes_the_expected_precision_where_the_prior_is_too_convex():
    # one large weight of a heavy-tailed prior, which the rows hardly hold
    rows = lonely(phi=1e-3, prior=Hyperprior(0.5, 0.01, 1.0, 1.0))
    fit = fit_laplace(rows, np.array([3.0, 0.1]))
    assert not fit.is_exact
    assert np.linalg.eigvalsh(fit.covariance).min() > 0


OTHER_PROBLEMS = [
    ({"likelihood": Logit()}, "'logit'; the approximations need the probit"),
    ({"sign": None}, "the weights are free"),
    ({"hyperprior": Hyperprior.jeffreys()}, "improper or of unknown scale"),
    ({"hyperprior": replace(PLUG_IN, rate_shape=0.5)}, "improper or of unknown scale"),
    ({"hyperprior": Laplace(1.0)}, r"'laplace'; the approximations need a Hyperprior"),
    ({"hyperprior": HalfHorseshoe(0.1)}, "'half-horseshoe'; the approximations need"),
    ({"bias": "free"}, "bias='free' and a known width"),
]


@pytest.mark.parametrize(("change", "match"), OTHER_PROBLEMS)
def test_other_problems_are_refused_by_name(fitted, change, match):
    refused(match, SignedRows.of, replace(fitted[0], **change))
    weighted = fitted[0].weighted(np.full(24, 2.0))
    refused("rows without weights", SignedRows.of, weighted)
