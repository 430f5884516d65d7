"""What all estimators share: arguments checked before any work, and nothing left of an earlier fit."""

import logging
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import field, fields, replace
from numbers import Integral, Real
from typing import Any, ClassVar

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from pcvm_pymc.core.family import System
from pcvm_pymc.core.pieces import validation
from pcvm_pymc.core.pieces.centres import Centres, as_centres, choose_share, has_clusters_of_copies
from pcvm_pymc.core.pieces.kernels import Kernel, KernelPiece, Precomputed, as_kernel, as_width
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS, blas_threads
from pcvm_pymc.core.problem import Status
from pcvm_pymc.estimators.candidates import OPTIONS, ChoiceOptions
from pcvm_pymc.estimators.estimation import (
    BY_ROWS,
    CHOSEN,
    OF_ESTIMATIONS,
    PROJECTED,
    Estimation,
    Fitted,
    estimator,
    is_named,
    refuse,
)
from pcvm_pymc.estimators.features import Metric, relevance
from pcvm_pymc.estimators.tables import TableReader, is_dask
from pcvm_pymc.estimators.training import WIDTH_ROWS, TrainingData, given_splits, group_numbers

_log = logging.getLogger(__name__)

# --- single arguments --------------------------------------------------------------------------


class Number(Interval):
    """An interval of numbers, to which True and False do not belong."""

    def is_satisfied_by(self, val: Any) -> bool:
        """Whether a value is a number of the interval."""
        return not isinstance(val, bool | np.bool_) and bool(super().is_satisfied_by(val))


WHOLE, SEED = (Number(Integral, least, None, closed="left") for least in (1, 0))
POSITIVE = Number(Real, 0, None, closed="neither")

#: scikit-learn's constraints of single arguments that mean the same in all estimators that have them
CONSTRAINTS: dict[str, list[Any]] = {
    "basis": [WHOLE, "array-like", StrOptions({"auto"}), None],
    "categorical_features": ["array-like", StrOptions({"from_dtype"}), None],
    "cv": ["cv_object"],
    "scale": [POSITIVE, StrOptions({"auto"}), None],
    "n_vectors": [WHOLE, StrOptions({"auto"}), None],
    "bias": ["boolean", None],
    "star": ["boolean"],
    "verbose": ["boolean"],
    "noise": [POSITIVE, None],
    "random_state": [SEED, np.random.Generator, np.random.RandomState, None],
    "memory_limit": [POSITIVE, None],
    "class_weight": [dict, StrOptions({"balanced"}), None],
}


def constraints(width: str, **words: str) -> dict[str, list[Any]]:
    """Return the constraints of an estimator's arguments: shared ones, and its words, separated by blanks."""
    named = {name: [StrOptions(set(allowed.split()))] for name, allowed in words.items()}
    return CONSTRAINTS | {"width": [POSITIVE, StrOptions(set(width.split())), "array-like"]} | named


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
#: fits within another one say nothing about their rows
NESTED: ContextVar[bool] = ContextVar("within another fit", default=False)


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


# --- the estimator -----------------------------------------------------------------------------


