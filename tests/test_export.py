"""Models of few vectors elsewhere: in ONNX, also within pipelines, and in C."""

import ctypes
import json
import shutil
import subprocess
import sys
from copy import copy
from functools import cache
from itertools import product

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import skl2onnx
from hypothesis import example, given, settings
from hypothesis import strategies as st
from problems import blobs, fixed_rng, predicted, refused
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder, StandardScaler

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.kernels import KERNELS, Radial, as_kernel
from pcvm_pymc.core.pieces.likelihoods import StudentT
from pcvm_pymc.core.probabilities import class_probability
from pcvm_pymc.export import register_onnx

X, LABEL = blobs(60, seed=31, fixed=True)
CLASS = np.digitize(X[:, 1], [-0.5, 0.4])
FEW = (X[:15], LABEL[:15])
# each would end or spoil a comment, if it could
WORDS = np.array(["*/ int", "/*?\\\u00e9??/", "'high\"\n\\$x@"])[CLASS]
TARGET = 7.0 + 3.0 * np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1]
NEW = np.vstack([3 * fixed_rng(0).normal(size=(40, 2)), [[1e3, -1e3], [0, 0]]])

UP = {"width": 1.5, "estimation": "bottom-up"}
RADIAL = [name for name, kind in KERNELS.items() if issubclass(kind, Radial)]
PCVM, RVM = pcvm.PCVMClassifier, pcvm.RVMClassifier
MACHINE = RVM(width=1.5)
ONE = pcvm.SparseProbitClassifier(features="kernel", prior="laplace", width=1.5)
MODELS = {
    "projection of an average": (PCVM(n_vectors=4, basis=FEW), LABEL),
    **{f"bottom-up, {name}": (PCVM(**UP, kernel=name), LABEL > 0) for name in RADIAL},
    "width per feature": (PCVM(width=[1.0, 3.0], hyperprior="jeffreys"), LABEL),
    "logit": (PCVM(width=2.0, likelihood="logit", hyperprior="jeffreys"), LABEL.astype(int)),
    "label noise": (PCVM(width=2.0, likelihood="label noise"), LABEL),
    "RVM, logit": (MACHINE, LABEL),
    "RVM, probit": (RVM(width=1.5, link="probit"), LABEL),
    "mPCVM2": (pcvm.MPCVMClassifier(**UP), WORDS),
    "mRVM1": (pcvm.MRVMClassifier(width=1.5), CLASS),
    "one from the rest": (ONE, CLASS),
}


def regressor(**given):
    return pcvm.RVMRegressor(**{"width": 1.0, "std": "weights"} | given)


MODELS |= {
    "a regression": (regressor(), TARGET),
    "Student-t": (regressor(width=[1.0, 3.0], likelihood="student-t"), TARGET),
    "no variance": (regressor(likelihood=StudentT(0.3, 1.5)), TARGET),
    "known noise, few bases": (regressor(noise=0.5, basis=4), TARGET),
    "constant targets": (regressor(), np.full(len(X), 3.0)),
}


# of two categories by their numbers; words would end or spoil a comment, if they could
LEVELS = {2: ["*/ int @", "??/\n", "\\"], 3: [10.0, 20.0, -1.0]}


def table(codes):
    """Return rows of numbers and codes with the levels that these stand for: none by NaN, a new one by -1."""
    given = pd.DataFrame(codes, dtype=object)
    for j, levels in LEVELS.items():
        values = {float(code): level for code, level in enumerate(levels)}
        new = "new" if j == 2 else 99.0
        given[j] = [np.nan if np.isnan(each) else values.get(each, new) for each in codes[:, j]]
    return given


