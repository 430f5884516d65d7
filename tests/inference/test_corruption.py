"""Results, checkpoints and cells that were damaged: named or mended, never read as other numbers."""

import shutil

import numpy as np
import pytest
from faults import answer, assert_same, files_of, generator, spoil
from problems import blobs, map_result

from pcvm_pymc import load, pcvm_model, sample, save
from pcvm_pymc.experiments.reporting import report_of
from pcvm_pymc.experiments.running import RunError, reproduce
from pcvm_pymc.inference.files import StoreError

GIBBS = {"method": "gibbs", "draws": 20, "tune": 5, "chains": 2, "thin": 1, "max_sweeps": 50}
QUIET = {"progressbar": False, "quiet": True, "cores": 1, "random_seed": 3}
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


def check_checkpoints(model, folder, seeds):
    def run(checkpoint):
        return sample(model, checkpoint=checkpoint, **GIBBS, **QUIET)

    good = folder / "good"
    whole = run(good)
    named = 0
    for _, _, back in spoilt_copies(good, folder, seeds, run, StoreError):
        if back is None:
            named += 1
        else:  # a chain that was removed begins anew, and ends the same
            np.testing.assert_array_equal(back["posterior"]["latent"], whole["posterior"]["latent"])
    assert named > len(seeds) // 4


def check_cells(model, folder, seeds):
    good = folder / "good"
    reproduce("lyu2020-table3", out=good, **RUN)
    expected = report_of(good).cells.drop(columns="seconds", errors="ignore")
    for place, did, _ in spoilt_copies(good, folder, seeds, report_of, RunError):
        reproduce("lyu2020-table3", out=place, **RUN)
        assert report_of(place).cells.equals(expected), did
        assert {path.name for path in files_of(good)} <= {path.name for path in files_of(place)}


CHECKS = {"results": (check_results, 15), "checkpoints": (check_checkpoints, 8)}
CHECKS["cells"] = check_cells, 4


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", CHECKS)
def test_spoilt(what, many, model, tmp_path):
    check, few = CHECKS[what]
    check(model, tmp_path, range(100, 300) if many else range(few))
