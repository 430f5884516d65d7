import logging
from importlib import import_module

import numpy as np
import pymc as pm
import pytest
from problems import SHALLOW, blobs, interrupted, refused

from pcvm_pymc import EMOptions, Hyperprior, Start, find_map_em, pcvm_model, sample
from pcvm_pymc.assessment.comparison import convergence
from pcvm_pymc.experiments.datasets import ripley_mixture
from pcvm_pymc.inference import results
from pcvm_pymc.inference.convergence import judge
from pcvm_pymc.inference.results import pack
from pcvm_pymc.model.read import read

sampling = import_module("pcvm_pymc.inference.sampling")  # whose function has its name

SHORT = {"chains": 2, "cores": 1, "progressbar": False, "random_seed": 1, "quiet": True}


def test_sampling_converges_at_100_rows():
    """On Ripley's mixture: the issue of the whole package in one run."""
    X, label = ripley_mixture(100, random_state=1)
    model = pcvm_model(X, label, width=0.5)
    found = convergence(sample(model, draws=1000, random_seed=1, cores=1, progressbar=False))
    assert found.rhat <= 1.01
    assert found.ess >= 400
    assert found.ok
    assert f"({found.divergences} divergence" in str(found)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("nutpie", "numpyro")]


@pytest.mark.parametrize("sampler", ["pymc", *SLOW])
def test_other_samplers_run_and_are_checked(sampler, caplog):
    pytest.importorskip(sampler)
    X, label = blobs(20, seed=40)
    model = pcvm_model(X, label, width=1.2)
    few = SHALLOW if sampler == "pymc" else {}
    with caplog.at_level(logging.INFO, "pymc"):
        tree = sample(model, method="nuts", draws=25, tune=25, nuts_sampler=sampler, **few, **SHORT)
    assert sampler in tree["posterior"].attrs["sampler"]
    assert tree["posterior"]["latent"].shape == (2, 25, 20)
    assert (tree["posterior"]["weight"] * (label) >= 0).all()
    # far too few draws: PyMC's checks have to say so, whatever sampler ran
    assert "number of samples is too small to check convergence" in caplog.text


def test_starts():
    model = pcvm_model(*blobs(40, seed=43), hyperprior=Hyperprior.jeffreys())

    def fit(start):
        return find_map_em(model, start=start, progressbar=False)["posterior"]["weight"].values

    np.testing.assert_array_equal(fit(None), fit(Start.default(read(model).problem_for("em"))))
    refused("start='zero'; needed a Start", fit, "zero")
    refused(r"start.weight has shape \(3,\); needed \(40,\)", fit, Start(np.ones(3), 0.0))


def test_an_unfinished_fit_says_so(caplog):
    model = pcvm_model(*blobs(40, seed=45))
    with caplog.at_level(logging.WARNING):
        result = find_map_em(model, options=EMOptions(max_iter=1), progressbar=False)
    assert not result["optimizer_result"]["success"].item()
    assert "max_iter iterations" in caplog.text


def test_the_model_on_the_stack_is_used_and_the_progress_bar_goes_to_stderr(capsys):
    with pcvm_model(*blobs(20, seed=46)):
        assert find_map_em()["optimizer_result"]["success"].item()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "EM" in captured.err


FAILS = [(sampling, "_report", "nuts"), (pm, "compute_log_likelihood", "nuts")]
FAILS += [(results, "pack", "gibbs")]


@pytest.mark.parametrize(("place", "name", "method"), FAILS)
def test_draws_are_handed_back_with_what_fails_after_them(place, name, method, monkeypatch):
    """Whatever is raised once there are draws, an interrupt too, has them."""
    model = pcvm_model(*blobs(20, seed=40), width=1.2)
    few = SHALLOW if method == "nuts" else {"max_iter": 1500}
    monkeypatch.setattr(place, name, interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        sample(model, method=method, draws=60, tune=5, **few, **SHORT)
    monkeypatch.undo()
    draws = caught.value.draws
    latent = draws["posterior"]["latent"].values if method == "nuts" else draws.latent
    assert latent.shape[::2] == (2, 20)
    assert "in the attribute draws" in caught.value.__notes__[0]


@pytest.mark.parametrize(("kind", "remedy"), [("magnitude", sampling._OF_SIGNS), ("weight", "")])
def test_one_verdict_on_convergence(kind, remedy, caplog):
    """Of the latent function, the width and the likelihood: single weights mix worse, and may."""
    draws = np.random.default_rng(0).normal(size=(4, 500, 3))
    away = draws + np.arange(4)[:, None, None]
    X, label = blobs(3, seed=1)
    signs = label if kind == "magnitude" else "both"
    model = pcvm_model(X, label, width=pm.LogNormal.dist(0.0, 0.5), basis=X, signs=signs)
    reading = read(model)
    for at in range(4):
        weight, latent, width = (away if i == at else draws for i in range(3))
        ok, width = at in (0, 3), width[..., 0]
        values = {kind: (("basis",), weight), "latent": (("obs",), latent), "width": ((), width)}
        tree = pack(reading, values, {}, sampler="Gibbs")
        caplog.clear()
        sampling._report(tree, reading)
        found = convergence(tree)
        assert found.ok == ok == (not caplog.messages)
        assert judge({"latent": latent, "width": width}).ok == ok
        if not ok:
            assert caplog.messages == [f"{found}{remedy}"]
            assert f"latent function, width: worst r-hat {found.rhat:.3f}" in str(found)


def test_scores_of_several_classes_are_judged_by_their_differences():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(4, 1000, 5, 3))
    shift, chain = rng.normal(size=(4, 1000, 5, 1)), np.arange(4.0)[:, None, None, None]
    assert judge({"latent": scores + 3.0 * chain}).ok  # chains differ in what no prediction shows
    apart = scores + 0.5 * chain * np.array([1.0, -1.0, 0.0])
    assert not judge({"latent": apart}).ok
    shifted = judge({"latent": apart + 50.0 * shift})
    assert shifted.rhat == pytest.approx(judge({"latent": apart}).rhat)
    # of one score, nothing is left out
    assert not judge({"latent": scores[..., 0] + chain[..., 0]}).ok
