"""The DataTree of a posterior: groups agree with each other and the predictions, and ArviZ reads them."""

import json
import warnings

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pytest
from problems import blobs
from scipy import stats
from scipy.special import log_ndtr

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.kernels import as_kernel
from pcvm_pymc.core.problem import Problem

# whether chains converge within `max_iter` is a matter of the draws, which rounding decides
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ROWS, SIGNS = blobs(40, seed=81, fixed=True)
TARGETS = {
    "two": np.where(SIGNS > 0, "yes", "no"),
    "three": np.array(["a", "b", "c"])[np.arange(40) % 3],
    "numbers": np.sin(ROWS[:, 0]) + 0.1 * SIGNS,
}
FEW = {"estimation": "posterior", "random_state": 1, "options": pcvm.PosteriorOptions(100, 400)}
ONE = FEW | {"basis": 5, "width": 2.0}
PRIOR = pcvm.Hyperprior(3.0, 3.0, 1.0, 1.0)
CENTRES = ROWS[:6], np.where(np.arange(6) % 2, -1.0, 1.0)
MACHINES = {
    "several kernels": (pcvm.PCVMClassifier(**FEW, basis=5), "two"),
    "signs": (pcvm.PCVMClassifier(**ONE | {"basis": CENTRES, "hyperprior": PRIOR}), "two"),
    "mPCVM": (pcvm.MPCVMClassifier(**ONE | {"basis": 6}), "three"),
    "mPCVM of two": (pcvm.MPCVMClassifier(**ONE | {"basis": 6}), "two"),
    "mRVM": (pcvm.MRVMClassifier(**ONE), "three"),
    "one against the rest": (pcvm.RVMClassifier(**ONE, link="probit"), "three"),
    "sparse probit": (pcvm.SparseProbitClassifier(**FEW, prior="laplace"), "two"),
    "regression": (pcvm.RVMRegressor(**ONE), "numbers"),
    "Student-t": (pcvm.RVMRegressor(**ONE, likelihood="student-t", noise=0.2), "numbers"),
}


@pytest.fixture(scope="module", params=MACHINES)
def fitted(request):
    model, kind = MACHINES[request.param]
    return model.fit(ROWS, TARGETS[kind]), TARGETS[kind], request.param


def values_of(tree, group, name):
    """Return all draws of a variable, chains one after the other."""
    found = tree[group][name]
    return found.values.reshape(-1, *found.shape[2:])


def densities_of(model, latent, y, noise):
    """Return log densities of targets at latent values, written down again."""
    number = np.searchsorted(vars(model).get("classes_", []), y)
    if isinstance(model, pcvm.RVMRegressor):
        law = stats.t(4.0) if model.likelihood == "student-t" else stats.norm
        return law.logpdf((y - latent) / noise) - np.log(noise)
    if latent.ndim == 2:
        return log_ndtr(np.where(number > 0, 1, -1) * latent)
    if isinstance(model, pcvm.RVMClassifier):  # shares of what each says for itself
        own = log_ndtr(latent)
        return own[:, np.arange(len(y)), number] - np.log(np.exp(own).sum(axis=2))
    likelihood = pcvm.core.pieces.likelihoods.MultinomialProbit(latent.shape[2])
    return np.stack([likelihood.log_density(f, number) for f in latent])


def test_the_log_likelihood_is_that_of_the_latent_draws(fitted):
    model, y, _ = fitted
    tree, noise = model.idata_, 1.0
    if isinstance(model, pcvm.RVMRegressor):
        group = "posterior" if "noise" in tree["posterior"] else "constant_data"
        noise = np.reshape(tree[group]["noise"].values, (-1, 1))
        assert (group == "posterior") == (model.likelihood != "student-t")
    name = "target" if isinstance(model, pcvm.RVMRegressor) else "label"
    expected = densities_of(model, values_of(tree, "posterior", "latent"), y, noise)
    np.testing.assert_allclose(values_of(tree, "log_likelihood", name), expected, atol=1e-8)
    said = tree["log_likelihood"].attrs["leave_one_out"]
    assert said.startswith("not for" if fitted[2] == "signs" else "approximate")


def test_predicted_targets_are_drawn_as_the_estimator_predicts(fitted):
    """By Hoeffding's inequality a share is .17 away with a probability of 2e-10, a sum by its own."""
    model, y, _ = fitted
    tree = model.idata_
    if not isinstance(model, pcvm.RVMRegressor):
        observed, classes = tree["observed_data"]["label"].values, json.loads(tree.attrs["classes"])
        np.testing.assert_array_equal(np.array(classes)[observed], y)
        drawn = values_of(tree, "posterior_predictive", "label")
        shares = np.stack([(drawn == c).mean(axis=0) for c in range(len(classes))], axis=1)
        expected = model.predict_proba(ROWS)
        assert abs(shares - expected).max() < 0.17
        assert abs(shares.mean(axis=0) - expected.mean(axis=0)).max() < 0.17 / np.sqrt(len(y))
        return
    np.testing.assert_array_equal(tree["observed_data"]["target"], y)
    drawn = values_of(tree, "posterior_predictive", "target")
    group = "posterior" if "noise" in tree["posterior"] else "constant_data"
    noise = np.reshape(tree[group]["noise"].values, (-1, 1))
    law = stats.t(4.0) if model.likelihood == "student-t" else stats.norm
    rank = law.cdf((drawn - values_of(tree, "posterior", "latent")) / noise)
    assert stats.kstest(rank.ravel(), "uniform").pvalue > 1e-7


