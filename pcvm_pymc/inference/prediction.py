"""Predictions at new inputs, one for each posterior draw, from what a result stores."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from sklearn.utils import gen_batches

from pcvm_pymc.core.evidence import (
    EvidenceProblem,
    FittedRVM,
    augmentation,
    predictive_moments,
    star_moments,
)
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import check_flag
from pcvm_pymc.core.problem import ObservedRows
from pcvm_pymc.inference import results
from pcvm_pymc.inference.display import Result
from pcvm_pymc.model.bases import AnyKernel
from pcvm_pymc.model.data import OF_ROWS, Frame

type Seed = int | np.random.Generator | None

_ROWS = 1000  # new rows whose own basis functions RVM* computes at once


def latent_draws(
    result: xr.DataTree, X_new: ArrayLike, *, kernel: AnyKernel | None = None
) -> Array:
    """Return the latent function of each draw at new inputs, shape (n_draws, n_new).

    Of several classes (n_draws, n_new, n_classes).

    Parameters
    ----------
    result : DataTree
        From `find_map_em`, `fit_evidence`, `sample` or `pymc.sample`.
    X_new : array_like, shape (n_new, n_features)
    kernel : str, callable or pm.gp.cov.Covariance, optional
        As for `predict`.

    Returns
    -------
    ndarray, shape (n_draws, n_new), or (n_draws, n_new, n_classes) of several classes
        Chains one after the other.

    Raises
    ------
    ValueError
        If the inputs cannot be used, or the kernel is missing or not the model's.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import fit_evidence, rvm_model
    >>> x = np.linspace(-3, 3, 30)[:, None]
    >>> result = fit_evidence(rvm_model(x, np.sin(x[:, 0]), width=1.5))
    >>> latent_draws(result, x[:5]).shape
    (1, 5)
    """
    result = results.check_result(result, "result")
    piece = results.kernel_of(result, kernel)
    centres = result["constant_data"]["centres"].values
    X_new = _frame(result, X_new).values
    weight, bias = results.weights_of(result)
    if "width" not in result["posterior"]:
        Phi = piece(X_new, centres)
        return np.moveaxis(np.tensordot(weight, Phi, (1, 1)), -1, 1) + bias[:, None]
    widths = result["posterior"].to_dataset()["width"].stack(sample=("chain", "draw"))
    draws = zip(widths.transpose("sample", ...).values, weight, bias, strict=True)
    return np.stack([piece.with_width(w[()])(X_new, centres) @ row + b for w, row, b in draws])


def _frame(result: xr.DataTree, X_new: ArrayLike) -> Frame:
    """Return new inputs with the names of their rows; raise where columns differ from the training rows'."""
    data = result["constant_data"].to_dataset()
    if not {"centres", "X"} & {*data.variables}:
        needed = "pm.set_data(**new_data(model, X_new, name=...)), pm.sample_posterior_predictive"
        raise ValueError(f"the result has no function called 'latent'; needed {needed}")
    rows = data["centres" if "centres" in data else "X"]
    known = rows["feature"].values if "feature" in rows.coords else None
    return Frame.of(X_new, "X_new", known, rows.sizes["feature"])


def probability_draws(result: xr.DataTree, latent: Array) -> Array:
    """Return the probability of the greater class (of each of several) in each draw, shape of `latent`.

    Parameters
    ----------
    result : DataTree
    latent : ndarray, shape (n_draws, n_new) or (n_draws, n_new, n_classes)
        From `latent_draws`.
    """
    if not results.nuisance_of(result):
        return results.likelihood_of(result).probability(latent)
    return np.stack([piece.probability(f) for piece, f in _by_draw(result, latent)])


def log_density_draws(result: xr.DataTree, latent: Array, target: Array) -> Array:
    """Return the log density of targets in each draw, shape (n_draws, n_new).

    Parameters
    ----------
    result : DataTree
    latent : ndarray, shape (n_draws, n_new) or (n_draws, n_new, n_classes)
        From `latent_draws`.
    target : ndarray, shape (n_new,)
        As the likelihood has them: labels -1. and +1., numbers of classes, or numbers.
    """
    return np.stack([piece.log_density(f, target) for piece, f in _by_draw(result, latent)])


def _by_draw(result: xr.DataTree, latent: Array) -> Iterator[tuple[Likelihood, Array]]:
    """Yield the likelihood and the latent function of each draw."""
    likelihood, drawn = results.likelihood_of(result), results.nuisance_of(result)
    for i, of_draw in enumerate(latent):
        nuisance = {name: values.flat[i] for name, values in drawn.items()}
        yield replace(likelihood, **nuisance), of_draw


