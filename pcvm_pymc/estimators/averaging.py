"""Classifiers whose width and scale are chosen by leaving one out, and averaged over."""

from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from pcvm_pymc.core.em import EMResult, fit_em
from pcvm_pymc.core.em.rows import Rows
from pcvm_pymc.core.family import System
from pcvm_pymc.core.pieces.centres import Centres, choose_share
from pcvm_pymc.core.pieces.kernels import as_kernel, median_distance, rbf, squared_distances
from pcvm_pymc.core.pieces.likelihood import majority_label
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_seed, check_real, check_whole, present_labels
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.estimators.averages import (
    AveragePredictions,
    Component,
    SharedRows,
    averaged_probability,
)
from pcvm_pymc.estimators.cells import Cells, CrossValidated, Task, grown_cells, refitted_cells
from pcvm_pymc.estimators.em_classifier import Mode, Training
from pcvm_pymc.estimators.parameters import Conditional, has_width, is_rbf, named_hyperprior
from pcvm_pymc.estimators.projection import project_reference
from pcvm_pymc.estimators.reference import Reference

__all__ = ["CV_AND_VECTORS", "AveragingClassifier"]

_CELL_ROWS = 400  # by which cells are found where rows are more than twice as many


def _cross_validates(model: "AveragingClassifier") -> bool:
    by_width = _is_named(model.width, "auto") and not model._by_cells
    by_projection = model._projects and not model._averages and model.n_vectors in (None, "auto")
    several_starts = getattr(model, "n_init", 1) != 1
    return by_width or by_projection or several_starts or _is_named(model.width, "cv")


#: for the tables of arguments that have an effect in some combinations only
CV_AND_VECTORS = (
    Conditional(
        "n_vectors",
        None,
        ("estimation",),
        lambda model: model.estimation not in ("em", "bottom-up"),
        "estimation='auto', 'average' or 'projection'",
    ),
    Conditional(
        "cv",
        5,
        ("width", "estimation"),
        _cross_validates,
        "something to choose by cross-validation: width='cv' (or 'auto' under an improper hyperprior or from "
        "the bottom up), several starts, or the number of vectors of a mode's projection",
    ),
)


