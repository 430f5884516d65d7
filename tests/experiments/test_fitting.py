"""`pcvm fit` and `pcvm predict`, and the tables that they read."""

import pickle
import re
import zlib

import numpy as np
import pandas as pd
import pytest
from problems import blobs

from pcvm_pymc.cli import main
from pcvm_pymc.experiments.errors import UsageError
from pcvm_pymc.experiments.model_files import ModelFile
from pcvm_pymc.experiments.tables import read_table

X, LABEL = blobs(48, seed=70, gap=2.5)
FRAME = pd.DataFrame(
    {
        "höhe": X[:, 0],
        "weight": X[:, 1],
        "colour": np.where(np.arange(48) % 3 == 0, "red", "blue"),
        "sort": np.where(LABEL > 0, "cat", "dog"),
    }
)
NUMBERS = FRAME.drop(columns="colour")
QUICK = ["--width", "2", "--basis", "12"]


def written(path, frame=NUMBERS, **options):
    frame.to_csv(path, index=False, **options)
    return path


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, ()),
        ({"sep": ";", "decimal": ","}, ("separated by semicolons", "decimal commas")),
        ({"sep": "\t", "encoding": "utf-16"}, ("read as utf-16", "separated by tabs")),
        ({"sep": "|", "encoding": "cp1252"}, ("read as cp1252", "separated by bars")),
        ({"sep": " ", "encoding": "utf-8-sig"}, ("separated by spaces",)),
        ({"quoting": 1}, ()),
    ],
)
def test_separators_encodings_and_decimal_marks_are_recognised(tmp_path, options, told):
    found = read_table(written(tmp_path / "x.csv", **options))
    pd.testing.assert_frame_equal(found.frame, NUMBERS, check_dtype=False)
    assert found.told == told


def test_an_unnamed_index_is_noticed_and_left_out(tmp_path):
    path = tmp_path / "x.csv"
    NUMBERS.to_csv(path)
    found = read_table(path)
    assert found.told == ("column 1 has no name and counts the rows: an index, left out",)
    assert list(found.frame) == list(NUMBERS)
    path.write_text("a,b,\n1,2,\n3,4,\n")
    assert read_table(path).told == ("column 3 has no name and is empty: left out",)
    path.write_text(",b\n7,2\n3,4\n")
    with pytest.raises(UsageError, match=r"column 1 of .* has no name \(its first value is 7\)"):
        read_table(path)


def test_a_missing_header_is_noticed(tmp_path):
    path = written(tmp_path / "x.csv", header=False)
    with pytest.raises(UsageError, match=r"line 1 of .* holds numbers .*--header no"):
        read_table(path)
    assert list(read_table(path, "no").frame) == ["column1", "column2", "column3"]
    assert len(read_table(path, "yes").frame) == 47


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a,b\n1,x\n\x00\x01,y\n", "is no text (a spreadsheet, an archive?); save it as CSV"),
        (b"a,b,a\n1,2,3\n", "has several columns called a; rename them"),
        (b"a,b\n1,2\n1,2,3\n", "cannot be read as CSV: Expected 2 fields in line 3, saw 3"),
    ],
)
def test_what_is_no_table_is_named(tmp_path, content, words):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(words)):
        read_table(path)


def test_numbers_with_a_few_other_cells_are_not_called_text(tmp_path, capsys):
    frame = NUMBERS.astype(object)
    frame.loc[3, "weight"] = "?"
    path = written(tmp_path / "x.csv", frame)
    said = []
    for more in ([], ["--categorical"]):
        assert (
            main(["fit", str(path), "--target", "sort", "--out", str(tmp_path / "m"), *more]) == 2
        )
        said.append(capsys.readouterr().err)
    assert said[0] == said[1]
    assert "has numbers and 1 cells that are none: '?', the first in line 5" in said[0]


def test_fit_and_predict(tmp_path, capsys):
    model, out = tmp_path / "cats.pcvm", tmp_path / "p.csv"
    table = written(tmp_path / "x.csv", sep=";", decimal=",")
    assert main(["fit", str(table), "--out", str(model), *QUICK]) == 0
    said = capsys.readouterr().out
    assert "separated by semicolons" in said
    assert "sort: cat 24, dog 24" in said
    other = written(tmp_path / "new.csv", NUMBERS[["sort", "weight", "höhe"]].iloc[:10])
    assert main(["predict", str(model), str(other), "--out", str(out)]) == 0
    found = pd.read_csv(out)
    assert list(found) == ["sort", "P(cat)", "P(dog)"]
    np.testing.assert_allclose(found[["P(cat)", "P(dog)"]].sum(axis=1), 1.0)
    assert "sort is known for 10 rows: error" in capsys.readouterr().err
    pipeline = ModelFile.load(model).pipeline
    rows = NUMBERS[["höhe", "weight"]].iloc[:10]
    np.testing.assert_allclose(found["P(cat)"], pipeline.predict_proba(rows)[:, 0])
    assert main(["predict", str(model), str(other)]) == 0
    assert capsys.readouterr().out.startswith("sort,P(cat),P(dog)\n")
    assert main(["fit", str(table), "--out", str(model)]) == 2
    assert "use --force" in capsys.readouterr().err


