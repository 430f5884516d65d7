"""What reports call each measure, and the papers' statistics that SciPy and scikit-posthocs lack."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

__all__ = [
    "HIGHER_IS_BETTER",
    "MEASURES",
    "RANKS_ALPHA",
    "BonferroniDunn",
    "FriedmanResult",
    "average_ranks",
    "bonferroni_dunn",
    "critical_difference",
    "five_by_two_f_test",
    "friedman_test",
    "win_loss_tie",
]

# what a finished job has, in the order of reports, and how it is shown
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
    "opposed": "Vectors whose weight opposes their label",
    "training margin": "Mean margin of the training rows",
    "test margin": "Mean margin of the test rows",
    "seconds": "Seconds",
}
HIGHER_IS_BETTER = ("AUC", "1-RMSE")
RANKS_ALPHA = 0.10  # the papers', of tests on mean ranks


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
        A row for each set, a column for each classifier. Sets with a missing value are left out.
    higher_is_better : bool
    """
    return table.dropna().rank(axis=1, ascending=not higher_is_better).mean()


class FriedmanResult(NamedTuple):
    """Friedman's chi-squared, corrected for ties, and Iman & Davenport's F, with their p-values."""

    statistic: float
    p_value: float
    f_statistic: float
    f_p_value: float


def friedman_test(table: pd.DataFrame) -> FriedmanResult:
    """Return Friedman's test of equal classifiers, with Iman & Davenport's correction.

    Parameters
    ----------
    table : DataFrame
        A row for each set, a column for each classifier. Sets with a missing value are left out.

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
        return FriedmanResult(0.0, 1.0, 0.0, 1.0)
    statistic, p_value = stats.friedmanchisquare(*table.to_numpy().T)
    return FriedmanResult(float(statistic), float(p_value), *iman_davenport(statistic, n, k))


def iman_davenport(statistic: float, n_sets: int, n_classifiers: int) -> tuple[float, float]:
    """Return Iman & Davenport's F of a Friedman statistic, and its p-value."""
    rest = n_sets * (n_classifiers - 1) - statistic
    if rest <= 1e-12 * n_sets:  # the same order on every set
        return np.inf, 0.0
    value = (n_sets - 1) * statistic / rest
    return float(value), float(
        stats.f.sf(value, n_classifiers - 1, (n_classifiers - 1) * (n_sets - 1))
    )


def critical_value(n_classifiers: int, alpha: float = RANKS_ALPHA) -> float:
    """Return q of Bonferroni and Dunn: two-sided, divided among comparisons with one control."""
    return float(stats.norm.isf(alpha / (2 * (n_classifiers - 1))))


def critical_difference(n_sets: int, n_classifiers: int, alpha: float = RANKS_ALPHA) -> float:
    """Return the difference of mean ranks that is significant (Chen et al. 2009 eq. 15)."""
    return critical_value(n_classifiers, alpha) * _standard_error(n_sets, n_classifiers)


def _standard_error(n_sets: int, n_classifiers: int) -> float:
    return float(np.sqrt(n_classifiers * (n_classifiers + 1) / (6 * n_sets)))


class BonferroniDunn(NamedTuple):
    """Every classifier against a control.

    Attributes
    ----------
    control : str
    critical_difference, critical_value : float
        Of mean ranks, and of `z`.
    table : DataFrame
        For each other classifier: the difference of mean ranks (positive where the control is better), z
        (the same in standard errors; Lyu et al. 2020 eq. 42, to be compared with the critical value,
        corrected) and whether it is significant.
    """

    control: str
    critical_difference: float
    critical_value: float
    table: pd.DataFrame


def bonferroni_dunn(
    ranks: pd.Series, n_sets: int, control: str, *, alpha: float = RANKS_ALPHA
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
    return BonferroniDunn(control, limit, critical_value(k, alpha), table)


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
