"""A seeded generator of bad calls of all public names: each is a good call with one argument spoilt."""

import datetime
import re
import warnings
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np
import pandas as pd
import pymc as pm
import scipy.sparse as sp
import xarray as xr
from problems import blobs

import pcvm_pymc
from pcvm_pymc import (
    BottomUpOptions,
    EMOptions,
    EMStep,
    EvidenceOptions,
    HalfHorseshoe,
    Hyperprior,
    Laplace,
    MatrixRBF,
    MPCVMClassifier,
    MRVMClassifier,
    PCVMClassifier,
    PCVMGibbs,
    RVMClassifier,
    RVMRegressor,
    SearchOptions,
    SparseProbitClassifier,
    Start,
)

N = 24


class Odd:
    """An object of no use."""


def _masked():
    return np.ma.masked_array(np.ones((N, 2)), np.eye(N, 2))


def _dates(*shape):
    return np.full(shape, np.datetime64("2020-01-01"))


def _spoilt(values, bad):
    out = np.array(values, dtype=object if isinstance(bad, str | complex | type(None)) else float)
    out.flat[3] = bad
    return out


def _matrices():
    X, _ = blobs(N)
    return [
        None,
        3,
        "text",
        {},
        Odd(),
        [],
        [[]],
        np.zeros((0, 2)),
        np.zeros((N, 0)),
        X[:, 0],
        X[None],
        [[1, 2], [3]],
        _spoilt(X, np.nan),
        _spoilt(X, np.inf),
        _spoilt(X, 1e160),
        1e300 * X,
        _spoilt(X, None),
        _spoilt(X, "a"),
        _spoilt(X, 1j),
        X.astype(str),
        X + 1j,
        _dates(N, 2),
        _masked(),
        sp.csr_array(X),
        pd.DataFrame({"a": ["x"] * N, "b": 1.0}),
        pd.DataFrame({"a": pd.to_datetime(["2020-01-01"] * N)}),
        X[:-1],
    ]


def _labels():
    _, y = blobs(N)
    words = np.where(y > 0, "yes", "no").astype(object)
    return [
        None,
        3,
        "text",
        {},
        Odd(),
        [],
        y[:-1],
        np.tile(y, 2),
        np.column_stack([y, y]),
        _spoilt(y, np.nan),
        _spoilt(y, -np.inf),
        _spoilt(words, None),
        _spoilt(y, None),
        np.where(np.arange(N) == 3, np.array(np.nan, dtype=object), words),
        np.where(np.arange(N) == 3, np.datetime64("NaT", "D"), _dates(N)),
        y + 1j,
        np.ma.masked_array(y, np.arange(N) == 3),
        pd.Series(words).where(np.arange(N) != 3, pd.NA),
        np.ones(N),
        [*words[:-1], 3],
    ]


def _are_ones(values):
    return isinstance(values, np.ndarray) and np.array_equal(values, np.ones(N))


def _kernels():
    return [
        "nonsense",
        3,
        None,
        [],
        {},
        Odd(),
        lambda X, Z, width: np.full((len(X), len(Z)), np.nan),
        lambda X, Z, width: np.full((len(X), len(Z)), np.inf),
        lambda X, Z, width: np.full((len(X), len(Z)), 1e200),
        lambda X, Z, width: np.ones((len(X), len(Z) + 1)),
        lambda X, Z, width: np.ones((len(X), len(Z))) * 1j,
        lambda X, Z, width: "matrix",
        lambda X, Z, width: None,
        np.ones((N, N)),
    ]


_NO_NUMBER = ["5", [], {}, np.nan, 1j, (1, 2), Odd(), datetime.date(2020, 1, 1), True]
_WHOLE = [*_NO_NUMBER, 2.5, -1, -(2**40), np.inf, 0.0]
_TREES = [3, "x", {}, None, [], Odd(), xr.DataTree(), xr.Dataset(), np.ones(3)]
_NO_OBJECT = [3, "x", {}, [], Odd(), np.ones(3), object]

