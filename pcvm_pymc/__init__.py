"""Sparse Bayesian kernel classifiers for PyMC."""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

# names are imported on first use, so that core and estimators work without importing PyMC
_MODULES = {
    "core.em": ("EMOptions", "Start"),
    "core.pieces.priors": ("HalfHorseshoe", "Hyperprior", "Laplace"),
    "core.pieces.kernels": ("MatrixRBF",),
    "core.pieces.centres": ("choose_basis",),
    "core.problem": ("Status",),
    "core.evidence": ("BottomUpOptions", "EvidenceOptions"),
    "core.family": ("FAMILY",),
    "model.steps": ("EMStep", "PCVMGibbs"),
    "model.multinomial": ("MultinomialProbit",),
    "model.distributions": ("MarginalBias", "MarginalWeight", "ProbitBernoulli"),
    "model.data": ("new_data",),
    "model.build": ("pcvm_latent", "rvm_latent"),
    "model.builders": (
        "pcvm_model",
        "mpcvm_model",
        "mrvm_model",
        "rvm_model",
        "sparse_probit_model",
    ),
    "inference.estimates": ("find_map_em", "fit_evidence"),
    "inference.prediction": ("predict",),
    "inference.sampling": ("initial_values", "sample"),
    "inference.storing": ("load", "save"),
    "estimators.candidates": ("ChoiceOptions",),
    "estimators.posterior": ("PosteriorOptions",),
    "estimators.multiclass": ("MPCVMClassifier", "MRVMClassifier"),
    "estimators.pcvm": ("PCVMClassifier",),
    "estimators.rvm": ("RVMClassifier", "RVMRegressor"),
    "estimators.sparse_probit": ("SparseProbitClassifier",),
    "export.c_source": ("to_c",),
    "export.intervals": ("predict_interval",),
    "export.onnx_converters": ("to_onnx",),
    "assessment.select": ("select",),
    "assessment.kernel_validity": ("validity",),
    "assessment.leave_one_out": ("loo",),
    "assessment.cross_validation": ("kfold", "psis_loo"),
    "assessment.project": ("project",),
    "assessment.comparison": ("compare",),
    "assessment.plots": ("plots",),
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names}

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
