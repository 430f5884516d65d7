from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import awkward_data, blobs, refused
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans, kmeans_plusplus

from pcvm_pymc import choose_basis
from pcvm_pymc.core.pieces import centres
from pcvm_pymc.core.pieces.centres import (
    as_centres,
    choose_means,
    choose_rows,
    copied_rows,
    unique_rows,
)


@given(awkward_data(), st.data())
@settings(max_examples=60)
def test_as_many_different_rows_as_asked_of_every_class(data, more):
    X, label = data
    n = more.draw(st.integers(2, len(X)))
    rows = choose_rows(X, label, n, random_state=1)
    assert len(rows) == len(set(rows.tolist())) == n
    assert (np.diff(rows) > 0).all()
    for own in (label == -1.0, label == 1.0):
        share = own[rows].sum()
        assert share >= 1
        assert abs(share - n * own.mean()) <= 1 or share in (1, own.sum())
    np.testing.assert_array_equal(rows, choose_rows(X, label, n, random_state=1))
    assert len(np.unique(centres.choose_share(label, n, np.random.default_rng(1)))) == n


def test_the_rows_cover_their_class_better_than_random_ones():
    X, label = blobs(600, n_features=4, seed=1)
    rng = np.random.default_rng(0)

    def radius(rows):
        gaps = [cdist(X[label == c], X[rows][label[rows] == c]).min(axis=1) for c in (-1.0, 1.0)]
        return np.mean(gaps)

    chosen = [radius(choose_rows(X, label, 30, random_state=k)) for k in range(5)]
    at_random = [radius(rng.choice(600, 30, replace=False)) for _ in range(20)]
    assert np.mean(chosen) < np.mean(at_random)


def test_rows_of_one_hash_are_compared_whole(monkeypatch):
    X = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    same = SimpleNamespace(normal=lambda size: np.full(size, 1.0))
    monkeypatch.setattr(np.random, "default_rng", lambda seed: same)
    assert [each.tolist() for each in unique_rows(X)] == [[0, 1], [0, 1, 0]]


@given(awkward_data(), st.data())
@settings(max_examples=40)
def test_as_many_means_as_asked_within_the_range_of_their_class(data, more):
    X, label = data
    n = more.draw(st.integers(2, len(X)))
    means, signs = choose_means(X, label, n, random_state=1)
    assert means.shape == (n, X.shape[1])
    assert len(signs) == n
    for each in (-1.0, 1.0):
        assert each in signs
        own, size = X[label == each], np.ptp(X, axis=0).max()
        assert (means[signs == each] >= own.min(axis=0) - 1e-12 * size).all()
        assert (means[signs == each] <= own.max(axis=0) + 1e-12 * size).all()
    np.testing.assert_array_equal(means, choose_means(X, label, n, random_state=1)[0])


def test_each_mean_is_that_of_the_rows_it_is_nearest_to():
    """Lloyd's fixed point, in one class' units and place."""
    X, label = blobs(300, n_features=3, seed=6)
    X = 1e3 + 50.0 * X
    means, signs = choose_means(X, label, 14, random_state=2)
    for each in (-1.0, 1.0):
        own, centres = X[label == each], means[signs == each]
        nearest = cdist(own, centres).argmin(axis=1)
        found = [own[nearest == k].mean(axis=0) for k in range(len(centres))]
        np.testing.assert_allclose(found, centres, rtol=1e-9)


NUMBERS = [(2, 100, 30), (5, 100, 50), (2, 12, 12)]


@pytest.mark.parametrize(("n_classes", "rows", "expected"), NUMBERS)
def test_how_many_means_where_nothing_is_said(n_classes, rows, expected):
    X = np.random.default_rng(0).normal(size=(rows, 2))
    means, classes = choose_means(X, np.arange(rows) % n_classes, random_state=0)
    assert len(means) == expected
    assert len(np.unique(classes)) == n_classes
    few = np.maximum(np.arange(rows) - rows + n_classes, 0)  # classes of one row, but the first
    assert len(np.unique(few[choose_rows(X, few, n_classes)])) == n_classes


def test_of_few_distinct_rows_they_are_the_means():
    X = np.repeat([[0.0, 1.0], [2.0, 3.0]], 10, axis=0)
    means, none = choose_means(X, None, 2, random_state=0)
    assert none is None
    assert sorted(map(tuple, means)) == [(0.0, 1.0), (2.0, 3.0)]


@pytest.mark.fixed_seeds  # elsewhere two are as near but for rounding
def test_seeds_and_means_are_those_of_scikit_learn():
    X = np.random.default_rng(1).normal(size=(90, 3))
    for size in (1, 7, 30):
        seeds = centres._seeds(X, size, np.random.RandomState(3))
        np.testing.assert_array_equal(seeds, kmeans_plusplus(X, size, random_state=3)[1])
        wanted = KMeans(size, init=X[seeds], n_init=1).fit(X).cluster_centers_
        np.testing.assert_allclose(centres._lloyd(X, X[seeds]), wanted, atol=1e-12)


