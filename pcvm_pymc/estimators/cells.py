"""Cells of width and scale: a grid that grows from its middle where leaving one out says that it pays."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from pcvm_pymc.core.em import EMOptions, EMResult, Start, fit_em
from pcvm_pymc.core.loo import LeaveOneOut, averaging_weights, leave_one_out
from pcvm_pymc.core.pieces.likelihood import Weighted, plain_target
from pcvm_pymc.core.pieces.likelihood import against_rest as labels_against_rest
from pcvm_pymc.core.pieces.likelihoods import Probit
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.problem import Problem

__all__ = [
    "GROWN_FROM",
    "LIGHT",
    "Cell",
    "Cells",
    "CrossValidated",
    "Place",
    "Task",
    "grown_cells",
    "log_hyperprior",
    "refitted_cells",
]

#: steps of the grid in width and in scale, from the middle
type Place = tuple[int, int]

LIGHT = 0.02  # a cell that carries no more is not kept
GROWN_FROM = 0.05  # one that carries no more is neither improved nor grown from
_WIDTH_STEP = 1.65
_SCALE_STEP = float(np.sqrt(10.0))
_FARTHEST = (7, 4)  # from the middle: widths from 0.1 to 10 times it, scales from 0.01 to 100
_RANKING = 1e-2  # tolerance of a fit that ranks
_WIDTH_SPREAD, _SCALE_SPREAD = 1.0, 0.7


def log_hyperprior(width_ratio: float, scale: float) -> float:
    """Return the weak log prior of a cell, up to a constant: normals on the logarithms.

    Parameters
    ----------
    width_ratio : float
        Width over the median distance; its logarithm has standard deviation 1.
    scale : float
        Of the weights, sqrt(d / c); its logarithm has standard deviation 0.7.
    """
    return -0.5 * float(
        (np.log(width_ratio) / _WIDTH_SPREAD) ** 2 + (np.log(scale) / _SCALE_SPREAD) ** 2
    )


@dataclass(frozen=True)
class Cell:
    """The mode at one width and scale, and its held-out predictions.

    Attributes
    ----------
    place : tuple of int
    width : float or ndarray, shape (n_features,)
    scale : float
        Of the weights' prior, sqrt(d / c).
    log_prior : float
    result : EMResult
    loo : LeaveOneOut
    """

    place: Place
    width: Any
    scale: float
    log_prior: float
    result: EMResult = field(repr=False)
    loo: LeaveOneOut = field(repr=False)


@dataclass(frozen=True)
class Task:
    """What every cell is fitted with.

    Attributes
    ----------
    problem : callable
        ``(width, scale) -> Problem``.
    own : ndarray of int, shape (n_basis,)
        The row that each basis stands on; -1 for one that stands on none.
    width : float
        The middle of the grid, or the only width.
    scale : float
        The same of the scales.
    moves : tuple of bool
        Whether widths, and scales, are tried beside the middle.
    options : EMOptions
    """

    problem: Callable[[Any, float], Problem]
    own: NDArray[np.intp]
    width: Any
    scale: float
    moves: tuple[bool, bool]
    options: EMOptions
    #: tolerance of a fit that only ranks, and the weight of a cell that is grown from
    looseness: ClassVar[float] = _RANKING
    grown_from: ClassVar[float] = GROWN_FROM

    def at(self, place: Place) -> tuple[Any, float]:
        """Return width and scale at a place of the grid."""
        width = self.width * _WIDTH_STEP ** place[0] if place[0] else self.width
        return width, self.scale * _SCALE_STEP ** place[1]

    def log_prior(self, place: Place) -> float:
        """Return the log prior of a place; what does not move has none."""
        width = _WIDTH_STEP ** place[0] if self.moves[0] else 1.0
        scale = self.at(place)[1] if self.moves[1] else 1.0
        return log_hyperprior(width, scale)

    def neighbours(self, place: Place) -> list[Place]:
        """Return the places beside one."""
        found = []
        for axis, moves in enumerate(self.moves):
            for step in (-1, 1) if moves else ():
                each = list(place)
                each[axis] += step
                if abs(each[axis]) <= _FARTHEST[axis]:
                    found.append((each[0], each[1]))
        return found

    def fitted(
        self, place: Place, near: Cell | None, *, improve: bool = False, final: bool = False
    ) -> Cell:
        """Return the cell at a place, fitted from a neighbour's solution.

        `improve` carries on the rows for which the quadratic model is in doubt; `final` fits to the end.
        """
        width, scale = self.at(place)
        problem = self.problem(width, scale)
        start = self.start(near, problem)
        result = fit_em(problem, start, self.options if final else self._ranking)
        # single rows' refits hardly move a mean, and with it a weight
        loo = leave_one_out(
            problem, result.weight, result.bias, self.own, improve=improve, refits=0
        )
        return Cell(place, width, scale, self.log_prior(place), result, loo)

    @property
    def _ranking(self) -> EMOptions:
        """Options as loose as a fit needs that only ranks a cell."""
        return replace(self.options, tol=max(self.options.tol, self.looseness))

    def start(self, near: Cell | None, problem: Problem) -> Start | None:
        """Return a neighbour's solution: weights in proportion to what the wider bases add up to."""
        prior: Any = problem.hyperprior
        if near is None or prior.holds_zeros:  # else what is zero would stay so
            return None
        ratio = 1.0
        if np.any(near.width != problem.width):
            before = float(np.abs(self.problem(near.width, near.scale).Phi).sum())
            ratio = before / max(float(np.abs(problem.Phi).sum()), np.finfo(float).tiny)
        return Start(near.result.weight * np.clip(ratio, 1e-3, 1e3), near.result.bias)


