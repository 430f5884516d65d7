"""`pcvm fit` and `pcvm predict`, and the tables that they read."""

import os
import pickle
import re
import zlib

import numpy as np
import pandas as pd
import pytest
from problems import blobs, complaint, interrupted, printed, refused
from rich.console import Console
from sklearn.preprocessing import StandardScaler

from pcvm_pymc import MPCVMClassifier, PCVMClassifier
from pcvm_pymc.cli import main
from pcvm_pymc.experiments.errors import UsageError
from pcvm_pymc.experiments.model_files import FittedTable, TableScaler
from pcvm_pymc.experiments.tables import read_table
from pcvm_pymc.inference.files import read_arrays, write_arrays

X, LABEL = blobs(48, seed=70, gap=2.5)
FRAME = pd.DataFrame(X, columns=["höhe", "weight"])
FRAME["colour"] = np.where(np.arange(48) % 3 == 0, "red", "blue")
FRAME["sort"] = np.where(LABEL > 0, "cat", "dog")
NUMBERS = FRAME.drop(columns="colour")
QUICK = ["--width", "2", "--basis", "12"]


def written(path, frame=NUMBERS, **options):
    frame.to_csv(path, index=False, **options)
    return path


def fit(table, model, *more):
    return main(["fit", str(table), "--out", str(model), *more])


