"""Tables with categories and missing values: what estimators make of them."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from problems import fixed_rng, refused
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.validation import InputWarning

N = 90
ONE = pcvm.PCVMClassifier(width=1.5, estimation="em")
EVERY = [
    ONE,
    pcvm.PCVMClassifier(width="shared", n_vectors=6, random_state=0),
    pcvm.MPCVMClassifier(width=1.5, estimation="em"),
    pcvm.RVMClassifier(width=1.5),
    pcvm.MRVMClassifier(width=1.5),
    pcvm.SparseProbitClassifier(),
    pcvm.SparseProbitClassifier(features="kernel"),
]


def problem(seed=0, n=N):
    """Return a table with a category and missing numbers, and labels that depend on both."""
    rng = fixed_rng(seed)
    colour, x = rng.choice(["red", "green", "blue"], n), rng.normal(size=(n, 2))
    label = 2.0 * (colour == "red") + x[:, 0] + 0.3 * rng.normal(size=n) > 0.5
    frame = pd.DataFrame({"colour": pd.Categorical(colour), "size": x[:, 0], "age": x[:, 1]})
    frame.loc[::9, "age"] = np.nan
    return frame, np.where(label, "yes", "no")


TABLE, LABEL = problem()
CODES = TABLE.assign(colour=TABLE["colour"].cat.codes.astype(float)).to_numpy()
NEW = problem(1)[0].iloc[:20]


def by_hand(frame):
    """Return the columns of the problem's table."""
    levels = frame["colour"].to_numpy(object)[:, None] == ["blue", "green", "red"]
    median = frame["age"].fillna(TABLE["age"].median())
    indicators = np.sqrt(2.0) * np.column_stack([levels, frame["age"].isna()])
    known = indicators[:, :3], np.zeros(len(frame))
    return np.column_stack([*known, frame["size"], median, indicators[:, 3]])


def test_a_kernel_is_that_of_indicators_and_medians():
    model, columns = clone(ONE).fit(TABLE, LABEL), by_hand(TABLE)
    np.testing.assert_allclose(model.relevance_vectors_, columns[model.support_])
    kernel = np.exp(-cdist(by_hand(NEW), model.relevance_vectors_, "sqeuclidean") / 1.5**2)
    latent = kernel @ model.weight_ + model.bias_
    np.testing.assert_allclose(model.decision_function(NEW), latent, atol=1e-10)


def as_text(table):
    return table.astype({"colour": object})


READ = [(as_text, each) for each in (["colour"], [0], [True, False, False], np.array([0]))]
READ += [(each, "from_dtype") for each in (pl.from_pandas, pa.Table.from_pandas)]


@pytest.mark.parametrize(("kind", "which"), [*READ, (lambda each: each.to_numpy(object), [0])])
def test_names_numbers_masks_and_types_of_columns_of_any_table_say_the_same(kind, which):
    model = clone(ONE).set_params(categorical_features=which).fit(kind(TABLE), LABEL)
    expected = clone(ONE).fit(TABLE, LABEL).predict_proba(NEW)
    np.testing.assert_array_equal(model.predict_proba(kind(NEW)), expected)


def test_names_of_levels_and_the_order_of_columns_do_not_matter():
    model = pcvm.PCVMClassifier(random_state=0)
    expected = clone(model).fit(TABLE, LABEL).predict_proba(NEW)
    names = {"red": "a", "green": "c", "blue": "b"}
    moved, new = (
        each.assign(colour=each["colour"].cat.rename_categories(names)) for each in (TABLE, NEW)
    )
    found = clone(model).fit(moved, LABEL).predict_proba(new)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    turned = clone(model).fit(TABLE.iloc[:, ::-1], LABEL).predict_proba(NEW.iloc[:, ::-1])
    np.testing.assert_allclose(turned, expected, atol=1e-3)


@pytest.mark.parametrize("model", EVERY, ids=str)
def test_every_estimator_takes_both_and_new_levels(model):
    fitted = clone(model).fit(TABLE, LABEL)
    assert fitted.score(TABLE, LABEL) > 0.85
    assert list(fitted.feature_names_in_) == ["colour", "size", "age"]
    new = NEW.assign(colour=NEW["colour"].astype(object))
    new.loc[new.index[0], "colour"], new.loc[new.index[1], "colour"] = "violet", None
    new.loc[new.index[2], "size"] = np.nan  # training rows have all of them
    found = fitted.predict_proba(new)
    assert 0.0 <= found.min() <= found.max() <= 1.0
    np.testing.assert_array_equal(found[3:], fitted.predict_proba(NEW)[3:])
    filled = new.fillna({"size": TABLE["size"].median()})
    np.testing.assert_allclose(found[2], fitted.predict_proba(filled)[2], atol=1e-12)
    copied = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copied.predict_proba(new), found)


