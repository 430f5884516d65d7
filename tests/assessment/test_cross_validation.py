from functools import partial

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
from matplotlib.figure import Figure
from problems import blobs, map_result, refused, three_blobs, with_groups
from scipy.special import expit, ndtr

import pcvm_pymc as pcvm
from pcvm_pymc import Hyperprior, kfold, mpcvm_model, pcvm_model, sample
from pcvm_pymc.core.pieces.likelihoods import NoisyProbit
from pcvm_pymc.core.pieces.probit import log_ndtr
from pcvm_pymc.inference.prediction import latent_draws

QUIET = {"quiet": True, "cores": 1}


@pytest.fixture(scope="module")
def fit():
    X, label = blobs(40, seed=80)
    words = np.where(label > 0, "yes", "no")
    return sample(pcvm_model(X, words, width=1.2), draws=200, random_seed=1, **QUIET), X, words


def test_folds_are_sampled_as_the_posterior_was(monkeypatch):
    """Whatever `sample` by itself would take for a fold."""
    X, label = blobs(20, seed=82, fixed=True)
    y = (label > 0).astype(int)
    short = {"draws": 5, "tune": 5, "max_iter": 50, **QUIET}
    posterior, ran = sample(pcvm_model(X, y, width=1.2), method="gibbs", **short), []

    def spy(model, **options):
        ran.append(options["method"])
        return sample(model, **options)

    monkeypatch.setattr("pcvm_pymc.assessment.cross_validation.sample", spy)
    kfold(posterior, X, y, cv=2, random_seed=1, **short)
    assert ran == ["gibbs"] * 2
    with pytest.raises(ValueError, match="max_iter=50 has no effect on method='nuts'"):
        kfold(posterior, X, y, cv=2, random_seed=1, method="nuts", **short)


def test_kfold_by_hand(fit):
    """The MAP of each fold is that of a model without the held-out rows and their bases."""
    posterior, X, words = fit
    found = kfold(posterior, X, words, cv=4, random_seed=2, draws=50, max_iter=500, cores=1)
    label = np.where(words == "yes", 1.0, -1.0)
    pointwise = np.zeros(40)
    for k in range(1, 5):
        train, test = np.flatnonzero(found.fold != k), np.flatnonzero(found.fold == k)
        hyper = posterior["constant_data"]["hyperprior"].values
        model = pcvm_model(X[train], words[train], width=1.2, hyperprior=Hyperprior(*hyper))
        pointwise[test] = log_ndtr(label[test] * latent_draws(map_result(model), X[test])[0])
    row = found.table.loc["MAP plug-in"]
    assert row["elpd"] == pytest.approx(pointwise.sum())
    assert row["se"] == pytest.approx(np.sqrt(40 * pointwise.var()))
    assert row["log loss"] == pytest.approx(-pointwise.mean())
    mean = found.table.loc["posterior mean"]
    assert mean["elpd"] == pytest.approx(found.elpd.elpd)
    assert mean["log loss"] == pytest.approx(-found.elpd.elpd / 40, rel=1e-6)
    assert set(found.fold) == {1, 2, 3, 4}
    assert isinstance(found.plot(), Figure)
    assert "<table" in found._repr_html_()
    assert "log loss" in str(found)


def test_kfold_needs_the_training_data(fit):
    posterior, X, words = fit
    refused("needed the training data", kfold, posterior, X, words[::-1])
    refused("X has 39 rows; needed the 40 training rows", kfold, posterior, X[1:], words)
    refused("cv=30; needed a whole number, 2 to 20", kfold, posterior, X, words, cv=30)
    for shift in (1e-7, 5.0):
        moved = X + shift * np.arange(1, 41)[:, None]
        said = "X has other basis functions than the posterior"
        refused(said, kfold, posterior, moved, words, cv=3)


def drawn_around(point, model, n_draws=6, seed=0):
    """Return draws around a point estimate, without a sampler's time."""
    tree, rng = point.copy(), np.random.default_rng(seed)
    for group in set(tree.children) - {"posterior", "constant_data", "observed_data"}:
        del tree[group]
    draws = point["posterior"].to_dataset().isel(chain=[0, 0], draw=[0] * n_draws)
    draws = draws.assign_coords(chain=[0, 1], draw=range(n_draws))
    noise = {k: 0.1 * rng.normal(size=draws[k].shape) for k in ("weight", "bias", "latent")}
    weight, bias = draws["weight"] * np.exp(noise["weight"]), draws["bias"] + noise["bias"]
    draws = draws.assign(weight=weight, bias=bias, latent=draws["latent"] + noise["latent"])
    dims = {"obs": model.named_vars_to_dims["latent"][0]} if "obs" in draws.dims else {}
    tree["posterior"] = draws.rename({a: b for a, b in dims.items() if a != b})  # as of pm.sample
    with model:
        pm.compute_log_likelihood(tree, progressbar=False)
    return tree


@pytest.fixture
def no_sampler(monkeypatch):
    place = "pcvm_pymc.assessment.cross_validation.sample"
    monkeypatch.setattr(place, lambda model, **_: around_the_map(model))


