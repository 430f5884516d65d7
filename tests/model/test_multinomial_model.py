"""The multinomial probit and special functions in PyTensor: values, gradients, draws."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from problems import mp_log_ndtr, mp_mills, refused, three_blobs

from pcvm_pymc import MultinomialProbit, mpcvm_model, sample
from pcvm_pymc.core.pieces.multinomial import class_probabilities, class_terms
from pcvm_pymc.model.distributions import log_ndtr


def compiled(label, mode):
    """Return log probabilities and their gradient as a function of the scores."""
    y = pt.dmatrix("y")
    value = pm.logp(MultinomialProbit.dist(y), label)
    return pytensor.function([y], [value, pt.grad(value.sum(), y)], mode=mode)


@pytest.mark.parametrize(("n_classes", "spread"), [(3, 3.0), (7, 20.0)])
@pytest.mark.parametrize("mode", ["NUMBA", "FAST_COMPILE"])
def test_value_and_gradient_are_those_of_the_core(mode, n_classes, spread):
    rng = np.random.default_rng(n_classes)
    latent, label = rng.normal(size=(40, n_classes)) * spread, rng.integers(n_classes, size=40)
    found, gradient = compiled(label, mode)(latent)
    terms = class_terms(latent, label)
    np.testing.assert_allclose(found, terms.log_probability, rtol=1e-12)
    np.testing.assert_allclose(gradient, terms.score, rtol=1e-12, atol=1e-14)


def test_value_and_gradient_take_one_pass():
    y = pt.dmatrix("y")
    value = pm.logp(MultinomialProbit.dist(y), np.array([0, 1])).sum()
    function = pytensor.function([y], [value, pt.grad(value, y)])
    names = [type(node.op).__name__ for node in function.maker.fgraph.toposort()]
    assert names.count("_ClassTerms") == 1


# scores of a row, its label, and the label's log probability
BAD_ROWS = [
    ([0.0, 0.0, 0.0], 3, -np.inf),
    ([0.0, 0.0, 0.0], -1, -np.inf),
    ([0.0, 1e300, 0.0], 0, -np.inf),
    ([0.0, 2e6, 0.0], 0, -np.inf),
    ([0.0, 1e300, 0.0], 1, 0.0),
    ([np.nan, 0.0, 0.0], 1, np.nan),
    ([np.inf, 0.0, 0.0], 1, np.nan),
]
BAD, BAD_LABEL, BAD_VALUE = (np.array(each) for each in zip(*BAD_ROWS, strict=True))


@pytest.mark.parametrize("mode", ["NUMBA", "FAST_COMPILE"])
def test_classes_and_scores_that_cannot_be_end_at_once(mode):
    found, gradient = compiled(BAD_LABEL, mode)(BAD)
    np.testing.assert_allclose(found, BAD_VALUE, atol=1e-13)
    np.testing.assert_array_equal(gradient[:5], 0.0)
    assert np.isnan(gradient[5:]).all()


def test_rows_stretch_to_any_leading_dimensions():
    rng = np.random.default_rng(3)
    latent = rng.normal(size=(4, 3))
    label = rng.integers(3, size=(5, 4))
    found = pm.logp(MultinomialProbit.dist(latent, shape=(5, 4)), label).eval()
    each = [class_terms(latent, row).log_probability for row in label]
    np.testing.assert_allclose(found, each, rtol=1e-12)


def test_draws_have_the_class_probabilities():
    latent = np.array([[0.0, 1.0, -1.0], [2.0, 0.0, 1.5]])
    draws = pm.draw(MultinomialProbit.dist(latent), draws=20_000, random_seed=4)
    assert draws.shape == (20_000, 2)
    share = (draws[..., None] == np.arange(3)).mean(axis=0)
    assert np.abs(share - class_probabilities(latent)).max() < 5 * np.sqrt(0.25 / 20_000)


def test_samplers_on_jax_are_refused_by_name():
    X, label, _ = three_blobs(9)
    model = mpcvm_model(X, label, width=1.0)
    for sampler in ("numpyro", "blackjax"):
        words = "multinomial probit; needed 'nutpie' or 'pymc'"
        refused(words, sample, model, nuts_sampler=sampler)


# --- special functions ---------------------------------------------------------------------------


GRID = np.concatenate([np.linspace(-100, 100, 41), [-1.0, -1.0 - 1e-12, -1.0 + 1e-12, 0.0, 8.0]])
MODES = {"numba": "NUMBA", "c": "CVM", "jax": "JAX"}


@pytest.mark.compiled
@pytest.mark.parametrize("backend", sorted(MODES))
def test_value_and_gradient_to_twelve_digits(backend):
    if backend == "jax":
        pytest.importorskip("jax")
    x = pt.dvector("x")
    value = log_ndtr(x)
    function = pytensor.function([x], [value, pt.grad(value.sum(), x)], mode=MODES[backend])
    found = [np.asarray(each) for each in function(GRID)]
    for got, exact in zip(found, (mp_log_ndtr, mp_mills), strict=True):
        wanted = np.array([float(exact(x)) for x in GRID])
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-300)


def test_constants_are_double_precision():
    assert log_ndtr(pt.dscalar()).dtype == "float64"
