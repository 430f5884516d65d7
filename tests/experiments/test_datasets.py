from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from problems import refused
from scipy.special import ndtr
from scipy.stats import multivariate_normal

from pcvm_pymc.experiments import datasets
from pcvm_pymc.experiments.datasets import SOURCES, available, load, random_splits
from pcvm_pymc.experiments.datasets.loading import coded_column

FEATURES = {"spiral": 2, "overlap": 2, "bumpy": 2, "relevance": 2, "ripley_mixture": 2}
FEATURES |= {"twonorm": 20, "ringnorm": 20, "waveform": 21}
GENERATORS = {name: (getattr(datasets, name), n) for name, n in FEATURES.items()}
N = 40_000


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_shapes_labels_and_seeds(name):
    make, n_features = GENERATORS[name]
    X, y = make(500, random_state=3)
    assert X.shape == (500, n_features)
    assert set(y) == {-1.0, 1.0}
    again, labels = make(500, random_state=np.random.default_rng(3))
    np.testing.assert_array_equal(again, X)
    np.testing.assert_array_equal(labels, y)
    assert (make(500, random_state=4)[0] != X).any()
    assert set(make(2, random_state=5)[1]) == {-1.0, 1.0}
    share, many = 1 / 3 if name == "waveform" else 1 / 2, make(N, random_state=0)[1]
    assert np.mean(many > 0) == pytest.approx(share, abs=5 * 0.5 / np.sqrt(N))
    refused("random_state=None", make, 10, random_state=None)


@pytest.mark.parametrize("n", [1, 0, -3, 2.5, True, "many"])
def test_bad_sizes(n):
    refused(r"n=.*; needed a whole number of at least 2", datasets.overlap, n, random_state=0)


def error_of(score, y):
    return np.mean(np.sign(score) != y)


def test_bayes_errors():
    """The Bayes rule from each definition has the error that the literature (or algebra) gives."""
    tolerance = 5 * 0.35 / np.sqrt(N)
    X, y = datasets.twonorm(N, random_state=0)
    assert error_of(X.sum(axis=1), y) == pytest.approx(ndtr(-2.0), abs=tolerance)  # 2.3 %
    X, y = datasets.overlap(N, random_state=0)
    wanted = ndtr(-np.linalg.norm(datasets.OVERLAP_MEAN))
    assert error_of(X.sum(axis=1), y) == pytest.approx(wanted, abs=tolerance)
    X, y = datasets.ringnorm(N, random_state=0)
    wide = multivariate_normal(np.zeros(20), 4.0).logpdf(X)
    narrow = multivariate_normal(np.full(20, 2 / np.sqrt(20)), 1.0).logpdf(X)
    assert error_of(wide - narrow, y) == pytest.approx(0.0124, abs=5 * 0.11 / np.sqrt(N))
    X, y = datasets.ripley_mixture(N, random_state=0)
    blob = partial(multivariate_normal, cov=datasets.RIPLEY_VARIANCE)
    centres = datasets.RIPLEY_CENTRES
    density = {c: sum(blob(centre).pdf(X) for centre in centres[c]) for c in (-1, 1)}
    assert error_of(density[1] - density[-1], y) == pytest.approx(0.0893, abs=tolerance)
    X, y = datasets.bumpy(N, random_state=0)
    # |x1| < |x2| for independent normals of scales 0.5 and 2: an arctangent
    wanted = 2 / np.pi * np.arctan(0.5 / 2.0)
    assert error_of(np.abs(X[:, 1]) - np.abs(X[:, 0]), y) == pytest.approx(wanted, abs=tolerance)
    X, y = datasets.relevance(N, random_state=0)
    assert error_of(X[:, 0], y) == pytest.approx(ndtr(-1.5 / 0.7), abs=tolerance)


def test_waveform_means_are_those_of_the_waves():
    X, y = datasets.waveform(N, random_state=2)
    i = np.arange(1, 22)
    h1, h2 = (np.maximum(6 - np.abs(i - c), 0) for c in (11, 15))
    np.testing.assert_allclose(X[y > 0].mean(axis=0), (h1 + h2) / 2, atol=0.1)


def test_spiral_arms_lie_opposite_each_other():
    X, y = datasets.spiral(2000, random_state=0, noise=0.0)
    arm, other = X[y > 0], -X[y < 0]
    # one arm is the other turned by half a turn
    assert np.median(np.linalg.norm(arm[:, None] - other[None], axis=-1).min(axis=1)) < 0.02


def write_ripley(folder, n_train=250, target="target"):
    rng = np.random.default_rng(0)
    for name, n in (("train", n_train), ("test", 1000)):
        frame = pd.DataFrame(rng.normal(size=(n, 2)), columns=["xs", "ys"])
        frame[target] = rng.integers(2, size=n)
        frame.to_csv(folder / f"ripley_synth_{name}.csv", index=False)