def test_text_and_missing_cells_are_encoded_and_filled_in_on_request(tmp_path, capsys):
    holes = FRAME.copy()
    holes.loc[3, "weight"], holes.loc[5, "colour"] = np.nan, None
    table, model = written(tmp_path / "x.csv", holes), tmp_path / "m"
    base = ["fit", str(table), "--out", str(model), *QUICK]
    assert main(base) == 2
    assert (
        "columns of text: colour ('red'); encode them with --categorical" in capsys.readouterr().err
    )
    assert main([*base, "--categorical"]) == 2
    said = capsys.readouterr().err
    assert "missing cells in weight (1), colour (1); fill them in with --impute" in said
    assert main([*base, "--categorical", "--impute"]) == 0
    kept = ModelFile.load(model)
    assert kept.columns.text == ["colour"]
    assert kept.pipeline[0].transform(kept.columns.taken(holes)).shape == (48, 3)
    assert main(["predict", str(model), str(table), "--out", str(tmp_path / "p.csv")]) == 0
    capsys.readouterr()
    unseen = written(tmp_path / "new.csv", FRAME.assign(colour="green"))
    assert main(["predict", str(model), str(unseen)]) == 2
    said = capsys.readouterr().err
    assert "has 'green' in 'colour', which the model was not fitted with" in said
    assert "it knows 'blue', 'red'" in said


def test_several_classes_and_balanced_counts(tmp_path):
    kinds = NUMBERS.assign(sort=np.digitize(X[:, 1], [-1.0, 0.8]))
    model = tmp_path / "m"
    table = written(tmp_path / "x.csv", kinds)
    arguments = [
        "fit",
        str(table),
        "--out",
        str(model),
        "--balanced",
        "--width",
        "2",
        "--basis",
        "8",
    ]
    assert main(arguments) == 0
    assert ModelFile.load(model).pipeline[-1].class_weight == "balanced"
    out = tmp_path / "p.csv"
    assert main(["predict", str(model), str(table), "--out", str(out)]) == 0
    assert list(pd.read_csv(out)) == ["sort", "P(0)", "P(1)", "P(2)"]


def test_a_wide_table_and_a_long_one(tmp_path, capsys):
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(rng.normal(size=(30, 2000))).add_prefix("g").assign(y=np.arange(30) % 2)
    table, model = written(tmp_path / "wide.csv", wide), tmp_path / "m"
    assert main(["fit", str(table), "--out", str(model)]) == 0
    assert len(ModelFile.load(model).pipeline[-1].components_) > 1
    assert model.stat().st_size < 1.5 * 8 * 30 * 2000  # the rows once, not once for each mode
    long = tmp_path / "long.csv"
    rows = "".join(f"{i % 97},{i % 2}\n" for i in range(20_000))
    long.write_text("a,y\n" + rows)
    assert main(["fit", str(long), "--out", str(tmp_path / "l")]) == 2
    assert "20000 rows, and a basis function on each would need 3 GB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.drop(columns="weight"), "lacks the columns weight, which the model"),
        (lambda f: f.assign(weight="heavy"), "has text in weight, which were numbers"),
        (
            lambda f: f.assign(weight=np.where(f.index == 2, np.nan, 1)),
            "has missing cells in weight",
        ),
        (
            lambda f: f.assign(weight=f["weight"].astype(object).where(f.index != 2, "?")),
            "has numbers and 1 cells that are none: '?', the first in line 4",
        ),
        (
            lambda f: f.assign(weight=np.where(f.index == 2, np.inf, 1)),
            "has infinite values in weight",
        ),
    ],
)
def test_new_tables_that_cannot_be_used(tmp_path, capsys, change, words):
    model = tmp_path / "m"
    assert main(["fit", str(written(tmp_path / "x.csv")), "--out", str(model), *QUICK]) == 0
    new = written(tmp_path / "new.csv", change(NUMBERS))
    assert main(["predict", str(model), str(new)]) == 2
    assert words in capsys.readouterr().err


def test_files_that_are_no_models(tmp_path, capsys):
    table = written(tmp_path / "x.csv")
    for path in (table, tmp_path / "nowhere", tmp_path):
        assert main(["predict", str(path), str(table)]) == 2
        assert "needed a file that `pcvm fit --out` wrote" in capsys.readouterr().err
    model = tmp_path / "m"
    assert main(["fit", str(table), "--out", str(model), *QUICK]) == 0
    whole = model.read_bytes()
    for damaged, words in (
        (whole[:-100], "is damaged"),
        (whole[:500] + b"damage" + whole[506:], "is damaged"),
        (whole[:5], "is no model"),
        (b"", "is no model"),
    ):
        model.write_bytes(damaged)
        assert main(["predict", str(model), str(table)]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert "needed a file that `pcvm fit --out` wrote" in said
    gone = zlib.compress(pickle.dumps({"model": ModelFile}).replace(b"ModelFile", b"ModelGone"))
    for other in (b"pcvm model 1\n", b"pcvm model 2\n" + gone):
        model.write_bytes(other)
        assert main(["predict", str(model), str(table)]) == 2
        assert "was written by another version" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--basis", "0"], "--basis is 0"),
        (["--width", "wide"], "--width is 'wide'"),
        (["--target", "age"], "has no column 'age'"),
    ],
)
def test_bad_options_of_fit(tmp_path, capsys, extra, words):
    table = written(tmp_path / "x.csv")
    assert main(["fit", str(table), "--out", str(tmp_path / "m"), *extra]) == 2
    assert words in capsys.readouterr().err
    assert main(["fit", str(table), "--out", str(tmp_path / "no" / "m")]) == 2
    assert "there is no folder" in capsys.readouterr().err
