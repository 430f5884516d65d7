"""Inputs and labels in containers of any kind: what a plain array gives, and names of rows and columns."""

import datetime
import mmap
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from problems import basis_of, blobs, map_result, refused
from scipy import sparse
from sklearn.base import clone

import pcvm_pymc as pcvm
from pcvm_pymc.assessment.held_out import coded
from pcvm_pymc.core.pieces.names import check_same_rows
from pcvm_pymc.inference.results import classes_of

pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
da, dd = pytest.importorskip("dask.array"), pytest.importorskip("dask.dataframe")
pytestmark = pytest.mark.filterwarnings("ignore:X does not have valid", "ignore:Determining the")

X, LABEL = blobs(20, seed=3)
X, NAMES = np.round(8 * X) / 8, ["height", "weight"]  # exact in 16 bits
WHOLE, SIGN, TEXT = np.round(X), X > 0, np.dtypes.StringDType()
COLUMNS, MIXED = dict(zip(NAMES, X.T, strict=True)), {"height": X[:, 0], "weight": SIGN[:, 1]}
TABLE, SIGNED, DAYS = pd.DataFrame(COLUMNS), pd.DataFrame(MIXED), pd.date_range("2020", periods=20)
ARRAY = xr.DataArray(X, dims=("place", "kind"), coords={"kind": NAMES, "place": np.arange(20) + 7})
MAPPED = np.frombuffer(mmap.mmap(-1, X.nbytes), dtype=float).reshape(X.shape)
FIXED = X.copy()
MAPPED[:], FIXED.flags.writeable = X, False
SAME = [
    *(np.asfortranarray(X), FIXED, MAPPED, X[::-1][::-1], X.tolist(), tuple(X), np.matrix(X)),
    *(X.astype(kind) for kind in ("f2", "f4", ">f8", "g", "O")),
    *(WHOLE.astype(int), (WHOLE - WHOLE.min()).astype("u1"), SIGN, np.ma.masked_array(X, False)),
    *(TABLE.map(Decimal), TABLE.set_axis(X[:, 0]), TABLE.set_axis([("a", 1), ("a", 2)], axis=1)),
    *(TABLE.astype(kind) for kind in ("Float64", "double[pyarrow]", object, pd.SparseDtype(float))),
    *(pd.DataFrame(WHOLE).astype(int).astype(kind) for kind in ("Int64", "int8[pyarrow]")),
    *(SIGNED, SIGNED.astype({"weight": "boolean"}), pl.DataFrame(COLUMNS), pl.DataFrame(MIXED)),
    *(pa.table(COLUMNS), pa.table(MIXED), pa.RecordBatch.from_pydict(COLUMNS), ARRAY, xr.DataArray(X)),
]  # fmt: skip
CELL = np.arange(20)[:, None] == [3, -1]
HOLED, MASKED = TABLE.mask(CELL), np.ma.array(X, mask=CELL)
MISSING = [
    *(HOLED, HOLED.astype("Float64"), HOLED.astype("double[pyarrow]"), HOLED.to_numpy().tolist()),
    *(TABLE.astype(object).mask(CELL, each) for each in (None, pd.NA, np.nan)),
    *((TABLE > 0).astype(kind).mask(CELL) for kind in ("boolean", "bool[pyarrow]")),
    *(pl.from_pandas(HOLED), pl.from_pandas((TABLE > 0).astype("boolean").mask(CELL))),
    *(pa.table(HOLED), pa.table((TABLE > 0).astype("boolean").mask(CELL)), xr.DataArray(HOLED)),
]
NO_NUMBERS = "X has values that are not numbers .{}"
REFUSED = [
    *((each, "X has 1 masked") for each in (MASKED, [*MASKED])),
    *((kind(X), r"X is sparse; .* X.toarray\(\)") for kind in (sparse.csr_array, sparse.coo_matrix)),
    *((TABLE.assign(weight=each), "X has dates") for each in (DAYS, DAYS.tz_localize("UTC"), DAYS.date)),
    *((kind({"day": DAYS.date, "b": X[:, 1]}), "X has dates") for kind in (pl.DataFrame, pa.table)),
    *((X.astype(kind), NO_NUMBERS.format("text")) for kind in ("U", "S", TEXT)),
    *((each, NO_NUMBERS.format("str")) for each in (TABLE.astype(str), pa.table({"a": ["x"]}))),
    (np.rec.fromarrays(X.T, names="a,b"), NO_NUMBERS.format("records: .*structured_to_unstructured")),
    (pd.Series(X.tolist()), NO_NUMBERS.format("a list as one value: np.stack")),
    (pl.LazyFrame(COLUMNS), NO_NUMBERS.format("a LazyFrame: of what is lazy, .collect")),
    *((COLUMNS, NO_NUMBERS.format("a dict")), (xr.Dataset(), NO_NUMBERS.format(".*to_dataarray"))),
    *((each, "Complex data not supported: X") for each in (X + 0j, TABLE + 0j)),
    *((each, r"X has 1 dim.*reshape\(-1, 1\)") for each in (TABLE.height, ARRAY[:, 0], pl.Series(X[:, 0]))),
    (TABLE.set_axis(["a", "a"], axis=1), "X has the column name 'a'; needed texts, and each once"),
    (TABLE.set_axis(["a", 1], axis=1), r"X has the column name 1; needed texts, and each once"),
]  # fmt: skip