def test_several_classes_and_numbers_as_targets():
    kind = np.array(["a", "b", "c"])[TABLE["colour"].cat.codes]
    several = pcvm.MPCVMClassifier(width="shared"), pcvm.RVMClassifier(), pcvm.MRVMClassifier()
    for model in several:
        fitted = model.fit(TABLE, kind)
        assert fitted.score(NEW, np.array(["a", "b", "c"])[NEW["colour"].cat.codes]) > 0.85
    shift = 2.0 * TABLE["colour"].cat.codes
    fitted = pcvm.RVMRegressor().fit(TABLE, shift + TABLE["size"])
    expected = 2.0 * NEW["colour"].cat.codes + NEW["size"]
    assert np.abs(fitted.predict(NEW) - expected).mean() < 0.3
    assert fitted.feature_relevance_.shape == fitted.feature_widths_.shape == (3,)


def test_a_feature_has_one_relevance_whatever_its_levels_and_gaps():
    rng = fixed_rng(3)
    level, x = rng.integers(0, 5, 200), rng.normal(size=(200, 3))
    x[rng.random(200) < 0.2, 2] = np.nan
    X = np.column_stack([level, x])
    model = pcvm.PCVMClassifier(categorical_features=[0], random_state=0)
    model.fit(X, (level < 2) ^ (x[:, 0] > 0))
    relevance = model.feature_relevance_
    assert relevance.shape == (4,)
    assert relevance.sum() == pytest.approx(1.0)
    assert relevance[:2].min() > 5 * relevance[2:].max()
    assert model.feature_widths_.shape == (4,)
    assert model.feature_widths_[:2].max() < model.feature_widths_[2:].min()
    np.testing.assert_allclose(model.feature_relevance_folds_.sum(axis=1), 1.0)


def test_that_a_value_is_missing_may_say_something():
    rng = fixed_rng(4)
    X, y = rng.normal(size=(1200, 2)), rng.random(1200) < 0.5
    missing = rng.random(1200) < np.where(y, 0.7, 0.1)
    X[missing, 0] = np.nan
    train, test = slice(200), slice(200, None)
    model = pcvm.PCVMClassifier(random_state=0).fit(X[train], y[train])
    # all that can be known: .7 / .8 of the rows that lack it are true, .3 / 1.2 of the others
    truth = np.where(missing, 0.7 / 0.8, 0.3 / 1.2)
    found = log_loss(y[test], model.predict_proba(X[test]))
    assert found < log_loss(y[test], truth[test]) + 0.03


def test_levels_that_have_an_order_are_weighed_as_codes():
    rng = fixed_rng(5)
    grade, other = rng.integers(0, 8, 150), rng.normal(size=150)
    y = grade + 1.5 * other + rng.normal(size=150) > 4
    words = np.array(list("hgfedcba"))[grade]  # whose alphabet is the other way round
    kinds = {
        "numbers": pd.Categorical(grade),
        "ordered": pd.Categorical(words, categories=list("hgfedcba"), ordered=True),
        "words": pd.Categorical(words),
    }
    found = {}
    for name, column in kinds.items():
        frame = pd.DataFrame({"grade": column, "other": other})
        model = pcvm.PCVMClassifier(random_state=0).fit(frame, y)
        codes = [share for kernel, share in model.selection_.kernels.items() if "codes" in kernel]
        found[name] = sum(codes)
    assert found["numbers"] == pytest.approx(found["ordered"], abs=1e-6)
    assert found["numbers"] > 0.5
    assert found["words"] == 0.0


@pytest.mark.parametrize("model", EVERY[:2], ids=str)
def test_rows_of_weight_zero_are_left_out_of_medians_and_levels(model):
    weight = np.where(TABLE["colour"] == "blue", 0.0, 1.0) * (1.0 + (np.arange(N) % 3 == 0))
    some = weight > 0
    found = clone(model).fit(TABLE, LABEL, sample_weight=weight)
    expected = clone(model).fit(TABLE[some], LABEL[some], sample_weight=weight[some])
    np.testing.assert_allclose(found.predict_proba(NEW), expected.predict_proba(NEW), atol=1e-10)


