"""What holds for every estimator: scikit-learn's checks, named errors, files, ends short of convergence."""

import html
import inspect
import subprocess
import sys
import warnings

import joblib
import numpy as np
import pytest
from problems import blobs, linear, refused
from sklearn.base import BaseEstimator, clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    PredefinedSplit,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import pcvm_pymc as pcvm
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.estimators import base
from pcvm_pymc.estimators.display import chosen
from pcvm_pymc.estimators.training import TrainingData

PCVM, MPCVM, MRVM = pcvm.PCVMClassifier, pcvm.MPCVMClassifier, pcvm.MRVMClassifier
RVM, SPARSE = pcvm.RVMClassifier, pcvm.SparseProbitClassifier
EM, UP = pcvm.EMOptions(max_iter=10), pcvm.BottomUpOptions(max_iter=10)
EVIDENCE, OPTIONS = pcvm.EvidenceOptions(max_iter=10), pcvm.PosteriorOptions


class NoFolds:
    """An estimator whose arguments leave nothing to folds: without `cv`, which it would refuse."""

    def __init__(self, **arguments):
        super().__init__(**arguments)

    # or it would be asked for `arguments`
    __init__.__signature__ = inspect.signature(lambda self: None)

    @classmethod
    def _get_param_names(cls):
        return [each for each in super()._get_param_names() if each != "cv"]


class OnePCVM(NoFolds, PCVM): ...


class OneMPCVM(NoFolds, MPCVM): ...


class OneMRVM(NoFolds, MRVM): ...


class OneRVM(NoFolds, RVM): ...


class OneRegressor(NoFolds, pcvm.RVMRegressor): ...


CHECKED = [
    PCVM(),
    OnePCVM(width=1.0),
    OnePCVM(width="em"),
    OnePCVM(n_vectors=5, estimation="projection", width=1.0),
    OnePCVM(estimation="bottom-up", width=1.0, options=UP),
    OnePCVM(likelihood="logit", width=1.0),
    OneMPCVM(estimation="bottom-up", width=1.0, options=UP),
    OneMPCVM(hyperprior="jeffreys", width=1.0, options=EM),
    MPCVM(options=EM),
    OneMRVM(width=1.0, options=UP),
    OneMRVM(estimation="em", width=1.0, options=EM),
    OneRVM(width=1.0),
    OneRVM(link="probit", method="batch", width=1.0, options=EVIDENCE),
    OneRegressor(width=5.0),
    OneRegressor(star=True, method="batch", width=5.0),
    SPARSE(),
    SPARSE(features="quadratic", prior="laplace", gamma=10.0, bias="free", options=EM),
    SPARSE(features="kernel"),
]


@pytest.mark.fixed_seeds  # of scikit-learn's own data
@parametrize_with_checks(CHECKED)
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=ConvergenceWarning)
        check(estimator)


SLOWER = [
    MPCVM(),
    MRVM(),
    RVM(),
    pcvm.RVMRegressor(),
    PCVM(estimation="posterior", basis=5, options=OPTIONS(20, 60)),
    MPCVM(estimation="posterior", basis=6, options=OPTIONS(20, 60)),
]


@pytest.mark.slow
@pytest.mark.fixed_seeds
@parametrize_with_checks(SLOWER)
def test_scikit_learns_slower_checks(estimator, check):
    test_scikit_learns_checks(estimator, check)


def drawn(model):
    """Return the diagram for notebooks, after all has been read that Tab asks for."""
    for name in dir(model):
        getattr(model, name)
    bundle = model._repr_mimebundle_()
    assert bundle["text/plain"] == repr(model)
    return html.unescape(bundle["text/html"])


@pytest.mark.parametrize("kind", [PCVM, MPCVM, MRVM, RVM, pcvm.RVMRegressor, SPARSE])
def test_arguments_of_any_kind_are_displayed_before_a_fit(kind):
    allowed = {name: kind._parameter_constraints[name] for name in ("width", "estimation")}
    words = {n: [w for c in each for w in getattr(c, "options", ())] for n, each in allowed.items()}
    for kernel in ("auto", "rbf", "precomputed", "nonsense", RBF, RBF(2.0), None):
        for width in [*words["width"], [1.0, 2.0], "nonsense", None]:
            for estimation in [*words["estimation"], "nonsense"]:
                model = kind(kernel=kernel, width=width, estimation=estimation)
                assert {"fit", "predict", "get_params", "width"} <= set(dir(model))
    assert kind.__name__ in drawn(model)
    refused("'rbf' without a name; needed .*kernel='rbf'", kind, "rbf", error=TypeError)


