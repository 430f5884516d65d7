import logging
import re
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from calibration import assert_means, assert_same_law, posterior_on_a_grid
from problems import basis_of, blobs, full_disk, map_result, refused
from scipy.special import ndtr

import pcvm_pymc as pcvm
from pcvm_pymc.core.gibbs import chain
from pcvm_pymc.core.pieces.likelihoods import NoisyProbit, Probit
from pcvm_pymc.experiments.datasets import ripley_mixture
from pcvm_pymc.inference.chains import Run
from pcvm_pymc.inference.convergence import Convergence, convergence
from pcvm_pymc.inference.sampling import sampler_for
from pcvm_pymc.model.read import read

QUIET = {"quiet": True, "progressbar": False, "cores": 1}


def small(seed=40, n=20, **options):
    X, label = blobs(n, seed=seed)
    return pcvm.pcvm_model(X, (label > 0).astype(int), **{"width": 1.2, **options})


PRIOR = pcvm.Hyperprior(1.0, 0.1, 0.5, 1.0)
WIDTH, WIDTHS = (pm.LogNormal.dist(0.0, 0.5, shape=shape) for shape in ((), 2))
FREE = {"signs": "both", "basis": 8}
AGREE = {
    "signs": ("gibbs", "pcvm_model", {"width": 1.0}),
    "free, widths": ("hmc", "pcvm_model", {"width": WIDTHS, **FREE}),
    "free, width": ("hmc", "pcvm_model", {"width": WIDTH, **FREE}),
    "noise": ("hmc", "rvm_model", {"width": 1.0}),
    "noise, learned, width": (
        "hmc",
        "rvm_model",
        {"width": WIDTH, "hyperprior": "learned", "basis": 8},
    ),
}


@pytest.mark.slow  # the moves are tested in tests/core, the whole by its calibration
@pytest.mark.parametrize("case", AGREE)
def test_samplers_agree(case):
    """On the latent function, an unknown width and noise, by the ranks of pooled draws."""
    (X, label), (method, build, options) = ripley_mixture(50, random_state=1), AGREE[case]
    if build == "rvm_model":
        label = np.sin(3.0 * X[:, 0]) + 0.2 * np.random.default_rng(0).normal(size=50)
    model = getattr(pcvm, build)(X, label, **{"hyperprior": PRIOR, **options})
    trees = [
        pcvm.sample(model, method=method, draws=2000, random_seed=1, **QUIET),
        pcvm.sample(model, method="nuts", chains=2, draws=1000, random_seed=2, **QUIET),
    ]
    for name in ("latent", *{"width", "noise"} & set(trees[1]["posterior"])):
        draws = [tree["posterior"][name].values for tree in trees]
        assert_same_law(*(each.reshape(*each.shape[:2], -1) for each in draws))


BY_HMC = {
    "binary": lambda X, label: pcvm.pcvm_model(X, label, width=1.2, **FREE),
    "width": lambda X, label: pcvm.pcvm_model(X, label, width=WIDTH, **FREE),
    "several classes": lambda X, _: pcvm.mpcvm_model(X, np.arange(20) % 3, width=1.2, **FREE),
    "noise": lambda X, _: pcvm.rvm_model(X, X[:, 0] + 2.0, width=1.2, hyperprior="learned"),
    "weighted rows": lambda X, _: pcvm.rvm_model(
        X, X[:, 0] + 2.0, width=1.2, sample_weight=np.linspace(0.5, 3.0, 20)
    ),
}


