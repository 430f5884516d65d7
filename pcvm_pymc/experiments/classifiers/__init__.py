"""Classifiers of the comparisons by name: this package's, the papers' baselines, and a user's own."""

from pcvm_pymc.experiments.classifiers.makers import KROPOTOV_WIDTHS, LYU_FACTORS, log_validity
from pcvm_pymc.experiments.classifiers.table import CLASSIFIERS, classifier_of, own_classifier
from pcvm_pymc.experiments.classifiers.tuning import (
    Classifier,
    Setting,
    TuningTask,
    middle_of_best,
    opposed_rows,
    test_errors,
    tune,
    vector_counts,
    vector_rows,
)

__all__ = [
    "CLASSIFIERS",
    "KROPOTOV_WIDTHS",
    "LYU_FACTORS",
    "Classifier",
    "Setting",
    "TuningTask",
    "classifier_of",
    "log_validity",
    "middle_of_best",
    "opposed_rows",
    "own_classifier",
    "test_errors",
    "tune",
    "vector_counts",
    "vector_rows",
]
