"""Sparse Bayesian kernel classifiers for PyMC."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# names are imported on first use, so that core and estimators work without importing PyMC
_PUBLIC = {
    "EMOptions": "core.em",
    "HalfHorseshoe": "core.priors",
    "Hyperprior": "core.priors",
    "Laplace": "core.priors",
    "choose_basis": "core.centres",
    "Start": "core.em",
    "Status": "core.em",
    "EvidenceOptions": "core.evidence",
    "FAMILY": "core.family",
    "EMStep": "model.steps",
    "PCVMGibbs": "model.steps",
    "MultinomialProbit": "model.multinomial",
    "MarginalBias": "model.distributions",
    "MarginalWeight": "model.distributions",
    "ProbitBernoulli": "model.distributions",
    "new_data": "model.builders",
    "pcvm_model": "model.builders",
    "mpcvm_model": "model.mpcvm",
    "mrvm_model": "model.mpcvm",
    "rvm_model": "model.rvm",
    "sparse_probit_model": "model.sparse_probit",
    "find_map_em": "inference",
    "fit_evidence": "evidence",
    "latent_draws": "inference",
    "predict": "inference",
    "prior_latent": "inference",
    "draw_precisions": "sampling",
    "sample": "sampling",
    "load": "results",
    "save": "results",
    "MPCVMClassifier": "multiclass",
    "MRVMClassifier": "multiclass",
    "PCVMClassifier": "estimators",
    "RVMClassifier": "rvm_estimators",
    "RVMRegressor": "rvm_estimators",
    "SparseProbitClassifier": "sparse_probit",
    "select_width": "selection",
    "kfold": "criticism",
    "psis_loo": "criticism",
    "Projection": "projection",
    "SearchOptions": "core.projection",
    "project": "projection",
    "Comparison": "comparison",
    "compare": "comparison",
}

__all__ = sorted([*_PUBLIC, "__version__"])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'pcvm_pymc' has no attribute {name!r}")
    value = getattr(import_module(f"pcvm_pymc.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
