import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pymc as pm
import pytest
from matplotlib.figure import Figure
from problems import SHALLOW, blobs, map_result, printed_measures, refused
from sklearn.base import clone

import pcvm_pymc as pcvm
from pcvm_pymc.assessment.project import _from_classifier
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.projection.choice import smallest_within_one_se
from pcvm_pymc.estimators.projection import project_reference
from pcvm_pymc.estimators.training import inner_folds
from pcvm_pymc.experiments import datasets
from pcvm_pymc.model.build import build

SIZES = (0, 1, 2, 4, 8)


@pytest.fixture(scope="module")
def dense():
    X, label = blobs(80, seed=70, fixed=True)
    words = np.where(label > 0, "plus", "minus")
    return pcvm.PCVMClassifier(width=1.2).fit(X, words), X, words


@pytest.fixture(scope="module")
def projection(dense):
    return pcvm.project(*dense, sizes=SIZES, random_state=0)


def divergence(p, q):
    """Return the mean Kullback-Leibler divergence of rows of class probabilities."""
    return (p * np.log(p / q)).sum(axis=1).mean()


def three_classes(n, seed):
    """Return rows and the names of their three classes, whose order is not that of their rows."""
    X, label = blobs(n, seed=seed, fixed=True)
    return X, np.array(["b", "a", "c"])[np.where((label > 0) & (X[:, 1] > 0), 2, label > 0)]


def test_the_classifier_is_the_chosen_submodel(dense, projection):
    model, X, words = dense
    sparse, i = projection.classifier, projection.index
    assert len(sparse.weight_) == len(projection.path.columns[i]) <= projection.size
    assert projection.path.sizes[i] == projection.size
    assert len(model.weight_) > 40
    latent = projection.path.latent(RBF(1.2)(X, X))[i]
    np.testing.assert_allclose(sparse.decision_function(X), latent, atol=1e-12)
    np.testing.assert_array_equal(sparse.relevance_vectors_, X[sparse.support_])
    np.testing.assert_array_equal(sparse.weight_ > 0, words[sparse.support_] == "plus")
    assert set(sparse.predict(X)) == {"minus", "plus"}
    largest = projection.classifier_of(8)  # which size is chosen depends on the folds
    assert largest.score(X, words) > model.score(X, words) - 0.05
    assert largest.projection_.size == 8
    copy = pickle.loads(pickle.dumps(sparse))
    np.testing.assert_array_equal(copy.predict_proba(X), sparse.predict_proba(X))
    p, q = model.predict_proba(X), projection.classifier_of(4).predict_proba(X)
    assert projection.path.kl[SIZES.index(4)] == pytest.approx(divergence(p, q), abs=1e-10)


def test_map_tree_and_classifier_give_the_same_path(dense, projection):
    _, X, words = dense
    tree = map_result(pcvm.pcvm_model(X, words, width=1.2, hyperprior=pcvm.Hyperprior.plug_in()))
    other = pcvm.project(tree, sizes=SIZES, random_state=0)
    np.testing.assert_allclose(other.path.kl, projection.path.kl, atol=1e-9)
    np.testing.assert_allclose(other.elpd, projection.elpd, atol=1e-6)
    assert other.classifier.classes_.tolist() == ["minus", "plus"]


def test_a_free_width_is_fixed_at_its_median_and_results_have_their_inputs():
    X, label = blobs(40, seed=72)
    tree = map_result(pcvm.pcvm_model(X, label, width=pm.LogNormal.dist(0.0, 0.5)))
    width = tree["posterior"]["width"].item()
    assert pcvm.project(tree, size=3).classifier.width_ == pytest.approx(width)
    tree = map_result(pcvm.pcvm_model(X, label, width=1.2, basis=X[:10], signs=label[:10]))
    found = pcvm.project(tree, size=4)
    np.testing.assert_array_equal(pcvm.project(tree, X, size=4).path.kl, found.path.kl)
    lines = repr(pcvm.project(tree, random_state=1)).splitlines()
    assert 3 <= len(lines) <= 10
    assert lines[0].startswith("Projection onto ")
    assert sum("chosen" in line for line in lines) == 1
    without = tree.copy()  # as results were packed before
    without["constant_data"] = without["constant_data"].to_dataset().drop_vars("X")
    refused("40 rows and its bases 10; needed the training inputs", pcvm.project, without)
    np.testing.assert_array_equal(found.reference.centres.sign, label[:10])
    np.testing.assert_array_equal(found.reference.centres.rows, np.arange(10))
    assert found.path.kl[-1] < found.path.kl[0] or len(found.path.kl) == 1