def predict(
    result: xr.DataTree,
    X_new: ArrayLike,
    *,
    kernel: AnyKernel | None = None,
    star: bool = False,
    X: ArrayLike | None = None,
) -> xr.DataTree:
    """Predict at new inputs, one prediction for each posterior draw.

    Parameters
    ----------
    result : DataTree
        From `find_map_em`, `fit_evidence` (one draw: the plug-in), `sample` or `pymc.sample`.
    X_new : array_like or table, shape (n_new, n_features)
        The index of a pandas table becomes the coordinate ``obs``. Columns of other names than the training
        rows', or in another order, raise.
    kernel : str, callable or pm.gp.cov.Covariance, optional
        The kernel that the model was built with. Needed where it was a function or a covariance: the
        built-in ones are known to the result.
    star : bool
        RVM*: each new row also has a basis function of its own, so that the uncertainty grows away from the
        training rows (Rasmussen & Quinonero-Candela 2005). For `fit_evidence` of a regression.
    X : array_like, shape (n_obs, n_features), optional
        The training inputs, which RVM* needs; default: those in the result, otherwise the centres.

    Returns
    -------
    DataTree
        Group ``predictions`` with ``latent`` and, for labels, ``probability`` (of the greater
        class), dims ``chain``, ``draw`` and ``obs``. The posterior predictive probability is the mean
        of ``probability`` over chains and draws; the coordinate ``class`` says of which class it is.
        For a regression ``latent`` is the mean of the
        targets, and ``noise`` their standard deviation around it; by `fit_evidence` it comes with
        ``latent_sd``, the standard deviation of the mean itself. Of several classes both have the dim
        ``class`` in addition. Of a model with user-defined terms there is ``latent`` alone, the function
        without these terms; ``pymc.sample_posterior_predictive`` after ``pymc.set_data(**new_data(...))``
        has all of them. So it is of a user-defined likelihood, unless `sample` or `find_map_em` knew it.

    Raises
    ------
    ValueError
        If the inputs cannot be used, the kernel is missing or not the model's, or RVM* is asked of another
        result than a regression by `fit_evidence`.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), eq. 3; RVM*: C. E. Rasmussen and J. Quinonero-Candela (2005),
    "Healing the relevance vector machine through augmentation", ICML.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0, width=1.0)
    >>> mode = find_map_em(model, progressbar=False)
    >>> found = predict(mode, [[2.0, 0.0], [-2.0, 0.0]])
    >>> found = found["predictions"]["probability"]
    >>> (found.values[0, 0] > 0.5).tolist()
    [True, False]
    """
    result = results.check_result(result, "result")
    check_flag("star", star)
    if X is not None and not star:
        raise ValueError("X, the training inputs, is for star=True; leave it out")
    likelihood = results.likelihood_of(result) if results.tells_likelihood(result) else None
    is_regression = likelihood is not None and likelihood.targets == "numbers"
    frame = _frame(result, X_new)
    if star or (is_regression and "fit" in result):
        latent, deviation = _moments(result, frame.values, kernel, X, star)
        drawn = {"latent": latent[None], "latent_sd": deviation[None]}
    else:
        drawn = {"latent": latent_draws(result, frame.values, kernel=kernel)}
    posterior = result["posterior"]
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    dims = ("chain", "draw", "obs", "class")[: 1 + drawn["latent"].ndim]
    coords: dict[str, Any] = {"obs": frame.index}
    numbers: dict[str, Array] = {}
    if is_regression:
        for key, x in vars(likelihood).items():
            if isinstance(x, float) and not np.isnan(x):  # the noise of new rows may not be known
                numbers[key] = np.full(shape, x)
        numbers |= results.nuisance_of(result)
    elif likelihood is not None:
        drawn["probability"] = probability_draws(result, drawn["latent"])
        classes = results.classes_of(result)  # of which one it is, or of all
        coords["class"] = classes if likelihood.n_scores > 1 else classes[-1]
    values = {key: (dims, array.reshape(*shape, *array.shape[1:])) for key, array in drawn.items()}
    values |= {key: (dims[:2], array) for key, array in numbers.items()}
    names = [name for name in ("chain", "draw", *dims[3:]) if name in posterior.coords]
    coords |= {name: posterior[name].values for name in names}
    tree = Result.from_dict({"predictions": xr.Dataset(values, coords)})
    tree.attrs.update(result.attrs)
    return tree


# --- relevance vector machines, with a basis function on each new row -----------------------------


def _moments(
    result: xr.DataTree, X_new: Array, kernel: Any, X: ArrayLike | None, star: bool
) -> tuple[Array, Array]:
    """Return mean and standard deviation of the latent function of an RVM or RVM*, shape (n_new,) each."""
    likelihood = results.likelihood_of(result)
    if "fit" not in result or likelihood.targets != "numbers":
        raise ValueError("result is not an RVM's regression; needed fit_evidence(rvm_model(X, y))")
    point, data = (result[name].to_dataset() for name in ("posterior", "constant_data"))
    point, centres = point.isel(chain=0, draw=0), data["centres"].values
    of_rows = (data[name].values if name in data else None for name in OF_ROWS)
    seen: Any = ObservedRows.of(likelihood, results.target_of(result), *of_rows)
    names = "weight", "bias", "precision", "bias_precision"
    weight, bias, alpha, bias_alpha = (point[name].values[()] for name in names)
    noise = point["noise"].item() if "noise" in point else seen.likelihood.noise
    active, covariance = np.flatnonzero(np.isfinite(alpha)), result["fit"]["covariance_matrix"]
    fit = FittedRVM(weight, bias, alpha, bias_alpha, active, covariance.values, noise)
    piece = results.kernel_of(result, kernel)
    Phi = piece(X_new, centres[fit.active])
    if not star:
        mean, variance = predictive_moments(Phi, fit)
        return mean, np.sqrt(variance)
    rows, at_rows = results.inputs_of(result, X), data["Phi"].values
    if not np.allclose(piece(rows, centres), at_rows, rtol=1e-8, atol=1e-10):
        raise ValueError(
            f"X has other basis functions than the fit; needed the {len(at_rows)} training inputs in order"
        )
    problem = EvidenceProblem(at_rows, seen.target, seen.likelihood, row_weight=seen.weight)
    fitted, moments = augmentation(problem, fit), []
    for block in gen_batches(len(X_new), _ROWS):
        more = piece(rows, new := X_new[block]), np.diag(piece(new, new))
        moments.append(star_moments(Phi[block], *more, fit, fitted))
    mean, variance = (np.concatenate(blocks) for blocks in zip(*moments, strict=True))
    return mean, np.sqrt(variance)
