"""`loo`: leave-one-out scores of point estimates, by results and by classifiers."""

import arviz as az
import numpy as np
import pytest
import xarray as xr
from problems import banana, map_result, refused
from sklearn.datasets import load_iris

import pcvm_pymc as pcvm
from pcvm_pymc.assessment import leave_one_out
from pcvm_pymc.assessment.leave_one_out import fitted_problems
from pcvm_pymc.core.nonnegative import ridge_solve

PRIOR = pcvm.Hyperprior.plug_in()


X, LABEL = banana(50, seed=1, fixed=True)


@pytest.fixture(scope="module")
def result():
    return map_result(pcvm.pcvm_model(X, LABEL > 0, width=0.8, hyperprior=PRIOR))


def test_a_result_is_scored_as_the_classifier_of_the_same_mode(result):
    one = pcvm.PCVMClassifier(width=0.8, hyperprior="plug_in").fit(X, LABEL)
    by_result, by_classifier = pcvm.loo(result), pcvm.loo(one, X, LABEL)
    np.testing.assert_allclose(by_result.elpd_i, by_classifier.elpd_i, atol=1e-8)
    assert by_result.elpd == pytest.approx(float(by_result.elpd_i.sum()))
    assert by_result.se == pytest.approx(np.sqrt(50) * float(by_result.elpd_i.std()))
    assert by_result.n_data_points == 50
    assert by_result.p > 0
    inside = one.predict_proba(X)[np.arange(50), (LABEL > 0).astype(int)]
    assert by_result.p == pytest.approx(np.log(inside).sum() - by_result.elpd, abs=1e-6)
    np.testing.assert_allclose(pcvm.loo(result, X).elpd_i, by_result.elpd_i)


def test_several_classes_by_both_routes():
    X, y = (each[::4] for each in load_iris(return_X_y=True))
    found = map_result(pcvm.mpcvm_model(X, y, width=2.0, hyperprior=PRIOR))
    scored = pcvm.loo(pcvm.MPCVMClassifier(width=2.0, hyperprior="plug_in").fit(X, y), X, y)
    # rows that are refitted enlarge what the two modes differ by
    np.testing.assert_allclose(pcvm.loo(found).elpd_i, scored.elpd_i, atol=1e-6)
    assert scored.p > 0


def test_rows_of_both_classes_at_one_place_keep_their_own_bases():
    rows, label = np.vstack([X, X[:8]]), np.append(LABEL, -LABEL[:8])
    one = pcvm.PCVMClassifier(width=0.8, hyperprior="plug_in").fit(rows, label)
    ((_, problem, weight, bias, own, _),), _ = fitted_problems(one, rows, label)
    np.testing.assert_array_equal(own, np.arange(58))
    np.testing.assert_allclose(problem.Phi @ weight + bias, one.decision_function(rows), atol=1e-12)
    found = pcvm.loo(map_result(pcvm.pcvm_model(rows, label > 0, width=0.8, hyperprior=PRIOR)))
    np.testing.assert_allclose(found.elpd_i, pcvm.loo(one, rows, label).elpd_i, atol=1e-8)


def test_an_average_is_scored_by_its_averaged_probabilities():
    model = pcvm.PCVMClassifier(random_state=0).fit(X, LABEL)
    found = pcvm.loo(model, X, LABEL)
    parts = []
    for each in model.components_:
        given = {"kernel": each.kernel, "width": each.width, "scale": each.scale}
        one = pcvm.PCVMClassifier(**given).fit(X, LABEL)
        parts.append(np.exp(pcvm.loo(one, X, LABEL).elpd_i))
    wanted = np.log(model.component_weights_ @ np.array(parts))
    np.testing.assert_allclose(found.elpd_i, wanted, atol=0.01)
    assert found.n_not_converged <= found.n_refitted
    assert found.warning == (found.n_not_converged > 0)


def test_arviz_compares_point_estimates(result):
    wide = map_result(pcvm.pcvm_model(X, LABEL > 0, width=6.0, hyperprior=PRIOR))
    table = az.compare({"narrow": pcvm.loo(result), "wide": pcvm.loo(wide)})
    assert table.index[0] == "narrow"
    assert (table["elpd_diff"].to_numpy() >= 0).all() or (table["elpd_diff"].to_numpy() <= 0).all()


