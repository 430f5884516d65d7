"""Models of several classes: densities, EM's log posterior, data, predictions, sampling."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from calibration import assert_law
from problems import refused, three_blobs
from scipy import stats

import pcvm_pymc as pcvm
from pcvm_pymc.core.family import class_signs

(X, _, Y), (FEW, _, FEW_Y) = three_blobs(), three_blobs(9)
PRIOR = pcvm.Hyperprior(2.0, 0.3, 1.5, 0.7)
IMPROPER = pcvm.Hyperprior(0.0, 0.0, 0.0, 0.0)
BUILDERS = {"mpcvm": pcvm.mpcvm_model, "mrvm": pcvm.mrvm_model}
FAST = {"mode": "FAST_COMPILE"}
SAMPLING = {"nuts_sampler": "pymc", "cores": 1, "progressbar": False, "quiet": True}


def test_weights_of_a_basis_that_share_a_precision():
    model = pcvm.mrvm_model(X, Y, width=1.3, hyperprior=PRIOR, shared=True)
    explicit = pcvm.mrvm_model(X, Y, hyperprior=PRIOR, shared=True, precision="joint")
    assert explicit.named_vars_to_dims["precision"] == ("basis",)
    # both forms draw what that density says: any projection is a Student-t, and sizes go together
    for each in (model, explicit):
        drawn = pm.draw(each["weight"], 400, random_seed=2, mode="FAST_COMPILE")
        along = drawn[:, :, :].reshape(-1, 3) @ np.array([0.6, 0.0, 0.8])
        assert_law(along, stats.t(4, scale=np.sqrt(0.15)).cdf)
        size = np.log(np.abs(drawn.reshape(-1, 3)))
        assert stats.spearmanr(size[:, 0], size[:, 1]).statistic > 0.1


def test_sampling_of_shared_precisions_has_the_jacobian_of_its_transform():
    model = pcvm.mrvm_model(FEW, FEW_Y, hyperprior=PRIOR, shared=True)
    point = {name: value + 0.3 for name, value in model.initial_point(0).items()}
    (name,) = (v.name for v in model.value_vars if v.name.startswith("weight"))
    with_it = model.compile_logp(jacobian=True, **FAST)(point)
    without = model.compile_logp(jacobian=False, **FAST)(point)
    wanted = np.log(np.sqrt(0.15) * np.cosh(point[name])).sum()
    assert with_it - without == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("name", BUILDERS)
def test_explicit_precisions_have_the_dims_of_the_weights(name):
    model = BUILDERS[name](FEW, FEW_Y, precision="joint")
    assert model.named_vars_to_dims["precision"] == ("basis", "class")
    assert np.isfinite(model.compile_logp(mode="FAST_COMPILE")(model.initial_point(0)))
    refused("precision", pcvm.find_map_em, model, progressbar=False)


def test_bad_input_is_refused():
    refused("needed two or more", pcvm.mpcvm_model, FEW, np.zeros(9))
    refused("without signs", pcvm.mpcvm_model, FEW, FEW_Y, basis=FEW[:3])
    refused("signs has shape", pcvm.mpcvm_model, FEW, FEW_Y, basis=FEW[:3], signs=np.ones((3, 2)))
    with pytest.raises(ValueError, match="improper hyperprior"):
        pcvm.sample(pcvm.mpcvm_model(FEW, FEW_Y, hyperprior=IMPROPER), **SAMPLING)
    start = pcvm.Start(np.zeros((2, 3)), np.zeros(3))
    refused("shape", pcvm.find_map_em, pcvm.mpcvm_model(FEW, FEW_Y), start=start, progressbar=False)


def test_a_number_of_bases_is_chosen_within_each_class():
    X, _, y = three_blobs(30)
    for build in (pcvm.mpcvm_model, pcvm.mrvm_model):
        model = build(X, y, width=1.5, basis=9)
        centres = model["centres"].get_value()
        rows = np.array([np.flatnonzero((each == X).all(axis=1))[0] for each in centres])
        assert len(set(rows.tolist())) == 9
        assert set(np.asarray(y)[rows]) == set(y)
        assert model["latent"].eval().shape == (30, 3)
    model = pcvm.mpcvm_model(X, y, width=1.5, basis=9)
    label = np.searchsorted(np.unique(y), np.asarray(y)[rows])
    np.testing.assert_array_equal(model["signs"].get_value(), class_signs(label, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_nuts_converges_for_three_classes(name):
    X, _, y = three_blobs(60)
    result = pcvm.sample(BUILDERS[name](X, y, width=1.5), method="nuts", random_seed=1, **SAMPLING)
    latent = result["posterior"].to_dataset()[["latent"]]
    assert az.rhat(latent)["latent"].max() <= 1.01
    assert az.ess(latent)["latent"].min() >= 400
    assert result["sample_stats"]["diverging"].mean() <= 0.002