def around_the_map(model):
    return drawn_around(map_result(model), model)


CLASSIFIERS = {
    "mPCVM": partial(mpcvm_model, width=1.2),
    "mRVM": partial(pcvm.mrvm_model, width=1.2),
    "mRVM, shared": partial(pcvm.mrvm_model, width=1.2, shared=True),
}


@pytest.mark.parametrize("build", CLASSIFIERS.values(), ids=CLASSIFIERS)
def test_kfold_of_several_classes_by_hand(build, no_sampler):
    """Each held-out row's log probability is that of a model built on the other rows alone."""
    X, _, words = three_blobs()
    posterior = around_the_map(build(X, words))
    found = kfold(posterior, X, words, cv=2, random_seed=2)
    number = np.searchsorted(["a", "b", "c"], words)
    known = posterior["constant_data"]
    hyper = pd.Series(known["hyperprior"].values, known["hyperparameter"].values).to_dict()
    hyper.pop("n_scores", None)
    wanted = {name: np.zeros(24) for name in found.probability}
    for k in (1, 2):
        train, test = np.flatnonzero(found.fold != k), np.flatnonzero(found.fold == k)
        one = build(X[train], words[train], hyperprior=Hyperprior(**hyper))
        results = map_result(one), around_the_map(one)
        for name, result in zip(("MAP plug-in", "posterior mean"), results, strict=True):
            p = pcvm.predict(result, X[test])["predictions"]["probability"].mean(("chain", "draw"))
            wanted[name][test] = np.log(p.values[np.arange(len(test)), number[test]])
            np.testing.assert_allclose(found.probability[name][test], p, rtol=1e-6)
    for name, each in wanted.items():
        assert found.table.loc[name, "elpd"] == pytest.approx(each.sum(), rel=1e-6)
        assert found.table.loc[name, "log loss"] == pytest.approx(-each.mean(), rel=1e-6)
    assert found.elpd.elpd == pytest.approx(wanted["posterior mean"].sum(), rel=1e-6)
    np.testing.assert_array_equal(found.label, number)
    assert found.plot().axes[0].get_title() == "MAP plug-in: class a"


def test_two_classes_under_the_multinomial_probit_are_scored_as_two(no_sampler):
    X, label = blobs(20, seed=83)
    found = kfold(around_the_map(mpcvm_model(X, label, width=1.2)), X, label, cv=2, random_seed=0)
    p = found.probability["MAP plug-in"]
    assert p.shape == (20,)
    wanted = np.log(np.where(label > 0, p, 1 - p)).sum()
    assert found.table.loc["MAP plug-in", "elpd"] == pytest.approx(wanted)


@pytest.mark.parametrize("kind", ["free weights", "logit"])
def test_kfold_keeps_signs_and_likelihood(kind, no_sampler):
    X, label = blobs(20, seed=82)
    given = {"features": "kernel", "width": 1.2, "bias": "free", "prior": pcvm.Laplace(2.0)}
    make, link = partial(pcvm.sparse_probit_model, **given), ndtr
    if kind == "logit":
        given = {"width": 1.2, "likelihood": "logit", "hyperprior": Hyperprior.plug_in()}
        make, link = partial(pcvm_model, **given), expit
    found = kfold(around_the_map(make(X, label)), X, label, cv=2, random_seed=1)
    one = found.fold == 1
    half = map_result(make(X[~one], label[~one]))
    p = found.probability["MAP plug-in"][one]
    np.testing.assert_allclose(p, link(latent_draws(half, X[one])[0]), rtol=1e-5)
    assert found.table.index.tolist() == ["MAP plug-in", "posterior mean"]


def test_an_rvm_under_logit_is_scored_with_the_mode_of_its_unconstrained_weights(monkeypatch):
    X, label = blobs(20, seed=82)

    def around(model, **_):
        return drawn_around(pcvm.fit_evidence(model), model)

    monkeypatch.setattr("pcvm_pymc.assessment.cross_validation.sample", around)
    given = {"likelihood": "logit", "width": 1.2, "hyperprior": Hyperprior.plug_in()}
    model = pcvm.rvm_model(X, label, **given)
    found = kfold(around(model), X, label, cv=2, random_seed=1)
    assert found.table.index.tolist() == ["MAP plug-in", "posterior mean"]
    one = found.fold == 1
    half = map_result(pcvm.rvm_model(X[~one], label[~one], **given))
    wanted = expit(latent_draws(half, X[one])[0])
    np.testing.assert_allclose(found.probability["MAP plug-in"][one], wanted, rtol=1e-5)
    p = found.probability["posterior mean"]
    assert found.elpd.elpd == pytest.approx(np.log(np.where(label > 0, p, 1 - p)).sum())