@estimator
class KernelMachine(TableReader, BaseEstimator):
    """Base of all estimators: their arguments are the fields of a dataclass, these in all of them.

    Fitted state, private state included, has names that end in an underscore: a new fit begins by
    deleting all of it.
    """

    kernel: Kernel = "rbf"
    width: Any = "auto"
    basis: Any = "auto"
    estimation: str = "auto"
    random_state: Any = None
    categorical_features: Any = "from_dtype"
    options: Any = None
    memory_limit: float | None = None
    verbose: bool = False

    status_: Status | list[Status] = field(init=False)
    #: constraints of single arguments
    _parameter_constraints: ClassVar[Mapping[str, list[Any]]] = CONSTRAINTS
    #: arguments that decide whether there is a width
    _beside_width: ClassVar[str] = "kernel"
    #: kernels that ``kernel="auto"`` weighs in an average; elsewhere it is the first
    _weighed: ClassVar[tuple[str, ...]] = ()
    #: what a choice of hyperparameters goes by
    _choice: ClassVar[ChoiceOptions] = OPTIONS
    #: estimations by their names
    _estimations: ClassVar[Mapping[str, Any]] = {}
    #: whether widths are scored by the evidence of all rows where none can be held out
    _scores_all_rows: ClassVar[bool] = False
    #: another solver, ``(problem) -> result``, in replicas of papers
    _solved: ClassVar[Any] = None

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """Return the names of the arguments; `inspect` takes as long to find them as a small fit."""
        return sorted(argument.name for argument in fields(cls) if argument.init)

    # --- before a fit --------------------------------------------------------------------------

    def _begin(self, X: Any = None) -> Estimation:
        """Delete an earlier fit, check the arguments, alone and together, and return the estimation."""
        in_chunks = is_dask(X) or self.memory_limit is not None
        for name in [attribute for attribute in vars(self) if attribute.endswith("_")]:
            delattr(self, name)
        self._validate_params()
        as_kernel(self._kernel)
        if not isinstance(self.width, str):
            as_width(self.width)
        if self._width_rule in ("validity", "em") and not self._is_rbf:
            raise ValueError(f"width={self.width!r} needs kernel='rbf'; found {self.kernel!r}")
        self._needs("width", self._has_width, self._beside_width, "a kernel that has a width")
        if self._is_precomputed:
            self._needs("categorical_features", False, "kernel", "a kernel of features")
            self._check_precomputed(X)
        self._check(in_chunks)
        estimation = self._estimation
        if not isinstance(estimation.options, estimation.solver_options | None):
            needed = f"needed None or a pcvm_pymc.{estimation.solver_options.__name__}"
            refuse(self, "options estimation", needed)
        estimation.check(in_chunks)
        used = estimation.arguments()
        for name in filter(vars(self).__contains__, OF_ESTIMATIONS):
            self._needs(name, name in used, "estimation width", OF_ESTIMATIONS[name])
        return estimation

    @property
    def _estimation(self) -> Estimation:
        """How the arguments ask for a fit; some are projected onto few vectors where they ask for that."""
        estimation: Estimation = self._estimations[self.estimation](self)
        asked = self.estimation == "projection" or vars(self).get("n_vectors") is not None
        if not (asked and self.estimation in PROJECTED):
            return estimation
        from pcvm_pymc.estimators.projection import FewVectors  # not for most fits

        return FewVectors.of(self, full=replace(estimation, projected=True))

    def _check(self, in_chunks: bool) -> None:
        """Raise where arguments that do not belong to estimations do not fit together."""
        self._likelihood()

    def _needs(self, name: str, holds: bool, beside: str, needed: str) -> None:
        """Raise where an argument was given that has no effect with others, separated by blanks."""
        value = vars(self)[name]
        default: Any = type(self).__dataclass_fields__[name].default
        if holds or np.array_equal(value, default):
            return
        given = ", ".join(f"{x}={validation.shown(vars(self)[x])}" for x in beside.split())
        fault = f"{name} was given with {given}, where it has no effect"
        remedy = f"it needs {needed}, or leave it at {default!r}"
        raise ValueError(f"{fault} (found {validation.shown(value)}); {remedy}")

    # --- what the arguments mean ---------------------------------------------------------------

    @property
    def _kernel(self) -> Kernel:
        """The kernel; of several that would be weighed the first."""
        if isinstance(self.kernel, str) and self.kernel == "precomputed":
            return Precomputed()
        return self._weighed[0] if self._weighs_kernels else self.kernel

    @property
    def _weighs_kernels(self) -> bool:
        """Whether an average is over several kernels."""
        return bool(self._weighed) and isinstance(self.kernel, str) and self.kernel == "auto"

    @property
    def _weighs_ranks(self) -> bool:
        """Whether one fit is to the columns, or to ranks of skewed ones, by folds."""
        return False

    @property
    def _width_rule(self) -> str | None:
        """The name of the rule that chooses the width; None for one that is given."""
        return self.width if isinstance(self.width, str) else None

    @property
    def _has_width(self) -> bool:
        """Whether the kernel has a width at all."""
        return not np.isnan(as_kernel(self._kernel, 1.0).width)

    @property
    def _is_rbf(self) -> bool:
        """Whether the kernel is the RBF, whose derivatives are known."""
        return as_kernel(self._kernel).name == "rbf"

    @property
    def _chooses_width(self) -> bool:
        """Whether held-out rows choose the width, or widths of the features."""
        return self._has_width and self._width_rule in CHOSEN

    @property
    def _system(self) -> System:
        """The row of the family table."""
        raise NotImplementedError

    def _likelihood(self) -> Likelihood:
        """Return the likelihood that the arguments name."""
        raise NotImplementedError

    def _bias(self, *, by_em: bool) -> str:
        """Return what prior the bias has, or that there is none."""
        return "prior"

    def _many_bases(self, n_obs: int) -> int:
        """Return how many centres are drawn of many rows: more gain little, and take their square longer."""
        return 2000

    def _is_many(self, n_obs: int) -> bool:
        """Whether centres are drawn without being asked for."""
        return isinstance(self.basis, str) and n_obs > MANY_ROWS

    def _basis_of(self, data: TrainingData) -> Any:
        """Return the argument `basis`, ``"auto"`` resolved; a number is at most that of rows that differ."""
        basis = self._resolved_basis(len(data.X))
        if data.copies is None or not isinstance(basis, Integral) or int(basis) > len(data.copies):
            return basis
        return min(int(basis), len(data.X))

    def _resolved_basis(self, n_obs: int) -> Any:
        if self._is_many(n_obs):
            return min(self._many_bases(n_obs), n_obs)
        if isinstance(self.basis, str):
            return None
        plain = self._encoding_ is None or self._encoding_.is_plain
        if plain or self.basis is None or isinstance(self.basis, Integral):
            return self.basis
        signed = isinstance(self.basis, tuple) and len(self.basis) == 2
        encoding: Any = self._encoding_
        points = self._levels_.numbers(self.basis[0] if signed else self.basis, "basis")
        if points.shape[1] != self.n_features_in_:
            raise ValueError(f"basis has {points.shape[1]} features; needed {self.n_features_in_}")
        return (encoding(points), self.basis[1]) if signed else encoding(points)

    def _n_bases(self, n_obs: int) -> float:
        """Return how many basis functions there will be; infinity for what is refused later."""
        basis = self._resolved_basis(n_obs)
        if basis is None or isinstance(basis, Integral):
            return n_obs if basis is None else int(basis)
        points = basis[0] if isinstance(basis, tuple) and basis else basis
        return len(points) if isinstance(points, Sized) else np.inf

    def _centres(self, data: TrainingData, basis: Any, most: int | None = None) -> Centres:
        """Return the centres of basis functions: `basis` rows, all for None, or given; of rows at `most`."""
        return as_centres(basis, data.X, None)

    def _kernel_at(self, width: Any) -> KernelPiece:
        """Return the kernel at a width."""
        return as_kernel(self._kernel, width)

    # --- training rows -------------------------------------------------------------------------

    def _groups_and_splits(self, X: Array, y: NDArray[Any], groups: Any) -> dict[str, Any]:
        """Return the rows' groups as numbers, and the folds of `cv`; raise where groups have no effect."""
        numbers = group_numbers(groups, len(X))
        holds_out = self._width_rule in BY_ROWS or is_named(vars(self).get("scale"), "auto")
        if numbers is not None and not holds_out:
            fault = f"groups was given with width={validation.shown(self.width)}"
            needed = "needed width='auto', 'shared' or 'cv', or leave it out"
            raise ValueError(f"{fault}, where no rows are held out; {needed}")
        splits = given_splits(self, X, y, groups)
        return {"groups": numbers, "splits": splits}

    def _check_rows(self, data: TrainingData, *, n_modes: int = 1, n_scores: int = 1) -> None:
        """Log how long a fit to many rows takes; warn of rows and columns that mislead a choice of width.

        These are constant rows, columns of very different spread, and nearly equal rows without groups. Fits
        within a fit say nothing.
        """
        if NESTED.get():
            return
        X = data.X
        validation.warn_constant(X)
        if self._is_rbf and np.ndim(self.width) == 0:
            some = X[:: max(1, len(X) // 5000)]
            varied = ((some > some.min(axis=0)) & (some < some.max(axis=0))).any(axis=0)
            names = vars(self).get("feature_names_in_", np.arange(self.n_features_in_))
            names = names if self._encoding_ is None else names[self._encoding_.features]
            if varied.any():  # columns of two values are indicators
                validation.warn_unscaled(some[:, varied], names[varied])
        holds_out = self._width_rule in BY_ROWS and self._has_width
        ungrouped = data.groups is None and data.splits is None and holds_out
        if ungrouped and len(X) >= _FEW_ROWS and has_clusters_of_copies(X):
            message = f"{len(X)} rows are in clusters of nearly equal ones, as repeated ones are"
            remedy = "give groups=, the number of the thing that each row is a measurement of"
            validation.warn_input(f"{message}: folds that part them favour narrow widths; {remedy}")
        n, many = self._n_bases(len(X)), self._is_many(len(X))
        if len(X) > MANY_ROWS:
            # some fifteen Newton steps for each mode, each a Gram matrix, or products for coupled scores
            per_row = 15.0 * n**2 if n_scores == 1 else _PRODUCTS * n * n_scores
            seconds = n_modes * len(X) * per_row / _PER_SECOND
            seconds += _SEARCH_SECONDS * (holds_out and many)
            level = logging.WARNING if seconds > LONG_FIT else logging.INFO
            message = "%d rows, basis=%s: %d basis functions, about %.0f s"
            remedy = "; basis=500 takes fewer centres" + ", basis=None every row" * many
            _log.log(level, message + remedy, len(X), validation.shown(self.basis), n, seconds)

    def _search_rows(
        self, data: TrainingData, rng: np.random.Generator, *, in_chunks: bool
    ) -> tuple[TrainingData, int | None]:
        """Return the rows by which hyperparameters are chosen, and the most bases there; None for any."""
        many = self._is_many(len(data.X))
        if not (many or in_chunks):
            return data, None
        most = MANY_SEARCH_ROWS if many else WIDTH_ROWS
        kinds = data.label if is_classifier(self) else np.zeros(len(data.X))
        some = data.some(choose_share(kinds, most, rng))
        return some, SEARCH_BASES if many else None

    @contextmanager
    def _running(self, data: TrainingData) -> Iterator[None]:
        """Run a fit: BLAS has the threads that its rows are worth, and ``verbose`` prints its progress."""
        in_memory, n_obs, began = data.stream is None, len(data.X), time.monotonic()
        prints = self.verbose and not NESTED.get()
        lines = _Lines(type(self).__name__)
        if prints:
            PROGRESS.addHandler(lines)
            PROGRESS.setLevel(logging.DEBUG)
        try:
            with blas_threads(n_obs, self._n_bases(n_obs)) if in_memory else nullcontext():
                yield
        finally:
            PROGRESS.removeHandler(lines)
            if prints and not any(isinstance(handler, _Lines) for handler in PROGRESS.handlers):
                PROGRESS.setLevel(logging.NOTSET)
        self._seconds_ = time.monotonic() - began

    # --- a fitted estimator --------------------------------------------------------------------

    def __dir__(self) -> list[str]:
        """Return the names that can be read: what arguments mean cannot, before they are checked."""
        readable = []
        for name in object.__dir__(self):
            with suppress(Exception):
                self.__getattribute__(name)
                readable.append(name)
        return readable

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:
        """Return scikit-learn's table of fitted attributes for notebooks, below a short one of the choice."""
        from pcvm_pymc.estimators.display import chosen, table  # not for a fit

        html: Any = super()._get_fitted_attr_html(doc_link)
        if "status_" in vars(self):
            shown = table(chosen(vars(self), self._kernel_at(1.0))) + html._repr_html_inner()
            html._html_repr = lambda: shown
        return html

    def __sklearn_is_fitted__(self) -> bool:
        """Whether a fit came to its end."""
        return "status_" in vars(self)

    def __dask_tokenize__(self) -> str:
        """Return a hash of arguments and fit; Dask's own of a dataclass is that of its fields alone."""
        return str(joblib.hash(self))

    def _publish(self, fitted: Fitted) -> None:
        """Set all fitted attributes, and warn of each way to end but convergence."""
        self.__dict__.update(self._attributes_of(fitted))
        for status in dict.fromkeys(fitted.statuses):
            if fitted.solver and status is not Status.CONVERGED:
                warnings.warn(f"{fitted.solver}: {status.value}", ConvergenceWarning, stacklevel=3)

    def _attributes_of(self, fitted: Fitted) -> dict[str, Any]:
        """Return the fitted attributes of a result, by their names."""
        predictor, choice, statuses = fitted.predictor, fitted.choice, fitted.statuses
        attributes: dict[str, Any] = {"_predictor_": predictor, "n_iter_": fitted.n_iter}
        attributes["_likelihood_"] = predictor.likelihood
        attributes["status_"] = statuses[0] if len(statuses) == 1 else statuses
        if choice is not None and choice.data is not None:
            attributes["selection_"] = choice.search
        if choice is not None and choice.widths is not None:
            attributes["width_selection_"] = choice.widths
        if choice is not None and "width_" in fitted.attributes:
            attributes |= self._read_features(fitted.attributes["width_"], choice.metric)
        return attributes | fitted.attributes

    def _read_features(self, width: Any, metric: Metric | None) -> dict[str, Array]:
        """Return the widths of the features and how relevant each is, of a fit with the RBF.

        One width says nothing of the features: without a width for each relevances are NaN.
        """
        if not self._is_rbf:
            return {}
        d, encoding = self.n_features_in_, self._encoding_
        relevances, by_fold = np.full(d, np.nan), np.empty((0, d))
        if metric is not None and metric.share > 0.0:
            relevances, by_fold = metric.relevance(encoding)
        elif np.ndim(width):
            relevances = relevance(np.asarray(width), encoding)
        importances = relevances
        if metric is not None and metric.share == 0.0:  # one width predicts better
            importances = relevance(metric.relative, encoding)
        read = {"feature_relevance_": relevances, "feature_relevance_folds_": by_fold}
        read["feature_widths_"] = self._widths_of_features(width)
        return read | {"_importances_": importances}

    @property
    def feature_importances_(self) -> Array:
        """Relevance of each feature, of sum one, for scikit-learn's `RFE` and `SelectFromModel`.

        Where folds prefer one width, that of the learned widths; AttributeError where there are none.
        """
        check_is_fitted(self)
        importances: Array = vars(self).get("_importances_", np.full(1, np.nan))
        if np.isnan(importances).any():
            needed = "needed the RBF, and width='auto' or a width for each feature"
            raise AttributeError(f"{type(self).__name__} has no feature_importances_; {needed}")
        return importances

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: missing values are taken, or the inputs are a kernel's matrix."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = not self._is_precomputed
        tags.input_tags.pairwise = self._is_precomputed
        return tags
