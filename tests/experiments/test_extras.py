"""What is counted for the papers' pictures and tables besides errors."""

from dataclasses import replace

import numpy as np
import pytest
from problems import blobs
from runs import reported

from pcvm_pymc import PCVMClassifier, RVMClassifier
from pcvm_pymc.experiments import catalogue
from pcvm_pymc.experiments.baselines import CalibratedSVC
from pcvm_pymc.experiments.catalogue import EXPERIMENTS
from pcvm_pymc.experiments.classifiers import TuningTask, opposed_rows
from pcvm_pymc.experiments.other_kernels import FeatureWidthPCVM
from pcvm_pymc.experiments.pictures import EXTRAS

# --- signs and margins -----------------------------------------------------------------------


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
