"""Rows that count by weights are repeated rows: the same objective, the same end."""

from dataclasses import replace

import numpy as np
import pytest
from problems import blobs, fixed_rng, refused

from pcvm_pymc import MRVMClassifier
from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.evidence import EvidenceProblem, fit_bottom_up, fit_rvm
from pcvm_pymc.core.family import check_solver
from pcvm_pymc.core.hamiltonian import LogPosterior
from pcvm_pymc.core.loo import check_step
from pcvm_pymc.core.pieces import likelihoods, row_weights
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.likelihoods import Logit, MultinomialProbit, Normal, Probit, StudentT
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace
from pcvm_pymc.core.problem import ObservedRows, Problem, Status

# one problem, under which a fit with weights finds the same mode as that of repeated rows
X, LABEL = blobs(40, seed=4, gap=1.0, fixed=True)
CLASS = np.digitize(X[:, 1], [-0.4, 0.5])
TIMES = fixed_rng(0).integers(1, 4, size=40)
COPIES = np.repeat(np.arange(40), TIMES)
CENTRES = X[:12]
PHI = RBF(1.5)(X, CENTRES)
PROPER, JEFFREYS = Hyperprior.plug_in(), Hyperprior.jeffreys()
SIGNS = np.where(CLASS[:12, None] == np.arange(3), 1.0, -1.0)

CASES = {
    "probit": Problem(PHI, LABEL, LABEL[:12], PROPER),
    "probit, improper": Problem(PHI, LABEL, LABEL[:12], JEFFREYS),
    "logit": Problem(PHI, LABEL, LABEL[:12], PROPER, Logit()),
    "label noise": Problem(PHI, LABEL, LABEL[:12], PROPER, likelihoods.NoisyProbit(0.1)),
    "free": Problem(PHI, LABEL, None, PROPER, bias="free"),
    "Jeffreys from the ridge": Problem(PHI, LABEL, None, JEFFREYS),
    "Laplace": Problem(PHI, LABEL, None, Laplace(2.0)),
    "classes": Problem(PHI, CLASS, SIGNS, PROPER, MultinomialProbit(3)),
    "classes, improper": Problem(PHI, CLASS, None, JEFFREYS, MultinomialProbit(3), bias="none"),
}


def repeated(problem):
    return problem.part(COPIES, slice(None))


def same_end(weighted, copies, rtol=1e-7):
    assert weighted.log_posterior == pytest.approx(copies.log_posterior, rel=1e-9)
    np.testing.assert_allclose(weighted.weight, copies.weight, rtol=rtol, atol=1e-8)
    np.testing.assert_allclose(weighted.bias, copies.bias, rtol=rtol, atol=1e-8)
    np.testing.assert_allclose(weighted.latent[COPIES], copies.latent, rtol=rtol, atol=1e-8)


@pytest.mark.parametrize("update", ["auto", "em"])
@pytest.mark.parametrize("case", CASES)
def test_em_ends_where_repeated_rows_do(case, update):
    options = EMOptions(update=update, max_iter=60, tol=1e-9)
    whole = CASES[case]
    found = fit_em(replace(whole, row_weight=TIMES), None, options)
    same_end(found, fit_em(repeated(whole), None, options), rtol=1e-5)


