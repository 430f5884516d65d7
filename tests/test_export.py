"""Models of few vectors elsewhere: in ONNX, and in C."""

import ctypes
import json
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from copy import copy
from functools import cache
from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from problems import blobs, fixed_rng, refused
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.kernels import KERNELS, Radial, design_matrix
from pcvm_pymc.core.pieces.likelihoods import StudentT
from pcvm_pymc.core.probabilities import class_probability
from pcvm_pymc.export.c_names import check_c_name

X, LABEL = blobs(60, seed=31, fixed=True)
CLASS = np.digitize(X[:, 1], [-0.5, 0.4])
FEW = (X[:15], LABEL[:15])
# each would end or spoil a comment, if it could
WORDS = np.array(["*/ int", "/*?\\\u00e9??/", "'high\"\n\\"])[CLASS]
TARGET = 7.0 + 3.0 * np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1]
NEW = np.vstack([3 * fixed_rng(0).normal(size=(40, 2)), [[1e3, -1e3], [0, 0]]])

UP = {"width": 1.5, "estimation": "bottom-up"}
RADIAL = [name for name, kind in KERNELS.items() if issubclass(kind, Radial)]
SCALERS = RobustScaler(quantile_range=(10, 80)), "passthrough", MinMaxScaler((-2, 1))
MORE = MaxAbsScaler(), StandardScaler(with_mean=False)
IDLE = StandardScaler(with_std=False), RobustScaler(with_scaling=False)
PCVM, RVM = pcvm.PCVMClassifier, pcvm.RVMClassifier
MACHINE = RVM(width=1.5)
LAST = PCVM(estimation="bottom-up", width=[1.0, 2.0])
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
    "ten vectors after a scaler": (make_pipeline(StandardScaler(), PCVM(n_vectors=10)), LABEL),
    "several scalers": (make_pipeline(*SCALERS, *MORE, LAST), LABEL),
    "scalers that do nothing": (make_pipeline(*IDLE, pcvm.MRVMClassifier(width=1.5)), CLASS),
    "a search": (GridSearchCV(make_pipeline(StandardScaler(), LAST), {}, cv=2), LABEL > 0),
    "frozen": (FrozenEstimator(clone(MACHINE).fit(X, LABEL)), LABEL),
}


def regressor(**given):
    return pcvm.RVMRegressor(**{"width": 1.0, "std": "weights"} | given)


INNER = make_pipeline(RobustScaler(), regressor())
TRANSFORMED = TransformedTargetRegressor(INNER, transformer=StandardScaler())
REGRESSIONS = {
    "normal": (regressor(), TARGET),
    "Student-t": (regressor(width=[1.0, 3.0], likelihood="student-t"), TARGET),
    "no variance": (regressor(likelihood=StudentT(0.3, 1.5)), TARGET),
    "known noise, few bases": (regressor(noise=0.5, basis=4), TARGET),
    "targets about zero": (regressor(), TARGET - TARGET.mean()),
    "constant targets": (regressor(), np.full(len(X), 3.0)),
    "a pipeline": (make_pipeline(*SCALERS, regressor()), TARGET),
    "scaled targets": (TRANSFORMED, TARGET),
    "targets as they are": (TransformedTargetRegressor(INNER), TARGET),
}


@cache
def fitted(name):
    model, y = MODELS[name]
    return clone(model).fit(X, y)


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


def in_onnx(model, rows, **options):
    """Return what the graph gives, by the names of its outputs."""
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    content, cpu = pcvm.to_onnx(model, **options).SerializeToString(), ["CPUExecutionProvider"]
    session = runtime.InferenceSession(content, providers=cpu)
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, {"X": rows}), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_c_and_onnx_have_the_classifiers_probabilities_and_labels(name, tmp_path):
    model = fitted(name)
    # the estimator's own rule for several classes leaves 1e-8
    close = {"atol": 1e-8 if len(model.classes_) > 2 else 1e-12}
    expected = model.predict_proba(NEW)
    np.testing.assert_allclose(in_c(model, NEW, tmp_path), expected, **close)
    found = in_onnx(model, NEW)
    np.testing.assert_allclose(found["probabilities"], expected, **close)
    assert found["label"].tolist() == model.predict(NEW).tolist()


