"""The multinomial probit and special functions in PyTensor: values, gradients, draws."""

import mpmath
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pcvm_pymc import MultinomialProbit
from pcvm_pymc.core.pieces.multinomial import class_probabilities, class_terms
from pcvm_pymc.model.math import log_ndtr

BACKENDS = ("NUMBA", "FAST_COMPILE")


def _problem(rng, n_obs=7, n_classes=4, spread=2.0):
    return rng.normal(size=(n_obs, n_classes)) * spread, rng.integers(n_classes, size=n_obs)


@pytest.mark.parametrize("mode", BACKENDS)
def test_value_and_gradient_are_those_of_the_core(mode):
    latent, label = _problem(np.random.default_rng(0), spread=10.0)
    y = pt.dmatrix("y")
    value = pm.logp(MultinomialProbit.dist(y), label)
    function = pytensor.function([y], [value, pt.grad(value.sum(), y)], mode=mode)
    found, gradient = function(latent)
    terms = class_terms(latent, label)
    np.testing.assert_allclose(found, terms.log_probability, rtol=1e-12)
    np.testing.assert_allclose(gradient, terms.score, rtol=1e-12, atol=1e-14)


def test_value_and_gradient_take_one_pass():
    y = pt.dmatrix("y")
    value = pm.logp(MultinomialProbit.dist(y), np.array([0, 1])).sum()
    function = pytensor.function([y], [value, pt.grad(value, y)])
    names = [type(node.op).__name__ for node in function.maker.fgraph.toposort()]
    assert names.count("_ClassTerms") == 1


@pytest.fixture(scope="module", params=BACKENDS)
def log_probability(request):
    """Return the log probabilities of labels given scores, compiled once for each backend."""
    y, label = pt.dmatrix("y"), pt.lvector("label")
    value = pm.logp(MultinomialProbit.dist(y), label)
    return pytensor.function([y, label], value, mode=request.param)


BAD_SCORES = [
    ([0.0, 0.0, 0.0], 3, -np.inf),
    ([0.0, 0.0, 0.0], -1, -np.inf),
    ([0.0, 1e300, 0.0], 0, -np.inf),
    ([0.0, 1e300, 0.0], 1, 0.0),
    ([np.nan, 0.0, 0.0], 1, np.nan),
    ([np.inf, 0.0, 0.0], 1, np.nan),
]


@pytest.mark.parametrize(("row", "label", "expected"), BAD_SCORES)
def test_classes_and_scores_that_cannot_be_end_at_once(log_probability, row, label, expected):
    found = log_probability(np.array([row]), [label])
    np.testing.assert_allclose(found, [expected], atol=1e-13)


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


# --- special functions ---------------------------------------------------------------------------


GRID = np.concatenate([np.linspace(-100, 100, 41), [-1.0, -1.0 - 1e-12, -1.0 + 1e-12, 0.0, 8.0]])
MODES = {"numba": "NUMBA", "c": "CVM", "jax": "JAX"}


def reference(x):
    """Return log Phi and its derivative in 60 digits."""
    with mpmath.workdps(60):
        x = mpmath.mpf(x)
        root = x / mpmath.sqrt(2)
        tail = mpmath.erfc(-root) / 2
        value = mpmath.log(tail) if x < 0 else mpmath.log1p(-mpmath.erfc(root) / 2)
        slope = mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi) / tail
        return float(value), float(slope)


@pytest.mark.compiled
@pytest.mark.parametrize("backend", sorted(MODES))
def test_value_and_gradient_to_twelve_digits(backend):
    if backend == "jax":
        pytest.importorskip("jax")
    x = pt.dvector("x")
    value = log_ndtr(x)
    function = pytensor.function([x], [value, pt.grad(value.sum(), x)], mode=MODES[backend])
    found = [np.asarray(each) for each in function(GRID)]
    wanted = np.array([reference(each) for each in GRID]).T
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-300)


def test_constants_are_double_precision():
    assert log_ndtr(pt.dscalar()).dtype == "float64"
