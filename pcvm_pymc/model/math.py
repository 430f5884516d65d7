"""PyTensor expressions that are stable where PyTensor's own are not."""

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

# NumPy float64 constants: pt.sqrt(2.0) would be single precision
_SQRT_HALF = np.sqrt(0.5)
_SPLIT = np.float64(-1.0)


def ndtr(x: TensorVariable) -> TensorVariable:
    """Return Phi(x), the standard normal distribution function, which keeps its lower tail."""
    return np.float64(0.5) * pt.erfc(-_SQRT_HALF * x)


def log_ndtr(x: TensorVariable) -> TensorVariable:
    """Return log Phi(x), the log of the standard normal distribution function.

    Left of -1 through erfcx, which neither underflows nor loses digits in the tail; right of it through
    ``log1p``. Each branch sees only arguments of its own side, so that the gradient, plain automatic
    differentiation, is finite everywhere.

    Parameters
    ----------
    x : tensor_like of float, any shape

    Returns
    -------
    TensorVariable, shape of `x`
    """
    x = pt.as_tensor_variable(x)
    left, right = pt.minimum(x, _SPLIT), pt.maximum(x, _SPLIT)
    tail = pt.log(np.float64(0.5) * pt.erfcx(-_SQRT_HALF * left)) - np.float64(0.5) * left * left
    body = pt.log1p(np.float64(-0.5) * pt.erfc(_SQRT_HALF * right))
    return pt.switch(x < _SPLIT, tail, body)
