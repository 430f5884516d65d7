"""`select`: width and scale for one mode, by leaving one out or by cross-validation."""

import numpy as np
import pytest
from problems import banana
from sklearn.datasets import load_iris

from pcvm_pymc import PCVMClassifier, select
from pcvm_pymc.core.pieces.kernels import median_distance

X, LABEL = banana(60, seed=1)


@pytest.fixture(scope="module")
def found():
    return select(X, LABEL, random_state=0)


def test_the_choice_is_one_of_what_was_tried(found):
    best = found.weights.argmax()
    assert (found.width, found.scale) == (found.widths[best], found.scales[best])
    assert found.weights.sum() == pytest.approx(1.0)
    assert len(found.widths) == len(found.log_loss) == len(found.weights)
    assert found.log_loss[best] < found.log_loss.min() + 0.1
    assert len(set(zip(found.widths, found.scales, strict=True))) == len(found.widths)
    assert found.method == "loo"


def test_the_classifier_chooses_the_same(found):
    model = PCVMClassifier(estimation="em", random_state=0).fit(X, LABEL)
    assert (model.width_, model.scale_) == (found.width, found.scale)


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
    options = {"over": ("width",), "random_state": 0}
    one, folds = select(rows, y, **options), select(rows, y, method="cv", cv=10, **options)
    assert folds.method == "cv"
    heavy = one.weights > 0.05
    shared = dict(zip(one.widths[heavy], one.log_loss[heavy], strict=True))
    found = zip(folds.widths, folds.log_loss, strict=True)
    both = [(shared[w], loss) for w, loss in found if w in shared]
    assert len(both) > 1
    assert np.abs(np.diff(np.array(both), axis=1)).max() < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"over": ("scale", "width")}, "over=.*needed one of"),
        ({"method": "evidence"}, r"method='evidence'; needed 'loo' or 'cv'\. select_width"),
        ({"cv": 3}, "cv=3 was given with method='loo'"),
        ({"width": 1.0}, "width=1.0 was given with over="),
        ({"scale": 1.0, "over": ("scale",)}, "scale=1.0 was given with over="),
        ({"scale": 0.0, "over": ("width",)}, "'scale' parameter .* Got 0.0"),
    ],
)
def test_what_cannot_be_used(options, message):
    with pytest.raises(ValueError, match=message):
        select(X, LABEL, **options)


def test_labels_that_cannot_be_used():
    with pytest.raises(ValueError, match="is for two classes; several have the multinomial probit"):
        select(X, np.arange(60) % 3, likelihood="logit")
    with pytest.raises(ValueError, match="Unknown label type"):
        select(X, X[:, 0])


def test_the_picture(found):
    figure = found.plot()
    axes = figure.axes[0]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    squares = axes.collections[0]
    assert len(squares.get_offsets()) == len(found.widths)
    np.testing.assert_allclose(axes.collections[2].get_offsets()[0], [found.width, found.scale])
    figure.canvas.draw()


def test_widths_with_their_weights_over_all_scales(found):
    widths, weights = found.by_width()
    assert widths[0] in found.widths
    assert sum(weights) == pytest.approx(1.0)
    assert weights == sorted(weights, reverse=True)
    every = found.by_width(least=1e-12)
    shares = [found.weights[found.widths == width].sum() for width in every[0]]
    np.testing.assert_allclose(every[1], shares / np.sum(shares))
    assert set(widths) == {w for w, share in zip(*every, strict=True) if share >= 0.05}
    assert len(found.by_width(least=0.999)[0]) == 1  # the one that counts most is there
    with pytest.raises(ValueError, match="least=2"):
        found.by_width(least=2)
