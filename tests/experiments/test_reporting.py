"""What a report says of deviations, ranks and time."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from pcvm_pymc.experiments import catalogue, pictures
from pcvm_pymc.experiments.classifiers import CLASSIFIERS
from pcvm_pymc.experiments.datasets import SOURCES
from pcvm_pymc.experiments.reporting.reading import _table
from pcvm_pymc.experiments.reporting.report import Report, _markdown_table, table_html
from pcvm_pymc.experiments.reporting.sections import seconds_of_fits, sections_of
from pcvm_pymc.experiments.statistics import MEASURES, average_ranks

TABLE3 = catalogue.EXPERIMENTS["lyu2020-table3"]
NAMES = ["SVM", "DLSR", "MLR", "mPCVM2"]
SETS = ["glass", "iris", "wine", "vowel"]


def timing_of(sets, seconds):
    rows = [(s, c, each, 0.0) for s in sets for c, each in seconds.items()]
    return pd.DataFrame(rows, columns=["set", "classifier", "seconds", "tuning seconds"])


def report(shift=0.0, **changes):
    """Return a report whose means are the paper's, but the SVM's error on vowel and the MLR's on iris."""
    printed = catalogue.printed_table("lyu2020-table3")
    printed = printed.set_index(["set", "classifier", "measure"])["mean"]
    shifted = {("vowel", "SVM"): -10 * shift, ("iris", "MLR"): 10 * shift}
    cells = pd.DataFrame(
        [
            {"set": s, "classifier": c, "realisation": k}
            | {key: np.nan for key in MEASURES if key != "seconds"}
            | {"error": printed[s, c, "error"] + shifted.get((s, c), 0.0) + 0.1 * (-1) ** k}
            for s, c, k in product(SETS, NAMES, range(4))
        ]
    )
    manifest = {"sets": SETS, "classifiers": NAMES, "repeats": 4, "seed": 0, "expected": 64}
    manifest |= {"versions": {}, "notes": {}}
    timing = timing_of(SETS, {name: len(name) for name in NAMES})
    none = pd.DataFrame(columns=["cell", "reason", "traceback"])
    made = Report(TABLE3, manifest, cells, _table(cells, TABLE3), timing, none, {}, (), **changes)
    return made, {each.title: each for each in sections_of(made)}


def colours(page):
    """Return the entries of a page that are coloured, and how."""
    entries = dict(re.findall(r'id="(T_\w+)" class="data[^>]*>([^<]*)</td>', page))
    styles = re.findall(r"((?:#T_\w+(?:, )?)+) {\s*background-color: (#\w+)", page)
    cells = {each.strip("#,"): colour for names, colour in styles for each in names.split()}
    return {entries[each]: colour for each, colour in cells.items() if colour != "#ffffff"}


def test_deviations_are_in_the_papers_standard_deviations_or_the_measured_ones():
    std, paper = [0.5, 0.5, 0.5, np.nan, 1e-15], [2.0, np.nan, 0.0, np.nan, np.nan]
    table = pd.DataFrame({"mean": 2.0, "std": std, "paper mean": 1.0, "paper std": paper})
    np.testing.assert_allclose(catalogue.deviations(table), [0.5, 2.0, 2.0, np.nan, np.nan])


def test_sentences_name_what_there_is():
    table = catalogue.sentences()
    assert tuple(table.columns) == catalogue.DEVIATION_COLUMNS
    runs = {each.run for each in catalogue.EXPERIMENTS.values()}
    known_of = {"run": runs, "measure": set(MEASURES), "set": set(SOURCES)}
    known_of |= {"classifier": set(CLASSIFIERS), "side": {"above", "below"}}
    for column, known in known_of.items():
        named = {name for each in table[column] if each != "*" for name in each.split(";")}
        assert named <= known, column
    assert table["sentence"].str.fullmatch(r"[A-Z0-9].*\.").all()


def test_the_first_sentence_that_fits_counts():
    said = catalogue.sentence_of(TABLE3, "error", "vowel", "SVM", -2.0)
    assert "tuned one errs on about one per cent" in said
    assert catalogue.sentence_of(TABLE3, "error", "iris", "SVM", -2.0) != said
    assert catalogue.sentence_of(TABLE3, "vectors", "iris", "SVM", -2.0) == ""


