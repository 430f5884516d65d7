import mpmath
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from pcvm_pymc.model.math import log_ndtr

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