@dataclass(frozen=True)
class OneVsRest(Task):
    """The same for several classes by a machine for each class, one against the rest.

    Many classes or rows make a fit of all scores together too costly to be made for every cell: this ranks
    them, more roughly than where fits are kept, since those that count are fitted anew. Its `problem`
    has the numbers of the classes as labels and the signs of each class's own weights.
    """

    looseness: ClassVar[float] = 0.2
    grown_from: ClassVar[float] = 2.0 * GROWN_FROM

    def fitted(
        self, place: Place, near: Cell | None, *, improve: bool = False, final: bool = False
    ) -> Cell:
        """Return the cell at a place; its result has the weights of all the machines."""
        width, scale = self.at(place)
        whole = self.problem(width, scale)
        start = self.start(near, whole)
        fits, yes = [], []
        for c in range(whole.n_scores):
            problem = against_rest(whole, c)
            one = None if start is None else Start(start.weight[:, c], float(start.bias[c]))
            fit = fit_em(problem, one, self._ranking)
            loo = leave_one_out(problem, fit.weight, fit.bias, self.own, improve=False)
            fits.append(fit)
            yes.append(problem.likelihood.log_density(loo.latent, np.ones(len(problem.label))))
        result = replace(
            fits[0],
            weight=np.column_stack([each.weight for each in fits]),
            bias=np.array([each.bias for each in fits]),
        )
        return Cell(place, width, scale, self.log_prior(place), result, _own_class(whole, yes))


@dataclass(frozen=True)
class CrossValidated(Task):
    """The same by refits: each fold without its rows and the bases that stand on them.

    Attributes
    ----------
    folds : tuple of (ndarray, ndarray)
        Rows to train on, and rows held out.
    """

    folds: tuple[tuple[NDArray[np.intp], NDArray[np.intp]], ...] = ()

    def fitted(
        self, place: Place, near: Cell | None, *, improve: bool = False, final: bool = False
    ) -> Cell:
        """Return the cell at a place, with held-out densities by refits."""
        width, scale = self.at(place)
        whole = self.problem(width, scale)
        result = fit_em(whole, self.start(near, whole), self._ranking)
        latent, density = np.empty_like(result.latent), np.empty(len(result.latent))
        label = np.asarray(whole.label)
        for train, test in self.folds:
            columns = np.flatnonzero((self.own < 0) | np.isin(self.own, train))
            sign = None if whole.sign is None else whole.sign[columns]
            Phi = whole.Phi[np.ix_(train, columns)]
            fit = fit_em(
                replace(whole, Phi=Phi, label=label[train], sign=sign), None, self._ranking
            )
            latent[test] = whole.Phi[np.ix_(test, columns)] @ fit.weight + fit.bias
            density[test] = whole.likelihood.log_density(latent[test], label[test])
        nothing = np.zeros(len(density), dtype=bool)
        held_out = LeaveOneOut(latent, density, nothing, nothing)
        return Cell(place, width, scale, self.log_prior(place), result, held_out)


def against_rest(problem: Problem, number: int) -> Problem:
    """Return one class against the rest, under the probit."""
    label = labels_against_rest(problem.label, number)
    sign = None if problem.sign is None else problem.sign[:, number]
    likelihood = Probit() if problem.row_weight is None else Weighted(Probit())
    return replace(problem, label=label, sign=sign, likelihood=likelihood)


def _own_class(problem: Problem, yes: list[Array]) -> LeaveOneOut:
    """Return the machines' held-out predictions, the probabilities of a row in proportion."""
    each = np.column_stack(yes)
    log_probability = each - logsumexp(each, axis=1, keepdims=True)
    density = log_probability[np.arange(len(each)), plain_target(problem.label).astype(int)]
    if problem.row_weight is not None:
        density = problem.row_weight * density
    nothing = np.zeros(len(each), dtype=bool)
    return LeaveOneOut(log_probability, density, nothing, nothing)


