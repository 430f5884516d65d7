"""`loo`: leave-one-out scores of point estimates, by results and by classifiers."""

import arviz as az
import numpy as np
import pytest
import xarray as xr
from problems import banana
from sklearn.datasets import load_iris

from pcvm_pymc import (
    Hyperprior,
    Laplace,
    MPCVMClassifier,
    PCVMClassifier,
    find_map_em,
    fit_evidence,
    loo,
    mpcvm_model,
    pcvm_model,
    predict,
    rvm_model,
    sparse_probit_model,
)
from pcvm_pymc.assessment import leave_one_out
from pcvm_pymc.assessment.leave_one_out import fitted_problems
from pcvm_pymc.core.em import EMOptions
from pcvm_pymc.core.nonnegative import ridge_solve

PRIOR = Hyperprior.plug_in()


@pytest.fixture(scope="module")
def rows():
    return banana(50, seed=1)


@pytest.fixture(scope="module")
def result(rows):
    X, label = rows
    model = pcvm_model(X, label > 0, width=0.8, hyperprior=PRIOR)
    return find_map_em(model, progressbar=False)


def test_a_result_is_scored_as_the_classifier_of_the_same_mode(rows, result):
    X, label = rows
    one = PCVMClassifier(width=0.8, hyperprior="plug_in").fit(X, label)
    by_result, by_classifier = loo(result), loo(one, X, label)
    np.testing.assert_allclose(by_result.elpd_i, by_classifier.elpd_i, atol=1e-8)
    assert by_result.elpd == pytest.approx(float(by_result.elpd_i.sum()))
    assert by_result.se == pytest.approx(np.sqrt(50) * float(by_result.elpd_i.std()))
    assert by_result.n_data_points == 50
    assert by_result.p > 0
    inside = one.predict_proba(X)[np.arange(50), (label > 0).astype(int)]
    assert by_result.p == pytest.approx(np.log(inside).sum() - by_result.elpd, abs=1e-6)
    np.testing.assert_allclose(loo(result, X).elpd_i, by_result.elpd_i)


def test_several_classes_by_both_routes():
    X, y = load_iris(return_X_y=True)
    X, y = X[::4], y[::4]
    model = mpcvm_model(X, y, width=2.0, hyperprior=PRIOR)
    found = find_map_em(model, progressbar=False)
    one = MPCVMClassifier(width=2.0, hyperprior="plug_in").fit(X, y)
    scored = loo(one, X, y)
    # rows that are refitted enlarge what the two modes differ by
    np.testing.assert_allclose(loo(found).elpd_i, scored.elpd_i, atol=1e-6)
    assert scored.p > 0


def test_equal_rows_keep_their_own_bases(rows):
    X, label = rows
    X, label = np.vstack([X, X[:8]]), np.append(label, label[:8])
    label[-1] *= -1.0  # of both classes at one place
    one = PCVMClassifier(width=0.8, hyperprior="plug_in").fit(X, label)
    ((_, problem, weight, bias, own, _),) = fitted_problems(one, X, label)
    np.testing.assert_array_equal(own, np.arange(58))
    np.testing.assert_allclose(problem.Phi @ weight + bias, one.decision_function(X), atol=1e-12)
    model = pcvm_model(X, label > 0, width=0.8, hyperprior=PRIOR)
    found = loo(find_map_em(model, progressbar=False))
    np.testing.assert_allclose(found.elpd_i, loo(one, X, label).elpd_i, atol=1e-8)


def test_an_average_is_scored_by_its_averaged_probabilities(rows):
    X, label = rows
    model = PCVMClassifier(random_state=0).fit(X, label)
    found = loo(model, X, label)
    parts = []
    for each in model.components_:
        one = PCVMClassifier(width=each.width, scale=each.scale).fit(X, label)
        parts.append(np.exp(loo(one, X, label).elpd_i))
    wanted = np.log(model.component_weights_ @ np.array(parts))
    np.testing.assert_allclose(found.elpd_i, wanted, atol=0.01)
    assert found.n_unsettled <= found.n_refitted
    assert found.warning == (found.n_unsettled > 0)


def test_arviz_compares_point_estimates(rows, result):
    X, label = rows
    wide = find_map_em(pcvm_model(X, label > 0, width=6.0, hyperprior=PRIOR), progressbar=False)
    table = az.compare({"narrow": loo(result), "wide": loo(wide)})
    assert table.index[0] == "narrow"
    assert (table["elpd_diff"].to_numpy() >= 0).all() or (table["elpd_diff"].to_numpy() <= 0).all()


