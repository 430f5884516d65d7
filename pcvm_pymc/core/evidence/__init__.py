"""Type-II maximum likelihood: relevance vector machines, and searches from the bottom up."""

from pcvm_pymc.core.evidence.active_set import posterior
from pcvm_pymc.core.evidence.bottom_up import BottomUpOptions, fit_bottom_up
from pcvm_pymc.core.evidence.columns import ComputedBases
from pcvm_pymc.core.evidence.prediction import augmentation, predictive_moments, star_moments
from pcvm_pymc.core.evidence.problem import (
    EvidenceOptions,
    EvidenceProblem,
    EvidenceResult,
    FittedRVM,
    NoisePrior,
    rotated_problem,
)
from pcvm_pymc.core.evidence.relevance import METHODS, fit_batch, fit_rvm, fit_sequential