def _classified(rows, new):
    return pcvm.PCVMClassifier(width=1.0, estimation="em").fit(rows, LABEL).predict_proba(new)


def _regressed(rows, new):
    return pcvm.RVMRegressor(width=1.0, std="weights").fit(rows, X[:, 0]).predict(new)


def _modelled(rows, new):
    model = pcvm.pcvm_model(rows, LABEL, width=1.0)
    return np.hstack([basis_of(model), pcvm.new_data(model, new)["new_data"]["X"]])


@pytest.mark.parametrize("used", [_classified, _regressed, _modelled])
def test_containers_are_plain_arrays_or_refused_by_name(used):
    for rows in SAME:
        plain = np.array(rows, dtype=float)
        for new in (rows, plain):
            np.testing.assert_array_equal(used(rows, new), used(plain, plain), str(type(rows)))
    for rows in MISSING:
        words = "X.* has 1 value.s. that are missing, NaN .* first in row 3; drop"
        if used is _modelled:
            refused(words, used, rows, X)
            refused(words, used, X, rows)
            continue
        values = np.asarray(rows, dtype=object)
        plain = np.where(pd.isna(values), np.nan, values).astype(float)
        np.testing.assert_array_equal(used(rows, rows), used(plain, plain), str(type(rows)))
    for rows, words in REFUSED:
        refused(words, used, rows, X)
        refused(words.replace("X", "X(_new)?"), used, X, rows)


def test_names_and_rows_of_a_table_are_those_of_its_coordinates():
    tables, turned = [each(COLUMNS) for each in (pa.table, pl.DataFrame)], ARRAY[:, ::-1]
    for rows, other in ((ARRAY, turned), *((each, each.select(NAMES[::-1])) for each in tables)):
        model, first = pcvm.pcvm_model(rows, LABEL, width=1.0), 7 * (rows is ARRAY)
        assert list(model.coords["feature"]) == NAMES
        assert list(model.coords["obs"]) == [*range(first, first + 20)]
        refused("another order", pcvm.new_data, model, other)
        fitted = pcvm.PCVMClassifier(width=1.0, estimation="em").fit(rows, LABEL)
        assert fitted.feature_names_in_.tolist() == NAMES
        refused("names must be in the same order", fitted.predict, turned)


LAZY, OF_DASK = da.from_array(X, chunks=(7, 1)), {"width": 1.0, "basis": (X[:6], LABEL[:6])}
FRAME, LAZY_Y = dd.from_pandas(TABLE.assign(y=LABEL), npartitions=3), da.from_array(LABEL)