@pytest.mark.parametrize("name", REGRESSIONS)
def test_c_and_onnx_have_a_regressions_mean_and_standard_deviation(name, tmp_path):
    model, y = REGRESSIONS[name]
    model = clone(model).fit(X, y)
    mean, close = model.predict(NEW)[:, None], {"rtol": 1e-11, "atol": 1e-11}
    np.testing.assert_allclose(in_c(model, NEW, tmp_path), mean, **close)
    np.testing.assert_allclose(in_onnx(model, NEW)["variable"], mean, **close)
    # TransformedTargetRegressor has none itself
    scale = model.transformer_.scale_ if name == "scaled targets" else 1.0
    _, std = getattr(model, "regressor_", model).predict(NEW, return_std=True)
    both = np.hstack([mean, scale * std[:, None]])
    np.testing.assert_allclose(in_c(model, NEW, tmp_path, return_std=True), both, **close)
    found = np.hstack(list(in_onnx(model, NEW, return_std=True).values()))
    np.testing.assert_allclose(found, both, **close)


def test_the_standard_deviation_of_a_process_is_refused_and_its_mean_is_not(tmp_path):
    model = regressor(std="auto").fit(X, TARGET)
    np.testing.assert_allclose(in_c(model, NEW, tmp_path)[:, 0], model.predict(NEW), rtol=1e-11)
    for export in (pcvm.to_c, pcvm.to_onnx):
        refused(r"needs a fitted RVMRegressor\(std='weights'\)", export, model, return_std=True)


# of two categories by their numbers; words would end or spoil a comment, if they could
LEVELS = {2: ["*/ int @", "??/\n", "\\"], 3: [10.0, 20.0, 40.0]}


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

MIXED = {"categorical_features": [2, 3]}
MIXED_MODELS = {
    "projection of an average": (PCVM(n_vectors=5, basis=30, **MIXED), CODED > 0),
    "bottom-up, laplacian": (PCVM(**UP, kernel="laplacian", **MIXED), CODED > 0),
    "width per feature": (PCVM(width=[1.0, 3.0, 2.0, 1.5], estimation="em", **MIXED), CODED > 0),
    "RVM": (RVM(width=1.5, **MIXED), CODED > 0),
    "mPCVM, projection": (pcvm.MPCVMClassifier(width=1.5, n_vectors=6, **MIXED), THIRD),
    "mRVM1": (pcvm.MRVMClassifier(width=1.5, **MIXED), THIRD),
    "one from the rest": (clone(ONE).set_params(**MIXED), CODED > 0),
}