@pytest.mark.parametrize("signs", [None, SIGNS], ids=["free", "signs"])
@pytest.mark.parametrize("unit", [1e-3, 1.0, 30.0, 1e3, 1e5, "survey"])
def test_several_classes_at_weights_of_any_size_end_at_a_kkt_point(unit, signs):
    """A factor of other directions ended 15 of 36 fits at weights of 300 to 3,000 with an error."""
    rows = fixed_rng(1).lognormal(7, 1, size=40) if unit == "survey" else np.full(40, float(unit))
    given = Problem(PHI, CLASS, signs, PROPER, MultinomialProbit(3), row_weight=rows)
    found = fit_em(given, None, EMOptions(tol=1e-9, max_iter=500))
    assert np.diff(found.trace.log_posterior[1:]).min() >= -1e-10 * abs(found.log_posterior)
    slope = given.observed.score(found.latent)
    close = 1e-6 * (1.0 + np.abs(slope).sum())
    rise = PHI.T @ slope - PROPER.weight_precision(found.weight) * found.weight
    assert np.abs(rise[found.weight != 0]).max() < close
    assert signs is None or (signs * rise).max() < close
    precision = [given.bias_precision(each) for each in found.bias]
    np.testing.assert_allclose(slope.sum(axis=0), precision * found.bias, atol=close)
    if unit == 30.0:
        copies = given.part(np.repeat(np.arange(40), 30), slice(None))
        copies = replace(copies, row_weight=None)
        wanted = fit_em(copies, None, EMOptions(tol=1e-9))
        np.testing.assert_allclose(found.latent, wanted.latent[::30], atol=1e-6)


def test_precisions_below_rounding_do_not_let_the_search_diverge():
    """Survey weights that separate the classes: scores stay those of a probit, as of repeated rows."""
    rng = fixed_rng(0)
    rows = rng.normal(size=(60, 2))
    label = np.digitize(rows[:, 0] + 0.4 * rng.normal(size=60), [-0.5, 0.5])
    times = np.round(fixed_rng(4).lognormal(7.0, 1.0, size=60))
    model = MRVMClassifier(width=1.0)
    weighted = model.fit(rows, label, sample_weight=times).decision_function(rows)
    assert model.status_ is Status.CONVERGED
    assert np.abs(weighted).max() < 40.0


def same_evidence(target, likelihood, times, **how):
    """Rows that count by weights, none of them zero times among the copies, are repeated rows."""
    copies = np.repeat(np.arange(40), times)
    found = fit_rvm(EvidenceProblem(PHI, target, likelihood, row_weight=times), **how)
    wanted = fit_rvm(EvidenceProblem(PHI[copies], target[copies], likelihood), **how)
    assert found.log_evidence == pytest.approx(wanted.log_evidence, rel=1e-5)
    np.testing.assert_allclose(found.weight, wanted.weight, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["sequential", "batch"])
@pytest.mark.parametrize("likelihood", [Logit(), Probit()])
def test_evidence_is_that_of_repeated_rows(method, likelihood):
    same_evidence(LABEL, likelihood, TIMES, method=method)


NUMBER = X[:, 0] + 0.3 * fixed_rng(6).standard_t(4, size=40) + 5.0
NOISE = fixed_rng(7).uniform(0.1, 0.6, size=40)


@pytest.mark.parametrize("method", ["sequential", "batch"])
@pytest.mark.parametrize("weight", [None, TIMES])
def test_known_noise_divides_the_rows(method, weight):
    """Rows over their noise have unit noise; the density of the targets has one over each noise besides."""
    rows = ObservedRows.of(Normal(), NUMBER, weight, NOISE)
    problem = EvidenceProblem(PHI, NUMBER, rows.likelihood, row_weight=rows.weight)
    found = fit_rvm(problem, method=method)
    divided = {"likelihood": Normal(1.0), "constant": 1.0 / NOISE}
    rows = slice(None) if weight is None else COPIES
    divided["constant"] = divided["constant"][rows]
    over = PHI[rows] / NOISE[rows, None], NUMBER[rows] / NOISE[rows]
    wanted = fit_rvm(EvidenceProblem(*over, **divided), method=method)
    assert found.log_evidence == pytest.approx(wanted.log_evidence - np.log(NOISE[rows]).sum())
    np.testing.assert_allclose(found.weight, wanted.weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.covariance, wanted.covariance, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.latent[rows], wanted.latent * NOISE[rows], rtol=1e-6)


@pytest.mark.parametrize("likelihood", [Normal(), StudentT()])
def test_a_number_of_weight_zero_does_not_count(likelihood):
    same_evidence(NUMBER, likelihood, TIMES * (np.arange(40) != 3))