def predict(model, table, *more):
    return main(["predict", str(model), str(table), *more])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Return a table and the model file of it."""
    place = tmp_path_factory.mktemp("fitted")
    table, model = written(place / "x.csv"), place / "m"
    assert fit(table, model, *QUICK) == 0
    return table, model


FORMATS = [
    ({}, ()),
    ({"sep": ";", "decimal": ","}, ("separated by semicolons", "decimal commas")),
    ({"sep": "\t", "encoding": "utf-16"}, ("read as utf-16", "separated by tabs")),
    ({"sep": "|", "encoding": "cp1252"}, ("read as cp1252", "separated by bars")),
    ({"sep": " ", "encoding": "utf-8-sig"}, ("separated by spaces",)),
    ({"quoting": 1}, ()),
]


@pytest.mark.parametrize(("options", "told"), FORMATS)
def test_separators_encodings_and_decimal_marks_are_recognised(tmp_path, capsys, options, told):
    found = read_table(written(tmp_path / "x.csv", **options), "auto", Console())
    pd.testing.assert_frame_equal(found.reset_index(drop=True), NUMBERS, check_dtype=False)
    assert found.index.tolist() == list(range(2, 50))  # lines
    assert capsys.readouterr().out.splitlines() == [f"x.csv: {each}" for each in told]


def test_a_missing_header_is_noticed(tmp_path):
    path = written(tmp_path / "x.csv", header=False)
    with pytest.raises(UsageError, match=r"line 1 of .* has numbers .*--header no"):
        read_table(path, "auto", Console())
    assert list(read_table(path, "no", Console())) == ["column1", "column2", "column3"]
    assert len(read_table(path, "yes", Console())) == 47


NO_TABLES = [
    (b"a,b\n1,x\n\x00\x01,y\n", "is no text (a spreadsheet, an archive?); save it as CSV"),
    (b"a,b,a\n1,2,3\n", "has several columns called a; rename them"),
    (b"a,b,a \n1,2,3\n", "has several columns called a; rename them"),
    (b",b\n7,2\n3,4\n", "has no name (its first value is 7); name it in the header, or remove it"),
    (b"a,b\n1,2\n\n1,'2\n1,\"2\n2,3\n", "a quotation mark is opened in line 5, not closed"),
    (b"\xff\xfea", "cannot be read as CSV: it begins as utf-16, but is not"),
]


@pytest.mark.parametrize(("content", "words"), NO_TABLES)
def test_what_is_no_table_is_named(tmp_path, content, words):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    refused(re.escape(words), read_table, path, "auto", Console(), error=UsageError)


WORDS = NUMBERS.round(3).astype(str)[["sort", "höhe", "weight"]]
SEPARATORS = [",", ";", "\t"]


def text_of(frame, sep=",", header=None, front=None, end=""):
    """Return the text of a table, its cells as they are; `front` and `end` of each row come to them."""
    rows = [sep.join(row) + end for row in frame.to_numpy()]
    rows = rows if front is None else [front(i) + sep + row for i, row in enumerate(rows)]
    return "\n".join([sep.join(frame if header is None else header), *rows]) + "\n"


def answers(place, content, *more, new=None):
    """Return what a model of a table predicts for it, or for a new one, as text."""
    for name, each in (("t.csv", content), ("new.csv", content if new is None else new)):
        (place / name).write_bytes(each if isinstance(each, bytes) else each.encode())
    target = () if "--target" in more else ("--target", "sort")
    assert fit(place / "t.csv", place / "m", "--force", *target, *QUICK, *more) == 0
    assert predict(place / "m", place / "new.csv", "--out", str(place / "p.csv"), "--force") == 0
    return pd.read_csv(place / "p.csv", dtype=str, keep_default_na=False)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return answers(tmp_path_factory.mktemp("plain"), text_of(WORDS))


QUOTED = WORDS.assign(sort='"' + WORDS["sort"] + '"')
SAME = {  # the same table, written otherwise
    "R's write.table": lambda sep: text_of(QUOTED, sep, front='"{}"'.format),
    "its names of some rows": lambda sep: text_of(QUOTED, sep, front=lambda i: f'"{7 * i % 48}"'),
    "R's write.csv": lambda sep: text_of(QUOTED, sep, ['""', *WORDS], '"Mazda {}"'.format),
    "a count": lambda sep: text_of(WORDS, sep, ["", *WORDS], str),
    "a separator in the header too": lambda sep: text_of(WORDS, sep, [*WORDS, ""], end=sep),
    "a mark, returns, blanks": lambda sep: (
        "\ufeff" + text_of(WORDS, sep, [f'" {each} "' for each in WORDS]).replace("\n", "\r\n\r\n")
    ),
    "another order": lambda sep: text_of(WORDS[["sort", "weight", "höhe"]], sep),
    "blanks": lambda sep: text_of(
        WORDS.assign(sort=np.resize(["{} ", " {}", " {}"], 48)), sep
    ).format(*WORDS["sort"]),
    "decimal commas": lambda sep: text_of('"' + WORDS.replace(r"\.", ",", regex=True) + '"', sep),
    "signs and exponents": lambda sep: text_of(
        WORDS.assign(weight=[f"{float(each):+.4e}" for each in WORDS["weight"]]), sep
    ),
}


SAID = {
    "R's write.table": "the header has 3 names, each row a field more, in front",
    "R's write.csv": "column 1 has no name and counts or names the rows: left out",
    "blanks": "blanks around texts are removed, which makes some the same: sort ('cat ', ' dog', ' cat')",
    "decimal commas": "decimal commas",
}


@pytest.mark.parametrize("sep", SEPARATORS)
@pytest.mark.parametrize("name", SAME)
def test_a_table_written_otherwise_has_the_same_probabilities(tmp_path, plain, capsys, name, sep):
    content = SAME[name](sep)
    for each, new in ((content, content), (text_of(WORDS), content)):
        found = answers(tmp_path, each, new=new)
        assert f"new.csv: {SAID.get(name, '')}" in capsys.readouterr().err + "new.csv: "
        assert found["sort"].tolist() == plain["sort"].tolist()
        both = (each[["P(cat)", "P(dog)"]].astype(float) for each in (found, plain))
        np.testing.assert_allclose(*both, 1e-6)  # another order of columns adds in another order


@pytest.mark.parametrize("sep", SEPARATORS)
def test_rows_of_another_length_are_refused_by_line(fitted, tmp_path, capsys, sep):
    order = [WORDS, WORDS[["weight", "sort", "höhe"]], WORDS[["höhe", "weight", "sort"]]]
    ends = [(sep + "17", 4), (sep, 4), (3 * sep, 6)]
    tables = [(text_of(each, sep, end=end), 2, n) for each in order for end, n in ends]
    counted = WORDS.assign(sort=[str(i) for i in range(48)])
    quoted = text_of('"' + WORDS + '"', sep, front='"name {}"'.format)  # R quotes no numbers
    tables += [(text_of(counted, sep, end=sep + "1"), 2, 4), (quoted, 2, 4)]
    tables += [(text_of(WORDS, sep) + f"cat{sep}1\n", 50, 2)]
    table = tmp_path / "x.csv"
    for text, line, n in tables:
        table.write_text(text)
        for run in (
            lambda: fit(table, tmp_path / "m", "--target", "sort", "--impute"),
            lambda: predict(fitted[1], table),
            lambda: main(["compare", str(table), "--target", "sort"]),
        ):
            said = complaint(capsys, run())
            assert f"line {line} of {table} has {n} fields (" in said
            assert "line 1 has 3" in said


PAIRS = ["01 02", "007 1E5", "FALSE TRUE", "01 1", "DE NA", "9 10", "None null"]


@pytest.mark.parametrize("pair", PAIRS)
def test_labels_come_back_as_they_were_written(tmp_path, plain, capsys, pair):
    first, second = pair.split()
    written = WORDS.assign(sort=np.where(WORDS["sort"] == "cat", first, second))
    found = answers(tmp_path, text_of(written))
    assert list(found) == ["sort", f"P({first})", f"P({second})"]
    assert found["sort"].tolist() == plain["sort"].map({"cat": first, "dog": second}).tolist()
    assert found.to_numpy()[:, 1:].tolist() == plain.to_numpy()[:, 1:].tolist()
    assert "sort is known for 48 rows" in capsys.readouterr().err


def test_only_empty_texts_are_missing_unless_marks_are_named(tmp_path, capsys):
    colours = pd.Series(np.resize(["red", "NA", "NA", ""], 48))
    encoded = ("--categorical", "--impute")

    def table(**names):
        return text_of(WORDS.assign(colour=colours.replace(names)))

    found = answers(tmp_path, table(), *encoded)
    words = "text, not missing (name it in --missing if it is): colour ('NA' in lines 3, 4, 7"
    assert words in capsys.readouterr().out
    pd.testing.assert_frame_equal(found, answers(tmp_path, table(NA="N"), *encoded))
    kept = answers(tmp_path, table(), *encoded, "--missing", "NA,?")
    assert FittedTable.load(tmp_path / "m").levels.of_feature[2].tolist() == ["red"]
    assert "taken as missing: colour ('NA' in lines 3, 4, 7" in capsys.readouterr().err
    pd.testing.assert_frame_equal(kept, answers(tmp_path, table(NA=""), *encoded))
    codes = WORDS.assign(colour=np.resize(["01", "1", "x"], 48))  # new rows may have numbers alone
    known, new = text_of(codes), text_of(codes.assign(colour="01"))
    wanted = answers(tmp_path, known.replace(",x", ",y"), *encoded, new=new)
    pd.testing.assert_frame_equal(answers(tmp_path, known, *encoded, new=new), wanted)


@pytest.mark.parametrize("sep", [",", ";"])
def test_missing_labels_and_numbers_are_named_by_line(tmp_path, capsys, sep):
    table, holes = tmp_path / "x.csv", WORDS.replace(r"\.", "." if sep == "," else ",", regex=True)
    holes.loc[[3, 7], "weight"], holes.loc[5, "weight"] = ["NA", "?"], "-"
    table.write_text(text_of(holes, sep))
    arguments = (table, tmp_path / "m", "--target", "sort", *QUICK)
    for more in ((), ("--categorical",)):
        said = complaint(capsys, fit(*arguments, *more))
        assert "1 values that are none in column weight ('-' in line 7)" in said
    assert fit(*arguments, "--missing", "-") == 2
    said = capsys.readouterr()
    assert "taken as missing: weight ('NA', '-', '?' in lines 5, 7, 9)" in said.out
    assert "missing values in weight (lines 5, 7, 9); fill them in with --impute" in said.err
    assert fit(*arguments, "--missing", "-", "--impute") == 0
    expected = WORDS["weight"].drop([3, 5, 7]).astype(float).median()
    kept = FittedTable.load(tmp_path / "m")
    absent = kept.scaler.mean_[1] + kept.scaler.scale_[1] * kept.encoding.columns[1].median
    assert absent == pytest.approx(expected)
    assert np.isnan(kept.encoding.columns[2].level)  # an indicator of where it is missing
    numbers = WORDS["sort"].map({"cat": "0", "dog": "1"})
    table.write_text(text_of(WORDS.assign(sort=numbers.mask(numbers.index == 2, "NA"))))
    said = complaint(capsys, fit(*arguments, "--force"))
    assert "1 rows without a label: sort ('NA' in line 4)" in said


@pytest.mark.parametrize(
    "spelling", ['"{:,.0f}"', "{:_.0f}", "{:_.0f}.5", "{:.1f} %", "\u2212{:.1f}"]
)
@pytest.mark.parametrize("more", [(), ("--categorical",)])
def test_numbers_in_another_spelling_are_called_so(tmp_path, capsys, spelling, more):
    spelt = [spelling.format(1000 + i % 10).replace("_", " ") for i in range(48)]
    (tmp_path / "x.csv").write_text(text_of(WORDS.assign(weight=spelt)))
    said = complaint(capsys, fit(tmp_path / "x.csv", tmp_path / "m", "--target", "sort", *more))
    assert "has numbers with a mark that may part thousands or decimals" in said
    assert f"column weight ({spelt[0].strip('"')!r}" in said
    assert "in lines 2, 3, 4, 5, 6, ..., 48 in all)" in said


@pytest.mark.parametrize("hole", [[], [2, 9]])
def test_true_and_false_are_one_and_zero(tmp_path, capsys, hole):
    numbers = pd.Series(np.resize(["1", "0", "1"], 48)).mask(np.isin(np.arange(48), hole), "")
    truths = numbers.replace({"1": "TRUE", "0": "FALSE"})
    tables = [text_of(WORDS.assign(weight=each)) for each in (numbers, truths)]
    wanted, found = (answers(tmp_path, each, "--impute") for each in tables)
    assert "TRUE is 1, FALSE is 0: weight" in capsys.readouterr().out
    pd.testing.assert_frame_equal(found, wanted)
    pd.testing.assert_frame_equal(answers(tmp_path, tables[0], "--impute", new=tables[1]), wanted)


def test_a_numeric_target_is_called_that_of_a_regression(tmp_path, capsys):
    table = written(tmp_path / "x.csv", pd.DataFrame({"a": range(214), "y": np.arange(214) / 3}))
    for run in (lambda: fit(table, tmp_path / "m"), lambda: main(["compare", str(table)])):
        said = complaint(capsys, run())
        assert "'y'" in said
        assert "214 distinct numbers, 0.0 to 71.0: the target of a regression" in said
        assert "RVMRegressor" in said


def test_numbers_are_standardised_by_those_that_are_there_and_texts_are_categories():
    holes = FRAME.drop(columns="sort").assign(same=7.0, none=np.nan)
    holes.loc[[3, 8], "weight"], holes.loc[5, "colour"] = np.nan, None
    names = ["höhe", "weight", "same", "none"]
    found = TableScaler(names, ["colour"]).fit(holes[:40]).transform(holes)
    wanted = StandardScaler().fit(holes[names[:3]][:40]).transform(holes[names[:3]])
    np.testing.assert_allclose(found[names[:3]], wanted, atol=1e-12)
    assert found["none"].isna().all()
    assert list(found) == [*names, "colour"]
    assert found["colour"].dtype == "category"
    assert found["colour"].astype(object).equals(holes["colour"].astype(object))


def test_fit_and_predict(tmp_path, capsys):
    model, out = tmp_path / "cats.pcvm", tmp_path / "p.csv"
    table = written(tmp_path / "x.csv", sep=";", decimal=",")
    said = printed(capsys, fit(table, model, *QUICK))
    assert "separated by semicolons" in said
    assert "sort: cat 24, dog 24" in said
    other = written(tmp_path / "new.csv", NUMBERS[["sort", "weight", "höhe"]].iloc[:10])
    assert predict(model, other, "--out", str(out)) == 0
    found = pd.read_csv(out)
    assert list(found) == ["sort", "P(cat)", "P(dog)"]
    np.testing.assert_allclose(found[["P(cat)", "P(dog)"]].sum(axis=1), 1.0)
    assert "sort is known for 10 rows: error" in capsys.readouterr().err
    assert printed(capsys, predict(model, other)).startswith("sort,P(cat),P(dog)\n")
    assert "use --force" in complaint(capsys, fit(table, model))


HOLES = FRAME.assign(sex=np.resize(["f", "m", "m", "f", "m"], 48), third=X[:, 0] * X[:, 1])
HOLES.loc[[3, 8, 20], "weight"], HOLES.loc[[5, 6, 30], "colour"] = np.nan, None
# unknown texts, one of a column without missing ones, and a number that no training row lacks
NEW = HOLES[:12].drop(columns="sort")
NEW.loc[0, "colour"], NEW.loc[[1, 2], "sex"], NEW.loc[4, "höhe"] = "green", ["x", None], np.nan


def by_hand(frame, known=HOLES):
    """Return numbers standardised by known rows, and categories, in the order of a scaler."""
    numbers = known.select_dtypes(float)
    found = (frame[list(numbers)] - numbers.mean()) / numbers.std(ddof=0)
    return found.assign(**{each: pd.Categorical(frame[each]) for each in ("colour", "sex")})


CATEGORICAL = [
    (["--width", "2", "--basis", "12"], {"width": 2.0, "basis": 12}),
    (["--vectors", "4"], {"n_vectors": 4}),
    ([], {}),
]


@pytest.mark.parametrize(("more", "options"), CATEGORICAL)
def test_the_command_predicts_what_an_estimator_of_the_table_does(tmp_path, capsys, more, options):
    model, out = tmp_path / "m", tmp_path / "p.csv"
    table = written(tmp_path / "x.csv", HOLES)
    assert fit(table, model, "--target", "sort", "--categorical", "--impute", *more) == 0
    assert predict(model, written(tmp_path / "new.csv", NEW), "--out", str(out)) == 0
    wanted = PCVMClassifier(random_state=0, **options).fit(by_hand(HOLES), HOLES["sort"])
    found = pd.read_csv(out)[["P(cat)", "P(dog)"]].to_numpy()
    np.testing.assert_allclose(found, wanted.predict_proba(by_hand(NEW)), atol=1e-12)
    said = capsys.readouterr().err
    assert said == (
        "new.csv: not among the fitted categories, and taken as equally far from all of them: "
        "colour ('green' in 1 row), sex ('x', '' in 2 rows)\n"
    )


def test_text_and_missing_fields_need_an_option(tmp_path, capsys):
    table, model = written(tmp_path / "x.csv", HOLES), tmp_path / "m"
    arguments = table, model, "--target", "sort"
    for more in ([], ["--impute"]):
        said = complaint(capsys, fit(*arguments, *more))
        assert "columns of text: colour ('red'), sex ('f'); encode them with --categorical" in said
    said = complaint(capsys, fit(*arguments, "--categorical"))
    assert "missing values in weight (lines 5, 10, 22), colour (lines 7, 8, 32); fill them" in said
    assert "--impute" in said
    whole = written(tmp_path / "whole.csv", FRAME)
    assert fit(whole, model, *QUICK, "--categorical") == 0
    said = complaint(capsys, predict(model, written(tmp_path / "x.csv", HOLES)))
    assert "missing values in weight (lines 5, 10, 22), colour (lines 7, 8, 32); remove" in said


NAMED = NUMBERS.round(3).assign(name=[f"{i:03d}" for i in range(48)])[["name", *NUMBERS]]


def test_a_column_that_names_the_rows_is_no_feature_and_begins_the_predictions(tmp_path, capsys):
    plain, named = (
        written(tmp_path / name, frame)
        for name, frame in (("plain.csv", NAMED.drop(columns="name")), ("named.csv", NAMED))
    )
    assert (
        fit(plain, tmp_path / "a", *QUICK) == fit(named, tmp_path / "b", *QUICK, "--id", "0") == 0
    )
    found = []
    for model, table, more in (
        ("a", plain, ()),
        ("a", named, ("--id", "name")),
        ("b", named, ()),
        ("b", plain, ()),  # it need not be there
    ):
        out = tmp_path / "out.csv"
        capsys.readouterr()
        assert predict(tmp_path / model, table, "--out", str(out), "--force", *more) == 0
        assert "not used" not in capsys.readouterr().err
        found.append(out.read_text().splitlines())
    assert found[1][0] == f"name,{found[0][0]}"
    assert found[1][1:] == [f"{i:03d},{row}" for i, row in enumerate(found[0][1:])]
    assert found[2] == found[1]
    assert found[3] == found[0]
    for path, more, words in (
        (named, ("--id", "sort"), "--id and --target are both 'sort'"),
        (named, ("--id", "nom"), "has no column 'nom'; its columns are name, "),
        (written(tmp_path / "c.csv", NAMED[["name", "sort"]]), ("--id", "name"), "has no features"),
    ):
        assert words in complaint(capsys, fit(path, tmp_path / "c", *more))
    assert "no column 'nom'" in complaint(capsys, predict(tmp_path / "a", named, "--id", "nom"))
    for name in ("weight", "sort"):
        said = complaint(capsys, predict(tmp_path / "a", named, "--id", name))
        assert f"--id is '{name}', a feature or the label of the model" in said


def test_a_reader_that_has_enough_ends_the_command_without_a_word(fitted, monkeypatch, capsys):
    table, model = fitted
    end, start = os.pipe()
    os.close(end)
    with monkeypatch.context() as patched, open(start, "w") as stdout:
        patched.setattr("sys.stdout", stdout)
        assert predict(model, table) == 1
    assert "Errno" not in capsys.readouterr().err


def test_columns_are_known_by_their_names_before_their_numbers(tmp_path):
    frame = NUMBERS.rename(columns={"weight": "0"})[["sort", "höhe", "0"]]
    frame["0"] = np.where(frame["0"] > 0, "up", "down")
    model, table = tmp_path / "m", written(tmp_path / "x.csv", frame)
    for target, more, expected in (
        ("-3", ("--categorical",), "sort"),
        ("0", ("--categorical",), "0"),
        ("2", ("--categorical",), "0"),
    ):
        assert fit(table, model, *QUICK, "--force", "--target", target, *more) == 0
        assert FittedTable.load(model).target == expected
    # a name that is also a number is no number once it is known
    new = written(tmp_path / "new.csv", frame[["höhe", "sort"]])
    assert predict(model, new, "--out", str(tmp_path / "p.csv")) == 0


def test_intervals_are_written_beside_the_probabilities(fitted, tmp_path, capsys):
    table, out = written(tmp_path / "x.csv"), tmp_path / "out.csv"
    assert fit(table, tmp_path / "m", "--basis", "12") == 0
    assert predict(tmp_path / "m", table, "--interval", "0.89", "--out", str(out)) == 0
    found = pd.read_csv(out)
    for name in ("cat", "dog"):
        p, low, high = (found[f"P({name}){end}"] for end in ("", " low", " high"))
        assert ((low < p) & (p < high)).all()
    np.testing.assert_allclose(found["P(cat) low"], 1.0 - found["P(dog) high"], atol=1e-9)
    capsys.readouterr()
    for share in ("0", "1", "nan", "89"):
        said = complaint(capsys, predict(tmp_path / "m", table, "--interval", share))
        assert "needed a number above 0 and below 1" in said
    said = complaint(capsys, predict(fitted[1], tmp_path / "nowhere.csv", "--interval", "0.5"))
    assert "has no intervals: it is one mode" in said
    arrays = read_arrays(tmp_path / "m", "pcvm model", "")
    for name, value in (("labels", np.zeros(48)), ("rows", [10**6]), ("counts", np.ones(3))):
        write_arrays(tmp_path / "bad", "pcvm model", {**arrays, name: np.array(value)})
        assert "has no model" in complaint(capsys, predict(tmp_path / "bad", table))


def test_too_many_texts_are_no_categories(tmp_path, capsys):
    colours = [f"n{i}" for i in range(51)]
    table = written(tmp_path / "x.csv", pd.concat([FRAME, FRAME[:3]]).assign(colour=colours))
    said = complaint(capsys, fit(table, tmp_path / "m", "--categorical"))
    assert "column 'colour' of" in said
    assert "has 51 different texts, more than 50: no categories; remove it" in said


def test_a_number_that_no_training_row_lacks_is_the_median(tmp_path):
    holes = WORDS[:6].copy()
    holes.loc[[1, 4], "weight"] = ""
    filled = holes.replace({"weight": {"": str(WORDS["weight"].astype(float).median())}})
    found, wanted = (
        answers(tmp_path, text_of(WORDS), "--impute", new=text_of(each)) for each in (holes, filled)
    )
    both = (each[["P(cat)", "P(dog)"]].astype(float) for each in (found, wanted))
    np.testing.assert_allclose(*both, rtol=1e-9)


SKEWED = NUMBERS.assign(weight=np.exp(1.5 * NUMBERS["weight"]))
FIT_OPTIONS = [
    {},
    {"width": "shared"},
    {"n_vectors": 5},
    {"width": 2.0},
    {"width": 2.0, "basis": 8, "class_weight": "balanced"},
    {"basis": 20, "memory_limit": 1e6},
]


@pytest.mark.parametrize("options", FIT_OPTIONS)
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("text", [[], ["colour", "sex"]])
def test_a_model_file_has_the_classifiers_probabilities(tmp_path, options, n_classes, text):
    y = np.array(["a", "b", "c"], dtype=object)[np.digitize(X[:, 1], [-1.0, 0.8][: n_classes - 1])]
    table = (HOLES if text else NUMBERS).assign(
        weight=SKEWED["weight"].mask(HOLES["weight"].isna())
    )
    new = pd.concat([table, NEW]) if text else table
    scaler = TableScaler(["höhe", "weight"], text, impute=True).fit(table)
    kind = PCVMClassifier if n_classes == 2 else MPCVMClassifier
    model = kind(random_state=0, **options).fit(scaler.transform(table), y)
    FittedTable.of(scaler, model, "kind").save(tmp_path / "m")
    kept = FittedTable.load(tmp_path / "m")
    viewed = sum(" of " in each.kernel.name for each in getattr(model, "components_", []))
    assert sum(each.view is not None for each in kept.modes) == viewed
    assert viewed > 0 or options
    found = kept.probabilities(tmp_path, new)
    assert list(found) == ["kind", *(f"P({each})" for each in model.classes_)]
    wanted = model.predict_proba(scaler.transform(new))
    np.testing.assert_allclose(found.to_numpy()[:, 1:].astype(float), wanted, atol=1e-12)
    assert found["kind"].tolist() == model.predict(scaler.transform(new)).tolist()
    in_memory = "memory_limit" not in options
    assert (kept.rows is not None) == (in_memory and hasattr(model, "components_"))
    if kept.rows is not None:
        found = kept.probabilities(tmp_path, new, 0.5)
        ends = [f"P({each}) {end}" for each in model.classes_ for end in ("low", "high")]
        assert list(found)[1 + n_classes :] == ends
        wanted = model.predict_interval(scaler.transform(new), probability=0.5)
        np.testing.assert_allclose(found[ends], wanted.reshape(len(new), -1), atol=1e-9)


def test_several_classes_and_balanced_counts(tmp_path):
    kinds = NUMBERS.assign(sort=np.digitize(X[:, 1], [-1.0, 0.8])).to_csv(index=False)
    assert list(answers(tmp_path, kinds, "--balanced")) == ["sort", "P(0)", "P(1)", "P(2)"]


FORECASTS = [
    ([], "A basis function on each of 60 rows: the fit takes about"),
    (["--basis", "10"], "10 basis functions: the fit takes about"),
]


@pytest.mark.parametrize(("extra", "words"), FORECASTS)
def test_a_fit_of_many_rows_begins_with_a_forecast(tmp_path, capsys, monkeypatch, extra, words):
    monkeypatch.setattr("pcvm_pymc.experiments.fitting._MANY_ROWS", 50)
    monkeypatch.setattr("pcvm_pymc.experiments.fitting._PROBE", 30)
    table = written(tmp_path / "x.csv", pd.concat([NUMBERS, NUMBERS[:12]]))
    said = printed(capsys, fit(table, tmp_path / "m", "--width", "2", *extra))
    assert words in said  # no terminal: a plain line
    assert said.index("takes about") < said.index("Written to")
    monkeypatch.undo()
    assert "takes about" not in printed(capsys, fit(table, tmp_path / "n", "--width", "2"))


def test_an_interrupted_fit_says_that_nothing_was_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(PCVMClassifier, "fit", interrupted)
    assert fit(written(tmp_path / "x.csv"), tmp_path / "m") == 130
    assert capsys.readouterr().err == "pcvm: stopped; nothing was written\n"
    assert not (tmp_path / "m").exists()


def test_labels_and_columns_may_look_like_markup(tmp_path, capsys):
    odd = NUMBERS.rename(columns={"höhe": "[red]", "sort": "[/b]"})
    odd["[/b]"] = np.where(LABEL > 0, "[/x]", "[bold]")
    table, model = written(tmp_path / "[x].csv", odd), tmp_path / "[m]"
    assert "[/b]: [/x] 24, [bold] 24" in printed(capsys, fit(table, model, *QUICK))
    assert "P([/x])" in printed(capsys, predict(model, table))


def test_a_wide_table_and_a_long_one(tmp_path, capsys):
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(rng.normal(size=(30, 2000))).add_prefix("g").assign(y=np.arange(30) % 2)
    table, model = written(tmp_path / "wide.csv", wide), tmp_path / "m"
    assert fit(table, model) == 0
    assert len(FittedTable.load(model).modes) > 1
    assert model.stat().st_size < 1.5 * 8 * 30 * 2000  # the rows once, not once for each mode
    long = tmp_path / "long.csv"
    long.write_text("a,y\n" + "".join(f"{i % 97},{i % 2}\n" for i in range(20_000)))
    said = complaint(capsys, fit(long, tmp_path / "l"))
    assert "20000 rows, and a basis function on each would need 3 GB" in said


def third(value):
    """Return a table with another weight in its third row."""
    return NUMBERS.assign(weight=NUMBERS["weight"].astype(object).where(FRAME.index != 2, value))


UNUSABLE_TABLES = [
    (NUMBERS.drop(columns="weight"), "lacks the columns weight, which the model"),
    (NUMBERS.assign(weight="heavy"), "has text in weight, which were numbers"),
    (third(np.nan), "has missing values in weight (line 4)"),
    (third("o"), "has numbers and 1 values that are none in column weight ('o' in line 4)"),
    (third(np.inf), "has infinite values in weight (inf in line 4)"),
    (NUMBERS[:0], "has a header but no rows"),
]


@pytest.mark.parametrize(("table", "words"), UNUSABLE_TABLES)
def test_new_tables_that_cannot_be_used(fitted, tmp_path, capsys, table, words):
    assert words in complaint(capsys, predict(fitted[1], written(tmp_path / "new.csv", table)))


def test_files_that_are_no_models(fitted, tmp_path, capsys):
    table, model = fitted[0], tmp_path / "m"
    for path in (table, tmp_path / "nowhere", tmp_path):
        said = complaint(capsys, predict(path, table))
        assert "needed a file that `pcvm fit --out` wrote" in said
    whole = fitted[1].read_bytes()
    damaged = [(whole[:-100], "is damaged"), (whole[:500] + b"damage" + whole[506:], "is damaged")]
    for content, words in (*damaged, (whole[:1], "is no model"), (b"", "is no model")):
        model.write_bytes(content)
        said = complaint(capsys, predict(model, table))
        assert words in said
        assert "needed a file that `pcvm fit --out` wrote" in said


class Harmful(str):
    """What makes a folder where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, (str(self),)


