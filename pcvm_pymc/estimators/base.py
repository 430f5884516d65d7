"""What all estimators share: arguments checked before any work, an earlier fit forgotten, a width chosen."""

import warnings
from contextlib import AbstractContextManager
from functools import cache
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold
from sklearn.utils.validation import check_is_fitted, validate_data

from pcvm_pymc.core.em.rows import latent_in_blocks
from pcvm_pymc.core.pieces.centres import Centres
from pcvm_pymc.core.pieces.kernels import as_kernel, width_grid
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import blas_threads
from pcvm_pymc.core.pieces.validation import as_numbers
from pcvm_pymc.core.problem import Status
from pcvm_pymc.estimators.parameters import (
    Conditional,
    check_effects,
    check_parameters,
    given_width,
    has_width,
    is_rbf,
    without_idle,
)
from pcvm_pymc.estimators.race import Raced, raced
from pcvm_pymc.estimators.selection import WidthSelection, best_of

__all__ = ["CV_EFFECT", "WIDTH_EFFECT", "KernelMachine"]

#: for the tables of arguments that have an effect in some combinations only
WIDTH_EFFECT = Conditional(
    "width", "auto", ("kernel",), lambda model: has_width(model.kernel), "a kernel that has a width"
)
CV_EFFECT = Conditional(
    "cv",
    5,
    ("width",),
    lambda model: isinstance(model.width, str) and model.width == "auto",
    "width='auto'",
)


def _length(rows: Any) -> float:
    """Return how many rows there are; infinity for what has no length, and is refused later."""
    try:
        return len(rows)
    except TypeError:
        return np.inf


@cache
def _argument_names(kind: Any) -> tuple[str, ...]:
    """Return the names of an estimator's arguments, as scikit-learn finds them."""
    names: list[str] = super(KernelMachine, kind)._get_param_names()
    return tuple(names)


