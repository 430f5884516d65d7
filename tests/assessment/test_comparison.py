import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from problems import blobs, map_result, refused, three_blobs, with_groups
from scipy.special import expit
from sklearn.metrics import log_loss

import pcvm_pymc as pcvm
from pcvm_pymc.assessment.comparison import Rival, active_count, convergence
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.likelihoods import NoisyProbit
from pcvm_pymc.core.pieces.validation import InputWarning
from pcvm_pymc.estimators.measures import expected_calibration_error
from pcvm_pymc.figures import PALETTE


@pytest.fixture(scope="module")
def fits():
    X, label = blobs(40, seed=80)
    words = np.where(label > 0, "yes", "no")
    model = pcvm.pcvm_model(X, words, width=1.2)
    short = {"draws": 50, "tune": 100, "chains": 2, "cores": 1, "max_iter": 500}
    tree = pcvm.sample(model, **short, progressbar=False, random_seed=1, quiet=True)
    return map_result(model), tree, X, words


def test_one_chain_and_no_statistics_of_a_sampler_are_enough(fits):
    mode, posterior, X, words = fits
    plain = posterior.isel(chain=[0]).drop_nodes("sample_stats", errors="ignore")
    found = pcvm.compare({"MAP": mode, "plain": plain}, X, words)
    assert (found.table["seconds"] > 0).all()
    assert [*found.convergence] == ["plain"]
    assert found.convergence["plain"].divergences == 0
    assert np.isnan(found.convergence["plain"].rhat)  # of one chain it cannot be told


def test_table_rows_are_the_scores_of_the_predictions(fits):
    """Of any number of results in any order, each with what it was made at."""
    mode, posterior, _, _ = fits
    X_test, label = blobs(60, seed=81)
    words = np.where(label > 0, "yes", "no")
    rival = Rival(np.full(60, 0.5), 7.0)  # in a time that nobody told
    given = {"coin": rival, "draws": posterior, "MAP": mode, "again": posterior}
    result = pcvm.compare(given, X_test, words)
    assert result.table.index.tolist() == [*result.probability] == [*result.results] == [*given]
    assert [*result.convergence] == ["draws", "again"]
    assert result.table.loc["again"].equals(result.table.loc["draws"])
    alone = pcvm.compare({"draws": posterior}, X_test, words)
    assert alone.table.loc["draws"].equals(result.table.loc["draws"])
    mean = pcvm.predict(posterior, X_test)["predictions"]["probability"].mean(("chain", "draw"))
    row = result.table.loc["draws"]
    assert row["log loss"] == pytest.approx(log_loss(label > 0, mean.values))
    assert row["error"] == np.mean((mean.values > 0.5) != (label > 0))
    for name, tree in {"draws": posterior, "MAP": mode}.items():  # of Gamma(1/2, rate)
        scale = np.sqrt(tree["posterior"]["rate"].median().item() / 0.5)
        found = result.table.loc[name, ["scale", "width"]].tolist()
        assert found == pytest.approx([scale, 1.2])
    coin = result.table.loc["coin"]
    assert (coin["log loss"], coin["1-RMSE"]) == pytest.approx((np.log(2), 0.5))
    assert (coin["AUC"], coin["vectors"]) == (0.5, 7)
    assert coin[["scale", "width", "seconds"]].isna().all()
    assert "draws: NOT converged" in str(result)
    assert "<table" in result._repr_html_()
    assert "nan" not in f"{result!r}{result._repr_html_()}".lower()
    assert isinstance(result.plot("weights"), Figure)
    titles = [axes.get_title() for axes in result.plot("calibration").axes if axes.get_visible()]
    assert titles == result.table.index.tolist()
    refused("kind='pie' is unknown", result.plot, "pie")
    refused("needed a point estimate and a result with several", alone.plot, "weights")
    other = np.where(label > 0, "yes", "maybe")
    refused(r"y_test has labels \['maybe'\]", pcvm.compare, given, X_test, other)
    refused("results is empty; needed a mapping of names", pcvm.compare, {}, X_test, words)
    pair = pcvm.compare({"a": rival, "b": Rival(label > 0)}, X_test, words)
    assert pair.table["log loss"].tolist() == pytest.approx([np.log(2), 0.0])