def test_kfold_refuses_regressions_other_classes_and_what_was_drawn(fit):
    X, _, words = three_blobs()
    several = map_result(mpcvm_model(X, words, width=1.2))
    other = np.where(words == "a", "z", words)
    refused(r"y has labels \['z'\]; needed the classes \['a', 'b', 'c'\]", kfold, several, X, other)
    regression = pcvm.fit_evidence(pcvm.rvm_model(X, X[:, 0], width=1.2))
    refused("of a regression under the 'normal' likelihood", kfold, regression, X, X[:, 0])
    posterior, X, words = fit
    drawn = posterior.copy()
    width = posterior["posterior"]["bias"] ** 2
    drawn["posterior"] = posterior["posterior"].to_dataset().assign(width=width)
    refused("with a number as width", kfold, drawn, X, words)
    noisy = map_result(pcvm_model(X, words, width=1.2, likelihood=NoisyProbit(0.1)))
    noisy["posterior"] = noisy["posterior"].to_dataset().assign(flip=(("chain", "draw"), [[0.1]]))
    refused("has a flip that was drawn", kfold, noisy, X, words)
    hidden = posterior.copy()
    del hidden["constant_data"]["hyperprior"]
    refused("the result lacks hyperprior", kfold, hidden, X, words)


OTHER_NAMES = [("label", "obs"), ("outcome", "obs"), ("z", "patients"), ("z", None)]


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
@pytest.mark.parametrize(("observed", "dim"), OTHER_NAMES)
def test_scores_are_the_same_under_any_names(observed, dim, no_sampler):
    """Of the observed variable, and of its dim, if it has one: `loo`, `psis_loo`, `kfold` and `compare`."""
    X, label = blobs(20, seed=84)
    y, names = (label > 0).astype(int), [f"row {i}" for i in range(20)]

    def scores(model):
        mode = map_result(model)
        posterior = drawn_around(mode, model, n_draws=30)
        folds = kfold(posterior, X, y, cv=2, random_seed=1)
        table = pcvm.compare({"MAP": mode, "posterior": posterior}, X, y).table
        table = table.drop(columns="seconds")
        each = [pcvm.loo(mode), pcvm.psis_loo(posterior, pointwise=True), folds.elpd]
        return [*(found.elpd_i for found in each), table]

    with pm.Model(coords={dim: names} if dim else None) as own:
        f = pcvm.pcvm_latent(X, y, width=1.2, **({"dim": dim} if dim else {}))
        pcvm.ProbitBernoulli(observed, f, observed=y, dims=dim)
    found = scores(own)
    for one, wanted in zip(found, scores(pcvm_model(X, y, width=1.2)), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-10)
    for i in (0, 2):
        assert found[i]["obs"].values.tolist() == (names if dim else list(range(20)))
    short = {"draws": 5, "tune": 5, "chains": 1, "max_iter": 50}
    assert [*sample(own, **short, **QUIET)["log_likelihood"]] == [observed]


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")  # a bad k-hat is not at issue
@pytest.mark.parametrize(("signs", "says"), [("both", False), ("labels", True), (None, True)])
def test_loo_has_a_caveat_of_signs_that_are_labels(signs, says, caplog):
    X, label = blobs(20, seed=3)
    given = {"basis": X[:6], "signs": label[:6] if signs == "labels" else signs} if signs else {}
    model = pcvm_model(X, label, width=1.0, hyperprior="default", **given)
    short = {"draws": 150, "tune": 100, "chains": 2, "cores": 1, "max_iter": 2000}
    posterior = sample(model, random_seed=1, quiet=True, **short)
    assert pcvm.psis_loo(posterior).elpd == pytest.approx(az.loo(posterior).elpd)
    assert ("optimistic" in caplog.text) == says


def test_own_terms_are_refitted_by_what_builds_their_model(monkeypatch):
    """The held-out rows' bases go with them, and their groups are set."""
    X, label = blobs(30, seed=85)
    y, data = (label > 0).astype(int), {"place": np.arange(30) % 3}
    place = "pcvm_pymc.assessment.cross_validation.sample"
    monkeypatch.setattr(place, lambda model, **_: map_result(model))
    posterior = map_result(with_groups(X, y, **data))
    refused("or model= of compare and kfold", kfold, posterior, X, y, cv=3)
    found = kfold(posterior, X, y, cv=3, random_seed=1, model=with_groups, data=data)
    wanted = np.zeros(30)
    for k in (1, 2, 3):
        train, test = found.fold != k, found.fold == k
        part = map_result(with_groups(X[train], y[train], data["place"][train]))
        f = latent_draws(part, X[test])[0]
        wanted[test] = expit(f + part["posterior"]["level"].values[0, 0][data["place"][test]])
    np.testing.assert_allclose(found.probability["posterior mean"], wanted, rtol=1e-6)
    elpd = np.log(np.where(y > 0, wanted, 1 - wanted)).sum()
    assert found.table.loc["posterior mean", "elpd"] == pytest.approx(elpd)
    assert found.elpd.elpd == pytest.approx(elpd)
    given = {"model": with_groups, "data": data, "cv": 3}
    refused("y is not the 30 labels", kfold, posterior, X, 1 - y, **given)
    refused("data is for a user-defined model", kfold, posterior, X, y, data=data)
