import logging
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from calibration import assert_means, assert_same_law, posterior_on_a_grid
from faults import full_disk
from problems import basis_of, blobs, map_result, refused
from scipy.special import ndtr

import pcvm_pymc as pcvm
from pcvm_pymc.assessment.comparison import convergence
from pcvm_pymc.core.gibbs import advance
from pcvm_pymc.core.pieces.likelihoods import Probit
from pcvm_pymc.experiments.datasets import ripley_mixture
from pcvm_pymc.inference.chains import Chain
from pcvm_pymc.inference.sampling import choose_method

QUIET = {"quiet": True, "progressbar": False, "cores": 1}


def small(seed=40, n=20, **options):
    X, label = blobs(n, seed=seed)
    return pcvm.pcvm_model(X, (label > 0).astype(int), **{"width": 1.2, **options})


@pytest.mark.slow  # the moves are tested in tests/core/test_gibbs_moves.py, the whole by its calibration
@pytest.mark.parametrize("n_features", [(), 2], ids=["one width", "one of each feature"])
def test_gibbs_and_nuts_agree_on_an_unknown_width(n_features):
    X, label = ripley_mixture(50, random_state=1)
    width = pm.LogNormal.dist(0.0, 0.5, shape=n_features)
    model = pcvm.pcvm_model(X, label, width=width, hyperprior=pcvm.Hyperprior(1.0, 0.1, 0.5, 1.0))
    gibbs = pcvm.sample(model, method="gibbs", draws=2000, random_seed=1, **QUIET)
    nuts = pcvm.sample(model, method="nuts", chains=2, draws=1000, random_seed=2, **QUIET)
    for name in ("latent", "width"):  # by the ranks of their pooled draws, whose means are bounded
        draws = [tree["posterior"][name].values for tree in (gibbs, nuts)]
        assert_same_law(*(each.reshape(*each.shape[:2], -1) for each in draws))


def test_pymcs_step_and_gibbs_draw_the_posterior():
    """Means of bounded functions by quadrature: two sizes and a bias.

    A scale of the weights that is half as large is noticed.
    """
    X, label = blobs(12, seed=40, fixed=True)
    prior = pcvm.Hyperprior(2.0, 2.0, 2.0, 1.0)
    options = {"width": 1.2, "basis": X[:2], "signs": label[:2], "hyperprior": prior}
    model = pcvm.pcvm_model(X, (label > 0).astype(int), **options)
    with model:
        options = {"step": pcvm.PCVMGibbs(sweeps=3), "tune": 50, "chains": 2, "random_seed": 1}
        step = pm.sample(800, **options, **QUIET)
    assert (step["sample_stats"]["sweeps"] == 3).all()
    gibbs = pcvm.sample(model, method="gibbs", draws=800, random_seed=2, **QUIET)
    Phi = basis_of(model)

    def functions(sizes, bias):
        latent = (sizes * label[:2]) @ Phi.T + bias[..., None]
        parts = [sizes / (1.0 + sizes), bias[..., None] / (1.0 + np.abs(bias[..., None]))]
        return np.concatenate([*parts, ndtr(latent)], axis=-1)

    def wanted(hyperprior):
        points, p = posterior_on_a_grid(Phi, label, label[:2], hyperprior, Probit())
        return p @ functions(points[:, :2], points[:, 2])

    exact, wrong = wanted(prior), wanted(replace(prior, d=prior.d / 4))
    for tree in (step, gibbs):
        posterior = tree["posterior"]
        found = functions(posterior["magnitude"].values, posterior["bias"].values)
        assert_means(found, exact)
        with pytest.raises(AssertionError, match="of comparison"):
            assert_means(found, wrong)


def test_the_step_refuses_what_it_would_not_move_and_em_what_has_no_mode():
    model = small()
    refused(r"vars are \['bias'\]; needed all", pcvm.PCVMGibbs, [model["bias"]], model=model)
    refused("sweeps=0", pcvm.PCVMGibbs, model=model, sweeps=0)
    horseshoe = small(hyperprior=pcvm.HalfHorseshoe.default(20, 20))
    words = "a half-horseshoe prior suits NUTS and is not what"
    refused(words, pcvm.PCVMGibbs, model=horseshoe)
    refused(r"HalfHorseshoe.* has no mode that EM could find", map_result, horseshoe)