def test_scores_are_those_of_refits_without_the_held_out_rows_and_bases(dense, projection):
    _, X, words = dense
    label = np.where(words == "plus", 1.0, -1.0)
    train, test = inner_folds(label, 5, 0)[2]
    fold = pcvm.PCVMClassifier(width=1.2).fit(X[train], words[train])
    truth = (np.arange(len(test)), (label[test] > 0).astype(int))
    held_out = np.log(fold.predict_proba(X[test])[truth])
    np.testing.assert_allclose(projection.reference_log_density[test], held_out, atol=1e-5)
    sparse = pcvm.project(fold, X[train], words[train], sizes=SIZES, size=8)
    sparse = sparse.classifier_of(2)
    held_out = np.log(sparse.predict_proba(X[test])[truth])
    np.testing.assert_allclose(projection.log_density[2][test], held_out, atol=1e-3)
    np.testing.assert_allclose(projection.elpd, projection.log_density.sum(axis=1))


def test_the_smallest_size_within_one_standard_error():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=100)
    sizes = np.array([0, 1, 2, 5])
    # the second is worse by less than the standard error of the difference, the first by more
    rows = np.array([noise - 1.0, noise - 0.05 + 0.6 * rng.normal(size=100), noise, noise - 0.01])
    best = rows[2].sum()
    error = 10 * (rows[2] - rows[1]).std(ddof=1)
    assert (rows[1].sum() + error >= best) == (smallest_within_one_se(sizes, rows) == 1)
    assert smallest_within_one_se(sizes, np.stack([noise, noise, noise, noise])) == 0
    assert smallest_within_one_se(sizes, np.stack([noise - 1, noise - 1, noise - 1, noise])) == 5


def test_the_choice_is_by_the_rule(projection):
    assert projection.size == smallest_within_one_se(projection.path.sizes, projection.log_density)
    assert projection.difference_se[projection.elpd.argmax()] == 0
    assert (projection.elpd_se > 0).all()
    again = project_reference(projection.reference, sizes=SIZES, random_state=0)
    np.testing.assert_array_equal(again.log_density, projection.log_density)


def test_it_is_stored_and_drawn(projection, tmp_path):
    tree = pcvm.load(pcvm.save(projection.to_datatree(), tmp_path / "projection.zarr"))
    group = tree["projection"]
    i = projection.index
    np.testing.assert_array_equal(group["elpd"], projection.elpd)
    np.testing.assert_array_equal(group["weight"][i], projection.path.dense_weight(i, 80))
    assert group["chosen_size"].item() == projection.size
    figure = projection.plot()
    assert len(figure.axes) == 2
    assert f"chosen: {projection.size} vectors" in figure.axes[0].get_legend_handles_labels()[1]
    unscored = project_reference(projection.reference, size=2)
    assert np.isnan(unscored.elpd).all()
    assert np.isnan(unscored.reference_elpd)
    assert len(unscored.plot().axes) == 1
    again = pcvm.load(pcvm.save(unscored.to_datatree(), tmp_path / "projection.zarr"))
    assert again["projection"]["bias"].shape


def test_the_estimator_projects_its_own_dense_mode():
    X, label = blobs(80, seed=73, fixed=True)
    dense = pcvm.PCVMClassifier(width=1.2).fit(X, label)
    model = pcvm.PCVMClassifier(width=1.2, estimation="projection", n_vectors=4).fit(X, label)
    assert len(model.weight_) <= 4
    other = pcvm.project(dense, X, label, size=4).classifier
    np.testing.assert_allclose(model.decision_function(X), other.decision_function(X), atol=1e-6)
    assert model.log_posterior_ <= dense.log_posterior_
    auto = pcvm.PCVMClassifier(width=1.2, estimation="projection", random_state=0).fit(X, label)
    assert len(auto.weight_) <= auto.projection_.size <= 50
    own = {"width": 1.2, "estimation": "projection"}
    everything = pcvm.PCVMClassifier(**own, n_vectors=500).fit(X, label)
    assert everything.score(X, label) == pytest.approx(dense.score(X, label), abs=0.02)


