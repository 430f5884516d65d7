"""EM on a PyMC model: reading the problem back from the model, and one step on a PyMC point."""

from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
from pymc.distributions.distribution import support_point
from pymc.initial_point import PointType
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import RandomGenerator, get_random_generator

from pcvm_pymc.core import problem as pieces
from pcvm_pymc.core.em.binary import EMOptions, Problem, Start, initial_state, iterate
from pcvm_pymc.core.gibbs import GibbsProblem, GibbsState, advance
from pcvm_pymc.core.pieces.kernels import rbf, width_bounds
from pcvm_pymc.core.pieces.priors import hyperprior_from
from pcvm_pymc.core.pieces.probit import Array

__all__ = [
    "EMStep",
    "PCVMGibbs",
    "gibbs_problem_of",
    "has_free_width",
    "hyperprior_of",
    "point_of",
    "problem_of",
]

_FREE = {"magnitude", "bias"}
_EM_PURPOSE = (
    "EM maximises over",
    "Use pymc_extras.find_MAP, or sample, for a model with other terms (a width's prior must be called "
    "'width'; EM needs a Hyperprior with rate_shape=None)",
)
_GIBBS_PURPOSE = (
    "Gibbs sampling draws",
    "Use sample(model, method='nuts') for a model with other terms, a HalfHorseshoe, explicit "
    "precisions or a random width",
)


def problem_of(model: pm.Model) -> Problem:
    """Return the EM's problem as it stands in a model's data.

    Parameters
    ----------
    model : pm.Model
        From `pcvm_model` with ``precision="marginal"``. A width with a prior is to be called
        ``width``; EM then moves it too, between the smallest and the largest distance of the centres.

    Raises
    ------
    ValueError
        If the model has terms that this EM does not maximise over.
    """
    _check_structure(model, _FREE | ({"width"} if has_free_width(model) else set()), _EM_PURPOSE)
    label, sign, hyperprior = _labels(model), _signs(model), hyperprior_of(model)
    if has_free_width(model):
        squared = np.asarray(model["squared_distance"].get_value())
        bounds = width_bounds(np.asarray(model["centres"].get_value()))
        width = float(np.clip(_natural_start(model, "width"), *bounds))
        problem = Problem(
            rbf(squared, width),
            label,
            sign,
            hyperprior,
            squared_distance=squared,
            width=width,
            width_bounds=bounds,
            log_width_density=_log_density(model, "width"),
        )
    else:
        Phi, width = _known_basis(model)
        problem = Problem(Phi, label, sign, hyperprior, width=width)
    _check_rows(model, problem.Phi)
    return problem


def gibbs_problem_of(model: pm.Model) -> GibbsProblem:
    """Return the Gibbs sampler's problem as it stands in a model's data.

    Parameters
    ----------
    model : pm.Model
        From `pcvm_model` with ``precision="marginal"``, a fixed width and a proper `Hyperprior`.

    Raises
    ------
    ValueError
        If the model has terms that the Gibbs sampler would not see.
    """
    learned = {"rate"} & {rv.name for rv in model.free_RVs}
    _check_structure(model, _FREE | learned, _GIBBS_PURPOSE)
    Phi, _ = _known_basis(model)
    _check_rows(model, Phi)
    return GibbsProblem.of(pieces.Problem(Phi, _labels(model), _signs(model), hyperprior_of(model)))


def hyperprior_of(model: pm.Model) -> Any:
    """Return the `Hyperprior` or `HalfHorseshoe` that stands in a model's data."""
    return hyperprior_from(model.coords["hyperparameter"], model["hyperprior"].get_value())


def _labels(model: pm.Model) -> Array:
    return 2.0 * np.asarray(model["y"].get_value()) - 1.0


def _signs(model: pm.Model) -> Array:
    return np.asarray(model["signs"].get_value(), dtype=float)


def _known_basis(model: pm.Model) -> tuple[Array, float]:
    """Return Phi, and the width where it is the RBF's, of a model in which both are known."""
    width = float(model["width"].get_value()) if "width" in model.named_vars else np.nan
    if "Phi" in model.named_vars:
        return np.asarray(model["Phi"].get_value()), width
    # a random width that pm.do has fixed
    return rbf(np.asarray(model["squared_distance"].get_value()), width), width


