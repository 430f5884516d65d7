"""Checks of arguments, and dataclasses that cannot be changed."""

import dataclasses
import importlib
import pkgutil
import re

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from problems import refused

from pcvm_pymc import core
from pcvm_pymc.core.pieces import validation
from pcvm_pymc.core.pieces.validation import as_signs, as_targets


def test_signs_are_numbers_of_the_shape_that_is_asked_for():
    np.testing.assert_array_equal(as_signs([1, -1, 1], 3), [1.0, -1.0, 1.0])
    np.testing.assert_array_equal(as_signs([[1, -1]], 1, 2), [[1.0, -1.0]])


OTHER_SIGNS = [
    ([1, -1], (3,), "signs has shape (2,); needed (3,), one for each basis"),
    ([1, -1], (2, 3), "signs has shape (2,); needed (2, 3), one for each basis and class"),
    ([0, 1, 1], (3,), "signs has values [0.0, 1.0]; needed only -1 and +1 (2 * y - 1 for 0/1)"),
    (np.arange(9.0), (9,), "signs has values [0.0, 1.0, 2.0, 3.0, 4.0]; needed only -1 and +1"),
]


@pytest.mark.parametrize(("signs", "shape", "words"), OTHER_SIGNS)
def test_other_signs_are_refused(signs, shape, words):
    end = "$" if "basis" in words else ""
    refused("^" + re.escape(words) + end, as_signs, signs, *shape)


real, whole = validation.check_real, validation.check_whole
RANGES = [
    (real, {}, [0.5, 2], [0.0, np.inf, True, "1"], "a positive finite number"),
    (real, {"closed": True}, [0.0], [-1.0, np.nan], "a finite number of at least 0"),
    (real, {"above": 2.0}, [2.5], [2.0], "a finite number above 2"),
    (real, {"above": -np.inf}, [-3.0], [-np.inf, None], "a finite number"),
    (real, {"below": 1.0}, [0.5], [0.0, 1.0], "a number from 0 to 1, ends excluded"),
    (real, {"below": 1, "closed": True}, [0, 1], [2], "a number from 0 to 1, ends included"),
    (real, {"below": 1, "closed": "above"}, [0], [1], "a number from 0 to 1, 1 excluded"),
    (whole, {"least": 1}, [1], [0, 1.0, True, None], "a whole number of at least 1"),
    (whole, {"least": 1, "optional": True}, [None], [0], "a whole number of at least 1 or None"),
    (validation.check_instance, {"kinds": str, "needed": "text"}, ["1"], [1, None], "text"),
]


@pytest.mark.parametrize(("check", "more", "inside", "outside", "needed"), RANGES)
def test_what_is_outside_of_a_range_is_named(check, more, inside, outside, needed):
    for each in inside:
        check("share", each, **more)
    for each in outside:
        words = re.escape(f"share={each!r}; needed {needed}")
        refused(f"^{words}$", check, "share", each, **more)


def test_unknown_values_and_seeds():
    known = 1.0, np.dtype(float), None
    assert not any(map(validation.is_unknown, known))
    assert all(map(validation.is_unknown, (np.nan, np.float32(np.nan))))
    assert len({validation.as_seed(np.random.RandomState(k)) for k in range(99)}) == 99


def test_values_whose_squares_are_no_numbers_are_named():
    words = r"^X has the value -1e\+200 in row 1, column 0; needed values up"
    refused(words, validation.as_numbers, [[0.0, 1.0], [-1e200, 0.0]], "X")
    for each in (np.ma.masked_array([1.0, 1e200], False), np.array([1, 1e200], dtype=object)):
        np.testing.assert_array_equal(validation.as_numbers(each, "X"), [1.0, 1e200])


OTHER_LABELS = [
    (scipy.sparse.csr_array(np.eye(2)), "y is sparse"),
    (np.ma.masked_array([1, 2], [True, False]), "y has 1 masked"),
    (np.zeros(2, dtype=[("a", int)]), "y has records as labels"),
    ([1j, 1.0], "Complex data not supported: y has complex labels"),
    (["a", pd.NA], r"y has labels that are NaN, infinite or missing \(1\)"),
    ([1, 1], r"Only binary .* y has 1 class\(es\) \(1\); needed exactly two$"),
    (range(5), r"Only binary .* y has 5 class\(es\) \(0, 1, 2, 3, 4\); needed exactly two; for"),
]


@pytest.mark.parametrize(("labels", "words"), OTHER_LABELS)
def test_other_labels_are_named(labels, words):
    refused("^" + words, validation.as_labels, labels, np.shape(labels)[0])
    assert validation.present_labels(["a", "b"]).dtype.kind == "U"


@pytest.mark.parametrize("code", [-1, 0, 1])
def test_a_class_alone_is_known_by_its_code(code):
    label, classes = validation.as_labels([code], 1, one_class=True)
    assert (label[0], *classes) == (2 * (code > 0) - 1, -1 if code < 0 else 0, 1)


def test_a_single_fraction_among_labels_is_named():
    refused("such as 0.5;", validation.present_labels, [0.0, 1.0, 0.5])
    refused("labels of the type.s. int, str, such as 1;", validation.present_labels, [1, "a"])
    # names of two classes stay as they are, where one would do
    assert validation.as_labels([True, False], 2, one_class=True)[1].dtype == bool
    assert validation.shown(type("Mute", (), {"__repr__": lambda _: ""})()) == "<Mute>"
    validation.warn_constant(np.ones((1, 2)))  # a single row is no fault


def test_tables_that_are_hardly_meant_are_warned_of():
    with pytest.warns(validation.InputWarning, match="rows that are all the same"):
        validation.warn_constant(np.array([[1.0, 2.0], [1.0, 2.0]]))
    # the last two are constant, one of them but for rounding
    X = np.array([[0.0, 1.0, 0.0, 1e6], [50.0, 2.0, 0.0, 1e6 + 1e-7]])
    with pytest.warns(validation.InputWarning, match="column 0 .* 25, column 1 0.5, so"):
        validation.warn_unscaled(X)
    validation.warn_unscaled(X * [0.99, 1.0, 1.0, 1.0])


def test_dataclasses_are_frozen():
    found = set()
    for each in pkgutil.walk_packages(core.__path__, f"{core.__name__}."):
        for kind in vars(importlib.import_module(each.name)).values():
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                found.add(kind)
    assert len(found) > 40
    # chains and races move their state in place
    changing = {each.__name__ for each in found if not each.__dataclass_params__.frozen}
    assert changing == {"GibbsState", "Race"}


@pytest.mark.parametrize("size", [1e-80, 1e80, 1e308])
def test_targets_whose_fourth_powers_are_no_numbers_are_refused(size):
    """From 1e74 on fits of the evidence were constants."""
    words = "y has targets that spread over .*: give them in another"
    refused(words, as_targets, size * np.array([0.0, 0.5, 1.0]), 3)
    assert as_targets([0.0, 0.0], 2).tolist() == [0.0, 0.0]