@pytest.mark.parametrize("kind", [pcvm.PCVMClassifier, pcvm.MPCVMClassifier])
def test_by_default_both_names_project_the_average_onto_the_same_number(kind):
    X, label = blobs(50, seed=76, fixed=True)
    given = {"width": "shared", "random_state": 0}
    two = kind(estimation="projection", **given), kind(n_vectors="auto", **given)
    one, other = (each.fit(X, label) for each in two)
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))
    average, p = kind(kernel="rbf", **given).fit(X, label), one.projection_.reference.probability
    p = p if p.ndim > 1 else np.column_stack([1 - p, p])
    np.testing.assert_allclose(p, average.predict_proba(X))
    assert one.projection_.path.kl[one.projection_.index] <= 3e-3
    refused("needed the .* of the fit, in its order", pcvm.project, average, X[::-1], label[::-1])


UNUSABLE_INPUT = [
    ({"size": 81}, "size=81; needed 'auto' or a whole number from 0 to 80"),
    ({"sizes": [-1, 3]}, "needed whole numbers from 0 to 80"),
    ({"X": None}, "a classifier does not keep its training data"),
    ({"y": np.arange(80) % 2}, "needed the classifier's"),
]


@pytest.mark.parametrize(("arguments", "words"), UNUSABLE_INPUT)
def test_input_that_cannot_be_used(dense, arguments, words):
    model, X, y = dense
    given = {"X": X, "y": y, **arguments}
    refused(words, pcvm.project, model, **given)


def test_references_that_cannot_be_used(projection):
    refused("reference={}; needed a DataTree", pcvm.project, {})
    refused("size=3 is not on the path", projection.classifier_of, 3)
    X, label = blobs(20, seed=74)
    tree = map_result(pcvm.pcvm_model(X, label))
    refused("y differs from the labels", pcvm.project, tree, X, -label)
    refused("for a PyMC covariance", pcvm.project, tree, kernel=pm.gp.cov.ExpQuad(2, 1.0))
    none = pcvm.PCVMClassifier(estimation="projection", n_vectors=0)
    refused("'n_vectors' parameter .* Got 0 ", none.fit, X, label)


def average(several=False):
    """Return an average of two machines of different widths, as a reference."""
    X, label = blobs(60, seed=75)
    number = np.where((label > 0) & (X[:, 1] > 0), 2, label > 0) if several else label > 0
    words = np.array(["no", "so", "yes"])[number.astype(int)]
    make, given = pcvm.PCVMClassifier, {}
    if several:
        make, given = pcvm.MPCVMClassifier, {"hyperprior": "plug_in"}
    modes = [make(width=width, **given).fit(X, words) for width in (1.2, 2.0)]
    probability = np.mean([each.predict_proba(X) for each in modes], axis=0)
    reference = replace(_from_classifier(modes[0], X, words), probability=probability)
    return reference.averaged(0.9 * probability + 0.1 / probability.shape[1])


@pytest.mark.parametrize("several", [False, True])
def test_an_average_is_projected_onto_vectors_of_several_widths(several):
    reference = average(several=several)
    found = project_reference(reference)
    X, classes = reference.X, reference.classes
    assert len(reference.centres) == 180
    few = found.classifier
    assert len(few.weight_.T) == len(few.vector_widths_) <= found.size
    assert set(np.round(few.vector_widths_ / 1.2, 6)) <= {0.6, 1.0, 1.7}
    assert len(set(few.vector_widths_)) > 1
    scores = np.zeros((60, 3)) if several else np.zeros(60)
    for width in np.unique(few.vector_widths_):
        own = few.vector_widths_ == width
        Phi = RBF(width)(X, few.relevance_vectors_[own])
        scores = scores + Phi @ few.weight_.T[own]
    np.testing.assert_allclose(few._predictor_.latent(X), scores + few.bias_, atol=1e-10)
    q = few.predict_proba(X)
    p = reference.probability
    p = p if several else np.column_stack([1 - p, p])
    kl = (p * np.log(p / q)).sum(axis=1)
    assert found.path.kl[found.index] == pytest.approx(kl.mean(), abs=1e-7)
    # no vector more than it takes
    assert kl.mean() <= 3e-3
    assert (found.path.kl[: found.index] > 3e-3).all()
    assert found.path.sizes[-1] == found.size
    number = reference.label if several else (reference.label > 0).astype(int)
    held_out = 0.9 * p[np.arange(60), number] + 0.1 / len(classes)
    np.testing.assert_allclose(found.reference_log_density, np.log(held_out))
    np.testing.assert_allclose(found.log_density[found.index], np.log(held_out) - kl, atol=1e-7)
    wanted = np.einsum("ic,ic->i", p, np.log(p / q) ** 2).mean() - kl.mean() ** 2
    assert found.difference_se[found.index] == pytest.approx(np.sqrt(60 * wanted), rel=1e-4)
    assert few.basis is None
    assert few.width_ == 1.2
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(few)).predict(X), few.predict(X))


