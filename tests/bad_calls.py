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
import pcvm_pymc as pcvm

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


def _matrices(missing=(np.nan, None)):
    X, _ = blobs(N)
    shapes = [[], [[]], np.zeros((0, 2)), np.zeros((N, 0)), X[:, 0], X[None], [[1, 2], [3]]]
    values = [_spoilt(X, bad) for bad in (*missing, np.inf, 1e160, "a", 1j)]
    types = [X.astype(str), X + 1j, _dates(N, 2), _masked(), sp.csr_array(X)]
    tables = [{"a": ["x"] * N, "b": 1.0}, {"a": pd.to_datetime(["2020-01-01"] * N)}]
    frames = [pd.DataFrame(each) for each in tables]
    return [None, 3, "text", {}, Odd(), *shapes, *values, *types, *frames, X[:-1]]


def _labels():
    _, y = blobs(N)
    words, third = np.where(y > 0, "yes", "no").astype(object), np.arange(N) == 3
    shapes = [[], y[:-1], np.tile(y, 2), np.column_stack([y, y])]
    values = [_spoilt(y, np.nan), _spoilt(y, -np.inf), _spoilt(words, None), _spoilt(y, None)]
    missing = [
        np.where(third, np.array(np.nan, dtype=object), words),
        np.where(third, np.datetime64("NaT", "D"), _dates(N)),
        np.ma.masked_array(y, third),
        pd.Series(words).where(~third, pd.NA),
    ]
    others = [y + 1j, np.ones(N), [*words[:-1], 3]]
    return [None, 3, "text", {}, Odd(), *shapes, *values, *missing, *others]


def _are_ones(values):
    return isinstance(values, np.ndarray) and np.array_equal(values, np.ones(N))


def _kernels():
    def answers(value):
        return lambda X, Z, width: value(len(X), len(Z)) if callable(value) else value

    others = [lambda n, m: np.ones((n, m + 1)), lambda n, m: np.ones((n, m)) * 1j, "matrix", None]
    filled = [lambda n, m, bad=bad: np.full((n, m), bad) for bad in (np.nan, np.inf, 1e200)]
    return ["nonsense", 3, None, [], {}, Odd(), np.ones((N, N)), *map(answers, [*filled, *others])]


_NO_NUMBER = ["5", [], {}, np.nan, 1j, (1, 2), Odd(), datetime.date(2020, 1, 1), True]
_WHOLE = [*_NO_NUMBER, 2.5, -1, -(2**40), np.inf, 0.0]
_TREES = [3, "x", {}, None, [], Odd(), xr.DataTree(), xr.Dataset(), np.ones(3)]
_NO_OBJECT = [3, "x", {}, [], Odd(), np.ones(3), object]
_OTHER_ROWS = [np.ones(3), np.ones((N, 2))]

