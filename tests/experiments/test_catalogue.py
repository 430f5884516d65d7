"""Experiments of the catalogue: our own, margins and points, those of Lyu et al. (2020), and all of them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from problems import blobs, complaint, fixed_rng, interrupted, refused, reported
from sklearn.datasets import load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from pcvm_pymc import MPCVMClassifier, PCVMClassifier, RVMClassifier
from pcvm_pymc.cli import main
from pcvm_pymc.core.problem import Status
from pcvm_pymc.experiments import catalogue, everything
from pcvm_pymc.experiments.baselines import CalibratedSVC
from pcvm_pymc.experiments.catalogue import EXPERIMENTS, printed_table
from pcvm_pymc.experiments.classifiers import CLASSIFIERS, Setting, TuningTask, opposed_rows
from pcvm_pymc.experiments.datasets.generators import overlap_classes, ring
from pcvm_pymc.experiments.other_kernels import FeatureWidthPCVM
from pcvm_pymc.experiments.pictures import EXTRAS
from pcvm_pymc.experiments.protocols import Protocol, realise, thinned
from pcvm_pymc.experiments.reporting.comparisons import few_vectors, growth, slopes
from pcvm_pymc.experiments.reporting.report import Report
from pcvm_pymc.experiments.reporting.sections import drawn, sections_of
from pcvm_pymc.experiments.running import RunError
from pcvm_pymc.experiments.sampled import ModelPCVM


def test_the_default_is_the_one_for_so_many_classes():
    X, label = blobs(30, seed=1)
    two = TuningTask(X, label, X, label)
    several = TuningTask(*load_iris(return_X_y=True) * 2)
    assert isinstance(CLASSIFIERS["default"].make(two.setting({})), PCVMClassifier)
    model = CLASSIFIERS["default_4"].make(several.setting({}))
    assert isinstance(model, MPCVMClassifier)
    assert model.n_vectors == 4
    kernel = CLASSIFIERS["GP_tuned"].make(several.setting({})).kernel
    assert kernel.k2.length_scale == 2.0  # the root of four features


def test_the_models_mode_predicts_and_asks_for_two_classes():
    X, label = blobs(40, seed=2, fixed=True)
    names = np.where(label > 0, "yes", "no")
    model = ModelPCVM(width=1.5, by="mode").fit(X, names)
    assert model.score(X, names) > 0.8
    assert set(model.predict(X)) == {"no", "yes"}
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    refused("y has 3 classes; needed two", ModelPCVM().fit, *load_iris(return_X_y=True))
    refused("by='map'", ModelPCVM(by="map").fit, X, names)


@pytest.mark.slow
def test_the_posterior_is_more_modest_than_its_mode():
    X, label = blobs(40, seed=2, fixed=True)  # on others both are as sure
    drawn = ModelPCVM(width=1.5, draws=100).fit(X, label)
    both = drawn, ModelPCVM(width=1.5, by="mode").fit(X, label)
    sure = [np.abs(each.predict_proba(3 * X)[:, 1] - 0.5).mean() for each in both]
    assert drawn.score(X, label) > 0.8
    assert sure[0] < sure[1]


def test_rings_have_neighbours_two_deviations_apart():
    for n_classes in (2, 5, 16):
        X, y = ring(16_000, random_state=0, n_classes=n_classes)
        centres = np.array([X[y == c].mean(axis=0) for c in range(n_classes)])
        apart = np.linalg.norm(centres - np.roll(centres, 1, axis=0), axis=1)
        np.testing.assert_allclose(apart, 2.0, atol=0.2)
        assert len(np.unique(y)) == n_classes
    refused("n=3; needed a whole number of at least 4", ring, 3, random_state=0)


def test_a_protocol_has_a_greatest_number_of_rows():
    capped = Protocol("", "shares", rows=40, test_rows=20)
    problem = realise("wisconsin_diagnostic", capped, 2, seed=0)
    assert {(len(train), len(test)) for train, test in problem.splits} == {(40, 20)}
    whole = realise("wisconsin_diagnostic", Protocol("", "shares"), 2, seed=0)
    assert set(problem.splits[0][0]) <= set(whole.splits[0][0])
    only = realise("wisconsin_diagnostic", Protocol("", "shares", rows=40), 1, seed=0)
    assert len(only.splits[0][1]) == len(whole.splits[0][1])


def test_slopes_are_the_powers():
    x = np.array([100.0, 200.0, 400.0])
    rows = [("square", x, 3e-6 * x**2), ("root", x[:2], x[:2] ** 0.5), ("one point", x[:1], 1.0)]
    frames = (pd.DataFrame({"classifier": n, "x": at, "seconds": s}) for n, at, s in rows)
    part = pd.concat(frames)
    assert slopes(part).to_dict() == {"square": "2.00 ± 0.00", "root": "0.50"}


def timed_report(name, records):
    manifest = {"sets": list(dict.fromkeys(each["set"] for each in records)), "classifiers": []}
    none = pd.DataFrame()
    return Report(EXPERIMENTS[name], manifest, none, none, none, none, {}, tuple(records))


def test_time_is_shown_against_rows_classes_and_vectors():
    sets = [f"ring_4_{n}" for n in (100, 200, 400, 800)] + [f"ring_{c}_400" for c in (2, 8, 16)]
    records = []
    for name in sets:
        c, n = map(int, name.split("_")[1:])
        seconds = 1e-8 * c * n**3
        measures = {"vectors": 0.1 * n, "seconds": seconds}
        timed = (seconds, seconds, 100 * seconds)  # one realisation was disturbed
        row = {"set": name, "classifier": "cubic", "n_train": n}
        records += [row | {"measures": measures | {"seconds": s}} for s in timed]
    table, picture = growth(timed_report("own-scaling", records))
    assert list(table.table) == ["rows (4 classes)", "classes (400 rows)", "vectors"]
    assert table.table.loc["cubic", "rows (4 classes)"] == "3.00 ± 0.00"
    assert table.table.loc["cubic", "classes (400 rows)"] == "1.00 ± 0.00"
    assert len(picture.figure.axes) == 3
    assert list(growth(timed_report("own-scaling", records[:3]))) == []


def test_what_few_vectors_lose_is_told_beside_the_control(tmp_path):
    few = {"sets": ["wisconsin_diagnostic"], "repeats": 1, "small": True}
    names = ["default", "default_2", "SVC_tuned"]
    report = reported("own-vectors", tmp_path / "run", **few, classifiers=names)
    assert len(report.failures) == 0
    table, picture = few_vectors(report)
    assert table.table.loc["default", "Log loss"] == 0.0
    mean = report.pivot("log loss").loc["wisconsin_diagnostic"]
    wanted = mean["default_2"] - mean["default"]
    assert table.table.loc["default_2", "Log loss"] == pytest.approx(wanted, abs=1e-4)
    assert table.table.loc["default_2", "vectors"] == 2
    assert len(picture.figure.axes) == 2
    assert "1 asked for, 3 by default" in report.to_markdown()


# --- signs and margins ------------------------------------------------------------------------------


def test_opposed_vectors_are_counted():
    X, label = blobs(80, seed=4)
    assert not len(opposed_rows(PCVMClassifier(width=1.0, estimation="em").fit(X, label), X, label))
    assert len(opposed_rows(CalibratedSVC().fit(X, label), X, label)) == 0
    machine = RVMClassifier(width=1.0).fit(X, label)
    flipped = np.where(np.arange(80) == machine.support_[0], -label, label)
    before, after = (set(opposed_rows(machine, X, y)) for y in (label, flipped))
    assert before ^ after == {machine.support_[0]}


def test_margins_are_twice_the_probability_of_the_own_label_less_one():
    X, label = blobs(40, seed=4)
    machine = RVMClassifier(width=1.0).fit(X, label)
    extra = EXTRAS["margins"](machine, TuningTask(X, label, X[:9], label[:9]))
    own = machine.predict_proba(X)[np.arange(40), (label > 0).astype(int)]
    np.testing.assert_allclose(extra["training"], 2 * own - 1, atol=1e-5)
    assert extra["measures"]["test margin"] == pytest.approx(np.mean(2 * own[:9] - 1))
    assert len(extra["test"]) == 9


def test_margins_join_the_measures_of_a_report(tmp_path):
    report = reported("chen2009-margins", tmp_path / "run", sets=["overlap"], small=True)
    margin = report.pivot("training margin")
    assert ((margin > 0) & (margin < 1)).all().all()
    titles = [each.title for each in report.sections]
    assert "Measured: Mean margin of the training rows" in titles
    assert "Picture" in titles


def test_features_that_do_not_matter_get_wide():
    X = np.random.default_rng(3).normal(size=(120, 3))
    y = np.where(np.abs(X[:, 0]) < 0.7, "in", "out")
    model = FeatureWidthPCVM(width=2.0).fit(X, y)
    assert model.width_[1:].min() > 2 * model.width_[0]
    assert model.score(X, y) > 0.9
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)


# --- points and ranks ------------------------------------------------------------------------


def test_points_are_summed_ranks_without_the_oracle(tmp_path, monkeypatch):
    few = {"sets": ("wisconsin_diagnostic", "overlap"), "control": "LDA", "printed": ""}
    few |= {"classifiers": ("LDA", "QDA", "1NN", "RVM_best"), "run": "small"}
    table = replace(EXPERIMENTS["kropotov2006-table1"], **few)
    monkeypatch.setitem(catalogue.EXPERIMENTS, "small", table)
    report = reported("small", tmp_path / "run", repeats=1, classifiers=["LDA", "QDA", "1NN"])
    found = next(each for each in report.sections if each.title.startswith("Points in total"))
    wanted = report.pivot("error").rank(axis=1).sum()
    assert found.table["points"].astype(float).tolist() == wanted.tolist()
    assert wanted.sum() == 2 * 6


def test_the_papers_points_are_those_of_its_errors():
    """The print has 21, 20, 20 and 29 points, which are those of its own errors."""
    errors = catalogue.printed_table("kropotov2006-table1").query("measure == 'error'")
    wide = errors.pivot_table(index="set", columns="classifier", values="mean")
    points = wide[["RVM_CV", "SVM_CV", "RVM_MV", "SVM_MV"]].rank(axis=1).sum()
    assert points.tolist() == [21, 20, 20, 29]


# --- Lyu et al. (2020) beside their Table 3 -------------------------------------------------------


def test_both_searches_stand_beside_the_papers_mpcvm2():
    table = printed_table("lyu2020-algorithm2").set_index(["classifier", "set", "measure"])["mean"]
    pd.testing.assert_series_equal(table["mPCVM2"], table["mPCVM2_printed"])
    wanted = printed_table("lyu2020-table3").set_index(["classifier", "set", "measure"])["mean"]
    pd.testing.assert_series_equal(table["mPCVM2"], wanted["mPCVM2"])


def test_the_printed_search_says_that_it_has_diverged(tmp_path):
    X, y = overlap_classes(120, random_state=1)
    model = CLASSIFIERS["mPCVM2_printed"].make(Setting({"width": 4 * np.sqrt(2)}))
    with pytest.warns(match="bottom-up: scores grew without bound"):
        model.fit(X, y)
    assert model.status_ is Status.DIVERGED
    few = {"sets": ["wine"], "classifiers": ["mPCVM2_printed"], "repeats": 1, "small": True}
    report = reported("lyu2020-algorithm2", tmp_path, **few)
    assert len(report.failures) == 0
    assert report.pivot("error", "paper mean").notna().all(axis=None)


@pytest.mark.parametrize("name", EXPERIMENTS["lyu2020-one-vs-one"].classifiers)
def test_machines_for_all_classes_pairs_and_the_rest_tell_several_classes_apart(name):
    X, y = overlap_classes(90, random_state=fixed_rng(2))
    model = CLASSIFIERS[name].make(Setting({"width": 1.0})).fit(X, y)
    assert model.score(X, y) > 0.8
    assert list(model.classes_) == [0, 1, 2]


def test_warnings_of_fits_are_counted(tmp_path):
    few = {"sets": ["ring_4_100"], "classifiers": ["mRVM1"], "repeats": 1}
    report = reported("lyu2020-complexity", tmp_path, **few)
    titles = {each.title: each for each in report.sections}
    assert ("What fits warned of" in titles) == any(each["warnings"] for each in report.records)
    noisy = replace(report, records=(report.records[0] | {"warnings": ["A: \nb\nFile x"]},))
    table = {each.title: each for each in sections_of(noisy)}["What fits warned of"].table
    assert table.loc["mRVM1"].tolist() == ["A: b", "1 of 1"]


def test_figures_5_and_6_are_drawn_in_accuracy():
    rows = [(f"letter_{n}", "SVM", "error", 2.0 * n, 1.0) for n in (2, 3)]
    table = pd.DataFrame(rows, columns=["set", "classifier", "measure", "mean", "std"])
    manifest = {"sets": ["letter_2", "letter_3"], "classifiers": ["SVM"]}
    none = pd.DataFrame()
    report = Report(EXPERIMENTS["lyu2020-fig5"], manifest, none, table, none, none, {}, ())
    (section,) = drawn(report)
    (axis,) = section.figure.axes
    assert axis.get_ylabel() == "Accuracy, %"
    assert axis.get_lines()[0].get_ydata().tolist() == [96.0, 94.0]


# --- a small part, and everything -----------------------------------------------------------------


LINES = "figueiredo2001-fig3"


def test_thinned_problems_keep_their_classes():
    problem = realise("wine", Protocol("", "shares"), 2, seed=0)
    small = thinned(problem, 30, 20, seed=0)
    for (train, test), (all_train, all_test) in zip(small.splits, problem.splits, strict=True):
        assert (len(train), len(test)) == (30, 20)
        assert set(train) < set(all_train)
        assert set(test) < set(all_test)
        share = np.bincount(problem.y[all_train]) / len(all_train)
        np.testing.assert_allclose(np.bincount(problem.y[train]) / 30, share, atol=0.07)
    tiny = thinned(problem, 6, 20, seed=0)
    assert np.bincount(problem.y[tiny.splits[0][0]]).tolist() == [2, 2, 2]
    again = thinned(problem, 30, 20, seed=0)
    assert small.checksum(1) == again.checksum(1) != thinned(problem, 30, 20, seed=1).checksum(1)
    assert thinned(problem, 1000, 1000, seed=0).checksum(0) == problem.checksum(0)


def test_a_small_run_says_so_and_does_not_mix_with_another(tmp_path):
    out, options = tmp_path / "run", {"repeats": 1, "classifiers": ["LDA"]}
    report = reported(LINES, out, small=True, **options)
    assert set(report.table["set"]) == set(EXPERIMENTS[LINES].small.sets)
    assert {each["n_test"] for each in report.records} == {500}
    assert "`--small`" in report.to_markdown()
    refused("contains small True, asked for False", reported, LINES, out, **options, error=RunError)


@pytest.fixture
def few(monkeypatch):
    """Return nothing: the catalogue holds a few experiments, one that fails and one without data."""
    lines = replace(EXPERIMENTS[LINES], sets=("half_gaussians_2",), classifiers=("LDA", "1NN"))
    lines = replace(lines, small=catalogue.Small())
    table = replace(lines, name="table", view="ranks", control="LDA", measures=("error",))
    broken = replace(lines, name="broken", run="broken", classifiers=("LDA", "fails"))
    away = replace(lines, name="away", run="away", sets=("glass",))
    found = {each.name: each for each in (lines, table, broken, away)}
    for name, each in found.items():
        monkeypatch.setitem(catalogue.EXPERIMENTS, name, each)
    monkeypatch.setattr(everything, "EXPERIMENTS", found)
    monkeypatch.delenv("PCVM_DATA", raising=False)
    row = replace(CLASSIFIERS["LDA"], make=lambda setting: LinearDiscriminantAnalysis(tol="no"))
    monkeypatch.setitem(CLASSIFIERS, "fails", replace(row, name="fails"))


def test_all_runs_the_rest_and_says_what_failed(few, tmp_path, capsys):
    arguments = ["reproduce", "ALL", "--repeats", "1", "--small", "--out", str(tmp_path / "out")]
    assert main(arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    said = [" ".join(line.split()[:2]) for line in lines[:4]]
    assert said == [f"{LINES} done", "table done", "broken failed", "away no"]
    assert "2 jobs" in lines[0]
    assert f"jobs of {LINES}" in lines[1]
    assert "1 jobs, 1 failed" in lines[2]
    assert "glass" in lines[3]
    assert lines[-1].endswith("2 done, 1 failed, 1 no data; 1 jobs failed.")
    for name in (LINES, "table", "broken"):
        assert (tmp_path / "out" / name / "report" / "report.html").is_file()
    # the same command goes on: nothing is run again
    cells = sorted((tmp_path / "out").rglob("score-*.json"))
    assert len(cells) == 4
    before = [path.stat().st_mtime_ns for path in cells]
    assert main(arguments) == 1
    assert [path.stat().st_mtime_ns for path in cells] == before


def test_all_goes_on_after_an_interrupt(few, tmp_path, monkeypatch, capsys):
    arguments = ["reproduce", "ALL", "--repeats", "1", "--small", "--out", str(tmp_path / "out")]

    with monkeypatch.context() as patch:
        patch.setattr(everything, "report_of", interrupted)
        assert main(arguments) == 130
    assert "stopped" in capsys.readouterr().err
    assert len(list((tmp_path / "out").rglob("score-*.json"))) == 2
    assert main(arguments) == 1


def test_all_names_bad_requests_before_any_work(tmp_path, capsys):
    arguments = ["reproduce", "ALL", "--out", str(tmp_path / "out")]
    said = complaint(capsys, main([*arguments, "--sets", "iris"]))
    assert "ALL takes neither --sets nor --classifiers" in said
    said = complaint(capsys, main([*arguments, "--repeats", "0"]))
    assert "repeats=0; needed a whole number of at least 1" in said
    assert not (tmp_path / "out").exists()
