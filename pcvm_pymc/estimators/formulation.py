"""What a fit maximises, as a function of the hyperparameters; rows in memory, in chunks or on Dask."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pcvm_pymc.core.design import ArrayRows, Rows, StreamedDesign
from pcvm_pymc.core.em import EMOptions, WidthMoves, fit_em
from pcvm_pymc.core.family import as_likelihood
from pcvm_pymc.core.pieces.centres import Centres
from pcvm_pymc.core.pieces.kernels import (
    Kernel,
    KernelPiece,
    Radial,
    as_kernel,
    distances,
    squared_distances,
    width_bounds,
)
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import chunk_rows, has_room_for_coupled, threads
from pcvm_pymc.core.pieces.row_weights import majority_label
from pcvm_pymc.core.pieces.transforms import TransformedKernel
from pcvm_pymc.core.pieces.validation import is_real, is_unknown, shown
from pcvm_pymc.core.problem import EMResult, Problem, Status
from pcvm_pymc.estimators.training import TrainingData

#: changes at which a fit stops that only ranks candidates: looser than a fit that is kept, with the same
#: choice (held-out log losses agree to about 1e-3)
ROUGH = {
    "leave-one-out": 1e-2,  # latent value, EM at a candidate
    "class by class": 0.2,  # the same, one class against the rest: the best candidates are fitted again
    "folds": 0.05,  # latent value, EM of a fold under a proper prior
    "folds, improper": 1e-3,  # the same where weights are pruned, late at times
    "evidence": 1e-3,  # nats of log evidence
    "bottom-up": 0.1,  # log precision
}


def loosened(options: Any, kind: str) -> Any:
    """Return options as loose as a fit needs that only ranks candidates, see `ROUGH`."""
    return replace(options, tol=max(options.tol, ROUGH[kind]))


@dataclass(frozen=True)
class Formulation:
    """Rows, basis functions, likelihood and prior of a fit, and how it is solved.

    `at` gives the problem at named hyperparameters, `solved` its mode.

    Attributes
    ----------
    data : TrainingData
    centres : Centres
    kernel : str, callable or KernelPiece
    likelihood : Likelihood
    prior : callable
        ``scale -> prior``.
    options : EMOptions or BottomUpOptions
        Whose type is the solver.
    bias : {"prior", "free", "none"}
    shared : bool
        Whether a basis is dropped for all scores or for none.
    rows : Rows, optional
        The rows in chunks, where the basis functions are streamed.
    single, coupled : bool
        For rows in chunks: single precision; whether Newton steps may be of all scores at once.
    solver : callable, optional
        ``(problem) -> result``, in place of EM or the search from the bottom up.
    apart : ndarray, shape (n_obs, n_basis), optional
        Distances, to the power of the kernel's order, where many widths of a radial kernel are tried.
    """

    data: TrainingData
    centres: Centres
    kernel: Kernel
    likelihood: Likelihood
    prior: Callable[[float], Any]
    options: Any
    bias: Any = "prior"
    shared: bool = False
    rows: Rows | None = None
    single: bool = False
    coupled: bool = False
    solver: Any = None
    apart: Array | None = None

    def in_chunks(self, limit: float | None, *, single: bool) -> "Formulation":
        """Return the same with rows that go through a fit in chunks, within a limit of bytes."""
        data, n_basis, n_scores = self.data, len(self.centres), self.likelihood.n_scores
        n_jobs = threads()
        coupled = n_scores > 1 and has_room_for_coupled(limit, n_basis, n_scores, n_jobs)
        rows = data.stream
        if rows is None:
            size = (n_basis, data.X.shape[1], n_jobs, n_scores)
            chunk = chunk_rows(np.inf if limit is None else limit, *size, coupled=coupled)
            rows = ArrayRows(data.X, data.label, chunk, n_jobs, data.weight)
        return replace(self, rows=rows, single=single, coupled=coupled)

    def for_many_widths(self) -> "Formulation":
        """Return the same with the distances of a radial kernel computed once."""
        kernel = as_kernel(self.kernel)
        if not isinstance(kernel, Radial):
            return self
        apart = distances(self.data.X, self.centres.points, kernel.order)
        return replace(self, apart=apart)

    def on(self, kernel: KernelPiece) -> "Formulation":
        """Return the same with another kernel, on transformed rows and centres where it transforms them."""
        if not isinstance(kernel, TransformedKernel):
            return replace(self, kernel=kernel, apart=None)
        data = replace(self.data, X=kernel.transform(self.data.X))
        centres = replace(self.centres, points=kernel.transform(self.centres.points))
        return replace(self, data=data, centres=centres, kernel=kernel.kernel, apart=None)

    def scaled(self, widths: Array) -> "Formulation":
        """Return the same with each feature divided by a width of its own."""
        data = replace(self.data, X=self.data.X / widths)
        centres = replace(self.centres, points=self.centres.points / widths)
        return replace(self, data=data, centres=centres).for_many_widths()

    def kernel_at(self, at: Mapping[str, Any]) -> KernelPiece:
        """Return the kernel at named hyperparameters: all but the scale are its own."""
        kernel: Any = as_kernel(at.get("kernel", self.kernel), at["width"])
        others = {n: value for n, value in at.items() if n not in ("width", "scale", "kernel")}
        piece: KernelPiece = replace(kernel, **others) if others else kernel
        return piece

    def at(self, at: Mapping[str, Any], *, moves: bool = False) -> Problem:
        """Return the problem at named hyperparameters; `moves` lets EM move the width of the RBF."""
        centres, kernel, width = self.centres, self.kernel_at(at), at["width"]
        label: Any = self.data.label
        weight = self.data.weight
        how: dict[str, Any] = {"bias": self.bias, "shared": self.shared, "width": width}
        if self.rows is not None:
            majority = majority_label(label, weight)
            pieces = centres.points, kernel, self.single, majority, self.coupled
            Phi: Any = StreamedDesign(self.rows, *pieces)
            label = weight = None
        elif moves:
            squared = squared_distances(self.data.X, centres.points)
            how["moves"] = WidthMoves(squared, width_bounds(self.data.X))
            Phi = how["moves"].basis(width)
        elif self.apart is not None and isinstance(kernel, Radial) and np.ndim(width) == 0:
            Phi = kernel.of_distances(self.apart.copy())
        else:
            Phi = np.ascontiguousarray(kernel(self.data.X, centres.points))
        how["row_weight"] = weight
        return Problem(Phi, label, centres.sign, self.prior(at["scale"]), self.likelihood, **how)

    def solved(self, problem: Problem) -> EMResult:
        """Return the posterior mode, or where the search from the bottom up ends."""
        if self.solver is not None:
            mode: EMResult = self.solver(problem)
            return mode
        if isinstance(self.options, EMOptions):
            return fit_em(problem, None, self.options)
        from pcvm_pymc.core.evidence import BottomUpOptions, fit_bottom_up  # slow: compiled

        result = fit_bottom_up(problem, self.options)
        if result.status is not Status.EMPTY_MODEL or self.options.most == 1:
            return result
        plain = BottomUpOptions(max_iter=self.options.max_iter, tol=self.options.tol)
        return fit_bottom_up(problem, plain)


# --- pieces by their names ---------------------------------------------------------------------

#: what a name means as a hyperprior, in every estimator
HYPERPRIORS: dict[str, Callable[[], Hyperprior]] = {
    "default": Hyperprior.plug_in,
    "plug_in": Hyperprior.plug_in,
    "jeffreys": Hyperprior.jeffreys,
    "chen2009": Hyperprior.chen2009,
}


def named_hyperprior(hyperprior: Any, allowed: tuple[str, ...] = ("gamma",)) -> Any:
    """Return a hyperprior by its name, or as it was given.

    Parameters
    ----------
    hyperprior : {"default", "plug_in", "jeffreys", "chen2009"} or a prior
    allowed : tuple of str
        Priors that the row of the family table takes.

    Raises
    ------
    ValueError
        For another one, or one without a mode.
    """
    if isinstance(hyperprior, str) and hyperprior in HYPERPRIORS:
        return HYPERPRIORS[hyperprior]()
    if getattr(hyperprior, "name", None) in allowed:
        if hyperprior.has_mode:
            return hyperprior
        needed = "needed one of fixed scale (rate_shape=None), or sample the model"
        raise ValueError(f"hyperprior={hyperprior!r} has no mode that EM could find; {needed}")
    needed = f"use one of {sorted(HYPERPRIORS)} or a Hyperprior(c, d, e, f)"
    raise ValueError(f"hyperprior={shown(hyperprior)} is unknown; {needed}")


def named_likelihood(
    likelihood: str | Likelihood, allowed: tuple[str, ...], argument: str = "likelihood"
) -> Likelihood:
    """Return a likelihood by its name, or as it was given; `argument` is its name in the estimator."""
    try:
        piece = as_likelihood(likelihood, allowed)
    except ValueError:
        needed = f"use one of {allowed}, or a Likelihood object"
        raise ValueError(f"{argument}={shown(likelihood)} is unknown; {needed}") from None
    for name, value in vars(piece).items():
        # an unknown noise, NaN, is estimated with the evidence
        if is_unknown(value) and (name == "flip" or not is_real(value)):
            given = f"{argument} has the unknown {name}={shown(value)}"
            raise ValueError(f"{given}; needed a number here, or a model and `sample`")
    return piece
