"""Fast approximations of the posterior of signed weights: Laplace's, and expectation propagation.

Sizes of the weights are what is unknown here, on half-lines, precisions integrated out. Chen, Tino & Yao
(2014) approximate the same posterior given the precisions, and maximise over these.
"""

from pcvm_pymc.core.approximation.laplace import SignedRows, fit_laplace
from pcvm_pymc.core.approximation.propagation import PropagationFit, PropagationOptions, propagate