def plain(result):
    """Return a result as `pymc` and `pymc_extras` make it: without seconds, classes and pieces."""
    other = xr.DataTree.from_dict({name: result[name].to_dataset() for name in result.children})
    other["posterior"].attrs.clear()
    end = {"x": ("rows", np.ones(3)), "status": 0, "message": "ABNORMAL"}
    other["optimizer_result"] = xr.Dataset(end)
    return other


def test_results_that_others_made_are_compared_as_ours(fits):
    mode, posterior, X, words = fits
    wanted = pcvm.compare({"MAP": mode, "draws": posterior}, X, words)
    for pair in ((plain(mode), posterior), (mode, plain(posterior))):
        found = pcvm.compare(dict(zip(("MAP", "draws"), pair, strict=True)), X, words)
        assert found.table.isna().sum().sum() == found.table["seconds"].isna().sum() == 1
        kept = wanted.table.drop(columns="seconds")
        pd.testing.assert_frame_equal(found.table.drop(columns="seconds"), kept)
        assert isinstance(found.plot("calibration"), Figure)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"width": 2.0}, r"width \(2.0, not 1.2\)"),
        ({"width": "lognormal"}, r"width \(unknown, not 1.2\)"),
        ({"hyperprior": pcvm.Hyperprior.jeffreys()}, r"prior \({'c': 0.0.*, not {'c': 5.0"),
        ({"likelihood": NoisyProbit(0.1)}, r"likelihood \(NoisyProbit\(flip=0.1\), not Probit"),
        ({"kernel": "laplacian"}, r"kernel \(laplacian, not rbf\)"),
        ({"basis": 30}, "basis"),
        ({"y": "turned"}, "labels, basis"),
    ],
)
def test_a_warning_says_in_what_models_differ(fits, change, said):
    *_, X, words = fits
    given = {"width": 1.2, "hyperprior": pcvm.Hyperprior.plug_in()}
    y = words[::-1] if change.pop("y", None) else words
    one = map_result(pcvm.pcvm_model(X, words, **given))
    other = map_result(pcvm.pcvm_model(X, y, **given | change))
    match = rf"^results are not of one model: 'b' differs.*in {said}"
    with pytest.warns(InputWarning, match=match):
        found = pcvm.compare({"a": one, "again": plain(one), "b": other}, X, words)
    flip = found.table.loc["b"].get("flip", np.nan)
    assert flip == 0.1 if "likelihood" in change else np.isnan(flip)
    assert found.table["width"].tolist()[:2] == [1.2, 1.2]


@pytest.fixture(scope="module")
def clinics():
    """Return a model with levels of three groups, its mode, draws around it, and its data."""
    X, label = blobs(40, seed=80)
    group, seen = np.arange(40) % 3, label > 0
    mode = map_result(model := with_groups(X, seen, group))
    draws = mode["posterior"].to_dataset().isel(chain=[0, 0], draw=[0] * 5)
    rng = np.random.default_rng(0)
    draws = draws.assign_coords(chain=[0, 1], draw=range(5)).drop_vars(["latent", "weight"])
    for name in ("level", "magnitude"):
        draws[name] = draws[name] * np.exp(0.5 * rng.normal(size=draws[name].shape))
    posterior = mode.copy()
    quiet = {"extend_dataset": True, "progressbar": False}
    posterior["posterior"] = pm.compute_deterministics(draws, model=model, **quiet)
    return model, mode, posterior, X, seen, group


