"""Values of variables, there and back."""

import numpy as np
import pymc as pm

from pcvm_pymc.model.values import Value


def test_a_value_goes_there_and_back():
    with pm.Model() as model:
        size, free = pm.HalfNormal("size", shape=3), pm.Normal("free")
    value, natural = Value(model, size), np.array([0.0, 0.5, 2.0])
    assert value.name == "size_log__"
    turned = value.forward(natural)
    np.testing.assert_allclose(turned, [-np.inf, np.log(0.5), np.log(2.0)])
    np.testing.assert_allclose(value.backward(turned), natural)
    assert Value(model, free).transform is None
    assert Value(model, free).forward(1.5) == 1.5