@pytest.mark.parametrize("case", BY_HMC)
def test_log_likelihoods_are_those_of_the_model(case):
    X, label = blobs(20, seed=44)
    model = BY_HMC[case](X, label)
    tree = pcvm.sample(model, draws=10, tune=20, chains=2, max_iter=40, random_seed=1, **QUIET)
    assert tree["posterior"].attrs["sampler"].startswith("Hamiltonian Monte Carlo")
    options = {"extend_inferencedata": False, "progressbar": False}
    with model:
        wanted = pm.compute_log_likelihood(tree, **options)
    own, latent = tree["log_likelihood"], tree["posterior"]["latent"].values
    again = pcvm.predict(tree, X)["predictions"]["latent"]
    np.testing.assert_allclose(again, latent, rtol=1e-7, atol=1e-8)
    assert set(own.data_vars) == set(wanted.data_vars)
    for name, values in wanted.data_vars.items():
        # the multinomial probit's integrals have six digits
        np.testing.assert_allclose(own[name], values, rtol=1e-5, atol=1e-6)
        total = tree["sample_stats"]["lp_likelihood"]
        np.testing.assert_allclose(total, values.sum(values.dims[2:]), rtol=1e-5)
    told = {"lp", "energy", "acceptance_rate", "diverging", "iteration"}
    assert told <= set(tree["sample_stats"])


def test_pymcs_step_gibbs_and_hmc_draw_the_posterior():
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
    short = {"draws": 800, "random_seed": 2, **QUIET}
    trees = [pcvm.sample(model, method=method, **short) for method in ("gibbs", "hmc")]
    Phi = basis_of(model)

    def functions(sizes, bias):
        latent = (sizes * label[:2]) @ Phi.T + bias[..., None]
        parts = [sizes / (1.0 + sizes), bias[..., None] / (1.0 + np.abs(bias[..., None]))]
        return np.concatenate([*parts, ndtr(latent)], axis=-1)

    def wanted(hyperprior):
        points, p = posterior_on_a_grid(Phi, label, label[:2], hyperprior, Probit())
        return p @ functions(points[:, :2], points[:, 2])

    exact, wrong = wanted(prior), wanted(replace(prior, d=prior.d / 4))
    for tree in (step, *trees):
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
    words = "a half-horseshoe prior and signed weights .* 'gibbs' does not take; use .*nuts"
    refused(words, pcvm.PCVMGibbs, model=horseshoe)
    refused(r"HalfHorseshoe.* has no mode that EM could find", map_result, horseshoe)


OF_LABELS, OF_EITHER = "weights have the signs of labels", "weights have either sign"
OTHER_SIGNS = "weights have known signs, under what Gibbs"
AUTO_CASES = [
    ({}, "gibbs", OF_LABELS),
    ({"likelihood": "label noise"}, "gibbs", OF_LABELS),
    ({"width": WIDTH}, "nuts", OTHER_SIGNS),
    ({"likelihood": "logit"}, "nuts", OTHER_SIGNS),
    ({"hyperprior": pcvm.Laplace(1.0)}, "nuts", OTHER_SIGNS),
    ({"hyperprior": pcvm.HalfHorseshoe(0.1)}, "nuts", "half-horseshoe"),
    ({"likelihood": NoisyProbit(pm.Beta.dist(1.0, 9.0))}, "nuts", "flip"),
    ({"precision": "joint"}, "nuts", "explicit"),
    (FREE, "hmc", OF_EITHER),
    (FREE | {"likelihood": "logit", "width": WIDTHS}, "hmc", OF_EITHER),
    (FREE | {"hyperprior": pcvm.Laplace(1.0)}, "hmc", OF_EITHER),
]


@pytest.mark.parametrize(("options", "method", "reason"), AUTO_CASES)
def test_auto_says_which_and_why(options, method, reason):
    model = small(**options)
    used, why = sampler_for(read(model))
    assert (used, reason in why) == (method, True)
    for each in {"gibbs", "hmc"} - {method}:
        if (method, each) != ("gibbs", "hmc"):
            refused("nuts|NUTS", pcvm.sample, model, method=each, draws=10, **QUIET)


