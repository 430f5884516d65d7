"""What all classifiers share: training rows, weights of rows, and predictions."""

from dataclasses import replace
from functools import partial, wraps
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from pcvm_pymc.core.em import EMOptions
from pcvm_pymc.core.pieces.centres import Centres, Index, as_centres, choose_rows
from pcvm_pymc.core.pieces.names import check_same_rows, column_names
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import check_room, chunk_rows
from pcvm_pymc.core.pieces.validation import (
    MOST_COUNTS,
    as_features,
    as_labels,
    as_weights,
    check_real,
    labels_of_rows,
    present_labels,
    shown,
)
from pcvm_pymc.estimators import base
from pcvm_pymc.estimators.formulation import Formulation
from pcvm_pymc.estimators.tables import is_dask, with_names
from pcvm_pymc.estimators.training import WIDTH_ROWS, TrainingData


def _lazy(method: Any) -> Any:
    """Return a prediction that gives a Dask array for a Dask array: block by block."""

    @wraps(method)
    def predicted(self: Any, X: Any) -> Any:
        check_is_fitted(self)
        if not is_dask(X):
            return method(self, self._inputs(X))
        from pcvm_pymc.estimators.cluster import as_dask, map_rows  # optional

        lazy = as_dask(X)
        like = method(self, self._named(X, np.zeros((1, lazy.shape[-1])), reset=False))
        of_block = partial(_of_block, getattr(self, method.__name__), column_names(X))
        return map_rows(of_block, lazy, like)

    return predicted


def _of_block(predict: Any, names: list[str] | None, block: Array) -> Any:
    """Return a prediction of a block of rows, whose columns have the names of the table."""
    return predict(with_names(block, names))


