"""What an estimation is, which of an estimator's arguments belong to it, and the result that it returns."""

from dataclasses import KW_ONLY, dataclass, field, fields
from functools import wraps
from inspect import signature
from typing import Any, NoReturn, Self, dataclass_transform

import numpy as np

from pcvm_pymc.core.em import EMOptions
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import shown
from pcvm_pymc.core.problem import Status
from pcvm_pymc.estimators.predictors import Predictor
from pcvm_pymc.estimators.training import TrainingData

#: arguments that belong to estimations, and what each needs to have an effect
OF_ESTIMATIONS = {
    "hyperprior": "posterior modes by EM, or the posterior of a PCVM",
    "scale": "posterior modes by EM (the posterior learns it)",
    "method": "a fit by the evidence",
    "n_vectors": "estimation='auto', 'average', 'posterior' or 'projection'",
    "cv": "something to choose by folds: a width or widths that folds choose, or the number of vectors of a "
    "mode's projection",
}
#: estimations that are projected onto few vectors where `n_vectors` is given, or always
PROJECTED = ("auto", "average", "projection", "posterior")
#: a width that is chosen by held-out rows: one for each feature, or one
CHOSEN = ("auto", "shared")
BY_ROWS = (*CHOSEN, "cv")


#: arguments that a signature has first and last
_PLACES = {**dict.fromkeys(("self", "kernel", "width", "basis", "n_vectors"), -1), "verbose": 1}


@dataclass_transform(kw_only_default=True, eq_default=False)
def estimator[T](cls: type[T]) -> type[T]:
    """Return a class whose annotated fields are its arguments, which are given by name alone."""
    made: Any = dataclass(kw_only=True, eq=False, repr=False)(cls)
    by_name = made.__init__

    @wraps(by_name)
    def init(self: Any, *nameless: Any, **arguments: Any) -> None:
        if nameless:
            fault = f"{cls.__name__} was given {shown(nameless[0])} without a name"
            raise TypeError(f"{fault}; needed names, as kernel='rbf', and data in fit(X, y)")
        by_name(self, **arguments)

    given = signature(by_name)
    order = sorted(given.parameters.values(), key=lambda parameter: _PLACES.get(parameter.name, 0))
    init.__signature__ = given.replace(parameters=order)  # type: ignore[attr-defined]
    made.__init__ = init
    return made


def is_named(value: Any, *names: str) -> bool:
    """Whether an argument is one of some names."""
    return isinstance(value, str) and value in names


def refuse(model: Any, names: str, needed: str) -> NoReturn:
    """Raise for arguments that do not fit together: their names, separated by blanks, with their values."""
    given = [f"{name}={shown(vars(model)[name])}" for name in names.split()]
    raise ValueError(f"{', '.join(given)}: {needed}")


@dataclass(frozen=True)
class Fitted:
    """Result of a fit, from which `KernelMachine._publish` sets the fitted attributes.

    Attributes
    ----------
    predictor : Predictor
    attributes : dict of str
        What a user reads and what predictions need besides, by the names of the fitted attributes.
    choice : Choice, optional
        Of the hyperparameters.
    n_iter : int
    statuses : list of Status
        How the solver ended; of several machines one for each.
    solver : str
        Named in the warning of a fit that did not converge; empty for no warning.
    formulation : Formulation, optional
        What was fitted, for a projection onto few vectors.
    left_out : ndarray, shape (n_obs, n_classes), optional
        Leave-one-out probabilities of an average, likewise.
    rng : numpy.random.Generator, optional
        As the fit left it, likewise.
    """

    predictor: Predictor
    attributes: dict[str, Any]
    choice: Any = None
    _: KW_ONLY
    n_iter: int
    statuses: list[Status]
    solver: str = ""
    formulation: Any = None
    left_out: Array | None = None
    rng: np.random.Generator | None = None


@dataclass(frozen=True, kw_only=True)
class Estimation:
    """How an estimator is fitted: its fields are the estimator's arguments that belong to it.

    Attributes
    ----------
    model : KernelMachine
        The estimator.
    options : object, optional
        How the solver runs, of the type `solver_options`; None for its defaults.
    projected : bool
        Whether few vectors are projected from the result, which then keeps neither an average nor rows.
    """

    model: Any = field(repr=False)
    options: Any = None
    projected: bool = False

    @classmethod
    def of(cls, model: Any, **given: Any) -> Self:
        """Return the estimation with an estimator's arguments, as far as they belong to it."""
        names = {argument.name for argument in fields(cls)}
        known = {name: value for name, value in vars(model).items() if name in names}
        return cls(model=model, **known | given)

    def arguments(self) -> set[str]:
        """Return the names of the estimator's arguments that have an effect on it."""
        model, names = self.model, {argument.name for argument in fields(self)}
        learns = model._width_rule == "auto" and model._is_rbf  # widths of features, against one
        by_folds = model._width_rule in BY_ROWS and (learns or "width" not in self.chosen)
        return names | {"cv"} if model._has_width and by_folds else names

    @property
    def solver_options(self) -> type:
        """The type of `options`."""
        return EMOptions

    @property
    def how(self) -> Any:
        """How the solver runs: `options`, or their defaults."""
        return self.options or self.solver_options()

    def check(self, in_chunks: bool) -> None:
        """Raise where the arguments do not fit together."""

    def fit(self, data: TrainingData) -> Fitted:
        """Return the result of a fit to training rows."""
        raise NotImplementedError

    # --- candidates for the hyperparameters ----------------------------------------------------

    @property
    def chosen(self) -> tuple[str, ...]:
        """The hyperparameters that leave-one-out chooses."""
        return ()

    @property
    def middle(self) -> dict[str, Any]:
        """The hyperparameters but for the width, where they are given, or in the middle of the grid."""
        return {"scale": 1.0}

    def formulation(self, data: TrainingData, basis: Any, most: int | None = None) -> Any:
        """Return what is fitted to some rows, at any hyperparameters; of `most` drawn bases at most."""
        raise NotImplementedError

    def fitted(self, data: TrainingData, width: Any, basis: Any) -> Any:
        """Return the predictor that is fitted to some rows at a width."""
        raise NotImplementedError

    def rough(self, data: TrainingData, most: int | None) -> tuple["Estimation", int | None]:
        """Return the estimation as loose as refits need it that only rank widths, and their most bases."""
        return self, most

    def score(self, data: TrainingData, criterion: str, width: float, most: int | None) -> float:
        """Return the score of a width by a criterion of all rows."""
        raise NotImplementedError
