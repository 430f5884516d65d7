import json
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median_low

import numpy as np
import pandas as pd
import pytest
from cloudpickle import register_pickle_by_value
from problems import refused, reported
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.naive_bayes import GaussianNB

from pcvm_pymc.core.pieces.files import StoreError
from pcvm_pymc.experiments import catalogue
from pcvm_pymc.experiments.catalogue import EXPERIMENTS, experiment_of, printed_table
from pcvm_pymc.experiments.classifiers import CLASSIFIERS
from pcvm_pymc.experiments.datasets import SOURCES
from pcvm_pymc.experiments.protocols import TUNING
from pcvm_pymc.experiments.reporting import report_of
from pcvm_pymc.experiments.running import JobName, RunError, Store
from pcvm_pymc.experiments.running.store import read_record, with_checksum
from pcvm_pymc.experiments.statistics import MEASURES

LINES = "figueiredo2001-fig3"
LINE_SETS = ["half_gaussians_2", "half_gaussians_4"]

pytestmark = pytest.mark.fixed_seeds  # other processes have the seeds as they are


def table_bytes(out):
    return report_of(out).table.to_csv(index=False)


def files_of(out):
    return sorted(Path(out, "cells").rglob("*.json"))


# --- the catalogue ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_experiments_name_what_there_is(name):
    experiment = EXPERIMENTS[name]
    shared, part = EXPERIMENTS[experiment.run], experiment.small
    for named, known in (
        *((experiment.sets, SOURCES), (experiment.measures, MEASURES)),
        *((experiment.classifiers, each) for each in (CLASSIFIERS, shared.classifiers)),
        *((each, experiment.sets) for each in (experiment.fixed, part.sets)),
        (part.classifiers, experiment.classifiers),
    ):
        assert set(named) <= set(known)
    assert experiment.protocol.tuning in TUNING
    assert experiment.control in ("", *experiment.classifiers)
    assert experiment.sets == shared.sets
    assert experiment.control in (*(part.classifiers or experiment.classifiers), "")
    assert min(part.rows, part.test_rows) > 0
    if experiment.printed and experiment.view == "table":
        printed = printed_table(experiment.printed)
        assert set(printed["set"]) <= set(experiment.sets)
        assert set(printed["classifier"]) <= set(experiment.classifiers)
        assert set(printed["measure"]) <= set(MEASURES)
        assert printed["mean"].notna().all()


def test_unknown_names_are_named():
    refused("did you mean chen2009-table1", experiment_of, "chen2009-tabel1")
    refused("no printed table 'nothing'", printed_table, "nothing")


# --- running ---------------------------------------------------------------------------------


FEW = {"sets": ["iris", "wine"], "classifiers": ["MLR", "SVM", "DLSR"], "repeats": 2}