@pytest.mark.parametrize("rows", [LAZY, LAZY.astype(object), ARRAY.copy(data=LAZY), FRAME[NAMES]])
def test_what_is_lazy_is_asked_of_dask(rows):
    model = pcvm.PCVMClassifier(**OF_DASK, estimation="em", options=pcvm.EMOptions(tol=1e-9))
    plain = model.fit(X, LABEL).predict_proba(X)
    for y in (LABEL, LABEL.astype(object), LAZY_Y, xr.DataArray(LAZY_Y), FRAME.y):
        found = model.fit(rows, y).predict_proba(rows)
        assert isinstance(found, da.Array)
        for each in (found.compute(), model.predict_proba(X)):
            np.testing.assert_allclose(each, plain, atol=1e-7)
    words = pcvm.RVMClassifier(width=1.0, basis=X[:6])
    words.fit(rows, da.from_array(WORDS.astype(object), chunks=7))
    assert words.classes_.tolist() == ["no", "yes"]
    refused("X has 3 features", model.predict, da.ones((4, 3)))
    if not isinstance(rows, da.Array):
        assert model.feature_names_in_.tolist() == NAMES
        refused("same order", model.predict, FRAME[NAMES[::-1]])


OTHER_DASK = [
    (da.from_array(HOLED.to_numpy()), LABEL, "X has 1 value.s. .* first in row 3; drop"),
    (LAZY.astype(str).astype(object), LABEL, NO_NUMBERS.format("str")),
    (da.from_array(MASKED, asarray=False), LABEL, "X has 1 masked"),
    (xr.Dataset({"a": ("b", LAZY[:, 0])}), LABEL, "X=<Dataset>; needed a Dask array or data frame"),
    *((LAZY, each, "y has labels that are NaN, infinite or missing .1")
      for each in (da.where(CELL[:, 0], np.nan, LABEL), np.where(CELL[:, 0], None, LABEL))),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "y", "words"), OTHER_DASK)
@pytest.mark.parametrize("kind", [pcvm.PCVMClassifier, pcvm.MPCVMClassifier])
def test_what_dask_arrays_cannot_have_is_named(kind, rows, y, words):
    refused(words, kind(width=1.0, basis=6, estimation="em").fit, rows, y)


CODE, WORDS = (LABEL > 0).astype(int), np.where(LABEL > 0, "yes", "no")
LABELS = [
    (0, [CODE.astype(object), pl.Series(CODE), pa.array(CODE), xr.DataArray(CODE), CODE.tolist()]),
    (0, [pd.Series(CODE, dtype=each) for each in ("Int64", "int8[pyarrow]", "category")]),
    (0.0, [CODE.astype(each) for each in ("f2", "f4")] + [CODE.astype(float).astype(object)]),
    (False, [CODE.astype(bool), CODE.astype(bool).astype(object), (CODE > 0).tolist()]),
    ("no", [*(WORDS.astype(each) for each in ("U", object, TEXT)), pl.Series(WORDS.tolist())]),
]


SINGLE = "y has labels of the type.s. {}, such as .*; needed text alone, bools alone, or"
OTHER_LABELS = [
    *(([None, 0], "y has labels that are"), ([np.nan, 0], "y has labels"), ([pd.NA, 0], "y has labels")),
    *(([one, "no"], SINGLE.format(f"{type(one).__name__}, str")) for one in (1, True, 0.5)),
    *(([one, 0], SINGLE.format("bool, int")) for one in (True, False)),
    *(([kind(0), kind(1)], SINGLE.format(kind.__name__)) for kind in (Decimal, Fraction, complex)),
    *(([each, each], SINGLE.format("date|bytes|tuple|int")) for each in (datetime.date.max, b"a", 2**70)),
    ([0.5, 1.0], "y has fractions as labels, such as 0.5"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "given"), LABELS)
