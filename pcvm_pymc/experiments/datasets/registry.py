"""The registry: every set of the papers, where it comes from and which tables show it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn import datasets as sklearn_datasets

from pcvm_pymc.experiments.datasets.derived import (
    above,
    esl_toy,
    first_classes,
    training_part,
    whole,
    without,
)
from pcvm_pymc.experiments.datasets.generators import (
    bumpy,
    gaussians,
    hyperplane,
    overclass,
    overlap,
    overlap_classes,
    relevance,
    ring,
    ripley_mixture,
    sinc,
    spiral,
    wave,
)
from pcvm_pymc.experiments.datasets.records import Floats, Seed, Source
from pcvm_pymc.experiments.errors import entry_of

__all__ = ["SOURCES", "describe", "source_of"]

_RAETSCH = "IDA benchmark repository, G. Raetsch"
_UCI = "UCI Machine Learning Repository"


def _raetsch(
    name: str, rows: int, features: int, n_train: int, *, ending: str = "csv", splits: bool = True
) -> Source:
    return Source(
        rows,
        features,
        _RAETSCH,
        (f"raetsch_{name}.{ending}",),
        f"raetsch_{name}_splits.npz" if splits else "",
        used=("chen2009 Tables I-VII",),
        standardise="stored",
        n_train=n_train,
    )


def _generated(
    generate: Callable[..., tuple[Floats, NDArray[Any]]],
    n_train: int,
    n_test: int,
    features: int,
    used: str,
    **more: Any,
) -> Source:
    more = {"standardise": "none"} | more
    return Source(
        n_train + n_test,
        features,
        "generated",
        used=(used,),
        n_train=n_train,
        generate=generate,
        **more,
    )


def _friedman(which: int, n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw scikit-learn's Friedman sets, the targets in units of their standard deviation."""
    rng = np.random.default_rng(random_state)
    make = getattr(sklearn_datasets, f"make_friedman{which}")
    X, y = make(n, random_state=int(rng.integers(2**31)))
    y = y / y.std()
    return X, y + 0.1 * rng.normal(size=n)


def _letters(n_classes: int) -> Source:
    return Source(
        600 * n_classes,
        16,
        _UCI,
        base="letter",
        derive=partial(first_classes, n_classes, 600),
        classes=n_classes,
        used=("lyu2020 Fig. 5",),
        n_train=200 * n_classes,
    )


def _leaves(n_classes: int) -> Source:
    return Source(
        16 * n_classes,
        64,
        _UCI,
        base="leaves_margin",
        derive=partial(first_classes, n_classes, 16),
        classes=n_classes,
        used=("lyu2020 Fig. 6",),
    )


def _disease(base: str, rows: int, features: int = 13) -> Source:
    return Source(
        rows,
        features,
        _UCI,
        base=base,
        derive=partial(above, 0),
        used=("kropotov2006 Table I",),
        missing="median",
    )


def _small_regression(rows: int, features: int, **where: Any) -> Source:
    return Source(
        rows,
        features,
        _UCI,
        classes=0,
        used=("chmielewski2019 Tables 1-2",),
        **where,
    )


def _again(base: str, rows: int, n_train: int, used: str, **more: Any) -> Source:
    """Return a set of the plane once more, for a figure that shows it at another width."""
    return Source(
        rows, 2, f"as {base}", base=base, derive=whole, used=(used,), n_train=n_train, **more
    )