class AveragingClassifier(AveragePredictions):
    """Base of the classifiers whose default is an average of modes over width and scale."""

    estimation: str
    scale: Any
    hyperprior: Any
    n_vectors: Any
    _most_cells: ClassVar[int] = 12  # of an average
    #: arguments that an average needs plain, and the same in words
    _plain: ClassVar[tuple[str, ...]] = ()
    _plain_words: ClassVar[str] = ""

    # --- what is chosen, and how ---------------------------------------------------------------

    @property
    def _system_row(self) -> System:
        """The row of the family table that EM fits."""
        raise NotImplementedError

    @property
    def _prior(self) -> Any:
        """The prior at the scale that is chosen, or given."""
        return self._prior_at(float(vars(self).get("scale_", self._given_scale)))

    @property
    def _given_scale(self) -> float:
        """The scale that is given, a hyperprior's own, NaN for one without; 1 where it is to be chosen."""
        if self._has_scale:
            return float(self.scale) if isinstance(self.scale, Real) else 1.0
        prior = self._prior_at(1.0)
        return float(np.sqrt(prior.d / prior.c)) if getattr(prior, "d", 0.0) > 0 else np.nan

    def _prior_at(self, scale: float) -> Any:
        prior = named_hyperprior(self.hyperprior, "plug_in", self._system_row.priors)
        if self._has_scale and scale != 1.0:
            return replace(prior, d=prior.c * scale**2)
        return prior

    @property
    def _has_scale(self) -> bool:
        """Whether the scale of the weights' prior is this estimator's to choose."""
        return isinstance(self.hyperprior, str) and self.hyperprior == "default"

    @property
    def _moves(self) -> tuple[bool, bool]:
        """Whether width, and scale, are chosen by leaving one out."""
        width = has_width(self.kernel) and _is_named(self.width, "auto")
        free = width or not has_width(self.kernel) or self.estimation == "average"
        scale = _is_named(self.scale, "auto") or (self.scale is None and free)
        return width, scale and self._has_scale

    @property
    def _by_cells(self) -> bool:
        """Whether something is chosen by leaving one out: it needs a prior that holds no zeros."""
        return self._solver == "em" and any(self._moves) and not self._prior_at(1.0).holds_zeros

    @property
    def _averages(self) -> bool:
        """Whether the fit is an average."""
        if self.estimation == "auto":
            return self._by_cells and self._is_plain
        return self.estimation == "average"

    @property
    def _is_plain(self) -> bool:
        """Whether no argument asks for something that an average does not have."""
        return True

    @property
    def _projects(self) -> bool:
        """Whether the fit is projected onto few vectors."""
        if self._solver != "em" or self.estimation == "em":
            return False
        return self.estimation == "projection" or self.n_vectors is not None

    def _check_weighted(self) -> None:
        if self._projects:
            raise ValueError(
                f"sample_weight or class_weight was given with estimation={self.estimation!r}, n_vectors="
                f"{self.n_vectors!r}: a projection's rows count once each; needed estimation='auto', 'em' or "
                "'average' and n_vectors=None, or estimation='bottom-up' for few vectors"
            )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_whole("n_vectors", self.n_vectors, 1, also=("auto", None))
        scale = self.scale
        check_real("scale", scale, also=("auto", None))
        if scale is not None and not self._has_scale:
            raise ValueError(
                f"scale={scale!r} was given with hyperprior={self.hyperprior!r}, which has its own; needed "
                "hyperprior='default', or leave it at None"
            )
        if self.estimation == "average" and not (self._by_cells and self._is_plain):
            beside = "".join(f", {name}={getattr(self, name)!r}" for name in self._plain)
            raise ValueError(
                f"estimation='average' with hyperprior={self.hyperprior!r}, width={self.width!r}, "
                f"scale={scale!r}{beside}: there is nothing to average over; needed a proper hyperprior and "
                f"width='auto' or scale='auto'{self._plain_words}"
            )

    # --- fits ----------------------------------------------------------------------------------

    def _width(self, X: Array, y: NDArray[Any], rng: np.random.Generator) -> Any:
        """Return the width; note the scale, and the cells where they are found by leaving one out."""
        width_moves, scale_moves = self._moves
        if not self._by_cells:
            if self._solver == "em":
                self.scale_ = self._given_scale
            return super()._width(X, y, rng)
        middle: Any = median_distance(X) if width_moves else super()._width(X, y, rng)
        some = self._few(y, rng)
        weight = None if self._weight is None else self._weight[some]
        centres = self._centres_at(self._basis_of(len(some)), X[some], y[some])
        data = Training(X[some], y[some], centres, weight)
        task = self._ranking_task(data, middle, (width_moves, scale_moves))
        found = grown_cells(task)
        self._cells_cover_ = len(some) == len(X) and not self._in_chunks and type(task) is Task
        self._cell_rows_ = np.where(data.centres.rows < 0, -1, some[data.centres.rows])
        self.selection_ = found
        return self._note_best(found)

    def _basis_of(self, n_obs: int) -> Any:
        """Return the argument `basis` where there are but so many rows."""
        return min(self.basis, n_obs) if isinstance(self.basis, Integral) else self.basis

    @property
    def _looser(self) -> dict[str, Any]:
        """Arguments of a fit that only ranks a width: one mode."""
        one = {"estimation": "em", "n_vectors": None} if self._solver == "em" else {}
        return {**super()._looser, **one}

    def _few(self, y: NDArray[Any], rng: np.random.Generator) -> NDArray[np.intp]:
        """Return the rows by which cells are found: all, or some where they are many."""
        if len(y) <= 2 * _CELL_ROWS:
            return np.arange(len(y))
        return choose_share(y, _CELL_ROWS, rng)

    def _task(self, data: Training, middle: Any, moves: tuple[bool, bool]) -> Task:
        X, points = data.X, data.centres.points
        # the same at all widths; of many features they would be most of the work
        squared = squared_distances(X, points) if moves[0] and is_rbf(self.kernel) else None

        def problem(width: Any, at: float) -> Problem:
            Phi = (
                as_kernel(self.kernel, width)(X, points) if squared is None else rbf(squared, width)
            )
            built = self._problem(Phi, data.label, data.centres, width).weighted(data.weight)
            return replace(built, hyperprior=self._prior_at(at))

        return Task(problem, data.centres.rows, middle, self._given_scale, moves, self._options)

    def _ranking_task(self, data: Training, middle: Any, moves: tuple[bool, bool]) -> Task:
        """Return the task by which cells are found, where fits of the model itself cost too much."""
        return self._task(data, middle, moves)

    def _note_best(self, cells: Cells) -> Any:
        best = cells.cells[cells.best]
        self.scale_ = best.scale
        self.hyperprior_ = self._prior_at(best.scale)
        return best.width

    def _fit_whole(self, data: Training, width: Any, rng: np.random.Generator) -> list[EMResult]:
        if not self._averages:
            return super()._fit_whole(data, width, rng)
        width_moves, scale_moves = self._moves
        task = self._task(data, self.selection_.cells[0].width, (width_moves, scale_moves))
        kept = refitted_cells(
            task,
            self.selection_,
            again=not self._cells_cover_,
            most=self._most_refits(data),
            weigh=self._weighs(data),
            held_out=self._projects,
            columns=_columns_of(self._cell_rows_, data.centres.rows),
        )
        self._kept_ = kept
        self._note_best(kept)
        self.held_out_ = np.full((len(data.X), len(self.classes_)), np.nan)
        if self._cells_cover_ or self._weighs(data) or self._projects:
            latents = [each.loo.latent for each in kept.cells]
            self.held_out_ = averaged_probability(self._likelihood_, kept, latents)
        return self._kept_components(data.centres, kept, [each.result for each in kept.cells])

    def _fit_rows(self, rows: Rows, data: Training, width: Any) -> list[EMResult]:
        if not self._averages:
            return super()._fit_rows(rows, data, width)
        majority = majority_label(data.label, data.weight)
        kept, results = self.selection_.kept(self._most_refits(data)), []
        for cell in kept.cells:
            problem = self._chunked(rows, data.centres, cell.width, majority)
            results.append(
                fit_em(replace(problem, hyperprior=self._prior_at(cell.scale)), None, self._options)
            )
        return self._kept_components(data.centres, kept, results)

    def _most_refits(self, data: Training) -> int:
        """Return how many cells an average has at most."""
        return self._most_cells

    def _weighs(self, data: Training) -> bool:
        """Whether cells that were found otherwise are weighed anew by all rows."""
        return True

    def _kept_components(
        self, centres: Centres, kept: Cells, results: list[EMResult]
    ) -> list[EMResult]:
        """Keep the modes of an average; return the one that counts most, for what belongs to one."""
        every = np.unique(np.concatenate([each.support for each in results]))
        shared = SharedRows(centres.points[every])
        self.components_ = [
            Component(
                as_kernel(self.kernel, cell.width),
                cell.width,
                cell.scale,
                shared,
                np.searchsorted(every, result.support),
                result.weight[result.support],
                result.bias,
                cell.loo.log_loss,
                result.support,
            )
            for cell, result in zip(kept.cells, results, strict=True)
        ]
        self.component_weights_ = kept.weights
        return [results[kept.best]]

    def _store(self, centres: Centres, results: list[EMResult]) -> None:
        super()._store(centres, results)
        if self._averages:  # rows that are there already
            best = self.components_[int(self.component_weights_.argmax())]
            self.relevance_vectors_ = best.relevance_vectors

    # --- few vectors ---------------------------------------------------------------------------

    def _finish(self, data: Training, results: list[EMResult], rng: np.random.Generator) -> None:
        """Replace what is fitted by its projection onto few vectors, where that is asked for."""
        if not self._projects:
            return
        size = (
            "auto" if self.n_vectors in (None, "auto") else min(self.n_vectors, len(data.centres))
        )
        reference = self._reference(data, results[0])
        cv = self.cv if reference.held_out is None else None
        for name in ("components_", "component_weights_", "held_out_", "_training_"):
            self.__dict__.pop(name, None)
        self._take(
            project_reference(
                reference, size=size, cv=cv, em_options=self._options, random_state=rng
            )
        )

    def _reference(self, data: Training, result: EMResult) -> Reference:
        """Return the average, or the mode, as a reference of projections."""
        known = {
            "X": data.X,
            "label": data.label,
            "classes": self.classes_,
            "centres": data.centres,
            "kernel": self.kernel,
            "width": result.width,
            "hyperprior": self.hyperprior_,
            "likelihood": self._likelihood_,
            "make_classifier": type(self).from_projection,
        }
        if not self._averages:
            return Reference(probability=self._likelihood_.probability(result.latent), **known)
        cells, likelihood = self._kept_, self._likelihood_
        return Reference.of_average(
            averaged_probability(likelihood, cells, [each.result.latent for each in cells.cells]),
            self.held_out_,
            **known,
        )

    def cross_validated_cells(self, X: ArrayLike, y: ArrayLike, cv: int) -> Cells:
        """Return cells of width and scale, weighed by cross-validation in place of leaving one out.

        Parameters
        ----------
        X : array_like, shape (n_obs, n_features)
        y : array_like, shape (n_obs,)
        cv : int
            Folds.

        Returns
        -------
        Cells

        Raises
        ------
        ValueError
            Where nothing can be held out, or nothing is to be chosen.
        """
        self._begin()
        rng = np.random.default_rng(as_seed(self.random_state))
        X, label = self._arrays(X, y)
        self._likelihood_ = self._likelihood(len(self.classes_))
        self.cv = cv
        splitter = self._folds(label, rng)
        if splitter is None or not self._by_cells:
            raise ValueError(
                f"cv={cv!r} with {len(X)} rows: nothing can be held out or chosen; needed two rows or more "
                "of each class, and width='auto' or scale='auto'"
            )
        data, moves = Training(X, label, self._centres(X, label), self._weight), self._moves
        middle = median_distance(X) if moves[0] else super()._width(X, label, rng)
        task = self._task(data, middle, moves)
        folds = tuple(splitter.split(X, label))
        return grown_cells(CrossValidated(**vars(task), folds=folds))

    # --- the fit as problems -------------------------------------------------------------------

    def _fitted_problems(
        self, X: ArrayLike, y: ArrayLike
    ) -> list[tuple[float, Problem, Array, Any, Any]]:
        """Return share, problem, weights, biases and the bases' rows of each mode, given the training data.

        Each with the bases whose weight is not zero, where the others are of no account.
        """
        check_is_fitted(self)
        if self._solver != "em" or hasattr(self, "projection_"):
            raise ValueError(
                f"the classifier is fitted {'by projection' if self._solver == 'em' else 'bottom-up'}; "
                "needed posterior modes by EM, those of estimation='em' or 'average' without n_vectors"
            )
        if self._weight is not None:
            raise ValueError(
                "the classifier was fitted with weights of its rows; its held-out predictions are those of "
                "held_out_, and a score of them is weighted by the caller"
            )
        X = self._inputs(X)
        if np.shape(y) != (len(X),):
            raise ValueError(
                f"y has shape {np.shape(y)}; needed ({len(X)},), a label for each row of X"
            )
        y = present_labels(y)
        known = np.isin(y.astype(object), self.classes_.astype(object))
        number = np.searchsorted(self.classes_, y) if known.all() else None
        if number is None:
            raise ValueError(
                f"y has labels that are none of {self.classes_.tolist()}, the classes that were fitted"
            )
        label = number if self._takes_several else np.where(number > 0, 1.0, -1.0)
        centres = self._centres(X, label)
        components = getattr(self, "components_", None) or [self._as_component()]
        shares = getattr(self, "component_weights_", np.ones(1))
        out = []
        for share, each in zip(shares, components, strict=True):
            if len(centres) <= max(each.basis, default=-1) or not np.array_equal(
                centres.points[each.basis], each.relevance_vectors
            ):
                raise ValueError(
                    "X does not hold the rows that the classifier's bases stand on; needed its training data"
                )
            weight = np.zeros((len(centres), *each.weight.shape[1:]))
            weight[each.basis] = each.weight
            Phi = each.kernel(X, centres.points)
            problem = replace(
                self._problem(Phi, label, centres, each.width),
                hyperprior=self._prior_at(each.scale),
            )
            if (weight * problem.weight_sign < 0).any():
                raise ValueError(
                    "y has other labels than the classifier was fitted to, on rows under its bases; needed "
                    "its training data"
                )
            out.append((float(share), problem, weight, each.bias, centres.rows))
        return out

    def _modes(self) -> list[Mode]:
        if not hasattr(self, "components_"):
            return super()._modes()
        return [
            Mode(
                share,
                partial(_basis_functions, each),
                each.weight,
                each.bias,
                self._prior_at(each.scale),
            )
            for share, each in zip(self.component_weights_, self.components_, strict=True)
        ]

    def _as_component(self) -> Component:
        return Component(
            self._kernel_,
            self.width_,
            self.scale_,
            SharedRows(self.relevance_vectors_),
            np.arange(len(self.relevance_vectors_)),
            self.weight_.T,
            self.bias_,
            np.nan,
            self._bases_,
        )


def _basis_functions(component: Component, X: Array) -> Array:
    return component.kernel(X, component.relevance_vectors)


def _is_named(value: Any, name: str) -> bool:
    return isinstance(value, str) and value == name


def _columns_of(rows: NDArray[np.intp], every: NDArray[np.intp]) -> NDArray[np.intp] | None:
    """Return where bases that stand on some rows are among others; None unless each is found."""
    if (rows < 0).any() or not np.isin(rows, every).all():
        return None
    order = np.argsort(every)
    return order[np.searchsorted(every, rows, sorter=order)]
