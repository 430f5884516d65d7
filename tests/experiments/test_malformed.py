"""Whatever is in a data folder, the command line answers in words."""

import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pcvm_pymc.cli import main
from pcvm_pymc.experiments.reporting import report_of

RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck)}
CODES = (0, 2)


def answer(arguments):
    """Run the command line; return what it said."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(map(str, arguments)))
    said = out.getvalue() + err.getvalue()
    assert code in CODES
    assert said.strip()
    if code == 2:
        assert "pcvm: error: " in err.getvalue()
    assert "Traceback" not in said
    return code, said


# --- data ------------------------------------------------------------------------------------


def crabs():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 6)).round(3), columns=[*list("abcde"), "species"])
    return frame.assign(target=np.resize([0, 1], 200))


def heart():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(270, 13)).round(2)).assign(target=np.resize([-1, 1], 270))
    rows = np.stack([rng.permutation(270) for _ in range(2)])
    return frame, {"train": rows[:, :170], "test": rows[:, 170:], "realisation": np.array([1, 2])}


CRABS = crabs().to_csv(index=False).encode()
HEART_FRAME, HEART_SPLITS = heart()
HEART = HEART_FRAME.to_csv(index=False).encode()


@st.composite
def spoiled_bytes(draw, content):
    """Return a file cut off, overwritten, or with bytes put in or taken out."""
    kind = draw(st.sampled_from(["cut", "overwrite", "insert", "remove", "other"]))
    at = draw(st.integers(0, len(content)))
    some = draw(st.binary(min_size=1, max_size=12))
    length = draw(st.integers(1, 400))
    return {
        "cut": content[:at],
        "overwrite": content[:at] + some + content[at + len(some) :],
        "insert": content[:at] + some + content[at:],
        "remove": content[:at] + content[at + length :],
        "other": some,
    }[kind]


def run_with(files, name):
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        folder = Path(place, "data")
        folder.mkdir()
        for file, content in files.items():
            (folder / file).write_bytes(content)
        patch.setenv("PCVM_DATA", str(folder))
        experiment = {"crabs_sex": "figueiredo2001-table2", "heart": "chen2009-table3"}[name]
        out = Path(place, "out")
        few = ["--sets", name, "--classifiers", "LDA", "--repeats", 1]
        code, said = answer(["reproduce", experiment, *few, "--out", out])
        if code == 0:
            report = report_of(out)
            assert len(report.cells) + len(report.failures) == 1
        else:
            assert name in said or "crabs" in said


def check_csv(content):
    run_with({"crabs.csv": content}, "crabs_sex")


@st.composite
def spoiled_splits(draw):
    """Return an npz file that holds other arrays than it should, or is none."""
    buffer = io.BytesIO()
    arrays = {key: value.copy() for key, value in HEART_SPLITS.items()}
    kinds = ["bytes", "type", "range", "twice", "shape", "key", "pickle", "empty"]
    kind = draw(st.sampled_from(kinds))
    key = draw(st.sampled_from(["train", "test", "realisation"]))
    if kind == "type":
        arrays[key] = arrays[key].astype(draw(st.sampled_from([float, str, bool, complex])))
    elif kind == "range":
        arrays[key].flat[0] = draw(st.sampled_from([-1, 270, 10**9, -(2**40)]))
    elif kind == "twice":
        arrays["train"][0, 0] = arrays["test"][0, 0]
    elif kind == "shape":
        arrays[key] = arrays[key].ravel()[: draw(st.integers(0, 9))]
    elif kind == "key":
        arrays["other"] = arrays.pop(key)
    elif kind == "pickle":
        arrays[key] = np.array([{"a": 1}, None], dtype=object)
    elif kind == "empty":
        arrays[key] = arrays[key][:0]
    np.savez(buffer, **arrays)
    content = buffer.getvalue()
    return draw(spoiled_bytes(content)) if kind == "bytes" else content


def check_splits(content):
    run_with({"raetsch_heart.csv": HEART, "raetsch_heart_splits.npz": content}, "heart")


ORDINARY = settings(max_examples=40, **RELAXED)


@ORDINARY
@given(spoiled_bytes(CRABS))
def test_files_that_are_no_csv(content):
    check_csv(content)


@ORDINARY
@given(spoiled_splits())
def test_wrong_split_files(content):
    check_splits(content)


@pytest.mark.slow
@settings(max_examples=2000, **RELAXED)
@given(spoiled_bytes(CRABS), spoiled_splits())
def test_2000_files_of_each_kind(content, splits):
    check_csv(content)
    check_splits(splits)