def test_pymcs_step_moves_an_unknown_width():
    model = small(width=pm.LogNormal.dist(0.0, 0.5), hyperprior=pcvm.Hyperprior(1.0, 0.1, 0.5, 1.0))
    step, point = pcvm.PCVMGibbs(model=model, rng=1), model.initial_point()
    widths = []
    for _ in range(30):
        point, _ = step.step(point)
        widths.append(point["width_log__"])
    assert len(np.unique(widths)) > 15


AUTO_CASES = [
    ({}, "gibbs", "fixed width and Gamma precisions"),
    ({"likelihood": "label noise"}, "gibbs", "fixed width and Gamma precisions"),
    ({"likelihood": "logit"}, "nuts", "has no responses"),
    ({"hyperprior": pcvm.HalfHorseshoe(0.1)}, "nuts", "half-horseshoe"),
    ({"precision": "joint"}, "nuts", "explicit"),
    ({"width": pm.LogNormal.dist(0, 0.5)}, "gibbs", "a kernel's unknown width and Gamma"),
]


@pytest.mark.parametrize(("options", "method", "reason"), AUTO_CASES)
def test_auto_says_which_and_why(options, method, reason):
    found = choose_method(small(**options))
    assert found[0] == method
    assert reason in found[1]


def test_auto_leaves_other_models_to_nuts(caplog):
    with small() as model:
        pm.Potential("more", -(model["bias"] ** 2))
    method, reason = choose_method(model)
    assert method == "nuts"
    assert "extra terms ['more']" in reason
    with caplog.at_level(logging.INFO, "pymc.pcvm_pymc"):
        pcvm.sample(small(), draws=20, tune=20, progressbar=False, random_seed=1)
    assert "Sampling by gibbs: fixed width" in caplog.text
    assert "This takes about 0 s, judged by some sweeps" in caplog.text


@pytest.mark.parametrize(
    ("method", "said"),
    [("gibbs", "about 99 s, judged by some"), ("nuts", "about 41 s, judged by the")],
)
def test_how_long_it_takes_is_said_before(method, said, monkeypatch, caplog):
    module = "pcvm_pymc.inference.sampling"
    monkeypatch.setattr(f"{module}.compile_sweeps", lambda *_: 3e-3)
    for name in ("run_chains", "pm.sample"):
        monkeypatch.setattr(f"{module}.{name}", full_disk)
    caplog.set_level(logging.INFO, "pymc.pcvm_pymc")
    with pytest.raises(OSError, match="No space"):
        pcvm.sample(small(), method=method, cores=4)
    assert said in caplog.text


@pytest.mark.parametrize(("learned", "unknown"), [(False, False), (True, False), (True, True)])
def test_the_same_seed_gives_the_same_draws(learned, unknown):
    prior = pcvm.Hyperprior(1.0, 0.1, 0.5, 1.0, rate_shape=0.5 if learned else None)
    model = small(hyperprior=prior, width=pm.LogNormal.dist(0.0, 0.5) if unknown else 1.2)
    given = {"method": "gibbs", "draws": 20, "random_seed": 3, "max_sweeps": 200, **QUIET}
    first, second = (pcvm.sample(model, **given | {"cores": cores}) for cores in (1, 2))
    for name, values in first["posterior"].data_vars.items():
        np.testing.assert_array_equal(values, second["posterior"][name])


def test_few_draws_do_not_make_convergence_harder():
    X, label = blobs(42, seed=3)
    model = pcvm.pcvm_model(X, label, width=1.2, hyperprior="learned")
    given = {"method": "gibbs", "chains": 2, "random_seed": 1, **QUIET}
    runs = [pcvm.sample(model, draws=draws, **given) for draws in (100, 1000)]
    few, many = (each["posterior"] for each in runs)
    assert few.sizes["draw"] == 100
    assert few.attrs["sweeps"] <= many.attrs["sweeps"] < 20_000
    assert few.attrs["thin"] >= 10  # the states between the draws are not handed out