def test_given_centres_and_widths_are_those_of_the_features():
    points, signs = TABLE.iloc[:10], np.where(LABEL[:10] == "yes", 1.0, -1.0)
    model = clone(ONE).set_params(basis=(points, signs)).fit(TABLE, LABEL)
    np.testing.assert_allclose(model.relevance_vectors_, by_hand(points)[model.support_])
    wide = clone(ONE).set_params(width=[1.5, 1.5, 1e6]).fit(TABLE, LABEL)
    without = clone(ONE).fit(TABLE.assign(age=0.0), LABEL)
    np.testing.assert_array_equal(wide.feature_widths_, [1.5, 1.5, 1e6])
    # an indicator of missing ages has their width
    expected = without.predict_proba(NEW.assign(age=0.0))
    np.testing.assert_allclose(wide.predict_proba(NEW), expected, atol=1e-6)
    two, few = ({"width": [1.0, 2.0]}, {"basis": (points.iloc[:, :2], signs)})
    refused("width has 2 values; needed one or 3", clone(ONE).set_params(**two).fit, TABLE, LABEL)
    refused("basis has 2 features; needed 3", clone(ONE).set_params(**few).fit, TABLE, LABEL)


def test_what_is_computed_from_a_fit_reads_tables_as_it_does():
    model = pcvm.PCVMClassifier(width="shared", random_state=0).fit(TABLE, LABEL)
    score = pcvm.loo(model, TABLE, LABEL)
    left_out = model.held_out_[np.arange(N), (LABEL == "yes").astype(int)]
    assert score.elpd == pytest.approx(np.log(left_out).sum(), abs=0.05)
    few = pcvm.project(model, TABLE, LABEL, size=8).classifier
    assert np.abs(few.predict_proba(NEW) - model.predict_proba(NEW)).mean() < 0.1
    low, high = model.predict_interval(NEW)[:, 1].T
    probability = model.predict_proba(NEW)[:, 1]
    assert ((low <= probability) & (probability <= high)).all()


def test_a_posterior_of_a_table():
    given = {"width": "shared", "random_state": 0}
    draws = {"estimation": "posterior", "options": pcvm.PosteriorOptions(50)}
    model = pcvm.PCVMClassifier(**given, **draws).fit(TABLE, LABEL)
    one = pcvm.PCVMClassifier(**given, kernel="rbf").fit(TABLE, LABEL)
    assert np.abs(model.predict_proba(NEW) - one.predict_proba(NEW)).mean() < 0.1


def test_folds_whose_training_rows_lack_a_level_or_a_column():
    frame = TABLE.assign(colour=TABLE["colour"].cat.add_categories("rare"))
    frame.loc[5, "colour"] = "rare"
    frame["empty"] = np.nan
    frame.loc[7, "empty"] = 1.0
    with pytest.warns(InputWarning, match="empty"):  # in the fold without row 7
        assert cross_val_score(ONE, frame, LABEL, cv=5).mean() > 0.8


def test_numbers_that_new_rows_alone_lack_are_medians():
    rows, new = TABLE[["size"]].to_numpy(), np.array([[np.nan], [0.3]])
    for model in (ONE, pcvm.RVMRegressor(width=1.0)):
        fitted = clone(model).fit(rows, LABEL == "yes")
        found = getattr(fitted, "predict_proba", fitted.predict)(new)
        filled = np.where(np.isnan(new), np.median(rows), new)
        expected = getattr(fitted, "predict_proba", fitted.predict)(filled)
        np.testing.assert_array_equal(found, expected)
    lazy = pytest.importorskip("dask.array").from_array(rows)
    few = pcvm.PCVMClassifier(width=1.0, basis=5).fit(lazy, LABEL)
    refused("X has 1 value.s. that are missing", few.predict_proba, new)  # not gathered