def test_loads_from_a_folder(tmp_path, monkeypatch):
    write_ripley(tmp_path)
    monkeypatch.setenv("PCVM_DATA", str(tmp_path))
    data = load("ripley")
    assert data.X.shape == (1250, 2)
    assert data.feature_names == ("xs", "ys")
    X, y, X_test, y_test = data.split(0)
    assert (len(X), len(y), len(X_test), len(y_test)) == (250, 250, 1000, 1000)
    assert "ripley" in available()
    assert "banana" not in available()
    refused(r"ripley has 1 stored realisation.*k=1", data.split, 1, error=IndexError)


def test_stored_realisations_and_missing_cells(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(270, 13))).assign(target=np.resize([-1, 1], 270))
    frame.iloc[4, 2] = np.nan
    frame.to_csv(tmp_path / "raetsch_heart.csv", index=False)
    rows = np.stack([rng.permutation(270) for _ in range(3)])
    parts = {"train": rows[:, :170], "test": rows[:, 170:], "realisation": [1, 2, 7]}
    np.savez(tmp_path / "raetsch_heart_splits.npz", **parts)
    data = load("heart", folder=tmp_path)
    assert np.isnan(data.X[4, 2])
    assert np.isnan(data.X).sum() == 1
    assert data.realisations == (1, 2, 7)
    np.testing.assert_array_equal(data.train[2], rows[2, :170])


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("PCVM_DATA", raising=False)
    words = "'banana' is missing: PCVM_DATA is not set.*Raetsch"
    refused(words, load, "banana", error=FileNotFoundError)
    with pytest.raises(FileNotFoundError, match=r"has no raetsch_splice.csv.*Raetsch"):
        load("splice", folder=tmp_path)
    refused("'bananas' is unknown; did you mean banana", load, "bananas")
    monkeypatch.setenv("PCVM_DATA", str(tmp_path / "nowhere"))
    refused("is not a folder", load, "banana", error=NotADirectoryError)


def test_wrong_files_are_named(tmp_path):
    write_ripley(tmp_path, n_train=249)
    refused(r"\(1249, 2\).*needed \(1250, 2\)", load, "ripley", folder=tmp_path)
    write_ripley(tmp_path, target="class")
    refused("last column 'class'; needed 'target'", load, "ripley", folder=tmp_path)


def test_scikit_learns_sets_need_no_folder(monkeypatch):
    monkeypatch.delenv("PCVM_DATA", raising=False)
    for name in available():
        assert load(name).X.shape == (SOURCES[name].rows, SOURCES[name].features)
    shipped = {name for name in available() if not SOURCES[name].generate}
    assert shipped == {"wisconsin_diagnostic", "iris", "wine", "digits"}


def test_random_splits_are_stratified_and_seeded():
    y = np.repeat([0, 1], [75, 25])
    train, test = random_splits(y, 40, 5, random_state=1)
    assert len(train) == len(test) == 5
    for rows, rest in zip(train, test, strict=True):
        assert len(rows) == 40
        assert sorted([*rows, *rest]) == list(range(100))
        assert y[rows].sum() == 10
    again, _ = random_splits(y, 40, 5, random_state=1)
    np.testing.assert_array_equal(again, train)
    from_generator, _ = random_splits(y, 40, 5, random_state=np.random.default_rng(1))
    assert len(from_generator) == 5


def test_realisations_that_are_not_there_are_named(tmp_path):
    frame = pd.DataFrame(np.zeros((215, 5))).assign(target=np.resize([-1, 1], 215))
    frame.to_csv(tmp_path / "raetsch_thyroid.csv", index=False)
    assert load("thyroid", folder=tmp_path).train == ()  # none are known of this set
    frame = pd.DataFrame(np.zeros((270, 13))).assign(target=np.resize(["NA", "x"], 270))
    frame.to_csv(tmp_path / "raetsch_heart.csv", index=False)
    with pytest.raises(FileNotFoundError, match=r"but not raetsch_heart_splits\.npz"):
        load("heart", folder=tmp_path)
    assert "heart" in available(str(tmp_path))


def test_a_label_may_be_called_na(tmp_path):
    frame = pd.DataFrame(np.zeros((200, 6))).assign(target=np.resize(["NA", "x"], 200))
    frame.to_csv(tmp_path / "crabs.csv", index=False)
    assert set(load("crabs", folder=tmp_path).y) == {"NA", "x"}


def test_the_real_folder(data_folder):
    names = available(data_folder)
    assert "waveform" in names
    for name in names:
        data = load(name, folder=data_folder)
        assert data.X.shape == (SOURCES[name].rows, SOURCES[name].features)
        for train, test in zip(data.train, data.test, strict=True):
            assert not set(train) & set(test)
            assert np.concatenate([train, test]).max() < len(data.X)
    sizes = {"banana": (400, 4900), "waveform": (400, 4600), "vowel": (528, 462)}
    for name, (n_train, n_test) in sizes.items():
        data = load(name, folder=data_folder)
        assert (len(data.train[0]), len(data.test[0])) == (n_train, n_test)