def go_on(out, **options):
    return reported("lyu2020-table3", out, **FEW | options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of an undisturbed run of Lyu's protocol on shipped sets."""
    out = tmp_path_factory.mktemp("finished") / "run"
    go_on(out)
    return out


@pytest.fixture
def copied(finished, tmp_path):
    """Return a copy of that folder."""
    return shutil.copytree(finished, tmp_path / "run")


def test_lyus_protocol_tunes_and_scores_on_different_partitions(finished):
    names = {path.name for path in files_of(finished)}
    assert names == {"tune-000.json", "tune-001.json", "score-002.json", "score-003.json"}
    store = Store(finished)
    tuned = [store.read(JobName("iris", "SVM", "tune", k)) for k in (0, 1)]
    mean = np.mean([record["errors"] for record in tuned], axis=0)
    chosen = tuned[0]["choices"].index(store.read(JobName("iris", "SVM", "score", 2))["parameters"])
    assert mean[chosen] == mean.min()
    assert tuned[0]["choices"] == tuned[1]["choices"]
    # MLR has nothing to choose
    assert not Path(finished, "cells", "iris", "MLR", "tune-000.json").exists()
    splits = np.load(finished / "splits" / "iris.npz")
    assert len(splits["train_0"]) == 120
    assert set(splits["train_3"]) | set(splits["test_3"]) == set(range(150))
    report = report_of(finished)
    assert set(report.table["n"]) == {2}
    assert report.missing == {}
    iris = report.table.query("set == 'iris' and classifier == 'SVM' and measure == 'error'")
    assert iris["paper mean"].item() == 4.370
    scores = [store.read(JobName("iris", "SVM", "score", k)) for k in (2, 3)]
    errors = [each["measures"]["error"] for each in scores]
    assert iris["mean"].item() == pytest.approx(100 * np.mean(errors))


def test_a_run_goes_on_where_it_was(finished, copied):
    files = files_of(copied)
    for path in files[::3]:
        path.unlink()
    files[1].write_text(files[1].read_text()[:100])  # cut off
    files[4].write_text("")
    kept = {path: path.stat().st_mtime_ns for path in files[2::3]}
    assert any("damaged" in reason for reason in report_of(copied).missing.values())
    go_on(copied)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert table_bytes(copied) == table_bytes(finished)


def test_a_cluster_gives_the_same_table(finished, tmp_path):
    distributed = pytest.importorskip("distributed")
    workers = {"n_workers": 1, "threads_per_worker": 2, "processes": False}
    with distributed.LocalCluster(**workers, dashboard_address=":0") as cluster:
        go_on(tmp_path / "run", dask=cluster.scheduler_address)
    assert table_bytes(tmp_path / "run") == table_bytes(finished)


def test_a_cluster_that_does_not_answer_is_named(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("pcvm_pymc.experiments.running.jobs.DASK_TIMEOUT", "1s")
    with pytest.raises(RunError, match=r"no Dask cluster answers at 127\.0\.0\.1:9"):
        go_on(tmp_path / "run", dask="127.0.0.1:9")


def run_lines(out, classifiers=("LDA",), repeats=1):
    reported(LINES, out, sets=LINE_SETS, classifiers=classifiers, repeats=repeats)
    return {path: path.read_bytes() for path in files_of(out)}


def test_more_repeats_keep_what_is_there(tmp_path):
    first = run_lines(tmp_path / "run")
    found = run_lines(tmp_path / "run", ["LDA", "1NN"], repeats=3)
    assert first.items() <= found.items()
    assert len(found) == 2 * 2 * 3


def test_other_inputs_are_run_again_also_where_the_manifest_is_lost(finished, copied):
    path = Path(copied, "cells", "iris", "MLR", "score-002.json")
    record = json.loads(path.read_text())
    record["inputs"]["data"] = "another"
    record["measures"]["error"] = 0.99
    path.write_text(json.dumps(with_checksum(record)))
    (copied / "experiment.json").unlink()
    refused(r"has no run \(experiment.json is missing\)", report_of, copied, error=RunError)
    go_on(copied)
    assert table_bytes(copied) == table_bytes(finished)


def test_folders_of_something_else_are_left_alone(finished, tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    for words, call in (
        ("contains run 'lyu2020-table3', asked for", lambda: run_lines(finished)),
        ("contains seed 0, asked for 1", lambda: go_on(finished, seed=1)),
        ("is not empty and has no run", lambda: run_lines(tmp_path)),
        ("has no run", lambda: report_of(tmp_path)),
        ("has jobs of lyu2020-table3.*-table6", lambda: report_of(finished, "chen2009-table1")),
        ("mine.txt is a file; needed a folder", lambda: run_lines(tmp_path / "mine.txt")),
    ):
        refused(words, call, error=RunError)
    assert [each.name for each in tmp_path.iterdir()] == ["mine.txt"]


BAD_REQUESTS = [
    ({"sets": ["irsi"]}, "'irsi' is unknown; did you mean iris"),
    ({"classifiers": ["SVN"]}, "classifier 'SVN' is unknown"),
    ({"classifiers": ["no.such:Thing"]}, "cannot be imported: No module named 'no'"),
    ({"classifiers": ["math:pi"]}, "makes no scikit-learn estimator"),
    ({"repeats": 0}, "repeats=0; needed a whole number of at least 1"),
    ({"jobs": 0}, "jobs=0"),
    ({"seed": -1}, "seed=-1; needed a whole number of at least 0"),
    ({"sets": []}, "no sets or no classifiers"),
]


@pytest.mark.parametrize(("options", "message"), BAD_REQUESTS)
def test_bad_requests_are_named_before_any_work(tmp_path, options, message):
    refused(message, go_on, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_missing_sets_are_named_and_the_rest_runs(tmp_path, monkeypatch):
    place, out = tmp_path / "sets", tmp_path / "run"
    place.mkdir()
    monkeypatch.setenv("PCVM_DATA", str(place))
    report = go_on(out, sets=["iris", "winequality_red", "glass"], classifiers=["MLR"])
    assert set(report.table["set"]) == {"iris"}
    assert "openml.org 40691" not in report.missing["set glass"]
    assert "UCI" in report.missing["set winequality_red"]
    report.write(out / "report")
    said = (out / "report" / "report.md").read_text(encoding="utf-8")
    assert "the data folder has no glass_uci.csv" in said
    assert str(tmp_path) not in said  # a report names no folder of this machine, an error does
    words = rf"none of the sets is there: glass: .*{place} has no glass_uci.csv"
    refused(words, go_on, tmp_path / "none", sets=["glass"], classifiers=["MLR"], error=RunError)
    assert not (tmp_path / "none").exists()
    with pytest.raises(TypeError, match=r"out=b'x'; needed a path"):
        go_on(b"x", sets=["iris"], classifiers=["MLR"])


# --- user-defined classifiers, and failing ones ----------------------------------------------


class Moody(ClassifierMixin, BaseEstimator):
    """Fails on wine."""

    def fit(self, X, y):
        if X.shape[1] == 13:
            raise RuntimeError("no wine for me")
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.full(len(X), self.classes_[0])


class Deadly(Moody):
    """Takes its process down with wine."""

    def fit(self, X, y):
        if X.shape[1] == 13:
            time.sleep(0.5)  # until the others have ended: those that have not are begun anew
            os._exit(1)
        return super().fit(X, y)


def test_failures_are_recorded_and_the_others_go_on(tmp_path):
    out = tmp_path / "run"
    mine = {"MLR": None, "moody": Moody()}
    report = go_on(out, classifiers=mine)
    assert len(report.failures) == 2
    assert set(report.failures["reason"]) == {"RuntimeError: no wine for me"}
    assert "in fit" in report.failures["traceback"][0]
    assert len(report.cells) == 6
    assert set(report.cells.query("classifier == 'moody'")["set"]) == {"iris"}
    assert "no wine for me" in report.to_markdown()
    # they are not run again, unless one asks
    path = Path(out, "cells", "wine", "moody", "score-002.json")
    before = path.stat().st_mtime_ns
    go_on(out, classifiers=mine)
    assert path.stat().st_mtime_ns == before
    go_on(out, classifiers=mine, retry=True)
    assert path.stat().st_mtime_ns > before
    # another estimator of the same name has other cells
    assert len(go_on(out, classifiers=mine | {"moody": DummyClassifier()}).failures) == 0


def test_processes_give_the_same_table_and_one_that_dies_is_a_failed_job(finished, tmp_path):
    go_on(tmp_path / "run", jobs=2)
    assert table_bytes(tmp_path / "run") == table_bytes(finished)
    register_pickle_by_value(sys.modules[__name__])  # which workers then need not import
    dying = {"MLR": None, "deadly": Deadly()}
    report = go_on(tmp_path / "dying", classifiers=dying, repeats=1, jobs=2)
    assert len(report.failures) == 1
    assert report.failures["reason"].str.contains("the worker died").all()
    assert len(report.cells) == 3


def test_tuning_that_fails_is_said_where_it_is_missed(tmp_path, monkeypatch):
    def broken(setting):
        raise RuntimeError("broken")

    monkeypatch.setitem(CLASSIFIERS, "SVM", replace(CLASSIFIERS["SVM"], make=broken, draft=broken))
    report = go_on(tmp_path / "run", classifiers=["SVM", "MLR"])
    assert len(report.failures) == 2 * (2 + 2)
    assert report.failures["reason"].str.contains("every tuning job of SVM failed").sum() == 4
    assert set(report.cells["classifier"]) == {"MLR"}


def test_an_estimator_joins_by_its_import_path(tmp_path):
    name = "sklearn.naive_bayes:GaussianNB"
    report = go_on(tmp_path / "run", classifiers=[name])
    given = go_on(tmp_path / "given", classifiers={"mine": GaussianNB()})
    one, other = (each.cells.drop(columns="classifier") for each in (report, given))
    pd.testing.assert_frame_equal(one, other)
    assert report.manifest["classifiers"] == [name]


def test_regression_and_classification_sets_get_what_suits_them(tmp_path):
    out = tmp_path / "run"
    given = {"sets": ["wave", "linear"], "classifiers": ["RVM", "RVM_star", "SVM", "LDA"]}
    report = reported("chmielewski2019-table1", out, **given)
    cells = report.cells
    assert set(cells.query("set == 'wave'")["classifier"]) == {"RVM", "RVM_star", "SVM"}
    assert set(cells.query("set == 'linear'")["classifier"]) == {"RVM", "SVM", "LDA"}
    assert cells.query("set == 'wave'")["MSE"].notna().all()
    assert cells.query("set == 'linear'")["error"].notna().all()
    assert report.missing == {}
    assert "Nothing." in report_of(out, "chmielewski2019-table2").to_markdown()


# --- protocols that need other machines ------------------------------------------------------


def test_raetschs_protocol_takes_the_median(tmp_path, monkeypatch):
    small = replace(EXPERIMENTS["chen2009-table1"], sets=("relevance",), printed="", run="small")
    monkeypatch.setitem(catalogue.EXPERIMENTS, "small", small)
    fewer = replace(SOURCES["relevance"], rows=60, n_train=20)
    monkeypatch.setitem(SOURCES, "relevance", fewer)
    out = tmp_path / "run"
    report = reported("small", out, classifiers=["SVM_PCVM", "kNN"], repeats=3)
    store = Store(out)

    def tuned(name):
        jobs = [JobName("relevance", name, "tune", k) for k in range(3)]
        return pd.DataFrame([store.read(job)["chosen"] for job in jobs])

    width = median_low(tuned("PCVM")["width"])
    follower = store.read(JobName("relevance", "SVM_PCVM", "score", 0))["parameters"]
    assert follower["width"] == width
    assert set(tuned("SVM_PCVM")["width"]) == {width}
    assert follower["C"] == median_low(tuned("SVM_PCVM")["C"])
    neighbours = store.read(JobName("relevance", "kNN", "score", 2))["parameters"]
    assert neighbours["k"] == median_low(tuned("kNN")["k"])
    # the leader is tuned only, and not in the table
    assert set(report.cells["classifier"]) == {"SVM_PCVM", "kNN"}


def test_five_replications_of_two_folds_are_tested(tmp_path, monkeypatch):
    sets = ("wisconsin_diagnostic",)
    experiment = replace(EXPERIMENTS["chen2009-table4"], sets=sets, control="LDA", run="small")
    monkeypatch.setitem(catalogue.EXPERIMENTS, "small", experiment)
    out = tmp_path / "run"
    report = reported("small", out, classifiers=["LDA", "QDA", "1NN"])
    assert set(report.table["n"]) == {10}
    titles = [section.title for section in report.sections]
    tests = next(s for s in report.sections if s.title.startswith("5x2cv F tests"))
    assert sorted(tests.table.index) == ["1NN", "QDA"]
    assert "Win-loss-tie against LDA: Error, %" in titles
    splits = np.load(out / "splits" / "wisconsin_diagnostic.npz")
    np.testing.assert_array_equal(splits["train_0"], splits["test_1"])
    np.testing.assert_array_equal(splits["test_8"], splits["train_9"])


# --- every experiment ------------------------------------------------------------------------

QUICK = {
    "chen2009-fig4": {"sets": ["overlap", "relevance"], "classifiers": ["SVM", "PCVM_plug_in"]},
    "chen2009-margins": {"sets": ["overlap", "relevance"]},
    "figueiredo2001-fig2": {"sets": ["gaussians_2", "gaussians_4"]},
    "figueiredo2001-fig3": {"sets": LINE_SETS},
    "chmielewski2019-fig1": {},
    "chmielewski2019-fig2": {},
    "kropotov2006-regression": {"sets": ["sinc"]},
    "lyu2020-fig4": {},
}


def check_report(report, out, report_folder):
    """Check that a run has ended, and that its report and those of its other tables are written."""
    assert len(report.failures) == 0, report.failures["traceback"][0]
    assert len(report.cells) > 0
    assert all(key.startswith("set ") for key in report.missing)
    written = {path.name for path in report.write(report_folder)}
    assert {"report.md", "report.html", "table.csv", "cells.csv", "timing.csv"} <= written
    page = (report_folder / "report.html").read_text()
    assert "src='http" not in page
    assert "href" not in page
    for other in EXPERIMENTS.values():
        if other.run == report.experiment.run:
            assert report_of(out, other.name).to_html()
    return page


@pytest.mark.parametrize("name", QUICK)
def test_experiments_on_generated_sets(name, tmp_path):
    report = reported(name, tmp_path / "run", repeats=1, **QUICK[name])
    page = check_report(report, tmp_path / "run", tmp_path / "report")
    assert report.missing == {}
    if report.experiment.figure:
        assert (tmp_path / "report" / "picture.png").read_bytes()[:4] == b"\x89PNG"
        assert "data:image/png;base64," in page


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, each in EXPERIMENTS.items() if each.run == name])
def test_a_small_part_of_every_experiment(name, tmp_path, data_folder):
    options = {"repeats": 2, "small": True, "jobs": 2, "folder": data_folder}
    check_report(reported(name, tmp_path / "run", **options), tmp_path / "run", tmp_path / "report")


def test_records_have_checksums(tmp_path):
    path = tmp_path / "record.json"
    record = {"a": [1, 2.5, float("inf")], "b": {"c": None, "1": "x"}}
    path.write_text(json.dumps(with_checksum(record), indent=1))
    assert read_record(path) == record
    for content in ("", "{", "[1]", "3", '{"a": 1}', path.read_text().replace("2.5", "2.6")):
        path.write_text(content)
        refused(r"record\.json is damaged", read_record, path, error=StoreError)
    refused("no is missing", read_record, tmp_path / "no", error=StoreError)
