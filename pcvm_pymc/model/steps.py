"""EM and Gibbs sampling on PyMC's points: one step each."""

from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.initial_point import PointType
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.util import RandomGenerator, get_random_generator

from pcvm_pymc.core.em import EMOptions, Start, initial_state, iterate
from pcvm_pymc.core.em.own_terms import rounds, start_of
from pcvm_pymc.core.gibbs import GibbsProblem, GibbsState, advance
from pcvm_pymc.core.pieces.validation import check_instance, check_whole
from pcvm_pymc.model.data import as_model
from pcvm_pymc.model.read import Reading, read
from pcvm_pymc.model.terms import own_terms
from pcvm_pymc.model.values import Value


class PointMap:
    """Map between weights, bias, width and rate, and a point of the model (transformed values).

    Parameters
    ----------
    reading : Reading
        Of a model that is of a row of `FAMILY`.
    """

    def __init__(self, reading: Reading) -> None:
        self.parts = reading.parts
        roles = {name: getattr(self.parts, name) for name in ("weight", "bias", "width", "rate")}
        self.variables = {name: rv for name, rv in roles.items() if rv is not None}
        self._values = {name: Value(reading.model, rv) for name, rv in self.variables.items()}

    def point(self, **natural: Any) -> PointType:
        """Return a point from weights (signed), bias, width and rate, those that the model has.

        A pruned weight has the log size minus infinity, which ``compile_logp(jacobian=False)``
        takes.
        """
        if self.parts.sign is not None:
            natural["weight"] = np.abs(natural["weight"])
        known = {str(rv.name): natural[name] for name, rv in self.variables.items()}
        return {
            value.name: value.forward(natural[name], known) for name, value in self._values.items()
        }

    def natural(self, point: PointType) -> dict[str, NDArray[Any]]:
        """Return weights (signed), bias, width and rate at a point, those that the model has."""
        by_role, known = dict[str, Any](), dict[str, Any]()
        for name, value in sorted(self._values.items(), key=lambda pair: len(pair[1].needs)):
            by_role[name] = value.backward(point[value.name], known)
            known[str(self.variables[name].name)] = by_role[name]
        if self.parts.sign is not None:
            by_role["weight"] = self.parts.sign * by_role["weight"]
        return by_role


def _em_point(at: PointMap, state: Any, width: Any) -> PointType:
    """Return an EM state as a point, an unknown d at unit scale."""
    rate = getattr(at.parts.hyperprior, "c", None)
    return at.point(weight=state.weight, bias=state.bias, width=width, rate=rate)


