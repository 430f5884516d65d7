"""Models under random names of all variables and dims give the results that they give under ours."""

import numpy as np
import pymc as pm
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from problems import blobs

import pcvm_pymc as pcvm
from pcvm_pymc.inference.results import under_our_names

X, LABEL = blobs(20, seed=4)
Y = (LABEL > 0).astype(int)
TARGET = np.sin(X[:, 0]) + 0.1 * X[:, 1]
NEW = X[:5] + 0.1
QUIET = {"progressbar": False}
OURS = {"f": "latent", "rows": "obs", "seen": "label", "width": "width", "noise": "noise"}
WORD = st.text("abcdxyz", min_size=1, max_size=3).map("q{}".format)
WORDS = st.lists(WORD, min_size=5, max_size=5, unique=True)
FEW = settings(max_examples=3, deadline=None, suppress_health_check=[*HealthCheck])


def labels(f, rows, seen, width, noise):
    """Return a classifier with an unknown width, by hand."""
    with pm.Model() as model:
        unknown = pm.LogNormal(width, 0.3, 0.5)
        given = {"width": unknown, "signs": "both", "basis": X[:6]}
        latent = pcvm.pcvm_latent(X, name=f, dim=rows, **given)
        pcvm.ProbitBernoulli(seen, latent, observed=Y)
    return model


def targets(f, rows, seen, width, noise):
    """Return a regression of unknown noise, by hand."""
    with pm.Model() as model:
        latent = pcvm.rvm_latent(X, name=f, dim=rows, width=1.5)
        pm.Normal(seen, latent, pm.HalfNormal(noise, 0.7), observed=TARGET)
    return model


def same(found, wanted):
    """Check that two results are one but for their names, and two predictions of them."""
    xr.testing.assert_allclose(*(under_our_names(x)["posterior"].ds for x in (found, wanted)))
    xr.testing.assert_allclose(*(pcvm.predict(x, NEW)["predictions"].ds for x in (found, wanted)))


@FEW
@given(WORDS)
def test_a_mode_and_draws_under_random_names(words):
    theirs = dict(zip(OURS, words, strict=True))
    models = labels(**theirs), labels(**OURS)
    same(*(pcvm.find_map_em(model, **QUIET) for model in models))
    short = {"draws": 20, "tune": 5, "chains": 1, "max_iter": 200, "cores": 1, "quiet": True}
    drawn = [pcvm.sample(model, method="hmc", random_seed=1, **short) for model in models]
    same(*drawn)
    # what PyMC computes from each draw is what the draw says
    again = pm.compute_deterministics(drawn[0]["posterior"], model=models[0], **QUIET)
    assert_allclose(again[theirs["f"]], drawn[0]["posterior"][theirs["f"]], rtol=1e-9)


@FEW
@given(WORDS)
def test_evidence_under_random_names(words):
    theirs = dict(zip(OURS, words, strict=True))
    found, wanted = (pcvm.fit_evidence(targets(**names)) for names in (theirs, OURS))
    of_both = (each["optimizer_result"]["log_evidence"] for each in (found, wanted))
    assert_allclose(*of_both, atol=1e-9)
    assert theirs["noise"] in found["posterior"]
    same(found, wanted)
