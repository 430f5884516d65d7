"""Centres of basis functions, all rows, some rows, k-means centres or given points, and weights' signs."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.cluster.vq import vq
from scipy.spatial import KDTree

from pcvm_pymc.core.pieces import validation
from pcvm_pymc.core.pieces.kernels import squared_distances
from pcvm_pymc.core.pieces.names import check_same_rows
from pcvm_pymc.core.pieces.probit import Array

type Index = NDArray[np.intp]
type SignRule = Callable[..., Array]
type CentresLike = int | ArrayLike | tuple[ArrayLike, ArrayLike] | None

# k-means++ reads so many rows per basis at most: its cost is their number times that of the bases
_CANDIDATES = 20
MEANS = 30  # in all, chosen by what the posterior predicts: ten are too few
_RESTARTS, _MOST_ROUNDS = 4, 300  # of k-means, the best of which counts; rounds of one, a guard
_ROUNDING = 1e-9  # of a column's largest entry: what differs by no more is the same row


def label_signs(label: NDArray[Any], n_scores: int = 1) -> Array:
    """Return the signs of the PCVM's weights: the label, -1. or +1., of the row that is the centre."""
    return np.array(label, dtype=float)


def class_signs(label: NDArray[Any], n_scores: int) -> Array:
    """Return +1 for a row's own class and -1 for the others (Lyu et al. 2020 eq. 3).

    Parameters
    ----------
    label : ndarray of int, shape (n_basis,)
        Classes of the rows that are the centres.
    n_scores : int
        Number of classes.

    Returns
    -------
    ndarray, shape (n_basis, n_scores)
    """
    return np.where(np.asarray(label)[:, None] == np.arange(n_scores), 1.0, -1.0)


@dataclass(frozen=True)
class Centres:
    """Centres of basis functions.

    Attributes
    ----------
    points : ndarray, shape (n_basis, n_features)
    sign : ndarray, shape (n_basis,), or (n_basis, n_classes), or None
        Sign of each weight, -1. or +1.; of no meaning to models without a sign rule, some of which have none.
    rows : ndarray of int, shape (n_basis,)
        Training rows that the centres are; -1 where they are none.
    """

    points: Array
    sign: Any
    rows: Index

    def __len__(self) -> int:
        return len(self.points)

    def signs_of(self, columns: Index | slice) -> Any:
        """Return the signs of some of the bases; None where there are none."""
        return None if self.sign is None else self.sign[columns]

    @classmethod
    def among(cls, X: Array, points: Array, sign: Any) -> "Centres":
        """Return given centres, recognised where they are rows of `X`."""
        return cls(points, sign, rows_under(points, X))

    def columns_of(self, rows: Index) -> Index:
        """Return which bases remain where only some rows are known, shape (n_remaining,).

        Where a centre is a row that is left out, its basis is left out too; other centres stay.
        """
        return np.flatnonzero((self.rows < 0) | np.isin(self.rows, rows))


def _rounding(X: Array) -> Array:
    """Return by how much equal entries of a column may differ, shape (n_features,)."""
    largest = np.abs(X).max(axis=0)
    return np.asarray(_ROUNDING * np.where(largest > 0, largest, 1.0))


