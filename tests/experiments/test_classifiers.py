from dataclasses import replace

import numpy as np
import pytest
from problems import blobs, refused
from sklearn.datasets import load_iris, make_friedman1
from sklearn.linear_model import Ridge
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from pcvm_pymc.experiments import classifiers
from pcvm_pymc.experiments.baselines import CalibratedSVC, DLSRClassifier
from pcvm_pymc.experiments.classifiers import CLASSIFIERS, Setting, TuningTask

classifiers.test_errors.__test__ = False  # its name is no test's


@pytest.mark.fixed_seeds  # of scikit-learn's own data
@parametrize_with_checks([CalibratedSVC(), DLSRClassifier()])
def test_estimators_are_scikit_learns(estimator, check):
    check(estimator)


def test_dlsr_minimises_its_objective():
    X, y = load_iris(return_X_y=True)

    def objective(n_steps):
        model = DLSRClassifier(ridge=0.1, max_iter=n_steps, tol=0.0).fit(X, y)
        target = np.eye(3)[y]
        direction = 2 * target - 1
        scores = model.decision_function(X)
        slack = np.maximum(direction * (scores - target), 0)
        residual = scores - target - direction * slack
        return (residual**2).sum() + 0.1 * (model.coef_**2).sum()

    assert (np.diff([objective(n) for n in (1, 2, 5, 20, 100)]) < 0).all()
    # the first step, before any target moves, is ridge regression
    first = DLSRClassifier(ridge=0.1, max_iter=1).fit(X, y)
    ridge = Ridge(alpha=0.1).fit(X, np.eye(3)[y])
    np.testing.assert_allclose(first.coef_, ridge.coef_, atol=1e-10)
    np.testing.assert_allclose(first.intercept_, ridge.intercept_, atol=1e-10)
    assert DLSRClassifier().fit(X, y).score(X, y) > 0.8
    refused(r"ridge=0; needed a positive number", DLSRClassifier(ridge=0).fit, X, y)


def test_the_calibrated_machine_predicts_the_machines_labels():
    X, label = blobs(80, seed=3)
    model = CalibratedSVC(C=2.0, width=1.5).fit(X, label)
    plain = SVC(C=2.0, gamma=1.5**-2).fit(X, label)
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    assert classifiers.vector_counts(model) == (len(plain.support_), plain.dual_coef_.size)
    lonely = np.where(np.arange(80) == 0, "one", np.where(label > 0, "a", "b"))
    assert set(np.unique(CalibratedSVC().fit(X, lonely).predict_proba(X))) == {0.0, 1.0}


def task(n=50, **changes):
    X, label = blobs(n, seed=5, fixed=True)
    X_test, y_test = blobs(n, seed=6, fixed=True)
    return TuningTask(X, label, X_test, y_test, **changes)


def quickly_tuned(row):
    """Return a row that is tuned by two folds over one or two candidates: more show no more."""

    def few(each):
        return each[len(each) // 4 :: max(3, len(each) // 2)]

    def candidates(X):
        return {name: few(each) for name, each in row.candidates(X).items()}

    return replace(row, n_folds=2, candidates=row.candidates and candidates)


SLOW = {"PCVM_posterior": [pytest.mark.slow]}  # Gibbs is compiled first
NAMES = [pytest.param(name, marks=SLOW.get(name, [])) for name in CLASSIFIERS]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", NAMES)
def test_every_classifier_can_be_tuned_and_fitted(name):
    row = quickly_tuned(classifiers.classifier_of(name))
    if "classification" not in row.tasks:
        X, y = make_friedman1(50, random_state=0)
        work = TuningTask(X, y, X, y, is_regression=True)
    else:
        work = task()
    parameters = classifiers.tune(row, work)
    assert all(isinstance(value, int | float) for value in parameters.values())
    assert bool(parameters) == row.has_parameters
    model = row.make(work.setting(parameters)).fit(work.X, work.y)
    assert model.score(work.X_test, work.y_test) > 0.6
    vectors, _ = classifiers.vector_counts(model)
    assert len(classifiers.vector_rows(model, work.X)) == (0 if np.isnan(vectors) else vectors)


def test_what_is_given_is_not_tuned():
    work = task(given={"width": 0.7})
    assert classifiers.tune(CLASSIFIERS["SVM"], work)["width"] == 0.7
    assert classifiers.tune(CLASSIFIERS["PCVM"], work) == {"width": 0.7}
    choices, errors = classifiers.test_errors(CLASSIFIERS["SVM"], work)
    assert [set(each) for each in choices] == [{"C"}] * 5
    assert len(errors) == 5
    # candidates are those of the reference, not of the training part
    other = task(reference=10 * work.X)
    widths = [each["width"] for each in classifiers.test_errors(CLASSIFIERS["SVM_hard"], other)[0]]
    mine = [each["width"] for each in classifiers.test_errors(CLASSIFIERS["SVM_hard"], task())[0]]
    np.testing.assert_allclose(widths, 10 * np.array(mine))


def test_of_equals_the_middle_one_is_taken():
    assert classifiers.middle_of_best([0.3, 0.1, 0.1, 0.1, 0.2]) == 2
    assert classifiers.middle_of_best([0.1, 0.2]) == 0


def test_settings_know_regression():
    assert CLASSIFIERS["RVM"].make(Setting(is_regression=True)).__class__.__name__ == "RVMRegressor"
    assert CLASSIFIERS["SVM"].make(Setting(is_regression=True)).__class__.__name__ == "SVR"
    assert CLASSIFIERS["kNN"].make(Setting({"k": 20}, n_rows=6)).n_neighbors == 6