def _check_rows(model: pm.Model, Phi: Array) -> None:
    n_labels = len(model["y"].get_value())
    if len(Phi) != n_labels:
        raise ValueError(
            f"the model's basis functions have {len(Phi)} rows and its labels {n_labels}; "
            "set both in one pm.set_data, see new_data(model, X_new, y_new)"
        )


def has_free_width(model: pm.Model) -> bool:
    """Whether the width is a free variable of the model."""
    return any(rv.name == "width" for rv in model.free_RVs)


def _check_structure(model: pm.Model, allowed: set[str], purpose: tuple[str, str]) -> None:
    """Raise unless the model is a PCVM as built: anything else would silently be ignored."""
    what, remedy = purpose
    if "class" in model.named_vars_to_dims.get("latent", ()):
        raise ValueError(
            "the model has a score for each class; needed one of two classes, from pcvm_model. For several "
            "use find_map_em(model) or sample(model)"
        )
    missing = {"y", "signs", "hyperprior", "centres", "magnitude"} - set(model.named_vars)
    if missing:
        raise ValueError(
            f"the model lacks {sorted(missing)}; needed a model from pcvm_model(X, y, ...)"
        )
    free = {rv.name for rv in model.free_RVs}
    if "precision" in free:
        raise ValueError(
            "the model has explicit precisions, which are integrated out here; build it with "
            "pcvm_model(..., precision='marginal')"
        )
    foreign = sorted(free - allowed)
    foreign += sorted({rv.name for rv in model.observed_RVs} - {"label"})
    foreign += sorted(potential.name for potential in model.potentials)
    absent = sorted(allowed - free)
    unreadable = not {"Phi", "width"} & set(model.named_vars)
    if foreign or absent or unreadable or {rv.name for rv in model.observed_RVs} != {"label"}:
        raise ValueError(
            f"{what} {sorted(allowed)} given label alone; found extra terms {foreign} and "
            f"not free {absent}. {remedy}"
        )


def _natural_start(model: pm.Model, name: str) -> float:
    """Return a free variable's support point on its own scale."""
    return float(support_point(model[name]).eval())


def _log_density(model: pm.Model, name: str) -> Any:
    """Return a compiled log prior density of a scalar free variable, on its own scale."""
    variable = model[name]
    value = variable.type()
    function = pm.compile([value], pm.logp(variable, value), mode="FAST_COMPILE")
    return lambda number: float(function(number))


def point_of(model: pm.Model, weight: Array, bias: float, width: float) -> PointType:
    """Return an EM state as a point of the model: value variables, transformed.

    A pruned weight has the log size minus infinity, which ``compile_logp(jacobian=False)``
    takes.
    """
    natural = {
        "magnitude": np.abs(weight),
        "bias": np.asarray(bias),
        "width": np.asarray(width),
    }
    point = {}
    for variable in model.free_RVs:
        value = model.rvs_to_values[variable]
        transform = model.rvs_to_transforms[variable]
        number = natural[variable.name]
        if transform is not None:
            with np.errstate(divide="ignore"):
                number = (
                    np.log(number)
                    if variable.name == "magnitude"
                    else transform.forward(number, *variable.owner.inputs).eval()
                )
        point[value.name] = np.asarray(number, dtype=value.dtype)
    return point


