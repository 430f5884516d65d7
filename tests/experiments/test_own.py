"""Experiments of our own: their rows, their sets, and the reports on time and few vectors."""

import numpy as np
import pandas as pd
import pytest
from problems import blobs, refused
from runs import reported
from sklearn.datasets import load_iris

from pcvm_pymc import MPCVMClassifier, PCVMClassifier
from pcvm_pymc.experiments.catalogue import EXPERIMENTS
from pcvm_pymc.experiments.classifiers import CLASSIFIERS, TuningTask
from pcvm_pymc.experiments.datasets.generators import ring
from pcvm_pymc.experiments.protocols import Protocol, realise
from pcvm_pymc.experiments.reporting.comparisons import few_vectors, growth, slopes
from pcvm_pymc.experiments.reporting.report import Report
from pcvm_pymc.experiments.sampled import ModelPCVM


def test_the_default_is_the_one_for_so_many_classes():
    X, label = blobs(30, seed=1)
    two = TuningTask(X, label, X, label)
    several = TuningTask(*load_iris(return_X_y=True) * 2)
    assert isinstance(CLASSIFIERS["default"].make(two.setting({})), PCVMClassifier)
    model = CLASSIFIERS["default_4"].make(several.setting({}))
    assert isinstance(model, MPCVMClassifier)
    assert model.n_vectors == 4
    kernel = CLASSIFIERS["GP_tuned"].make(several.setting({})).kernel
    assert kernel.k2.length_scale == 2.0  # the root of four features


def test_the_models_mode_predicts_and_asks_for_two_classes():
    X, label = blobs(40, seed=2, fixed=True)
    names = np.where(label > 0, "yes", "no")
    model = ModelPCVM(width=1.5, by="mode").fit(X, names)
    assert model.score(X, names) > 0.8
    assert set(model.predict(X)) == {"no", "yes"}
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    refused("y has 3 classes; needed two", ModelPCVM().fit, *load_iris(return_X_y=True))
    refused("by='map'", ModelPCVM(by="map").fit, X, names)


@pytest.mark.slow
def test_the_posterior_is_more_modest_than_its_mode():
    X, label = blobs(40, seed=2, fixed=True)  # on others both are as sure
    drawn = ModelPCVM(width=1.5, draws=100).fit(X, label)
    both = drawn, ModelPCVM(width=1.5, by="mode").fit(X, label)
    sure = [np.abs(each.predict_proba(3 * X)[:, 1] - 0.5).mean() for each in both]
    assert drawn.score(X, label) > 0.8
    assert sure[0] < sure[1]


def test_rings_have_neighbours_two_deviations_apart():
    for n_classes in (2, 5, 16):
        X, y = ring(16_000, random_state=0, n_classes=n_classes)
        centres = np.array([X[y == c].mean(axis=0) for c in range(n_classes)])
        apart = np.linalg.norm(centres - np.roll(centres, 1, axis=0), axis=1)
        np.testing.assert_allclose(apart, 2.0, atol=0.2)
        assert len(np.unique(y)) == n_classes
    refused("n=3; needed a whole number of at least 4", ring, 3, random_state=0)


def test_a_protocol_has_a_greatest_number_of_rows():
    capped = Protocol("", "shares", rows=40, test_rows=20)
    problem = realise("wisconsin_diagnostic", capped, 2, seed=0)
    assert {(len(train), len(test)) for train, test in problem.splits} == {(40, 20)}
    whole = realise("wisconsin_diagnostic", Protocol("", "shares"), 2, seed=0)
    assert set(problem.splits[0][0]) <= set(whole.splits[0][0])
    only = realise("wisconsin_diagnostic", Protocol("", "shares", rows=40), 1, seed=0)
    assert len(only.splits[0][1]) == len(whole.splits[0][1])


def test_slopes_are_the_powers():
    x = np.array([100.0, 200.0, 400.0])
    part = pd.concat(
        [
            pd.DataFrame({"classifier": "square", "x": x, "seconds": 3e-6 * x**2}),
            pd.DataFrame({"classifier": "root", "x": x[:2], "seconds": np.sqrt(x[:2])}),
            pd.DataFrame({"classifier": "one point", "x": x[:1], "seconds": 1.0}),
        ]
    )
    assert slopes(part).to_dict() == {"square": "2.00 ± 0.00", "root": "0.50"}


def timed_report(name, records):
    manifest = {"sets": list(dict.fromkeys(each["set"] for each in records)), "classifiers": []}
    none = pd.DataFrame()
    return Report(EXPERIMENTS[name], manifest, none, none, none, none, {}, tuple(records))


def test_time_is_shown_against_rows_classes_and_vectors():
    sets = [f"ring_4_{n}" for n in (100, 200, 400, 800)] + [f"ring_{c}_400" for c in (2, 8, 16)]
    records = []
    for name in sets:
        c, n = map(int, name.split("_")[1:])
        seconds = 1e-8 * c * n**3
        measures = {"vectors": 0.1 * n, "seconds": seconds}
        timed = (seconds, seconds, 100 * seconds)  # one realisation was disturbed
        row = {"set": name, "classifier": "cubic", "n_train": n}
        records += [row | {"measures": measures | {"seconds": s}} for s in timed]
    table, picture = growth(timed_report("own-scaling", records))
    assert list(table.table) == ["rows (4 classes)", "classes (400 rows)", "vectors"]
    assert table.table.loc["cubic", "rows (4 classes)"] == "3.00 ± 0.00"
    assert table.table.loc["cubic", "classes (400 rows)"] == "1.00 ± 0.00"
    assert len(picture.figure.axes) == 3
    assert list(growth(timed_report("own-scaling", records[:3]))) == []


def test_what_few_vectors_lose_is_told_beside_the_control(tmp_path):
    few = {"sets": ["wisconsin_diagnostic"], "repeats": 1, "small": True}
    names = ["default", "default_2", "SVC_tuned"]
    report = reported("own-vectors", tmp_path / "run", **few, classifiers=names)
    assert len(report.failures) == 0
    table, picture = few_vectors(report)
    assert table.table.loc["default", "Log loss"] == 0.0
    mean = report.pivot("log loss").loc["wisconsin_diagnostic"]
    wanted = mean["default_2"] - mean["default"]
    assert table.table.loc["default_2", "Log loss"] == pytest.approx(wanted, abs=1e-4)
    assert table.table.loc["default_2", "vectors"] == 2
    assert len(picture.figure.axes) == 2
    assert "1 asked for, 3 by default" in report.to_markdown()
