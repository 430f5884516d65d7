"""Measures of predictions, and the tests by which the papers compare classifiers."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss, roc_auc_score

__all__ = [
    "HIGHER_IS_BETTER",
    "MEASURES",
    "BonferroniDunn",
    "FriedmanResult",
    "average_ranks",
    "bonferroni_dunn",
    "classification_measures",
    "critical_difference",
    "expected_calibration_error",
    "five_by_two_f_test",
    "friedman_test",
    "hand_till_auc",
    "regression_measures",
    "win_loss_tie",
]

type Floats = NDArray[np.float64]

# what a finished cell holds, in the order of reports, and how it is shown
MEASURES = {
    "error": "Error, %",
    "AUC": "AUC, %",
    "1-RMSE": "1-RMSE, %",
    "log loss": "Log loss",
    "ECE": "Expected calibration error",
    "MSE": "Mean squared error",
    "test errors": "Test errors",
    "vectors": "Vectors",
    "weights": "Weights",
    "seconds": "Seconds",
}
HIGHER_IS_BETTER = ("AUC", "1-RMSE")
_N_BINS = 10


# --- measures --------------------------------------------------------------------------------


def expected_calibration_error(correct: ArrayLike, confidence: ArrayLike) -> float:
    """Return the mean gap between stated confidence and frequency, over ten equal bins.

    Parameters
    ----------
    correct : array_like of 0 and 1, shape (n,)
    confidence : array_like, shape (n,)
        Stated probability that ``correct`` is 1.
    """
    confidence = np.clip(np.asarray(confidence, dtype=float), 0.0, 1.0)
    frequency, predicted = calibration_curve(correct, confidence, n_bins=_N_BINS)
    # scikit-learn's own bins, to weigh each by its share of rows
    edges = np.linspace(0.0, 1.0, _N_BINS + 1)
    counts = np.bincount(np.searchsorted(edges[1:-1], confidence), minlength=_N_BINS)
    share = counts[counts > 0] / len(confidence)
    return float(share @ np.abs(frequency - predicted))


def hand_till_auc(label: ArrayLike, score: ArrayLike, classes: ArrayLike) -> float:
    """Return the mean area under the ROC curve over pairs of classes (Hand & Till 2001).

    A(i|j) is the probability that a row of class i has a higher score of class i than a row of
    class j has (Lyu et al. 2020 eq. 40, corrected: the paper describes it as one of
    misclassification). For two classes it is the AUC.

    Parameters
    ----------
    label : array_like, shape (n,)
    score : array_like, shape (n, n_classes)
        Probabilities or any scores, in the order of `classes`.
    classes : array_like, shape (n_classes,)

    Returns
    -------
    float
        NaN where fewer than two classes are among the labels; pairs with a class that is absent are
        left out.
    """
    label, score, classes = np.asarray(label), np.asarray(score, float), np.asarray(classes)
    areas = []
    for i, j in combinations(range(len(classes)), 2):
        of_i, of_j = label == classes[i], label == classes[j]
        if not (of_i.any() and of_j.any()):
            continue
        pair = of_i | of_j
        first = roc_auc_score(of_i[pair], score[pair, i])
        areas.append((first + roc_auc_score(of_j[pair], score[pair, j])) / 2)
    return float(np.mean(areas)) if areas else np.nan


def classification_measures(
    label: ArrayLike,
    predicted: ArrayLike,
    classes: ArrayLike,
    probability: ArrayLike | None = None,
    score: ArrayLike | None = None,
) -> dict[str, float]:
    """Return error, AUC, 1-RMSE, log loss and expected calibration error.

    The error is that of `predicted`. The RMSE of two classes is that of the second's probability, of
    several that over all classes' (the mean over rows and classes). Calibration is, for two classes, that of
    the second's probability, for several that of the predicted class.

    Parameters
    ----------
    label, predicted : array_like, shape (n,)
    classes : array_like, shape (n_classes,)
        Of the training part, sorted.
    probability : array_like, shape (n, n_classes), optional
        Without it what needs probabilities is NaN.
    score : array_like, shape (n, n_classes), optional
        For the AUC of a classifier without probabilities.
    """
    label, predicted, classes = np.asarray(label), np.asarray(predicted), np.asarray(classes)
    wrong = predicted != label
    measures = dict.fromkeys(("error", "AUC", "1-RMSE", "log loss", "ECE", "test errors"), np.nan)
    measures |= {"error": float(wrong.mean()), "test errors": float(wrong.sum())}
    ranking = probability if probability is not None else score
    if ranking is not None:
        measures["AUC"] = hand_till_auc(label, ranking, classes)
    if probability is None:
        return measures
    probability = np.asarray(probability, dtype=float)
    member = label[:, None] == classes
    if len(classes) == 2:
        square, stated, right = (
            (probability[:, 1] - member[:, 1]) ** 2,
            probability[:, 1],
            member[:, 1],
        )
    else:
        square, stated, right = (probability - member) ** 2, probability.max(axis=1), ~wrong
    measures["1-RMSE"] = 1.0 - float(np.sqrt(square.mean()))
    measures["ECE"] = expected_calibration_error(right, stated)
    if np.isin(label, classes).all():
        # scikit-learn clips at the machine's precision, so that one bold error does not decide a table
        rows = probability / probability.sum(axis=1, keepdims=True)
        measures["log loss"] = float(log_loss(label, rows, labels=classes))
    return measures


def regression_measures(target: ArrayLike, predicted: ArrayLike) -> dict[str, float]:
    """Return the mean squared error, in the unit of the target squared."""
    return {"MSE": float(np.mean((np.asarray(target) - np.asarray(predicted)) ** 2))}


# --- tests -----------------------------------------------------------------------------------


def five_by_two_f_test(difference: ArrayLike) -> tuple[float, float]:
    """Return statistic and p-value of the 5x2cv F test (Alpaydin 1999; Chen et al. 2009 eq. 14).

    Parameters
    ----------
    difference : array_like, shape (5, 2)
        Of a measure between two classifiers, for each replication and fold.

    Returns
    -------
    statistic, p_value : float
        (0, 1) for classifiers that never differ.

    Raises
    ------
    ValueError
        If the shape is another.
    """
    difference = np.asarray(difference, dtype=float)
    if difference.shape != (5, 2):
        raise ValueError(f"difference has shape {difference.shape}; needed (5, 2)")
    mean = difference.mean(axis=1, keepdims=True)
    variance = ((difference - mean) ** 2).sum()
    total = (difference**2).sum()
    if total == 0:
        return 0.0, 1.0
    with np.errstate(divide="ignore"):  # the same difference everywhere: certain
        statistic = float(np.divide(total, 2 * variance))
    return statistic, float(stats.f.sf(statistic, 10, 5))


def average_ranks(table: pd.DataFrame, *, higher_is_better: bool = False) -> pd.Series:
    """Return each classifier's mean rank over the sets; 1 is the best, ties share their mean.

    Parameters
    ----------
    table : DataFrame
        A row for each set, a column for each classifier. Sets with a missing cell are left out.
    higher_is_better : bool
    """
    return table.dropna().rank(axis=1, ascending=not higher_is_better).mean()


@dataclass(frozen=True)
class FriedmanResult:
    """Friedman's test, and its correction.

    Attributes
    ----------
    n_sets, n_classifiers : int
    statistic, p_value : float
        Friedman's chi-squared, corrected for ties.
    f_statistic, f_p_value : float
        Iman & Davenport's F.
    """

    n_sets: int
    n_classifiers: int
    statistic: float
    p_value: float
    f_statistic: float
    f_p_value: float


def friedman_test(table: pd.DataFrame) -> FriedmanResult:
    """Return Friedman's test of equal classifiers, with Iman & Davenport's correction.

    Parameters
    ----------
    table : DataFrame
        A row for each set, a column for each classifier. Sets with a missing cell are left out.

    Raises
    ------
    ValueError
        If fewer than two sets or three classifiers are left.
    """
    table = table.dropna()
    n, k = table.shape
    if n < 2 or k < 3:
        raise ValueError(
            f"{n} complete sets and {k} classifiers; needed at least two sets and three classifiers"
        )
    if (table.nunique(axis=1) == 1).all():
        return FriedmanResult(n, k, 0.0, 1.0, 0.0, 1.0)
    statistic, p_value = stats.friedmanchisquare(*table.to_numpy().T)
    return FriedmanResult(n, k, float(statistic), float(p_value), *iman_davenport(statistic, n, k))


def iman_davenport(statistic: float, n_sets: int, n_classifiers: int) -> tuple[float, float]:
    """Return Iman & Davenport's F of a Friedman statistic, and its p-value."""
    rest = n_sets * (n_classifiers - 1) - statistic
    if rest <= 1e-12 * n_sets:  # the same order on every set
        return np.inf, 0.0
    value = (n_sets - 1) * statistic / rest
    return float(value), float(
        stats.f.sf(value, n_classifiers - 1, (n_classifiers - 1) * (n_sets - 1))
    )


