"""The papers' generated data sets.

*Twonorm* and *ringnorm* are those of L. Breiman (1998), "Arcing classifiers", Annals of Statistics 26(3).
"""

import numpy as np
from sklearn import datasets as sklearn_datasets

from pcvm_pymc.experiments.datasets.registry import Floats, Rows, Seed


def _start(n: int, random_state: Seed) -> tuple[np.random.Generator, Floats]:
    """Return a generator and labels -1. / +1. with equal probability, at least one of each."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 2:
        raise ValueError(f"n={n!r}; needed a whole number of at least 2")
    rng = np.random.default_rng(_given_seed(random_state))
    label = rng.choice(np.array([-1.0, 1.0]), size=n)
    label[rng.permutation(n)[:2]] = [-1.0, 1.0]
    return rng, label


def _two_gaussians(
    n: int, random_state: Seed, means: tuple[Floats, Floats], factors: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Draw classes -1 and +1 from Gaussians with these means and covariance factors L (L L')."""
    rng, label = _start(n, random_state)
    noise = rng.normal(size=(n, len(means[0])))
    lower, upper = (mean + noise @ factor.T for mean, factor in zip(means, factors, strict=True))
    return np.where(label[:, None] > 0, upper, lower), label


def spiral(
    n: int, *, random_state: Seed, noise: float = 0.1, turns: float = 1.5
) -> tuple[Floats, Floats]:
    """Draw *Spiral* (Chen et al. 2009, Fig. 4a): two intertwined spirals in the plane.

    The paper gives no constants; these are ours: radius from 0.2 to 2, `turns` turns, Gaussian noise
    of standard deviation `noise`.

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of -1. and +1., shape (n,)
    """
    rng, label = _start(n, random_state)
    share = np.sqrt(rng.uniform(size=n))  # even along the curve
    angle = 2 * np.pi * turns * share + np.where(label > 0, np.pi, 0.0)
    radius = 0.2 + 1.8 * share
    X = radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    return X + noise * rng.normal(size=(n, 2)), label


OVERLAP_MEAN = np.array([0.8, 0.8])


