import re
from dataclasses import replace

import numpy as np
import pytest
from problems import blobs, printed, refused
from runs import reported

from pcvm_pymc import PCVMClassifier, RVMClassifier
from pcvm_pymc.cli import main
from pcvm_pymc.experiments import catalogue
from pcvm_pymc.experiments.baselines import CalibratedSVC
from pcvm_pymc.experiments.catalogue import EXPERIMENTS, SKETCHES, experiment_of
from pcvm_pymc.experiments.classifiers import TuningTask, opposed_rows
from pcvm_pymc.experiments.drawings import DRAWINGS
from pcvm_pymc.experiments.other_kernels import FeatureWidthPCVM
from pcvm_pymc.experiments.pictures import EXTRAS
from pcvm_pymc.experiments.running import NoSetError
from pcvm_pymc.experiments.sketches import sketch_report

FORMULAS = [name for name, each in SKETCHES.items() if each.drawing and not each.sets]


# --- drawn from formulas ---------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_are_drawn(name, tmp_path, capsys):
    said = printed(capsys, main(["reproduce", name, "--out", str(tmp_path)]))
    assert "report.html" in said.replace("\n", "")
    folder = tmp_path / "report"
    assert (folder / "picture.png").read_bytes()[:4] == b"\x89PNG"
    assert SKETCHES[name].title in (folder / "report.md").read_text()
    assert "data:image/png;base64," in (folder / "report.html").read_text()
    refused(f"{name} has no jobs: no classifier is fitted", experiment_of, name)


def test_what_the_formulas_say():
    said = DRAWINGS["tail"](SKETCHES["kropotov2006-fig4"], None).text[0]
    found = re.search(r"is ([\d.]+) by eq. 13, corrected, and ([\d.]+) by", said)
    by_formula, by_rule = found.groups()
    assert float(by_formula) == pytest.approx(float(by_rule), abs=2e-4)
    table = DRAWINGS["weights and shifts"](SKETCHES["kropotov2006-fig2"], None).table
    weight, shift = table["weight changed by -20 %"], table["centre shifted by 0.2"]
    # what the paper's sketch says: narrow kernels forgive a weight's change but no shift
    assert weight.iloc[0] == pytest.approx(weight.iloc[1], abs=0.02)
    assert shift.iloc[0] < shift.iloc[1] - 0.1
    # the prior on each side is a density, also with the precision integrated out
    prior = DRAWINGS["truncated prior"](SKETCHES["chen2009-fig3"], None).figure
    for axes, sign in zip(prior.axes, (-1, 1), strict=True):
        given, out = (line.get_xydata() for line in axes.get_lines())
        assert not given[np.sign(given[:, 0]) == -sign, 1].any()
        assert abs(np.trapezoid(given[:, 1], given[:, 0])) == pytest.approx(1.0, abs=1e-3)
        assert 0.9 < abs(np.trapezoid(out[:, 1], out[:, 0])) < 1.0  # its tail is cut
    assert "at most 0.0227" in DRAWINGS["links"](SKETCHES["figueiredo2001-fig1"], None).text[0]


# --- counted ---------------------------------------------------------------------------------


def test_sizes_are_counted_and_what_is_missing_is_said(monkeypatch):
    monkeypatch.delenv("PCVM_DATA", raising=False)
    table = replace(SKETCHES["chen2009-table2"], sets=("wisconsin_diagnostic", "heart"), printed="")
    drawn = DRAWINGS["sizes"](table, None)
    sizes = ["300", "269", "62.74", "37.26", "30"]
    assert drawn.table.loc["wisconsin_diagnostic"].tolist() == sizes
    assert drawn.table.index.tolist() == ["wisconsin_diagnostic"]
    assert "raetsch_heart.csv" in drawn.text[0]
    with pytest.raises(NoSetError, match="none of the sets is there"):
        sketch_report(replace(table, sets=("heart",)))


def test_sizes_beside_the_papers(data_folder):
    table = DRAWINGS["sizes"](SKETCHES["chen2009-table2"], data_folder).table
    for column in ("training rows", "test rows", "features"):
        assert (table[column] == table[f"the paper's {column}"]).all()


@pytest.mark.fixed_seeds  # an error rate of drawn rows
def test_the_toy_problem_and_its_best_error(data_folder):
    drawn = DRAWINGS["toy problem"](SKETCHES["kropotov2006-fig5"], data_folder)
    assert drawn.text[0].startswith("200 training rows")
    assert 20 < float(drawn.text[0].split("errs on ")[1].split()[0]) < 22  # 21 % in the book


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
