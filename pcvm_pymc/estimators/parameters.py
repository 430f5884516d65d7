"""Arguments of the estimators: names for pieces, values that are allowed, and where each has an effect."""

from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from pcvm_pymc.core.pieces.arguments import (
    check_choice,
    check_flag,
    check_jobs,
    check_real,
    check_seed,
    check_whole,
    is_real,
    is_unknown,
    shown,
)
from pcvm_pymc.core.pieces.kernels import Kernel, as_kernel, as_width
from pcvm_pymc.core.pieces.likelihoods import Likelihood, as_likelihood
from pcvm_pymc.core.pieces.priors import Hyperprior, Prior

__all__ = [
    "HYPERPRIORS",
    "Conditional",
    "check_effects",
    "check_parameters",
    "given_width",
    "has_width",
    "is_rbf",
    "named_hyperprior",
    "named_likelihood",
    "without_idle",
]

#: what a name says of a hyperprior, in every estimator
HYPERPRIORS: dict[str, Callable[[], Hyperprior]] = {
    "plug_in": Hyperprior.plug_in,
    "jeffreys": Hyperprior.jeffreys,
    "chen2009": Hyperprior.chen2009,
}


class Conditional(NamedTuple):
    """An argument that has an effect in some combinations only.

    Attributes
    ----------
    name : str
    default : object
        What stands for "not given".
    on : tuple of str
        Arguments that decide.
    has_effect : callable
        ``(estimator) -> bool``.
    remedy : str
        With what it has an effect.
    """

    name: str
    default: Any
    on: tuple[str, ...]
    has_effect: Callable[[Any], bool]
    remedy: str


def check_effects(model: Any, table: Iterable[Conditional]) -> None:
    """Raise where an argument was given that has no effect beside the others.

    Raises
    ------
    ValueError
        With the names and values of both, and what to give.
    """
    for each in table:
        value = getattr(model, each.name)
        if _is_given(value, each.default) and not each.has_effect(model):
            beside = ", ".join(f"{name}={getattr(model, name)!r}" for name in each.on)
            raise ValueError(
                f"{each.name} was given with {beside}, where it has no effect (found {value!r}); it needs "
                f"{each.remedy}, or leave it at {each.default!r}"
            )


def without_idle(model: Any, table: Iterable[Conditional]) -> Any:
    """Return an estimator with its defaults for the arguments that have no effect."""
    for each in table:
        if not each.has_effect(model):
            model.set_params(**{each.name: each.default})
    return model


def _is_given(value: Any, default: Any) -> bool:
    plain = isinstance(value, (str, Real, tuple)) and isinstance(default, (str, Real, tuple))
    return not (value is default or (plain and value == default))


def named_hyperprior(
    hyperprior: str | Prior, default: str, allowed: tuple[str, ...] = ("gamma",)
) -> Any:
    """Return a hyperprior by its name, or as it was given.

    Parameters
    ----------
    hyperprior : {"default", "plug_in", "jeffreys", "chen2009"} or a prior
    default : str
        The name that ``"default"`` stands for in this estimator.
    allowed : tuple of str
        Priors that the row of the family table takes.

    Raises
    ------
    ValueError
        For another one, or one without a mode.
    """
    if isinstance(hyperprior, str):
        name = default if hyperprior == "default" else hyperprior
        if name in HYPERPRIORS:
            return HYPERPRIORS[name]()
    elif getattr(hyperprior, "name", None) in allowed:
        if hyperprior.has_mode:
            return hyperprior
        raise ValueError(
            f"hyperprior={hyperprior!r} has no mode that EM could find; needed one of fixed scale "
            "(rate_shape=None), or sample the model"
        )
    raise ValueError(
        f"hyperprior={shown(hyperprior)} is unknown; use 'default', one of {sorted(HYPERPRIORS)} or a "
        "Hyperprior(c, d, e, f)"
    )


def named_likelihood(
    likelihood: str | Likelihood, allowed: tuple[str, ...], argument: str = "likelihood"
) -> Likelihood:
    """Return a likelihood by its name, or as it was given; see `as_likelihood`.

    `argument` is the name that it goes by in the estimator.
    """
    try:
        found = as_likelihood(likelihood, allowed)
    except ValueError:
        raise ValueError(
            f"{argument}={shown(likelihood)} is unknown; use one of {allowed}, or a piece of that kind"
        ) from None
    for name, value in vars(found).items():
        # an unknown noise, NaN, is estimated with the evidence
        if is_unknown(value) and (name == "flip" or not is_real(value)):
            raise ValueError(
                f"{argument} has the unknown {name}={shown(value)}; needed a number here, or a model and "
                "`sample`"
            )
    return found


def given_width(width: Any, methods: tuple[str, ...]) -> Any:
    """Return a width that was given, None where it is the name of a way to choose one.

    Raises
    ------
    ValueError
        If it is neither.
    """
    if not isinstance(width, str):
        return as_width(width)
    if width in methods:
        return None
    needed = ["a positive number", *map(repr, methods)]
    raise ValueError(f"width={shown(width)}; needed {', '.join(needed[:-1])} or {needed[-1]}")


def has_width(kernel: Kernel) -> bool:
    """Whether a kernel has a width at all."""
    return not np.isnan(as_kernel(kernel, 1.0).width)


def is_rbf(kernel: Kernel) -> bool:
    """Whether a kernel is the RBF, whose derivatives are known."""
    return as_kernel(kernel).name == "rbf"


def check_parameters(
    model: Any, choices: dict[str, tuple[str, ...]], least: dict[str, int]
) -> None:
    """Raise unless the arguments that estimators share are what they may be.

    Parameters
    ----------
    model : estimator
    choices : dict of str to tuple of str
        Arguments that are one of some names.
    least : dict of str to int
        Whole numbers, and what they are at least.
    """
    for name, allowed in choices.items():
        check_choice(name, getattr(model, name), allowed)
    for name, lowest in least.items():
        check_whole(name, getattr(model, name), lowest)
    for name, check in _SHARED.items():
        if hasattr(model, name):
            check(name, getattr(model, name))


def _check_memory_limit(name: str, value: Any) -> None:
    if value is not None and not (is_real(value) and value > 0):
        raise ValueError(f"{name}={shown(value)}; needed a positive number of bytes, or None")


def _check_basis(name: str, value: Any) -> None:
    """Raise for a type that stands for no basis at all; its size and values are checked with the data."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if isinstance(value, bool | str | bytes | float | dict | set) or (whole and value < 1):
        raise ValueError(
            f"{name}={shown(value)}; needed None, a number of rows to choose, or centres (with signs, "
            "where the weights have any)"
        )


def _check_tolerance(name: str, value: Any) -> None:
    check_real(name, value, also=(None,))


#: by name, in every estimator that has it
_SHARED: dict[str, Callable[[str, Any], None]] = {
    "tol": _check_tolerance,
    "random_state": check_seed,
    "n_jobs": check_jobs,
    "memory_limit": _check_memory_limit,
    "basis": _check_basis,
    "star": check_flag,
}