OTHER_ROWS = [
    ("mrvm_model", {"shared": True}, "hmc"),
    ("mrvm_model", {"precision": "joint"}, "nuts"),
    ("sparse_probit_model", {}, "hmc"),
    ("rvm_model", {}, "hmc"),  # of unknown noise
    ("rvm_model", {"width": WIDTH, "sample_weight": np.arange(1.0, 21.0)}, "hmc"),
    ("rvm_model", {"likelihood": "student-t"}, "hmc"),
    ("rvm_model", {"noise": pm.HalfNormal.dist(0.3)}, "nuts"),
]


@pytest.mark.parametrize(("build", "options", "method"), OTHER_ROWS)
def test_weights_of_either_sign_are_drawn_along_trajectories(build, options, method):
    X, label = blobs(20, seed=40)
    target = {"rvm_model": X[:, 0], "mrvm_model": np.arange(20) % 3}.get(build, label)
    model = getattr(pcvm, build)(X, target, **options)
    assert sampler_for(read(model))[0] == method
    words = "'gibbs' does not take; use .*hmc" if method == "hmc" else "use method='nuts'"
    refused(words, pcvm.sample, model, method="gibbs", quiet=True)


def test_auto_leaves_other_models_to_nuts(caplog):
    with small() as model:
        pm.Potential("more", -(model["bias"] ** 2))
    method, reason = sampler_for(read(model))
    assert (method, "extra terms ['more']" in reason) == ("nuts", True)
    with caplog.at_level(logging.INFO, "pymc.pcvm_pymc"):
        pcvm.sample(small(), draws=20, tune=20, progressbar=False, random_seed=1)
    assert f"Sampling by gibbs: {OF_LABELS}" in caplog.text
    assert re.search("This takes about [0-9] s, judged by some iterations", caplog.text)


SECONDS = [("gibbs", "99 s, judged by some"), ("hmc", "4 s, judged by some")]
SECONDS += [("nuts", "41 s, judged by the")]


@pytest.mark.parametrize(("method", "said"), SECONDS)
def test_how_long_it_takes_is_said_before(method, said, monkeypatch, caplog):
    module = "pcvm_pymc.inference.sampling"
    monkeypatch.setattr(f"{module}.seconds_of", lambda *_: 3e-3)
    for name in ("run_chains", "pm.sample"):
        monkeypatch.setattr(f"{module}.{name}", full_disk)
    caplog.set_level(logging.INFO, "pymc.pcvm_pymc")
    with pytest.raises(OSError, match="No space"):
        pcvm.sample(small(), method=method, cores=4)
    assert said in caplog.text


SEEDED = [("gibbs", {}), ("hmc", {}), ("hmc", FREE | {"width": WIDTH})]


@pytest.mark.parametrize(("method", "options"), SEEDED)
def test_the_same_seed_gives_the_same_draws(method, options):
    given = {"method": method, "draws": 20, "tune": 30, "random_seed": 3, **QUIET}
    given |= {"max_iter": 200}
    model = small(**options)
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
    assert few.attrs["iterations"] <= many.attrs["iterations"] < 20_000
    assert few.attrs["thin"] >= 10  # the states between the draws are not handed out


LONG = {"draws": 60, "thin": 1, "tune": 100, "chains": 2, "random_seed": 3, **QUIET}
# method, blocks of states before the interrupt, in the first round or in the second, draws handed back
PRESSED = [("gibbs", *rest) for rest in ((10, {}, 30), (20, {}, 60), (25, {}, 60))]
PRESSED += [("hmc", 10, FREE, 30), ("hmc", 25, FREE, 60)]