#: values that no argument of a kind takes
KINDS = {
    "matrix": _matrices,
    "square": lambda: [
        *_matrices(),
        -np.eye(2),
        np.array([[1.0, 2.0], [0.0, 1.0]]),
        np.zeros((2, 2)),
    ],
    "rows": lambda: _matrices()[:-1],
    "rows or None": lambda: _matrices()[1:-1],
    "labels": lambda: [*_labels(), np.linspace(0.1, 0.9, N)],
    "some labels": lambda: [each for each in KINDS["labels"]() if not _are_ones(each)],
    "some labels or None": lambda: KINDS["some labels"]()[1:],
    "targets": lambda: [each for each in _labels() if not _are_ones(each)],
    "kernel": _kernels,
    "whole": lambda: [*_WHOLE, None, 0],
    "whole, 0": lambda: [*_WHOLE, None],
    "whole or None": lambda: [*_WHOLE, 0],
    "folds": lambda: [*_WHOLE, None, 0, 1],
    "folds or None": lambda: [*_WHOLE, 0, 1],
    "positive": lambda: [*_NO_NUMBER, 0.0, -1.0, np.inf, None],
    "positive or None": lambda: [*_NO_NUMBER, 0.0, -1.0, np.inf],
    "share": lambda: [*_NO_NUMBER, 1.0, -0.1, np.inf, None],
    "bytes": lambda: [*_NO_NUMBER, 0, -1.0],
    "number": lambda: [*_NO_NUMBER, np.inf, None],
    "flag": lambda: ["yes", 2, None, [], Odd(), 0.5],
    "choice": lambda: ["nonsense", 3, [], {}, Odd(), np.ones(2), True],
    "width": lambda: [0.0, -1.0, np.nan, np.inf, "wide", [], [[1.0]], 1j, {}, Odd(), [1.0, -1.0]],
    "seed": lambda: [-1, 1.5, "seed", np.nan, {}, Odd(), 1j, True],
    "jobs": lambda: [0, 2.5, "many", 2**40, -(2**40), np.nan, Odd(), True],
    "tree": lambda: _TREES,
    "model": lambda: _NO_OBJECT,
    "object": lambda: _NO_OBJECT,
    "bias": lambda: [each for each in [*_NO_NUMBER, np.inf] if each is not True],
    "rivals": lambda: [3, "x", [], Odd(), np.ones(3), object],
    "start": lambda: [
        3,
        "x",
        np.ones(3),
        np.full(N, np.nan),
        Odd(),
        np.ones((N, 2)),
        None,
        [1j] * N,
    ],
    "checkpoint": lambda: [3, {}, [], Odd(), np.ones(3), object, b"x", ""],
    "path": lambda: [None, 3, [], b"x", "", Odd(), 1.5],
    "signs": lambda: [3, "x", np.zeros(N), np.ones(3), np.full(N, np.nan), Odd(), np.ones((N, 2))],
    "basis": lambda: [0, -1, 10**6, 2.5, "all", True, np.ones((3, 7)), Odd(), {}, [[np.nan, 1.0]]],
    "widths": lambda: [[], 3, "x", [0.0], [-1.0], [np.nan], [np.inf], [[1.0]], Odd(), [1j], {}],
    "name": lambda: [3, None, "", [], b"x", 1.5, Odd(), True],
    "C name": lambda: [3, None, "", "1a", "a b", [], Odd(), True],
    "sizes": lambda: [[], 3, "x", [-1], [2.5], [10**6], ["a"], Odd(), {}, [np.nan], [True]],
}


@dataclass
class Call:
    """A good call, and of which kind each argument is."""

    function: object
    good: dict = field(default_factory=dict)
    kinds: dict = field(default_factory=dict)
    also: dict = field(default_factory=dict)  # what an error may call an argument besides

    def spoilt(self, name, value):
        return self.function(**{**self.good, name: value})


def _fitted(cls, X, y, **arguments):
    return cls(**arguments).fit(X, y)


def _three():
    rng = np.random.default_rng(2)
    return rng.normal(size=(N, 2)) + np.arange(N)[:, None] % 3, np.arange(N) % 3