class EMStep:
    """One expectation and one maximisation step on a PyMC point.

    Parameters
    ----------
    model : pm.Model, optional
        From `pcvm_model`; default: the model on the context stack.
    options : EMOptions, optional

    Raises
    ------
    ValueError
        If the model is not one that EM can maximise.

    Notes
    -----
    ``model.compile_logp(jacobian=False)`` never decreases along the steps (but for the authors'
    ``update="clip"``).

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), eqs. 7-12 and 23-28, corrected.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> step = EMStep(pcvm_model(X, X[:, 0] > 0))
    >>> point, stats = step.step(step.initial_point())
    >>> sorted(point), sorted(stats)
    (['bias', 'magnitude_log__'], ['change', 'log_posterior', 'n_active', 'width'])
    """

    name = "em"

    def __init__(self, model: pm.Model | None = None, options: EMOptions | None = None) -> None:
        self.model = pm.modelcontext(model)
        self.options = options or EMOptions()
        self.problem = problem_of(self.model)

    def initial_point(self, start: Start | None = None) -> PointType:
        """Return a start (default: `Start.default`) as a point of the model."""
        start = start or Start.default(self.problem)
        return point_of(self.model, start.weight, start.bias, self.problem.width)

    def step(self, point: PointType) -> tuple[PointType, dict[str, float]]:
        """Return the point after one E and one M step, and statistics of the step.

        Parameters
        ----------
        point : dict of str to ndarray
            Value variables of the model, as from ``initial_point``.

        Returns
        -------
        point : dict of str to ndarray
        stats : dict
            ``log_posterior`` and ``n_active`` at the new point, largest ``change`` of the latent
            function, ``width``.
        """
        problem = self._problem_at(point)
        weight = problem.weight_sign * np.exp(point["magnitude_log__"])
        old = initial_state(problem, Start(weight, float(point["bias"])))
        new = next(iterate(problem, old, self.options))
        stats = {
            "log_posterior": new.log_posterior,
            "n_active": new.n_active,
            "change": float(np.abs(new.latent - old.latent).max()),
            "width": new.width,
        }
        return point_of(self.model, new.weight, new.bias, new.width), stats

    def _problem_at(self, point: PointType) -> Problem:
        """Return the problem at the point's width, where that is unknown."""
        problem = self.problem
        if problem.squared_distance is None:
            return problem
        variable = self.model["width"]
        transform = self.model.rvs_to_transforms[variable]
        width = point[self.model.rvs_to_values[variable].name]
        if transform is not None:
            width = transform.backward(width, *variable.owner.inputs).eval()
        return replace(problem, Phi=rbf(problem.squared_distance, float(width)), width=float(width))


@dataclass_state
class _GibbsStepState(StepMethodState):
    """What PyMC stores of the step: its generator alone, for the chain's state is the point."""


class PCVMGibbs(BlockedStep):
    """Gibbs sampling of a PCVM inside `pymc.sample`: ``pm.sample(step=PCVMGibbs(model=model))``.

    `pcvm_pymc.sample` with ``method="gibbs"`` runs the same sweeps without PyMC's cost per draw.

    Parameters
    ----------
    vars : list of value variables, optional
        All of the model's; the step moves them together.
    model : pm.Model, optional
        From `pcvm_model`, with a fixed width and a proper `Hyperprior`.
    sweeps : int
        Sweeps for each draw.
    rng : int or numpy.random.Generator, optional
    blocked : bool
    **kwargs
        What `pymc.sample` hands to every step and this one does not need.

    Raises
    ------
    ValueError
        If the model has terms that this sampler would not see, or `vars` are not all of its variables.
    """

    name = "pcvm_gibbs"
    stats_dtypes_shapes = {"sweeps": (np.int64, [])}  # noqa: RUF012 (PyMC's own attribute)
    _state_class = _GibbsStepState
    default_tune_steps = 500

    def __init__(
        self,
        vars: Any = None,
        *,
        model: pm.Model | None = None,
        sweeps: int = 5,
        rng: RandomGenerator = None,
        blocked: bool = True,
        **kwargs: Any,
    ) -> None:
        model = pm.modelcontext(model)
        self.vars = list(model.value_vars)
        if vars is not None and {v.name for v in vars} != {v.name for v in self.vars}:
            raise ValueError(
                f"vars are {sorted(v.name for v in vars)}; needed all of the model's variables, "
                f"{sorted(v.name for v in self.vars)}, which this step moves together"
            )
        if sweeps < 1:
            raise ValueError(f"sweeps={sweeps}; needed at least 1")
        self.sweeps = sweeps
        self.problem = gibbs_problem_of(model)
        self.rng = get_random_generator(rng)

    def step(self, point: PointType) -> tuple[PointType, list[dict[str, int]]]:
        """Return the point after some sweeps."""
        log_rate = float(point.get("rate_log__", np.log(self.problem.hyperprior.d)))
        state = GibbsState(np.exp(point["magnitude_log__"]), float(point["bias"]), log_rate)
        advance(self.problem, state, self.rng, draws=1, thin=self.sweeps)
        new = {**point, "magnitude_log__": np.log(state.size), "bias": np.asarray(state.bias)}
        if "rate_log__" in point:
            new["rate_log__"] = np.asarray(state.log_rate)
        return new, [{"sweeps": self.sweeps}]

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Never chosen unasked: the step needs the whole model."""
        return Competence.INCOMPATIBLE