def test_an_average_at_given_sizes_and_stored(tmp_path):
    reference = average()
    assert len(project_reference(reference, size=3).classifier.weight_) == 3
    whole = project_reference(reference, sizes=[0, 1, 2])  # none is near
    assert whole.size == 2
    tree = pcvm.load(pcvm.save(whole.to_datatree(), tmp_path / "projection.zarr"))
    assert tree["constant_data"]["basis_width"].shape == (180,)
    np.testing.assert_array_equal(tree["constant_data"]["held_out"], reference.held_out)
    assert len(whole.plot().axes) == 2
    refused("cv=3 has no effect on an average", project_reference, reference, cv=3)


def machine(X, words):
    given = {"width": 1.5, "hyperprior": "plug_in", "options": pcvm.EMOptions(tol=1e-6)}
    return pcvm.MPCVMClassifier(**given).fit(X, words)


def mode(X, words, build=pcvm.mrvm_model, **shared):
    return map_result(build(X, words, width=1.5, hyperprior=pcvm.Hyperprior.plug_in(), **shared))


def probabilities(fitted, X):
    if hasattr(fitted, "predict_proba"):
        return fitted.predict_proba(X)
    return pcvm.predict(fitted, X)["predictions"]["probability"].values[0, 0]


BY_FOLDS = {  # a dense machine of several classes, and what its folds are to be
    "mPCVM1": (machine, machine),
    "mRVM": (mode, mode),
    "mRVM shared": (partial(mode, shared=True), mode),
    "mRVM2": (pcvm.MRVMClassifier(width=1.5, estimation="em").fit, mode),
}


@pytest.mark.parametrize(("fit", "of_fold"), BY_FOLDS.values(), ids=BY_FOLDS)
def test_several_classes_by_folds(fit, of_fold):
    X, words = three_classes(40, 77)
    dense = fit(X, words)
    found = pcvm.project(dense, X, words, sizes=(0, 2, 5), cv=2, random_state=0)
    few = found.classifier_of(5)
    assert few.weight_.shape == (3, 5)
    np.testing.assert_allclose(found.reference.probability, probabilities(dense, X), atol=1e-10)
    wanted = divergence(probabilities(dense, X), few.predict_proba(X))
    assert found.path.kl[2] == pytest.approx(wanted, abs=1e-7)
    target = found.reference.target(found.reference.design())
    assert found.path.kl[2] < 0.5 * target.divergence(np.zeros((40, 3)))
    coded = few.classes_.searchsorted(words)
    if fit is machine:
        signs = np.where(coded[few.support_] == np.arange(3)[:, None], 1.0, -1.0)
        assert (few.weight_ * signs >= 0).all()
    else:
        assert isinstance(few, pcvm.MRVMClassifier)
        np.testing.assert_allclose(few.weight_.sum(axis=0), 0, atol=1e-7)
    train, test = inner_folds(coded, 2, 0)[1]
    held_out = probabilities(of_fold(X[train], words[train]), X[test])
    held_out = np.log(held_out[np.arange(len(test)), coded[test]])
    np.testing.assert_allclose(found.reference_log_density[test], held_out, atol=1e-3)


