"""Type-II maximum likelihood on a PyMC model."""

import logging
import time

import pymc as pm
import xarray as xr

from pcvm_pymc.core.evidence import EvidenceOptions, fit_rvm
from pcvm_pymc.inference.results import evidence_to_datatree
from pcvm_pymc.model.rvm import evidence_problem_of

__all__ = ["fit_evidence"]

_log = logging.getLogger(__name__)


def fit_evidence(
    model: pm.Model | None = None,
    *,
    method: str = "sequential",
    options: EvidenceOptions | None = None,
) -> xr.DataTree:
    """Fit a relevance vector machine by maximising its evidence over precisions and noise.

    Parameters
    ----------
    model : pm.Model, optional
        From `rvm_model`; default: the model on the context stack. Its hyperprior is not used: log
        precisions and log noise are flat, as in the papers.
    method : {"sequential", "batch"}
        One basis at a time, by the largest gain (Tipping & Faul 2003), or all at once, downwards
        (Tipping 2001).
    options : EvidenceOptions, optional

    Returns
    -------
    DataTree
        Groups as `find_map_em` has them: ``posterior`` (one chain, one draw: posterior means given the
        precisions), ``optimizer_result``, ``evidence_trace``, data groups, and ``fit`` with
        ``mean_vector`` and ``covariance_matrix`` of the kept weights and the bias.

    Raises
    ------
    ValueError
        If the model is not one whose evidence can be maximised, or the method is unknown.

    References
    ----------
    M. E. Tipping and A. C. Faul (2003), "Fast marginal likelihood maximisation for sparse Bayesian
    models", AISTATS; corrected, see `core.sequential.fit_sequential` and `core.evidence.fit_batch`.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import rvm_model
    >>> x = np.linspace(-5, 5, 30)[:, None]
    >>> result = fit_evidence(rvm_model(x, np.sinc(x[:, 0]), width=2.0, noise=0.01))
    >>> result["optimizer_result"]["status"].item()
    'CONVERGED'
    """
    model = pm.modelcontext(model)
    problem = evidence_problem_of(model)
    began = time.perf_counter()
    result = fit_rvm(problem, method=method, options=options)
    seconds = time.perf_counter() - began
    if not result.converged:
        _log.warning("evidence: %s; raise max_iter or tol", result.status.value)
    return evidence_to_datatree(model, result, method, seconds)
