import numpy as np
import pymc as pm
import pytest
import xarray as xr
from calibration import posterior_on_a_grid
from problems import basis_of, blobs, refused
from scipy.special import log_ndtr, ndtr

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.likelihoods import Probit

PLUG_IN = pcvm.Hyperprior.plug_in()
both = pytest.mark.parametrize("method", ["laplace", "ep"])


def small(n=30, seed=7, **options):
    X, label = blobs(n, seed=seed, fixed=True)
    options = {"hyperprior": PLUG_IN, "width": 1.2} | options
    return X, pcvm.pcvm_model(X, np.where(label > 0, "yes", "no"), **options)


def probabilities(tree):
    """Return P(y = 1) of all draws, (n_draws, n_obs)."""
    return ndtr(tree["posterior"]["latent"].values).reshape(-1, tree["posterior"].sizes["obs"])


@pytest.mark.parametrize(
    ("method", "worst", "wrong_spread"), [("ep", 0.02, 0.1), ("laplace", 0.05, 0.15)]
)
def test_probabilities_are_nearly_those_of_quadrature(method, worst, wrong_spread):
    """Two weights and a bias: what is allowed is six Monte Carlo standard errors more than is missed.

    Of 10,000 draws they are .0015 of means and .012 of relative spreads; expectation propagation misses .001
    and .01, Laplace's approximation, whose centre is the mode, .015 and .04.
    """
    X, label = blobs(24, seed=7, fixed=True)
    options = {"basis": X[:2], "signs": label[:2], "hyperprior": PLUG_IN, "width": 1.2}
    model = pcvm.pcvm_model(X, (label > 0).astype(int), **options)
    Phi = basis_of(model)
    points, share = posterior_on_a_grid(Phi, label, label[:2], PLUG_IN, Probit())
    p = ndtr((points[:, :2] * label[:2]) @ Phi.T + points[:, 2:])
    mean = share @ p
    near = probabilities(pcvm.approximate(model, method=method, draws=10_000, random_seed=2))
    assert np.abs(near.mean(0) - mean).max() < worst
    ratio = near.std(0) / np.sqrt(share @ (p - mean) ** 2)
    assert np.abs(ratio - 1.0).max() < wrong_spread


@both
def test_what_comes_back_is_a_result(method, tmp_path):
    X, model = small()
    tree = pcvm.approximate(model, method=method, draws=50, random_seed=3)
    draws = tree["posterior"].to_dataset()
    assert dict(draws["latent"].sizes) == {"chain": 1, "draw": 50, "obs": 30}
    signs = np.asarray(model["signs"].get_value())
    np.testing.assert_array_equal(draws["weight"], draws["magnitude"] * signs)
    assert float(draws["magnitude"].min()) >= 0.0
    Phi = np.asarray(basis_of(model))
    latent = draws["weight"].values @ Phi.T + draws["bias"].values[..., None]
    np.testing.assert_allclose(draws["latent"], latent, atol=1e-10)
    label = np.where(model["y"].get_value() > 0, 1.0, -1.0)
    np.testing.assert_allclose(tree["log_likelihood"]["label"], log_ndtr(label * latent), atol=1e-9)
    xr.testing.assert_identical(pcvm.load(pcvm.save(tree, tmp_path / "result")), tree)
    predicted = pcvm.predict(tree, X)["predictions"]["latent"]
    np.testing.assert_allclose(predicted, latent, atol=1e-10)


def test_attributes_say_how_it_went():
    _, model = small()
    ep = pcvm.approximate(model, draws=5, random_seed=1)
    attrs, trace = ep["posterior"].attrs, ep["approximation_trace"]
    assert (attrs["method"], attrs["converged"]) == ("ep", 1)
    assert trace.sizes["iteration"] == attrs["iterations"]
    assert float(trace["change"][-1]) <= 1e-7
    assert attrs["log_evidence"] < 0.0
    slow = pcvm.approximate(model, draws=5, damping=0.2, random_seed=1)
    assert float(slow["approximation_trace"]["damping"].max()) <= 0.2
    assert slow["posterior"].attrs["log_evidence"] == pytest.approx(attrs["log_evidence"], abs=1e-5)
    laplace = pcvm.approximate(model, method="laplace", draws=5, random_seed=1)["posterior"].attrs
    assert (laplace["method"], laplace["converged"]) == ("laplace", 1)
    assert laplace["prior_curvature"] == "exact"


@both
def test_where_it_stops_short_it_says_so(method, caplog):
    _, model = small()
    found = pcvm.approximate(model, method=method, draws=5, max_iter=1, random_seed=1)
    assert found["posterior"].attrs["converged"] == 0
    assert found["posterior"].attrs["iterations"] == 1
    assert "stopped: max_iter iterations were done" in caplog.text


@both
def test_a_seed_gives_the_same_draws(method):
    _, model = small(n=12)
    first, second = (
        pcvm.approximate(model, method=method, draws=5, random_seed=4)["posterior"]["weight"]
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


def test_models_of_other_rows_are_refused():
    X, label = blobs(12)
    refused("multinomial probit", pcvm.approximate, pcvm.mpcvm_model(X, np.arange(12) % 3))
    refused("likelihood=Normal", pcvm.approximate, pcvm.rvm_model(X, X[:, 0]))
    with pm.Model() as unknown:
        pcvm.pcvm_model(X, label, hyperprior=PLUG_IN, width=pm.LogNormal("width"))
    refused("an unknown width", pcvm.approximate, unknown)
    refused("explicit precisions", pcvm.approximate, small(n=12, precision="joint")[1])


def test_a_damping_without_effect_is_refused():
    with pytest.raises(ValueError, match=r"damping=0\.5 has no effect on 'laplace'"):
        pcvm.approximate(small(n=12)[1], method="laplace", damping=0.5)
