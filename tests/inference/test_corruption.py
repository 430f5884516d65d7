"""Results and cells that were damaged: named or mended, never read as other numbers."""

import shutil

import pytest
from faults import answer, assert_same, files_of, generator, spoil
from problems import blobs, map_result

from pcvm_pymc import load, pcvm_model, save
from pcvm_pymc.experiments.reporting import report_of
from pcvm_pymc.experiments.running import RunError, reproduce
from pcvm_pymc.inference.files import StoreError

RUN = {"sets": ["iris"], "classifiers": ["MLR", "DLSR"], "repeats": 2, "progressbar": False}


@pytest.fixture(scope="module")
def model():
    X, label = blobs(24, seed=2)
    return pcvm_model(X, label, width=1.0)


def spoilt_copies(good, folder, seeds, read, errors):
    """Yield each copy, what was done to it, and what was read: nothing where an error named it."""
    for seed in seeds:
        place = folder / f"copy-{seed}"
        shutil.copytree(good, place)
        did = spoil(place, generator(seed))
        found, said = answer(lambda place=place: read(place), errors)
        if found is None:
            assert str(place) in said, did
        yield place, did, found
        shutil.rmtree(place)


def check_results(model, folder, seeds):
    good = save(map_result(model), folder / "good.zarr")
    named = 0
    for _, _, found in spoilt_copies(good, folder, seeds, load, StoreError):
        if found is None:
            named += 1
        else:  # a foreign file, or metadata that Zarr has twice
            assert_same(found, load(good))
    assert named > len(seeds) // 2


def check_cells(model, folder, seeds):
    good = folder / "good"
    reproduce("lyu2020-table3", out=good, **RUN)
    expected = report_of(good).cells.drop(columns="seconds", errors="ignore")
    for place, did, _ in spoilt_copies(good, folder, seeds, report_of, RunError):
        reproduce("lyu2020-table3", out=place, **RUN)
        assert report_of(place).cells.equals(expected), did
        assert {path.name for path in files_of(good)} <= {path.name for path in files_of(place)}


CHECKS = {"results": (check_results, 15), "cells": (check_cells, 4)}


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", CHECKS)
def test_spoilt(what, many, model, tmp_path):
    check, few = CHECKS[what]
    check(model, tmp_path, range(100, 300) if many else range(few))