def test_several_classes_as_a_posterior_and_stored(tmp_path):
    X, words = three_classes(40, 77)
    found = pcvm.project(machine(X, words), X, words, sizes=(0, 2, 5), size=5)
    tree = mode(X, words, pcvm.mpcvm_model)
    other = pcvm.project(tree, sizes=(0, 2, 5), size=5)
    np.testing.assert_allclose(other.path.kl, found.path.kl, atol=1e-4)
    assert other.classifier.classes_.tolist() == ["a", "b", "c"]
    assert other.to_datatree()["projection"]["weight"].shape == (3, 40, 3)
    refused("y differs from the labels", pcvm.project, tree, y=np.roll(words, 1))
    free = pcvm.project(mode(X, words), size=2)
    pcvm.save(free.to_datatree(), tmp_path / "projection")
    assert "signs" not in pcvm.load(tmp_path / "projection")["constant_data"]
    assert isinstance(free.plot(), Figure)


def test_a_posterior_is_projected_by_its_mean_probability_also_of_drawn_label_noise():
    X, label = blobs(30, seed=78)
    flips = pm.Beta.dist(2.0, 20.0)
    model = build(pcvm.FAMILY["pcvm"], X, label, width=1.2, likelihood="label noise", flip=flips)
    few = {"draws": 20, "tune": 20, "chains": 1, "random_seed": 1} | SHALLOW
    draws = pcvm.sample(model, **few, nuts_sampler="pymc", progressbar=False, quiet=True)
    found = pcvm.project(draws, size=3)
    wanted = pcvm.predict(draws, X)["predictions"]["probability"].mean(("chain", "draw")).values
    np.testing.assert_allclose(found.reference.probability, wanted, atol=1e-10)
    flip = draws["posterior"]["flip"].mean().item()
    assert found.classifier.likelihood.flip == pytest.approx(flip)
    assert found.reference.hyperprior == pcvm.Hyperprior.plug_in()
    np.testing.assert_array_equal(pcvm.project(draws, X, label, size=3).path.kl, found.path.kl)


def test_a_fit_forgets_the_projection():
    X, words = three_classes(40, 79)
    dense = pcvm.MRVMClassifier(width=1.2, estimation="em").fit(X, words)
    few = pcvm.project(dense, X, words, size=4).classifier
    refused("y has the classes", pcvm.project, dense, X, np.where(words == "a", "z", words))
    anew = clone(few).fit(X, words)
    assert np.any(few.bias_)
    np.testing.assert_array_equal(few.fit(X, words).bias_, anew.bias_)


def test_free_weights_of_one_score_are_projected_on_both_signs():
    X, label = blobs(30, seed=79)
    result = pcvm.fit_evidence(pcvm.rvm_model(X, label, likelihood="logit", width=1.2))
    few = pcvm.project(result, size=6).classifier
    wanted = pcvm.predict(result, X)["predictions"]["probability"].values[0, 0]
    np.testing.assert_allclose(few.predict_proba(X)[:, 1], wanted, atol=0.1)
    assert {*np.sign(few.weight_)} == {-1.0, 1.0}
    machine = pcvm.RVMClassifier(width=1.2).fit(X, label)
    refused("reference is a RVMClassifier; needed a PCVM", pcvm.project, machine, X, label)


# Chen, Tino & Yao (2009): error and 1-RMSE of the PCVM (Table I), its vectors (Table III), rounded down
PAPER = {"twonorm": (2.46, 85.02, 13), "ringnorm": (1.53, 80.36, 17)}
PAPER |= {"waveform": (10.40, 71.78, 26), "banana": (10.30, 72.13, 19)}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PAPER))
def test_the_papers_number_of_vectors_is_enough(name, data_folder):
    """Of an average of RBFs, as in the paper, and its projection (docs/results.md)."""
    data, (error, rmse, size), rows = datasets.load(name, folder=data_folder), PAPER[name], []
    for k in range(len(data.train[:5])):
        X, y, X_test, y_test = data.split(k)
        dense = pcvm.PCVMClassifier(kernel="rbf", width="shared", random_state=0).fit(X, y)
        sparse = pcvm.project(dense, X, y, size=size).classifier
        assert len(sparse.weight_) <= size
        rows.append([printed_measures(model, X_test, y_test) for model in (dense, sparse)])
    full, few = np.mean(rows, axis=0)
    assert few[2] > rmse
    if full[0] <= error:
        assert few[0] <= error
    assert few[0] < full[0] + 0.15
    # the default is an average, whose AUC on banana 19 vectors do not reach: they are .114 points below
    assert few[1] > full[1] - (0.15 if name == "banana" else 0.1)
