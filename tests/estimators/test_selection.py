"""Choices of width and scale: `select`."""

import numpy as np
import pytest
from problems import banana, blobs, laplacian, linear, refused
from sklearn.datasets import load_iris

from pcvm_pymc import PCVMClassifier, RVMClassifier, plots, select
from pcvm_pymc.core.em import fit_em
from pcvm_pymc.core.evidence import EvidenceOptions
from pcvm_pymc.core.pieces.kernels import as_kernel, median_distance
from pcvm_pymc.core.pieces.probit import log_ndtr
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.validity import pcvm_validity


@pytest.mark.fixed_seeds  # tolerances of ranking
def test_the_scores_are_those_of_refits_without_the_held_out_rows():
    from sklearn.model_selection import StratifiedKFold

    X, label = blobs(40, seed=70)
    found = select(X, label, by="cv", widths=[0.7, 1.5], cv=4, random_state=5)
    seed = int(np.random.default_rng(5).integers(2**31))
    folds = StratifiedKFold(4, shuffle=True, random_state=seed).split(X, label)
    loss = found.fold_log_loss
    for j, (train, test) in enumerate(folds):
        for i, width in enumerate((0.7, 1.5)):
            if loss.mask[i, j]:  # it had dropped out
                continue
            model = PCVMClassifier(width=width).fit(X[train], label[train])
            wanted = -log_ndtr(label[test] * model.decision_function(X[test])).mean()
            assert loss[i, j] == pytest.approx(wanted, abs=2e-4)  # ranked, not polished
    assert not loss.mask[found.scores.argmax()].any()
    assert found.width == found.widths[found.scores.argmax()]
    assert found.method == "cv"
    np.testing.assert_array_equal(found.log_loss, -found.scores)


def test_evidence_is_that_of_the_probit_rvm_at_each_width():
    X, label = blobs(50, seed=76)
    found = select(X, label, by="evidence", widths=[0.3, 1.0, 3.0])
    for width, score in zip(found.widths, found.scores, strict=True):
        machine = RVMClassifier(width=width, link="probit", options=EvidenceOptions(tol=1e-3))
        assert score == pytest.approx(machine.fit(X, label).log_evidence_)
    assert found.width == found.widths[found.scores.argmax()]
    assert np.isnan(found.log_loss).all()
    assert f"log evidence {found.scores.max():.4f}" in repr(found)


@pytest.mark.parametrize("hyperprior", ["plug_in", "jeffreys"])
def test_validity_is_that_of_the_map_at_each_width(hyperprior):
    X, label = blobs(50, seed=77)
    model = PCVMClassifier(width="validity", hyperprior=hyperprior).fit(X, label)
    found, prior = model.width_selection_, model.hyperprior_
    for width, score in zip(found.widths, found.scores, strict=True):
        problem = Problem(as_kernel("rbf", width)(X, X), label, label, prior, width=width)
        assert score == pcvm_validity(X, problem, fit_em(problem)).log_validity
    assert found.width == found.widths[found.scores.argmax()] == model.width_


@pytest.mark.parametrize("by", ["cv", "evidence", "validity"])
def test_the_unit_of_the_inputs_carries_over_to_the_width(by):
    X, label = blobs(40, seed=78)
    units, how = (X, X / 0.3048), {"by": by, "random_state": 0}
    metres, feet = (select(Z, label, **how).width for Z in units)
    assert feet == pytest.approx(metres / 0.3048, rel=1e-3)


def test_a_picture_of_all_criteria():
    X, label = blobs(40, seed=79)
    methods = "cv", "evidence", "validity"
    how = {"widths": [0.5, 1.0, 2.0], "random_state": 0}
    found = [select(X, label, by=method, **how) for method in methods]
    figure = plots.plot_width_criteria(found)
    figure.draw_without_rendering()
    scored = [axes for axes in figure.axes if axes.get_ylabel()]
    named = [axes.get_ylabel().split("\n")[0] for axes in scored]
    assert named == ["held-out", "log evidence", "log validity"]
    for axes, search in zip(scored, found, strict=True):
        chosen = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2]
        assert chosen == [search.width]
    assert len(found[1].plot().axes) == 1
    nothing = select(X, label, by="cv", widths=[1.0])
    refused("nothing was scored", plots.plot_width_criteria, [nothing])
    refused("by another method", plots.plot_width_criteria, [select(X, label, over=("scale",))])


@pytest.mark.fixed_seeds  # somebody drops out
def test_means_of_the_log_loss_skip_the_folds_that_a_width_did_not_run():
    X, label = blobs(80, seed=79)
    found = select(X, label, by="cv", widths=[0.1, 0.5, 1.5, 5.0], random_state=0)
    loss, best = found.fold_log_loss, found.scores.argmax()
    ran = ~np.ma.getmaskarray(loss)
    assert found.width == found.widths[best]
    assert ran[best].all()
    assert ran[:, 0].all()
    assert not ran.all()
    assert loss[best].mean() == pytest.approx(-found.scores[best])  # folds of one size
    wanted = [row[folds].mean() for row, folds in zip(loss.data, ran, strict=True)]
    assert loss.mean(axis=1).tolist() == pytest.approx(wanted)
    assert np.isfinite(loss.mean())
    plots.plot_width_criteria([found]).draw_without_rendering()