SHARES = [([50, 30, 17, 3], [5, 3, 2, 1]), ([2, 3, 1], [2, 2, 1])]


@pytest.mark.parametrize(("sizes", "shares"), SHARES)
def test_the_largest_remainders_have_one_more(sizes, shares):
    label = np.repeat(np.arange(len(sizes)), sizes)
    rows = choose_rows(blobs(len(label))[0], label, sum(shares))
    assert np.bincount(label[rows]).tolist() == shares


def test_signs_are_the_labels_of_the_chosen_rows():
    X, label = blobs(40, seed=2)
    centres, signs = choose_basis(X, np.where(label > 0, "yes", "no"), 11, random_state=3)
    for centre, sign in zip(centres, signs, strict=True):
        assert label[np.flatnonzero((centre == X).all(axis=1))[0]] == sign


def test_what_an_argument_stands_for():
    X, label = blobs(30, seed=3)
    every = as_centres(None, X, label)
    np.testing.assert_array_equal(every.points, X)
    np.testing.assert_array_equal(every.sign, label)
    few = as_centres(7, X, label)
    np.testing.assert_array_equal(few.points, X[few.rows])
    np.testing.assert_array_equal(few.sign, label[few.rows])
    given_ = as_centres((np.vstack([X[[3, 8]], X[:1] + 5.0]), [1, -1, 1]), X, label)
    assert given_.rows.tolist() == [3, 8, -1]
    assert given_.sign.tolist() == [1, -1, 1]
    assert len(as_centres(X[:2], X, None)) == 2
    # a basis goes with its row, other centres stay
    known = np.arange(1, 30, 2)
    np.testing.assert_array_equal(every.columns_of(known), known)
    assert set(few.rows[few.columns_of(known)]) == set(few.rows) & set(known.tolist())
    assert given_.columns_of(known).tolist() == [0, 2]


def test_centres_are_recognised_among_equal_rows_and_signed_zeros():
    X = np.array([[0.0, 1.0, 0.0], [2.0, 3.0, 0.0], [2.0, 3.0, 0.0]])
    points = np.array([[2.0, 3.0 + 1e-12, 0.0], [-0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])  # rounding
    for unit in (1.0, 1e-15):
        found = centres.Centres.among(unit * X, unit * points, np.ones(3))
        assert found.rows.tolist() == [1, 0, -1]
    assert centres.Centres.among(X, X, np.ones(3)).rows.tolist() == [0, 1, 2]


BAD_ARGUMENTS = [
    (lambda X, y: choose_basis(X, y, 1), "n_basis=1; needed a whole number from 2, the classes"),
    (lambda X, y: choose_basis(X, y, 31), "to 30, the rows"),
    (lambda X, y: choose_basis(X, y, 5, method="best"), "method='best' is unknown"),
    (lambda X, y: as_centres(X[:5], X, y), r"or \(centres, signs\) as of choose_basis"),
    (lambda X, y: as_centres((X[:5], [1, 1]), X, y), "signs"),
    (lambda X, y: as_centres(X[:5, :1], X, None), "basis has"),
]


@pytest.mark.parametrize(("call", "words"), BAD_ARGUMENTS)
def test_bad_arguments_are_named(call, words):
    X, label = blobs(30, seed=4)
    refused(words, call, X, label)


def test_rows_of_few_values_and_either_label_are_no_copies():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, size=(200, 3)).astype(float)
    y = rng.random(200) < (0.2 + 0.2 * X.sum(axis=1))
    for found in copied_rows(X, y):
        np.testing.assert_array_equal(found, np.arange(200))
    # as few equal rows with another label do not change what copies are
    X, y = np.repeat(rng.normal(size=(60, 2)), 3, axis=0), np.repeat(rng.random(60) < 0.5, 3)
    y[:2] = [False, True]
    first, copies = copied_rows(X, y)
    assert len(first) == 61
    np.testing.assert_array_equal(X[first][copies], X)
    np.testing.assert_array_equal(y[first][copies], y)


@pytest.mark.parametrize("n", [1, 7, 400])
def test_unique_rows_are_those_of_numpy(n):
    rng = np.random.default_rng(n)
    rows = rng.integers(0, 3, (n, 2)) * 10.0 ** rng.integers(-6, 6)
    first, copies = unique_rows(rows)
    assert len(first) == len(np.unique(rows, axis=0))
    assert (np.diff(first) > 0).all()
    np.testing.assert_array_equal(rows[first][copies], rows)
    assert len(unique_rows(rows * (1 + 1e-13 * rng.normal(size=rows.shape)))[0]) == len(first)