def test_three_overlapping_classes():
    X, y = datasets.overlap_classes(3000, random_state=1)
    for found, again in zip((X, y), datasets.overlap_classes(3000, random_state=1), strict=True):
        np.testing.assert_array_equal(found, again)
    assert X.shape == (3000, 2)
    np.testing.assert_allclose(np.bincount(y) / 3000, 1 / 3, atol=0.05)
    # class 0 is one Gaussian, the others are mixtures
    np.testing.assert_allclose(X[y == 0].mean(axis=0), (2.0, -1.2), atol=0.1)
    assert np.corrcoef(X[y == 0].T)[0, 1] == pytest.approx(-0.7, abs=0.05)
    np.testing.assert_allclose(X[y == 1].mean(axis=0), (-1 / 3, 1.1 / 3), atol=0.15)
    assert set(datasets.overlap_classes(3, random_state=0)[1]) == {0, 1, 2}
    refused("n=2; needed a whole number of at least 3", datasets.overlap_classes, 2, random_state=0)


def test_ten_classes_of_very_different_sizes():
    X, y = datasets.overclass(random_state=2)
    assert X.shape == (127, 2)
    sizes = np.bincount(y)
    assert (sizes.min(), sizes.max(), len(sizes)) == (3, 28, 10)
    refused("random_state=None", datasets.overclass, random_state=None)


def test_the_registry_describes_every_set():
    table = datasets.describe()
    assert set(table.index) == set(SOURCES)
    assert (table["how to obtain"].str.len() > 0).all()
    assert table.loc["iris", "how to obtain"] == "shipped with scikit-learn"
    assert "--download (openml.org 55)" in table.loc["hepatitis", "how to obtain"]
    assert table.loc["letter_3", "how to obtain"] == "made from letter"


def test_derived_sets(data_folder):
    cleveland = load("cleveland", folder=data_folder)
    np.testing.assert_array_equal(cleveland.y, load("heart_cleveland", folder=data_folder).y > 0)
    assert load("crabs_sex", folder=data_folder).feature_names == ("FL", "RW", "CL", "CW", "BD")
    letters = load("letter_3", folder=data_folder)
    counts = dict(zip(*np.unique(letters.y, return_counts=True), strict=True))
    assert counts == dict.fromkeys("ABC", 600)
    toy = load("esl_toy", folder=data_folder)
    assert (len(toy.train[0]), len(toy.test[0])) == (200, 5000)
    np.testing.assert_array_equal(toy.X[:200], load("esl_mixture", folder=data_folder).X)
    assert 0.45 < toy.y[200:].mean() < 0.55
    assert len(np.unique(load("thyroid_training", folder=data_folder).y)) == 2


NUMBER = {"openml": 61, "openml_target": "class"}
OPENML_IRIS = datasets.Source(150, 4, "openml.org", ("iris_61.csv",), classes=3, **NUMBER)


def answered(monkeypatch, folder, source=OPENML_IRIS):
    """Let openml.org give the answers that scikit-learn has recorded."""
    from sklearn.datasets.tests.test_openml import _monkey_patch_webbased_functions

    _monkey_patch_webbased_functions(monkeypatch, 61, True)
    monkeypatch.setitem(SOURCES, "iris_61", source)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(folder / "cache"))


def test_openml_answers(monkeypatch, tmp_path):
    answered(monkeypatch, tmp_path)
    refused("'iris_61' is missing", load, "iris_61", folder=tmp_path, error=FileNotFoundError)
    data = load("iris_61", folder=tmp_path, download=True)
    np.testing.assert_allclose(np.sort(data.X, axis=0), np.sort(load("iris").X, axis=0), atol=0.11)
    assert sorted(set(data.y)) == ["Iris-setosa", "Iris-versicolor", "Iris-virginica"]
    assert data.origin == "openml.org 61"


OPENML_ANSWERS = [
    ({"rows": 151}, r"\(150, 4\); iris_61 needs \(151, 4\)"),
    ({"openml_target": "species"}, "has no column 'species'"),
    ({"openml": 0}, "iris_61 is not at openml.org"),
]


@pytest.mark.parametrize(("changes", "message"), OPENML_ANSWERS)
def test_openml_answers_that_are_another_table(monkeypatch, tmp_path, changes, message):
    answered(monkeypatch, tmp_path, replace(OPENML_IRIS, **changes))
    refused(message, datasets.fetch, "iris_61")


def test_text_columns_are_coded():
    np.testing.assert_array_equal(coded_column(pd.Series(["b", None, "a", "b"])), [1, np.nan, 0, 1])
    numbers = pd.Series([1.5, np.nan])
    assert coded_column(numbers) is numbers
