import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from problems import blobs, refused, three_blobs
from sklearn.metrics import log_loss

import pcvm_pymc as pcvm
from pcvm_pymc.assessment.comparison import Rival, active_count, convergence
from pcvm_pymc.estimators.measures import expected_calibration_error
from pcvm_pymc.figures import PALETTE


@pytest.fixture(scope="module")
def fits():
    X, label = blobs(40, seed=80)
    words = np.where(label > 0, "yes", "no")
    model = pcvm.pcvm_model(X, words, width=1.2)
    short = {"draws": 50, "tune": 100, "chains": 2, "cores": 1, "max_iter": 500}
    tree = pcvm.sample(model, **short, progressbar=False, random_seed=1, quiet=True)
    return pcvm.find_map_em(model, progressbar=False), tree, X, words


def test_one_chain_and_no_statistics_of_a_sampler_are_enough(fits):
    mode, posterior, X, words = fits
    plain = posterior.isel(chain=[0]).drop_nodes("sample_stats", errors="ignore")
    found = pcvm.compare(mode, plain, X, words)
    assert (found.table["seconds"] > 0).all()
    assert found.convergence.divergences == 0
    assert np.isnan(found.convergence.rhat)  # of one chain it cannot be told


def test_table_rows_are_the_scores_of_the_predictions(fits):
    map_result, posterior, _, _ = fits
    X_test, label = blobs(60, seed=81)
    words = np.where(label > 0, "yes", "no")
    rival = Rival(np.full(60, 0.5), 7.0)  # in a time that nobody told
    rivals = {"coin": rival, "again": posterior}  # another's predictions, and another result
    result = pcvm.compare(map_result, posterior, X_test, words, rivals=rivals)
    assert result.table.index.tolist() == ["MAP plug-in", "posterior mean", "coin", "again"]
    assert result.table.loc["again"].to_dict() == result.table.loc["posterior mean"].to_dict()
    mean = pcvm.predict(posterior, X_test)["predictions"]["probability"].mean(("chain", "draw"))
    row = result.table.loc["posterior mean"]
    assert row["log loss"] == pytest.approx(log_loss(label > 0, mean.values))
    assert row["error"] == np.mean((mean.values > 0.5) != (label > 0))
    coin = result.table.loc["coin"]
    assert (coin["log loss"], coin["1-RMSE"]) == pytest.approx((np.log(2), 0.5))
    assert (coin["AUC"], coin["vectors"]) == (0.5, 7)
    assert "divergences" in str(result)
    assert "<table" in result._repr_html_()
    assert "nan" not in f"{result!r}{result._repr_html_()}".lower()
    assert isinstance(result.plot("weights"), Figure)
    titles = [axes.get_title() for axes in result.plot("calibration").axes if axes.get_visible()]
    assert titles == result.table.index.tolist()
    refused("kind='pie' is unknown", result.plot, "pie")
    with pytest.raises(ValueError, match=r"y_test has labels \['maybe'\]"):
        pcvm.compare(map_result, posterior, X_test, np.where(label > 0, "yes", "maybe"))


def test_compare_takes_one_model_and_its_classes(fits):
    _, posterior, X, words = fits
    jeffreys = {"hyperprior": pcvm.Hyperprior.jeffreys()}
    for y, given, said in (
        (words == "yes", {"width": 1.2}, "y_test has labels"),
        (words, {"width": 2.0}, "map_result has other width"),
        (words, {"width": 1.2, **jeffreys}, "map_result has other hyperprior"),
    ):
        other = pcvm.find_map_em(pcvm.pcvm_model(X, y, **given), progressbar=False)
        refused(said, pcvm.compare, other, posterior, X, words)


def test_the_mode_comes_first_and_the_posterior_second(fits):
    mode, posterior, X, words = fits
    for pair, found in (
        ((posterior, mode), "100 draws and posterior 1;"),
        ((mode, mode), "1 draws and posterior 1;"),
        ((posterior, posterior), "100 draws and posterior 100;"),
    ):
        said = rf"map_result has {found} needed a mode .* in this order: compare\(mode, posterior"
        refused(said, pcvm.compare, *pair, X, words)


