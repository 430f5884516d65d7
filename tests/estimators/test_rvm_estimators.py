import numpy as np
import pytest
from problems import blobs, fixed_rng, sinc
from sklearn.base import clone
from sklearn.datasets import load_iris, make_friedman1, make_friedman2, make_friedman3
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pcvm_pymc import RVMClassifier, RVMRegressor, Status
from pcvm_pymc.core.evidence import EvidenceOptions, EvidenceProblem, fit_rvm
from pcvm_pymc.core.pieces.kernels import as_kernel
from pcvm_pymc.core.validity import rvm_validity

x, y = sinc(60, end=6.0)


@pytest.mark.parametrize("method", ["evidence", "validity"])
def test_width_of_the_highest_score(method):
    X, label = blobs(60, seed=1)
    model = RVMClassifier(width=method).fit(X, label)
    assert model.width_ == model.width_selection_.width
    for width, score in zip(
        model.width_selection_.widths, model.width_selection_.scores, strict=True
    ):
        problem = EvidenceProblem(as_kernel("rbf", width)(X, X), label, "logit")
        result = fit_rvm(problem, options=EvidenceOptions(tol=1e-3))
        validity = rvm_validity(X, problem, result, kernel=as_kernel("rbf", width)).log_validity
        assert score == (result.log_evidence if method == "evidence" else validity)


def test_one_width_is_chosen_on_held_out_rows():
    X, label = blobs(60, seed=1)
    model = RVMClassifier(width="shared", random_state=3).fit(X, label)
    assert model.width_ == model.width_selection_.width
    again = RVMClassifier(width="shared", random_state=3).fit(X, label)
    np.testing.assert_array_equal(again.width_selection_.scores, model.width_selection_.scores)
    assert (model.width_selection_.scores < 0).all()
    assert model.width_selection_.scores.max() > np.log(0.5)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_several_classes_one_against_the_rest(link):
    X, y = load_iris(return_X_y=True)
    words = np.array(["setosa", "versicolor", "virginica"])[y]
    model = RVMClassifier(link=link, width=3.0).fit(X, words)
    assert np.mean(model.predict(X) == words) >= 0.95
    probability = model.predict_proba(X)
    theirs = OneVsRestClassifier(RVMClassifier(link=link, width=3.0)).fit(X, words)
    np.testing.assert_allclose(probability, theirs.predict_proba(X), atol=1e-12)
    mean, variance = model.latent_moments(X)
    latent = as_kernel("rbf", 3.0)(X, model.relevance_vectors_) @ model.weight_.T
    np.testing.assert_allclose(mean, latent + model.bias_, atol=1e-9)
    assert variance.shape == (150, 3)
    assert (variance > 0).all()
    binary = RVMClassifier(link=link, width=3.0).fit(X, y > 0)  # probabilities are moderated
    assert (np.abs(binary.decision_function(X)) < np.abs(binary.latent_moments(X)[0])).all()


def test_star_bands_widen_away_from_the_data():
    far = np.linspace(8, 30, 2000)[:, None]
    model, star = RVMRegressor(width=2.0, std="weights"), RVMRegressor(width=2.0, star=True)
    plain, wide = (each.fit(x, y).predict(far, return_std=True)[1] for each in (model, star))
    assert (wide >= plain).all()
    assert wide[-1] > 2 * plain[-1]
    mean, std = model.predict(x, return_std=True)
    assert 0.85 < np.mean(np.abs(y - mean) < 1.96 * std) <= 1.0


