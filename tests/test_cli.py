import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from problems import animals, blobs, complaint, interrupted, printed
from rich.status import Status
from sklearn.linear_model import LogisticRegression

from pcvm_pymc import PCVMClassifier, sample
from pcvm_pymc.cli import main
from pcvm_pymc.experiments.head_to_head import fitted_rival

FAST = ["--draws", "40", "--chains", "2", "--splits", "2", "--posteriors", "1", "--jobs", "1"]
PICTURES = {"reliability.png", "weights.png", "decision_surface.png"}


@pytest.fixture
def csv(tmp_path):
    return animals(tmp_path, 60)


def test_without_a_command_help_is_printed(capsys):
    said = printed(capsys, main([]))
    assert said.startswith("usage: pcvm")
    assert "compare" in said


def table_of(out):
    """Return the table of a comparison, without what the clock says."""
    return pd.read_csv(out / "table.csv", index_col=0).drop(columns="seconds")


@pytest.fixture
def short_chains(monkeypatch):
    """Let `pcvm compare` draw ten times, in this process."""
    few = {"draws": 10, "max_iter": 100, "cores": 1}

    def short(model, **options):
        return sample(model, **options | few)

    monkeypatch.setattr("pcvm_pymc.inference.sampling.sample", short)


@pytest.mark.usefixtures("short_chains")
def test_compare_writes_everything(csv, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", str(csv), "--width", "1.0", "--seed", "3", *FAST]) == 0
    finished = capsys.readouterr()
    assert not finished.err
    out = tmp_path / "pcvm-compare"
    names = {"map.zarr", "posterior.zarr", "table.csv", "standard_errors.csv", "splits.csv"}
    assert {each.name for each in out.iterdir()} == names | PICTURES
    for name in PICTURES:
        assert (out / name).read_bytes()[:4] == b"\x89PNG"
    table = table_of(out)
    names = {"posterior mean", "paper's sparse MAP", "averaged MAP", "its ten vectors"}
    assert set(table.index) == names | {"SVC, tuned", "logistic regression"}
    assert table["log loss difference"].iloc[1:].is_monotonic_increasing
    assert table["log loss"].drop("posterior mean").is_monotonic_increasing
    assert table.drop(columns="vectors").notna().all().all()
    assert table.loc["its ten vectors", "vectors"] <= 10
    assert table.loc["posterior mean", "splits"] == 1
    assert (table["splits"].drop("posterior mean") == 2).all()
    error = pd.read_csv(out / "standard_errors.csv", index_col=0)
    assert error["log loss"].drop("posterior mean").gt(0).all()
    said = " ".join(finished.out.split())
    before, after = said.split("held-out scores, mean over splits")[1:]
    assert "SVC, tuned" in before
    assert "posterior mean" not in before  # it follows
    row = table.loc["posterior mean"]
    assert f"posterior mean ({row['log loss']:.3f}) ({100 * row['error']:.1f}) " in after
    assert f" 1 split: {row['log loss won']:.0f}/0/{row['log loss lost']:.0f} " in after
    assert "training on 42 rows" in said
    assert said.count("Gibbs sampling") == 2  # where it is announced, and the verdict
    assert said.count("worst r-hat") == 1


@pytest.mark.slow
def test_compare_on_the_example_is_fast(tmp_path):
    command = [sys.executable, "-m", "pcvm_pymc", "compare"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    printed = " ".join(finished.stdout.split())
    assert " 3 splits: " in printed
    assert "Gibbs sampling, 3 posteriors: converged" in printed
    assert not finished.stderr
    error = pd.read_csv(tmp_path / "pcvm-compare" / "standard_errors.csv", index_col=0)
    assert error[["error", "log loss"]].gt(0).all().all()


@pytest.fixture
def one_classifier(short_chains, monkeypatch):
    """Let `pcvm compare` fit one classifier, the posterior and plain rivals, and draw one empty picture."""
    one = {"averaged MAP": PCVMClassifier(width=1.0)}
    rivals = dict.fromkeys(("SVC, tuned", "logistic regression"), LogisticRegression())
    for name, models in {"estimators": one, "peers": rivals}.items():
        place = f"pcvm_pymc.experiments.head_to_head.{name}"
        monkeypatch.setattr(place, lambda *_, models=models, **__: models)
    monkeypatch.setattr(
        "pcvm_pymc.cli.comparing.draw",
        lambda scored, *_: (scored.out / "weights.png").write_bytes(b"\x89PNG"),
    )


@pytest.mark.usefixtures("one_classifier")
def test_rows_are_compared_on_the_splits_that_both_ran_on(csv, tmp_path, capsys):
    out = tmp_path / "out"
    options = ["--width", "1.0", *FAST, "--splits", "5", "--posteriors", "3", "--out", str(out)]
    said = printed(capsys, main(["compare", str(csv), *options]))
    table = table_of(out)
    assert table["splits"].drop("posterior mean").eq(5).all()
    assert table.loc["posterior mean", "splits"] == 3
    scores = pd.read_csv(out / "splits.csv")
    wide = scores.pivot(index="split", columns="classifier", values="log loss")
    for name, row in table.iloc[1:].iterrows():
        difference = (wide[name] - wide[table.index[0]]).dropna()
        assert len(difference) == row["splits"]
        assert row["log loss difference"] == pytest.approx(difference.mean())
        assert f"{difference.mean():+.3f} ± {difference.sem():.3f}" in said
        counts = sum(difference < 0), sum(difference == 0), sum(difference > 0)
        assert f"{len(difference)} splits: {counts[0]}/{counts[1]}/{counts[2]} " in said


@pytest.mark.usefixtures("one_classifier")
def test_a_terminal_shows_the_rows_after_each_split(csv, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(Status, "update", lambda _, status: shown.append(status.renderables))
    assert main(["compare", str(csv), "--width", "1.0", *FAST, "--out", str(tmp_path / "out")]) == 0
    assert [text for text, _ in shown] == ["1 of 2 splits done", "2 of 2 splits done"]
    assert [table.row_count for _, table in shown] == [3, 3]


@pytest.mark.usefixtures("one_classifier")
def test_what_was_computed_stays_when_a_split_fails(csv, tmp_path, monkeypatch, capsys):
    calls = []

    def failing(*given):
        calls.append(given)
        if len(calls) == 8:  # three in each split
            raise MemoryError("full")
        return fitted_rival(*given)

    monkeypatch.setattr("pcvm_pymc.experiments.head_to_head.fitted_rival", failing)
    options = ["--width", "1.0", *FAST, "--splits", "4", "--out", str(tmp_path / "out")]
    assert "full" in complaint(capsys, main(["compare", str(csv), *options]))
    assert table_of(tmp_path / "out")["splits"].tolist() == [2, 2, 2]


@pytest.mark.usefixtures("one_classifier")
def test_the_folder_of_a_comparison(csv, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quick = ["compare", str(csv), "--width", "1.0", *FAST, "--splits", "1"]
    out = tmp_path / "pcvm-compare"
    assert main(quick) == 0
    first = table_of(out)
    (out / "mine.txt").write_text("kept")
    (out / "decision_surface.png").write_text("of an earlier run")
    said = complaint(capsys, main([*quick, "--seed", "1"]))
    assert "--out pcvm-compare has something in it; use --force to write over it" in said
    pd.testing.assert_frame_equal(table_of(out), first)
    assert main([*quick, "--seed", "1", "--force"]) == 0
    assert not table_of(out).equals(first)
    assert (out / "mine.txt").read_text() == "kept"
    assert not (out / "decision_surface.png").exists()


@pytest.mark.usefixtures("short_chains")
def test_compare_is_multiclass_classes(tmp_path, capsys):
    X, label = blobs(48, seed=91)
    frame = pd.DataFrame(X, columns=["height", "weight"])
    frame["sort"] = np.where(X[:, 1] > 0.4, "[/x]", np.where(label > 0, "cat", "dog"))
    path, out = tmp_path / "three.csv", tmp_path / "out"
    frame.to_csv(path, index=False)
    said = printed(capsys, main(["compare", str(path), *FAST, "--width", "1.0", "--out", str(out)]))
    assert said.count(" 2 splits: ") == 8  # four rows below a first one, printed twice
    assert pd.read_csv(out / "standard_errors.csv", index_col=0).loc["averaged MAP", "log loss"] > 0
    assert {each.name for each in out.glob("*.png")} == PICTURES


@pytest.mark.fixed_seeds  # an error rate of few rows
@pytest.mark.usefixtures("one_classifier")
def test_compare_takes_text_and_holes_and_says_so(csv, tmp_path, monkeypatch, capsys):
    given = []

    def recorded(model, X, y, X_test):
        given.append((type(model).__name__, X, X_test))
        return fitted_rival(model, X, y, X_test)

    monkeypatch.setattr("pcvm_pymc.experiments.head_to_head.fitted_rival", recorded)
    frame = pd.read_csv(csv)
    alike = (frame["sort"] == "cat") ^ (np.arange(60) % 15 == 0)
    frame.insert(0, "colour", np.where(alike, "red", "blue"))  # which tells the sort, as a rule
    frame.loc[4, "height"] = frame.loc[7, "colour"] = np.nan
    frame["sort"] = frame["sort"].replace({"cat": "007", "dog": "NA"})
    frame.to_csv(csv, sep=";", index=False, na_rep="?")
    out, options = tmp_path / "out", ["--sep", ";", "--missing", "?", "--width", "1.5", *FAST]
    said = printed(capsys, main(["compare", str(csv), "--out", str(out), *options]))
    said = " ".join(said.split())
    assert "60 rows, 3 features (categories: colour), 2 fields missing, labels sort, " in said
    assert "classes 007, NA." in said
    assert table_of(out).loc["averaged MAP", "error"] < 0.25
    assert [name for name, *_ in given] == ["PCVMClassifier", *["LogisticRegression"] * 2] * 2
    for name, train, test in given:  # our own are given the table, others numbers
        if name == "PCVMClassifier":
            assert pd.concat([train, test]).isna().sum().tolist() == [1, 0, 1]
            assert train["colour"].dtype == test["colour"].dtype == "category"
        else:
            assert np.isfinite(np.vstack([train, test])).all()
            assert (train[:, 2:].sum(axis=1) == 1.0).all()


NO_SIZES = ["0", "-1", "1.5", "78", "nan", "inf"]
RARE = "a,b\n" + "".join(f"{i},{'x' if i < 4 else 'y'}\n" for i in range(80))
# text of x.csv, arguments, and words of the message
BAD_INPUT = [
    (None, "compare x.csv", "cannot be read as CSV ([Errno 2] No such file"),
    (RARE, "compare x.csv --test-size 0.8", "fewer than two rows of a class"),
    ("a,b\n" + "1,x\n2,y\n" * 6, "compare x.csv", "fewer than five of each"),
    *((RARE, f"compare x.csv --test-size {n}", "--test-size is") for n in NO_SIZES),
    (RARE, "compare x.csv --out x.csv", "is a file; needed a folder"),
    (None, "compare x.csv --width -2", "--width is '-2'; needed a positive number or auto"),
    (None, "compare x.csv --draws 3", "--draws is 3; needed at least 10"),
    (None, "compare x.csv --chains 1", "--chains is 1; needed at least 2"),
    (None, "compare x.csv --seed -1", "--seed is -1"),
    (None, "compare x.csv --splits 0", "--splits is 0; needed at least 1"),
    (None, "compare x.csv --jobs 0", "--jobs is 0; needed at least 1"),
    (None, "compare --posteriors 11", "--posteriors is 11; needed at most --splits, which is 10"),
    (None, "compare --target x", "--target needs a FILE.csv"),
    (None, "compare --sep ;", "--sep needs a FILE.csv"),
    (None, "reproduce chen-table1", "experiment 'chen-table1' is unknown; did you mean chen2009"),
    (None, "reproduce figueiredo2001-fig3 --sets no", "data set 'no' is unknown"),
    (None, "report nowhere", "nowhere has no run"),
]


@pytest.mark.parametrize(("text", "arguments", "words"), BAD_INPUT)
def test_bad_input_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, text, arguments, words):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "x.csv").write_text(text)
    said = complaint(capsys, main(arguments.split()))
    assert said.startswith("pcvm: error: ")
    assert said.count("\n") == 1
    assert words in said
    assert [each.name for each in tmp_path.iterdir()] == ["x.csv"] * (text is not None)


def test_reproduce_report_and_list(tmp_path, capsys):
    out = tmp_path / "out"
    sets = ["--sets", "half_gaussians_2", "half_gaussians_4", "--classifiers", "LDA", "+1NN"]
    arguments = ["reproduce", "figueiredo2001-fig3", *sets, "--repeats", "2", "--out", str(out)]
    said = printed(capsys, main(arguments))
    assert "half_gaussians_4" in said
    assert "1NN" in said
    report = out / "report"
    assert (report / "picture.png").read_bytes()[:4] == b"\x89PNG"
    assert set(pd.read_csv(report / "table.csv")["classifier"]) == {"LDA", "1NN"}
    first = (report / "table.csv").read_bytes()
    assert main(arguments) == 0  # goes on, has nothing to do
    assert (report / "table.csv").read_bytes() == first
    assert main(["report", str(out), "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "table.csv").read_bytes() == first
    capsys.readouterr()
    assert "chen2009-table1" in printed(capsys, main(["list"]))
    assert "mPCVM2" in printed(capsys, main(["list", "--classifiers"]))
    assert "wisconsin_original" in printed(capsys, main(["list", "--sets"]))


def test_a_data_folder_that_is_none_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PCVM_DATA", str(tmp_path / "nowhere"))
    arguments = ["reproduce", "chen2009-table1", "--sets", "heart", "--out", str(tmp_path / "out")]
    assert "is not a folder" in complaint(capsys, main(arguments))
    assert main(["list", "--sets"]) == 2


def test_without_data_experiments_that_need_none_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("PCVM_DATA", raising=False)
    arguments = ["reproduce", "chen2009-table1", "--sets", "heart", "--out", str(tmp_path / "out")]
    said = complaint(capsys, main(arguments))
    assert "heart" in said
    assert "Without data run " in said
    assert "figueiredo2001-fig3" in said
    assert "chen2009-table1," not in said.partition("Without data")[2]
    assert "PCVM_DATA" in said


def test_interrupted_runs_say_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pcvm_pymc.experiments.running.run.reproduce", interrupted)
    assert main(["reproduce", "figueiredo2001-fig3", "--out", str(tmp_path / "out")]) == 130
    assert "what was finished stays in the output folder" in capsys.readouterr().err


PRINTS = """
import sys
from pcvm_pymc import __main__, cli
cli.main = lambda: print("0.1 \\u00b1 0.2")
__main__.main()
"""
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LATIN = {"PYTHONIOENCODING": "latin-1"}


@pytest.mark.parametrize(("console", "shown"), [(C_LOCALE, b"0.1 ? 0.2"), (LATIN, b"0.1 \xb1 0.2")])
def test_a_console_that_is_not_utf8_shows_what_it_can(console, shown):
    command, env = [sys.executable, "-c", PRINTS], os.environ | console
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    assert done.stdout.strip() == shown
