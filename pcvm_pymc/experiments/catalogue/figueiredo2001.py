"""Figueiredo & Jain (2001): sparse probit."""

import numpy as np

from pcvm_pymc.experiments.catalogue.experiment import Experiment, Sketch, Small
from pcvm_pymc.experiments.protocols import Protocol

__all__ = ["EXPERIMENTS", "SKETCHES"]

_FJ = "Figueiredo & Jain (2001), Bayesian learning of sparse classifiers"
_H = np.sqrt(2.0)  # the paper's h, as a width
_FIXED = "width as the paper sets it"
EXPERIMENTS = (
    Experiment(
        "figueiredo2001-fig2",
        "Fig. 2: error of quadratic classifiers against the number of features",
        _FJ,
        tuple(f"gaussians_{d}" for d in (2, 4, 6, 8, 10, 15, 20)),
        ("sparse_probit_quadratic", "QDA"),
        Protocol("100 rows of each class to train on, 1000 to test", "stored"),
        30,
        ("error", "weights"),
        figure="lines",
        remarks=("The Bayes error is 15.87 % (corrected). QDA is the paper's plug-in classifier.",),
        small=Small(tuple(f"gaussians_{d}" for d in (2, 4, 6))),
    ),
    Experiment(
        "figueiredo2001-fig3",
        "Fig. 3: error of linear classifiers against the number of features",
        _FJ,
        tuple(f"half_gaussians_{d}" for d in (2, 4, 6, 8, 10, 15, 20, 30, 40)),
        ("sparse_probit_linear", "LDA"),
        Protocol("50 rows of each class to train on, 1000 to test", "stored"),
        30,
        ("error", "weights"),
        figure="lines",
        remarks=("The Bayes error is 15.87 % (corrected). LDA is the paper's plug-in classifier.",),
        small=Small(tuple(f"half_gaussians_{d}" for d in (2, 10, 40))),
    ),
    Experiment(
        "figueiredo2001-fig4",
        "Fig. 4: boundary and kernels on Ripley's data",
        _FJ,
        ("ripley",),
        ("sparse_probit",),
        Protocol(f"a random 100 of the 250 training rows; {_FIXED}", "subsets"),
        1,
        ("error", "vectors"),
        fixed={"ripley": {"width": 0.5 * _H}},
        extra="surface",
        figure="regions",
    ),
    Experiment(
        "figueiredo2001-table1",
        "Table 1: Ripley's data, 20 random subsets of 100",
        _FJ,
        ("ripley",),
        ("sparse_probit", "SVM", "RVM"),
        Protocol(
            f"20 random subsets of 100 of the 250 training rows; {_FIXED}, C by cross-validation",
            "subsets",
            "each",
        ),
        20,
        ("error", "vectors"),
        printed="figueiredo2001-table1",
        fixed={"ripley": {"width": 0.5 * _H}},
    ),
    Experiment(
        "figueiredo2001-table2",
        "Table 2: test errors on Pima, crabs and Wisconsin breast cancer",
        _FJ,
        ("pima_ripley", "crabs_sex", "wisconsin_diagnostic"),
        ("sparse_probit", "SVM", "RVM", "MLR", "LDA", "GP"),
        Protocol(
            f"the predefined split (Pima), else 30 random partitions; {_FIXED}, C by cross-validation",
            "predefined",
            "each",
        ),
        30,
        ("test errors", "vectors"),
        printed="figueiredo2001-table2",
        fixed={
            "pima_ripley": {"width": 4 * _H},
            "crabs_sex": {"width": 4 * _H},
            "wisconsin_diagnostic": {"width": 12 * _H},
        },
        remarks=(
            "The predefined split of the crabs is not known: random ones of 80 and 120 rows stand in.",
        ),
    ),
    Experiment(
        "figueiredo2001-table3",
        "Table 3: forensic glass, 10-fold cross-validation",
        _FJ,
        ("fgl",),
        ("sparse_probit", "GP", "SVM", "LDA"),
        Protocol(f"10 folds; {_FIXED}, C by cross-validation", "folds", "each"),
        10,
        ("error", "vectors"),
        printed="figueiredo2001-table3",
        fixed={"fgl": {"width": 4 * _H}},
    ),
)
SKETCHES = (
    Sketch(
        "figueiredo2001-fig1",
        "Fig. 1: the logistic and the rescaled probit link",
        _FJ,
        "links",
        remarks=("The text has 3 z / pi^2; what has the logistic's variance is sqrt(3) z / pi.",),
    ),
)
