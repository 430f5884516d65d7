"""Posteriors at several widths, put together by weights."""

import json
from collections.abc import Sequence

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_numbers, check_instance, shown
from pcvm_pymc.inference.results import check_result

_OF_DRAWS = ("posterior", "sample_stats", "log_likelihood")
_OF_WIDTH = ("width", "Phi", "hyperprior")  # what a width changes in the data of a model


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
    >>> models = [pcvm_model(X, y, width=width, basis="kmeans", signs="both") for width in widths]
    >>> parts = [sample(model, draws=100, random_seed=1, progressbar=False) for model in models]
    >>> posterior = mixture(parts, weights)
    >>> sorted(set(posterior["posterior"]["width"].values.ravel())) == sorted(widths)
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
                ones = xr.DataArray(
                    np.ones((sizes["chain"], sizes["draw"])), dims=("chain", "draw")
                )
                draws["width"] = ones * data["width"]
                if "rate" not in draws and "d" in data["hyperparameter"]:
                    draws["rate"] = ones * float(data["hyperprior"].sel(hyperparameter="d"))
            parts.append(draws.isel(draw=np.arange(n) * sizes["draw"] // n))  # evenly spaced
        joined = xr.concat(parts, "draw", combine_attrs="drop_conflicts").isel(draw=order)
        tree[group] = joined.assign_coords(draw=np.arange(sizes["draw"]))
    constants = tree["constant_data"].to_dataset()
    tree["constant_data"] = constants.drop_vars(["width", "Phi"])
    tree["posterior"].attrs["sampler"] = f"mixture of {len(posteriors)} widths by weights"
    pieces = json.loads(tree.attrs["pieces"])
    tree.attrs["pieces"] = json.dumps(pieces | {"kernel": pieces["kernel"] | {"width": None}})
    return tree


def _check_like(one: xr.DataTree, first: xr.DataTree, name: str) -> None:
    """Raise where a posterior differs from the first in more than its width."""
    data, other = (each["constant_data"].to_dataset() for each in (one, first))
    if "width" not in data or "width" in one["posterior"]:
        raise ValueError(
            f"{name} is not of a model whose RBF has a known width; needed one that is"
        )
    same = data.drop_vars(_OF_WIDTH, errors="ignore").equals(
        other.drop_vars(_OF_WIDTH, errors="ignore")
    )
    if not same or not one["observed_data"].equals(first["observed_data"]):
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
