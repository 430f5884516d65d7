"""The csv files of `pcvm compare`."""

import numpy as np
import pandas as pd
import pytest
from problems import refused

from pcvm_pymc.experiments.errors import UsageError
from pcvm_pymc.experiments.tables import read_table

ROWS = 12
NUMBERS = [f"{i}.5" for i in range(ROWS)]
LABELS = np.resize(["007", "1.0", "007"], ROWS)


def written(path, columns, sep=",", end="\n"):
    """Write the fields of columns as they are, lists or one for all rows."""
    values = (np.resize(each, ROWS) for each in columns.values())
    fields = [list(columns), *zip(*values, strict=True)]
    path.write_text(end.join(sep.join(map(str, row)) for row in fields) + end, encoding="utf-8")
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.csv"


SPELLINGS = {
    "plain": {},
    "semicolons": {"sep": ";"},
    "tabs": {"sep": "\t"},
    "returns": {"end": "\r\n"},
    "blank lines": {"end": "\n\n"},
    "blanks after commas": {"sep": ", "},
}


@pytest.mark.parametrize("how", SPELLINGS.values(), ids=SPELLINGS)
def test_texts_stay_as_they_are_written_and_numbers_become_numbers(path, how):
    colours = np.resize(["red", "one", "NA", '"a, b"', ""], ROWS).tolist()
    weights = ["-1e3", "", *NUMBERS[2:]]
    written(path, {"höhe": NUMBERS, "weight": weights, "colour": colours, "sort": LABELS}, **how)
    sep = {"\t": "tab", ", ": ","}.get(how.get("sep", ","), how.get("sep", ","))
    X, label = read_table(path, sep=sep)
    assert label.tolist() == LABELS.tolist()
    assert list(X) == ["höhe", "weight", "colour"]
    assert X["höhe"].tolist() == [float(each) for each in NUMBERS]
    assert X["weight"].isna().sum() == 1
    assert X["weight"].iloc[0] == -1000.0
    assert X["colour"].dtype == "category"
    assert X["colour"].cat.categories.tolist() == ["NA", "a, b", "one", "red"]
    assert X["colour"].isna().sum() == colours.count("")


def test_the_target_may_be_any_column_and_marks_of_missing_fields_are_named(path):
    marks = ["?", *NUMBERS[1:]]
    written(path, {"sort": LABELS, "weight": marks, "colour": np.resize(["NA", "red"], ROWS)})
    X, label = read_table(path, "sort", missing=["?", "NA"])
    assert label.unique().tolist() == ["007", "1.0"]
    assert X.isna().sum().tolist() == [1, 6]
    wanted = pd.Series(marks, X.index).eq("?")
    pd.testing.assert_series_equal(X["weight"].isna(), wanted, check_names=False)


def head(*lines):
    return ("\n".join(("a,b,sort", *lines)) + "\n").encode()


XS = ["1,2,x"] * 9
TABLES = {
    "short": (head("1,2,x", "1,x"), "line 3 .* 2 fields, line 1 has 3; leave a missing .* empty"),
    "long": (head("1,2,x", "", "1,2,3,x"), "Expected 3 .* line 4, saw 4.*needed text in UTF-8"),
    "open quotation": (head('1,"2,x'), r"cannot be read as CSV \(unexpected end of data\)"),
    "empty": (b"", r"cannot be read as CSV \(No columns to parse"),
    "header alone": (head(), "has a header but no rows"),
    "one column": (b"a;b\n1;2\n", "has 1 column; needed .* columns that ',' separates .*--sep"),
    "binary": (b"PK\x03\x04\xff\xfe", "cannot be read as CSV .*needed text in UTF-8"),
    "zeros": (head("1,\0,x"), "it has bytes that are no text"),
    "same names": (b"a,a,sort\n1,2,x\n", r"has 2 column\(s\) called 'a'; needed a name of its own"),
    "no name": (b",a,sort\n0,2,x\n", r"has 1 column\(s\) called ''; .*index=False"),
    "no label": (head("1,2,x", "1,2,", "1,2,"), r"has 2 rows without a label: sort \(lines 3, 4\)"),
    "one class": (head(*XS), r"has 1 classes \(x\); needed 2 to 30. Name another column"),
    "rare class": (head("1,2,y", *XS), r"class y of .* has 1 row\(s\); needed at least 4"),
}


@pytest.mark.parametrize(("content", "words"), TABLES.values(), ids=TABLES)
def test_what_is_no_table_of_classes_is_refused(path, content, words):
    path.write_bytes(content)
    refused(words, read_table, path, error=UsageError)


COLUMNS = {
    "a mark": (["?", *NUMBERS[1:]], r"has numbers and 1 field\(s\) .*'\?' \(line 2\).*--missing"),
    "words": (["1", "one"], r"has numbers and 6 field\(s\) that are none, as 'one' \(lines 3, 5, "),
    "infinite": (["inf", *NUMBERS[1:]], r"has numbers and 1 field\(s\) that are none, as 'inf'"),
    "decimal commas": (['"1,5"', '"2,5"'], "that are none, as '1,5' .*with a decimal point"),
    "nothing": ([""], "column 'x' of .* has no value; remove it"),
    "names": ([f"n{i}" for i in range(60)], "has 60 different texts, more than 50: no categories"),
}


@pytest.mark.parametrize(("fields", "words"), COLUMNS.values(), ids=COLUMNS)
def test_columns_that_are_neither_numbers_nor_categories_are_refused(
    path, monkeypatch, fields, words
):
    monkeypatch.setitem(globals(), "ROWS", max(ROWS, len(fields)))
    written(path, {"x": fields, "sort": ["a", "b"]})
    refused(words, read_table, path, error=UsageError)


def test_other_refusals(path, tmp_path):
    written(path, {"a": NUMBERS, "y": NUMBERS})
    words = r"'y' of .* 12 distinct numbers, 0\.5 to 11\.5: .* a regression.*RVMRegressor"
    refused(words, read_table, path, error=UsageError)
    refused("no column 'sort'; its columns are a, y", read_table, path, "sort", error=UsageError)
    refused("--sep is 'ab'; needed one character", read_table, path, sep="ab", error=UsageError)
    refused("No such file", read_table, tmp_path / "nowhere.csv", error=UsageError)
    refused("Is a directory", read_table, tmp_path, error=UsageError)