@base.estimator
class KernelClassifier(ClassifierMixin, base.KernelMachine):
    """Base of the classifiers.

    Within an estimator rows have labels -1. and +1. or, where it takes several classes, their numbers.
    """

    class_weight: Any = None

    _is_multiclass: ClassVar[bool] = True
    #: how many copies of a chunk of rows on Dask are in memory
    _copies: ClassVar[int] = 1
    #: the estimator for several classes, where this one takes two
    _multiclass_name: ClassVar[str] = ""

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit the classifier.

        Copies of a row, label included, are one row of that weight: left out or held out, no copy of it stays
        behind. Where many rows with equal features have different labels, as in tables of few values, equal
        rows count as observations of their own.

        Parameters
        ----------
        X : array_like, shape (n_obs, n_features)
        y : array_like, shape (n_obs,)
            Labels of any type: two classes, or more where the estimator takes them.
        sample_weight : array_like, shape (n_obs,), optional
            How often each row counts: two is the row twice, without a second basis function on it; rows of
            weight zero are left out. A choice by leaving rows out leaves a row out as often as it counts.
        groups : array_like, shape (n_obs,), optional
            Which rows belong together, as repeated measurements of one thing do: width, scale and number of
            vectors are then chosen by folds that hold out whole groups, not by leaving out one row.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For input or parameters that cannot be used.
        """
        estimation = self._begin(X)  # which of `_estimations`, and whether onto few vectors
        data = self._training(X, y, sample_weight, groups)
        with self._running(data):
            self._publish(estimation.fit(data))
        return self

    def _fit_part(self, part: TrainingData, reader: "KernelClassifier") -> Self:
        """Fit to rows that another estimator of several classes has read, with labels of their own."""
        estimation = self._begin()
        self.__dict__.update(reader._reading())
        self.classes_, label = np.unique(part.label, return_inverse=True)
        # rows that are equal stay as they are, since all parts have the same basis functions
        data = replace(part, label=label, given=None, copies=None)
        with self._running(data):
            self._publish(estimation.fit(data))
        return self

    # --- training rows -------------------------------------------------------------------------

    def _training(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> TrainingData:
        """Return the rows that count, checked, and set the classes."""
        if is_dask(X):
            if groups is not None or not isinstance(vars(self).get("cv"), Integral | None):
                name = "cv with folds of rows" if groups is None else "groups"
                raise ValueError(f"{name} was given with Dask arrays; needed rows in memory")
            return self._dask_training(X, y, sample_weight)
        check_same_rows(X, y=y, sample_weight=sample_weight, groups=groups)
        rows, known = self._read(X, y if y is None else present_labels(y))
        check_classification_targets(known)
        weight, held_out = None, self._groups_and_splits(rows, known, groups)
        if sample_weight is not None or self.class_weight is not None:
            weight = self._row_weights(known, sample_weight)
        data = TrainingData(rows, known, weight, **held_out).counting()
        self.classes_, number = np.unique(data.label, return_inverse=True)
        n_classes = len(self.classes_)
        if n_classes > 2 and not self._is_multiclass:
            only = f"Only binary classification is supported by {type(self).__name__}"
            remedy = f"needed two: for several use {self._multiclass_name}"
            raise ValueError(f"{only}. y has {n_classes} classes; {remedy}")
        if n_classes < 2:
            as_labels(data.label, len(data.X))  # raises
        label = number if self._is_multiclass else np.where(number == 1, 1.0, -1.0)
        return self._encoded(replace(data, label=label)).merged()

    def _row_weights(self, known: NDArray[Any], sample_weight: Any) -> Array:
        """Return how often each row counts; ``"balanced"`` is over those that count at all."""
        by_class = self.class_weight if isinstance(self.class_weight, dict) else {}
        for label, times in by_class.items():
            check_real(f"class_weight[{label!r}]", times, 0.0, MOST_COUNTS, closed=True)
        weight = as_weights(sample_weight, len(known))
        some = weight > 0
        weight[some] *= compute_sample_weight(self.class_weight, known[some])
        return as_weights(weight, len(known), "sample_weight, times class_weight,")

    def _dask_training(self, X: Any, y: Any, sample_weight: Any) -> TrainingData:
        """Return the rows of Dask arrays, and some of them in memory; set the classes."""
        from pcvm_pymc.estimators.cluster import as_dask, dask_rows, gathered  # optional

        if sample_weight is not None or self.class_weight is not None:
            fault = "sample_weight or class_weight was given with Dask arrays"
            raise ValueError(f"{fault}; needed arrays in memory (in chunks with a memory_limit)")
        if self.basis is None or isinstance(self.basis, str):
            refused = f"basis={self.basis!r} is a basis function on every row of Dask arrays"
            raise ValueError(f"{refused}; needed a number of rows to choose, or given centres")
        if self.categorical_features is not None and not isinstance(self.categorical_features, str):
            given = f"categorical_features={shown(self.categorical_features)}"
            needed = "needed numbers, or a table in memory"
            raise ValueError(f"{given} was given with Dask arrays; {needed}")
        lazy, n_basis = as_dask(X), int(self._n_bases(0))
        limit = np.inf if self.memory_limit is None else self.memory_limit
        chunk = chunk_rows(limit, n_basis, lazy.shape[-1], copies=self._copies)
        rows, self.classes_ = dask_rows(lazy, y, chunk, multiclass=self._is_multiclass)
        some, label = gathered(rows, max(WIDTH_ROWS, 20 * n_basis))
        self._named(X, some[:1])
        return TrainingData(some, label, stream=rows)

    def _known_labels(self, y: ArrayLike, n_obs: int) -> NDArray[Any]:
        """Return labels of the fitted classes, -1. and +1. or their numbers; raise for others."""
        given = labels_of_rows(y, n_obs)
        if not np.isin(given.astype(object), self.classes_.astype(object)).all():
            raise ValueError(f"y has labels that are none of the fitted {self.classes_.tolist()}")
        number = np.searchsorted(self.classes_, given)
        return number if self._is_multiclass else np.where(number > 0, 1.0, -1.0)

    # --- basis functions -----------------------------------------------------------------------

    def _centres(self, data: TrainingData, basis: Any, most: int | None = None) -> Centres:
        """Return the centres of basis functions, and the signs of their weights under the sign rule."""
        X, label = data.X, data.label
        if basis is None or isinstance(basis, Integral):
            n_basis = len(X) if basis is None else int(basis)
            n_basis = n_basis if most is None else min(most, n_basis, len(X))
            rows = choose_rows(X, label, n_basis, random_state=0, name="basis")
            return self._rows_as_centres(data, rows)
        if not self._is_multiclass:
            return as_centres(basis, X, label)
        if not isinstance(basis, tuple) or len(basis) != 2:
            raise ValueError(f"basis={shown(basis)}; needed None, a number, or (centres, labels)")
        points, given = as_features(basis[0], "basis", X.shape[1]), np.asarray(basis[1])
        if given.shape != (len(points),) or not np.isin(given, self.classes_).all():
            known = self.classes_.tolist()
            raise ValueError(f"the basis' labels are {given!r}; needed one of {known} for each")
        kind = np.searchsorted(self.classes_, given)
        return Centres(points, self._signs_of(kind), np.full(len(points), -1))

    def _rows_as_centres(self, data: TrainingData, rows: Index) -> Centres:
        """Return some of the rows as centres of the bases, with the signs of their weights."""
        return Centres(data.X[rows], self._signs_of(data.label[rows]), rows)

    def _signs_of(self, kind: NDArray[Any]) -> NDArray[Any] | None:
        """Return the signs of the weights of centres of some classes under the sign rule."""
        if not self._is_multiclass:
            return kind
        rule = self._system.signs
        return None if rule is None else rule(kind, len(self.classes_))

    def _streamed(self, formulation: Formulation, *, many: bool) -> Formulation:
        """Return a formulation with rows in chunks where the arguments ask for it.

        With `many` also many rows of one score; in single precision, which takes half the time, where no
        weight goes to zero by its prior.
        """
        data, limit, options = formulation.data, self.memory_limit, formulation.options
        single = isinstance(options, EMOptions) and options.kernel_dtype == "float32"
        if limit is None and data.stream is None:
            n_scores = formulation.likelihood.n_scores
            if not (many and n_scores == 1 and self._is_many(len(data.X))):
                check_room(len(data.X), len(formulation.centres))
                return formulation
            limit, single = base.MANY_BYTES, not formulation.prior(1.0).holds_zeros
        return formulation.in_chunks(limit, single=single)

    # --- predictions ---------------------------------------------------------------------------

    @_lazy
    def decision_function(self, X: Any) -> Array:
        """Return the latent function: positive where ``classes_[1]`` is likelier.

        For several classes that of each; of two classes with a score each the difference. An average of
        modes has no latent function: its log odds, and for several classes the logarithms of its
        probabilities.

        Parameters
        ----------
        X : array_like or Dask array, shape (n_new, n_features)
            With the columns of the training rows, in their order.

        Returns
        -------
        ndarray, shape (n_new,), or (n_new, n_classes) for several classes

        Raises
        ------
        NotFittedError
            Before a fit.
        ValueError
            If the rows cannot be used; a table's columns of other names, or in another order, are named.
        """
        latent = self._predictor_.latent(X)
        two = latent.ndim == 2 and len(self.classes_) == 2
        return latent[:, 1] - latent[:, 0] if two else latent

    @_lazy
    def predict_proba(self, X: Any) -> Array:
        """Return class probabilities, in the order of ``classes_``.

        Parameters
        ----------
        X : array_like or Dask array, shape (n_new, n_features)
            With the columns of the training rows, in their order.

        Returns
        -------
        ndarray, shape (n_new, n_classes)

        Raises
        ------
        NotFittedError
            Before a fit.
        ValueError
            If the rows cannot be used; a table's columns of other names, or in another order, are named.
        """
        return self._predictor_.probability(X)

    @_lazy
    def predict_log_proba(self, X: Any) -> Array:
        """Return logarithms of class probabilities, exact in the tails.

        Parameters
        ----------
        X : array_like or Dask array, shape (n_new, n_features)
            With the columns of the training rows, in their order.

        Returns
        -------
        ndarray, shape (n_new, n_classes)

        Raises
        ------
        NotFittedError
            Before a fit.
        ValueError
            If the rows cannot be used; a table's columns of other names, or in another order, are named.
        """
        return self._predictor_.log_probability(X)

    @_lazy
    def predict(self, X: Any) -> NDArray[Any]:
        """Return the likeliest class of each row.

        Parameters
        ----------
        X : array_like or Dask array, shape (n_new, n_features)
            With the columns of the training rows, in their order.

        Returns
        -------
        ndarray, shape (n_new,)

        Raises
        ------
        NotFittedError
            Before a fit.
        ValueError
            If the rows cannot be used; a table's columns of other names, or in another order, are named.
        """
        latent = self._predictor_.latent(X)
        likeliest = (latent > 0).astype(int) if latent.ndim == 1 else latent.argmax(axis=1)
        return self.classes_[likeliest]

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the share of rows whose likeliest class is their label.

        Parameters
        ----------
        X : array_like, shape (n_obs, n_features)
        y : array_like, shape (n_obs,)
            Labels, as `fit` takes them.
        sample_weight : array_like, shape (n_obs,), optional
            How often each row counts.

        Returns
        -------
        float

        Raises
        ------
        NotFittedError
            Before a fit.
        ValueError
            If rows or labels cannot be used.
        """
        check_same_rows(X, y=y, sample_weight=sample_weight)
        return float(super().score(X, present_labels(y), sample_weight))

    def predict_interval(self, X: ArrayLike, *, probability: float = 0.89) -> Array:
        """Return equal-tailed posterior intervals of the class probabilities.

        They are for averages of modes, `PCVMClassifier` and `MPCVMClassifier` with
        ``estimation="average"``: the mixture of the normal posteriors around the modes, of the weights that
        are not zero, given the precisions expected there. 89 % intervals
        covered about 90 % of true probabilities. With ``estimation="posterior"``, which RVMs and the sparse
        probit take too, they are quantiles of draws.
        One mode has none: a normal around it covered 51 to 86 %. An RVM has its own posterior, given the
        precisions of the highest evidence, which covered 62 to 64 %. `sample` draws from the whole
        posterior. Of several scores the ends are quantiles of 1000 draws, always the same.

        Parameters
        ----------
        X : array_like, shape (n_new, n_features)
            With the columns of the training rows, in their order.
        probability : float
            Of the interval, above 0 and below 1.

        Returns
        -------
        ndarray, shape (n_new, n_classes, 2)
            Lower and upper end for each class of ``classes_``.

        Raises
        ------
        NotFittedError
            Before a fit.
        ValueError
            If the rows or the probability cannot be used, or the fit has no such posterior: one mode, few
            vectors, rows in chunks or Dask arrays.

        References
        ----------
        M. E. Tipping (2001), "Sparse Bayesian learning and the relevance vector machine", JMLR 1, eqs. 25-27.

        Examples
        --------
        >>> import numpy as np
        >>> from pcvm_pymc import PCVMClassifier
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = PCVMClassifier().fit(X, X[:, 0] > 0)
        >>> low, high = model.predict_interval([[0.1, 0.0]])[0, 1]
        >>> bool(low < model.predict_proba([[0.1, 0.0]])[0, 1] < high)
        True
        """
        check_real("probability", probability, 0.0, 1.0)
        check_is_fitted(self)
        if is_dask(X):
            raise ValueError("X is a Dask array; predict_interval needs rows in memory")
        kept: TrainingData | None = vars(self).get("_training_")
        interval: Array = self._predictor_.interval(self._inputs(X), probability, kept)
        return interval

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: whether there may be several classes."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self._is_multiclass
        return tags