def test_the_papers_own_means_deviate_nowhere():
    _, sections = report()
    found = sections["What deviates: Error, %"]
    assert found.table is None
    assert "SVM 4 of 4" in found.text[0]
    shade = sections["Measured and (printed): Error, %"].shade
    np.testing.assert_allclose(shade.to_numpy(), 0.0, atol=0.05)


def test_deviations_have_their_sentences_and_their_colours():
    _, sections = report(1.0)
    table = sections["What deviates: Error, %"].table
    assert table["classifier"].to_dict() == {"iris": "MLR", "vowel": "SVM"}
    assert "under-tuned" in table.loc["vowel", "why"]
    page = table_html(table, sections["What deviates: Error, %"].shade)
    assert colours(page) == {"+1.3": "#fce1c8", "-3.8": "#aed0ea"}
    beside = sections["Measured and (printed): Error, %"]
    assert beside.table.loc["vowel", "SVM"].startswith("10.3")
    assert "\n(20.3" in beside.table.loc["vowel", "SVM"]
    assert "\n(20.3" in table_html(beside.table, beside.shade)


def test_a_deviation_without_a_sentence_is_counted(monkeypatch):
    monkeypatch.setattr("pcvm_pymc.experiments.reporting.sections.sentence_of", lambda *each: "")
    _, sections = report(1.0)
    found = sections["What deviates: Error, %"]
    assert "2 of the 2 deviations below have no sentence yet." in found.text
    assert set(found.table["why"]) == {"no sentence yet"}


def test_ranks_have_those_of_the_printed_means_beside_them():
    _, sections = report(1.0)
    table = sections["Ranks: Error, %"].table
    printed = catalogue.printed_table("lyu2020-table3").query("measure == 'error'")
    wide = printed.pivot_table(index="set", columns="classifier", values="mean").loc[SETS, NAMES]
    wanted = average_ranks(wide)
    for name in NAMES:
        assert table.loc[name, "of the printed means"] == f"{wanted[name]:.2f}"
    assert sections["Ranks: Error, %"].figure is not None


def test_without_scikit_posthocs_the_report_says_what_it_needs(monkeypatch):
    def missing(*args, **more):
        raise ImportError

    monkeypatch.setattr(pictures, "draw_ranks", missing)
    _, sections = report()
    assert sections["Ranks: Error, %"].figure is None
    assert 'pip install "pcvm-pymc[reports]"' in sections["Ranks: Error, %"].text[-1]


def test_time_is_ranked_beside_the_papers():
    experiment = catalogue.EXPERIMENTS["chen2009-table1"]
    made, _ = report()
    sets, names = ["heart", "titanic"], ["SVM", "RVM", "LDA"]
    seconds = {"SVM": 1.0, "RVM": 2.0, "LDA": 3.0}
    timing = timing_of(sets, seconds)
    found = list(seconds_of_fits(replace(made, experiment=experiment, timing=timing)))
    assert [each.title for each in found] == ["CPU seconds of a fit and (printed)", "Ranks of time"]
    ranks = found[1].table
    assert list(ranks.index) == ["SVM", "RVM", "LDA"]
    assert list(ranks["measured"]) == ["1.00", "2.00", "3.00"]
    wide = catalogue.printed_table("chen2009-table7")
    wide = wide.pivot_table(index="set", columns="classifier", values="mean")
    wanted = average_ranks(wide.loc[sets, names])
    assert [float(each) for each in ranks["printed"]] == pytest.approx(list(wanted[names]))


def test_entries_are_escaped_and_rows_may_have_the_same_name():
    names = pd.Index(["<i>", "x", "x"], name="set")
    table = pd.DataFrame({"<a>": ["<b>", 0.5, np.nan]}, index=names)
    page = table_html(table, pd.DataFrame({"a": [np.nan, -3.0, 1.0]}))
    for each in ("a", "b", "i"):
        assert f"&lt;{each}&gt;" in page
        assert f"<{each}>" not in page
    assert page.count(">x</td>") == 2
    assert colours(page) == {"0.5": "#aed0ea"}
    assert "nan" not in page
    table = pd.DataFrame({"<script>a": ["<img src=x>", "a|b", "p < 0.05"]})
    text = "\n".join(_markdown_table(table))
    assert "<script" not in text
    assert "<img" not in text
    assert r"a\|b" in text
    assert "p < 0.05" in text
