"""What all estimators share: arguments checked before any work, and nothing left of an earlier fit."""

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from pcvm_pymc.core.pieces import validation
from pcvm_pymc.core.pieces.centres import has_clusters_of_copies
from pcvm_pymc.core.pieces.kernels import Kernel, as_kernel, as_width
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS, blas_threads
from pcvm_pymc.core.problem import Status

_log = logging.getLogger(__name__)

# --- single arguments --------------------------------------------------------------------------


class Number(Interval):
    """An interval of numbers, to which True and False do not belong."""

    def is_satisfied_by(self, val: Any) -> bool:
        """Whether a value is a number of the interval."""
        return not isinstance(val, bool | np.bool_) and bool(super().is_satisfied_by(val))


def whole(least: int) -> Number:
    """Return the constraint of a whole number."""
    return Number(Integral, least, None, closed="left")


POSITIVE = Number(Real, 0, None, closed="neither")
_MOST_JOBS = 1024  # more threads than any machine has processors

#: scikit-learn's constraints of single arguments that mean the same in all estimators that have them
CONSTRAINTS: dict[str, list[Any]] = {
    "basis": [whole(1), "array-like", StrOptions({"auto"}), None],
    "cv": [whole(2)],
    "max_iter": [whole(1)],
    "tol": [POSITIVE, None],
    "scale": [POSITIVE, StrOptions({"auto"}), None],
    "n_vectors": [whole(1), StrOptions({"auto"}), None],
    "n_init": [whole(1)],
    "draws": [whole(1)],
    "bias": ["boolean", None],
    "star": ["boolean"],
    "verbose": ["boolean"],
    "noise": [POSITIVE, None],
    "start": [StrOptions({"default", "random"})],
    "algorithm": [StrOptions({"bottom-up", "top-down"})],
    "search": [StrOptions({"quick", "paper"})],
    "random_state": [whole(0), np.random.Generator, np.random.RandomState, None],
    "memory_limit": [POSITIVE, None],
    "kernel_dtype": [StrOptions({"float64", "float32"})],
    "n_jobs": [
        Number(Integral, 1, _MOST_JOBS, closed="both"),
        Number(Integral, -_MOST_JOBS, -1, closed="both"),
        None,
    ],
    "class_weight": [dict, StrOptions({"balanced"}), None],
}


def constraints(width: str, **words: str) -> dict[str, list[Any]]:
    """Return the constraints of an estimator's arguments: shared ones, and its words, separated by blanks."""
    own = {name: [StrOptions(set(each.split()))] for name, each in words.items()}
    return CONSTRAINTS | {"width": [POSITIVE, StrOptions(set(width.split())), "array-like"]} | own


def has_width(kernel: Kernel) -> bool:
    """Whether a kernel has a width at all."""
    return not np.isnan(as_kernel(kernel, 1.0).width)


def is_rbf(kernel: Kernel) -> bool:
    """Whether a kernel is the RBF, whose derivatives are known."""
    return as_kernel(kernel).name == "rbf"


def is_named(value: Any, *names: str) -> bool:
    """Whether an argument is one of some names."""
    return isinstance(value, str) and value in names


# --- arguments that depend on others -----------------------------------------------------------


_REQUIRED = object()  # a rule that is not about an argument without effect
STREAMED = "rows in chunks (memory_limit, or Dask arrays) need"


class Rule(NamedTuple):
    """A rule between arguments.

    Attributes
    ----------
    names : str
        The arguments, separated by blanks; an error shows them with their values.
    needed : str
    holds : callable
        ``(estimator, in_chunks) -> bool``.
    default : object, optional
        Given, the first argument has an effect only where the rule holds, and this value means "not given".
    """

    names: str
    needed: str
    holds: Callable[[Any, bool], bool]
    default: Any = _REQUIRED

    def check(self, model: Any, in_chunks: bool) -> None:
        """Raise where the arguments do not fit together, or one was given without effect."""
        found = {name: getattr(model, name) for name in self.names.split()}
        name, value = next(iter(found.items()))
        if np.array_equal(value, self.default) or self.holds(model, in_chunks):
            return
        given = [f"{each}={validation.shown(found[each])}" for each in found]
        if self.default is _REQUIRED:
            raise ValueError(f"{', '.join(given)}: {self.needed}")
        raise ValueError(
            f"{name} was given with {', '.join(given[1:])}, where it has no effect (found {value!r}); "
            f"it needs {self.needed}, or leave it at {self.default!r}"
        )