def test_the_standard_deviation_is_the_error_expected_under_the_process():
    model = RVMRegressor(width=2.0).fit(x, y)
    plain = RVMRegressor(width=2.0, std="weights").fit(x, y)
    process, new = model._process_, np.linspace(-12.0, 30.0, 50)[:, None]
    # scikit-learn's process with the same amplitude and noise
    kernel = ConstantKernel(process.amplitude) * RBF(2.0 / np.sqrt(2.0))
    theirs = GaussianProcessRegressor(kernel, alpha=process.noise, optimizer=None)
    gp_mean, gp_std = theirs.fit(x, y - y.mean()).predict(new, return_std=True)
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_array_equal(mean, plain.predict(new))
    variance = gp_std**2 + process.noise + (gp_mean + y.mean() - mean) ** 2
    np.testing.assert_allclose(std**2, variance, rtol=1e-6)
    # whose evidence is the highest
    free = ConstantKernel(1.0, (1e-6, 1e6)) * RBF(2.0 / np.sqrt(2.0), "fixed")
    free += WhiteKernel(0.1, (1e-6, 1e3))
    best = GaussianProcessRegressor(free, n_restarts_optimizer=3, random_state=0)
    best.fit(x, y - y.mean())
    amplitude, noise = np.exp(best.kernel_.theta)
    assert process.amplitude == pytest.approx(amplitude, rel=1e-2)
    assert process.noise == pytest.approx(noise, rel=1e-2)
    assert std[-1] > 2 * plain.predict(new, return_std=True)[1][-1]
    assert RVMRegressor(width=2.0, noise=0.3).fit(x, y)._process_.noise == pytest.approx(0.09)


def test_draws_of_a_process_predict_better_than_vectors_and_cover_as_often():
    """Friedman's first function: 120 rows, and 1000 new ones; as many draws as by default."""
    X, y = make_friedman1(1120, noise=1.0, random_state=3)
    plain = RVMRegressor(random_state=0).fit(X[:120], y[:120])
    model = RVMRegressor(estimation="posterior", random_state=0).fit(X[:120], y[:120])
    new, truth = X[120:], y[120:]
    mean, std = model.predict(new, return_std=True)
    assert np.std(mean - truth) < 1.03 * np.std(plain.predict(new) - truth)
    ends = model.predict_interval(new)
    assert 0.85 < np.mean((ends[:, 0] < truth) & (truth < ends[:, 1])) < 0.93
    np.testing.assert_allclose(np.diff(ends)[:, 0] / (2.0 * 1.5982 * std), 1.0, atol=0.1)
    assert model.status_ is Status.CONVERGED
    np.testing.assert_array_equal(model.support_, np.arange(120))
    # far away the mean is the bias, its error the process's
    drawn = model.idata_["posterior"].to_dataset()
    far, its_std = model.predict(np.full((1, 10), 50.0), return_std=True)
    assert far[0] == pytest.approx(drawn["bias"].mean().item())
    variance = (drawn["amplitude"] + drawn["noise"] ** 2).mean() + drawn["bias"].var()
    assert its_std[0] ** 2 == pytest.approx(variance.item())
    assert len(np.unique(drawn["width"])) > 1
    given = clone(model).set_params(width=3.0, noise=0.9).fit(X[:120], y[:120])
    assert given.idata_["constant_data"]["width"] == 3.0
    assert given.idata_["constant_data"]["noise"] == pytest.approx(0.9)
    moved = clone(given).set_params(noise=9e5).fit(X[:120], 1e9 + 1e6 * y[:120])
    ends = given.predict_interval(new)
    np.testing.assert_allclose((moved.predict_interval(new) - 1e9) / 1e6, ends, atol=1e-6)


def test_a_process_needs_the_rbf_and_normal_noise_and_a_spline_has_no_width():
    for options in ({"star": True}, {"likelihood": "student-t"}, {"kernel": "linear-spline"}):
        with pytest.raises(ValueError, match=r"std='process'.*needed std='auto'"):
            RVMRegressor(std="process", **options).fit(x, y)
    model = RVMRegressor(kernel="linear-spline").fit(x, y)
    assert not hasattr(model, "_process_")
    assert not hasattr(model, "width_selection_")
    assert 0.06 < model.noise_ < 0.14


FRIEDMAN = [(make_friedman2, 125.0, 4100), (make_friedman3, 0.1, 0.0165)]