#: values that no argument of a kind takes
KINDS = {
    "matrix": _matrices,
    "table": lambda: _matrices(missing=()),  # in which values may be missing
    "rows of a table": lambda: _matrices(missing=())[:-1],
    "square": lambda: [*_matrices(), -np.eye(2), np.array([[1.0, 2], [0, 1]]), np.zeros((2, 2))],
    "rows": lambda: _matrices()[:-1],
    "rows or None": lambda: _matrices()[1:-1],
    "labels": lambda: [*_labels(), np.linspace(0.1, 0.9, N)],
    "some labels": lambda: [each for each in _labels() if not _are_ones(each)],
    "some labels or None": lambda: KINDS["some labels"]()[1:],
    "kernel": _kernels,
    "kernel or None": lambda: [each for each in _kernels() if each is not None],
    "whole": lambda: [*_WHOLE, None, 0],
    "whole or 0": lambda: [*_WHOLE, None],
    "whole numbers": lambda: _WHOLE,
    "whole or None": lambda: [*_WHOLE, 0],
    "folds": lambda: [*_WHOLE, None, 0, 1],
    "folds or None": lambda: [*_WHOLE, 0, 1],
    "positive": lambda: [*_NO_NUMBER, 0.0, -1.0, np.inf, None],
    "positive or None": lambda: [*_NO_NUMBER, 0.0, -1.0, np.inf],
    "probability": lambda: [*_NO_NUMBER, 0.0, 1.0, -0.1, np.inf, None],
    "share": lambda: [*_NO_NUMBER, 1.0, -0.1, np.inf, None],
    "bytes": lambda: [*_NO_NUMBER, 0, -1.0],
    "number": lambda: [*_NO_NUMBER, np.inf, None],
    "flag": lambda: ["yes", 2, None, [], Odd(), 0.5],
    "choice": lambda: ["nonsense", 3, [], {}, Odd(), np.ones(2), True],
    "width": lambda: [0.0, -1.0, np.nan, np.inf, "wide", [], [[1.0]], 1j, {}, Odd(), [1.0, -1.0]],
    "seed": lambda: [-1, 1.5, "seed", np.nan, {}, Odd(), 1j, True],
    "tree": lambda: _TREES,
    "object": lambda: _NO_OBJECT,
    "bias": lambda: [each for each in [*_NO_NUMBER, np.inf] if each is not True],
    "results": lambda: [3, "x", [], Odd(), np.ones(3), object, {}, None],
    "start": lambda: [3, "x", np.full(N, np.nan), Odd(), *_OTHER_ROWS, None, [1j] * N],
    "path": lambda: [None, 3, [], b"x", "", Odd(), 1.5],
    "signs": lambda: [3, "x", np.zeros(N), np.full(N, np.nan), Odd(), *_OTHER_ROWS],
    "basis": lambda: [0, -1, 10**6, 2.5, "all", True, np.ones((3, 7)), Odd(), {}, [[np.nan, 1.0]]],
    "widths": lambda: [[], 3, "x", [0.0], [-1.0], [np.nan], [np.inf], [[1.0]], Odd(), [1j], {}],
    "name": lambda: [3, None, "", [], b"x", 1.5, Odd(), True],
    "C name": lambda: [3, "", "a-b", "_a", "1a", "a b", [], Odd(), True],
    "sizes": lambda: [[], 3, "x", [-1], [2.5], [10**6], ["a"], Odd(), {}, [np.nan], [True]],
}
#: the kind of an argument of this name, where a call says nothing else
KIND_OF = {
    **{"X": "matrix", "y": "labels", "X_new": "rows", "model": "object", "options": "object"},
    **dict.fromkeys(("max_iter", "n_init", "n_basis", "draws", "chains", "thin"), "whole"),
    **dict.fromkeys(("max_iter", "noise_period", "patience", "refresh_period"), "whole"),
    **dict.fromkeys(("likelihood", "estimation", "update", "link"), "choice"),
    **dict.fromkeys(("by", "method", "features", "prior", "precision", "support"), "choice"),
    **dict.fromkeys(("kernel_dtype", "nuts_sampler"), "choice"),
    **dict.fromkeys(("tol", "noise_tol", "size", "target_accept", "gamma"), "positive"),
    **dict.fromkeys(("global_scale", "slab"), "positive"),
    **dict.fromkeys(("scale", "noise"), "positive or None"),
    **dict.fromkeys(("star", "progressbar", "quiet", "shared"), "flag"),
    **dict.fromkeys(("random_state", "random_seed"), "seed"),
    **dict.fromkeys(("result", "posterior", "map_result", "reference"), "tree"),
    **dict.fromkeys(("n_vectors", "cores"), "whole or None"),
    **{"memory_limit": "bytes", "cv": "folds", "matrix": "square"},
    **dict.fromkeys(("name", "dim"), "name"),
    **dict.fromkeys("cdef", "number"),
}


@dataclass
class Call:
    """A good call, and of which kind each argument is: "X, cv: folds or None"."""

    function: object
    good: dict
    arguments: str
    also: dict = field(default_factory=dict)  # what an error may call an argument besides

    @property
    def kinds(self):
        pairs = (each.partition(": ") for each in self.arguments.split(", "))
        return {name: kind or KIND_OF.get(name, name) for name, _, kind in pairs}

    def spoilt(self, name, value):
        return self.function(**{**self.good, name: value})


def _fitted(cls, X, y, **arguments):
    return cls(**arguments).fit(X, y)


def _three():
    rng = np.random.default_rng(2)
    return rng.normal(size=(N, 2)) + np.arange(N)[:, None] % 3, np.arange(N) % 3


_QUIET = {"progressbar": False, "quiet": True, "cores": 1, "random_seed": 1}
_SHORT = {"method": "gibbs", "draws": 10, "tune": 10, "chains": 2, "thin": 1, "max_iter": 40}
_SHORT |= _QUIET


