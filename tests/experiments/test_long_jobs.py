"""A job that is stopped goes on where it was."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from sklearn.linear_model import LogisticRegression

from pcvm_pymc.experiments import catalogue
from pcvm_pymc.experiments.catalogue import EXPERIMENTS
from pcvm_pymc.experiments.classifiers import CLASSIFIERS
from pcvm_pymc.experiments.protocols import Protocol
from pcvm_pymc.experiments.running import JobName, Store, reproduce, store
from pcvm_pymc.experiments.running.store import Progress, with_checksum

VALUES = (0.01, 0.1, 1.0, 10.0)


class Stopped(BaseException):
    """Goes past what catches exceptions, as a kill does."""


class Costly:
    """Makes classifiers, counts them by candidate, and is stopped at one."""

    def __init__(self):
        self.made, self.stop_at, self.stop = [], None, Stopped()

    def __call__(self, setting):
        C = setting.parameters["C"]
        if self.stop_at == C:
            raise self.stop
        self.made.append(C)
        return LogisticRegression(C=C, max_iter=5000)


@pytest.fixture
def costly(monkeypatch):
    monkeypatch.setattr(store, "_PAUSE", 0.0)
    make = Costly()
    row = replace(CLASSIFIERS["MLR"], name="costly", make=make, candidates=lambda X: {"C": VALUES})
    monkeypatch.setitem(CLASSIFIERS, "costly", row)
    return make


def run(out):
    few = {"sets": ["iris"], "classifiers": ["costly"], "repeats": 1, "progressbar": False}
    reproduce("small", out=out, **few)
    return Store(out)


def parts(out):
    return sorted(path.name for path in Path(out).rglob("*.part"))


@pytest.mark.parametrize("tuning", ["mean", "each", "median"])
def test_a_stopped_job_goes_on_with_the_rest(costly, tmp_path, monkeypatch, tuning):
    changes = {"run": "small", "sets": ("iris",), "protocol": Protocol("", "shares", tuning)}
    changed = replace(EXPERIMENTS["lyu2020-table3"], **changes)
    monkeypatch.setitem(catalogue.EXPERIMENTS, "small", changed)
    costly.stop_at = 1.0
    with pytest.raises(Stopped):
        run(tmp_path / "run")
    assert parts(tmp_path) == ["score-000.part" if tuning == "each" else "tune-000.part"]
    assert costly.made == [0.01, 0.1]
    costly.stop_at = None
    found = run(tmp_path / "run")
    assert costly.made[2:4] == [1.0, 10.0]  # and then what is scored
    assert len(costly.made) == 5
    assert parts(tmp_path) == []
    calm = run(tmp_path / "calm")
    score = JobName("iris", "costly", "score", int(tuning == "mean"))
    assert found.read(score)["parameters"] == calm.read(score)["parameters"]
    if tuning == "mean":
        job = JobName("iris", "costly", "tune", 0)
        assert found.read(job)["errors"] == calm.read(job)["errors"]


def test_what_other_inputs_or_a_damaged_file_left_behind_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_PAUSE", 0.0)
    path = tmp_path / "tune-000.part"
    assert Progress(path, {"seed": 0})({"C": 1.0}, lambda: 0.25) == 0.25
    assert Progress(path, {"seed": 0})({"C": 1.0}, lambda: 0.5) == 0.25
    assert Progress(path, {"seed": 0})({"C": 2.0}, lambda: 0.5) == 0.5
    assert Progress(path, {"seed": 1})({"C": 1.0}, lambda: 0.5) == 0.5
    path.write_text(path.read_text()[:30])
    assert Progress(path, {"seed": 1})({"C": 1.0}, lambda: 0.75) == 0.75
    assert Progress(None, {})({"C": 1.0}, lambda: 0.125) == 0.125


def test_seconds_of_stopped_runs_count(tmp_path):
    path = tmp_path / "tune-000.part"
    path.write_text(json.dumps(with_checksum({"inputs": {}, "losses": {}, "seconds": 100.0})))
    assert 100.0 <= Progress(path, {}).seconds < 101.0
    assert Progress(path, {"seed": 1}).seconds < 1.0


def test_quick_candidates_leave_no_file(tmp_path):
    path = tmp_path / "tune-000.part"
    assert Progress(path, {})({"C": 1.0}, lambda: 0.5) == 0.5
    assert not path.exists()