def test_statistics_of_trajectories_are_of_the_draws(fitted):
    found = fitted[0].idata_["sample_stats"].to_dataset()
    if fitted[2] == "signs":  # by Gibbs sampling
        assert not found
        return
    needed = {"lp", "energy", "acceptance_rate", "step_size", "diverging", "n_steps"}
    assert set(found) == needed
    assert all(each.sizes == {"chain": 4, "draw": 100} for each in found.values())
    assert found["diverging"].dtype == bool
    assert 0.5 < found["acceptance_rate"].mean() <= 1.0
    assert (found["acceptance_rate"] >= 0.0).all()
    assert (found["n_steps"] >= 1).all()
    assert (found["step_size"] > 0).all()


def test_lp_is_the_log_posterior_and_the_energy_exceeds_it_by_that_of_normal_momenta():
    """Of 1000 draws with 6 momenta each the mean square is .1 from one with a probability of 5e-8."""
    long = {"options": pcvm.PosteriorOptions(250, 1000), "hyperprior": PRIOR}
    model = pcvm.PCVMClassifier(**ONE | long)
    tree = model.fit(ROWS, TARGETS["two"]).idata_
    Phi = as_kernel("rbf", 2.0)(ROWS, model.relevance_vectors_)
    problem = Problem(Phi, SIGNS, None, PRIOR)
    names = ("latent", "weight", "bias")
    latent, weight, bias = (values_of(tree, "posterior", each) for each in names)
    np.testing.assert_allclose(weight @ Phi.T + bias[:, None], latent, rtol=1e-9)
    density = values_of(tree, "log_likelihood", "label").sum(axis=1)
    density += [problem.log_prior(*each) for each in zip(weight, bias, strict=True)]
    lp, energy = (values_of(tree, "sample_stats", name) for name in ("lp", "energy"))
    assert np.ptp(lp - density) < 1e-8
    square = 2.0 * (energy + lp)
    assert (square > 0.0).all()
    assert np.mean(square) / 6 == pytest.approx(1.0, abs=0.1)


def test_copies_of_a_row_are_one_row_and_its_density_that_of_all():
    twice = np.append(np.arange(40), np.arange(10))
    model = pcvm.PCVMClassifier(**ONE)
    weight = np.ones(50)
    weight[40:45] = 0.0  # the copies of the first five rows do not count
    tree = model.fit(ROWS[twice], TARGETS["two"][twice], sample_weight=weight).idata_
    obs, count = tree["observed_data"]["obs"].values, tree["constant_data"]["sample_weight"].values
    np.testing.assert_array_equal(np.sort(obs), np.arange(40))
    np.testing.assert_array_equal(count, 1.0 + ((obs >= 5) & (obs < 10)))
    label = np.where(TARGETS["two"][twice][obs] == "yes", 1, 0)
    np.testing.assert_array_equal(tree["observed_data"]["label"], label)
    latent = values_of(tree, "posterior", "latent")
    expected = count * log_ndtr((2 * label - 1) * latent)
    np.testing.assert_allclose(values_of(tree, "log_likelihood", "label"), expected, atol=1e-12)


def test_arviz_takes_all_groups_and_files_keep_them(fitted, tmp_path):
    model, _, name = fitted
    tree = model.idata_
    summary = az.summary(tree)
    assert np.isfinite(summary["mean"].astype(float)).all()
    with warnings.catch_warnings():  # whether a row's is too large is a matter of the draws
        warnings.filterwarnings("ignore", message="Estimated shape parameter of Pareto")
        assert np.isfinite(az.loo(tree).elpd)
    if name != "signs":  # which has no trajectories
        az.plot_energy(tree)
    kind = {2: "binary", 3: "categorical"}.get(len(vars(model).get("classes_", [])))
    if kind is None:
        az.plot_ppc_dist(tree)
    else:
        az.plot_ppc_pava(tree, data_type=kind)
    plt.close("all")
    again = pcvm.load(pcvm.save(tree, tmp_path / "posterior.zarr"))
    assert again.equals(tree)
    assert again.attrs.get("classes") == tree.attrs.get("classes")


def test_the_warning_of_loo_is_arvizs_own():
    """A label under the sign of its own weight, with few centres: its row is far from left out."""
    basis = ROWS, SIGNS
    wide = pcvm.Hyperprior(3.0, 30.0, 1.0, 1.0)
    model = pcvm.PCVMClassifier(**ONE | {"basis": basis, "width": 0.3, "hyperprior": wide})
    tree = model.fit(ROWS, TARGETS["two"]).idata_
    assert "signs of weights" in tree["log_likelihood"].attrs["leave_one_out"]
    with pytest.warns(UserWarning, match="Estimated shape parameter of Pareto"):
        az.loo(tree)