@cache
def results():
    """Return small results, by their functions."""
    X, y = blobs(N)
    model = pcvm_pymc.pcvm_model(X, y, hyperprior="default")
    return {
        "X": X,
        "y": y,
        "model": model,
        "map": pcvm_pymc.find_map_em(model, progressbar=False),
        "posterior": pcvm_pymc.sample(model, **_SHORT),
        "rvm": pcvm_pymc.rvm_model(X, X[:, 0]),
        "classifier": pcvm.PCVMClassifier(width=1.0).fit(X, y),
        "machine": pcvm_pymc.RVMClassifier(width=1.0).fit(X, y),
    }


_X_ALSO = ("array", "[Ii]nput", "feature", "sample", "dimension", "Reshape", "data", "argument")
_ALSO = {"X": _X_ALSO, "y": (*_X_ALSO, "label")}
_KERNEL = "kernel, width"
_EM = f"X: table, y, {_KERNEL}, basis, options: object, memory_limit"
_EVIDENCE = "method, cv, options: object, memory_limit, random_state"


def _estimators(two, three):
    numbers = {"X": two["X"], "y": two["X"][:, 0], "width": 1.0}
    two, three = two | {"width": 1.0}, three | {"width": 1.0}
    found = [
        (
            pcvm.PCVMClassifier,
            two,
            f"{_EM}, likelihood, hyperprior: choice, scale, estimation, cv, n_vectors, "
            "random_state",
        ),
        (
            pcvm.SparseProbitClassifier,
            {"X": two["X"], "y": two["y"]},
            "X: table, y, features, prior, bias: choice, options: object",
        ),
        (
            pcvm.MPCVMClassifier,
            {**three, "estimation": "em"},
            f"{_EM}, hyperprior: choice, estimation, random_state, cv",
        ),
        (pcvm.MRVMClassifier, three, f"{_EM}, estimation, random_state"),
        (pcvm.RVMClassifier, two, f"X: table, y, {_KERNEL}, basis, link, {_EVIDENCE}"),
        (
            pcvm.RVMRegressor,
            numbers,
            f"X: table, y: some labels, {_KERNEL}, basis, likelihood, star, noise, {_EVIDENCE}",
        ),
    ]
    calls_of = {}
    for cls, good, arguments in found:
        also = ("targets",) if cls is pcvm.RVMRegressor else ("label", "class")
        also = {"X": _X_ALSO, "y": (*_X_ALSO, *also)}
        calls_of[cls.__name__] = Call(partial(_fitted, cls), good, arguments, also)
    return calls_of


def _builders(two, three):
    centres = {"basis": two["X"][:5], "signs": two["y"][:5]}
    numbers = {"X": two["X"], "y": two["X"][:, 0]}
    prior = "hyperprior: object"
    found = {
        "pcvm_model": (two, f"X, y, {_KERNEL}, {prior}, precision, likelihood, signs"),
        "pcvm_model, centres": ({**two, **centres}, "basis", {"basis": ("signs",)}),
        "sparse_probit_model": (two, "X, y, features, prior, bias: choice, kernel: kernel or None"),
        "rvm_model": (
            numbers,
            f"X, y: some labels, {_KERNEL}, {prior}, precision, likelihood, noise, basis",
        ),
        "mpcvm_model": (three, f"X, y, {_KERNEL}, {prior}, precision"),
        "mrvm_model": (three, f"X, y, {_KERNEL}, {prior}, shared, basis"),
    }
    return _of_the_package(found)


def _of_the_package(found):
    """Return calls of public functions by name, as "name" or "name, what is special"."""
    return {name: Call(getattr(pcvm_pymc, name.split(",")[0]), *row) for name, row in found.items()}


def _in_a_model(function, **arguments):
    with pm.Model():
        return function(**arguments)


def _components(two):
    pieces = f"name, dim, {_KERNEL}, hyperprior: object, precision, bias: flag"
    found = {
        "pcvm_latent": (two, f"X, y, {pieces}, signs"),
        "rvm_latent": ({"X": two["X"]}, f"X: rows, {pieces}, size, basis"),
    }
    return {
        name: Call(partial(_in_a_model, getattr(pcvm_pymc, name)), *row)
        for name, row in found.items()
    }