WIDTH_EFFECT = Rule(
    "width kernel", "a kernel that has a width", lambda m, _: has_width(m.kernel), "auto"
)
#: a width that is chosen by held-out rows: one for each feature, or one
CHOSEN = ("auto", "shared")
CV_EFFECT = Rule("cv width", "width='auto' or 'shared'", lambda m, _: is_named(m.width, *CHOSEN), 5)


def is_drawn(model: Any, _: bool = False) -> bool:
    """Whether an estimator draws from the posterior."""
    return is_named(getattr(model, "estimation", None), "posterior")


def not_drawn(model: Any, _: bool = False) -> bool:
    """Whether an estimator fits, and draws nothing."""
    return not is_drawn(model)


def _fits(model: Any, _: bool = False) -> bool:
    return not is_drawn(model) or is_named(model.width, *CHOSEN, "evidence")


def fit_effect(**defaults: Any) -> tuple[Rule, ...]:
    """Return rules of arguments of a fit, by their defaults: the posterior at a given width needs none."""
    needed = "a fit: no posterior at a given width"
    return tuple(Rule(f"{name} estimation", needed, _fits, each) for name, each in defaults.items())


#: rules of the arguments of ``estimation="posterior"``
DRAWN = (
    Rule("draws estimation", "estimation='posterior'", is_drawn, 250),
    Rule(
        "max_iter draws",
        "fewer transitions than warm-up and draws; needed twice the draws at least",
        lambda m, _: not_drawn(m) or m.max_iter >= 2 * m.draws,
    ),
    Rule(
        "estimation",
        f"{STREAMED} another estimation than 'posterior'",
        lambda m, chunks: not_drawn(m) or not chunks,
    ),
)
IN_CHUNKS = Rule(
    "kernel_dtype memory_limit",
    "rows in chunks (a memory_limit, or Dask arrays)",
    lambda _, in_chunks: in_chunks,
    "float64",
)


# rows: above, a fit is announced, and basis="auto" draws centres (on each of 4,000 a fit takes half a minute)
MANY_ROWS = 3000
#: many rows: rows by which width and scale are chosen, and bases there (some five seconds)
MANY_SEARCH_ROWS, SEARCH_BASES = 2000, 500
MANY_BYTES = 2.0**29  # of the fit to many rows: those of the rows' sums are a fifth of it
_FEW_ROWS = 20  # fewer may be near each other by chance
LONG_FIT = 10.0  # seconds that are a warning
_SEARCH_SECONDS = 5.0  # of the choice of width and scale for many rows
_LINE_SECONDS = 2.0  # between two lines of progress
_PRODUCTS = 12_000.0  # multiplications in one fit for each value of the basis functions and score
_PER_SECOND = 6e10  # multiplications and additions, of one core
NESTED: ContextVar[bool] = ContextVar("within another fit", default=False)


def group_numbers(groups: Any, n_obs: int) -> NDArray[np.intp] | None:
    """Return the number of each row's group; raise unless there is one for each row."""
    if groups is None:
        return None
    found = np.asarray(groups)
    validation.check_shape("groups", found.shape, (n_obs,), "group for each row of X")
    return np.unique(found, return_inverse=True)[1]


def as_groups(groups: Any, model: Any, n_obs: int) -> NDArray[np.intp] | None:
    """Return which group each row belongs to, as whole numbers; raise where they have no effect."""
    numbers = group_numbers(groups, n_obs)
    holds_out = is_named(model.width, *CHOSEN, "cv") or getattr(model, "scale", None) == "auto"
    if numbers is not None and not holds_out:
        raise ValueError(
            f"groups was given with width={validation.shown(model.width)}, where no rows are held out; "
            "needed width='auto', 'shared' or 'cv', or leave it out"
        )
    return numbers


def is_dask(X: Any) -> bool:
    """Whether an input is a Dask collection, as Dask says."""
    # nothing is one before Dask is imported
    return "dask" in sys.modules and bool(sys.modules["dask"].is_dask_collection(X))