RNG = fixed_rng(2)
CODES = np.column_stack([RNG.normal(size=(60, 2)), RNG.integers(3, size=(60, 2))])
CODED = np.nan_to_num(CODES[:, 0]) + CODES[:, 1] + (CODES[:, 2] == 1) - (CODES[:, 3] == 0)
THIRD = np.digitize(CODED, [-0.5, 0.5])
CODES[::7, 0], CODES[::9, 2] = np.nan, np.nan  # features 1 and 3 are missing in new rows alone
EACH = [0, 1, 2, -1, np.nan]
NEW_CODES = np.array([*product([0.3, np.nan], [-0.8, np.nan], EACH, EACH)])
NEW_TABLE = table(NEW_CODES)
# an export takes words by their codes, and numbers as they are
GIVEN = np.column_stack([NEW_CODES[:, :3], NEW_TABLE[3].to_numpy(dtype=float)])

MIXED = {"categorical_features": [2, 3]}
MIXED_MODELS = {
    "projection, categories": (PCVM(n_vectors=5, basis=30, **MIXED), CODED > 0),
    "four widths": (PCVM(width=[1.0, 3.0, 2.0, 1.5], estimation="em", **MIXED), CODED > 0),
    "RVM, categories": (RVM(width=1.5, **MIXED), CODED > 0),
    "mRVM1, categories": (pcvm.MRVMClassifier(width=1.5, **MIXED), THIRD),
    "regression, categories": (regressor(width=1.5, **MIXED), 7.0 + CODED),
}


@cache
def fitted(name):
    model, y = (MODELS | MIXED_MODELS)[name]
    return clone(model).fit(table(CODES) if name in MIXED_MODELS else X, y)


def built(source, *options, language="c"):
    """Compile strictly, without a warning."""
    compiler = shutil.which({"c": "gcc", "c++": "g++"}[language]) or pytest.skip("no compiler")
    strict = ["-Wall", "-Wextra", "-Werror", "-x", language, "-", "-lm"]
    subprocess.run([compiler, *options, *strict], check=True, input=source.encode(), timeout=60)


def in_c(model, rows, folder, **options):
    """Return what the C function gives: class probabilities; or mean and standard deviation."""
    source, library = pcvm.to_c(model, "f", **options), folder / f"{len(list(folder.iterdir()))}.so"
    built(source, "-std=c11", "-pedantic", "-fsyntax-only")
    built(source, "-std=c99", "-pedantic", "-O1", "-shared", "-fPIC", "-o", str(library))
    function, is_number = ctypes.CDLL(str(library)).f, not hasattr(model, "classes_")
    function.restype = ctypes.c_double if is_number else None
    found = np.empty((len(rows), 1 + len(options) if is_number else len(model.classes_)))
    for row, out in zip(np.ascontiguousarray(rows), found, strict=True):
        arrays = [row, out[is_number:]][: 2 - is_number + len(options)]
        out[:is_number] = function(*(each.ctypes.data_as(ctypes.c_void_p) for each in arrays))
    return found


def run(graph, given):
    """Return what a graph gives, by the names of its outputs."""
    content, cpu = graph.SerializeToString(), ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(content, providers=cpu)
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, given), strict=True))


def in_onnx(model, rows, **options):
    return run(pcvm.to_onnx(model, **options), {"X": rows})


def assert_exports_give(model, codes, rows, folder, atol=1e-12):
    """Compare exports at rows of codes with what a model predicts of the rows; a regression's twice."""
    expected, is_number = predicted(model, rows), isinstance(model, pcvm.RVMRegressor)
    options = {"return_std": True} if is_number else {}
    in_program, outputs = in_c(model, codes, folder, **options), in_onnx(model, codes, **options)
    found = np.hstack(list(outputs.values())) if is_number else outputs["probabilities"]
    np.testing.assert_allclose(in_program, expected, rtol=1e-11, atol=atol)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=atol)