_FJ_DIMENSIONS = (2, 4, 6, 8, 10, 15, 20)
_ESL_MEANS = Source(
    20,
    2,
    "R package ElemStatLearn, mixture.example",
    ("esl_mixture_means.csv",),
    standardise="none",
)
SOURCES: dict[str, Source] = {
    "banana": _raetsch("banana", 5300, 2, 400),
    "breast_cancer": _raetsch("breast_cancer", 277, 9, 200),
    "diabetis": _raetsch("diabetis", 768, 8, 468),
    "flare_solar": _raetsch("flare_solar", 1066, 9, 666),
    "german": _raetsch("german", 1000, 20, 700),
    "heart": _raetsch("heart", 270, 13, 170),
    "image": _raetsch("image", 2310, 18, 1300),
    "ringnorm": _raetsch("ringnorm", 7400, 20, 400, ending="csv.gz"),
    "splice": _raetsch("splice", 3175, 60, 1000),
    "thyroid": _raetsch("thyroid", 215, 5, 140, splits=False),
    "titanic": _raetsch("titanic", 2201, 3, 150),
    "twonorm": _raetsch("twonorm", 7400, 20, 400, ending="csv.gz"),
    "waveform": _raetsch("waveform", 5000, 21, 400, ending="csv.gz"),
    "ripley": Source(
        1250,
        2,
        "R package MASS, synth.tr and synth.te (B. D. Ripley)",
        ("ripley_synth_train.csv", "ripley_synth_test.csv"),
        "halves",
        used=("figueiredo2001 Fig. 4, Table 1",),
        standardise="none",
        n_train=100,
    ),
    "synth_wide": _again("ripley", 1250, 250, "chen2009 Fig. 1", standardise="none"),
    "synth_narrow": _again("ripley", 1250, 250, "chen2009 Fig. 1", standardise="none"),
    "banana_wide": _again("banana", 5300, 400, "chen2009 Fig. 2", standardise="stored"),
    "banana_narrow": _again("banana", 5300, 400, "chen2009 Fig. 2", standardise="stored"),
    "pima_ripley": Source(
        532,
        7,
        "R package MASS, Pima.tr and Pima.te",
        ("pima_ripley_train.csv", "pima_ripley_test.csv"),
        "halves",
        used=("figueiredo2001 Table 2",),
        n_train=200,
    ),
    "crabs": Source(200, 6, "R package MASS, crabs", ("crabs.csv",)),
    "crabs_sex": Source(
        200,
        5,
        "R package MASS, crabs",
        base="crabs",
        derive=partial(without, "species"),
        used=("figueiredo2001 Table 2",),
        n_train=80,
    ),
    "fgl": Source(
        214,
        9,
        "R package MASS, fgl",
        ("fgl.csv",),
        classes=6,
        used=("figueiredo2001 Table 3",),
    ),
    "wisconsin_original": Source(
        699, 9, _UCI, ("wisconsin_original.csv",), used=("lyu2020 Tables 2-7",), missing="drop"
    ),
    "glass": Source(214, 9, _UCI, ("glass_uci.csv",), classes=6, used=("lyu2020 Tables 2-7",)),
    "heart_cleveland": Source(303, 13, _UCI, ("heart_cleveland.csv",), classes=5, missing="median"),
    "heart_hungarian": Source(
        294,
        13,
        _UCI,
        ("heart_hungarian.csv",),
        used=("kropotov2006 Table I",),
        missing="median",
    ),
    "heart_hungarian_reprocessed": Source(
        294,
        13,
        _UCI,
        ("heart_hungarian_reprocessed.csv",),
        classes=5,
        used=("lyu2020 Tables 2-7",),
        missing="median",
    ),
    "heart_switzerland": Source(
        123, 13, _UCI, ("heart_switzerland.csv",), classes=5, missing="median"
    ),
    "heart_va": Source(200, 13, _UCI, ("heart_va.csv",), classes=5, missing="median"),
    "cleveland": _disease("heart_cleveland", 303),
    "switzerland": _disease("heart_switzerland", 123),
    "long_beach": _disease("heart_va", 200),
    "vowel": Source(
        990,
        10,
        _UCI,
        ("vowel.csv",),
        "vowel_split.csv",
        classes=11,
        used=("lyu2020 Tables 2-7",),
    ),
    "winequality_red": Source(
        1599,
        11,
        _UCI,
        ("winequality_red.csv",),
        classes=6,
        used=("lyu2020 Tables 2-7",),
        openml=40691,
        openml_target="class",
    ),
    "winequality_white": Source(
        4898,
        11,
        _UCI,
        ("winequality_white.csv",),
        classes=7,
        used=("lyu2020 Tables 2-7",),
        openml=40498,
        openml_target="Class",
    ),
    "letter": Source(20000, 16, _UCI, ("letter.csv",), "16000", classes=26),
    **{f"letter_{n}": _letters(n) for n in range(2, 11)},
    "leaves_margin": Source(1600, 64, _UCI, ("leaves_margin.csv.gz",), classes=100),
    "leaves_shape": Source(1600, 64, _UCI, ("leaves_shape.csv.gz",), classes=100),
    **{f"leaves_{n}": _leaves(n) for n in (20, 40, 60, 80, 100)},
    "australian": Source(690, 14, _UCI, ("australian.csv",), used=("kropotov2006 Table I",)),
    "bupa": Source(
        345,
        6,
        _UCI,
        ("bupa.csv",),
        used=("kropotov2006 Table I",),
        openml=8,
        openml_target="selector",
    ),
    "credit": Source(
        690,
        15,
        _UCI,
        ("credit.csv",),
        used=("kropotov2006 Table I",),
        missing="median",
        openml=29,
        openml_target="class",
    ),
    "hepatitis": Source(
        155,
        19,
        _UCI,
        ("hepatitis.csv",),
        used=("kropotov2006 Table I",),
        missing="median",
        openml=55,
        openml_target="Class",
    ),
    "pima": Source(768, 8, _UCI, ("pima_full.csv",), used=("kropotov2006 Table I",)),
    "esl_mixture": Source(
        200,
        2,
        "R package ElemStatLearn, mixture.example",
        ("esl_mixture.csv",),
        standardise="none",
    ),
    "esl_mixture_means": _ESL_MEANS,
    "esl_toy": Source(
        5200,
        2,
        "R package ElemStatLearn, mixture.example",
        base="esl_mixture",
        derive=partial(esl_toy, _ESL_MEANS),
        used=("kropotov2006 Fig. 6",),
        standardise="none",
        n_train=200,
    ),
    "boston_housing": _small_regression(506, 13, files=("boston_housing.csv",)),
    "airfoil_self_noise": _small_regression(1503, 5, files=("airfoil_self_noise.csv",)),
    "wisconsin_diagnostic": Source(
        569,
        30,
        "scikit-learn",
        shipped="load_breast_cancer",
        used=("figueiredo2001 Table 2", "chmielewski2019 Tables 1-2"),
        n_train=300,
    ),
    "iris": Source(
        150, 4, "scikit-learn", shipped="load_iris", classes=3, used=("lyu2020 Tables 2-7",)
    ),
    "wine": Source(
        178, 13, "scikit-learn", shipped="load_wine", classes=3, used=("lyu2020 Tables 2-7",)
    ),
    "digits": Source(1797, 64, "scikit-learn", shipped="load_digits", classes=10),
    "spiral": _generated(spiral, 200, 2000, 2, "chen2009 Fig. 4"),
    "overlap": _generated(overlap, 200, 2000, 2, "chen2009 Fig. 4"),
    "bumpy": _generated(bumpy, 200, 2000, 2, "chen2009 Fig. 4"),
    "relevance": _generated(relevance, 200, 2000, 2, "chen2009 Fig. 4"),
    "overlap_classes": _generated(overlap_classes, 150, 3000, 2, "lyu2020 Fig. 3", classes=3),
    "overclass": _generated(
        lambda n, *, random_state: overclass(random_state=random_state),
        127,
        0,
        2,
        "lyu2020 Fig. 4, Table 1",
        classes=10,
    ),
    **{
        f"ripley_rows_{n}": _generated(ripley_mixture, n, 1000, 2, "own-scaling")
        for n in (100, 200, 400, 800, 1600, 3200)
    },
    **{
        f"ring_{c}_{n}": _generated(
            partial(ring, n_classes=c), n, 1000, 2, "lyu2020 section 3.6", classes=c
        )
        for c, n in ((4, 100), (4, 200), (4, 400), (4, 800), (2, 400), (8, 400), (16, 400))
    },
    **{
        f"gaussians_{d}": _generated(
            partial(gaussians, n_features=d), 200, 1000, d, "figueiredo2001 Fig. 2"
        )
        for d in _FJ_DIMENSIONS
    },
    **{
        f"half_gaussians_{d}": _generated(
            partial(gaussians, n_features=d), 100, 1000, d, "figueiredo2001 Fig. 3"
        )
        for d in (*_FJ_DIMENSIONS, 30, 40)
    },
    **{
        name: _generated(make, n, 0, d, "chmielewski2019 Tables 1-2", classes=0, **how)
        for name, make, n, d, how in (
            ("wave", wave, 30, 1, {}),
            ("wave40", wave, 40, 1, {}),
            ("sinc", sinc, 100, 1, {}),
            ("friedman2", partial(_friedman, 2), 300, 4, {"standardise": "train"}),
            ("friedman3", partial(_friedman, 3), 300, 4, {"standardise": "train"}),
        )
    },
    "sinc_quiet": _generated(
        partial(sinc, noise=0.01), 100, 0, 1, "chmielewski2019 Fig. 2", classes=0
    ),
    "linear": _generated(hyperplane, 100, 0, 2, "chmielewski2019 Tables 1-2", standardise="none"),
    **{
        f"{name}_training": Source(
            n,
            d,
            _RAETSCH,
            base=name,
            derive=partial(training_part, n),
            used=("chmielewski2019 Tables 1-2",),
            standardise="stored",
        )
        for name, n, d in (
            ("thyroid", 140, 5),
            ("titanic", 150, 3),
            ("banana", 400, 2),
            ("waveform", 400, 21),
            ("german", 700, 20),
        )
    },
}


def source_of(name: str) -> Source:
    """Return a set's entry in the registry; an unknown name is a ValueError with the nearest ones."""
    return entry_of("data set", name, SOURCES, f"known: {', '.join(sorted(SOURCES))}")


def describe() -> pd.DataFrame:
    """Return the registry as a table: a row for each set."""
    rows = {
        name: {
            "rows": each.rows,
            "features": each.features,
            "classes": each.classes,
            "origin": each.origin,
            "used in": "; ".join(each.used),
            "standardised": each.standardise,
            "missing cells": each.missing,
            "how to obtain": each.how,
        }
        for name, each in SOURCES.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")
