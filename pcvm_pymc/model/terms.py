"""The log posterior of a model with user-defined terms, as functions of one vector of values.

Latent functions are found by their operation, dot(Phi, sign * size), and by the prior of the weights. What is
made of them, and what else is in the model, is its own: `pcvm_pymc.core.em.own_terms` maximises it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.initial_point import PointType
from pymc.model.transform.conditioning import remove_value_transforms
from pymc.model.transform.optimization import freeze_dims_and_data
from pymc.pytensorf import continuous_types, join_nonshared_inputs
from pytensor import scalar
from pytensor.compile.mode import Mode
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import LaplaceRV

from pcvm_pymc.core.em.options import EMOptions
from pcvm_pymc.core.em.own_terms import Block, LatentRows, OwnProblem
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.quadratic import Index
from pcvm_pymc.model import graphs
from pcvm_pymc.model.graphs import NotOfFamilyError
from pcvm_pymc.model.parts import signed
from pcvm_pymc.model.priors import NUTS, weight_prior, with_bias
from pcvm_pymc.model.values import Value

_CLOSE = 1e-6  # share of a derivative by which two ways to compute it may differ
# a few hundred evaluations: to compile takes longer
_MODE = Mode("py", "fast_run").excluding("fusion")
_NEAR = 0.1  # of the start: where derivatives are compared
#: a scalar's derivatives, zeros where it does not depend on a variable
_derivatives = partial(pt.grad, disconnected_inputs="ignore", return_disconnected="zero")


def own_terms(model: pm.Model, options: EMOptions) -> "OwnTerms":
    """Return the log posterior of a model with user-defined terms, for EM.

    Raises
    ------
    ValueError
        For ``update="em"``, which needs the bound of a row's likelihood, and for what `OwnTerms` cannot take.
    """
    if options.update == "em":
        raise ValueError("update='em' needs a bound of the curvature; needed 'auto' or 'newton'")
    with pytensor.config.change_flags(cxx=""):  # constants are folded sooner than compiled
        return OwnTerms(model)


# --- latent functions ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Function:
    """A latent function, dot(Phi, sign * weight) + bias, by the names of its variables."""

    weight: str
    sign: Array | None
    hyperprior: Any
    rate: str | None
    typical_rate: float
    bias: str | None
    bias_kind: Literal["prior", "free", "none"]


def _functions(model: pm.Model) -> list[_Function]:
    """Return the latent functions of a model whose data are constants."""
    inner = list(ancestors([*model.observed_RVs, *model.potentials, *model.free_RVs]))
    sums = [graphs.terms(x) for x in inner if graphs.applies(x, scalar.Add)]
    functions: dict[str, _Function] = {}
    for x in inner:
        for side in _sides(x):
            if not (unknown := graphs.random_parts(side)) or set(unknown) - set(model.free_RVs):
                continue
            try:
                sign, weight = signed(graphs.peeled(side))
                prior, sign, variables = weight_prior(weight, sign)
            except NotOfFamilyError:  # terms like any others
                continue
            _check_prior(weight, prior, variables)
            rate, typical = variables.get("rate"), getattr(prior, "d", np.nan)
            if rate is not None:  # at unit scale
                prior, rate = prior.at_rate(prior.c), str(rate.name)
            added = [term for terms in sums if x in terms and len(terms) == 2 for term in terms]
            biases = [term for term in added if term in model.free_RVs and term.type.ndim == 0]
            function = _Function(str(weight.name), sign, prior, rate, typical, None, "none")
            functions[function.weight] = _with_bias(function, biases)
    if not functions:
        raise ValueError(
            f"the model has no weights of the family; found {graphs.described(*model.free_RVs)}. Needed such "
            f"as pcvm_latent's or pm.Laplace in dot(Phi, weight); use pymc_extras.find_MAP, {NUTS}"
        )
    return [functions[v.name] for v in model.free_RVs if v.name in functions]


def _sides(x: Variable) -> Iterator[Variable]:
    """Yield both sides of an expression that is a matrix product; of any other nothing."""
    if x.owner is not None and graphs.peeled(x) is x:
        yield from graphs.product(x) or ()


def _check_prior(weight: Variable, prior: Any, variables: Mapping[str, Any]) -> None:
    """Raise where weights have no mode that EM could find, given all else."""
    fault = None
    if variables.get("scales"):
        fault, needed = "a half-horseshoe's", "a Hyperprior or a Laplace"
    elif variables.get("precisions"):
        names = [rv.name for rv in variables["precisions"]]
        fault, needed = f"given explicit precisions {names}", "precision='marginal'"
    elif not prior.is_proper:
        fault, needed = f"under {prior}, whose density is unbounded at zero", "a proper hyperprior"
    elif weight.type.ndim != 1:
        fault, needed = f"of {weight.type.ndim} dimensions", "one weight for each basis function"
    if fault is not None:
        raise ValueError(f"weights {graphs.made_of([weight])} are {fault}; needed {needed}, {NUTS}")


def _with_bias(function: _Function, biases: list[Variable]) -> _Function:
    """Return a function with the bias that is added to it, where its prior is one of the family."""
    for bias in biases:
        try:
            prior, kind, precisions = with_bias(function.hyperprior, bias)
        except NotOfFamilyError:  # a term like any other
            continue
        if not precisions and prior.is_proper:
            return replace(function, hyperprior=prior, bias=str(bias.name), bias_kind=kind)
    return function


def _penalties(model: pm.Model) -> dict[str, float]:
    """Return the rates of variables with a Laplace density, which has a kink at zero."""
    rates = {}
    for rv in model.free_RVs:
        if isinstance(rv.owner.op, LaplaceRV):
            if any(map(graphs.random_parts, rv.owner.op.dist_params(rv.owner))):
                what = f"{rv.name!r} is a Laplace of unknown place or scale, which has a kink"
                raise ValueError(f"{what}; needed numbers as mu and b, {NUTS}")
            rates[str(rv.name)] = weight_prior(rv, None)[0].penalty
    return rates


# --- the log posterior -----------------------------------------------------------------------------


class OwnTerms:
    """A model's log posterior as functions of one vector, and that vector as a point of the model.

    Weights and biases are in it as they are, of signed weights the sizes; all else as its value variable.

    Parameters
    ----------
    model : pm.Model

    Attributes
    ----------
    problem : OwnProblem
    first : ndarray, shape (n_values,)
        The start: weights of zero, an unknown scale at unit scale, all else at the model's initial point.

    Raises
    ------
    ValueError
        If the model cannot be taken: what was found, what is needed, and what can take it.
    """

    def __init__(self, model: pm.Model) -> None:
        discrete = [rv.name for rv in model.free_RVs if rv.dtype not in continuous_types]
        if discrete:
            needed = f"continuous variables: sum over them, {NUTS}"
            raise ValueError(f"{discrete} are discrete and unknown; needed {needed}")
        bare = object.__new__(type(model))  # PyMC does not transform models with initial values
        bare.__dict__ |= model.__dict__
        bare.rvs_to_initial_values = dict.fromkeys(model.rvs_to_initial_values)
        fixed = freeze_dims_and_data(bare)
        self._functions = _functions(fixed)
        self._penalties = _penalties(fixed)
        # variables whose values are as in the model, without a transform
        natural = {x for f in self._functions for x in (f.weight, f.rate, f.bias) if x is not None}
        plain = remove_value_transforms(fixed, [fixed[name] for name in sorted(natural)])
        self._values, self._start = plain.value_vars, plain.initial_point()
        self._own = {x.name: str(plain.values_to_rvs[x].name) for x in self._values}
        self._turned = {name: Value(model, model[name]) for name in self._own.values()}
        self._natural = natural
        self.first = self.vector(model.initial_point())
        where = self._split(np.arange(len(self.first)))
        for function in self._functions:
            self.first[where[function.weight]] = 0.0
            if function.rate is not None:
                self.first[where[function.rate]] = function.hyperprior.d
        self.problem = self._problem(*_compiled(plain, self._functions, self._start))

    def point(self, vector: Array) -> PointType:
        """Return the point of the model at a vector; the log of a size of zero is minus infinity."""
        point, parts = {}, self._split(vector)
        known = {self._own[name]: value for name, value in parts.items()}
        for name, value in parts.items():
            own = self._turned[self._own[name]]
            point[own.name] = own.forward(value, known) if name in self._natural else value
        return point

    def vector(self, point: PointType) -> Array:
        """Return a point of the model as a vector."""
        known = {name: point[own.name] for name, own in self._turned.items()}
        for name in sorted(self._natural, key=lambda name: len(self._turned[name].needs)):
            known[name] = self._turned[name].backward(known[name], known)
        return np.concatenate([np.ravel(known[name]).astype(float) for name in self._own.values()])

    def _split(self, vector: NDArray[Any]) -> dict[str, NDArray[Any]]:
        ends = np.cumsum([np.size(self._start[x.name]) for x in self._values])[:-1]
        parts = zip(self._values, np.split(vector, ends), strict=True)
        return {x.name: part.reshape(np.shape(self._start[x.name])) for x, part in parts}

    # --- the log posterior -------------------------------------------------------------------------

    def _problem(self, at: Any, of_rows: Any, product: Any) -> OwnProblem:
        """Return the log posterior as an `OwnProblem`; raise where the pieces have other derivatives."""
        where = self._split(np.arange(len(self.first)))
        near, n = self.first.copy(), len(self._functions)
        for function, Phi in zip(self._functions, of_rows(near, 0.0)[:n], strict=True):
            spread = 1.5 + np.cos(np.arange(1.0, Phi.shape[1] + 1.0) ** 2)
            size = np.abs(Phi).sum(axis=1).max(initial=1e-300)
            near[where[function.weight]] = _NEAR / size * spread  # small latent values
            if function.bias is not None:
                near[where[function.bias]] = _NEAR
        slope, row_terms, bent = at(near)[1], of_rows(near, 0.0), of_rows(near, 1.0)
        blocks = []
        for k, function in enumerate(self._functions):
            _check_rows(function, row_terms[2 * n + k], bent[2 * n + k])
            blocks.append(_block(function, where, near, slope, row_terms[k::n][:2]))
        taken = [np.append(block.values, block.rate) for block in blocks]
        names = np.repeat([*self._own.values()], [np.size(index) for index in where.values()])
        unlike = {k for k, x in self._turned.items() if x.transform is not None} - self._natural
        turned = [name in unlike for name in names]
        penalty = [self._penalties.get(name, 0.0) for name in names]

        def rows(values: Array) -> list[LatentRows]:
            out, by_function = of_rows(values, 0.0), []
            for k, (block, function) in enumerate(zip(blocks, self._functions, strict=True)):
                design, slope, curvature = out[k::n]
                if function.sign is not None:
                    design = design * function.sign
                latent = design @ values[block.weight] + values[block.bias].sum()
                by_function.append(LatentRows(design, latent, slope, curvature))
            return by_function

        others = np.setdiff1d(np.arange(len(near)), np.concatenate(taken))
        of_values = (others, np.array(turned), np.array(penalty), names.tolist())
        return OwnProblem(tuple(blocks), *of_values, at, rows, product)


def _compiled(plain: pm.Model, functions: list[_Function], start: PointType) -> tuple[Any, ...]:
    """Return the log posterior and its slopes, rows of the latent functions, and products, as functions.

    All are functions of one vector. Rows are the designs, slopes and curvatures of each function; the latter
    are products of minus the Hessian, which has to be diagonal, with ones and, times the second
    argument, numbers that are not ones.
    """
    logp, designs, shifts = _shifted(plain, functions)
    (logp, *designs), x = join_nonshared_inputs(start, [logp, *designs], plain.value_vars)
    direction, mixed, curved = pt.vector("direction"), pt.scalar("mixed"), []
    try:
        slope, *slopes = _derivatives(logp, [x, *shifts])
        product = _derivatives(pt.dot(slope, direction), [x])[0]
        for Phi, g, shift in zip(designs, slopes, shifts, strict=True):
            vector = 1.0 + mixed * pt.cos(pt.sqr(pt.arange(1.0, Phi.shape[0] + 1.0)))
            curved += _derivatives(-pt.dot(g, vector), [shift])
    except (NotImplementedError, NullTypeGradError) as error:
        fault = f"the log posterior lacks first or second derivatives ({error})"
        raise ValueError(f"{fault}; needed operations that have them, {NUTS}") from error
    zero = {s: pt.zeros(Phi.shape[0]) for s, Phi in zip(shifts, designs, strict=True)}
    rows = [*designs, *slopes, *curved]
    wanted = [([x], [logp, slope]), ([x, mixed], rows), ([x, direction], product)]
    return tuple(
        np.errstate(all="ignore")(  # steps that go too far are taken back
            pm.compile(i, clone_replace(o, zero), mode=_MODE, on_unused_input="ignore")
        )
        for i, o in wanted
    )


def _shifted(
    plain: pm.Model, functions: list[_Function]
) -> tuple[Variable, list[Variable], list[Variable]]:
    """Return a log posterior whose latent functions are shifted, their basis functions, and the shifts."""
    logp = plain.logp(jacobian=False)
    shifted, designs, shifts = {}, [], []
    for function in functions:
        value, shift = plain.rvs_to_values[plain[function.weight]], pt.vector("shift")
        for x in ancestors([logp]):
            sides = list(_sides(x))
            weighted = [value in ancestors([side]) for side in sides]
            if weighted == [False, True]:
                Phi, by = sides[0], shift[:, None] if x.type.ndim == 2 else shift
            elif weighted == [True, False]:
                Phi, by = sides[1].T, shift[None, :] if x.type.ndim == 2 else shift
            else:
                continue
            shifted[x] = x + by
        designs.append(Phi)
        shifts.append(shift)
    return clone_replace([logp], shifted, rebuild_strict=False)[0], designs, shifts


def _check_rows(function: _Function, curvature: Array, mixed: Array) -> None:
    """Raise unless the Hessian in the latent values is diagonal: a log density row by row."""
    vector = 1.0 + np.cos(np.arange(1.0, len(curvature) + 1.0) ** 2)
    if not _same(mixed, curvature * vector, np.abs(curvature).max(initial=0.0)):
        fault = f"rows of the latent function of {function.weight!r} are in one term"
        raise ValueError(f"{fault}; needed a log density row by row, {NUTS}")


def _block(
    function: _Function,
    where: Mapping[str, Index],
    near: Array,
    slope: Array,
    rows: tuple[Array, Array],
) -> Block:
    """Return a latent function's weights and bias; raise where its weights are in other terms, too.

    A bias that is in other terms is moved with these.
    """
    (Phi, g), weight, kind = rows, where[function.weight], function.bias_kind
    prior, bias = function.hyperprior, np.empty(0, dtype=np.intp)
    sign = 1.0 if function.sign is None else function.sign
    wanted = (Phi * sign).T @ g - prior.weight_precision(near[weight]) * near[weight]
    if not _same(slope[weight], wanted, np.abs(Phi).T @ np.abs(g)):
        needed = f"their prior and dot(Phi, weight) alone, {NUTS}"
        raise ValueError(f"the weights {function.weight!r} are in other terms; needed {needed}")
    if function.bias is not None:
        bias, wanted = where[function.bias].ravel(), g.sum()
        if kind == "prior":
            wanted = wanted - prior.bias_precision(_NEAR) * _NEAR
        if not _same(slope[bias], wanted, np.abs(g).sum()):
            bias, kind = bias[:0], "none"
    rate = bias[:0] if function.rate is None else where[function.rate].ravel()
    return Block(weight, bias, function.sign is not None, prior, kind, rate, function.typical_rate)


def _same(found: Any, wanted: Any, size: Any) -> bool:
    """Whether two ways to compute a derivative agree to rounding."""
    return bool((np.abs(found - wanted) <= _CLOSE * (size + np.abs(wanted))).all())
