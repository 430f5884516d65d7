"""Clusters that stand still: said, given up in the end, and waited for as long as they come back."""

import logging
import threading
import time

import numpy as np
import pytest
from problems import blobs

from pcvm_pymc import PCVMClassifier
from pcvm_pymc.estimators import cluster as waiting

pytest.importorskip("distributed")

import dask
import dask.array as da
from distributed import Client, LocalCluster
from distributed.core import Status

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

X, LABEL = blobs(40, seed=3)


@pytest.fixture
def cluster(monkeypatch):
    """Return a cluster without workers, which is looked at often."""
    monkeypatch.setattr(waiting, "_CHECK", 0.05)
    monkeypatch.setattr(waiting, "_SAY", 0.1)
    options = {"n_workers": 0, "threads_per_worker": 1, "processes": False, "memory_limit": 0}
    with LocalCluster(**options, dashboard_address=":0") as cluster, Client(cluster):
        yield cluster


def fit():
    model = PCVMClassifier(width=1.5, basis=(X[:10], LABEL[:10]), tol=1e-8)
    return model.fit(da.from_array(X, chunks=(20, 2)), LABEL)


def given_up(words):
    """Assert that a fit ends soon, with these words."""
    patience = dask.config.set({"pcvm-pymc.patience": "300ms"})
    with patience, pytest.raises(TimeoutError, match=words):
        fit()


def test_a_fit_without_a_worker_ends_with_what_to_do(cluster):
    given_up("stood still for 0 s: it has no worker; needed a worker")


def test_a_fit_goes_on_once_a_worker_comes_back(cluster, caplog):
    def come_back():
        time.sleep(0.6)
        cluster.scale(1)

    caplog.set_level(logging.WARNING, waiting.__name__)
    thread = threading.Thread(target=come_back)
    thread.start()
    found = fit()
    thread.join()
    wanted = PCVMClassifier(width=1.5, basis=(X[:10], LABEL[:10]), tol=1e-8).fit(X, LABEL)
    np.testing.assert_allclose(found.weight_, wanted.weight_, atol=1e-6)
    said = [each.getMessage() for each in caplog.records if each.name == waiting.__name__]
    assert said
    assert all("it has no worker; it is given up after 600 s" in each for each in said)


def test_workers_that_do_nothing_are_named(cluster):
    cluster.scale(1)
    cluster.wait_for_workers(1)
    (worker,) = cluster.workers.values()

    async def status(value):
        worker.status = value

    cluster.sync(status, Status.paused)
    given_up(f"paused, for want of memory: {worker.address}")
    cluster.sync(status, Status.running)
    assert fit().weight_.any()


def test_slow_tasks_are_waited_for(cluster, caplog):
    cluster.scale(1)
    with dask.config.set({"pcvm-pymc.patience": "0.2s"}):
        cluster.wait_for_workers(1)
        assert waiting.computed(dask.delayed(time.sleep)(0.5), dask.delayed(3)) == (None, 3)
    assert not [each for each in caplog.records if each.name == waiting.__name__]


def test_errors_of_tasks_are_raised_and_tasks_may_wait_for_tasks(cluster):
    cluster.scale(1)

    def fails():
        raise KeyError("gone")

    def nested():
        return waiting.computed(dask.delayed(sum)([1, 2]))[0]

    with pytest.raises(KeyError, match="gone"):
        waiting.computed(dask.delayed(fails)())
    assert waiting.computed(dask.delayed(nested)()) == (3,)


def test_a_local_scheduler_needs_no_client():
    assert waiting.computed(dask.delayed(sum)([1, 2]), dask.delayed(max)([4, 5])) == (3, 5)
