"""Measures of predictions on rows that were held out."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss, roc_auc_score

from pcvm_pymc.core.pieces.probit import Array

_N_BINS = 10


@dataclass(frozen=True)
class Rival:
    """Another classifier on the same test set.

    Attributes
    ----------
    probability : ndarray, shape (n_test,), or (n_test, n_classes) of several classes
        Of the greater class, or of each.
    vectors : float
        Support or relevance vectors; NaN where the notion does not apply.
    seconds : float
        Of fitting, tuning included.
    """

    probability: Array
    vectors: float = np.nan
    seconds: float = np.nan


def expected_calibration_error(correct: ArrayLike, confidence: ArrayLike) -> float:
    """Return the mean gap between stated confidence and frequency, over ten equal bins.

    Parameters
    ----------
    correct : array_like of 0 and 1, shape (n,)
    confidence : array_like, shape (n,)
        Stated probability that ``correct`` is 1.
    """
    stated = np.clip(np.asarray(confidence, dtype=float), 0.0, 1.0)
    frequency, predicted = calibration_curve(correct, stated, n_bins=_N_BINS)
    # scikit-learn's own bins, to weigh each by its share of rows
    edges = np.linspace(0.0, 1.0, _N_BINS + 1)
    counts = np.bincount(np.searchsorted(edges[1:-1], stated), minlength=_N_BINS)
    share = counts[counts > 0] / len(stated)
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
        stated, right = probability[:, 1], member[:, 1]
        square = (stated - right) ** 2
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


def scores(label: ArrayLike, probability: ArrayLike) -> dict[str, float]:
    """Return error, AUC, 1-RMSE, log loss and expected calibration error of predictions.

    Parameters
    ----------
    label : array_like of int, shape (n,)
        0 and 1, or numbers of several classes.
    probability : array_like, shape (n,) or (n, n_classes)
        Of label 1, or of each class. With labels of a single class the AUC is NaN.
    """
    label, stated = np.asarray(label), np.asarray(probability)
    if stated.ndim == 1:
        stated = np.column_stack([1.0 - stated, stated])
    likeliest, classes = stated.argmax(axis=1), np.arange(stated.shape[1])
    measures = classification_measures(label, likeliest, classes, stated)
    del measures["test errors"]
    return measures