def test_a_regression_by_evidence_is_that_of_its_ridge():
    rng = np.random.default_rng(3)
    X = np.sort(rng.uniform(-3, 3, size=(30, 1)), axis=0)
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=30)
    tree = pcvm.fit_evidence(pcvm.rvm_model(X, y, width=1.5))
    found = pcvm.loo(tree)
    point = tree["posterior"].to_dataset().isel(chain=0, draw=0)
    precision, noise = point["precision"].values, float(point["noise"])
    Phi = np.exp(-((X - X.T) ** 2) / 1.5**2)
    of_bias = 0.0 if "bias" in point and np.isfinite(point["bias_precision"]) else np.inf
    middle = float(point["bias"]) if np.isinf(of_bias) else 0.0  # where a pruned bias stays
    kept = np.flatnonzero(point["weight"].values)
    for row in (0, 7, 20):
        others, columns = np.delete(np.arange(30), row), kept[kept != row]
        parts = Phi[np.ix_(others, columns)], y[others] - middle, precision[columns]
        weight, bias = ridge_solve(*parts, of_bias, row_weight=np.full(29, noise**-2))
        latent = Phi[row, columns] @ weight + bias + middle
        wanted = -0.5 * ((y[row] - latent) / noise) ** 2 - np.log(noise * np.sqrt(2 * np.pi))
        assert float(found.elpd_i[row]) == pytest.approx(wanted, abs=0.05)
    assert found.p > 0


def test_what_cannot_be_scored(result):
    one = pcvm.PCVMClassifier(width=0.8).fit(X, LABEL)
    for given in ((), (X,)):
        refused(r"needed loo\(classifier, X, y\)", pcvm.loo, one, *given)
    refused("kernel='rbf' was given with a classifier", pcvm.loo, one, X, LABEL, kernel="rbf")
    refused("y was given with a result", pcvm.loo, result, X, LABEL)
    refused("RVMRegressor with X=given", pcvm.loo, pcvm.RVMRegressor(), X, LABEL)
    refused("the result has 50 rows and X 40", pcvm.loo, result, X[:40])
    bottom_up = pcvm.fit_evidence(pcvm.pcvm_model(X, LABEL > 0, width=0.8))
    refused("from the bottom up, which keeps no precisions", pcvm.loo, bottom_up)
    refused("result={}; needed a DataTree", pcvm.loo, {})
    refused("needed its training data", pcvm.loo, one, X + 1.0, LABEL)
    refused("needed its training data", pcvm.loo, one, X[:10], LABEL[:10])
    refused("labels that are none of", pcvm.loo, one, X, LABEL + 5.0)
    refused(r"y has shape \(40,\); needed \(50,\)", pcvm.loo, one, X, LABEL[:40])
    for how, arguments in {
        "bottom-up": {"estimation": "bottom-up"},
        "by projection": {"estimation": "projection", "n_vectors": 3},
        "by draws": {"estimation": "posterior", "options": pcvm.PosteriorOptions(10), "basis": 3},
    }.items():
        fitted = pcvm.PCVMClassifier(width=0.8, **arguments).fit(X, LABEL)
        refused(f"is fitted {how}; needed posterior modes by EM", pcvm.loo, fitted, X, LABEL)


def test_refits_given_up_are_reported_and_long_ones_show_progress(monkeypatch, capsys):
    one = pcvm.PCVMClassifier(width=0.3, scale=10.0).fit(X, LABEL)
    found = pcvm.loo(one, X, LABEL)
    assert found.n_refitted > 0 == found.n_not_converged
    assert not found.warning
    assert not capsys.readouterr().err
    monkeypatch.setattr(leave_one_out, "_REFIT", pcvm.EMOptions(tol=1e-4, max_iter=1))
    monkeypatch.setattr(leave_one_out, "_SILENT", 0.0)
    given_up = pcvm.loo(one, X, LABEL)
    assert 0 < given_up.n_not_converged <= given_up.n_refitted == found.n_refitted
    assert given_up.warning
    assert "leave-one-out" in capsys.readouterr().err


def test_several_draws_are_refused(result):
    several = result.copy()
    draw = several["posterior"].to_dataset()
    several["posterior"] = xr.DataTree(xr.concat([draw, draw], dim="draw"))
    refused(r"has 2 draws.*kfold\(posterior, X, y\)", pcvm.loo, several)
