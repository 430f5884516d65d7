import json

import numpy as np
import pytest
from problems import blobs, refused

from pcvm_pymc import compare, find_map_em, load, mixture, pcvm_model, predict, sample, save

SHORT = {"draws": 60, "tune": 20, "chains": 2, "cores": 1, "quiet": True, "max_sweeps": 700}
WIDTHS, WEIGHTS = (0.8, 2.0), (3.0, 1.0)


@pytest.fixture(scope="module")
def data():
    return blobs(30)


@pytest.fixture(scope="module")
def parts(data):
    models = [pcvm_model(*data, width=w, basis="kmeans", signs="both") for w in WIDTHS]
    return [sample(each, random_seed=i, **SHORT) for i, each in enumerate(models)]


@pytest.fixture(scope="module")
def mixed(parts):
    return mixture(parts, WEIGHTS)


def test_each_has_its_share_of_every_chain(parts, mixed):
    width = mixed["posterior"]["width"]
    for chain in width.values:
        assert [(chain == w).sum() for w in WIDTHS] == [45, 15]
    assert mixed["posterior"].sizes == parts[0]["posterior"].sizes
    for w, part in zip(WIDTHS, parts, strict=True):
        for group, name in (("posterior", "latent"), ("log_likelihood", "label")):
            kept = mixed[group][name].values[width.values == w]
            there = part[group][name].stack(s=("chain", "draw")).transpose("s", ...).values
            assert {row.tobytes() for row in kept} <= {row.tobytes() for row in there}


def test_predictions_are_the_weighted_mean(data, parts):
    """As many draws of each: what a share of them predicts is their part of the mixture."""
    X_new = data[0][:5] + 0.3
    mixed = mixture(parts, [0.5, 0.5])
    found = predict(mixed, X_new)["predictions"]["probability"]
    for w, part in zip(WIDTHS, parts, strict=True):
        of_width = found.values[mixed["posterior"]["width"].values == w]
        wanted = predict(part, X_new)["predictions"]["probability"].values[:, ::2].reshape(-1, 5)
        np.testing.assert_allclose(np.sort(of_width, axis=0), np.sort(wanted, axis=0), atol=1e-12)


def test_it_is_a_result_of_an_unknown_width(data, parts, mixed, tmp_path):
    X, y = data
    assert "Phi" not in mixed["constant_data"]
    assert json.loads(mixed.attrs["pieces"])["kernel"]["width"] is None
    save(mixed, tmp_path / "mixed.zarr")
    np.testing.assert_array_equal(
        predict(load(tmp_path / "mixed.zarr"), X)["predictions"]["probability"],
        predict(mixed, X)["predictions"]["probability"],
    )
    model = pcvm_model(X, y, width=WIDTHS[0], basis="kmeans", signs="both")
    mode = find_map_em(model, progressbar=False)
    found = compare(mode, parts[0], X, y, rivals={"mixture": mixed}).table
    assert np.isfinite(found["log loss"]).all()


def test_a_fixed_scale_becomes_a_variable(data):
    models = [pcvm_model(*data, width=w, basis=6, hyperprior="default") for w in WIDTHS]
    mixed = mixture([sample(each, random_seed=1, **SHORT) for each in models], WEIGHTS)
    rate, width = mixed["posterior"]["rate"].values, mixed["posterior"]["width"].values
    for w, model in zip(WIDTHS, models, strict=True):
        assert set(rate[width == w]) == {model["hyperprior"].get_value()[1]}


def test_what_is_no_mixture(data, parts, mixed):
    X, y = data
    fewer = sample(pcvm_model(X, y, width=1.0, basis="kmeans"), random_seed=1, **SHORT)
    shorter = parts[0].copy()
    shorter["posterior"] = shorter["posterior"].to_dataset().isel(draw=slice(30))
    for posteriors, weights, words in (
        ([], [], "posteriors is empty"),
        (parts, [1.0], "weights=.*needed 2 positive numbers"),
        (parts, [1.0, 0.0], "weights=.*positive"),
        (parts, [1.0, np.nan], "weights"),
        (parts, [1.0, 1e-6], "without a draw of 60"),
        ([parts[0], fewer], WEIGHTS, r"posteriors\[1\] differs .* other rows or bases"),
        ([parts[0], shorter], WEIGHTS, r"posteriors\[1\] has sizes"),
        ([mixed], [1.0], r"posteriors\[0\] is not of a model whose RBF has a known width"),
        ([1], [1.0], r"posteriors\[0\]"),
    ):
        refused(words, mixture, posteriors, weights)