def assert_exports_give(expected, model, rows, folder, atol=1e-12):
    """Compare exports at rows of numbers and codes with the classifier's probabilities."""
    np.testing.assert_allclose(in_c(model, rows, folder), expected, rtol=0, atol=atol)
    found = in_onnx(model, rows)["probabilities"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@cache
def mixed(name):
    model, y = MIXED_MODELS[name]
    return clone(model).fit(table(CODES), y)


@pytest.mark.parametrize("name", MIXED_MODELS)
def test_c_and_onnx_take_categories_and_missing_values(name, tmp_path):
    expected = mixed(name).predict_proba(table(NEW_CODES))
    assert len(np.unique(expected[:, 0])) > 20
    # the estimator's own rule for several classes leaves more
    atol = 1e-10 if expected.shape[1] > 2 else 1e-12
    assert_exports_give(expected, mixed(name), NEW_CODES, tmp_path, atol)


def test_a_regression_takes_categories_and_missing_values(tmp_path):
    model = regressor(width=1.5, **MIXED).fit(table(CODES), 7.0 + CODED)
    both = np.column_stack(model.predict(table(NEW_CODES), return_std=True))
    close = {"rtol": 1e-11, "atol": 1e-11}
    np.testing.assert_allclose(in_c(model, NEW_CODES, tmp_path, return_std=True), both, **close)
    found = np.hstack(list(in_onnx(model, NEW_CODES, return_std=True).values()))
    np.testing.assert_allclose(found, both, **close)


@pytest.mark.parametrize("scaler", [None, StandardScaler(), MinMaxScaler((-2, 1))])
def test_ranks_are_part_of_an_export(scaler, tmp_path):
    rng = fixed_rng(7)
    x = rng.normal(size=(150, 3))
    rows, new = np.exp(1.5 * x), np.exp(2.0 * rng.normal(size=(40, 3)))  # also outside the rows
    rows[:5, 1], new[:5, 1] = np.nan, np.nan
    last = pcvm.RVMRegressor(std="weights", random_state=0)
    model = make_pipeline(scaler, last) if scaler else last
    model.fit(rows, np.sin(x[:, 0]) + x[:, 2] + 0.1 * rng.normal(size=150))
    assert last.kernel_ == "rbf of ranks"
    both = np.column_stack(model.predict(new, return_std=True))
    close = {"rtol": 1e-11, "atol": 1e-11}
    np.testing.assert_allclose(in_c(model, new, tmp_path, return_std=True), both, **close)
    found = np.hstack(list(in_onnx(model, new, return_std=True).values()))
    np.testing.assert_allclose(found, both, **close)


# the other scalers do not centre first, and lose the digits themselves
BEFORE = {StandardScaler(): 2.0**40, MinMaxScaler((-2, 1)): 1.0, MaxAbsScaler(): 1.0}


@pytest.mark.parametrize(("scaler", "offset"), BEFORE.items())
def test_scalers_of_numbers_that_are_missing_leave_codes_as_they_are(scaler, offset, tmp_path):
    far = np.array([offset, 0.0, 0.0, 0.0])
    last = RVM(width=1.5, categorical_features=[3])
    # no scaler brings the medians to zero
    model = make_pipeline(clone(scaler), RobustScaler(with_centering=False), last)
    values, new = [table(each)[3].to_numpy(dtype=float) for each in (CODES, NEW_CODES)]
    model.fit(np.column_stack([CODES[:, :3] + far[:3], values]), CODED > 0)
    expected = model.predict_proba(np.column_stack([NEW_CODES[:, :3] + far[:3], new]))
    assert_exports_give(expected, model, NEW_CODES + far, tmp_path)


def test_exports_list_the_levels_by_their_codes():
    model = mixed("RVM")
    head = pcvm.to_c(model).partition("*/")[0]
    lines = [line.strip() for line in head.splitlines()]
    assert lines[2:5] == [
        r"x[2] = 0: the level '\x2a/ int \x40'.",
        r"x[2] = 1: the level '??/\n'.",
        r"x[2] = 2: the level '\\'.",
    ]
    assert lines[8:10] == [
        "x[3] = 2: the level 40.0.",
        "x[3] = any other number: an unknown level.",
    ]
    pytest.importorskip("onnx")
    (levels,) = pcvm.to_onnx(model).metadata_props
    found = {int(j): each for j, each in json.loads(levels.value).items()}
    assert (levels.key, found) == ("levels", LEVELS)


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
        Phi = design_matrix("rbf", NEW, model.relevance_vectors_, model.width_)
        latent = Phi @ model.weight_.T + model.bias_
        expected = class_probability(model._likelihood_, latent)
        np.testing.assert_allclose(found[: len(NEW)], expected, atol=1e-8)
        likeliest = latent.argmax(axis=1) if latent.ndim > 1 else 1 * (latent > 0)
        assert graph["label"][: len(NEW)].tolist() == model.classes_[likeliest].tolist()


def test_an_offset_of_the_features_or_between_them_costs_no_digits(tmp_path):
    apart = X + 1e8 * (LABEL[:, None] > 0)
    scaled = make_pipeline(StandardScaler(), MACHINE)
    for one, rows, new in ((scaled, X + 2.0**40, NEW + 2.0**40), (MACHINE, apart, NEW + 1e8)):
        model = clone(one).fit(rows, X[:, 1] > 0)
        expected = model.predict_proba(new)
        np.testing.assert_allclose(in_c(model, new, tmp_path), expected, atol=1e-12)
        np.testing.assert_allclose(in_onnx(model, new)["probabilities"], expected, atol=1e-12)


HEADERS = "math complex stdio stdlib string ctype time wchar wctype signal setjmp fenv tgmath"
INCLUDES = "".join(f"#include <{each}.h>\n" for each in HEADERS.split())
OUR_OWN = (
    "x p f j k c i u t r z square phi latent link own centre width weight origin known level value"
)


def accepted(name):
    with suppress(ValueError):
        return check_c_name(name) is None


@pytest.mark.parametrize("dialect", ["c99", "gnu17", "c++17"])
def test_every_name_that_is_accepted_compiles(dialect):
    language = "c++" if "+" in dialect else "c"
    words = set(OUR_OWN.split())
    for what in (["-E"], ["-E", "-dM"]):  # what headers declare and define
        command = [shutil.which("gcc") or pytest.skip("no compiler"), *what, "-D_GNU_SOURCE", "-"]
        made = subprocess.run(command, input=INCLUDES, capture_output=True, text=True, check=True)
        words |= set(re.findall(r"[A-Za-z]\w*", made.stdout))
    names = sorted(filter(accepted, words))
    assert set(OUR_OWN.split()) < set(names)
    source = pcvm.to_c(mixed("bottom-up, laplacian"), "the_name")
    every = "".join(source.replace("the_name", name) for name in names)
    built(every, f"-std={dialect}", "-fsyntax-only", language=language)


@given(st.one_of(st.text(max_size=60), st.from_regex(r"[A-Za-z_]\w*", fullmatch=True)))
def test_other_names_are_refused_or_plain(name):
    assert not accepted(name) or re.fullmatch("[A-Za-z][A-Za-z0-9_]{,49}", name, re.ASCII)


def test_names_of_c_are_refused():
    for name in ["exp", "int", "main", "log", "inline", "isnan", "co_await", "linux", "M_PI"]:
        words = f"name='{name}' is kept .*; needed another, such as 'my_{name}'"
        refused(words, pcvm.to_c, None, name)


def test_without_onnx_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    refused(r'pip install "pcvm-pymc\[onnx\]"', pcvm.to_onnx, None, error=ImportError)


ALONE = r"step 'pca' .*needed StandardScaler.*Export model\[-1\] alone"
BY_COLUMN = make_pipeline(make_column_transformer((PCA(), [0, 1])), MACHINE)
TWICE = make_column_transformer((StandardScaler(), [0]), ("passthrough", [0, 1]))
CLIPPED = make_pipeline(MinMaxScaler(clip=True), MACHINE)
LOG = TransformedTargetRegressor(regressor(), func=np.log, inverse_func=np.exp)

NOT_EXPORTED = [
    (PCVM(scale=1.0, basis=FEW), LABEL, "is an average of .* n_vectors"),
    (pcvm.SparseProbitClassifier(prior="laplace"), LABEL, "needed features='kernel'"),
    (MACHINE, CLASS, "MRVMClassifier has several"),
    (RVM(kernel="linear-spline"), LABEL, "'linear-spline' has no export"),
    (regressor(std="auto", star=True), TARGET, "predicts by all its rows, .*star=False"),
    (LOG, TARGET, r"transformer of the targets is .*Export model.regressor_ alone"),
    (CalibratedClassifierCV(MACHINE, cv=2), LABEL, "CalibratedClassifierCV is no estimator"),
    (GridSearchCV(MACHINE, {}, cv=2, refit=False), LABEL, "search with refit=True"),
    (make_pipeline(PCA(), MACHINE), LABEL, ALONE),
    (CLIPPED, LABEL, r"step 'minmaxscaler' .*without clip"),
    (BY_COLUMN, LABEL, r"'pca' in step 'columntransformer' .*Export model\[-1\] alone"),
    (make_pipeline(TWICE, MACHINE), LABEL, r"more than one column of the inputs \[0\]"),
    (make_pipeline(SimpleImputer(add_indicator=True), MACHINE), LABEL, "step 'simpleimputer'"),
]


@pytest.mark.parametrize(("model", "y", "words"), NOT_EXPORTED)
def test_what_has_no_export_says_so(model, y, words):
    refused(words, pcvm.to_c, clone(model).fit(X, y))


WITH_GAPS = np.column_stack([X, fixed_rng(7).normal(5.0, 3.0, size=(60, 2))])
WITH_GAPS[fixed_rng(8).random(WITH_GAPS.shape) < 0.2] = np.nan
NEW_GAPS = np.vstack([WITH_GAPS[::-1] + 0.1, np.full((1, 4), np.nan)])
NAMES = list("abcd")
BY_PART = make_column_transformer(
    (make_pipeline(StandardScaler(), SimpleImputer(strategy="median")), [2, 0]),
    (SimpleImputer(), slice(1, 2)),
    ("drop", [3]),
)
BY_NAME = make_column_transformer(
    (SimpleImputer(strategy="constant", fill_value=-1.0), ["d"]),
    ("passthrough", ["b"]),
    (RobustScaler(), ["a"]),
)
FILLED = {
    "an imputer": make_pipeline(SimpleImputer(), MinMaxScaler((-2, 1)), MACHINE),
    "an imputer after a scaler": make_pipeline(StandardScaler(), SimpleImputer(), MACHINE),
    "columns by number": make_pipeline(BY_PART, RobustScaler(), MACHINE),
    "columns by name": make_pipeline(BY_NAME, StandardScaler(), pcvm.MRVMClassifier(width=1.5)),
}


@pytest.mark.parametrize("name", FILLED)
def test_imputers_and_column_transformers_are_part_of_the_export(name, tmp_path):
    model, names = clone(FILLED[name]), NAMES if "name" in name else None
    rows, new = (pd.DataFrame(each, columns=names) for each in (WITH_GAPS, NEW_GAPS))
    model.fit(*((rows, CLASS) if names else (WITH_GAPS, LABEL)))
    expected = model.predict_proba(new if names else NEW_GAPS)
    np.testing.assert_allclose(in_c(model, NEW_GAPS, tmp_path), expected, atol=1e-7)
    found = in_onnx(model, NEW_GAPS)
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-7)


def test_a_scaler_of_a_column_without_numbers_has_no_export():
    rows = np.column_stack([X, np.full(len(X), np.nan)])
    with np.errstate(invalid="ignore"), pytest.warns(pcvm.core.pieces.validation.InputWarning):
        model = make_pipeline(StandardScaler(), MACHINE).fit(rows, LABEL)
    refused(r"has seen no number in the columns \[2\]", pcvm.to_c, model)
