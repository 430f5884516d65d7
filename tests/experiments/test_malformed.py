"""Whatever is in a data folder, the command line answers in words."""

import io

import numpy as np
import pandas as pd
import pytest
from faults import generator, spoil

from pcvm_pymc.cli import main
from pcvm_pymc.experiments.reporting import report_of

RNG = np.random.default_rng(0)
CRABS = pd.DataFrame(RNG.normal(size=(200, 6)).round(3), columns=[*"abcde", "species"])
HEART = pd.DataFrame(RNG.normal(size=(270, 13)).round(2)).assign(target=np.resize([-1, 1], 270))
ROWS = np.stack([RNG.permutation(270) for _ in range(2)])
SPLITS = {"train": ROWS[:, :170], "test": ROWS[:, 170:], "realisation": np.array([1, 2])}
SETS = {"crabs_sex": "figueiredo2001-table2", "heart": "chen2009-table3"}


def packed(arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a data folder with two sets."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("PCVM_DATA", str(folder))
    CRABS.assign(target=np.resize([0, 1], 200)).to_csv(folder / "crabs.csv", index=False)
    HEART.to_csv(folder / "raetsch_heart.csv", index=False)
    (folder / "raetsch_heart_splits.npz").write_bytes(packed(SPLITS))
    return folder


def answered(name, out, capsys):
    """Run an experiment on a set; check that it has a report, or says in a line why it has none."""
    few = ["--sets", name, "--classifiers", "LDA", "--repeats", "1"]
    code = main(["reproduce", SETS[name], *few, "--out", str(out)])
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    if code == 0:
        report = report_of(out)
        assert len(report.cells) + len(report.failures) == 1
    else:
        assert code == 2
        assert "pcvm: error: " in said.err
        assert name in said.err or "crabs" in said.err
    return code


def test_whole_files_are_read(place, tmp_path, capsys):
    assert [answered(name, tmp_path / name, capsys) for name in SETS] == [0, 0]


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_spoilt_files(many, place, tmp_path, capsys):
    files = {each: each.read_bytes() for each in place.iterdir()}
    for number in range(100, 2100) if many else range(45):
        path = sorted(files)[number % 3]
        spoil(path, generator(number))
        answered("crabs_sex" if number % 3 == 0 else "heart", tmp_path / f"{number}", capsys)
        for other in set(place.iterdir()) - set(files):
            other.unlink()
        path.write_bytes(files[path])


WRONG = {
    "type": {"train": SPLITS["train"].astype(float)},
    "range": {"test": SPLITS["test"] + 1},
    "twice": {"train": SPLITS["test"][:, ::-1]},
    "shape": {"realisation": np.array(1)},
    "pickle": {"train": np.array([{"a": 1}, None], dtype=object)},
    "empty": {"train": SPLITS["train"][:0]},
}


@pytest.mark.parametrize("arrays", WRONG.values(), ids=WRONG)
def test_wrong_arrays_of_splits_are_refused(place, tmp_path, capsys, arrays):
    (place / "raetsch_heart_splits.npz").write_bytes(packed(SPLITS | arrays))
    assert answered("heart", tmp_path / "out", capsys) == 2
