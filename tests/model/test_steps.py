import numpy as np
import pymc as pm
import pytest
from problems import blobs, map_result, point_of, refused

import pcvm_pymc as pcvm
from pcvm_pymc.core.em import EMState, fit_em
from pcvm_pymc.model.read import read


def point_at(model, result):
    posterior = result["posterior"]
    width = posterior["width"].item() if "width" in posterior else np.nan
    weight, bias = posterior["weight"].values[0, 0], posterior["bias"].item()
    return point_of(model, EMState(weight, bias, np.empty(0), width, np.nan))


# under other data Newton's steps may end in another mode: they have other Gram matrices, to rounding
X, LABEL = blobs(40, seed=20, fixed=True)
Y = (LABEL > 0).astype(int)


@pytest.mark.parametrize("update", ["em", "newton"])
def test_steps_are_what_find_map_em_does(update):
    """To rounding for EM; Newton's steps carry a Gram matrix along there, and make it anew here."""
    model = pcvm.pcvm_model(X, Y, width=1.2)
    step = pcvm.EMStep(model, pcvm.EMOptions(update=update))
    point, trace = step.initial_point(), []
    for _ in range(15):
        point, stats = step.step(point)
        trace.append(stats["log_posterior"])
    options = pcvm.EMOptions(update=update, max_iter=15, tol=1e-300)
    given = {"hyperparameters": "given", "progressbar": False}
    result = pcvm.find_map_em(model, options=options, **given)
    found = result["em_trace"]["log_posterior"].values[1:]
    np.testing.assert_allclose(found, trace, atol=1e-8 if update == "em" else 1e-3)
    np.testing.assert_allclose(found[-3:], trace[-3:], atol=1e-8)


def test_a_free_width_is_maximised_with_its_prior():
    width, prior = pm.LogNormal.dist(0.0, 0.5), pcvm.Hyperprior.plug_in()
    model = pcvm.pcvm_model(X, Y, width=width, hyperprior=prior)
    options = pcvm.EMOptions(tol=1e-8, max_iter=5000)
    result = pcvm.find_map_em(model, options=options, progressbar=False)
    logp = model.compile_logp(jacobian=False)
    point = point_at(model, result)
    best = logp(point)
    assert best == pytest.approx(result["optimizer_result"]["log_posterior"].item(), abs=1e-8)
    for nudge in (-1e-3, 1e-3):
        assert logp({**point, "width_log__": point["width_log__"] + nudge}) < best
    step = pcvm.EMStep(model)
    again, stats = step.step(point)
    assert stats["log_posterior"] >= best - 1e-9
    assert again["width_log__"] == pytest.approx(point["width_log__"], abs=1e-4)


def test_a_random_width_that_do_has_fixed():
    prior = pcvm.Hyperprior.plug_in()
    free = pcvm.pcvm_model(X, Y, width=pm.LogNormal.dist(0.0, 0.5), hyperprior=prior)
    fixed = map_result(pm.do(free, {"width": 1.3}))
    wanted = map_result(pcvm.pcvm_model(X, Y, width=1.3, hyperprior=prior))
    found, wanted = (each["posterior"]["weight"] for each in (fixed, wanted))
    np.testing.assert_allclose(found, wanted, atol=1e-10)


def test_models_that_em_cannot_read():
    refused("explicit precisions", pcvm.EMStep, pcvm.pcvm_model(X, Y, precision="joint"))
    with pm.Model() as named:
        pcvm.pcvm_model(X, Y, width=pm.LogNormal("ell", 0.0, 1.0))
    assert read(named).problem_for("em").moves is not None  # whatever its name
    refused("normal likelihood.*use evidence", pcvm.EMStep, pcvm.rvm_model(X, LABEL, noise=0.3))


LOG_NORMAL = pm.LogNormal.dist(0.0, 0.5)
ROWS = {  # further ones than the contract's
    "mrvm": lambda X, k: pcvm.mrvm_model(X, k, width=1.2, hyperprior=pcvm.Hyperprior.jeffreys()),
    "mrvm shared": lambda X, k: pcvm.mrvm_model(X, k, width=1.2, shared=True),
    "laplace": lambda X, k: pcvm.sparse_probit_model(X, k > 0, features="kernel", bias="free"),
    "free width": lambda X, k: pcvm.sparse_probit_model(
        X, k > 0, features="kernel", prior="student", width=LOG_NORMAL
    ),
    "pcvm": lambda X, k: pcvm.pcvm_model(X, k > 0, width=pm.Gamma.dist(3.0, 2.0)),
    "pcvm by Newton": lambda X, k: pcvm.pcvm_model(X, k > 0, width=1.2),
    "pcvm chen2009": lambda X, k: pcvm.pcvm_model(X, k > 0, hyperprior=pcvm.Hyperprior.chen2009()),
}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_em_steps_on_pymcs_points(row):
    model = ROWS[row](X, np.arange(len(X)) % 3)
    logp = model.compile_logp(jacobian=False, mode="FAST_COMPILE")
    step = pcvm.EMStep(model, pcvm.EMOptions(update="newton" if "Newton" in row else "em"))
    point = step.initial_point()
    values = [logp(point)]
    for _ in range(8):
        point, stats = step.step(point)
        values.append(logp(point))
        assert stats["log_posterior"] == pytest.approx(values[-1], abs=1e-8)
    assert (np.diff(values) >= -1e-9).all()
    assert values[-1] > values[0] + 0.1
    end = fit_em(read(model).problem_for("em").given(), options=pcvm.EMOptions(max_iter=20))
    assert logp(point_of(model, end)) == pytest.approx(end.log_posterior, abs=1e-8)


def test_gibbs_is_a_step_of_pymc():
    model = pcvm.pcvm_model(X, Y, width=1.2)
    step = pcvm.PCVMGibbs(model=model, rng=1)
    point = model.initial_point(0)
    new, _ = step.step(point)
    assert set(new) == set(point)
    for name in point:
        assert new[name].shape == point[name].shape
        assert (new[name] != point[name]).all()
    again = pcvm.PCVMGibbs(model=model, rng=1).step(point)[0]
    np.testing.assert_array_equal(again["magnitude_log__"], new["magnitude_log__"])