def test_labels_come_back_as_they_were(first, given):
    model, regressor = pcvm.PCVMClassifier(width=1.0), pcvm.RVMRegressor(width=1.0, std="weights")
    plain, score = model.fit(X, CODE).predict_proba(X), model.score(X, CODE)
    targets = regressor.fit(X, CODE).predict(X)
    for y in given:
        np.testing.assert_array_equal(model.fit(X, y).predict_proba(X), plain)
        assert model.score(X, y) == (model.predict(X) == np.array(y)).mean() == score
        assert repr(model.classes_.tolist()[0]) == repr(first)
        declared = pcvm.pcvm_model(X, y, width=1.0)
        assert (declared["y"].get_value() == CODE).all()
        assert declared.coords["class"][0] == first
        if first != "no":
            np.testing.assert_array_equal(regressor.fit(X, y).predict(X), targets)


@pytest.mark.parametrize(("pair", "words"), OTHER_LABELS)
def test_labels_without_a_plain_meaning_are_named(pair, words):
    y = np.array([pair[k] for k in np.arange(20) % 2] + [None], dtype=object)[:-1]
    for kind in (pcvm.MPCVMClassifier(width=1.0).fit, pcvm.pcvm_model):
        refused(words, kind, X, y)


def test_targets_that_are_missing_are_counted():
    words = "y has 1 value.s. that are missing, NaN or infinite, the first in row 3; drop"
    for y in (HOLED.height, HOLED.height.astype("Float64"), pl.from_pandas(HOLED.height)):
        for kind in (pcvm.RVMRegressor().fit, pcvm.rvm_model):
            refused(words, kind, X, y)


# --- names of columns and rows ------------------------------------------------------------------

ROWS = [f"p{i}" for i in range(20)]
NAMED, Y = TABLE.set_axis(ROWS), pd.Series(np.where(LABEL > 0, "ill", "well"), index=ROWS)
OTHER_COLUMNS = [
    (NAMED[["weight", "height"]], r"another order than the training rows.*X_new\[\['height'"),
    (NAMED[["height"]], r"lacks the columns \['weight'\]"),
    (NAMED.assign(age=1.0), r"has columns that the training rows lack, \['age'\]"),
    (NAMED.rename(columns={"height": "h"}), r"lacks the columns \['height'\] and has columns"),
]


def test_names_of_a_table_are_coordinates_of_model_result_and_predictions():
    model = pcvm.pcvm_model(NAMED, Y, width=1.2)
    result = map_result(model)
    assert list(model.coords["feature"]) == NAMES
    assert list(model.coords["obs"]) == ROWS
    assert list(pcvm.new_data(model, NAMED[3:6])["coords"]["obs"]) == ROWS[3:6]
    assert result["posterior"]["latent"].sel(obs="p3").size == 1
    assert result["constant_data"]["centres"].sel(feature="weight").sizes["basis"] == 20
    assert list(pcvm.pcvm_model(X, LABEL).coords["feature"]) == [0, 1]
    found, by_array = (pcvm.predict(result, rows[:4])["predictions"] for rows in (NAMED, X))
    assert found["obs"].values.tolist() == ROWS[:4]
    assert by_array["obs"].values.tolist() == [0, 1, 2, 3]
    assert found["probability"].coords["class"].item() == "well"
    np.testing.assert_array_equal(by_array["probability"], found["probability"])
    for table, words in OTHER_COLUMNS:
        refused(words, pcvm.predict, result, table)
        refused(words, pcvm.new_data, model, table)


def objects(*values):
    """Return an index of objects over and over; tuples stay what they are."""
    return pd.Index([values[i % len(values)] for i in range(20)], dtype=object, tupleize_cols=False)


