r"""Leave-one-out predictions at a posterior mode, a row's own basis left out with it, without refits.

A weight's sign tells its row's label, so that leaving row i out must leave its own basis out as well. At
the mode let A be the active basis functions and a column of ones, W_i minus the second derivative
of row i's log likelihood in its latent values, s_i its slope, and P the expected precisions
E[precision | w] in place of the prior's own curvature, which need not be positive. With

.. math:: H = \sum_i J_i' W_i J_i + P, \quad G = H^{-1}, \quad J_i \text{ the rows of A that make } f_i,

and k the active weights of basis i, the exact minimiser of the quadratic model of the objective without
row i's term, and with the weights k at zero, has

.. math::

    V &= J_i G J_i' - (J_i G)_k\, G_{kk}^{-1}\, (J_i G)_k', \qquad a = -(J_i G)_k\, G_{kk}^{-1} w_k, \\
    f_i^{(-i)} &= f_i + (I - V W_i)^{-1} (a - V s_i).

One factorisation serves all rows (`mode`). Where a row moves far the quadratic model is in doubt: such rows
are carried on by conjugate gradients on the objective itself, all at once, with G for a metric (`carried`).
"""

from pcvm_pymc.core.loo.held_out import LeaveOneOut, leave_one_out
from pcvm_pymc.core.loo.weights import averaging_weights

__all__ = ["LeaveOneOut", "averaging_weights", "leave_one_out"]