@pytest.mark.parametrize(("method", "n_blocks", "options", "n_draws"), PRESSED)
def test_an_interrupt_hands_the_draws_back(method, n_blocks, options, n_draws, monkeypatch, caplog):
    """Those that an undisturbed run begins with; once there was a whole round, those of the last."""
    model, calls, start = small(**options), [], Run.start
    whole = pcvm.sample(model, method=method, max_iter=60, **LONG)

    def pressed(*args):
        chains = start(*args)
        draw = chains.draw

        def press(n, thin=1):
            calls.append(n)
            if sum(each > 1 for each in calls) > n_blocks:
                raise KeyboardInterrupt
            return draw(n, thin)

        chains.draw = press
        return chains

    monkeypatch.setattr(Run, "start", pressed)
    never = Convergence(0, np.inf, 0.0, 1)
    monkeypatch.setattr("pcvm_pymc.inference.chains.judge", lambda _: never)
    part = pcvm.sample(model, method=method, max_iter=1500, **LONG)
    for group in ("posterior", "sample_stats", "log_likelihood"):
        begun = whole[group].to_dataset().isel(draw=slice(n_draws))
        for name, values in part[group].to_dataset().items():
            np.testing.assert_array_equal(values, begun[name])
    assert part["posterior"].sizes["draw"] == n_draws
    assert f"interrupted: {n_draws} of 60 draws" in caplog.text


def test_rounds_end_at_convergence_or_at_the_limit():
    model = small()
    given = {"method": "gibbs", "random_seed": 1, **QUIET}
    short = pcvm.sample(model, draws=100, thin=5, max_iter=1000, **given)
    assert short["posterior"].attrs["iterations"] <= 1000 + 500
    enough = pcvm.sample(model, **given)
    assert convergence(enough).ok
    iteration = enough["sample_stats"]["iteration"].values
    assert (np.diff(iteration, axis=1) == enough["posterior"].attrs["thin"]).all()


BAD_OPTIONS = [
    (
        {"draws": 10, "thin": 10**9, "max_iter": 40, "quiet": True},
        r"max_iter=40 is below draws \* thin = 10 \* 1000000000 = 10000000000; needed at least as many",
    ),
    ({"method": "gibbs", "max_treedepth": 5}, "max_treedepth=5 has no effect on method='gibbs'"),
    ({"method": "nuts", "thin": 3}, "thin=3 has no effect on method='nuts'; use another method"),
    ({"max_iter": 50, "nuts_sampler": "nutpie"}, "max_iter=50 has no effect on method='nuts'"),
    ({"target_accept": 0.9}, "target_accept=0.9 has no effect on method='gibbs'"),
    (
        {"method": "hmc", "nuts_sampler": "pymc"},
        "nuts_sampler='pymc' has no effect on method='hmc'",
    ),
    (
        {"method": "hmc", "draws": 30, "max_iter": 20},
        r"max_iter=20 is below draws \* thin = 30 \* 1",
    ),
    ({"method": "vi"}, "method='vi' is unknown"),
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
    endless = {"draws": 10, "chains": 2, "tune": 10**9, "thin": 10**9, "max_iter": 10**11}
    pcvm.sample(model, draws=2, tune=1, chains=1, **given)  # compiled
    main, pressed, advance = threading.get_ident(), [], chain.advance

    def advance_and_press(*args, **options):  # once the first chain runs in its thread
        if threading.get_ident() != main and not pressed:
            pressed.append(time.perf_counter())
            threading.Timer(0.5, signal.pthread_kill, [main, signal.SIGINT]).start()
        return advance(*args, **options)

    monkeypatch.setattr(chain, "advance", advance_and_press)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            pcvm.sample(model, **given | endless | {"cores": 2})
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.perf_counter() - pressed[0] < 10


# --- progress


@pytest.mark.parametrize("method", ["gibbs", "hmc"])
def test_a_bar_goes_on_over_the_rounds(method, capsys):
    few = {"draws": 20, "tune": 20, "chains": 2, "thin": 1, "max_iter": 80, "random_seed": 1}
    tree = pcvm.sample(small(), method=method, **few)
    n_iter = tree["posterior"].attrs["iterations"]
    shown = capsys.readouterr().err
    assert method in shown
    assert f"iteration {n_iter}/{n_iter}, a draw in " in shown