@cache
def results():
    """Return small results, by their functions."""
    X, y = blobs(N)
    model = pcvm_pymc.pcvm_model(X, y, hyperprior="default")
    quiet = {"progressbar": False, "quiet": True, "cores": 1, "random_seed": 1}
    return {
        "X": X,
        "y": y,
        "model": model,
        "map": pcvm_pymc.find_map_em(model, progressbar=False),
        "posterior": pcvm_pymc.sample(
            model, method="gibbs", draws=10, tune=10, chains=2, thin=1, max_sweeps=40, **quiet
        ),
        "rvm": pcvm_pymc.rvm_model(X, X[:, 0]),
        "classifier": PCVMClassifier(width=1.0).fit(X, y),
        "machine": pcvm_pymc.RVMClassifier(width=1.0).fit(X, y),
    }


_X_ALSO = ("array", "[Ii]nput", "feature", "sample", "dimension", "Reshape", "data", "argument")
_DATA = {"X": "matrix", "y": "labels"}


def _estimator(cls, data, kinds, **good):
    also = {"X": _X_ALSO, "y": (*_X_ALSO, "label", "class")}
    return Call(partial(_fitted, cls), {**data, **good}, {**_DATA, **kinds}, also)


_COMMON = {"kernel": "kernel", "width": "width", "basis": "basis"}
_EM = {
    **_COMMON,
    "max_iter": "whole",
    "tol": "positive or None",
    "memory_limit": "bytes",
    "n_jobs": "jobs",
}


def _estimators(two, three):
    rows = {"width": 1.0}
    return {
        "PCVMClassifier": _estimator(
            PCVMClassifier,
            two,
            {
                **_EM,
                "likelihood": "choice",
                "hyperprior": "choice",
                "scale": "positive or None",
                "estimation": "choice",
                "update": "choice",
                "n_init": "whole",
                "cv": "folds",
                "n_vectors": "whole or None",
                "kernel_dtype": "choice",
                "random_state": "seed",
            },
            **rows,
        ),
        "SparseProbitClassifier": _estimator(
            SparseProbitClassifier,
            two,
            {"features": "choice", "prior": "choice", "bias": "choice", "max_iter": "whole"},
        ),
        "MPCVMClassifier": _estimator(
            MPCVMClassifier,
            three,
            {
                **_EM,
                "algorithm": "choice",
                "hyperprior": "choice",
                "estimation": "choice",
                "start": "choice",
                "random_state": "seed",
                "cv": "folds",
            },
            estimation="em",
            **rows,
        ),
        "MRVMClassifier": _estimator(
            MRVMClassifier,
            three,
            {**_EM, "algorithm": "choice", "start": "choice", "random_state": "seed"},
            **rows,
        ),
        "RVMClassifier": _estimator(
            RVMClassifier,
            two,
            {
                **_COMMON,
                "link": "choice",
                "method": "choice",
                "cv": "folds",
                "max_iter": "whole",
                "tol": "positive",
                "memory_limit": "bytes",
                "random_state": "seed",
            },
            **rows,
        ),
        "RVMRegressor": Call(
            partial(_fitted, RVMRegressor),
            {"X": two["X"], "y": two["X"][:, 0], **rows},
            {
                "X": "matrix",
                "y": "targets",
                **_COMMON,
                "likelihood": "choice",
                "star": "flag",
                "noise": "positive or None",
                "method": "choice",
                "cv": "folds",
                "max_iter": "whole",
                "tol": "positive",
                "memory_limit": "bytes",
                "random_state": "seed",
            },
            {"X": _X_ALSO, "y": (*_X_ALSO, "targets")},
        ),
    }


