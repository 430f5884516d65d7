"""Classifiers of few vectors elsewhere: in ONNX, and in C."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from problems import blobs
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.kernels import KERNELS, Radial

X, LABEL = blobs(60, seed=31)
CLASS = np.digitize(X[:, 1], [-0.5, 0.4])
FEW = (X[:15], LABEL[:15])
WORDS = np.array(["low", "middle", "high"])[CLASS]
NEW = np.vstack([3 * np.random.default_rng(0).normal(size=(40, 2)), [[1e3, -1e3], [0, 0]]])

MODELS = {
    "projection of an average": (pcvm.PCVMClassifier(n_vectors=4, basis=FEW), LABEL),
    **{
        f"bottom-up, {name}": (
            pcvm.PCVMClassifier(estimation="bottom-up", kernel=name, width=1.5),
            LABEL > 0,
        )
        for name, kind in KERNELS.items()
        if issubclass(kind, Radial)
    },
    "width per feature": (pcvm.PCVMClassifier(width=[1.0, 3.0], hyperprior="jeffreys"), LABEL),
    "logit": (
        pcvm.PCVMClassifier(width=2.0, likelihood="logit", hyperprior="jeffreys"),
        LABEL.astype(int),
    ),
    "label noise": (pcvm.PCVMClassifier(width=2.0, likelihood="label noise"), LABEL),
    "RVM, logit": (pcvm.RVMClassifier(width=1.5), LABEL),
    "RVM, probit": (pcvm.RVMClassifier(width=1.5, link="probit"), LABEL),
    "mPCVM2": (pcvm.MPCVMClassifier(algorithm="bottom-up", width=1.5), WORDS),
    "mRVM1": (pcvm.MRVMClassifier(width=1.5), CLASS),
    "one from the rest": (
        pcvm.SparseProbitClassifier(features="kernel", prior="laplace", width=1.5),
        CLASS,
    ),
    "ten vectors after a scaler": (
        make_pipeline(StandardScaler(), pcvm.PCVMClassifier(n_vectors=10)),
        LABEL,
    ),
    "several scalers": (
        make_pipeline(
            RobustScaler(quantile_range=(10, 80)),
            "passthrough",
            MinMaxScaler((-2, 1)),
            MaxAbsScaler(),
            StandardScaler(with_mean=False),
            pcvm.PCVMClassifier(estimation="bottom-up", width=[1.0, 2.0]),
        ),
        LABEL,
    ),
    "scalers that do nothing": (
        make_pipeline(
            StandardScaler(with_std=False),
            RobustScaler(with_scaling=False),
            pcvm.MRVMClassifier(width=1.5),
        ),
        CLASS,
    ),
}


@pytest.fixture(scope="module")
def fitted():
    known = {}

    def get(name):
        if name not in known:
            model, y = MODELS[name]
            known[name] = clone(model).fit(X, y)
        return known[name]

    return get


@pytest.mark.parametrize("name", MODELS)
def test_the_c_function_has_the_classifiers_probabilities(name, fitted, tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    model = fitted(name)
    source, library = tmp_path / "model.c", tmp_path / "model.so"
    source.write_text(pcvm.to_c(model, "proba"))
    strict = ["-std=c99", "-Wall", "-Wextra", "-Wno-unused-const-variable", "-Werror", "-pedantic"]
    subprocess.run(
        [compiler, *strict, "-O1", "-shared", "-fPIC", str(source), "-o", str(library), "-lm"],
        check=True,
    )
    function = ctypes.CDLL(str(library)).proba
    pointer = ctypes.POINTER(ctypes.c_double)
    found = np.empty((len(NEW), len(model.classes_)))
    for row, out in zip(np.ascontiguousarray(NEW), found, strict=True):
        function(row.ctypes.data_as(pointer), out.ctypes.data_as(pointer))
    np.testing.assert_allclose(found, model.predict_proba(NEW), atol=1e-8)


@pytest.mark.parametrize("name", MODELS)
def test_the_onnx_graph_has_the_classifiers_probabilities_and_labels(name, fitted):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    model = fitted(name)
    session = runtime.InferenceSession(
        pcvm.to_onnx(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    label, probability = session.run(["label", "probabilities"], {"X": NEW})
    np.testing.assert_allclose(probability, model.predict_proba(NEW), atol=1e-8)
    assert label.tolist() == model.predict(NEW).tolist()


@pytest.mark.parametrize(
    ("model", "y", "words"),
    [
        (pcvm.PCVMClassifier(scale=1.0, basis=FEW), LABEL, "is an average of .* n_vectors"),
        (pcvm.SparseProbitClassifier(prior="laplace"), LABEL, "needed features='kernel'"),
        (pcvm.RVMClassifier(width=1.5, kernel="rbf"), CLASS, "MRVMClassifier has several"),
        (pcvm.RVMClassifier(kernel="linear-spline"), LABEL, "'linear-spline' has no export"),
        (pcvm.RVMRegressor(width=1.0), LABEL, "is no classifier"),
        (
            make_pipeline(PCA(), pcvm.RVMClassifier(width=1.5)),
            LABEL,
            r"step 'pca' .*needed StandardScaler.*Export model\[-1\] alone",
        ),
        (
            make_pipeline(MinMaxScaler(clip=True), pcvm.RVMClassifier(width=1.5)),
            LABEL,
            r"step 'minmaxscaler' .*without clip",
        ),
    ],
)
def test_what_has_no_export_says_so(model, y, words):
    with pytest.raises(ValueError, match=words):
        pcvm.to_c(clone(model).fit(X, y))


def test_names_that_c_does_not_have(fitted):
    with pytest.raises(ValueError, match="needed a name of C's"):
        pcvm.to_c(fitted("bottom-up, rbf"), "2nd try")
