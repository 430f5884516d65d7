import numpy as np
import pymc as pm
import pytest
from problems import blobs, map_result, refused

from pcvm_pymc import EMOptions, Start, find_map_em, predict, sparse_probit_model


def test_a_start_may_be_given():
    X, label = blobs(60, 5, seed=1)
    model = sparse_probit_model(X, label, prior="laplace")
    given = {"options": EMOptions(tol=1e-9), "progressbar": False}
    first = find_map_em(model, **given)["posterior"]["weight"]
    other = find_map_em(model, start=Start(np.full(5, 0.1), 0.1), **given)["posterior"]["weight"]
    np.testing.assert_allclose(first, other, atol=1e-6)  # the L1-penalised probit has one maximum


@pytest.mark.parametrize("features", ["linear", "quadratic"])
def test_new_rows_of_other_features_are_set_by_their_inputs(features):
    X, label = blobs(50, 2, seed=2)
    model = sparse_probit_model(X, label, features=features)
    result = map_result(model)
    refused("no kernel, hence no centres", predict, result, X[:7])
    with model:
        pm.set_data({"X": X[:7]})
        given = {"var_names": ["latent"], "predictions": True}
        out = pm.sample_posterior_predictive(result, **given, progressbar=False)
    latent = out["predictions"]["latent"].values[0, 0]
    np.testing.assert_allclose(latent, result["posterior"]["latent"].values[0, 0, :7], atol=1e-9)
