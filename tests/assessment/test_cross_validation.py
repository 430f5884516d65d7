import arviz as az
import numpy as np
import pytest
from matplotlib.figure import Figure
from problems import blobs
from scipy.special import expit

from pcvm_pymc import (
    HalfHorseshoe,
    Hyperprior,
    find_map_em,
    kfold,
    latent_draws,
    mpcvm_model,
    pcvm_model,
    psis_loo,
    rvm_model,
    sample,
)
from pcvm_pymc.core.pieces.probit import log_ndtr
from pcvm_pymc.inference.sampling import choose_method

QUIET = {"quiet": True, "cores": 1}


@pytest.fixture(scope="module")
def fit():
    X, label = blobs(40, seed=80)
    words = np.where(label > 0, "yes", "no")
    return sample(pcvm_model(X, words, width=1.2), draws=200, random_seed=1, **QUIET), X, words


def test_kfold_drops_the_held_out_bases(fit, monkeypatch):
    posterior, X, words = fit
    sizes = []

    def spy(model, **options):
        sizes.append((len(model.coords["obs"]), len(model.coords["basis"])))
        return sample(model, **options)

    monkeypatch.setattr("pcvm_pymc.assessment.cross_validation.sample", spy)
    kfold(posterior, X, words, cv=4, random_seed=2, draws=50, max_sweeps=500, cores=1)
    assert sizes == [(30, 30)] * 4


def test_kfold_by_hand(fit):
    posterior, X, words = fit
    found = kfold(posterior, X, words, cv=4, random_seed=2, draws=200, cores=1)
    label = np.where(words == "yes", 1.0, -1.0)
    pointwise = np.zeros(40)
    for k in range(1, 5):
        train, test = np.flatnonzero(found.fold != k), np.flatnonzero(found.fold == k)
        hyper = posterior["constant_data"]["hyperprior"].values
        model = pcvm_model(X[train], words[train], width=1.2, hyperprior=Hyperprior(*hyper))
        latent = latent_draws(find_map_em(model, progressbar=False), X[test])
        pointwise[test] = log_ndtr(label[test] * latent[0])
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


def test_kfold_without_a_mode():
    X, label = blobs(20, seed=81)
    model = pcvm_model(X, label, width=1.2, hyperprior=HalfHorseshoe(0.1))
    short = {"draws": 30, "tune": 30, "chains": 2, **QUIET}
    found = kfold(sample(model, random_seed=1, **short), X, label, cv=2, random_seed=1, **short)
    assert found.table.index.tolist() == ["posterior mean"]


def test_kfold_needs_the_training_data(fit):
    posterior, X, words = fit
    with pytest.raises(ValueError, match="needed the training data"):
        kfold(posterior, X, words[::-1])
    with pytest.raises(ValueError, match="cv=30; needed a whole number, 2 to 20"):
        kfold(posterior, X, words, cv=30)


def test_other_machines_are_refused_and_go_to_nuts():
    X, label = blobs(20, seed=82)
    model = rvm_model(X, label, likelihood="probit", width=1.2)
    assert choose_method(model)[0] == "nuts"
    assert "free weights" in choose_method(model)[1]
    posterior = sample(model, draws=30, tune=30, chains=2, random_seed=1, **QUIET)
    with pytest.raises(ValueError, match="not of a PCVM"):
        kfold(posterior, X, label)


def test_kfold_refuses_several_classes_and_a_width_that_was_drawn(fit):
    X, _ = blobs(20, seed=83)
    several = find_map_em(mpcvm_model(X, np.arange(20) % 3, width=1.2), progressbar=False)
    with pytest.raises(ValueError, match=r"multinomial probit likelihood of 3 score"):
        kfold(several, X, np.arange(20) % 3)
    posterior, X, words = fit
    drawn = posterior.copy()
    width = posterior["posterior"]["bias"] ** 2
    drawn["posterior"] = posterior["posterior"].to_dataset().assign(width=width)
    with pytest.raises(ValueError, match="needed a model with a number as width"):
        kfold(drawn, X, words)


def test_kfold_keeps_the_likelihood():
    X, label = blobs(20, seed=84)
    model = pcvm_model(X, label, width=1.2, likelihood="logit")
    result = find_map_em(model, progressbar=False)
    short = {"draws": 20, "tune": 20, "chains": 1, **QUIET}
    short |= {"method": "nuts", "nuts_sampler": "pymc", "progressbar": False}
    short |= {"compile_kwargs": {"mode": "FAST_COMPILE"}}
    found = kfold(sample(model, random_seed=1, **short), X, label, cv=2, random_seed=1, **short)
    one = found.fold == 1
    half = pcvm_model(
        X[~one],
        label[~one],
        width=1.2,
        likelihood="logit",
        hyperprior=Hyperprior(*result["constant_data"]["hyperprior"].values),
    )
    latent = latent_draws(find_map_em(half, progressbar=False), X[one])[0]
    np.testing.assert_allclose(found.probability["MAP plug-in"][one], expit(latent), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")  # a bad k-hat is not at issue
def test_loo_comes_with_its_caveat(fit, caplog):
    found = psis_loo(fit[0])
    assert found.elpd == pytest.approx(az.loo(fit[0]).elpd)
    assert "optimistic" in caplog.text