@pytest.mark.parametrize("noise", [np.nan, 0.4])
@pytest.mark.parametrize("kind", [Normal, StudentT])
def test_the_log_posterior_is_that_of_repeated_rows(kind, noise):
    plain = Problem(PHI, NUMBER - 5.0, None, PROPER, kind(noise))
    weighted, copies = LogPosterior(replace(plain, row_weight=TIMES)), LogPosterior(repeated(plain))
    at = fixed_rng(8).normal(size=(3, weighted.n_parameters))
    (value, slope), (same, same_slope) = weighted(at), copies(at)
    np.testing.assert_allclose(np.diff(value), np.diff(same), rtol=1e-9)
    np.testing.assert_allclose(slope, same_slope, rtol=1e-9, atol=1e-9)
    curvatures = (each.curvature(at[0])[0] for each in (weighted, copies))
    np.testing.assert_allclose(*curvatures, rtol=1e-9, atol=1e-9)


def test_a_weighted_median_is_that_of_repeated_values():
    for n in range(1, 12):
        value, times = fixed_rng(n).normal(size=n), fixed_rng(n).integers(1, 4, size=n)
        assert row_weights.weighted_median(value, times) == np.median(np.repeat(value, times))


@pytest.mark.parametrize(("base", "label"), [(Probit(), LABEL), (MultinomialProbit(3), CLASS)])
def test_values_and_slopes_at_once_are_those_one_by_one(base, label):
    rows, latent = ObservedRows(base, label, TIMES), PHI[:, : base.n_scores].squeeze()
    value, slope = rows.value_and_score(latent)
    np.testing.assert_allclose(value, rows.log_density(latent), rtol=1e-5)
    np.testing.assert_allclose(slope, rows.score(latent), rtol=1e-5, atol=1e-5)


BOTTOM_UP_CASES = [
    Problem(PHI, LABEL, LABEL[:12], JEFFREYS),
    Problem(PHI, CLASS, SIGNS, JEFFREYS, MultinomialProbit(3)),
    Problem(PHI, CLASS, None, JEFFREYS, MultinomialProbit(3), bias="none", shared=True),
]


@pytest.mark.parametrize("problem", BOTTOM_UP_CASES, ids=["pcvm", "mpcvm", "mrvm shared"])
def test_the_search_from_the_bottom_up_is_that_of_repeated_rows(problem):
    weighted = replace(problem, row_weight=TIMES)
    found, wanted = fit_bottom_up(weighted), fit_bottom_up(repeated(problem))
    assert found.n_iter == wanted.n_iter
    same_end(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("case", ["probit", "logit", "classes"])
def test_leaving_a_row_out_leaves_all_its_copies_out(case):
    problem = replace(CASES[case], row_weight=TIMES)
    own = np.arange(12)
    tight = EMOptions(tol=1e-10)
    mode = fit_em(problem, None, tight)
    found = check_step(problem, mode.weight, mode.bias, own)
    copies, base = repeated(CASES[case]), CASES[case].likelihood
    density = base.log_density(found.after.latent, CASES[case].label)
    np.testing.assert_allclose(found.after.log_density, TIMES * density, rtol=1e-12)
    near = np.flatnonzero(found.doubt < 0.003)
    assert len(near) >= 10
    for row in near[::4]:
        rest, columns = np.flatnonzero(row != COPIES), np.flatnonzero(own != row)
        parts = {"Phi": copies.Phi[np.ix_(rest, columns)], "sign": copies.sign[columns]}
        refit = fit_em(replace(copies, label=copies.label[rest], **parts), None, tight)
        latent = (PHI[row, columns] @ refit.weight + refit.bias)[None]
        wanted = TIMES[row] * base.log_density(latent, CASES[case].label[[row]])[0]
        assert found.after.log_density[row] == pytest.approx(wanted, abs=0.01)


def test_rows_with_weights_are_drawn_along_trajectories():
    check_solver(CASES["probit"], "gibbs")
    weighted = replace(CASES["probit"], row_weight=TIMES)
    refused("'gibbs' does not take; use .*nuts", check_solver, weighted, "gibbs")
    check_solver(replace(weighted, sign=None), "hmc")