OF_UTC = "2020-01-0{} 00:00:00+00:00".format
#: what is kept as it is
KEPT = {
    "dates": DAYS,
    "days": DAYS.as_unit("s"),
    "nanoseconds": pd.date_range("2020", periods=20, freq="7ns", unit="ns"),
    "the year 3000": pd.date_range("3000", periods=20, freq="YS", unit="s"),
    "microseconds of 3000": pd.date_range("3000", periods=20, freq="13us", unit="us"),
    "a missing date": DAYS[:-1].append(pd.DatetimeIndex([pd.NaT])),
    "spans": pd.timedelta_range("1h", periods=20, freq="7s"),
    "categories": pd.CategoricalIndex(list("ab") * 10),
    "nullable": pd.Index(range(20), dtype="Int64"),
    "numbers as objects": objects(3, 1),
    "bool": objects(True, False),
    "unsigned": pd.Index(np.arange(20, dtype="u8") + 2**63),
    "nan": pd.Index([np.nan, *[0.5] * 19]),
    "repeated": pd.Index([1, 2] * 10),
    "empty text": pd.Index(["", "\u00e9"] * 10),
}
#: what becomes text, and its first two values
AS_TEXT = {
    "time zone": (DAYS.tz_localize("UTC"), OF_UTC(1), OF_UTC(2)),
    "periods": (pd.period_range("2020", periods=20, freq="M"), "2020-01", "2020-02"),
    "intervals": (pd.interval_range(0, 20), "(0, 1]", "(1, 2]"),
    "date": (objects(datetime.date(2020, 1, 2)), "2020-01-02", "2020-01-02"),
    "None": (objects("a", None), "a", "None"),
    "missing": (objects(pd.NA, "a"), "<NA>", "a"),
    "mixed": (objects(1, "a", 2.5, None), "1", "a"),
    "Decimal": (objects(Decimal("1.10"), Decimal("2")), "1.10", "2"),
    "bytes": (objects(b"a", b"\xff"), "b'a'", "b'\\xff'"),
    "levels": (pd.MultiIndex.from_product([["a", "b"], range(10)]), "('a', 0)", "('a', 1)"),
    "tuples": (objects(("a", 1), ("b", None)), "('a', 1)", "('b', None)"),
    "huge": (objects(2**70, 3), str(2**70), "3"),
    "complex": (objects(1j, 2.0), "1j", "2.0"),
}
INDEX = {name: (index, None) for name, index in KEPT.items()}
INDEX |= {name: (index, text) for name, (index, *text) in AS_TEXT.items()}


@pytest.mark.parametrize("name", INDEX)
def test_any_index_goes_from_the_model_to_the_file_and_back(name, tmp_path, caplog):
    index, text = INDEX[name]
    table = TABLE.set_axis(index)
    model = pcvm.pcvm_model(table, LABEL, width=1.2)
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
        for tree, whole, group in ((back, mode, "posterior"), (again, found, "predictions")):
            rows, wanted = (each[group]["obs"].values for each in (tree, whole))
            np.testing.assert_array_equal(rows.astype(wanted.dtype), wanted)  # of any unit of dates
        np.testing.assert_array_equal(*(each["predictions"]["latent"] for each in (again, found)))


@pytest.mark.parametrize("labels", [DAYS, objects(2, 10), objects(False, True)])
@pytest.mark.parametrize("several", [False, True])
def test_labels_of_any_kind_come_back(labels, several, tmp_path):
    pair, code = labels[:2].to_numpy(), (LABEL > 0).astype(int)
    y = pair[code]
    mode = map_result((pcvm.mpcvm_model if several else pcvm.pcvm_model)(X, y, width=1.2))
    for each in (mode, pcvm.load(pcvm.save(mode, tmp_path / "mode.nc"))):
        np.testing.assert_array_equal(classes_of(each), pair)
        greater = np.atleast_1d(pcvm.predict(each, X)["predictions"]["class"].values)[-1]
        assert greater == classes_of(each)[-1]
        np.testing.assert_array_equal(coded(y, classes_of(each), "y", 20), code)


# --- rows in another order ----------------------------------------------------------------------

