import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from problems import blobs
from sklearn.metrics import log_loss

from pcvm_pymc import (
    compare,
    find_map_em,
    fit_evidence,
    mpcvm_model,
    pcvm_model,
    plots,
    predict,
    rvm_model,
    sample,
)
from pcvm_pymc.assessment.comparison import (
    Rival,
    active_count,
    convergence,
    scores,
)
from pcvm_pymc.core.measures import expected_calibration_error


@pytest.fixture(scope="module")
def fits():
    X, label = blobs(40, seed=80)
    words = np.where(label > 0, "yes", "no")
    model = pcvm_model(X, words, width=1.2)
    tree = sample(
        model, draws=50, tune=100, chains=2, cores=1, progressbar=False, random_seed=1, quiet=True
    )
    return find_map_em(model, progressbar=False), tree, X, words


def test_table_rows_are_the_scores_of_the_predictions(fits):
    map_result, posterior, _, _ = fits
    X_test, label = blobs(60, seed=81)
    words = np.where(label > 0, "yes", "no")
    rival = Rival(np.full(60, 0.5), 7.0, 1.5)
    result = compare(map_result, posterior, X_test, words, rivals={"coin": rival})
    assert result.table.index.tolist() == ["MAP plug-in", "posterior mean", "coin"]
    mean = predict(posterior, X_test)["predictions"]["probability"].mean(("chain", "draw"))
    row = result.table.loc["posterior mean"]
    assert row["log loss"] == pytest.approx(log_loss(label > 0, mean.values))
    assert row["error"] == np.mean((mean.values > 0.5) != (label > 0))
    coin = result.table.loc["coin"]
    assert coin["log loss"] == pytest.approx(np.log(2))
    assert coin["1-RMSE"] == pytest.approx(0.5)
    assert coin["AUC"] == 0.5
    assert coin["vectors"] == 7
    assert "divergences" in str(result)
    assert "<table" in result._repr_html_()
    for kind in ("reliability", "weights", "em_trace"):
        assert isinstance(result.plot(kind), Figure)
    with pytest.raises(ValueError, match="kind='pie' is unknown"):
        result.plot("pie")
    with pytest.raises(ValueError, match=r"y_test has labels \['maybe'\]"):
        compare(map_result, posterior, X_test, np.where(label > 0, "yes", "maybe"))


def test_the_rank_plot_shows_bias_and_latent_values(fits, tmp_path):
    collection = plots.plot_rank(fits[1], n_latent=3)
    collection.savefig(tmp_path / "rank.png")
    assert (tmp_path / "rank.png").stat().st_size > 5000


def test_the_decision_surface_needs_a_plane(fits):
    map_result, posterior, X, words = fits
    figure = plots.plot_decision_surface(map_result, posterior, X, words, resolution=12)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["MAP plug-in", "posterior mean", "width of the 89 % interval"]
    with pytest.raises(ValueError, match=r"shape \(40, 1\); a decision surface needs"):
        plots.plot_decision_surface(map_result, posterior, X[:, :1], words)


def test_results_of_other_models_are_rivals(fits):
    map_result, posterior, _, _ = fits
    X_test, label = blobs(60, seed=81)
    words = np.where(label > 0, "yes", "no")
    result = compare(map_result, posterior, X_test, words, rivals={"again": posterior})
    again, first = result.table.loc["again"], result.table.loc["posterior mean"]
    assert again.to_dict() == first.to_dict()
    figure = result.plot("calibration")
    assert [axes.get_title() for axes in figure.axes] == ["MAP plug-in", "posterior mean", "again"]


def test_the_prior_predictive_picture(fits):
    _, _, X, words = fits
    models = {"wide": pcvm_model(X, words, width=1.2), "narrow": pcvm_model(X, words, width=0.3)}
    figure = plots.plot_prior_predictive(models, draws=50)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert [title.split("\n")[0] for title in titles] == ["wide", "narrow"]


def of_three_classes(n=24):
    rng = np.random.default_rng(5)
    label = np.arange(n) % 3
    return rng.normal(size=(n, 2)) + 2.0 * np.array([[0, 0], [1, 0], [0, 1]])[label], label


