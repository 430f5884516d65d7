"""Classifiers of few vectors elsewhere: in ONNX, and in C."""

import ctypes
import shutil
import subprocess
import sys

import numpy as np
import pytest
from problems import blobs, fixed_rng, refused
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.kernels import KERNELS, Radial

X, LABEL = blobs(60, seed=31, fixed=True)
CLASS = np.digitize(X[:, 1], [-0.5, 0.4])
FEW = (X[:15], LABEL[:15])
WORDS = np.array(["low", "middle", "high"])[CLASS]
NEW = np.vstack([3 * fixed_rng(0).normal(size=(40, 2)), [[1e3, -1e3], [0, 0]]])

UP = {"width": 1.5, "estimation": "bottom-up"}
SCALERS = RobustScaler(quantile_range=(10, 80)), "passthrough", MinMaxScaler((-2, 1))
MORE = MaxAbsScaler(), StandardScaler(with_mean=False)
IDLE = StandardScaler(with_std=False), RobustScaler(with_scaling=False)
PCVM, RVM = pcvm.PCVMClassifier, pcvm.RVMClassifier
LAST = PCVM(estimation="bottom-up", width=[1.0, 2.0])
ONE = pcvm.SparseProbitClassifier(features="kernel", prior="laplace", width=1.5)
MODELS = {
    "projection of an average": (PCVM(n_vectors=4, basis=FEW), LABEL),
    **{
        f"bottom-up, {name}": (PCVM(estimation="bottom-up", kernel=name, width=1.5), LABEL > 0)
        for name, kind in KERNELS.items()
        if issubclass(kind, Radial)
    },
    "width per feature": (PCVM(width=[1.0, 3.0], hyperprior="jeffreys"), LABEL),
    "logit": (PCVM(width=2.0, likelihood="logit", hyperprior="jeffreys"), LABEL.astype(int)),
    "label noise": (PCVM(width=2.0, likelihood="label noise"), LABEL),
    "RVM, logit": (RVM(width=1.5), LABEL),
    "RVM, probit": (RVM(width=1.5, link="probit"), LABEL),
    "mPCVM2": (pcvm.MPCVMClassifier(**UP), WORDS),
    "mRVM1": (pcvm.MRVMClassifier(width=1.5), CLASS),
    "one from the rest": (ONE, CLASS),
    "ten vectors after a scaler": (make_pipeline(StandardScaler(), PCVM(n_vectors=10)), LABEL),
    "several scalers": (make_pipeline(*SCALERS, *MORE, LAST), LABEL),
    "scalers that do nothing": (make_pipeline(*IDLE, pcvm.MRVMClassifier(width=1.5)), CLASS),
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
    content, cpu = pcvm.to_onnx(model).SerializeToString(), ["CPUExecutionProvider"]
    session = runtime.InferenceSession(content, providers=cpu)
    label, probability = session.run(["label", "probabilities"], {"X": NEW})
    np.testing.assert_allclose(probability, model.predict_proba(NEW), atol=1e-8)
    assert label.tolist() == model.predict(NEW).tolist()


def test_without_onnx_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    refused(r'pip install "pcvm-pymc\[onnx\]"', pcvm.to_onnx, None, error=ImportError)


MACHINE = RVM(width=1.5)
ALONE = r"step 'pca' .*needed StandardScaler.*Export model\[-1\] alone"
CLIPPED = make_pipeline(MinMaxScaler(clip=True), MACHINE)


NOT_EXPORTED = [
    (PCVM(scale=1.0, basis=FEW), LABEL, "is an average of .* n_vectors"),
    (pcvm.SparseProbitClassifier(prior="laplace"), LABEL, "needed features='kernel'"),
    (MACHINE, CLASS, "MRVMClassifier has several"),
    (RVM(kernel="linear-spline"), LABEL, "'linear-spline' has no export"),
    (pcvm.RVMRegressor(width=1.0), LABEL, "is no classifier"),
    (make_pipeline(PCA(), MACHINE), LABEL, ALONE),
    (CLIPPED, LABEL, r"step 'minmaxscaler' .*without clip"),
]


@pytest.mark.parametrize(("model", "y", "words"), NOT_EXPORTED)
def test_what_has_no_export_says_so(model, y, words):
    refused(words, pcvm.to_c, clone(model).fit(X, y))
