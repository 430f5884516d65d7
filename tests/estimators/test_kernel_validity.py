import numpy as np
import pytest
from problems import blobs, fixed_rng, refused

from pcvm_pymc import MatrixRBF, PCVMClassifier, RVMClassifier, RVMRegressor, validity
from pcvm_pymc.core.evidence import EvidenceProblem, fit_rvm
from pcvm_pymc.core.pieces.kernels import RBF, as_kernel
from pcvm_pymc.core.validity import rvm_validity

X, LABEL = blobs(50, seed=3, fixed=True)
TARGET = np.sin(2 * X[:, 0]) + 0.1 * fixed_rng(5).normal(size=50)


MACHINES = [(RVMClassifier, LABEL, "logit"), (RVMRegressor, TARGET, "normal")]


@pytest.mark.parametrize(("machine", "target", "likelihood"), MACHINES)
def test_it_is_the_cores(machine, target, likelihood):
    problem = EvidenceProblem(as_kernel("rbf", 1.1)(X, X), target, likelihood)
    wanted = rvm_validity(X, problem, fit_rvm(problem), kernel=RBF(1.1))
    found = validity(machine(width=1.1).fit(X, target), X, target)
    assert found.log_validity == pytest.approx(wanted.log_validity, rel=1e-6)
    np.testing.assert_allclose(found.determined, wanted.determined, rtol=1e-6)
    # a matrix that is a multiple of the identity is a width
    form = machine(kernel=MatrixRBF(1.21 * np.eye(2)), width=1.0).fit(X, target)
    assert validity(form, X, target).log_validity == pytest.approx(wanted.log_validity, rel=1e-6)


def test_regression_prefers_the_width_that_fits():
    fits = (RVMRegressor(width=width).fit(X, TARGET) for width in (0.05, 1.2, 40.0))
    scores = [validity(each, X, TARGET).log_validity for each in fits]
    assert np.argmax(scores) == 1


OTHER_MODELS = [
    (PCVMClassifier(width=1.0), LABEL, "model is a PCVMClassifier; needed a fitted RVM"),
    (RVMRegressor(kernel="linear-spline"), TARGET, "needed 'rbf' or a MatrixRBF"),
    (RVMClassifier(width=1.0), np.arange(50) % 3, "the model has 3 classes; needed two"),
]


@pytest.mark.parametrize(("model", "y", "words"), OTHER_MODELS)
def test_other_models_are_refused(model, y, words):
    refused(words, validity, model.fit(X, y), X, y)


def test_rows_and_targets_have_to_match():
    model = RVMRegressor(width=1.0).fit(X, TARGET)
    refused(r"y has shape \(49,\); needed \(50,\)", validity, model, X, TARGET[:49])
    np.testing.assert_allclose(model._kernel_(X, X[:3]), RBF(1.0)(X, X[:3]))