@pytest.mark.parametrize("name", MODELS | MIXED_MODELS)
def test_c_and_onnx_have_the_predictions_and_labels(name, tmp_path):
    """Probabilities and labels; of a regression mean and standard deviation, and the mean alone."""
    model, (rows, codes) = fitted(name), (NEW, NEW)
    if name in MIXED_MODELS:  # categories and missing values
        rows, codes = NEW_TABLE, GIVEN
    if isinstance(model, pcvm.RVMRegressor):
        assert_exports_give(model, codes, rows, tmp_path, 1e-11)
        for found in (in_c(model, codes, tmp_path), in_onnx(model, codes)["variable"]):
            np.testing.assert_allclose(found[:, 0], model.predict(rows), rtol=1e-11, atol=1e-11)
        return
    # the estimator's own rule for several classes leaves 1e-8
    assert_exports_give(model, codes, rows, tmp_path, 1e-8 if len(model.classes_) > 2 else 1e-12)
    assert in_onnx(model, codes)["label"].tolist() == model.predict(rows).tolist()


def test_the_standard_deviation_of_a_process_is_refused_and_its_mean_is_not(tmp_path):
    model = regressor(std="auto").fit(X, TARGET)
    np.testing.assert_allclose(in_c(model, NEW, tmp_path)[:, 0], model.predict(NEW), rtol=1e-11)
    for export in (pcvm.to_c, pcvm.to_onnx):
        refused(r"needs a fitted RVMRegressor\(std='weights'\)", export, model, return_std=True)


def test_ranks_are_part_of_an_export(tmp_path):
    rng = fixed_rng(7)
    x = rng.normal(size=(150, 3))
    rows, new = np.exp(1.5 * x), np.exp(2.0 * rng.normal(size=(40, 3)))  # also outside the rows
    rows[:5, 1], new[:5, 1] = np.nan, np.nan
    model = pcvm.RVMRegressor(std="weights", random_state=0)
    model.fit(rows, np.sin(x[:, 0]) + x[:, 2] + 0.1 * rng.normal(size=150))
    assert model.kernel_ == "rbf of ranks"
    assert_exports_give(model, new, new, tmp_path, 1e-11)


def test_exports_list_the_levels_of_words_by_their_codes():
    model = fitted("RVM, categories")
    lines = [line.strip() for line in pcvm.to_c(model).partition("*/")[0].splitlines()]
    assert lines[2:6] == [
        r"x[2] = 0: the level '\x2a/ int \x40'.",
        r"x[2] = 1: the level '??/\n'.",
        r"x[2] = 2: the level '\\'.",
        "x[2] = any other number: an unknown level.",
    ]
    (levels,) = pcvm.to_onnx(model).metadata_props
    assert (levels.key, json.loads(levels.value)) == ("levels", {"2": LEVELS[2]})


FAR = np.vstack([NEW, [[1e6, -1e6], [1e300, 0.0], [np.inf, -np.inf]]])
SATURATED = ["logit", "label noise", "RVM, probit", "mRVM1", "one from the rest"]


@pytest.mark.parametrize("name", SATURATED)
@settings(max_examples=5, deadline=None)
@given(exponent=st.floats(-5, 10), shift=st.floats(-60, 60))
@example(exponent=0.0, shift=-60.0)  # all machines say no
def test_saturated_probabilities(name, exponent, shift, tmp_path_factory):
    model = copy(fitted(name))
    model.weight_, model.bias_ = 10.0**exponent * model.weight_, model.bias_ + shift
    graph = in_onnx(model, FAR)
    for found in (in_c(model, FAR, tmp_path_factory.mktemp("c")), graph["probabilities"]):
        assert ((found >= 0) & (found <= 1)).all()
        np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-15)
        np.testing.assert_allclose(found, graph["probabilities"], atol=1e-12)
    if name != "RVM, probit":  # whose latent values have a variance
        Phi = as_kernel("rbf", model.width_)(NEW, model.relevance_vectors_)
        latent = Phi @ model.weight_.T + model.bias_
        expected = class_probability(model._likelihood_, latent)
        np.testing.assert_allclose(found[: len(NEW)], expected, atol=1e-8)
        likeliest = latent.argmax(axis=1) if latent.ndim > 1 else 1 * (latent > 0)
        assert graph["label"][: len(NEW)].tolist() == model.classes_[likeliest].tolist()