@pytest.mark.fixed_seeds  # printed figures
@pytest.mark.parametrize(("make", "noise", "limit"), FRIEDMAN)
@pytest.mark.parametrize("seeds", [(2,), pytest.param((0, 1, 2), marks=pytest.mark.slow)], ids=len)
def test_friedmans_functions(make, noise, limit, seeds):
    """240 noisy rows, error against the function on 1000, inputs standardised, width chosen inside."""
    errors = []
    for seed in seeds:
        X, y = make(240, noise=noise, random_state=seed)
        X_test, y_test = make(1000, noise=0.0, random_state=1000 + seed)
        model = make_pipeline(StandardScaler(), RVMRegressor(random_state=0)).fit(X, y)
        errors.append(np.mean((model.predict(X_test) - y_test) ** 2))
    assert np.mean(errors) <= limit


@pytest.mark.parametrize("far", [1e3, -1e6, 1e12])
def test_one_target_far_from_all_others_moves_no_fit_under_student_t_noise(far):
    """From 1e6 on the fit was a constant: the noise began at, and had as its floor, shares of the outlier."""
    rng = fixed_rng(0)
    x = rng.uniform(-3, 3, (80, 1))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=80)
    y[7] = far
    model = RVMRegressor(width=1.0, likelihood="student-t").fit(x, y)
    assert np.sqrt(np.mean((model.predict(x) - np.sin(2 * x[:, 0])) ** 2)) < 0.1
    assert 0.04 < model.noise_ < 0.15


REGRESSORS = {
    "sequential": {},
    "batch": {"method": "batch"},
    "few bases": {"basis": 15, "options": EvidenceOptions(noise_starts=(0.1, 0.3))},
    "factor of chunks": {"basis": 15, "memory_limit": 2e5},
    "computed": {"memory_limit": 2e5},
    "student-t": {"likelihood": "student-t"},
    "star": {"star": True},
    "known noise": {"noise": 0.1},
    "width by folds": {"width": "shared"},
    "width by evidence": {"width": "evidence"},
    "width by validity": {"width": "validity"},
}


UNITS = [(-3.7, 0.0), (1e-8, 0.0), (1e8, -1e12), (1.0, 1e8), (2.0**20, 1e12)]


@pytest.mark.parametrize("case", REGRESSORS)
@pytest.mark.parametrize(("unit", "zero"), UNITS)
def test_a_regression_does_not_depend_on_zero_and_unit_of_the_targets(case, unit, zero):
    """At 1e8 above zero the fit was a constant, or took seven times as long."""
    rng = fixed_rng(0)
    x, new = rng.uniform(-3, 3, (60, 1)), np.linspace(-4, 4, 30)[:, None]
    y = zero + unit * (np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=60))
    options = {"width": 1.0, "random_state": 0, **REGRESSORS[case]}
    plain = RVMRegressor(**options).fit(x, (y - zero) / unit)  # without the digits that y has lost
    if "noise" in options:
        options["noise"] *= abs(unit)
    moved = RVMRegressor(**options).fit(x, y)
    np.testing.assert_array_equal(moved.support_, plain.support_)
    assert moved.width_ == plain.width_
    # predictions are rounded, and so is what is subtracted
    close = 1e-8 + 4 * np.spacing(abs(zero)) / abs(unit)
    (mean, std), wanted = (each.predict(new, return_std=True) for each in (moved, plain))
    np.testing.assert_allclose((mean - zero) / unit, wanted[0], atol=close)
    np.testing.assert_allclose(std / abs(unit), wanted[1], atol=close)
    np.testing.assert_allclose(moved.weight_ / unit, plain.weight_, atol=1e-6 + 100 * close)
    np.testing.assert_allclose(moved.noise_ / abs(unit), plain.noise_, rtol=1e-6)
    found = moved.log_evidence_ + 60 * np.log(abs(unit))
    assert found == pytest.approx(plain.log_evidence_, abs=1e-5)
    assert np.sqrt(np.mean((wanted[0][4:-4] - np.sin(2 * new[4:-4, 0])) ** 2)) < 0.15
