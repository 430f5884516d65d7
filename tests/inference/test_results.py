import numpy as np
import pytest
import xarray as xr
from problems import blobs, refused, value_point

from pcvm_pymc import find_map_em, latent_draws, load, loo, mpcvm_model, pcvm_model, predict, save
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.inference.results import classes_of
from pcvm_pymc.model.read import read


@pytest.fixture(scope="module")
def result():
    X, label = blobs(30, seed=30)
    model = pcvm_model(X, np.where(label > 0, "ill", "healthy"), width=1.2)
    return find_map_em(model, progressbar=False), X


def test_groups_and_shapes(result):
    tree, _ = result
    groups = {"posterior", "optimizer_result", "em_trace", "observed_data", "constant_data"}
    assert set(tree.children) == groups
    assert dict(tree["posterior"]["weight"].sizes) == {"chain": 1, "draw": 1, "basis": 30}
    assert tree["em_trace"].sizes["iteration"] == tree["optimizer_result"]["nit"].item() + 1
    assert tree["optimizer_result"]["status"].item() == "CONVERGED"
    np.testing.assert_allclose(
        tree["posterior"]["weight"], tree["posterior"]["magnitude"] * tree["constant_data"]["signs"]
    )


def test_zarr_keeps_everything(result, tmp_path):
    tree, X = result
    save(tree, tmp_path / "map.zarr")
    back = load(tmp_path / "map.zarr")
    xr.testing.assert_identical(tree, back)
    assert classes_of(back).tolist() == ["healthy", "ill"]
    np.testing.assert_array_equal(latent_draws(back, X), latent_draws(tree, X))
    save(back, tmp_path / "map.zarr")  # replaces
    assert [each.name for each in tmp_path.iterdir()] == ["map.zarr"]


def test_predict_checks_its_input(result):
    tree, X = result
    refused("X_new has 1 features; needed 2", predict, tree, X[:, :1])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_mode_under_an_unknown_scale_is_that_at_unit_scale(n_classes):
    if n_classes == 2:
        (X, label), build = blobs(30, seed=30), pcvm_model
    else:
        (X, label), build = (blobs(24, seed=30)[0], np.arange(24) % 3), mpcvm_model
    model = build(X, label, width=1.2)
    prior = read(model).hyperprior
    assert prior.rate_shape is not None
    known = build(X, label, width=1.2, hyperprior=Hyperprior(prior.c, prior.c, prior.e, prior.f))
    found, wanted = (find_map_em(each, progressbar=False) for each in (model, known))
    point = found["posterior"].to_dataset().isel(chain=0, draw=0)
    assert float(point["rate"]) == prior.c
    for name in ("weight", "bias", "latent", "precision", "bias_precision"):
        np.testing.assert_array_equal(point[name], wanted["posterior"][name].values[0, 0])
    natural = {name: point[name].values for name in ("magnitude", "bias", "rate")}
    with np.errstate(divide="ignore"):
        density = model.compile_logp(jacobian=False)(value_point(model, natural))
    assert found["optimizer_result"]["log_posterior"].item() == pytest.approx(density, abs=1e-8)
    assert found["em_trace"]["log_posterior"].values[-1] == pytest.approx(density, abs=1e-6)
    np.testing.assert_array_equal(loo(found).elpd_i, loo(wanted).elpd_i)