def _exports(known):
    few = pcvm.PCVMClassifier(width=1.0, estimation="em").fit(known["X"], known["y"])
    average = pcvm.PCVMClassifier(estimation="average", width=1.0).fit(known["X"], known["y"])
    inside = {"model": average, "X": known["X"]}
    found = {
        "predict_interval": (inside, "model: tree, X: rows of a table, probability: probability"),
        "to_onnx": ({"model": few}, "model: tree, return_std: flag"),
        "to_c": ({"model": few}, "model: tree, name: C name, return_std: flag"),
    }
    return _of_the_package(found)


def _options():
    found = {
        "EMOptions": ({}, "update, kernel_dtype, max_iter, tol"),
        "MatrixRBF": ({"matrix": np.eye(2)}, "matrix, width"),
        "EvidenceOptions": (
            {},
            "max_iter, tol, noise_tol, noise_starts: widths, noise_period, patience, "
            "refresh_period, random_state",
        ),
        "ChoiceOptions": (
            {},
            "kept_weight: positive, grown_weight: positive, metric_spread: positive, "
            "metric_penalty: positive, stop_z: positive, drop_z: positive, tie_nats: positive",
        ),
        "PosteriorOptions": ({}, "draws, max_iter"),
        "BottomUpOptions": ({}, "max_iter, tol, momentum: share, most: whole, is_rough: flag"),
        "Laplace": ({"gamma": 1.0}, "gamma"),
        "HalfHorseshoe": ({"global_scale": 0.1}, "global_scale, slab"),
        "Hyperprior": (dict.fromkeys("cdef", 1.0), "c, d, e, f"),
    }
    return _of_the_package(found)


def _inference(known):
    model, posterior, X, y = (known[name] for name in ("model", "posterior", "X", "y"))
    of_model, labels = {"model": model}, {"X": _X_ALSO, "y": ("label",)}
    trees = {"results": {"MAP": known["map"], "drawn": posterior}, "X_test": X, "y_test": y}
    found = {
        "find_map_em": (
            {**of_model, "progressbar": False},
            "model, options, start: object, progressbar",
        ),
        "fit_evidence": ({"model": known["rvm"]}, "model, method, options"),
        "sample": (
            {**of_model, **_SHORT},
            "model, method, draws, chains, thin: whole or None, max_iter: whole or None, "
            "tune: whole numbers, cores, random_seed, "
            "target_accept, nuts_sampler, progressbar, quiet",
        ),
        "predict": ({"result": known["map"], "X_new": X}, "result, X_new, star"),
        "initial_values": ({"mode": known["map"], **of_model}, "mode: tree, model"),
        "new_data": ({**of_model, "X_new": X}, "model, X_new"),
        "save": ({"tree": known["map"], "path": "/dev/null/no"}, "tree: object, path"),
        "load": ({"path": "/dev/null/no"}, "path"),
        "EMStep": (of_model, "model, options"),
        "PCVMGibbs": (of_model, "model"),
        "compare": (
            trees,
            "results, X_test: matrix, y_test: some labels",
            {"X_test": ("X_new", "y_test"), "y_test": ("X_new",)},
        ),
        "psis_loo": ({"posterior": posterior}, "posterior"),
        "loo": ({"result": known["map"], "X": X}, "result, X: rows or None"),
        "loo, classifier": ({"result": known["classifier"], "X": X, "y": y}, "X, y", labels),
        "kfold": (
            {"posterior": posterior, "X": X, "y": y, "cv": 2, **_SHORT},
            "posterior, X, y, cv, random_seed",
        ),
    }
    from_start = Call(
        lambda weight, bias: pcvm_pymc.find_map_em(
            model, start=pcvm.Start(weight, bias), progressbar=False
        ),
        {"weight": y, "bias": 0.0},
        "weight: start, bias",
        {"weight": ("start",), "bias": ("start",)},
    )
    return {**_of_the_package(found), "find_map_em, start": from_start}


def _choosing(known):
    two = {"X": known["X"], "y": known["y"]}
    found = {
        "choose_basis": ({**two, "n_basis": 5}, "X, y, n_basis, method, random_state"),
        "select": (
            {**two, "by": "cv"},
            f"X, y, by, over: choice, likelihood, {_KERNEL}, widths, basis, cv: folds or None, "
            "random_state",
            _ALSO,
        ),
        "validity": ({"model": known["machine"], **two}, "model, X: table, y: some labels", _ALSO),
        "project": (
            {"reference": known["classifier"], **two, "size": 2},
            "reference, X: table, y, size: whole or 0, sizes, cv: folds or None, hyperprior: object, "
            "options, random_state",
        ),
    }
    return _of_the_package(found)


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