def _builders(two, three):
    centres = {"basis": two["X"][:5], "signs": two["y"][:5]}
    prior = {"hyperprior": "object"}
    kinds = {**_DATA, "kernel": "kernel", "width": "width"}
    return {
        "pcvm_model": Call(
            pcvm_pymc.pcvm_model,
            two,
            {**kinds, **prior, "likelihood": "choice", "precision": "choice", "signs": "signs"},
        ),
        "pcvm_model, centres": Call(
            pcvm_pymc.pcvm_model, {**two, **centres}, {"basis": "basis"}, {"basis": ("signs",)}
        ),
        "sparse_probit_model": Call(
            pcvm_pymc.sparse_probit_model,
            two,
            {
                **_DATA,
                "features": "choice",
                "prior": "choice",
                "bias": "choice",
                "kernel": "kernel",
            },
        ),
        "rvm_model": Call(
            pcvm_pymc.rvm_model,
            {"X": two["X"], "y": two["X"][:, 0]},
            {
                **kinds,
                "y": "targets",
                **prior,
                "likelihood": "choice",
                "noise": "positive or None",
                "precision": "choice",
                "basis": "basis",
            },
        ),
        "mpcvm_model": Call(
            pcvm_pymc.mpcvm_model, three, {**kinds, **prior, "precision": "choice"}
        ),
        "mrvm_model": Call(
            pcvm_pymc.mrvm_model, three, {**kinds, **prior, "shared": "flag", "basis": "basis"}
        ),
    }


def _in_a_model(function, **arguments):
    with pm.Model():
        return function(**arguments)


def _components(two):
    kinds = {
        "X": "matrix",
        **dict.fromkeys(("name", "dim"), "name"),
        "kernel": "kernel",
        "width": "width",
        "hyperprior": "object",
        "precision": "choice",
        "bias": "flag",
    }
    return {
        "pcvm_latent": Call(
            partial(_in_a_model, pcvm_pymc.pcvm_latent),
            two,
            {**kinds, "y": "labels", "signs": "signs"},
        ),
        "rvm_latent": Call(
            partial(_in_a_model, pcvm_pymc.rvm_latent),
            {"X": two["X"]},
            {**kinds, "X": "rows", "size": "positive", "basis": "basis"},
        ),
    }


def _exports(known):
    few = PCVMClassifier(width=1.0, estimation="em").fit(known["X"], known["y"])
    return {
        "to_onnx": Call(pcvm_pymc.to_onnx, {"model": few}, {"model": "tree"}),
        "to_c": Call(pcvm_pymc.to_c, {"model": few}, {"model": "tree", "name": "C name"}),
    }


def _options():
    found = {
        "EMOptions": (
            EMOptions,
            {"update": "choice", "bias": "choice", "max_iter": "whole", "tol": "positive"},
        ),
        "MatrixRBF": (MatrixRBF, {"matrix": "square", "width": "width"}),
        "EvidenceOptions": (
            EvidenceOptions,
            {
                "max_iter": "whole",
                "tol": "positive",
                "noise_tol": "positive",
                "noise_starts": "widths",
                "noise_period": "whole",
                "patience": "whole",
                "refresh_period": "whole",
                "random_state": "seed",
            },
        ),
        "BottomUpOptions": (
            BottomUpOptions,
            {
                "max_iter": "whole",
                "tol": "positive",
                "momentum": "share",
                "most": "whole",
                "is_rough": "flag",
            },
        ),
        "SearchOptions": (SearchOptions, {"tol": "positive"}),
        "Laplace": (Laplace, {"gamma": "positive"}),
        "HalfHorseshoe": (HalfHorseshoe, {"global_scale": "positive", "slab": "positive"}),
    }
    good = {
        "MatrixRBF": {"matrix": np.eye(2)},
        "Laplace": {"gamma": 1.0},
        "HalfHorseshoe": {"global_scale": 0.1},
    }
    calls = {
        name: Call(function, good.get(name, {}), kinds) for name, (function, kinds) in found.items()
    }
    calls["Hyperprior"] = Call(
        Hyperprior, {"c": 1.0, "d": 1.0, "e": 1.0, "f": 1.0}, dict.fromkeys("cdef", "number")
    )
    return calls