@pytest.mark.parametrize("n", [40, 20, 17])  # twenty: as long as the training rows, for two classes
def test_own_terms_are_scored_by_the_log_likelihood_of_their_model(clinics, n):
    model, mode, posterior, X, seen, group = clinics
    rng = np.random.default_rng(n)
    X_new, y_new, data = rng.normal(size=(n, 2)), rng.integers(2, size=n), rng.integers(3, size=n)
    built = map_result(pcvm.pcvm_model(X, seen, width=1.2))
    given = {"MAP": mode, "posterior": posterior, "without": built}
    with pytest.warns(InputWarning, match="'without' differs from 'MAP' in likelihood"):
        found = pcvm.compare(given, X_new, y_new, model=model, data={"place": data})
    for name in ("MAP", "posterior"):
        draws = given[name]["posterior"].to_dataset().stack(sample=("chain", "draw"))
        Phi = RBF(1.2)(X_new, mode["constant_data"]["centres"].values)
        score = Phi @ draws["weight"].transpose("basis", ...).values
        score += draws["level"].transpose("group", ...).values[data]
        wanted = log_loss(y_new, expit(score).mean(axis=1))
        assert found.table.loc[name, "log loss"] == pytest.approx(wanted)
        np.testing.assert_allclose(found.probability[name], expit(score).mean(axis=1))
    assert [*found.convergence] == ["posterior"]
    assert found.convergence["posterior"].names == ("latent", "level")
    np.testing.assert_array_equal(model["place"].get_value(), group)  # as they were
    np.testing.assert_array_equal(model["X"].get_value(), X)
    alone = pcvm.compare({"MAP": mode}, X_new, y_new, model={"MAP": model}, data={"place": data})
    assert alone.table.loc["MAP"].equals(found.table.loc["MAP"])


def test_models_and_rows_of_own_terms_are_needed_and_used(clinics, fits):
    model, mode, _, X, seen, group = clinics
    data, own = {"place": group}, {"MAP": mode}
    for said, results, more in (
        ("'MAP'] is of a model with user-defined terms; needed this as model=", own, {}),
        ("'sick' cannot be evaluated at 40 new rows of .*'X', 'seen'", own, {"model": model}),
        ("data.'x'. has no effect", own, {"model": model, "data": data | {"x": group}}),
        ("model.'b'. has no effect", own, {"model": {"MAP": model, "b": model}, "data": data}),
        ("model has no effect on .'MAP'.; leave", {"MAP": fits[0]}, {"model": model}),
        ("data.'place'. has no effect", {"MAP": fits[0]}, {"data": data}),
    ):
        refused(said, pcvm.compare, results, X, seen, **more)
    with pm.Model() as fixed:
        pm.Bernoulli("sick", logit_p=pcvm.pcvm_latent(X, seen, width=1.2), observed=seen)
    mode = map_result(fixed)
    mode.attrs = {"own_terms": "yes"}
    refused(r"as the pm.Data \[\]; needed", pcvm.compare, {"MAP": mode}, X, seen, model=fixed)


@pytest.mark.parametrize("kind", ["numbers", "three classes"])
def test_own_observed_variables_of_other_kinds(kind):
    X, label, _ = three_blobs()
    y = label if kind == "three classes" else label + 0.5
    with pm.Model() as model:
        f = pcvm.pcvm_latent(X, label > 0, width=1.2, hyperprior="default")
        slope, seen = pm.Normal("slope"), pm.Data("seen", y)
        if kind == "numbers":
            pm.Laplace("y", f + slope, 0.7, observed=seen)
        else:
            score = pm.math.stack([0.0 * f, f, slope * f], axis=1)
            pm.Categorical("y", logit_p=score, observed=seen)
    mode = map_result(model)
    with model:
        log_density = pm.compute_log_likelihood(mode, extend_inferencedata=False, progressbar=False)
        if kind == "numbers":
            new = pcvm.new_data(model, X[:9])
            pm.set_data(new["new_data"] | {"seen": y[:9]}, coords=new["coords"])
    found = pcvm.compare({"MAP": mode}, X, y, model=model)
    assert found.table.loc["MAP", "log loss"] == pytest.approx(-log_density["y"].mean().item())
    assert ("error" in found.table) == (kind == "three classes")