class KernelMachine(BaseEstimator):
    """Base of all estimators; each says what it is by tables and a few hooks.

    Fitted state, private state included, has names that end in an underscore: a new fit begins by
    forgetting all of it.
    """

    _likelihood_: Likelihood
    status_: Status | list[Status]
    _methods: ClassVar[tuple[str, ...]] = ("auto", "evidence", "validity")  # to choose a width
    _choices: ClassVar[dict[str, tuple[str, ...]]] = {}
    _least: ClassVar[dict[str, int]] = {"cv": 2, "max_iter": 1}
    _conditional: ClassVar[tuple[Conditional, ...]] = ()

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """Return the names of the arguments, which `inspect` takes as long to find as a small fit's steps."""
        kind: Any = cls
        return list(_argument_names(kind))

    def _keep(self, arguments: dict[str, Any]) -> None:
        """Keep the arguments of `__init__`, of which it gives all its local names."""
        for name in self._get_param_names():
            setattr(self, name, arguments[name])

    def _begin(self, **state: Any) -> None:
        """Forget an earlier fit, keep what is known of this one, and check the arguments."""
        for name in [each for each in vars(self) if each.endswith("_")]:
            delattr(self, name)
        self.__dict__.update(state)
        as_kernel(self.kernel)
        check_parameters(self, self._choices, self._least)
        given_width(self.width, self._methods)
        if (
            isinstance(self.width, str)
            and self.width in {"validity", "em"}
            and not is_rbf(self.kernel)
        ):
            raise ValueError(f"width={self.width!r} needs kernel='rbf'; found {self.kernel!r}")
        self._check_parameters()
        check_effects(self, self._conditional)

    def _check_parameters(self) -> None:
        """Check what a class has beside the tables."""

    def _threads(self, X: Any) -> AbstractContextManager[Any]:
        """Return a context in which BLAS has the threads that a fit to these rows is worth."""
        return blas_threads(_length(X), self._n_basis(X))

    def _n_basis(self, X: Any) -> float:
        """Return how many basis functions a fit to these rows has."""
        basis = X if self.basis is None else self.basis
        return int(basis) if isinstance(basis, Integral) else _length(basis)

    def __sklearn_is_fitted__(self) -> bool:
        """Whether a fit came to its end."""
        return "status_" in vars(self)

    def _inputs(self, X: Any) -> Array:
        """Return new inputs for a fitted estimator."""
        check_is_fitted(self)
        as_numbers(X, "X")
        return validate_data(self, X, dtype=float, reset=False)

    # --- width ---------------------------------------------------------------------------------

    def _width(self, X: Array, y: NDArray[Any], rng: np.random.Generator) -> Any:
        """Return the width that is given, or the one that is chosen; NaN for a kernel without."""
        if not has_width(self.kernel):
            return np.nan
        given = given_width(self.width, self._methods)
        return self._chosen_width(X, y, rng) if given is None else given

    def _chosen_width(self, X: Array, y: NDArray[Any], rng: np.random.Generator) -> Any:
        """Return the best width of a grid; `y` is what the rows are known by within the estimator."""
        widths = width_grid(X)
        folds = self._folds(y, rng) if self.width in {"auto", "cv"} else None
        if self.width not in {"auto", "cv"} or (folds is None and self._scores_all_rows):
            found = best_of(widths, self.width, self._scores(X, y, widths))
        elif folds is None:  # nothing can be held out
            found = WidthSelection(
                float(np.median(widths)), widths, "cv", np.full(len(widths), np.nan)
            )
        else:
            race = self._held_out(X, y, widths, folds)
            found = best_of(widths[race.tried], "cv", race.scores, -race.by_fold)
        return self._noted(found)

    #: whether all rows are scored by their evidence where none can be held out
    _scores_all_rows: ClassVar[bool] = False

    def _noted(self, found: WidthSelection) -> float:
        """Keep what a width was chosen by, and return it."""
        if np.isfinite(found.scores).all():
            self.widths_, self.width_scores_ = found.widths, found.scores
        return found.width

    def _scores(self, X: Array, y: NDArray[Any], widths: Array) -> Array:
        """Return each width's log evidence or validity on all rows."""
        raise NotImplementedError

    def _folds(self, y: NDArray[Any], rng: np.random.Generator) -> Any:
        """Return folds of the targets; None where there are too few rows to hold any out."""
        n_folds = min(self.cv, len(y))
        if n_folds < 2:
            return None
        return KFold(n_folds, shuffle=True, random_state=int(rng.integers(2**31)))

    def _held_out(self, X: Array, y: NDArray[Any], widths: Array, folds: Any) -> Raced:
        """Return which widths were tried, and held-out mean log densities by refits."""
        targets = self._as_given(y)
        splits = list(folds.split(X, y))
        looser = [self._looser | self._fewer_bases(X[rows], targets[rows]) for rows, _ in splits]

        def log_density(i: int, k: int) -> Array:
            train, test = splits[k]
            model = clone(self).set_params(width=float(widths[i]), **looser[k])
            if isinstance(self.basis, Integral):  # a fold may have fewer rows
                model.set_params(basis=min(self.basis, len(train)))
            model = without_idle(model, self._conditional)
            model.fit(X[train], targets[train], **self._weights_of(train))
            return model._log_densities(X[test], targets[test])

        weights = [
            self._weights_of(test).get("sample_weight", np.ones(len(test))) for _, test in splits
        ]
        with warnings.catch_warnings():  # about fits that are thrown away
            warnings.simplefilter("ignore", ConvergenceWarning)
            return raced(len(widths), log_density, weights)

    @property
    def _looser(self) -> dict[str, Any]:
        """Arguments of a fit that only ranks a width; weights of classes are in those of the rows."""
        return {
            name: None for name in ("memory_limit", "class_weight") if getattr(self, name, None)
        }

    def _fewer_bases(self, X: Array, y: NDArray[Any]) -> dict[str, Any]:
        """Return the argument for fewer bases, of which a fit takes its own that only ranks a width."""
        return {}

    def _as_given(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return targets as `fit` takes them."""
        return y

    def _weights_of(self, rows: Any) -> dict[str, Array]:
        """Return the argument by which a fit to some of the rows has their weights; none without."""
        weight = vars(self).get("_row_weight_")
        return {} if weight is None else {"sample_weight": weight[rows]}

    def _log_densities(self, X: Array, y: NDArray[Any]) -> Array:
        """Return the log predictive densities of held-out targets, shape (n_obs,)."""
        raise NotImplementedError

    # --- what a fit leaves ---------------------------------------------------------------------

    def _set_weights(self, centres: Centres, weight: Array, bias: Any, width: Any) -> NDArray[Any]:
        """Keep the centres that have a weight, by number of basis; return which they are."""
        kept = np.flatnonzero(weight.reshape(len(weight), -1).any(axis=1))
        self._bases_ = kept
        self.support_ = centres.rows[kept]
        self.relevance_vectors_ = centres.points[kept]
        self.weight_ = weight[kept].T
        self.bias_ = bias
        self.width_ = width
        self._kernel_ = as_kernel(self.kernel, width)
        return kept

    def _warn(self, solver: str, *statuses: Status) -> None:
        """Warn of each way to end but convergence."""
        for status in dict.fromkeys(statuses):
            if status is not Status.CONVERGED:
                warnings.warn(f"{solver}: {status.value}", ConvergenceWarning, stacklevel=4)

    def _values(self, X: Array) -> Array:
        """Return the latent function at rows, shape (n_new,) or (n_new, n_scores)."""
        return latent_in_blocks(
            X,
            self.relevance_vectors_,
            self.weight_.T,
            self.bias_,
            kernel=self._kernel_,
            n_jobs=self._jobs,
        )

    @property
    def _jobs(self) -> int:
        return int(effective_n_jobs(getattr(self, "n_jobs", None)))
