"""What the catalogue has of Lyu et al. (2020) beside its Table 3."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from problems import fixed_rng
from runs import reported

from pcvm_pymc.core.problem import Status
from pcvm_pymc.experiments.catalogue import EXPERIMENTS, printed_table
from pcvm_pymc.experiments.classifiers import CLASSIFIERS, Setting
from pcvm_pymc.experiments.datasets.generators import overlap_classes
from pcvm_pymc.experiments.reporting.report import Report
from pcvm_pymc.experiments.reporting.sections import drawn, sections_of


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