def critical_value(n_classifiers: int, alpha: float = 0.10) -> float:
    """Return q of Bonferroni and Dunn: two-sided, divided among comparisons with one control."""
    return float(stats.norm.isf(alpha / (2 * (n_classifiers - 1))))


def critical_difference(n_sets: int, n_classifiers: int, alpha: float = 0.10) -> float:
    """Return the difference of mean ranks that is significant (Chen et al. 2009 eq. 15)."""
    return critical_value(n_classifiers, alpha) * _standard_error(n_sets, n_classifiers)


def _standard_error(n_sets: int, n_classifiers: int) -> float:
    return float(np.sqrt(n_classifiers * (n_classifiers + 1) / (6 * n_sets)))


@dataclass(frozen=True)
class BonferroniDunn:
    """Every classifier against a control.

    Attributes
    ----------
    control : str
    ranks : Series
        Mean ranks, the control's among them.
    critical_difference, critical_value : float
        Of mean ranks, and of `z`.
    table : DataFrame
        For each other classifier: the difference of mean ranks (positive where the control is better), z
        (the same in standard errors; Lyu et al. 2020 eq. 42, to be compared with the critical value,
        corrected) and whether it is significant.
    """

    control: str
    ranks: pd.Series
    critical_difference: float
    critical_value: float
    table: pd.DataFrame


