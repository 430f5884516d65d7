"""What is made of posterior draws: their precisions, their log prior, and mixtures of several posteriors."""

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from pymc.stats import compute_log_prior

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_numbers, check_instance, check_seed, shown
from pcvm_pymc.inference.results import check_result, observed_and_constant_data
from pcvm_pymc.model.data import as_model

_NEEDED = "the model that it was drawn from, with the data that this has now"
_OF_DRAWS = ("posterior", "sample_stats", "log_likelihood")
_OF_WIDTH = ("width", "Phi", "hyperprior")  # what a width changes in the data of a model


def draw_precisions(
    posterior: xr.DataTree, *, random_seed: int | np.random.Generator | None = None
) -> xr.DataTree:
    """Draw the precisions that were integrated out, one set for each posterior draw.

    ``alpha_i | w ~ Gamma(c + 1/2, d + w_i^2 / 2)`` and ``beta | b ~ Gamma(e + 1/2, f + b^2 / 2)``
    (Chen et al. 2009, appendix A); where the C weights of a basis share one, ``Gamma(c + C/2, d +
    ||w_i||^2 / 2)``.

    Parameters
    ----------
    posterior : DataTree
        From `sample` or `pymc.sample`, of a model with a `Hyperprior`.
    random_seed : int or numpy.random.Generator, optional

    Returns
    -------
    DataTree
        A copy whose group ``posterior`` also has ``precision`` and, of a bias, ``bias_precision``.

    Raises
    ------
    ValueError
        If the model has no Gamma precisions.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0, width=1.0)
    >>> result = find_map_em(model, progressbar=False)
    >>> drawn = draw_precisions(result, random_seed=1)["posterior"]
    >>> drawn["precision"].dims
    ('chain', 'draw', 'basis')
    """
    check_result(posterior, "posterior")
    check_seed("random_seed", random_seed)
    constants = posterior["constant_data"]
    if "hyperparameter" not in constants.coords:
        raise ValueError(
            "posterior does not name its hyperprior; needed one of a model from a builder"
        )
    names = constants["hyperparameter"].values.tolist()
    value = dict(zip(names, constants["hyperprior"].values, strict=True))
    if "c" not in value:
        raise ValueError("the model has a HalfHorseshoe, without precisions; needed a Hyperprior")
    rng = np.random.default_rng(random_seed)
    draws = posterior["posterior"].to_dataset()
    rate = draws["rate"] if "rate" in draws else value["d"]
    n_scores, square = value.get("n_scores", 1.0), draws["weight"] ** 2
    if n_scores > 1:
        square = square.sum("class")
    tree = posterior.copy()
    drawn = {"precision": _gamma(value["c"] + 0.5 * n_scores, rate + square / 2, rng)}
    if "bias" in draws:
        drawn["bias_precision"] = _gamma(value["e"] + 0.5, value["f"] + draws["bias"] ** 2 / 2, rng)
    tree["posterior"] = draws.assign(drawn)
    return tree


def _gamma(shape: float, rate: xr.DataArray, rng: np.random.Generator) -> xr.DataArray:
    return rng.gamma(shape, size=rate.shape) / rate


def add_log_prior(result: xr.DataTree, model: pm.Model | None = None) -> xr.DataTree:
    """Return a result with the log prior densities of its draws, which ``arviz.psense`` asks for.

    Parameters
    ----------
    result : DataTree
        From `sample` or `pymc.sample`.
    model : pm.Model, optional
        That it was drawn from; default: the model on the context stack.

    Returns
    -------
    DataTree
        A copy with the group ``log_prior``: of each free variable of the model, element by element, as
        `pymc.stats.compute_log_prior` has it. Each size's density is normalised on its half-line, its
        precision integrated out where the model has none; a learned scale is a variable of its own.

    Raises
    ------
    ValueError
        If the result lacks a free variable of the model, or its data are others.

    References
    ----------
    N. Kallioinen et al. (2024), "Detecting and diagnosing prior and likelihood sensitivity with
    power-scaling", Statistics and Computing 34.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import Hyperprior, pcvm_model, sample
    >>> X = np.random.default_rng(0).normal(size=(20, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0, hyperprior=Hyperprior.plug_in())
    >>> fast = {"draws": 10, "max_sweeps": 100, "quiet": True}
    >>> draws = sample(model, random_seed=1, **fast)
    >>> result = add_log_prior(draws, model)
    >>> sorted(result["log_prior"].data_vars)
    ['bias', 'magnitude']
    """
    check_result(result, "result", "observed_data")
    model = as_model(model)
    _check_same_model(result, model)
    tree = result.copy()
    with redirect_stdout(io.StringIO()):  # PyMC 6.3's bar, off as it is, ends in an empty line
        tree["log_prior"] = compute_log_prior(
            tree, model=model, extend_inferencedata=False, progressbar=False
        )
    return tree


def _check_same_model(result: xr.DataTree, model: pm.Model) -> None:
    lacking = sorted({rv.name for rv in model.free_RVs} - set(result["posterior"].data_vars))
    if lacking:
        raise ValueError(f"result has no draws of {lacking}; needed {_NEEDED}")
    for group, data in observed_and_constant_data(model).items():
        known = result[group].to_dataset()
        for name, value in data.data_vars.items():
            if name not in known or not np.array_equal(known[name].values, value.values):
                raise ValueError(
                    f"result has other values of {name!r} in {group} than the model; needed {_NEEDED}"
                )