def test_several_classes_are_compared():
    X, label = of_three_classes()
    words = np.array(["a", "b", "c"])[label]
    result = find_map_em(mpcvm_model(X, words, width=1.2), progressbar=False)
    posterior = result.copy()  # four draws of two chains around the MAP
    draws = result["posterior"].to_dataset().isel(chain=[0, 0], draw=[0] * 4)
    shift = xr.DataArray(np.random.default_rng(0).normal(size=(2, 4)), dims=("chain", "draw"))
    draws = draws.assign_coords(chain=[0, 1], draw=range(4))
    posterior["posterior"] = draws.assign(latent=draws["latent"] + shift)
    posterior["sample_stats"] = xr.Dataset()
    found = compare(result, posterior, X, words, rivals={"even": Rival(np.full((24, 3), 1 / 3))})
    probability = predict(result, X)["predictions"]["probability"].values[0, 0]
    row = found.table.loc["MAP plug-in"]
    assert row["log loss"] == pytest.approx(log_loss(label, probability))
    assert row["error"] == np.mean(probability.argmax(axis=1) != label)
    assert found.table.loc["even"]["log loss"] == pytest.approx(np.log(3))
    weight = result["posterior"]["weight"].values[0, 0]
    assert row["vectors"] == np.sum((weight != 0).any(axis=1))
    assert isinstance(found.plot("em_trace"), Figure)
    for kind in ("reliability", "calibration", "weights"):
        with pytest.raises(ValueError, match="is a picture of two classes"):
            found.plot(kind)
    with pytest.raises(ValueError, match=r"'coin' has probabilities of shape \(24,\); needed"):
        compare(result, posterior, X, words, rivals={"coin": Rival(np.full(24, 0.5))})


def test_pictures_of_two_classes_refuse_several(fits):
    X, label = of_three_classes()
    model = mpcvm_model(X, label, width=1.2)
    result = find_map_em(model, progressbar=False)
    with pytest.raises(ValueError, match="weights are those of 3 classes"):
        plots.plot_weights(result, result)
    with pytest.raises(ValueError, match="a decision surface needs two classes"):
        plots.plot_decision_surface(result, result, X, label)
    with pytest.raises(ValueError, match="needed a model of two classes"):
        plots.plot_prior_predictive({"three": model})
    with pytest.raises(ValueError, match="of the greater of two classes"):
        plots.plot_calibration(label, {"three": np.full((24, 3), 1 / 3)})
    map_result, posterior, _, _ = fits
    with pytest.raises(ValueError, match="'three' has 3 classes; needed 2"):
        compare(map_result, posterior, X, np.full(24, "yes"), rivals={"three": result})
    regression = fit_evidence(rvm_model(X, X[:, 0]))
    with pytest.raises(ValueError, match="needed em_trace, from find_map_em"):
        plots.plot_em_trace(regression)
    with pytest.raises(ValueError, match="is a regression under the 'normal' likelihood"):
        compare(regression, regression, X, X[:, 0])


def test_calibration_error_by_hand():
    probability = np.array([0.05, 0.05, 0.95, 0.95, 0.95, 0.95])
    label = np.array([0, 1, 1, 1, 1, 0])
    # two bins: a third of the rows is off by .45, two thirds are off by .20
    assert expected_calibration_error(label, probability) == pytest.approx(
        2 / 6 * 0.45 + 4 / 6 * 0.20
    )
    rng = np.random.default_rng(0)
    probability = rng.uniform(size=100_000)
    assert expected_calibration_error(rng.uniform(size=100_000) < probability, probability) < 0.01
    assert expected_calibration_error([0, 1], [0.0, 1.0]) == 0.0


def test_active_count_by_hand():
    weight = np.array([[10.0, 0.0, 0.0, 0.0], [1.0, -1.0, 1.0, -1.0], [0.0, 0.0, 0.0, 0.0]])
    assert active_count(weight).tolist() == [1, 4, 0]
    assert active_count(np.stack([weight, weight], axis=-1)).tolist() == [1, 4, 0]
    assert active_count([[50.0, 45.0, 5.0]], share=0.9).tolist() == [2]


def test_one_class_in_the_test_set_has_no_auc():
    found = scores([1, 1], [0.8, 0.9])
    assert np.isnan(found["AUC"])
    assert found["log loss"] == pytest.approx(-np.mean(np.log([0.8, 0.9])))


def test_verdicts():
    rng = np.random.default_rng(0)
    good = rng.normal(size=(4, 500, 3))
    stuck = good.copy()
    stuck[0] += 5

    def tree(latent, divergences=0):
        diverging = np.zeros((4, 500), dtype=bool)
        diverging[0, :divergences] = True
        dims = ("chain", "draw", "obs")
        return xr.DataTree.from_dict(
            {
                "posterior": xr.Dataset({"latent": (dims, latent)}),
                "sample_stats": xr.Dataset({"diverging": (dims[:2], diverging)}),
            }
        )

    assert convergence(tree(good)).ok
    assert str(convergence(tree(good))).startswith("converged (0 divergences in 2000")
    assert str(convergence(tree(good, 3))).startswith("converged, but with divergences")
    assert not convergence(tree(stuck)).ok
    assert str(convergence(tree(stuck))).startswith("NOT converged")