SEEN = pd.Series(LABEL, index=ROWS)
TURNED, FIXED_SCALE = SEEN[::-1], pcvm.PCVMClassifier(kernel="rbf", width=1.5, scale=1.0)


@pytest.fixture(scope="module")
def fitted():
    """Return a classifier, a MAP result and the draws of a model, of the same rows."""
    model = pcvm.pcvm_model(NAMED, SEEN, width=1.5, basis=8)
    few = {"draws": 10, "tune": 10, "chains": 1, "max_iter": 100}
    draws = pcvm.sample(model, random_seed=0, quiet=True, method="gibbs", **few)
    return clone(FIXED_SCALE).fit(NAMED, SEEN), map_result(model), draws


def latent_function(y):
    with pm.Model():
        return pcvm.pcvm_latent(NAMED, y, width=1.5)


CALLS = {
    "fit": lambda fitted, y: FIXED_SCALE.fit(NAMED, y),
    "sample_weight": lambda fitted, y: FIXED_SCALE.fit(NAMED, SEEN, sample_weight=y.abs()),
    "groups": lambda fitted, y: FIXED_SCALE.fit(NAMED, SEEN, groups=y),
    "score": lambda fitted, y: fitted[0].score(NAMED, y),
    "a regression": lambda fitted, y: pcvm.RVMRegressor().fit(NAMED, y),
    "noise": lambda fitted, y: pcvm.RVMRegressor().fit(NAMED, LABEL, noise=y.abs()),
    "weights": lambda fitted, y: pcvm.RVMRegressor().fit(NAMED, LABEL, sample_weight=y.abs()),
    "noise of a model": lambda fitted, y: pcvm.rvm_model(NAMED, LABEL, noise=y.abs()),
    "select": lambda fitted, y: pcvm.select(NAMED, y, over=("scale",)),
    "select, cv": lambda fitted, y: pcvm.select(NAMED, y, by="cv", widths=[1.0]),
    "choose_basis": lambda fitted, y: pcvm.choose_basis(NAMED, y, 4),
    "a model": lambda fitted, y: pcvm.pcvm_model(NAMED, y, width=1.5),
    "a latent function": lambda fitted, y: latent_function(y),
    "compare": lambda fitted, y: pcvm.compare({"MAP": fitted[1]}, NAMED, y),
    "kfold": lambda fitted, y: pcvm.kfold(fitted[2], NAMED, y, cv=2),
    "loo": lambda fitted, y: pcvm.loo(fitted[0], NAMED, y),
    "project": lambda fitted, y: pcvm.project(fitted[0], NAMED, y),
    "validity": lambda fitted, y: pcvm.validity(
        pcvm.RVMClassifier(width=1.5).fit(NAMED, SEEN), NAMED, y
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_rows_in_another_order_are_refused_by_name(name, fitted):
    refused("has the index of .* in another order, in row 0 ", CALLS[name], fitted, TURNED)


def test_what_is_not_surely_another_order_is_taken_and_the_first_row_that_differs_is_named():
    for labels in (SEEN, LABEL, LABEL.tolist(), SEEN.reset_index(drop=True)[::-1]):
        check_same_rows(NAMED, y=labels, sample_weight=None)
    for rows in (X, TABLE, NAMED[:-1]):  # also a scaler's, which has lost the index
        check_same_rows(rows, y=TURNED)
    index = pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)])
    table, turned = pd.DataFrame(np.eye(3), index), pd.Series(0.0, index[[0, 2, 1]])
    words = r"^w has the index of X_new in another order, in row 1 \('b', 1\) where X_new has \('a', 2\); "
    refused(words, check_same_rows, table, "X_new", w=turned)
    rows = xr.DataArray(np.eye(3), {"day": [3, 1, 2], "column": list("abc")}, ("day", "column"))
    check_same_rows(rows, y=rows[:, 0])
    refused("in row 0 1 where X has 3", check_same_rows, rows, y=rows[:, 0].sortby("day"))
