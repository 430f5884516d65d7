from dataclasses import replace

import numpy as np
import pytest
from problems import complaint, interrupted, refused
from runs import reported
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from pcvm_pymc.cli import main
from pcvm_pymc.experiments import catalogue, everything
from pcvm_pymc.experiments.catalogue import EXPERIMENTS
from pcvm_pymc.experiments.classifiers import CLASSIFIERS
from pcvm_pymc.experiments.protocols import Protocol, realise, thinned
from pcvm_pymc.experiments.running import RunError

LINES = "figueiredo2001-fig3"


# --- a small part ----------------------------------------------------------------------------


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


# --- everything ------------------------------------------------------------------------------


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