def mixture(posteriors: Sequence[xr.DataTree], weights: ArrayLike) -> xr.DataTree:
    """Return one posterior made of several that differ in the width, each with its share of the draws.

    What leave-one-out says of widths (`Selection.by_width`) averages predictions, as pseudo-BMA+ does
    those of models: an unknown width without a sampler that moves it.

    Parameters
    ----------
    posteriors : sequence of DataTree
        From `sample`, of models that are the same but for the number ``width`` of their RBF; as many chains
        and draws each.
    weights : array_like, shape (n_posteriors,)
        Shares, positive; they need not sum to one.

    Returns
    -------
    DataTree
        As of a model of unknown width: ``width`` is a variable of the group ``posterior``, so that `predict`,
        `compare` and `save` take it. Each chain has its draws of each posterior, evenly spaced, in random
        order: whether chains have converged is to be asked of the posteriors. A fixed scale, which
        differs with the width, becomes the variable ``rate``.

    Raises
    ------
    ValueError
        If there is no posterior, a weight is not positive, a share is less than a draw of a chain, or
        the posteriors differ in more than their widths.

    References
    ----------
    Y. Yao, A. Vehtari, D. Simpson and A. Gelman (2018), "Using stacking to average Bayesian predictive
    distributions", Bayesian Analysis 13(3).

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import pcvm_model, sample, select
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> y = X[:, 0] > 0
    >>> widths, weights = select(X, y, random_state=0).by_width()
    >>> centres = {"basis": "kmeans", "signs": "both"}
    >>> models = [pcvm_model(X, y, width=w, **centres) for w in widths]
    >>> fast = {"draws": 100, "progressbar": False}
    >>> parts = [sample(each, random_seed=1, **fast) for each in models]
    >>> posterior = mixture(parts, weights)
    >>> drawn = posterior["posterior"]["width"].values
    >>> sorted(set(drawn.ravel())) == sorted(widths)
    True
    """
    check_instance("posteriors", posteriors, (list, tuple), "a list of posteriors")
    if not posteriors:
        raise ValueError("posteriors is empty; needed one posterior at least")
    share = as_numbers(weights, "weights")
    if share.shape != (len(posteriors),) or not (np.isfinite(share) & (share > 0)).all():
        raise ValueError(
            f"weights={shown(weights)}; needed {len(posteriors)} positive numbers, one for each posterior"
        )
    for i, each in enumerate(posteriors):
        check_result(each, f"posteriors[{i}]", *_OF_DRAWS)
        _check_like(each, posteriors[0], f"posteriors[{i}]")
    sizes = posteriors[0]["posterior"].sizes
    taken = _shares(share, sizes["draw"])
    order = np.random.default_rng(0).permutation(sizes["draw"])
    tree = posteriors[int(share.argmax())].copy()
    for group in _OF_DRAWS:
        parts = []
        for each, n in zip(posteriors, taken, strict=True):
            draws, data = each[group].to_dataset(), each["constant_data"].to_dataset()
            if group == "posterior":  # with the width, and the scale where it is fixed
                ones = xr.ones_like(draws["chain"] * draws["draw"], float)
                draws["width"] = ones * data["width"]
                if "rate" not in draws and "d" in data["hyperparameter"]:
                    draws["rate"] = ones * float(data["hyperprior"].sel(hyperparameter="d"))
            parts.append(draws.isel(draw=np.arange(n) * sizes["draw"] // n))  # evenly spaced
        joined = xr.concat(parts, "draw", combine_attrs="drop_conflicts").isel(draw=order)
        tree[group] = joined.assign_coords(draw=np.arange(sizes["draw"]))
    constants = tree["constant_data"].to_dataset()
    tree["constant_data"] = constants.drop_vars(["width", "Phi"], errors="ignore")
    tree["posterior"].attrs["sampler"] = f"mixture of {len(posteriors)} widths by weights"
    pieces = json.loads(tree.attrs["pieces"])
    tree.attrs["pieces"] = json.dumps(pieces | {"kernel": pieces["kernel"] | {"width": None}})
    return tree


def _check_like(one: xr.DataTree, first: xr.DataTree, name: str) -> None:
    """Raise where a posterior differs from the first in more than its width."""
    data, other = (each["constant_data"].to_dataset() for each in (one, first))
    if "width" not in data or "width" in one["posterior"] or "pieces" not in one.attrs:
        raise ValueError(
            f"{name} is not from sample, or not of a builder's model whose kernel has a known width; needed "
            "one that is"
        )
    same, wanted = (each.drop_vars(_OF_WIDTH, errors="ignore") for each in (data, other))
    if not (same.equals(wanted) and one["observed_data"].equals(first["observed_data"])):
        raise ValueError(
            f"{name} differs from the first in more than the width: other rows or bases"
        )
    found, needed = (dict(each["posterior"].sizes) for each in (one, first))
    if found != needed or set(one["posterior"]) != set(first["posterior"]):
        raise ValueError(
            f"{name} has sizes {found} and variables {sorted(one['posterior'])}; needed {needed} and "
            f"{sorted(first['posterior'])}, as the first"
        )


def _shares(weight: Array, n_draws: int) -> NDArray[np.int64]:
    """Return how many of a chain's draws each posterior has: the largest remainder first."""
    wanted = n_draws * weight / weight.sum()
    out = np.floor(wanted).astype(int)
    out[np.argsort(out - wanted, kind="stable")[: n_draws - out.sum()]] += 1
    if out.min() == 0:
        raise ValueError(
            f"weights={weight.tolist()} leave a posterior without a draw of {n_draws}; leave it out, or draw "
            "more"
        )
    return out