def with_names(values: Array, names: list[str] | None) -> Any:
    """Return values as a table whose columns have names, or as they are."""
    if names is None:
        return values
    import pandas as pd

    return pd.DataFrame(values, columns=names)


@contextmanager
def nested() -> Iterator[None]:
    """Fits within this context say nothing about their rows."""
    outer = NESTED.set(True)
    try:
        yield
    finally:
        NESTED.reset(outer)


def is_many(model: Any, n_obs: int) -> bool:
    """Whether an estimator draws centres of its own accord."""
    return is_named(model.basis, "auto") and n_obs > MANY_ROWS


def basis_of(model: Any, n_obs: int) -> Any:
    """Return the argument `basis` of an estimator, ``"auto"`` resolved."""
    if is_many(model, n_obs):
        return min(model._many_bases(n_obs), n_obs)
    return None if is_named(model.basis, "auto") else model.basis


def n_bases(model: Any, n_obs: int) -> float:
    """Return how many basis functions there will be; infinity for what is refused later."""
    basis = basis_of(model, n_obs)
    if basis is None or isinstance(basis, Integral):
        return n_obs if basis is None else int(basis)
    points = basis[0] if isinstance(basis, tuple) and basis else basis
    return len(points) if hasattr(points, "__len__") else np.inf