@dataclass(frozen=True)
class Cells:
    """Cells that were fitted, and how much each counts.

    Attributes
    ----------
    cells : tuple of Cell
    weights : ndarray, shape (n_cells,)
        Sum to one, see `averaging_weights`.
    """

    cells: tuple[Cell, ...]
    weights: Array

    @property
    def best(self) -> int:
        """Position of the cell that counts most."""
        return int(self.weights.argmax())

    def kept(self, most: int | None = None) -> "Cells":
        """Return the cells that count, `most` of them at most, the heaviest first, weights in proportion."""
        order = np.argsort(-self.weights, kind="stable")[:most]
        order = order[self.weights[order] > min(LIGHT, 0.5 * float(self.weights.max()))]
        weights = self.weights[order]
        return Cells(tuple(self.cells[i] for i in order), weights / weights.sum())


def grown_cells(task: Task, follow: Callable[[int], None] | None = None) -> Cells:
    """Return all cells that carry weight, found by growing the grid from its middle.

    Neighbours are fitted as long as a cell at the frontier carries more than a twentieth (a tenth where it is
    found class by class); cells that do have their rows in doubt improved, which may grow the grid again.

    Parameters
    ----------
    task : Task
    follow : callable, optional
        Called with the number of cells after each.
    """
    cells: dict[Place, Cell] = {(0, 0): task.fitted((0, 0), None)}
    done: set[Place] = set()  # cells whose neighbours are fitted
    while True:
        weights = weights_of(list(cells.values()))
        heavy = [
            each for each, w in zip(cells.values(), weights, strict=True) if w > task.grown_from
        ]
        doubtful = [
            each for each in heavy if each.loo.unsettled.any() and not each.loo.improved.any()
        ]
        frontier = [each for each in heavy if each.place not in done]
        if frontier:
            for cell in frontier:
                done.add(cell.place)
                for place in task.neighbours(cell.place):
                    if place not in cells:
                        cells[place] = task.fitted(place, cell)
                        if follow is not None:
                            follow(len(cells))
        elif doubtful:
            for cell in doubtful:
                cells[cell.place] = task.fitted(cell.place, cell, improve=True)
        else:
            return Cells(tuple(cells.values()), weights)


def refitted_cells(
    task: Task,
    cells: Cells,
    *,
    again: bool,
    most: int,
    weigh: bool,
    held_out: bool = False,
    columns: NDArray[np.intp] | None = None,
) -> Cells:
    """Return the cells that carry weight, fitted to the end, the heaviest first.

    Parameters
    ----------
    task : Task
    cells : Cells
    again : bool
        Whether they were found on other rows, or by other machines: then they are fitted anew.
    most : int
        How many are kept at most.
    weigh : bool
        Whether cells that are fitted anew are weighed by their own leave-one-out densities.
    held_out : bool
        Whether held-out predictions of the cells are needed also where they are not weighed by them.
    columns : ndarray of int, optional
        Where the bases of the cells stand among the task's: what is fitted anew starts from the cells.
        Default: from each other.
    """
    kept = cells.kept(most)
    out: list[Cell] = []
    for cell in kept.cells:
        near = out[-1] if out else None
        if columns is not None:
            near = _on_more_bases(cell, columns, len(task.own))
        if again and weigh:
            out.append(task.fitted(cell.place, near, final=True))
            continue
        problem = task.problem(cell.width, cell.scale)
        own = Start(cell.result.weight, cell.result.bias)
        start = task.start(near, problem) if again else own
        result, loo = fit_em(problem, start, task.options), cell.loo
        if again and held_out:  # those at hand are other rows', or other machines'
            loo = leave_one_out(problem, result.weight, result.bias, task.own, improve=False)
        out.append(replace(cell, result=result, loo=loo))
    return Cells(tuple(out), weights_of(out) if again and weigh else kept.weights).kept()


def _on_more_bases(cell: Cell, columns: NDArray[np.intp], n_basis: int) -> Cell:
    """Return a cell as one of more bases, the others' weights zero."""
    weight = np.zeros((n_basis, *cell.result.weight.shape[1:]))
    weight[columns] = cell.result.weight
    return replace(cell, result=replace(cell.result, weight=weight))


def weights_of(cells: list[Cell]) -> Array:
    """Return how much each cell counts."""
    density = np.stack([each.loo.log_density for each in cells])
    return averaging_weights(density, np.array([each.log_prior for each in cells]))