def test_results_that_others_made_are_compared_as_ours(fits):
    """As by `pymc_extras`, its `find_MAP` and `fit_laplace`: without seconds, classes and pieces."""
    mode, posterior, X, words = fits
    wanted = pcvm.compare(mode, posterior, X, words)
    end, others = xr.Dataset({"x": ("rows", np.ones(3)), "status": 0, "message": "ABNORMAL"}), []
    for tree in (mode, posterior):
        other = xr.DataTree.from_dict({name: tree[name].to_dataset() for name in tree.children})
        other["posterior"].attrs.clear()
        other["optimizer_result"] = end
        others.append(other)
    for pair in ((others[0], posterior), (mode, others[1])):
        found = pcvm.compare(*pair, X, words)
        assert found.table.isna().sum().sum() == found.table["seconds"].isna().sum() == 1
        kept = wanted.table.drop(columns="seconds")
        pd.testing.assert_frame_equal(found.table.drop(columns="seconds"), kept)
        assert isinstance(found.plot("calibration"), Figure)


def test_the_decision_surface_needs_a_plane(fits):
    map_result, posterior, X, words = fits
    figure = pcvm.plots.plot_decision_surface(map_result, posterior, X, words, resolution=12)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["MAP plug-in", "posterior mean", "width of the 89 % interval"]
    with pytest.raises(ValueError, match=r"shape \(40, 1\); a decision surface needs"):
        pcvm.plots.plot_decision_surface(map_result, posterior, X[:, :1], words)


def test_several_classes_are_compared():
    X, label, words = three_blobs()
    result = pcvm.find_map_em(pcvm.mpcvm_model(X, words, width=1.2), progressbar=False)
    posterior = result.copy()  # four draws of two chains around the MAP
    draws = result["posterior"].to_dataset().isel(chain=[0, 0], draw=[0] * 4)
    of_chains = np.random.default_rng(0).normal(size=(2, 4, 3))
    shift = xr.DataArray(of_chains, dims=("chain", "draw", "class"))
    draws = draws.assign_coords(chain=[0, 1], draw=range(4))
    posterior["posterior"] = draws.assign(latent=draws["latent"] + shift)
    posterior["sample_stats"] = xr.Dataset()
    even = Rival(np.full((24, 3), 1 / 3))
    found = pcvm.compare(result, posterior, X, words, rivals={"even": even})
    probability = pcvm.predict(result, X)["predictions"]["probability"].values[0, 0]
    row = found.table.loc["MAP plug-in"]
    assert row["log loss"] == pytest.approx(log_loss(label, probability))
    assert row["error"] == np.mean(probability.argmax(axis=1) != label)
    assert found.table.loc["even"]["log loss"] == pytest.approx(np.log(3))
    assert row["vectors"] == (result["posterior"]["weight"].values[0, 0] != 0).any(axis=1).sum()
    first = found.plot("calibration").axes[:3]
    wanted = [f"{name}: class a" for name in ("MAP plug-in", "posterior mean", "even")]
    assert [axes.get_title() for axes in first] == wanted
    of_weights = [axes.get_ylabel() for axes in found.plot("weights").axes]
    assert of_weights == [f"weight, class {name}" for name in "abc"]
    other, needed = np.where(words == "a", "z", words), r"needed the classes \['a', 'b', 'c'\]"
    refused(rf"y_test has labels \['z'\]; {needed}", pcvm.compare, result, posterior, X, other)
    with pytest.raises(ValueError, match=r"'coin' has probabilities of shape \(24,\); needed"):
        pcvm.compare(result, posterior, X, words, rivals={"coin": Rival(np.full(24, 0.5))})


