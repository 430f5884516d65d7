r"""Projection of a reference's class probabilities onto sparse submodels.

The submodel f_S = Phi_S w_S + b nearest to a reference with probabilities p minimises the
Kullback-Leibler divergence of their Bernoulli distributions,

.. math:: KL = \sum_i q_i \left\{ p_i \log \frac{p_i}{\Phi(f_i)}
   + (1 - p_i) \log \frac{1 - p_i}{\Phi(-f_i)} \right\}, \quad w_j\, sign_j \ge 0,

a probit regression on fractional labels, which is convex. With several classes the divergence is that of
the categorical distributions under the multinomial probit, and each vector has a weight in every class.
`target` has the divergence and its derivatives, `submodel` fits the weights of a given set of columns
and predicts what other columns would gain, `path` selects columns greedily.
"""

from pcvm_pymc.core.projection.path import ProjectionPath, default_sizes, project_path
from pcvm_pymc.core.projection.submodel import Submodel, Target