def _inference(known):
    model, found, posterior = known["model"], known["map"], known["posterior"]
    X, y = known["X"], known["y"]
    short = {"draws": 10, "tune": 10, "chains": 2, "thin": 1, "max_sweeps": 40}
    short |= {"method": "gibbs", "quiet": True, "progressbar": False, "cores": 1, "random_seed": 1}
    trees = {"map_result": found, "posterior": posterior, "X_test": X, "y_test": y}
    return {
        "find_map_em": Call(
            pcvm_pymc.find_map_em,
            {"model": model, "progressbar": False},
            {
                "model": "model",
                "options": "object",
                "start": "choice",
                "random_seed": "seed",
                "progressbar": "flag",
            },
        ),
        "find_map_em, start": Call(
            lambda weight, bias: pcvm_pymc.find_map_em(
                model, start=Start(weight, bias), progressbar=False
            ),
            {"weight": y, "bias": 0.0},
            {"weight": "start", "bias": "bias"},
            {"weight": ("start",), "bias": ("start",)},
        ),
        "fit_evidence": Call(
            pcvm_pymc.fit_evidence,
            {"model": known["rvm"]},
            {"model": "model", "method": "choice", "options": "object"},
        ),
        "sample": Call(
            pcvm_pymc.sample,
            {"model": model, **short},
            {
                "model": "model",
                "method": "choice",
                **dict.fromkeys(("draws", "chains", "thin", "max_sweeps"), "whole"),
                "tune": "whole, 0",
                "cores": "whole or None",
                "random_seed": "seed",
                "support": "choice",
                "checkpoint": "checkpoint",
                "target_accept": "positive",
                "nuts_sampler": "choice",
                "progressbar": "flag",
                "quiet": "flag",
            },
        ),
        "add_log_prior": Call(
            pcvm_pymc.add_log_prior,
            {"result": posterior, "model": model},
            {"result": "tree", "model": "model"},
        ),
        "approximate": Call(
            pcvm_pymc.approximate,
            {"model": model, "draws": 2},
            {
                "model": "model",
                "method": "choice",
                "draws": "whole",
                "max_iter": "whole or None",
                **dict.fromkeys(("tol", "damping"), "positive or None"),
                "random_seed": "seed",
            },
        ),
        "predict": Call(
            pcvm_pymc.predict,
            {"result": found, "X_new": X},
            {"result": "tree", "X_new": "rows", "star": "flag"},
        ),
        "latent_draws": Call(
            pcvm_pymc.latent_draws,
            {"result": posterior, "X_new": X},
            {"result": "tree", "X_new": "rows"},
        ),
        "prior_latent": Call(
            pcvm_pymc.prior_latent,
            {"model": model, "draws": 2},
            {"model": "model", "draws": "whole", "random_seed": "seed"},
        ),
        "draw_precisions": Call(
            pcvm_pymc.draw_precisions,
            {"posterior": posterior},
            {"posterior": "tree", "random_seed": "seed"},
        ),
        "new_data": Call(
            pcvm_pymc.new_data,
            {"model": model, "X_new": X, "y_new": y},
            {"model": "model", "X_new": "rows", "y_new": "some labels or None"},
            {"y_new": ("y",), "X_new": ("y",)},
        ),
        "save": Call(
            pcvm_pymc.save,
            {"tree": found, "path": "/dev/null/no"},
            {"tree": "object", "path": "path"},
        ),
        "load": Call(pcvm_pymc.load, {"path": "/dev/null/no"}, {"path": "path"}),
        "EMStep": Call(EMStep, {"model": model}, {"model": "model", "options": "object"}),
        "PCVMGibbs": Call(PCVMGibbs, {"model": model}, {"model": "model"}),
        "compare": Call(
            pcvm_pymc.compare,
            trees,
            {
                "map_result": "tree",
                "posterior": "tree",
                "X_test": "matrix",
                "y_test": "some labels",
                "rivals": "rivals",
            },
            {"X_test": ("X_new", "y_test", "MAP"), "y_test": ("X_new", "MAP")},
        ),
        "mixture": Call(
            pcvm_pymc.mixture,
            {"posteriors": [posterior], "weights": [1.0]},
            {"posteriors": "object", "weights": "widths"},
        ),
        "psis_loo": Call(pcvm_pymc.psis_loo, {"posterior": posterior}, {"posterior": "tree"}),
        "loo": Call(
            pcvm_pymc.loo, {"result": found, "X": X}, {"result": "tree", "X": "rows or None"}
        ),
        "loo, classifier": Call(
            pcvm_pymc.loo,
            {"result": known["classifier"], "X": X, "y": y},
            _DATA,
            {"X": _X_ALSO, "y": ("label",)},
        ),
        "kfold": Call(
            pcvm_pymc.kfold,
            {"posterior": posterior, "X": X, "y": y, "cv": 2, **{**short, "quiet": True}},
            {"posterior": "tree", **_DATA, "cv": "folds", "random_seed": "seed"},
        ),
    }