class EMStep(BlockedStep):
    """One expectation and one maximisation step on a PyMC point.

    Parameters
    ----------
    model : pm.Model, optional
        One that `find_map_em` takes; default: the model on the context stack.
    options : EMOptions, optional

    Raises
    ------
    ValueError
        If the model is not one that EM can maximise; in `pymc.sample`, because EM draws nothing.

    Notes
    -----
    ``model.compile_logp(jacobian=False)`` never decreases along the steps. An unknown scale stays at unit
    scale, as by ``find_map_em(hyperparameters="given")``.

    In a model with user-defined terms a step is one round of `find_map_em`: EM for weights and biases, then
    steps by their gradient for all other variables, then one Newton step.

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
    >>> sorted(point)
    ['bias', 'magnitude_log__', 'rate_log__']
    >>> sorted(stats)
    ['change', 'log_posterior', 'n_active', 'width']
    """

    name = "em"

    def __init__(self, model: pm.Model | None = None, options: EMOptions | None = None) -> None:
        check_instance("options", options, EMOptions, "EMOptions", optional=True)
        self.options = EMOptions() if options is None else options
        self.options.check_in_memory()
        reading = read(model)
        self._own = own_terms(reading.model, self.options) if reading.unseen("em") else None
        if self._own is None:
            self.problem, self._map = reading.problem_for("em").given(), PointMap(reading)

    def __new__(cls, model: pm.Model | None = None, options: EMOptions | None = None) -> Any:
        """Make the step as any object: PyMC makes its own for each variable."""
        return object.__new__(cls)

    @property
    def vars(self) -> Any:
        """Raise: `pymc.sample` asks a step for its variables, and EM draws nothing."""
        raise ValueError(
            "EMStep is no sampler: its steps draw nothing; needed find_map_em(model) or step(point) for the "
            "mode, or for draws sample(model) or pm.sample(step=PCVMGibbs(model=model))"
        )

    def initial_point(self) -> PointType:
        """Return `Start.default` as a point of the model.

        Of a model with user-defined terms it is the model's initial point, with weights of zero.

        Returns
        -------
        dict of str to ndarray
            Values of the model's variables, as its samplers have them.
        """
        if self._own is not None:
            return self._own.point(self._own.first)
        return _em_point(self._map, Start.default(self.problem), self.problem.width)

    def step(self, point: PointType) -> tuple[PointType, dict[str, Any]]:
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
            function, ``width``. With user-defined terms, in place of that, ``moved``, the largest change of
            another variable, and ``promised``, what the Newton step was to gain.
        """
        if self._own is not None:
            old_values = start_of(self._own.problem, self._own.vector(point))
            after = next(rounds(self._own.problem, old_values))
            names = ("log_posterior", "n_active", "change", "moved", "promised")
            return self._own.point(after.values), {name: vars(after)[name] for name in names}
        natural = self._map.natural(point)
        problem, width = self.problem, natural.get("width")
        if problem.moves is not None and width is not None:
            problem = replace(problem, Phi=problem.moves.basis(width[()]), width=width[()])
        start = Start(natural["weight"], natural.get("bias", np.zeros(problem.n_scores))[()])
        old = initial_state(problem, start)
        new = next(iterate(problem, start, self.options))
        stats = {
            "log_posterior": new.log_posterior,
            "n_active": new.n_active,
            "change": float(np.abs(new.latent - old.latent).max()),
            "width": new.width,
        }
        return _em_point(self._map, new, new.width), stats


class PCVMGibbs(BlockedStep):
    """Gibbs sampling of a PCVM inside `pymc.sample`: ``pm.sample(step=PCVMGibbs(model=model))``.

    `pcvm_pymc.sample` with ``method="gibbs"`` runs the same sweeps without PyMC's cost per draw.

    Parameters
    ----------
    vars : list of value variables, optional
        All of the model's; the step moves them together.
    model : pm.Model, optional
        From `pcvm_model`, with signs of labels, a proper `Hyperprior` and a fixed width.
    sweeps : int
        Sweeps for each draw.
    rng : int or numpy.random.Generator, optional
        For the draws; the same one gives the same draws.
    blocked : bool
        PyMC's own; False, a step for each variable, is refused.
    **kwargs
        What `pymc.sample` hands to every step and this one does not need.

    Raises
    ------
    ValueError
        If the model has terms that this sampler would not see, or `vars` are not all of its variables.

    References
    ----------
    J. H. Albert and S. Chib (1993), "Bayesian analysis of binary and polychotomous response data",
    JASA 88; the sweep is that of `pcvm_pymc.core.gibbs`.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0, width=1.0)
    >>> step = PCVMGibbs(model=model, rng=1)
    >>> point, stats = step.step(model.initial_point())
    >>> sorted(point)
    ['bias', 'magnitude_log__', 'rate_log__']
    """

    name = "pcvm_gibbs"
    stats_dtypes_shapes: dict[str, Any] = {"sweeps": (np.int64, [])}  # noqa: RUF012 (PyMC's own attribute)
    _state_class = StepMethodState  # its generator: the chain's state is the point
    default_tune_steps = 500

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Check the model, before PyMC looks into it."""
        as_model(kwargs.get("model"))
        return super().__new__(cls, *args, **kwargs)

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
        model = as_model(model)
        check_whole("sweeps", sweeps, 1)
        self.vars = list(model.value_vars)
        needed = sorted(v.name for v in self.vars)
        given = needed if vars is None else sorted({v.name for v in vars})
        if given != needed:
            raise ValueError(f"vars are {given}; needed all of the model's, {needed}")
        self.sweeps = sweeps
        reading = read(model)
        self.problem = GibbsProblem.of(reading.problem_for("sampling"))
        self._map = PointMap(reading)
        self.rng = get_random_generator(rng)

    def step(self, point: PointType) -> tuple[PointType, list[dict[str, int]]]:
        """Return the point after `sweeps` Gibbs sweeps."""
        natural = self._map.natural(point)
        log_rate = np.log(natural.get("rate", self.problem.hyperprior.d))
        state = GibbsState(np.abs(natural["weight"]), natural["bias"][()], float(log_rate))
        advance(self.problem, state, self.rng, draws=1, thin=self.sweeps)
        rate = np.exp(state.log_rate)
        new = self._map.point(weight=state.size, bias=state.bias, rate=rate)
        return {**point, **new}, [{"sweeps": self.sweeps}]

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Return INCOMPATIBLE: `pymc.sample` never assigns this step by itself."""
        return Competence.INCOMPATIBLE