def test_an_offset_between_features_costs_no_digits(tmp_path):
    rows, new = X + 1e8 * (LABEL[:, None] > 0), NEW + 1e8
    assert_exports_give(clone(MACHINE).fit(rows, X[:, 1] > 0), new, new, tmp_path)


# --- pipelines -----------------------------------------------------------------------------------

SCALERS = [{}, {"with_mean": False}, {"with_std": False}, {"with_mean": False, "with_std": False}]


@pytest.mark.parametrize("options", SCALERS)
def test_c_has_a_scaler_before_the_vectors(options, tmp_path):
    far = 2.0**40 * options.get("with_mean", True)  # else the digits are lost before
    model = make_pipeline(StandardScaler(**options), MACHINE).fit(X + far, LABEL)
    found = in_c(model, NEW + far, tmp_path)
    np.testing.assert_allclose(found, model.predict_proba(NEW + far), atol=1e-12)


GAPS = np.where(fixed_rng(8).random(X.shape) < 0.2, np.nan, X)
NEW_GAPS = np.vstack([NEW, [[np.nan, 0.5], [np.nan, np.nan]]])
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "town": np.where(LABEL > 0, "Hull", "York")})
FRAME.loc[::4, "town"] = "Ayr"
NEW_FRAME = pd.DataFrame({"a": NEW[:, 0], "b": NEW[:, 1], "town": "York"})
NEW_FRAME.loc[::3, "town"] = "Rome"  # unknown
SMALL = PCVM(n_vectors=4, width=1.5, random_state=0)
FILLED = make_pipeline(SimpleImputer(), StandardScaler(), SMALL)


def by_column(encoder, last):
    columns = (StandardScaler(), ["a", "b"]), (encoder, ["town"])
    return make_pipeline(make_column_transformer(*columns), last)


ORDINAL = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
ENCODED = by_column(OneHotEncoder(handle_unknown="ignore", sparse_output=False), SMALL)
CODED_PIPELINE = by_column(ORDINAL, clone(SMALL).set_params(categorical_features=[2]))
SEARCH = {"pcvmclassifier__n_vectors": [3, 4]}
PIPELINES = {
    "imputer and scaler": (FILLED, GAPS, LABEL > 0),
    "several classes": (make_pipeline(SimpleImputer(), pcvm.MPCVMClassifier(**UP)), GAPS, WORDS),
    "column transformer with encoder": (ENCODED, FRAME, LABEL),
    "categories of our own": (CODED_PIPELINE, FRAME, LABEL),
    "search": (GridSearchCV(ENCODED, SEARCH, cv=2), FRAME, LABEL),
}


def in_skl2onnx(model, rows, new, **options):
    """Return what the graph of skl2onnx gives of new rows, in double precision."""
    register_onnx()
    given = {"X": new}
    if rows is FRAME:
        kinds = {"a": float, "b": float, "town": object}
        given = {name: new[[name]].to_numpy(dtype=kind) for name, kind in kinds.items()}
    return run(skl2onnx.to_onnx(model, rows[:1], options=options), given)


@pytest.mark.parametrize("name", PIPELINES)
def test_skl2onnx_exports_what_is_around_our_classifiers(name):
    model, rows, y = PIPELINES[name]
    model = clone(model).fit(rows, y)
    new = NEW_FRAME if rows is FRAME else NEW_GAPS
    found = in_skl2onnx(model, rows, new, zipmap=False)
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(new), rtol=0, atol=1e-9)
    assert found["label"].tolist() == model.predict(new).tolist()