SHOWN = [
    PCVM(basis=9),
    PCVM(width=[1.0, 2.0], n_vectors=4, basis=9),
    PCVM(width="cv", estimation="bottom-up", options=UP),
    PCVM(estimation="posterior", basis=5, width=1.0, options=OPTIONS(20, 60)),
    PCVM(kernel="precomputed", estimation="em"),
    PCVM(memory_limit=1e6, basis=9, width=1.0),
    MPCVM(width=1.0, options=EM),
    MRVM(width="shared", options=UP),
    RVM(width=1.0),
    pcvm.RVMRegressor(width="shared"),
    SPARSE(),
    SPARSE(features="kernel", width="shared"),
]


ESTIMATIONS = [
    PCVM(basis=9),
    MPCVM(width=1.0, estimation="bottom-up", options=UP),
    PCVM(width=1.0, n_vectors=2, basis=9),
    PCVM(estimation="posterior", basis=5, width=1.0, options=OPTIONS(20, 60), n_vectors=2),
    RVM(width=1.0),
    SPARSE(),
]


@pytest.mark.parametrize("model", ESTIMATIONS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_estimation_returns_its_result_and_sets_nothing(model):
    X, y = blobs(40, seed=3)
    model = clone(model).set_params(random_state=0)
    estimation, data = model._begin(X), model._training(X, y)
    before = set(vars(model))
    result = estimation.fit(data)
    assert set(vars(model)) == before
    with pytest.raises(AttributeError):
        result.predictor = None
    model._publish(result)
    fitted = clone(model).fit(X, y)
    assert set(vars(fitted)) - {"_seconds_"} == set(vars(model))
    np.testing.assert_array_equal(model.predict_proba(X), fitted.predict_proba(X))


@pytest.mark.skipif(not hasattr(BaseEstimator, "_get_fitted_attr_html"), reason="shows no fits")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("model", SHOWN)
def test_a_fit_is_displayed_with_what_was_chosen_alone_and_in_what_is_around_it(model):
    X, y = blobs(30, seed=60)
    model = clone(model)
    assert "<summary>Fit<" not in drawn(model)
    model.fit(np.exp(-np.square(X[:, None] - X).sum(-1)) if "pre" in str(model) else X, y)
    fit, text = vars(model), drawn(model)
    shown = chosen(fit, model._kernel_at(1.0))
    assert all(f'{name}</td><td class="value">{value}<' in text for name, value in shown.items())
    assert float(shown["seconds"]) > 0.0
    if np.ndim(fit.get("width_", [])) == 0:
        assert shown.get("width", "nan") == f"{model.width_:.4g}"
    if "relevance_vectors_" in fit:
        assert shown["vectors"] == str(len(model.relevance_vectors_))
    if "held_out_" in fit:
        loss = f"{log_loss(y, model.held_out_):.4f} nats a row, approximate"
        assert shown["held-out log loss"] == loss
        scaled = make_pipeline(ColumnTransformer([("all", StandardScaler(), [0, 1])]), clone(model))
        for around in (scaled, GridSearchCV(scaled, {}, cv=2), OneVsRestClassifier(clone(model))):
            assert "<summary>Fit<" not in drawn(around)
            assert ("<summary>Fit<" in drawn(around.fit(X, y))) == ("One" not in str(around))


GROUP = np.arange(40) % 8
SPLITS = [
    (RVM(width="shared"), StratifiedKFold(3)),
    (RVM(width="shared"), ShuffleSplit(2, random_state=0)),
    (pcvm.RVMRegressor(width="shared"), TimeSeriesSplit(3)),
    (pcvm.RVMRegressor(width="shared"), GroupKFold(4)),
    (pcvm.RVMRegressor(), [(np.arange(40) > 9, np.arange(10)), (np.arange(30), [30, 31])]),
    (MRVM(width="shared", options=UP), PredefinedSplit(np.arange(40) // 2 % 4)),
    (PCVM(width="cv", basis=None), LeaveOneGroupOut()),
    (PCVM(basis=None), KFold(5, shuffle=True, random_state=0)),
    (PCVM(estimation="projection", hyperprior="jeffreys", width=1.0), StratifiedKFold(3)),
]


@pytest.mark.parametrize(("model", "cv"), SPLITS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_splitter_gives_what_its_pairs_give(model, cv, monkeypatch):
    X, y = blobs(40, seed=60)
    groups = GROUP if "Group" in str(cv) else None
    if groups is not None:
        refused("groups", clone(model).set_params(cv=cv).fit, X, y)
    model, asked = clone(model).set_params(random_state=0), []
    split = model.set_params(cv=cv).fit(X, y, groups=groups)
    pairs = cv if isinstance(cv, list) else list(cv.split(X, y, groups))
    held_out = {tuple(np.sort(X[test][:, 0])) for _, test in pairs}
    folds = TrainingData.folds

    def watched(data, *given, **how):
        asked.append((data, folds(data, *given, **how)))
        return asked[-1][1]

    monkeypatch.setattr(TrainingData, "folds", watched)
    found = clone(model).set_params(cv=pairs).fit(X, y, groups=groups)
    np.testing.assert_array_equal(found.predict(X), split.predict(X))
    for data, used in asked:
        assert {tuple(np.sort(data.X[test][:, 0])) for _, test in used} == held_out
    assert asked


BAD_SPLITS = [
    (PCVM(cv=ShuffleSplit(3, random_state=0)), "cv holds out row .* not once; needed folds that"),
    (RVM(cv=[(np.arange(30), np.arange(30, 41))]), "gives no pairs .* numbers of the 40 rows"),
    (RVM(cv=[3, 4]), "gives no pairs .* numbers of the 40 rows"),
    (RVM(cv=[(np.arange(0, 40, 2), np.arange(1, 40, 2))]), "fold 0 holds out nothing, or leaves"),
    (RVM(cv=KFold(3), width=1.0), "cv was given with .*width=1.0, where it has no effect"),
    (RVM(cv="five"), "The 'cv' parameter of RVMClassifier must be"),
    (RVM(cv=1), "The 'cv' parameter of RVMClassifier must be"),
]


@pytest.mark.parametrize(("model", "words"), BAD_SPLITS)
def test_splits_that_cannot_be_used_are_named(model, words):
    refused(words, model.fit, *blobs(40, seed=60))


BAD_PIECES = [
    (PCVM(kernel=RBF), r"kernel=RBF is a class; needed an object of it: RBF\(\.\.\.\)"),
    (MPCVM(bias="yes"), "'bias' parameter of MPCVMClassifier must be .*None.* Got 'yes' instead"),
    (SPARSE(width="narrow", features="kernel"), "'width' parameter of .*'median'.* Got 'narrow'"),
    (PCVM(hyperprior="flat"), "hyperprior='flat' is unknown"),
    (MPCVM(hyperprior="vague"), "hyperprior='vague' is unknown"),
    (PCVM(width="em", kernel=linear), "width='em' needs kernel='rbf'"),
    (MRVM(width="validity", kernel="linear-spline"), "needs kernel='rbf'"),
    (MPCVM(basis=(np.zeros((2, 2)), ["red", "green"]), width=1.0), "the basis' labels are"),
    (RVM(link="log"), "link='log' is unknown"),
    (SPARSE(prior="flat"), "prior='flat'; needed one of"),
    (SPARSE(prior=pcvm.Hyperprior(1, 1, 1, 1, rate_shape=1.0)), "Hyperprior with rate_shape=None"),
    (SPARSE(prior="laplace", gamma=-1.0), r"gamma=-1\.0; needed a positive finite number"),
]


@pytest.mark.parametrize(("model", "words"), BAD_PIECES, ids=range(len(BAD_PIECES)))
def test_bad_pieces_are_named(model, words):
    refused(words, model.fit, *blobs(20, seed=60))


STAGES = [
    (PCVM(), ("candidate", "fit to all rows: EM iteration")),
    (PCVM(estimation="posterior", width=1.0, options=OPTIONS(9, 30)), ("posterior at width",)),
    (MPCVM(), ("fit to all rows: EM iteration",)),
    (MRVM(width="shared", basis=9), ("fold 2: epoch", "fit to all rows: epoch")),
    (pcvm.RVMRegressor(width="shared", basis=9), ("fold 2: ", "fit to all rows: ")),
    (SPARSE(), ("s, EM iteration",)),
]


@pytest.mark.parametrize(("model", "stages"), STAGES)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_progress_is_printed_on_request(model, stages, capsys, monkeypatch):
    monkeypatch.setattr(base, "_LINE_SECONDS", 0.0)
    X, y = blobs(60)
    model.fit(X, y)
    assert not capsys.readouterr().out
    model.set_params(verbose=True).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"{type(model).__name__}, 0 s, ") for line in lines[:3])
    assert all(any(stage in line for line in lines) for stage in stages)
    model.set_params(verbose=False).fit(X, y)
    assert not capsys.readouterr().out


LIMITS = [(PCVM, pcvm.EMOptions(max_iter=1))]
LIMITS += [(kind, pcvm.EvidenceOptions(max_iter=2)) for kind in (RVM, pcvm.RVMRegressor)]


@pytest.mark.parametrize(("kind", "options"), LIMITS)
def test_iteration_limit_warns(kind, options):
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        kind(width=1.0, options=options).fit(*blobs(40, seed=57))


FLAT = {"hyperprior": "jeffreys", "width": 1e9, "options": pcvm.EMOptions(max_iter=5000)}


@pytest.mark.parametrize("model", [PCVM(**FLAT), SPARSE(prior="laplace", gamma=1e6)])
def test_an_empty_model_predicts_by_its_bias(model):
    X, label = blobs(40, seed=56)
    with pytest.warns(ConvergenceWarning, match="every weight was pruned"):
        model.fit(np.vstack([X, X[:5]]), np.append(label, np.ones(5)))
    if model.status_ is pcvm.Status.EMPTY_MODEL:
        assert model.weight_.size == 0
    assert len(set(model.predict(X))) == 1


@pytest.mark.parametrize("model", [PCVM(width="cv"), PCVM(), RVM()])
def test_a_lonely_point_of_a_class_leaves_nothing_to_hold_out(model):
    X, label = blobs(20, seed=58)
    label[:] = -1
    label[3] = 1
    model.fit(X, label)
    assert np.isfinite(model.predict_proba(X)).all()
    if isinstance(model, pcvm.RVMClassifier):
        assert model.width_ in model.width_selection_.widths  # chosen by the evidence of all rows
    if model.width == "cv":
        assert np.isnan(model.width_selection_.scores).all()


NAMES = sorted(name for name in pcvm.__all__ if name.endswith(("Classifier", "Regressor")))


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_default_estimator_predicts_the_same_bits(name, tmp_path):
    skops = pytest.importorskip("skops.io")
    model = getattr(pcvm, name)(random_state=0)
    X, label = blobs(40, seed=5)
    model.fit(X, X[:, 0] if name == "RVMRegressor" else label)
    joblib.dump(model, tmp_path / "joblib")
    skops.dump(model, tmp_path / "skops")
    types = skops.get_untrusted_types(file=tmp_path / "skops")
    assert all(each.startswith("pcvm_pymc.") for each in types)
    for kept in (joblib.load(tmp_path / "joblib"), skops.load(tmp_path / "skops", trusted=types)):
        for how in {"predict", "predict_proba"} & set(dir(model)):
            np.testing.assert_array_equal(getattr(kept, how)(X + 0.1), getattr(model, how)(X + 0.1))
        assert kept.status_ is model.status_


def test_core_and_estimators_do_not_import_pymc_nor_a_fit_more_than_it_needs():
    code = (
        "import sys, numpy as np; from pcvm_pymc import PCVMClassifier; "
        "X = np.random.default_rng(0).normal(size=(40, 2)); y = X[:, 0] > 0; "
        "PCVMClassifier().fit(X, y); "
        "from pcvm_pymc import MPCVMClassifier, SparseProbitClassifier, Hyperprior; "
        "own = [name for name in sys.modules if name.split('.')[0] == 'pcvm_pymc']; "
        "assert len(own) <= 52, sorted(own); "
        "from pcvm_pymc import project; "
        "project(PCVMClassifier(width=2.0).fit(X, y), X, y, size=2).classifier; "
        "assert 'pymc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