def check_size_and_scales(
    model: Any, X: Array, groups: NDArray[Any] | None, *, n_modes: int = 1, n_scores: int = 1
) -> None:
    """Log how long a fit to many rows takes; warn of rows and columns that mislead the choice of a width.

    These are constant rows, columns of very different spread, and nearly equal rows without groups.

    Fits within a fit say nothing.
    """
    if NESTED.get():
        return
    validation.warn_constant(X)
    if is_rbf(model.kernel) and np.ndim(model.width) == 0:
        some = X[:: max(1, len(X) // 5000)]
        several = ((some > some.min(axis=0)) & (some < some.max(axis=0))).any(axis=0)
        names = vars(model).get("feature_names_in_", np.arange(X.shape[1]))
        if several.any():  # columns of two values are indicators
            validation.warn_unscaled(some[:, several], names[several])
    holds_out = is_named(model.width, *CHOSEN, "cv") and has_width(model.kernel)
    if groups is None and holds_out and len(X) >= _FEW_ROWS and has_clusters_of_copies(X):
        validation.warn_input(
            f"{len(X)} rows are in clusters of nearly equal ones, as repeated measurements are: a row held "
            "out is still there in its neighbours, which favours narrow widths; give groups=, the number of "
            "the thing that each row is a measurement of"
        )
    n = n_bases(model, len(X))
    if len(X) > MANY_ROWS:
        # some fifteen Newton steps for each mode, each a Gram matrix, or products for coupled scores
        each = 15.0 * n**2 if n_scores == 1 else _PRODUCTS * n * n_scores
        seconds = n_modes * len(X) * each / _PER_SECOND
        seconds += _SEARCH_SECONDS * (holds_out and is_many(model, len(X)))
        level = logging.WARNING if seconds > LONG_FIT else logging.INFO
        words = "%d rows, basis=%s: %d basis functions, about %.0f s; basis=500 takes fewer centres"
        words += ", basis=None every row" if is_many(model, len(X)) else ""
        _log.log(level, words, len(X), validation.shown(model.basis), n, seconds)


class _Lines(logging.Handler):
    """Print the stage of a fit and its solver's progress, with the seconds; a line every two seconds."""

    def __init__(self, fit: str) -> None:
        super().__init__()
        self.fit, self.stage, self.began = fit, "", time.monotonic()
        self.last = self.began

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message of a stage, not of fits within it; print a solver's now and then."""
        if record.levelno == logging.INFO:
            self.stage = self.stage if NESTED.get() else record.getMessage() + ": "
        elif time.monotonic() - self.last >= _LINE_SECONDS:
            self.last = time.monotonic()
            seconds = self.last - self.began
            sys.stdout.write(f"{self.fit}, {seconds:.0f} s, {self.stage}{record.getMessage()}\n")
            sys.stdout.flush()


@contextmanager
def running(model: Any, data: Any) -> Iterator[None]:
    """Run a fit: BLAS has the threads that its rows are worth, and ``verbose`` prints its progress."""
    in_memory, n_obs = data.stream is None, len(data.X)
    with blas_threads(n_obs, n_bases(model, n_obs)) if in_memory else nullcontext():
        if not model.verbose or NESTED.get():
            yield
            return
        lines = _Lines(type(model).__name__)
        PROGRESS.addHandler(lines)
        PROGRESS.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            PROGRESS.removeHandler(lines)
            if not any(isinstance(each, _Lines) for each in PROGRESS.handlers):
                PROGRESS.setLevel(logging.NOTSET)


# --- the estimator -----------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False, repr=False)
class KernelMachine(BaseEstimator):
    """Base of all estimators: their arguments are the fields of a dataclass, these three first.

    Fitted state, private state included, has names that end in an underscore: a new fit begins by
    deleting all of it.
    """

    kernel: Kernel = "rbf"
    width: Any = "auto"
    basis: Any = "auto"

    status_: Status | list[Status] = field(init=False)
    #: constraints of single arguments, and rules between arguments
    _parameter_constraints: ClassVar[Mapping[str, list[Any]]] = CONSTRAINTS
    _rules: ClassVar[tuple[Rule, ...]] = ()
    #: whether widths are scored by the evidence of all rows where none can be held out
    _scores_all_rows: ClassVar[bool] = False
    #: another solver, ``(problem) -> result``, in replicas of papers
    _solved: ClassVar[Any] = None

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """Return the names of the arguments; `inspect` takes as long to find them as a small fit."""
        return sorted(each.name for each in fields(cls) if each.init)

    def _many_bases(self, n_obs: int) -> int:
        """Return how many centres are drawn of many rows: more gain little, and take their square longer."""
        return 2000

    def _begin(self, X: Any = None) -> None:
        """Delete an earlier fit, and check the arguments, alone and together."""
        in_chunks = is_dask(X) or vars(self)["memory_limit"] is not None
        for name in [each for each in vars(self) if each.endswith("_")]:
            delattr(self, name)
        self._validate_params()
        as_kernel(self.kernel)
        if not isinstance(self.width, str):
            as_width(self.width)
        if is_named(self.width, "validity", "em") and not is_rbf(self.kernel):
            raise ValueError(f"width={self.width!r} needs kernel='rbf'; found {self.kernel!r}")
        for rule in self._rules:
            rule.check(self, in_chunks)

    def __sklearn_is_fitted__(self) -> bool:
        """Whether a fit came to its end."""
        return "status_" in vars(self)

    def __dask_tokenize__(self) -> str:
        """Return a hash of arguments and fit; Dask's own of a dataclass is that of its fields alone."""
        return str(joblib.hash(self))

    def _as_given(self, data: Any) -> Any:
        """Return training rows with their targets as `fit` takes them."""
        return data

    def _inputs(self, X: Any) -> Array:
        """Return new inputs for a fitted estimator."""
        check_is_fitted(self)
        return self._checked(X, reset=False)

    def _checked(self, X: Any, *y: Any, **how: Any) -> Any:
        """Return inputs, and targets where they are given, as scikit-learn's `validate_data` does."""
        return self._named(X, validation.as_features(X), *y, **how)

    def _named(self, X: Any, values: Array, *y: Any, **how: Any) -> Any:
        """Return values under the names of the columns of `X`; they are kept, or compared with known ones."""
        table = with_names(values, validation.column_names(X))
        return validate_data(self, table, *y, dtype=float, **how)

    def _warn(self, solver: str, *statuses: Status) -> None:
        """Warn of each way to end but convergence."""
        for status in dict.fromkeys(statuses):
            if status is not Status.CONVERGED:
                warnings.warn(f"{solver}: {status.value}", ConvergenceWarning, stacklevel=3)

    @property
    def _jobs(self) -> int:
        return int(joblib.effective_n_jobs(getattr(self, "n_jobs", None)))


def without_idle(model: Any) -> Any:
    """Return an estimator with its defaults for the arguments that have no effect."""
    for rule in model._rules:
        if rule.default is not _REQUIRED and not rule.holds(model, False):
            model.set_params(**{rule.names.split()[0]: rule.default})
    return model