def overlap(n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw *Overlap* (Chen et al. 2009, Fig. 4b): two Gaussians of equal covariance.

    The paper gives no constants; these are ours: means -(0.8, 0.8) and (0.8, 0.8), covariance I, so
    that the Bayes boundary is x1 + x2 = 0 with an error of 12.9 %.

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of -1. and +1., shape (n,)
    """
    eye = np.eye(2)
    return _two_gaussians(n, random_state, (-OVERLAP_MEAN, OVERLAP_MEAN), (eye, eye))


BUMPY_SCALES = np.array([2.0, 0.5])


def bumpy(n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw *Bumpy* (Chen et al. 2009, Fig. 4c): equal Gaussians, one turned by 90 degrees.

    The paper gives no constants; these are ours: means zero, standard deviations 2 and 0.5 along the
    axes, exchanged for class +1, so that the Bayes boundary is the quadratic abs(x1) = abs(x2).

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of -1. and +1., shape (n,)
    """
    zero = np.zeros(2)
    factors = (np.diag(BUMPY_SCALES), np.diag(BUMPY_SCALES[::-1]))
    return _two_gaussians(n, random_state, (zero, zero), factors)


def relevance(n: int, *, random_state: Seed, n_features: int = 2) -> tuple[Floats, Floats]:
    """Draw *Relevance* (Chen et al. 2009, Fig. 4d): only the first dimension separates the classes.

    The paper gives no constants; these are ours: x1 is Gaussian around -1.5 or +1.5 with standard
    deviation 0.7, every other feature is uniform on [-3, 3].

    Returns
    -------
    X : ndarray, shape (n, n_features)
    y : ndarray of -1. and +1., shape (n,)
    """
    rng, label = _start(n, random_state)
    X = rng.uniform(-3, 3, size=(n, n_features))
    X[:, 0] = 1.5 * label + 0.7 * rng.normal(size=n)
    return X, label


# standard deviations along, and correlation between, the two dimensions of each group
_OVERLAP_GROUPS = {
    0: (((2.0, -1.2), (0.7, 0.5), -0.7),),
    1: (
        ((-2.0, 0.6), (0.5, 0.5), 0.0),
        ((-0.2, -0.9), (0.5, 0.5), 0.0),
        ((1.2, 1.4), (0.5, 0.5), 0.0),
    ),
    2: (((-0.9, -0.1), (0.4, 0.7), 0.5), ((0.6, 0.3), (0.7, 0.4), 0.5)),
}


def overlap_classes(n: int, *, random_state: Seed) -> tuple[Floats, Rows]:
    """Draw *Overlap* (Lyu et al. 2020, Fig. 3): three classes in the plane that overlap heavily.

    The paper gives no constants; these are ours: class 0 is one skew Gaussian in the lower right
    corner, class 1 three round ones, class 2 two that lie between these. Classes are equally
    frequent, and so are the Gaussians of a class.

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of int, shape (n,)
        0, 1 or 2, all present.
    """
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 3:
        raise ValueError(f"n={n!r}; needed a whole number of at least 3")
    rng = np.random.default_rng(_given_seed(random_state))
    label = rng.integers(3, size=n)
    label[rng.permutation(n)[:3]] = [0, 1, 2]
    X = np.empty((n, 2))
    for i, c in enumerate(label):
        groups = _OVERLAP_GROUPS[int(c)]
        mean, (first, second), correlation = groups[rng.integers(len(groups))]
        cross = correlation * first * second
        X[i] = rng.multivariate_normal(mean, [[first**2, cross], [cross, second**2]])
    return X, label


OVERCLASS_SIZES = (28, 22, 18, 15, 12, 10, 8, 6, 5, 3)


def overclass(*, random_state: Seed) -> tuple[Floats, Rows]:
    """Draw *Overclass* (Lyu et al. 2020, Fig. 4): 127 points in ten classes of 28 to 3 points.

    The paper gives no constants but the sizes; these are ours: round Gaussians of standard deviation
    0.35 around the points (0, 0), ..., (4, 0), (0.5, 1.5), ..., (4.5, 1.5), the largest classes in the
    corners and the smallest between larger ones.

    Returns
    -------
    X : ndarray, shape (127, 2)
    y : ndarray of int, shape (127,)
        0, the largest class, to 9, the smallest.
    """
    rng = np.random.default_rng(_given_seed(random_state))
    places = [(0.0, 0.0), (4.5, 1.5), (4.0, 0.0), (0.5, 1.5), (2.0, 0.0),
              (2.5, 1.5), (1.0, 0.0), (3.5, 1.5), (3.0, 0.0), (1.5, 1.5)]  # fmt: skip
    label = np.repeat(np.arange(10), OVERCLASS_SIZES)
    X = np.array(places)[label] + 0.35 * rng.normal(size=(len(label), 2))
    order = rng.permutation(len(label))
    return X[order], label[order]


def _given_seed(random_state: Seed) -> Seed:
    if random_state is None:
        raise ValueError("random_state=None; needed an int or a numpy.random.Generator")
    return random_state


RIPLEY_CENTRES = {-1: ((-0.7, 0.3), (0.3, 0.3)), 1: ((-0.3, 0.7), (0.4, 0.7))}
RIPLEY_VARIANCE = 0.03


def ripley_mixture(n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw from Ripley's synthetic mixture, Bayes error 8.9 % (8.0 % on his own 1000 test rows).

    Each class is an equal mixture of two Gaussians with covariance 0.03 I, centres (-0.7, 0.3) and
    (0.3, 0.3) for class -1, (-0.3, 0.7) and (0.4, 0.7) for class +1. Ripley's own data have 250
    training and 1000 test rows (``load("ripley")``).

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of -1. and +1., shape (n,)

    References
    ----------
    B. D. Ripley (1996), Pattern Recognition and Neural Networks, Cambridge University Press.
    """
    rng, label = _start(n, random_state)
    which = rng.integers(2, size=n)
    centres = np.array([RIPLEY_CENTRES[-1], RIPLEY_CENTRES[1]])[(label > 0).astype(int), which]
    return centres + np.sqrt(RIPLEY_VARIANCE) * rng.normal(size=(n, 2)), label


def ring(n: int, *, random_state: Seed, n_classes: int = 4) -> tuple[Floats, Rows]:
    """Draw classes that stand in a ring, each a round Gaussian that overlaps its neighbours alike.

    Neighbouring centres are two standard deviations apart, however many classes there are.

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of int, shape (n,)
        From 0, all present.
    """
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < n_classes:
        raise ValueError(f"n={n!r}; needed a whole number of at least {n_classes}")
    rng = np.random.default_rng(_given_seed(random_state))
    label = rng.permutation(np.arange(n) % n_classes)
    angle = 2 * np.pi * label / n_classes
    radius = 1.0 / np.sin(np.pi / n_classes)
    X = radius * np.column_stack([np.cos(angle), np.sin(angle)])
    return X + rng.normal(size=(n, 2)), label


_NORM_MEAN = np.full(20, 2 / np.sqrt(20))


def twonorm(n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw Breiman's *twonorm*: N(a, I) against N(-a, I) in 20 dimensions, Bayes error 2.3 %.

    Every coordinate of a is ``2 / sqrt(20)``. Raetsch trains on 400 rows and tests on 7000.

    Returns
    -------
    X : ndarray, shape (n, 20)
    y : ndarray of -1. and +1., shape (n,)
    """
    return _two_gaussians(n, random_state, (-_NORM_MEAN, _NORM_MEAN), (np.eye(20), np.eye(20)))


def ringnorm(n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw Breiman's *ringnorm*: N(0, 4 I) (+1) against N(a, I) (-1), Bayes error 1.24 %.

    In 20 dimensions; every coordinate of a is ``2 / sqrt(20)``, as Raetsch's file has it (some
    programs use ``1 / sqrt(20)``). Raetsch trains on 400 rows and tests on 7000.

    Returns
    -------
    X : ndarray, shape (n, 20)
    y : ndarray of -1. and +1., shape (n,)
    """
    means = (_NORM_MEAN, np.zeros(20))
    return _two_gaussians(n, random_state, means, (np.eye(20), 2 * np.eye(20)))


def _waves() -> Floats:
    """Return Breiman's three triangular waves, shape (3, 21)."""
    i = np.arange(1, 22)
    return np.stack([np.maximum(6.0 - np.abs(i - centre), 0.0) for centre in (11, 15, 7)])


def waveform(n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw Breiman's *waveform* as two classes: his class 1 (+1) against the rest (-1).

    Class 1 mixes the waves h1 and h2, class 2 h1 and h3, class 3 h2 and h3, each with a uniform share,
    plus N(0, 1) noise; the three are equally likely. Raetsch trains on 400 rows and tests on
    4600; his +1 is h1 and h3, the same problem with the features reversed.

    Returns
    -------
    X : ndarray, shape (n, 21)
    y : ndarray of -1. and +1., shape (n,)

    References
    ----------
    L. Breiman et al. (1984), Classification and Regression Trees, section 2.6.2.
    """
    rng, label = _start(n, random_state)
    # a third of the rows is class 1: the labels of `_start` are drawn again, one of each kept
    third = rng.integers(3, size=n)
    first = np.flatnonzero(label > 0)[0]
    other = np.flatnonzero(label < 0)[0]
    third[first], third[other] = 0, 1 + third[other] % 2
    pairs = np.array([(0, 1), (0, 2), (1, 2)])[third]
    waves = _waves()
    share = rng.uniform(size=(n, 1))
    X = share * waves[pairs[:, 0]] + (1 - share) * waves[pairs[:, 1]] + rng.normal(size=(n, 21))
    return X, np.where(third == 0, 1.0, -1.0)


def gaussians(n: int, *, random_state: Seed, n_features: int = 2) -> tuple[Floats, Floats]:
    """Draw two spherical Gaussians that differ in two features (Figueiredo & Jain 2001, section 4.1).

    Means are plus and minus (1, 1, 0, ..., 0) / sqrt(2), covariances I: the Bayes error is
    Phi(-1) = 15.87 % (corrected; the paper prints Phi(2)). Both classes have the same size, but for
    an odd `n`.

    Returns
    -------
    X : ndarray, shape (n, n_features)
    y : ndarray of -1. and +1., shape (n,)
    """
    rng, label = _start(n, random_state)
    label = rng.permutation(np.where(np.arange(n) % 2 == 0, 1.0, -1.0))
    X = rng.normal(size=(n, n_features))
    X[:, :2] += label[:, None] / np.sqrt(2)
    return X, label


ESL_VARIANCE = 0.2


def esl_mixture(n: int, centres: Floats, kind: Rows, *, random_state: Seed) -> tuple[Floats, Rows]:
    """Draw from the mixture of *Elements of Statistical Learning*, section 2.3.3.

    Each class is an equal mixture of ten Gaussians with covariance 0.2 I; classes are equally
    likely.

    Parameters
    ----------
    n : int
    centres : ndarray, shape (20, 2)
        ``load("esl_mixture_means").X``.
    kind : ndarray of 0 and 1, shape (20,)
        Their classes.
    random_state : int or numpy.random.Generator

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of 0 and 1, shape (n,)
    """
    rng, label = _start(n, random_state)
    one = label > 0
    pick = rng.integers(10, size=n)
    means = np.where(one[:, None], centres[kind == 1][pick], centres[kind == 0][pick])
    return means + np.sqrt(ESL_VARIANCE) * rng.normal(size=(n, 2)), one.astype(np.int64)


def _regression_inputs(
    n: int, bounds: tuple[float, float], random_state: Seed
) -> tuple[np.random.Generator, Floats]:
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 2:
        raise ValueError(f"n={n!r}; needed a whole number of at least 2")
    rng = np.random.default_rng(_given_seed(random_state))
    return rng, rng.uniform(*bounds, size=(n, 1))


def sinc(n: int, *, random_state: Seed, noise: float = 0.2) -> tuple[Floats, Floats]:
    """Draw sin(x) / x on [-10, 10] with normal noise (Chmielewski-Anders et al. 2019, section 3.1).

    Returns
    -------
    X : ndarray, shape (n, 1)
    y : ndarray, shape (n,)
    """
    rng, X = _regression_inputs(n, (-10.0, 10.0), random_state)
    return X, np.sinc(X[:, 0] / np.pi) + noise * rng.normal(size=n)


def wave(n: int, *, random_state: Seed, noise: float = 0.15) -> tuple[Floats, Floats]:
    """Draw cos(x) on [-pi, pi] with normal noise (Chmielewski-Anders et al. 2019, Fig. 1).

    The paper does not say where the inputs are; the interval is ours.

    Returns
    -------
    X : ndarray, shape (n, 1)
    y : ndarray, shape (n,)
    """
    rng, X = _regression_inputs(n, (-np.pi, np.pi), random_state)
    return X, np.cos(X[:, 0]) + noise * rng.normal(size=n)


def hyperplane(n: int, *, random_state: Seed) -> tuple[Floats, Floats]:
    """Draw *linear* (Chmielewski-Anders et al. 2019, Table 1): two classes that a line separates.

    The paper gives no constants; these are ours: points uniform on [-1, 1]^2, the line x1 = x2.

    Returns
    -------
    X : ndarray, shape (n, 2)
    y : ndarray of -1. and +1., shape (n,)
    """
    rng, _ = _start(n, random_state)
    X = rng.uniform(-1.0, 1.0, size=(n, 2))
    X[:2] = [[0.5, -0.5], [-0.5, 0.5]]  # one of each class
    return X, np.where(X[:, 0] > X[:, 1], 1.0, -1.0)


def friedman(n: int, *, random_state: Seed, which: int) -> tuple[Floats, Floats]:
    """Draw scikit-learn's second or third Friedman set, the targets in units of their standard deviation."""
    rng = np.random.default_rng(random_state)
    make = getattr(sklearn_datasets, f"make_friedman{which}")
    X, y = make(n, random_state=int(rng.integers(2**31)))
    y = y / y.std()
    return X, y + 0.1 * rng.normal(size=n)


def overclass_rows(n: int, *, random_state: Seed) -> tuple[Floats, Rows]:
    """Draw *Overclass*, whose number of rows is its own."""
    return overclass(random_state=random_state)