LONG = {"method": "gibbs", "draws": 60, "thin": 1, "chains": 2, "random_seed": 3, **QUIET}
# how often chains are advanced before the interrupt, in the first round and in the second: draws handed back
PRESSED = [(30, {}, 21), (30, {"width": pm.LogNormal.dist(0.0, 0.5)}, 21), (70, {}, 60)]


@pytest.mark.parametrize(("n_blocks", "options", "n_draws"), PRESSED)
def test_an_interrupt_hands_the_draws_back(n_blocks, options, n_draws, monkeypatch, caplog):
    """Those that an undisturbed run begins with; of the last whole round, if these are more."""
    model, calls = small(**options), []
    whole = pcvm.sample(model, max_sweeps=60, **LONG)

    def press(*args, **kwargs):
        calls.append(args)
        if len(calls) > n_blocks:
            raise KeyboardInterrupt
        return advance(*args, **kwargs)

    monkeypatch.setattr("pcvm_pymc.inference.chains.advance", press)
    part = pcvm.sample(model, max_sweeps=1500, **LONG)
    for group in ("posterior", "sample_stats", "log_likelihood"):
        begun = whole[group].to_dataset().isel(draw=slice(n_draws))
        for name, values in part[group].to_dataset().items():
            np.testing.assert_array_equal(values, begun[name])
    assert part["posterior"].sizes["draw"] == n_draws
    assert f"interrupted: {n_draws} of 60 draws" in caplog.text


def test_rounds_end_at_convergence_or_at_the_limit():
    model = small()
    given = {"method": "gibbs", "random_seed": 1, **QUIET}
    short = pcvm.sample(model, draws=100, thin=5, max_sweeps=1000, **given)
    assert short["posterior"].attrs["sweeps"] <= 1000 + 500
    enough = pcvm.sample(model, **given)
    assert convergence(enough).ok
    sweep = enough["sample_stats"]["sweep"].values
    assert (np.diff(sweep, axis=1) == enough["posterior"].attrs["thin"]).all()


BAD_OPTIONS = [
    (
        {"draws": 10, "thin": 10**9, "max_sweeps": 40, "quiet": True},
        r"max_sweeps=40 is below draws \* thin = 10 \* 1000000000 = 10000000000; needed at least as many",
    ),
    ({"method": "gibbs", "max_treedepth": 5}, r"\['max_treedepth'\] are for NUTS"),
    ({"method": "nuts", "thin": 3}, "thin=3 has no effect on method='nuts'; use 'gibbs'"),
    ({"max_sweeps": 50, "nuts_sampler": "nutpie"}, "max_sweeps=50 has no effect"),
    ({"target_accept": 0.9}, "target_accept=0.9 has no effect on method='gibbs'"),
]


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS)
def test_bad_options_are_named(options, words):
    refused(words, pcvm.sample, small(), **options)


@pytest.mark.slow  # a signal to the process that runs the tests: by itself, not among others
@pytest.mark.parametrize("width", ["fixed", "unknown"])
def test_sweeps_without_end_are_interrupted(width, monkeypatch):
    """Ctrl-C ends a run within seconds, whatever it was asked for."""
    model = small(**({} if width == "fixed" else {"width": pm.LogNormal.dist(0.0, 0.5)}))
    given = {"method": "gibbs", "random_seed": 1, **QUIET}
    endless = {"draws": 10, "chains": 2, "tune": 10**9, "thin": 10**9, "max_sweeps": 10**11}
    pcvm.sample(model, draws=2, tune=1, chains=1, **given)  # compiled
    main, pressed = threading.get_ident(), []

    def advance_and_press(*args, **options):  # once the first chain runs in its thread
        if threading.get_ident() != main and not pressed:
            pressed.append(time.perf_counter())
            threading.Timer(0.5, signal.pthread_kill, [main, signal.SIGINT]).start()
        return advance(*args, **options)

    monkeypatch.setattr("pcvm_pymc.inference.chains.advance", advance_and_press)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            pcvm.sample(model, **given | endless | {"cores": 2})
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.perf_counter() - pressed[0] < 10


# --- progress


def test_the_bar_of_a_chain_goes_on_over_its_rounds():
    chain = Chain(0, None, np.random.default_rng(0), 2, 100, sweeps=50)
    assert chain.end == 250
    chain.sweeps, chain.every = 250, 4  # the next round, nothing of it drawn
    assert chain.end == 650