def test_the_surface_of_several_classes_shows_the_most_probable():
    X, label, words = three_blobs()
    result = pcvm.find_map_em(pcvm.mpcvm_model(X, words, width=1.2), progressbar=False)
    figure = pcvm.plots.plot_decision_surface(result, result, X, words, resolution=8)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    (mesh,) = (each for each in figure.axes[0].collections if isinstance(each, QuadMesh))
    colours = np.asarray(mesh.get_array()).reshape(64, -1)[:, :3]
    low, high = X.min(axis=0) - 0.08 * np.ptp(X, axis=0), X.max(axis=0) + 0.08 * np.ptp(X, axis=0)
    first, second = (np.linspace(low[j], high[j], 8) for j in range(2))
    grid = np.array([[one, other] for other in second for one in first])
    probability = pcvm.predict(result, grid)["predictions"]["probability"].values[0, 0]
    palette = [to_rgb(colour) for colour in PALETTE[:3]]
    most = probability.argmax(axis=1)
    pale = (1 - probability.max(axis=1)) * 1.5
    wanted = np.array(palette)[most] * (1 - pale[:, None]) + pale[:, None]
    np.testing.assert_allclose(colours, wanted, atol=1e-6)
    words = r"y has labels \[0, 1, 2\]; needed the classes \['a', 'b', 'c'\]"
    refused(words, pcvm.plots.plot_decision_surface, result, result, X, label)


def test_pictures_refuse_what_is_of_other_classes(fits):
    X, label, _ = three_blobs()
    result = pcvm.find_map_em(pcvm.mpcvm_model(X, label, width=1.2), progressbar=False)
    three = np.full((24, 3), 1 / 3)
    with pytest.raises(ValueError, match=r"label has \[3\]; needed numbers from 0 to 2"):
        pcvm.plots.plot_calibration(label + 1, {"three": three})
    with pytest.raises(ValueError, match=r"probability\['one'\] has shape \(24,\); needed"):
        pcvm.plots.plot_calibration(label, {"three": three, "one": three[:, 0]})
    with pytest.raises(ValueError, match=r"classes are \['a', 'b'\]; needed 3"):
        pcvm.plots.plot_calibration(label, {"three": three}, classes=["a", "b"])
    refused("probability is empty", pcvm.plots.plot_calibration, label, {})
    map_result, posterior, _, _ = fits
    with pytest.raises(ValueError, match="'three' has 3 classes; needed 2"):
        pcvm.compare(map_result, posterior, X, np.full(24, "yes"), rivals={"three": result})
    regression = pcvm.fit_evidence(pcvm.rvm_model(X, X[:, 0]))
    with pytest.raises(ValueError, match="is a regression under the 'normal' likelihood"):
        pcvm.compare(regression, regression, X, X[:, 0])
    with pytest.raises(ValueError, match="a decision surface needs classes"):
        pcvm.plots.plot_decision_surface(regression, regression, X, X[:, 0])


def test_calibration_error_by_hand():
    probability = np.array([0.05, 0.05, 0.95, 0.95, 0.95, 0.95])
    label = np.array([0, 1, 1, 1, 1, 0])
    # two bins: a third of the rows is off by .45, two thirds are off by .20
    wanted = 2 / 6 * 0.45 + 4 / 6 * 0.20
    assert expected_calibration_error(label, probability) == pytest.approx(wanted)


def test_active_count_by_hand():
    weight = np.array([[10.0, 0.0, 0.0, 0.0], [1.0, -1.0, 1.0, -1.0], [0.0, 0.0, 0.0, 0.0]])
    assert active_count(weight).tolist() == [1, 4, 0]
    assert active_count(np.stack([weight, weight], axis=-1)).tolist() == [1, 4, 0]
    assert active_count([[50.0, 45.0, 5.0]], share=0.9).tolist() == [2]


def test_verdicts():
    good = np.random.default_rng(0).normal(size=(4, 500, 3))
    stuck = good.copy()
    stuck[0] += 5

    def tree(latent, divergences=0):
        diverging = np.zeros((4, 500), dtype=bool)
        diverging[0, :divergences] = True
        dims = ("chain", "draw", "obs")
        stats = xr.Dataset({"diverging": (dims[:2], diverging)})
        draws = xr.Dataset({"latent": (dims, latent)})
        return xr.DataTree.from_dict({"posterior": draws, "sample_stats": stats})

    assert str(convergence(tree(good))).startswith("converged (0 divergences in 2000")
    assert str(convergence(tree(good, 3))).startswith("converged, but with divergences")
    assert str(convergence(tree(stuck))).startswith("NOT converged")