def unique_rows(X: Array) -> tuple[Index, Index]:
    """Return the first of each set of equal rows, ascending, and which of these each row equals.

    Rows are equal where their entries differ by no more than a billionth of the column's largest. Most tables
    have none: so rows are compared by a hash first.
    """
    unit = _rounding(X)
    factors, key = np.random.default_rng(0).normal(size=(X.shape[1],)), np.zeros(len(X))
    for j in range(X.shape[1]):  # column by column: the same sum in every row
        key += factors[j] * np.rint(X[:, j] / unit[j])
    _, first, copies = np.unique(key, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[copies] != np.arange(len(X)))
    if (np.rint(X[again] / unit) != np.rint(X[first[copies[again]]] / unit)).any():  # two, one hash
        every = np.rint(X / unit)
        _, first, copies = np.unique(every, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[copies.ravel()]


# nearly equal rows: rows that are asked for, most copies of each, distance of equal ones in standard
# deviations, and ratio of distances that is a gap
_ASKED, _COPIES, _SAME, _GAP = 200, 10, 1e-6, 0.2
_ROWS = 4096  # whose distances are in memory at a time
#: share of the repeated rows that may have the features of a row of another label
_MOST_CONFLICTS = 0.1


def copied_rows(X: Array, label: NDArray[Any]) -> tuple[Index, Index]:
    """Return the first of each set of copies, and which of these each row is a copy of.

    Copies are equal in features and label. Where many rows with equal features have different labels, the
    features only take few values, and equal rows are observations of their own: none is a copy.
    """
    first, same = unique_rows(X)
    every = np.arange(len(X))
    if len(first) == len(X):
        return every, every
    _, kind = np.unique(label, return_inverse=True)
    differs = np.bincount(same, kind != kind[first[same]]) > 0
    repeated = np.bincount(same)[same] > 1
    if differs[same].sum() > _MOST_CONFLICTS * repeated.sum():
        return every, every
    return unique_rows(np.column_stack([X, label]))


def has_clusters_of_copies(X: Array) -> bool:
    """Whether most rows have close neighbours with a wide gap behind them, as repeated measurements do.

    For some k the median ratio of the distances to the k-th and to the next neighbour is below .2. In 45
    tables without copies it was above .4. Equal rows do not count.
    """
    spread = X[:: max(1, len(X) // 5000)].std(axis=0)
    varies = spread > 0
    some = np.linspace(0, len(X) - 1, min(len(X), _ASKED)).astype(int)
    asked, nearest = X[some][:, varies] / spread[varies], np.full((len(some), _COPIES + 1), np.inf)
    for start in range(0, len(X), _ROWS):  # rows may be more than a copy of them has room for
        Z = X[start : start + _ROWS, varies] / spread[varies]
        distance = np.sqrt(np.maximum(squared_distances(asked, Z), 0.0))
        distance[distance <= _SAME] = np.inf
        nearest = np.partition(np.hstack([nearest, distance]), _COPIES)[:, : _COPIES + 1]
    nearest.sort(axis=1)
    with np.errstate(invalid="ignore"):
        ratio = nearest[:, :-1] / nearest[:, 1:]
    ratio = np.where(np.isfinite(nearest[:, 1:]), ratio, 1.0)
    return bool((np.median(ratio, axis=0) < _GAP).any())


def rows_under(points: Array, X: Array) -> Index:
    """Return the first row of `X` that equals each centre, -1 for none, shape (n_points,).

    As for `unique_rows`, points that differ by rounding are equal, as after a change of units and back. Where
    the centres are all rows in their order, each is its own, also where rows are equal.
    """
    unit = _rounding(X)
    if points.shape == X.shape and (np.abs(points - X) <= unit).all():
        return np.arange(len(X))
    first, _ = unique_rows(X)
    _, nearest = KDTree(X[first] / unit).query(points / unit, p=np.inf, distance_upper_bound=1.0)
    return np.append(first, -1)[nearest]


def as_centres(basis: CentresLike, X: Array, label: NDArray[Any] | None) -> Centres:
    """Return the centres of an argument ``basis=``.

    Parameters
    ----------
    basis : None, int, array_like or (array_like, array_like)
        All rows of `X`; so many of them, by `choose_rows`; centres, shape (n_basis, n_features), for
        models without a sign rule; or centres and the signs of their weights.
    X : ndarray, shape (n_obs, n_features)
    label : ndarray, shape (n_obs,), or None
        Labels, -1. or +1.; None where there is no sign rule.

    Raises
    ------
    ValueError
        If the number or the centres cannot be used, or signs are missing.
    """
    free = np.ones(len(X)) if label is None else label
    if basis is None:
        return Centres(X, free, np.arange(len(X)))
    if isinstance(basis, Integral):
        rows = choose_rows(X, label, int(basis), random_state=0, name="basis")
        return Centres(X[rows], free[rows], rows)
    if isinstance(basis, tuple) and len(basis) == 2:
        points = validation.as_features(basis[0], "basis", X.shape[1])
        return Centres.among(X, points, validation.as_signs(basis[1], len(points)))
    if label is not None:
        fault = f"basis={validation.shown(basis)}; needed None, a number of rows"
        raise ValueError(f"{fault}, or (centres, signs) as of choose_basis")
    points = validation.as_features(basis, "basis", X.shape[1])
    return Centres.among(X, points, np.ones(len(points)))


def choose_basis(
    X: ArrayLike,
    y: ArrayLike,
    n_basis: int,
    *,
    method: str = "kmeans++",
    random_state: int | np.random.Generator | None = None,
) -> tuple[Array, Array]:
    """Choose rows, or their means, as centres of basis functions within each class, and the weights' signs.

    Parameters
    ----------
    X : array_like, shape (n_obs, n_features)
    y : array_like, shape (n_obs,)
        Labels, two classes. The greater one has sign +1.
    n_basis : int
    method : {"kmeans++", "kmeans"}
        ``"kmeans++"`` draws rows with probability proportional to the squared distance to those
        already chosen;
        ``"kmeans"`` takes the means that k-means finds, which are no rows: none brings its own label along.
    random_state : int or numpy.random.Generator, optional

    Returns
    -------
    centres : ndarray, shape (n_basis, n_features)
    signs : ndarray, shape (n_basis,)
        To be given as ``basis=(centres, signs)`` to an estimator, or ``basis=centres, signs=signs`` to a
        model builder.

    Raises
    ------
    ValueError
        For input that cannot be used, more bases than rows, or fewer than classes.

    References
    ----------
    D. Arthur and S. Vassilvitskii (2007), "k-means++: the advantages of careful seeding", SODA;
    S. Lloyd (1982), "Least squares quantization in PCM", IEEE Transactions on
    Information Theory 28 (k-means).

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> centres, signs = choose_basis(X, X[:, 0] > 0, 4, random_state=0)
    >>> centres.shape, sorted(signs.tolist())
    ((4, 2), [-1.0, -1.0, 1.0, 1.0])
    """
    check_same_rows(X, y=y)
    X = validation.as_features(X)
    label, _ = validation.as_labels(y, len(X))
    validation.check_seed("random_state", random_state)
    validation.check_choice("method", method, ("kmeans++", "kmeans"))
    if method == "kmeans":
        means, signs = choose_means(X, label, n_basis, random_state=random_state, name="n_basis")
        return means, np.asarray(signs)
    rows = choose_rows(X, label, n_basis, random_state=random_state)
    return X[rows], label[rows]


def choose_means(
    X: Array,
    label: NDArray[Any] | None,
    n_basis: int | None = None,
    *,
    random_state: int | np.random.Generator | None = None,
    name: str = "n_basis",
) -> tuple[Array, NDArray[Any] | None]:
    """Return k-means centres within each class, and the class of each; see `choose_basis`.

    Default: 30 in all, or 10 of each class where that is more, or all rows where they are fewer. A class of
    no more distinct rows than means has its rows as centres.
    """
    if n_basis is None:
        n_classes = 1 if label is None else len(np.unique(label))
        n_basis = min(max(MEANS, 10 * n_classes), len(X))
    rng, shares = np.random.default_rng(random_state), _shares(label, len(X), n_basis, name)
    means = np.concatenate([_means(X[rows], size, rng) for rows, size in shares])
    if label is None:
        return means, None
    return means, np.concatenate([np.repeat(label[rows[0]], size) for rows, size in shares])


def choose_rows(
    X: Array,
    label: NDArray[Any] | None,
    n_basis: int,
    *,
    random_state: int | np.random.Generator | None = None,
    name: str = "n_basis",
) -> Index:
    """Return rows as centres, shape (n_basis,), ascending; see `choose_basis`.

    Each class has its share of them, at least one; `label` None is one class. Errors call the number `name`.
    """
    rng, shares = np.random.default_rng(random_state), _shares(label, len(X), n_basis, name)
    chosen = [_spread(X, rows, size, rng) if size < len(rows) else rows for rows, size in shares]
    return np.sort(np.concatenate(chosen))


def choose_share(label: NDArray[Any], most: int, rng: np.random.Generator) -> Index:
    """Return rows drawn at random, `most` of them at most, each class with its share, ascending."""
    if len(label) <= most:
        return np.arange(len(label))
    shares = _shares(label, len(label), most)
    return np.sort(np.concatenate([rng.choice(rows, n, replace=False) for rows, n in shares]))


def _shares(
    label: NDArray[Any] | None, n_obs: int, n_basis: Any, name: str = ""
) -> list[tuple[Index, int]]:
    """Return the rows of each class, and its share of a number by their sizes: at least one, at most all.

    A number of an argument `name` is checked.
    """
    groups = [np.arange(n_obs)]
    if label is not None:
        groups = [np.flatnonzero(label == kind) for kind in np.unique(label)]
    sizes = np.array([len(rows) for rows in groups])
    if name and not (
        validation.is_real(n_basis, Integral) and len(sizes) <= n_basis <= sizes.sum()
    ):
        needed = f"from {len(sizes)}, the classes, to {sizes.sum()}, the rows"
        raise ValueError(f"{name}={validation.shown(n_basis)}; needed a whole number {needed}")
    shares = np.maximum(1, np.floor(n_basis * sizes / sizes.sum()).astype(int))
    while shares.sum() < n_basis:  # the largest remainder first
        lacking = np.where(shares < sizes, n_basis * sizes / sizes.sum() - shares, -np.inf)
        shares[lacking.argmax()] += 1
    while shares.sum() > n_basis:
        shares[shares.argmax()] -= 1
    return list(zip(groups, shares.tolist(), strict=True))


def _spread(X: Array, rows: Index, size: int, rng: np.random.Generator) -> Index:
    """Return some of the rows by k-means++ seeding, all different; of many rows few are read."""
    seen = rows
    if len(rows) > _CANDIDATES * size:
        seen = rows[np.sort(rng.choice(len(rows), _CANDIDATES * size, replace=False))]
    distinct = seen[unique_rows(X[seen])[0]]
    chosen = distinct
    if len(distinct) > size:
        middle, scale = _frame(X[distinct])
        chosen = distinct[np.unique(_seeds((X[distinct] - middle) / scale, size, _legacy(rng)))]
    if len(chosen) < size:  # others at random, where few are distinct
        others = np.setdiff1d(rows, chosen)
        chosen = np.concatenate([chosen, rng.choice(others, size - len(chosen), replace=False)])
    return chosen


def _means(X: Array, size: int, rng: np.random.Generator) -> Array:
    """Return the means of k-means, shape (size, n_features); rows, where so few are distinct."""
    if len(unique_rows(X)[0]) <= size:
        return X[_spread(X, np.arange(len(X)), size, rng)] if size < len(X) else X
    middle, scale = _frame(X)
    Z, state = (X - middle) / scale, _legacy(rng)
    best, least = Z[:size], np.inf
    for _ in range(_RESTARTS):
        means = _lloyd(Z, Z[_seeds(Z, size, state)])
        inertia = float(np.square(vq(Z, means)[1]).sum())
        if inertia < (1.0 - 1e-9) * least:  # the same means in another order are not better
            best, least = means, inertia
    return middle + scale * best


def _legacy(rng: np.random.Generator) -> np.random.RandomState:
    """Return a generator with scikit-learn's stream: its k-means chooses the same rows."""
    return np.random.RandomState(int(rng.integers(2**31)))


def _seeds(X: Array, size: int, state: np.random.RandomState) -> Index:
    """Return rows by greedy k-means++ (Arthur & Vassilvitskii 2007).

    Of some rows, drawn with probability proportional to their squared distance to those chosen, the one that
    leaves the least sum of distances.
    """
    n_drawn = 2 + int(np.log(size))
    chosen = [state.choice(len(X), p=np.full(len(X), 1.0 / len(X)))]
    nearest = squared_distances(X[chosen], X)[0]
    while len(chosen) < size:
        level = state.uniform(size=n_drawn) * nearest.sum()
        drawn = np.minimum(np.searchsorted(np.cumsum(nearest), level), len(X) - 1)
        left = np.minimum(nearest, squared_distances(X[drawn], X))
        best = left.sum(axis=1).argmin()
        chosen.append(drawn[best])
        nearest = left[best]
    return np.array(chosen)


def _lloyd(X: Array, means: Array) -> Array:
    """Return k-means centres from first ones: until no row changes its mean, or the means hardly move."""
    cluster, tolerance = np.full(len(X), -1), 1e-4 * X.var(axis=0).mean()
    for _ in range(_MOST_ROUNDS):
        last, cluster = cluster, vq(X, means)[0]
        if (cluster == last).all():
            break
        count = np.bincount(cluster, minlength=len(means))[:, None]
        sums = np.column_stack([np.bincount(cluster, x, len(means)) for x in X.T])
        moved = np.where(count > 0, sums / np.maximum(count, 1), means)
        shift, means = np.square(moved - means).sum(), moved
        if shift <= tolerance:
            break
    return means


def _frame(X: Array) -> tuple[Array, float]:
    """Return by what to centre and scale rows, so that squares neither over- nor underflow."""
    return X.mean(axis=0), float(np.ptp(X, axis=0).max())