def test_a_regression_by_evidence_is_that_of_its_ridge():
    rng = np.random.default_rng(3)
    X = np.sort(rng.uniform(-3, 3, size=(30, 1)), axis=0)
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=30)
    model = rvm_model(X, y, width=1.5)
    tree = fit_evidence(model)
    found = loo(tree)
    point = tree["posterior"].to_dataset().isel(chain=0, draw=0)
    precision, noise = point["precision"].values, float(point["noise"])
    Phi = np.exp(-((X - X.T) ** 2) / 1.5**2)
    bias_precision = float(point["bias_precision"]) if "bias" in point else np.inf
    kept = np.flatnonzero(point["weight"].values)
    for row in (0, 7, 20):
        others, columns = np.delete(np.arange(30), row), kept[kept != row]
        weight, bias = ridge_solve(
            Phi[np.ix_(others, columns)],
            y[others],
            precision[columns],
            0.0 if np.isfinite(bias_precision) else np.inf,
            row_weight=np.full(29, noise**-2),
        )
        latent = Phi[row, columns] @ weight + bias
        wanted = -0.5 * ((y[row] - latent) / noise) ** 2 - np.log(noise * np.sqrt(2 * np.pi))
        assert float(found.elpd_i[row]) == pytest.approx(wanted, abs=0.05)
    assert found.p > 0


def test_what_cannot_be_scored(rows, result):
    X, label = rows
    one = PCVMClassifier(width=0.8).fit(X, label)
    for given in ((), (X,)):
        with pytest.raises(ValueError, match=r"needed loo\(classifier, X, y\)"):
            loo(one, *given)
    with pytest.raises(ValueError, match="kernel='rbf' was given with a classifier"):
        loo(one, X, label, kernel="rbf")
    with pytest.raises(ValueError, match="y was given with a result"):
        loo(result, X, label)
    with pytest.raises(ValueError, match="the result has 50 rows and X 40"):
        loo(result, X[:40])
    bottom_up = fit_evidence(pcvm_model(X, label > 0, width=0.8))
    with pytest.raises(ValueError, match="from the bottom up, which keeps no precisions"):
        loo(bottom_up)
    with pytest.raises(ValueError, match="result is a dict; needed a DataTree"):
        loo({})
    with pytest.raises(ValueError, match="needed its training data"):
        loo(one, X + 1.0, label)
    with pytest.raises(ValueError, match="needed its training data"):
        loo(one, X[:10], label[:10])
    with pytest.raises(ValueError, match="labels that are none of"):
        loo(one, X, label + 5.0)
    with pytest.raises(ValueError, match=r"y has shape \(40,\); needed \(50,\)"):
        loo(one, X, label[:40])
    for arguments in ({"estimation": "bottom-up"}, {"estimation": "projection", "n_vectors": 3}):
        fitted = PCVMClassifier(width=0.8, **arguments).fit(X, label)
        with pytest.raises(ValueError, match="needed posterior modes by EM"):
            loo(fitted, X, label)


@pytest.mark.parametrize("prior", ["logit", "laplace"])
def test_rows_that_move_far_have_the_scores_of_their_refits(prior):
    """One row was .26 nats off under the logit, many under Laplace's prior, where the bias is zero."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40, 2))
    y = X[:, 0] + 0.5 * rng.normal(size=40) > 0

    def make(X, y):
        if prior == "laplace":
            return sparse_probit_model(X, y, features="kernel", width=1.0, prior=Laplace(0.3))
        plug_in = Hyperprior(5.0, 5.0, 1.0, 1.0)
        return pcvm_model(X, y, width=0.5, likelihood="logit", hyperprior=plug_in)

    found = loo(find_map_em(make(X, y), progressbar=False))
    assert found.n_unsettled == 0
    for row in (3, 11, 20, 33):
        rest = np.delete(np.arange(40), row)
        refit = find_map_em(make(X[rest], y[rest]), progressbar=False)
        p = predict(refit, X[[row]])["predictions"]["probability"].values.item()
        wanted = np.log(p if y[row] else 1 - p)
        assert float(found.elpd_i[row]) == pytest.approx(wanted, abs=0.01)


def test_refits_that_are_given_up_are_reported_and_long_ones_show_progress(
    rows, monkeypatch, capsys
):
    X, label = rows
    one = PCVMClassifier(width=0.3, scale=10.0).fit(X, label)
    found = loo(one, X, label)
    assert found.n_refitted > 0 == found.n_unsettled
    assert not found.warning
    assert not capsys.readouterr().err
    monkeypatch.setattr(leave_one_out, "_REFIT", EMOptions(tol=1e-4, max_iter=1))
    monkeypatch.setattr(leave_one_out, "_SILENT", 0.0)
    given_up = loo(one, X, label)
    assert 0 < given_up.n_unsettled <= given_up.n_refitted == found.n_refitted
    assert given_up.warning
    assert "leave-one-out" in capsys.readouterr().err


def test_several_draws_are_refused(result):
    several = result.copy()
    draw = several["posterior"].to_dataset()
    several["posterior"] = xr.DataTree(xr.concat([draw, draw], dim="draw"))
    with pytest.raises(ValueError, match=r"has 2 draws.*kfold\(posterior, X, y\)"):
        loo(several)