def _choosing(known):
    X, y = known["X"], known["y"]
    two = {"X": X, "y": y}
    return {
        "choose_basis": Call(
            pcvm_pymc.choose_basis,
            {**two, "n_basis": 5},
            {**_DATA, "n_basis": "whole", "method": "choice", "random_state": "seed"},
        ),
        "select_width": Call(
            pcvm_pymc.select_width,
            {**two, "widths": [1.0]},
            {
                **_DATA,
                "hyperprior": "object",
                "likelihood": "choice",
                "kernel": "kernel",
                "widths": "widths",
                "basis": "basis",
                "cv": "folds",
                "method": "choice",
                "options": "object",
                "random_state": "seed",
                "progressbar": "flag",
            },
        ),
        "select": Call(
            pcvm_pymc.select,
            {**two, "over": ("scale",)},
            {
                **_DATA,
                "over": "choice",
                "method": "choice",
                "width": "width",
                "kernel": "kernel",
                "likelihood": "choice",
                "basis": "basis",
                "cv": "folds",
                "random_state": "seed",
            },
            {"X": _X_ALSO, "y": (*_X_ALSO, "label")},
        ),
        "validity": Call(
            pcvm_pymc.validity,
            {"model": known["machine"], **two},
            {"model": "model", "X": "matrix", "y": "some labels"},
            {"X": _X_ALSO, "y": (*_X_ALSO, "label")},
        ),
        "project": Call(
            pcvm_pymc.project,
            {"reference": known["classifier"], **two, "size": 2},
            {
                "reference": "tree",
                **_DATA,
                "size": "whole, 0",
                "sizes": "sizes",
                "cv": "folds or None",
                "hyperprior": "object",
                "options": "object",
                "random_state": "seed",
            },
        ),
    }


@cache
def calls():
    """Return good calls of the public names."""
    known = results()
    two = {"X": known["X"], "y": known["y"]}
    three = dict(zip(("X", "y"), _three(), strict=True))
    return {
        **_options(),
        **_builders(two, three),
        **_components(two),
        **_exports(known),
        **_estimators(two, three),
        **_inference(known),
        **_choosing(known),
    }


def drawn(number, seed=0):
    """Yield bad calls: name, argument, position of the value in its kind, and the value."""
    rng = np.random.default_rng(seed)
    table = calls()
    names = list(table)
    for _ in range(number):
        name = names[rng.integers(len(names))]
        kinds = table[name].kinds
        argument = list(kinds)[rng.integers(len(kinds))]
        values = KINDS[kinds[argument]]()
        at = int(rng.integers(len(values)))
        yield name, argument, at, values[at]


def complaint(name, argument, value):
    """Return what is wrong with the answer to a bad call; nothing where it is as it should be."""
    call = calls()[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            call.spoilt(argument, value)
    except (ValueError, TypeError) as error:
        known = "|".join((rf"\b{argument}\b", *call.also.get(argument, ())))
        return "" if re.search(known, str(error)) else f"does not name {argument}: {error!r}"
    except UserWarning as warning:
        return "" if argument in str(warning) else f"warns without a name: {warning!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "was taken"


assert pm.Model  # the graphs are made by PyMC
