"""Tables of pandas and polars: names of features and rows are coordinates."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from problems import blobs, map_result, refused

import pcvm_pymc as pcvm
from pcvm_pymc.assessment.held_out import coded
from pcvm_pymc.inference.results import classes_of

X, LABEL = blobs(20, seed=8)
TABLE = pd.DataFrame(X, columns=["height", "weight"], index=[f"p{i}" for i in range(20)])
Y = pd.Series(np.where(LABEL > 0, "ill", "well"), index=TABLE.index)


@pytest.fixture(scope="module")
def result():
    return map_result(pcvm.pcvm_model(TABLE, Y, width=1.2))


def test_names_and_index_are_coordinates_of_model_and_result(result):
    model = pcvm.pcvm_model(TABLE, Y, width=1.2)
    assert list(model.coords["feature"]) == ["height", "weight"]
    assert list(model.coords["obs"]) == list(TABLE.index)
    assert list(pcvm.new_data(model, TABLE.iloc[3:6])["coords"]["obs"]) == ["p3", "p4", "p5"]
    assert result["posterior"]["latent"].sel(obs="p3").size == 1
    assert result["constant_data"]["centres"].sel(feature="weight").sizes["basis"] == 20
    assert list(pcvm.pcvm_model(X, LABEL).coords["feature"]) == [0, 1]


def test_predictions_carry_index_and_class(result):
    found = pcvm.predict(result, TABLE.iloc[:4])["predictions"]
    assert list(found["obs"].values) == ["p0", "p1", "p2", "p3"]
    assert found["probability"].coords["class"].item() == "well"
    by_array = pcvm.predict(result, X[:4])["predictions"]
    np.testing.assert_array_equal(by_array["probability"], found["probability"])
    assert list(by_array["obs"].values) == [0, 1, 2, 3]


OTHER_COLUMNS = [
    (TABLE[["weight", "height"]], r"another order than the training rows.*X_new\[\['height'"),
    (TABLE[["height"]], r"lacks the columns \['weight'\]"),
    (TABLE.assign(age=1.0), r"has columns that the training rows lack, \['age'\]"),
    (TABLE.rename(columns={"height": "h"}), r"lacks the columns \['height'\] and has columns"),
]


@pytest.mark.parametrize(("table", "words"), OTHER_COLUMNS)
def test_other_columns_raise(result, table, words):
    refused(words, pcvm.predict, result, table)
    refused(words, pcvm.new_data, pcvm.pcvm_model(TABLE, Y, width=1.2), table)


N = len(X)


def objects(*values):
    """Return an index of objects over and over; tuples stay what they are."""
    return pd.Index([values[i % len(values)] for i in range(N)], dtype=object, tupleize_cols=False)


DATES, OF_UTC = pd.date_range("2020", periods=N), "2020-01-0{} 00:00:00+00:00".format
#: what is kept as it is
KEPT = {
    "dates": DATES,
    "days": DATES.as_unit("s"),
    "nanoseconds": pd.date_range("2020", periods=N, freq="7ns", unit="ns"),
    "the year 3000": pd.date_range("3000", periods=N, freq="YS", unit="s"),
    "microseconds of 3000": pd.date_range("3000", periods=N, freq="13us", unit="us"),
    "a missing date": DATES[:-1].append(pd.DatetimeIndex([pd.NaT])),
    "spans": pd.timedelta_range("1h", periods=N, freq="7s"),
    "categories": pd.CategoricalIndex(list("ab") * (N // 2)),
    "nullable": pd.Index(range(N), dtype="Int64"),
    "numbers as objects": objects(3, 1),
    "bool": objects(True, False),
    "unsigned": pd.Index(np.arange(N, dtype="u8") + 2**63),
    "nan": pd.Index([np.nan, *[0.5] * (N - 1)]),
    "repeated": pd.Index([1, 2] * (N // 2)),
    "empty text": pd.Index(["", "\u00e9"] * (N // 2)),
}
#: what becomes text, and its first two values
AS_TEXT = {
    "time zone": (DATES.tz_localize("UTC"), OF_UTC(1), OF_UTC(2)),
    "periods": (pd.period_range("2020", periods=N, freq="M"), "2020-01", "2020-02"),
    "intervals": (pd.interval_range(0, N), "(0, 1]", "(1, 2]"),
    "date": (objects(datetime.date(2020, 1, 2)), "2020-01-02", "2020-01-02"),
    "None": (objects("a", None), "a", "None"),
    "missing": (objects(pd.NA, "a"), "<NA>", "a"),
    "mixed": (objects(1, "a", 2.5, None), "1", "a"),
    "Decimal": (objects(Decimal("1.10"), Decimal("2")), "1.10", "2"),
    "bytes": (objects(b"a", b"\xff"), "b'a'", "b'\\xff'"),
    "levels": (pd.MultiIndex.from_product([["a", "b"], range(N // 2)]), "('a', 0)", "('a', 1)"),
    "tuples": (objects(("a", 1), ("b", None)), "('a', 1)", "('b', None)"),
    "huge": (objects(2**70, 3), str(2**70), "3"),
    "complex": (objects(1j, 2.0), "1j", "2.0"),
}
INDEX = {name: (index, None) for name, index in KEPT.items()}
INDEX |= {name: (index, text) for name, (index, *text) in AS_TEXT.items()}


def assert_same_rows(found, wanted):
    """Assert that results have the same coordinates of rows, dates in whichever unit."""
    one, other = (each["obs"].values for each in (found, wanted))
    np.testing.assert_array_equal(one.astype(other.dtype), other)


@pytest.mark.parametrize("name", INDEX)
def test_any_index_goes_from_the_model_to_the_file_and_back(name, tmp_path, caplog):
    index, text = INDEX[name]
    table = TABLE.set_axis(index)
    model = pcvm.pcvm_model(table, Y.to_numpy(), width=1.2)
    said = [each for each in caplog.messages if "the index of X is kept as text" in each]
    assert len(said) == (text is not None)
    if text is None:
        np.testing.assert_array_equal(np.asarray(model.coords["obs"]), np.asarray(index))
    else:
        assert list(model.coords["obs"][:2]) == text
    mode = map_result(model)
    found = pcvm.predict(mode, table)
    for end, other in (("zarr", "zarr"), ("nc", "netcdf")):
        back = pcvm.load(pcvm.save(mode, tmp_path / f"mode.{end}"))
        again = pcvm.load(pcvm.save(pcvm.predict(back, table), tmp_path / f"again.{other}"))
        assert back.attrs == mode.attrs
        assert_same_rows(back["posterior"], mode["posterior"])
        assert_same_rows(again["predictions"], found["predictions"])
        np.testing.assert_array_equal(*(each["predictions"]["latent"] for each in (again, found)))


@pytest.mark.parametrize("labels", [DATES, objects(2, 10), objects(False, True)])
@pytest.mark.parametrize("several", [False, True])
def test_labels_of_any_kind_come_back(labels, several, tmp_path):
    pair, code = labels[:2].to_numpy(), (LABEL > 0).astype(int)
    y = pair[code]
    mode = map_result((pcvm.mpcvm_model if several else pcvm.pcvm_model)(X, y, width=1.2))
    for each in (mode, pcvm.load(pcvm.save(mode, tmp_path / "mode.nc"))):
        np.testing.assert_array_equal(classes_of(each), pair)
        greater = np.atleast_1d(pcvm.predict(each, X)["predictions"]["class"].values)[-1]
        assert greater == classes_of(each)[-1]
        np.testing.assert_array_equal(coded(y, classes_of(each), "y", N), code)