def test_columns_that_cannot_be_categories_are_named():
    def fit(which, rows=TABLE):
        return clone(ONE).set_params(categorical_features=which).fit(rows, LABEL)

    refused("categorical_features has 'tint', which is no column of X", fit, ["tint"])
    refused("categorical_features has 3, which is no column .* of the 3 columns", fit, [3])
    refused("categorical_features has True, which is no column", fit, [True, False])
    refused("categorical_features has 'colour', which is no column", fit, ["colour"], CODES)
    refused("categorical_features has 0.5, which is no column", fit, [0.5])
    refused("categorical_features", fit, "colour")
    identity = pd.Categorical([f"row {i}" for i in range(270)])
    many = pd.concat([TABLE] * 3, ignore_index=True).assign(colour=identity)
    words = "the category 'colour' has 270 levels; needed at most 255: an identifier"
    refused(words, clone(ONE).fit, many, np.tile(LABEL, 3))
    refused("categorical_features=", fit, None)
    infinite = np.where(np.arange(N)[:, None] == [4, -1, -1], np.inf, np.ones((N, 3)))
    refused("X has 1 value.s. that are infinite, the first in row 4", fit, None, infinite)
    refused("X has 1 dim", fit, "from_dtype", TABLE["size"])
    refused("not numbers|X has 1 dim", clone(ONE).fit(TABLE, LABEL).predict, TABLE.iloc[0])
    turned = TABLE.iloc[:, ::-1]
    refused("(?i)feature names.*order", clone(ONE).fit(TABLE, LABEL).predict, turned)
    refused("3 features|Feature names", clone(ONE).fit(TABLE, LABEL).predict, TABLE.iloc[:, :2])


def test_spread_of_columns_is_judged_by_numbers_alone():
    frame = TABLE.assign(size=1e4 * TABLE["size"])
    with pytest.warns(InputWarning, match="column size .* column age"):
        clone(ONE).fit(frame, LABEL)


@pytest.mark.parametrize("categorical", [None, ["empty"]])
def test_a_column_without_a_value_is_named_and_has_no_effect(categorical):
    frame = TABLE.drop(columns="colour")
    one = clone(ONE).set_params(categorical_features=categorical)
    with pytest.warns(InputWarning, match=r"X has no value in columns \['empty'\]"):
        model = one.fit(frame.assign(empty=np.nan), LABEL)
    expected = clone(ONE).fit(frame, LABEL).predict_proba(NEW.drop(columns="colour"))
    new = NEW.drop(columns="colour").assign(empty=np.nan)
    np.testing.assert_allclose(model.predict_proba(new), expected, atol=1e-12)
    nothing, words = np.full((N, 2), np.nan), r"X has no value in columns \[0, 1\], which are all"
    named = pd.DataFrame({"a": [None] * N, "b": np.nan})
    for kind in (clone(ONE), pcvm.RVMRegressor(width=1.0)):
        refused(words, kind.fit, nothing, LABEL == "yes")
        refused("columns .'a', 'b'., which are all", kind.fit, named, LABEL == "yes")


NUMBERS, WORDS = [1, 2, 3], ["a", "b", "c"]
SPELT = [
    (NUMBERS, ["1", "2", "3"], r"found \['1', '2', '3'\], trained on \[1, 2, 3\]; .* int, as 1"),
    (NUMBERS, [" 1", "2.0", "x"], "needed type int, as 1"),
    (NUMBERS, ["2", "2", None], r"found \['2'\], trained on \[1, 2, 3\]; needed type int, as 2"),
    (WORDS, [0.0, 1.0, 2.0], "needed levels of fitted rows"),
    (WORDS, ["A", "b ", None], "needed type str, as 'a'"),
    ([False, True, None], ["False", "True", None], "needed type bool, as False"),
]


@pytest.mark.parametrize(("known", "given", "words"), SPELT)
def test_a_category_without_a_known_level_is_refused_by_name(known, given, words):
    columns = ([each[k] for k in TABLE["colour"].cat.codes] for each in (known, given))
    rows, new = (TABLE.assign(colour=pd.Categorical(each)) for each in columns)
    model = clone(ONE).fit(rows, LABEL)
    for each in (new, new.astype({"colour": object}), pl.from_pandas(new)):
        refused(f"category 'colour' has no known level: .*{words}", model.predict, each)


def test_one_unknown_level_alone_warns_and_is_predicted_as_among_known_ones():
    numbers = TABLE.assign(colour=TABLE["colour"].cat.codes.astype(int))
    model = clone(ONE).set_params(categorical_features=["colour"]).fit(numbers, LABEL)
    floats = numbers.astype({"colour": float})
    np.testing.assert_array_equal(model.predict_proba(floats), model.predict_proba(numbers))
    floats.loc[:4, "colour"] = 7.0
    among = model.predict_proba(floats)  # as silent as in scikit-learn
    for n in (1, 5):
        with pytest.warns(InputWarning, match=r"'colour' has no known level: found \[7.0\]"):
            np.testing.assert_allclose(model.predict_proba(floats[:n]), among[:n], atol=1e-12)
    np.testing.assert_allclose(model.predict_proba(floats.assign(colour=None)[:1]), among[:1])