def test_a_callable_kernel_is_chosen_for_too():
    X, label = blobs(30, seed=72)
    for kernel in (laplacian, linear):
        how = {"by": "cv", "widths": [0.5, 2.0, 8.0], "random_state": 0}
        found = select(X, label, kernel=kernel, **how)
        assert np.isfinite(found.scores).all()
        assert found.width in (0.5, 2.0, 8.0)
    how = {"kernel": lambda A, B, w: 0.0 * linear(A, B, w), "widths": [0.5, 1.0]}
    nothing = select(X, label, by="cv", random_state=0, **how)
    np.testing.assert_allclose(nothing.log_loss, np.log(2), atol=0.02)


def test_a_criterion_that_needs_the_rbf_says_so():
    X, label = blobs(20, seed=74)
    refused("needs kernel='rbf'", select, X, label, by="validity", kernel=linear)


@pytest.mark.parametrize("by", ["cv", "evidence", "validity"])
def test_the_classifier_takes_the_same_names(by):
    X, label = blobs(60, seed=59)
    model = PCVMClassifier(width=by, random_state=0).fit(X, label)
    found = select(X, label, by=by, random_state=0)
    assert model.width_ == found.width
    np.testing.assert_array_equal(model.width_selection_.scores, found.scores)


# --- by leave-one-out ----------------------------------------------------------------------------


X, LABEL = banana(60, seed=1)


@pytest.fixture(scope="module")
def found():
    return select(X, LABEL, random_state=0)


def test_the_classifier_chooses_the_same(found):
    model = PCVMClassifier(estimation="em", random_state=0).fit(X, LABEL)
    np.testing.assert_equal((model.width_, model.scale_), (found.width, found.scale))


def test_only_what_is_to_be_chosen_is_tried():
    by_scale = select(X, LABEL, over=("scale",), width=0.7)
    assert set(by_scale.widths) == {0.7}
    assert len(set(by_scale.scales)) > 2
    assert set(select(X, LABEL, over=("scale",)).widths) == {median_distance(X)}
    by_width = select(X, LABEL, over=["width"], scale=2.0)
    assert set(by_width.scales) == {2.0}
    assert len(set(by_width.widths)) > 2
    assert set(select(X, LABEL, over=("width",)).scales) == {1.0}


@pytest.mark.parametrize("several", [False, True])
def test_cross_validation_agrees_on_an_easy_problem(several):
    rows, y = load_iris(return_X_y=True)
    rows, y = (rows[::3], y[::3]) if several else banana(80, seed=3)
    one = select(rows, y, over=("width",), random_state=0)
    folds = select(rows, y, by="cv", widths=np.unique(one.widths), cv=10, random_state=0)
    left_out = dict(zip(one.widths, one.log_loss, strict=True))
    complete = ~np.ma.getmaskarray(folds.fold_log_loss).any(axis=1)
    assert complete.any()
    for width, loss in zip(folds.widths[complete], folds.log_loss[complete], strict=True):
        assert loss == pytest.approx(left_out[width], abs=0.05)


FEATURES = ("width", "scale", "features")
UNUSABLE = [
    ({"over": ("scale", "width")}, "over=.*needed one of"),
    ({"by": "em"}, "by='em' is unknown; use one of .'loo', 'cv', 'evidence', 'validity'"),
    ({"cv": 3}, "cv=3 was given with by='loo', without effect; needed by in .'cv',"),
    ({"widths": [1.0]}, "widths=.* was given with by='loo', without effect"),
    ({"by": "evidence", "groups": LABEL}, "groups=.* was given with by='evidence', without effect"),
    ({"over": FEATURES, "by": "cv"}, "by='cv', which chooses one width; needed over="),
    ({"by": "cv", "width": 1.0}, "width=1.0 was given with over="),
    ({"width": 1.0}, "width=1.0 was given with over="),
    ({"scale": 1.0, "over": ("scale",)}, "scale=1.0 was given with over="),
    ({"scale": 0.0, "over": ("width",)}, "'scale' parameter .* Got 0.0"),
]


@pytest.mark.parametrize(("options", "message"), UNUSABLE)
def test_what_cannot_be_used(options, message):
    refused(message, select, X, LABEL, **options)


def test_labels_that_select_refuses():
    words = "is for two classes; several have the multinomial probit"
    refused(words, select, X, np.arange(60) % 3, likelihood="logit")
    refused("Unknown label type", select, X, X[:, 0])


def test_the_picture(found):
    figure = found.plot()
    axes = figure.axes[0]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert len(axes.collections[0].get_offsets()) == len(found.widths)
    np.testing.assert_allclose(axes.collections[2].get_offsets()[0], [found.width, found.scale])
    figure.canvas.draw()


def test_widths_with_their_weights_over_all_scales(found):
    points, weights = found.distinct()
    assert points[0].width in found.widths
    assert sum(weights) == pytest.approx(1.0)
    assert weights == sorted(weights, reverse=True)
    every = found.distinct(least=1e-12)
    shares = [found.weights[found.widths == each.width].sum() for each in every[0]]
    np.testing.assert_allclose(every[1], shares / np.sum(shares))
    heavy = {each.width for each, share in zip(*every, strict=True) if share >= 0.05}
    assert {each.width for each in points} == heavy
    assert len(found.distinct(least=0.999)[0]) == 1  # the one that counts most is there
    refused("least=2", found.distinct, least=2)


def test_a_width_of_several_kernels_is_there_once_for_each():
    search = PCVMClassifier(random_state=0).fit(X, LABEL).selection_
    assert len(search.kernels) > 1

    def kind(candidate):
        return candidate.kernel_name, *np.atleast_1d(candidate.width)

    points, weights = search.distinct(least=1e-12)
    assert len({kind(each) for each in points}) == len(points)
    every = [kind(each) for each in search.points]
    shares = [search.weights[[each == kind(point) for each in every]].sum() for point in points]
    np.testing.assert_allclose(weights, shares)