def test_nothing_in_a_model_file_is_run(fitted, tmp_path, capsys):
    """Pickles of earlier versions, arrays of objects, and sealed arrays that are no model."""
    (table, model), made = fitted, tmp_path / "made"
    arrays = read_arrays(model, "pcvm model", "")
    old = b"pcvm model 2\n" + zlib.compress(pickle.dumps(Harmful(made)))
    np.savez(tmp_path / "objects.npz", names=np.array([Harmful(made)], dtype=object))
    crafted = [("objects.npz", "is damaged"), ("old", "fit the model again by pcvm")]
    (tmp_path / "old").write_bytes(old)
    names = "{", "[1]", str(arrays["names"]).replace("[", "[3, ")
    changes = [("share", np.zeros(9)), ("classes", [1, 2, 3]), ("mean", np.zeros(3))]
    changes += [("own 0", [10**6]), ("weight 0", ["a"]), ("points", np.zeros((0, 2)))]
    changes += [("names", each) for each in names]
    changes += [
        ("columns", each) for each in (np.zeros((2, 4)), [[0, 0, np.inf, 0]], [["a"] * 4] * 2)
    ]
    changes += [
        ("columns", [[np.inf] * 4] * 2),
        ("columns", 3.0),
        ("columns", np.full((2, 4), np.nan)),
    ]
    for i, (name, value) in enumerate(changes):
        write_arrays(tmp_path / f"{i}", "pcvm model", {**arrays, name: np.array(value)})
        crafted.append((f"{i}", "has no model"))
    capsys.readouterr()
    for name, words in crafted:
        said = complaint(capsys, predict(tmp_path / name, table))
        assert words in said
        assert said.count("\n") == 1
    assert not made.exists()


BAD_OPTIONS = [
    (["--basis", "0"], "--basis is 0"),
    (["--width", "wide"], "--width is 'wide'"),
    (["--target", "age"], "has no column 'age'"),
]


@pytest.mark.parametrize(("extra", "words"), BAD_OPTIONS)
def test_bad_options_of_fit(fitted, tmp_path, capsys, extra, words):
    assert words in complaint(capsys, fit(fitted[0], tmp_path / "m", *extra))
    assert "there is no folder" in complaint(capsys, fit(fitted[0], tmp_path / "no" / "m"))
