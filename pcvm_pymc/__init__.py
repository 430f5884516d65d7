"""Sparse Bayesian kernel classifiers for PyMC."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# names are imported on first use, so that core and estimators work without importing PyMC
_PUBLIC = {
    "EMOptions": "core.em",
    "HalfHorseshoe": "core.pieces.priors",
    "Hyperprior": "core.pieces.priors",
    "Laplace": "core.pieces.priors",
    "MatrixRBF": "core.pieces.kernels",
    "choose_basis": "core.pieces.centres",
    "Start": "core.em",
    "Status": "core.problem",
    "BottomUpOptions": "core.evidence",
    "EvidenceOptions": "core.evidence",
    "FAMILY": "core.family",
    "EMStep": "model.steps",
    "PCVMGibbs": "model.steps",
    "MultinomialProbit": "model.multinomial",
    "MarginalBias": "model.distributions",
    "MarginalWeight": "model.distributions",
    "ProbitBernoulli": "model.distributions",
    "new_data": "model.data",
    "pcvm_latent": "model.components",
    "rvm_latent": "model.components",
    "pcvm_model": "model.builders",
    "mpcvm_model": "model.builders",
    "mrvm_model": "model.builders",
    "rvm_model": "model.builders",
    "sparse_probit_model": "model.builders",
    "add_log_prior": "inference.log_prior",
    "approximate": "inference.approximate",
    "find_map_em": "inference.modes",
    "fit_evidence": "inference.evidence",
    "latent_draws": "inference.prediction",
    "mixture": "inference.mixtures",
    "predict": "inference.prediction",
    "prior_latent": "inference.prediction",
    "draw_precisions": "inference.sampling",
    "sample": "inference.sampling",
    "load": "inference.storing",
    "save": "inference.storing",
    "MPCVMClassifier": "estimators.multiclass",
    "MRVMClassifier": "estimators.multiclass",
    "PCVMClassifier": "estimators.pcvm",
    "RVMClassifier": "estimators.rvm",
    "RVMRegressor": "estimators.rvm",
    "SparseProbitClassifier": "estimators.sparse_probit",
    "to_c": "estimators.export_c",
    "to_onnx": "estimators.export_onnx",
    "select_width": "assessment.select",
    "select": "assessment.select",
    "validity": "assessment.validity",
    "loo": "assessment.leave_one_out",
    "kfold": "assessment.cross_validation",
    "psis_loo": "assessment.cross_validation",
    "Projection": "estimators.projection",
    "SearchOptions": "core.projection",
    "project": "assessment.project",
    "Comparison": "assessment.comparison",
    "compare": "assessment.comparison",
    "plots": "assessment.plots",
}

__all__ = sorted([*_PUBLIC, "__version__"])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'pcvm_pymc' has no attribute {name!r}")
    module = import_module(f"pcvm_pymc.{_PUBLIC[name]}")
    value = getattr(module, name, module)  # `plots` is a module itself
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
