"""The MAP beside the posterior: one table, the convergence verdict, pictures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike

from pcvm_pymc.assessment import plots
from pcvm_pymc.core.measures import classification_measures, expected_calibration_error
from pcvm_pymc.core.pieces.kernels import Kernel
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_labels
from pcvm_pymc.inference.modes import predict
from pcvm_pymc.inference.results import classes_of, weights_of

__all__ = [
    "Comparison",
    "Convergence",
    "Rival",
    "active_count",
    "compare",
    "convergence",
    "expected_calibration_error",
    "scores",
]


@dataclass(frozen=True)
class Convergence:
    """What the chains say about the latent function.

    Attributes
    ----------
    divergences : int
        After tuning, of all chains.
    rhat : float
        Worst rank-normalised split r-hat of the latent function at the training inputs.
    ess : float
        Smallest bulk effective sample size of the same.
    n_draws : int
        Draws of all chains.
    """

    divergences: int
    rhat: float
    ess: float
    n_draws: int

    @property
    def ok(self) -> bool:
        """Whether r-hat is at most 1.01 and the effective sample size at least 400."""
        return self.rhat <= 1.01 and self.ess >= 400

    def __str__(self) -> str:
        if not self.ok:
            verdict = "NOT converged: draw more, raise max_sweeps (Gibbs) or target_accept (NUTS)"
        elif self.divergences:
            verdict = "converged, but with divergences: raise target_accept"
        else:
            verdict = "converged"
        noun = "divergence" if self.divergences == 1 else "divergences"
        return (
            f"{verdict} ({self.divergences} {noun} in {self.n_draws} draws; latent function: "
            f"worst r-hat {self.rhat:.4f}, smallest ESS {self.ess:.0f})"
        )


@dataclass(frozen=True)
class Rival:
    """Another classifier on the same test set.

    Attributes
    ----------
    probability : ndarray, shape (n_test,)
        Of the greater class.
    vectors : float
        Support or relevance vectors; NaN where the notion does not apply.
    seconds : float
        Of fitting, tuning included.
    """

    probability: Array
    vectors: float = np.nan
    seconds: float = np.nan


@dataclass(frozen=True)
class Comparison:
    """MAP, posterior and rivals on one test set.

    Attributes
    ----------
    table : pandas.DataFrame
        A row for each: error, AUC, 1-RMSE, log loss, expected calibration error, vectors, seconds.
    convergence : Convergence
    probability : dict of str to ndarray, shape (n_test,)
        Predicted probability of the greater class.
    label : ndarray of 0 and 1, shape (n_test,)
    map_result, posterior : DataTree
    """

    table: pd.DataFrame
    convergence: Convergence
    probability: dict[str, Array] = field(repr=False)
    label: Array = field(repr=False)
    map_result: xr.DataTree = field(repr=False)
    posterior: xr.DataTree = field(repr=False)

    def __str__(self) -> str:
        return f"{self.table.to_string(float_format='{:.4g}'.format)}\n{self.convergence}"

    def _repr_html_(self) -> str:
        return f"{self.table.to_html(float_format='{:.4g}'.format)}<p>{self.convergence}</p>"

    def plot(self, kind: str = "reliability") -> Any:
        """Draw one picture and return its figure.

        Parameters
        ----------
        kind : {"reliability", "calibration", "weights", "em_trace", "rank"}

        Raises
        ------
        ValueError
            If the kind is unknown.
        """
        draw = {
            "reliability": lambda: plots.plot_reliability(self.label, self.probability),
            "calibration": lambda: plots.plot_calibration(self.label, self.probability),
            "weights": lambda: plots.plot_weights(self.map_result, self.posterior),
            "em_trace": lambda: plots.plot_em_trace(self.map_result),
            "rank": lambda: plots.plot_rank(self.posterior),
        }
        if kind not in draw:
            raise ValueError(f"kind={kind!r} is unknown; use one of {sorted(draw)}")
        return draw[kind]()


def convergence(posterior: xr.DataTree) -> Convergence:
    """Return the convergence of the latent function (single weights are not identified)."""
    latent = posterior["posterior"].to_dataset()[["latent"]]
    sizes, stats = latent.sizes, posterior["sample_stats"]
    return Convergence(
        divergences=int(stats["diverging"].sum()) if "diverging" in stats else 0,
        rhat=float(az.rhat(latent)["latent"].max()),
        ess=float(az.ess(latent)["latent"].min()),
        n_draws=sizes["chain"] * sizes["draw"],
    )


def active_count(weight: ArrayLike, share: float = 0.95) -> Array:
    """Return how many weights of each draw hold `share` of the sum of |w|, shape (n_draws,).

    Draws of a posterior are never exactly zero, so that they cannot be counted as the MAP's are.

    Parameters
    ----------
    weight : array_like, shape (n_draws, n_basis)
    share : float
    """
    size = np.sort(np.abs(np.asarray(weight, dtype=float)), axis=1)[:, ::-1]
    cumulative = np.cumsum(size, axis=1)
    return np.sum(cumulative < share * cumulative[:, -1:], axis=1) + 1.0 * (cumulative[:, -1] > 0)


def scores(label: ArrayLike, probability: ArrayLike) -> dict[str, float]:
    """Return error, AUC, 1-RMSE, log loss and expected calibration error of predictions.

    Parameters
    ----------
    label : array_like of 0 and 1, shape (n,)
    probability : array_like, shape (n,)
        Of label 1. With labels of a single class the AUC is NaN.
    """
    label, probability = np.asarray(label), np.asarray(probability)
    both = np.column_stack([1.0 - probability, probability])
    measures = classification_measures(label, (probability > 0.5).astype(int), [0, 1], both)
    del measures["test errors"]
    return measures


def compare(
    map_result: xr.DataTree,
    posterior: xr.DataTree,
    X_test: ArrayLike,
    y_test: ArrayLike,
    *,
    kernel: Kernel = "rbf",
    rivals: Mapping[str, Rival | xr.DataTree] | None = None,
) -> Comparison:
    """Lay the MAP plug-in and the posterior mean side by side on held-out rows.

    Parameters
    ----------
    map_result : DataTree
        From `find_map_em`.
    posterior : DataTree
        From `sample` or `pymc.sample`, of the same model.
    X_test : array_like, shape (n_test, n_features)
    y_test : array_like, shape (n_test,)
        Labels in the code of the training labels.
    kernel : "rbf", callable or pm.gp.cov.Covariance
        The kernel that the model was built with.
    rivals : mapping of str to Rival or DataTree, optional
        Other classifiers' predictions for the same rows, or results of other models (another prior,
        a MAP under another hyperprior), which are asked for theirs.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        If a test label is not a class of the training set.
    """
    label = _coded(y_test, classes_of(map_result))
    results = {"MAP plug-in": map_result, "posterior mean": posterior, **(rivals or {})}
    entries = {
        name: each if isinstance(each, Rival) else _entry(each, X_test, kernel)
        for name, each in results.items()
    }
    table = pd.DataFrame(
        {
            name: {
                **scores(label, entry.probability),
                "vectors": entry.vectors,
                "seconds": entry.seconds,
            }
            for name, entry in entries.items()
        }
    ).T
    return Comparison(
        table=table,
        convergence=convergence(posterior),
        probability={name: entry.probability for name, entry in entries.items()},
        label=label,
        map_result=map_result,
        posterior=posterior,
    )


def _entry(result: xr.DataTree, X_test: ArrayLike, kernel: Kernel) -> Rival:
    """Return a result's predictions, number of weights and time."""
    probability = _mean_probability(result, X_test, kernel)
    if "optimizer_result" in result:
        outcome = result["optimizer_result"]
        return Rival(probability, float(outcome["n_active"]), float(outcome["seconds"]))
    seconds = float(result["posterior"].attrs.get("sampling_time", np.nan))
    return Rival(probability, float(active_count(weights_of(result)[0]).mean()), seconds)


def _mean_probability(result: xr.DataTree, X_test: ArrayLike, kernel: Kernel) -> Array:
    probability = predict(result, X_test, kernel=kernel)["predictions"]["probability"]
    return probability.mean(("chain", "draw")).values


def _coded(y_test: ArrayLike, classes: Array) -> Array:
    """Return test labels as 0 and 1 by the training classes; 0/1 and -1/+1 pass too."""
    y_test = np.asarray(y_test)
    if np.isin(y_test, classes).all():
        return (y_test == classes[1]).astype(int)
    if classes.tolist() == [0, 1]:  # a plain PyMC result, which does not hold the classes
        return (as_labels(y_test, len(y_test), one_class=True)[0] > 0).astype(int)
    unknown = sorted(set(y_test.tolist()) - set(classes.tolist()), key=str)
    raise ValueError(f"y_test has labels {unknown[:5]}; needed the classes {classes.tolist()}")