def test_skl2onnx_exports_a_regression_and_its_standard_deviation():
    model = make_pipeline(MinMaxScaler(), regressor()).fit(X, TARGET)
    mean, std = model.predict(NEW, return_std=True)
    found = in_skl2onnx(model, X, NEW, rvmregressor__return_std=True)
    np.testing.assert_allclose(found["variable"][:, 0], mean, rtol=1e-9)
    np.testing.assert_allclose(found["std"][:, 0], std, rtol=1e-9)
    assert list(in_skl2onnx(model, X, NEW)) == ["variable"]


def test_skl2onnx_takes_single_precision_and_its_own_options():
    model = clone(FILLED).fit(GAPS, CLASS > 0)
    found = in_skl2onnx(model, GAPS.astype("f"), NEW.astype("f"))  # by default maps, one a row
    probability = [list(each.values()) for each in found["output_probability"]]
    np.testing.assert_allclose(probability, model.predict_proba(NEW), atol=1e-5)
    found = in_skl2onnx(model, GAPS, NEW, zipmap=False, nocl=True)
    assert found["label"].dtype == np.int64


def test_what_skl2onnx_cannot_have_is_refused():
    register_onnx()
    refused("is an average", skl2onnx.to_onnx, PCVM(scale=1.0, basis=FEW).fit(X, LABEL), X[:1])
    refused("target_opset=15; needed 17", skl2onnx.to_onnx, fitted("logit"), X[:1], target_opset=15)


# --- names and refusals --------------------------------------------------------------------------

OUR_OWN = "x p f j k c i u t r z square phi latent link own centre width weight"


@pytest.mark.parametrize("dialect", ["c99", "gnu17", "c++17"])
def test_a_name_may_be_one_that_the_source_has_itself(dialect):
    for model in map(fitted, ("one from the rest", "RVM, categories")):
        every = "".join(
            pcvm.to_c(model, name) for name in f"{OUR_OWN} known level value rank".split()
        )
        built(every, f"-std={dialect}", "-fsyntax-only", language="c++" if "+" in dialect else "c")


@pytest.mark.parametrize("name", ["", "_a", "1a", "a b", "a__b", "a_", "\u00e9", "a" * 51, 3])
def test_what_is_no_name_in_c_is_refused(name):
    refused("needed a letter of ASCII", pcvm.to_c, None, name)


def test_without_skl2onnx_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    words = r'pip install "pcvm-pymc\[onnx\]"'
    refused(words, register_onnx, error=ImportError)
    refused(words, pcvm.to_onnx, fitted("logit"), error=ImportError)


LOG = TransformedTargetRegressor(regressor(), func=np.log, inverse_func=np.exp)
NOT_EXPORTED = [
    (PCVM(scale=1.0, basis=FEW), LABEL, "is an average of .* n_vectors"),
    (pcvm.SparseProbitClassifier(prior="laplace"), LABEL, "needed features='kernel'"),
    (MACHINE, CLASS, "MRVMClassifier has several"),
    (RVM(kernel="linear-spline"), LABEL, "'linear-spline' has no export"),
    (regressor(std="auto", star=True), TARGET, "predicts by all its rows, .*star=False"),
    (LOG, TARGET, "TransformedTargetRegressor is no .*pipeline of a StandardScaler .*regressor_"),
    (CalibratedClassifierCV(MACHINE, cv=2), LABEL, "CalibratedClassifierCV is no estimator"),
    (GridSearchCV(MACHINE, {}, cv=2), LABEL, "GridSearchCV is no .*Export best_estimator_"),
    (make_pipeline(MinMaxScaler(), MACHINE), LABEL, "Pipeline is no .*do outside of C"),
]


@pytest.mark.parametrize(("model", "y", "words"), NOT_EXPORTED)
def test_what_has_no_export_says_so(model, y, words):
    refused(words, pcvm.to_c, clone(model).fit(X, y))


def test_a_pipeline_is_for_skl2onnx():
    model = make_pipeline(StandardScaler(), MACHINE).fit(X, LABEL)
    refused(r"Pipeline is no .*register_onnx\(\).*skl2onnx.to_onnx", pcvm.to_onnx, model)