def bonferroni_dunn(
    ranks: pd.Series, n_sets: int, control: str, *, alpha: float = 0.10
) -> BonferroniDunn:
    """Return the Bonferroni-Dunn test of mean ranks against a control.

    Raises
    ------
    ValueError
        If the control has no rank.
    """
    if control not in ranks.index:
        raise ValueError(f"control={control!r} has no rank; ranked: {', '.join(ranks.index)}")
    k = len(ranks)
    difference = ranks.drop(control) - ranks[control]
    z = difference / _standard_error(n_sets, k)
    limit = critical_difference(n_sets, k, alpha)
    table = pd.DataFrame(
        {"difference": difference, "z": z, "significant": difference.abs() >= limit}
    )
    return BonferroniDunn(control, ranks, limit, critical_value(k, alpha), table)


def win_loss_tie(
    table: pd.DataFrame,
    control: str,
    *,
    higher_is_better: bool = False,
    significant: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Count the sets on which each classifier beats, loses to and ties with a control.

    Parameters
    ----------
    table : DataFrame
        A row for each set, a column for each classifier; a set that either lacks does not count.
    control : str
    higher_is_better : bool
    significant : DataFrame of bool, optional
        Of the same shape: what is not significant is a tie.

    Returns
    -------
    DataFrame
        Rows ``win``, ``loss`` and ``tie``, a column for each other classifier.
    """
    sign = 1.0 if higher_is_better else -1.0
    counts: dict[str, Any] = {}
    for name in table.columns.drop(control):
        pair = table[[name, control]].dropna()
        better = np.sign(sign * (pair[name] - pair[control]))
        if significant is not None:
            better = better.where(significant[name].reindex(pair.index).fillna(False), 0.0)
        counts[name] = {
            "win": int((better > 0).sum()),
            "loss": int((better < 0).sum()),
            "tie": int((better == 0).sum()),
        }
    return pd.DataFrame(counts)