def test_the_decision_surface_needs_a_plane(fits):
    mode, posterior, X, words = fits
    figure = pcvm.plots.plot_decision_surface(mode, posterior, X, words, resolution=12)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["MAP plug-in", "posterior mean", "width of the 89 % interval"]
    with pytest.raises(ValueError, match=r"shape \(40, 1\); a decision surface needs"):
        pcvm.plots.plot_decision_surface(mode, posterior, X[:, :1], words)


def test_several_classes_are_compared():
    X, label, words = three_blobs()
    result = map_result(pcvm.mpcvm_model(X, words, width=1.2))
    posterior = result.copy()  # four draws of two chains around the MAP
    draws = result["posterior"].to_dataset().isel(chain=[0, 0], draw=[0] * 4)
    of_chains = np.random.default_rng(0).normal(size=(2, 4, 3))
    shift = xr.DataArray(of_chains, dims=("chain", "draw", "class"))
    draws = draws.assign_coords(chain=[0, 1], draw=range(4))
    posterior["posterior"] = draws.assign(latent=draws["latent"] + shift)
    posterior["sample_stats"] = xr.Dataset()
    even = Rival(np.full((24, 3), 1 / 3))
    given = {"MAP": result, "draws": posterior, "even": even}
    found = pcvm.compare(given, X, words)
    probability = pcvm.predict(result, X)["predictions"]["probability"].values[0, 0]
    row = found.table.loc["MAP"]
    assert row["log loss"] == pytest.approx(log_loss(label, probability))
    assert row["error"] == np.mean(probability.argmax(axis=1) != label)
    assert found.table.loc["even"]["log loss"] == pytest.approx(np.log(3))
    assert row["vectors"] == (result["posterior"]["weight"].values[0, 0] != 0).any(axis=1).sum()
    first = found.plot("calibration").axes[:3]
    wanted = [f"{name}: class a" for name in given]
    assert [axes.get_title() for axes in first] == wanted
    of_weights = [axes.get_ylabel() for axes in found.plot("weights").axes]
    assert of_weights == [f"weight, class {name}" for name in "abc"]
    other, needed = np.where(words == "a", "z", words), r"needed the classes \['a', 'b', 'c'\]"
    refused(rf"y_test has labels \['z'\]; {needed}", pcvm.compare, given, X, other)
    given["coin"] = Rival(np.full(24, 0.5))
    refused(r"'coin', its probability, has shape \(24,\); needed", pcvm.compare, given, X, words)


def test_the_surface_of_several_classes_shows_the_most_probable():
    X, label, words = three_blobs()
    result = map_result(pcvm.mpcvm_model(X, words, width=1.2))
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
    result = map_result(pcvm.mpcvm_model(X, label, width=1.2))
    three = np.full((24, 3), 1 / 3)
    with pytest.raises(ValueError, match=r"label has \[3\]; needed numbers from 0 to 2"):
        pcvm.plots.plot_calibration(label + 1, {"three": three})
    with pytest.raises(ValueError, match=r"probability\['one'\] has shape \(24,\); needed"):
        pcvm.plots.plot_calibration(label, {"three": three, "one": three[:, 0]})
    with pytest.raises(ValueError, match=r"classes are \['a', 'b'\]; needed 3"):
        pcvm.plots.plot_calibration(label, {"three": three}, classes=["a", "b"])
    refused("probability is empty", pcvm.plots.plot_calibration, label, {})
    refused(r"shape \(24, 3\); needed \(40,\)", pcvm.plots.plot_weights, result, fits[1])
    given = {"two": fits[0], "three": result}
    said = r"\['two', 'three'\] have \[2, 3\] classes; needed as"
    refused(said, pcvm.compare, given, X, np.full(24, "yes"))
    regression = pcvm.fit_evidence(pcvm.rvm_model(X, X[:, 0]))
    said = "'RVM' is of a regression under the 'normal' likelihood"
    refused(said, pcvm.compare, {"RVM": regression}, X, X[:, 0])
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
