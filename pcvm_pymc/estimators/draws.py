"""Draws of the posterior at several widths: what they predict, and as a DataTree for ArviZ."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, override

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.utils import gen_batches

from pcvm_pymc.core.pieces.centres import Centres
from pcvm_pymc.core.pieces.kernels import KernelPiece
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import threads
from pcvm_pymc.core.probabilities import (
    class_numbers,
    class_probability,
    log_class_probability,
    log_normalised,
    normalised,
)
from pcvm_pymc.core.problem import Values
from pcvm_pymc.estimators.chains import N_CHAINS, by_time
from pcvm_pymc.estimators.predictors import Average, Predictor
from pcvm_pymc.estimators.training import TrainingData

if TYPE_CHECKING:
    import xarray as xr

_ROWS = 100  # predicted at a time
_ERRORS = 100  # drawn for one that intervals have
#: what the log likelihood says to those who would leave rows out by it
_SIGNED = "not for leave-one-out: labels are the signs of weights, too; cross-validate"
_FREE = "approximate: centres and width were chosen with all rows"


class Component(NamedTuple):
    """Draws of the posterior at one width.

    Attributes
    ----------
    kernel : KernelPiece
        Of this width.
    share : float
        Its weight in the mixture.
    values : Values
        Of its draws, chains one after the other.
    statistics : mapping of str to ndarray, shape (n_draws,)
        Log densities of the draws, and how their trajectories went.
    root : ndarray, shape (n_basis, n_kept), optional
        Of a `ProcessPosterior`; the rate is then its amplitude.
    """

    kernel: KernelPiece
    share: float
    values: Values
    statistics: Mapping[str, Array]
    root: Array | None = None


@dataclass(frozen=True)
class PosteriorMixture(Predictor):
    """Draws of the posterior at several widths, each with its share of them.

    Attributes
    ----------
    components : list of Component
    centres : Centres
    likelihood : Likelihood
    """

    components: list[Component]
    centres: Centres
    likelihood: Likelihood

    latent = Average.latent  # log odds of the mean probabilities

    def latent_draws(self, X: Array) -> Array:
        """Return latent values, shape (n_draws, n_new), or (n_draws, n_new, n_scores) of several scores."""
        points = self.centres.points
        latent = np.concatenate([e.values.latent(e.kernel(X, points)) for e in self.components])
        return latent if latent.shape[2] > 1 else latent[:, :, 0]

    def left_over(self, X: Array) -> Array:
        """Return the variance that a process has beyond its bases, shape (n_draws, n_new); else zeros."""
        intervals = []
        for kernel, _, values, _, root in self.components:
            share = np.zeros(len(X))
            if root is not None:
                share = 1.0 - np.square(kernel(X, self.centres.points) @ root).sum(axis=1)
            intervals.append(np.multiply.outer(values.rate, np.maximum(share, 0.0)))
        return np.concatenate(intervals)

    def of_latent(self, function: Callable[[Likelihood, Array], Array], latent: Array) -> Array:
        """Return a function of latent values for each class, shape (n_draws, n_new, n_classes)."""
        flat = function(self.likelihood, latent.reshape(-1, *latent.shape[2:]))
        return flat.reshape(*latent.shape[:2], -1)

    def probability_draws(self, X: Array) -> Array:
        """Return class probabilities, shape (n_draws, n_new, n_classes)."""
        return self.of_latent(class_probability, self.latent_draws(X))

    def probability(self, X: Array) -> Array:
        """Return posterior means of the class probabilities."""
        draws = self.probability_draws
        return _in_blocks(X, lambda rows: normalised(draws(rows).mean(axis=0)))

    def log_probability(self, X: Array) -> Array:
        """Return logarithms of posterior means of the class probabilities, exact in the tails."""
        each, draws = partial(self.of_latent, log_class_probability), self.latent_draws
        return _in_blocks(X, lambda rows: log_normalised(logsumexp(each(draws(rows)), axis=0)))

    def moments(self, X: Array) -> tuple[Array, Array]:
        """Return posterior mean and variance of the latent values, shape (n_new,) or (n_new, n_scores)."""

        def both(rows: Array) -> Array:
            draws = self.latent_draws(rows)
            left_over = self.left_over(rows).mean(axis=0)
            return np.stack([draws.mean(axis=0), (draws.var(axis=0).T + left_over).T], axis=1)

        moments = _in_blocks(X, both)
        return moments[:, 0], moments[:, 1]

    @override
    def interval(self, X: Array, probability: float, data: TrainingData | None = None) -> Array:
        """Return quantiles of the draws' class probabilities, shape (n_new, n_classes, 2).

        Where targets are numbers, of new ones, shape (n_new, 2), with the same errors in all rows and calls.
        """
        tails = 0.5 * (1.0 - probability), 0.5 * (1.0 + probability)
        drawn = self.probability_draws
        if self.likelihood.targets == "numbers":
            noise = np.concatenate([each.values.noise for each in self.components])[:, None]
            unit: Any = self.likelihood.with_noise(1.0)
            rng, n = np.random.default_rng(0), len(noise)
            many = np.sort(unit.drawn_targets(np.zeros(_ERRORS * n), rng))
            error = rng.permutation(many[_ERRORS // 2 :: _ERRORS])[:, None]  # as even as quantiles

            def drawn(X: Array) -> Array:
                return self.latent_draws(X) + np.sqrt(noise**2 + self.left_over(X)) * error

        ends = partial(np.quantile, q=tails, axis=0)
        return _in_blocks(X, lambda rows: np.moveaxis(ends(drawn(rows)), 0, -1))


def _in_blocks(X: Array, predicted: Callable[[Array], Array]) -> Array:
    """Return predictions for rows, block by block: those of all draws would not fit into memory."""
    blocks = [X[rows] for rows in gen_batches(len(X), _ROWS)]
    return np.concatenate(Parallel(threads(), require="sharedmem")(map(delayed(predicted), blocks)))


# --- for ArviZ ---------------------------------------------------------------------------------


def to_datatree(
    mixture: PosteriorMixture,
    data: TrainingData,
    classes: NDArray[Any] | None,
    diagnostics: tuple[float, float],
    rng: np.random.Generator,
) -> "xr.DataTree":
    """Return draws and data in the groups that ArviZ knows, and how the chains of the mixture converged.

    Within a chain the draws of several widths are in the order of their time. Labels are numbers of classes,
    whose names are an attribute, and what is known is among the constants, as in results of `sample`. Copies
    of a row are one row, with the number of the first; its log likelihood is that of all.
    """
    import xarray as xr  # slow to import

    parts, target = mixture.components, "target" if classes is None else "label"
    scores = ("class",) if parts[0].values.bias.shape[1] > 1 else ()
    width = np.stack([np.asarray(part.kernel.width) for part in parts])
    of_width = ("feature",)[: width.ndim - 1]
    dims = {"weight": ("basis", *scores), "bias": scores, "latent": ("obs", *scores)}
    dims |= {"width": of_width, target: ("obs",)}
    order = by_time([len(part.values.rate) // N_CHAINS for part in parts])
    coords: dict[str, Any] = {"chain": np.arange(N_CHAINS), "draw": np.arange(len(order))}
    coords["obs"] = data.numbers(np.arange(len(data.X)))
    if classes is not None:
        coords["class"] = classes if classes.dtype.kind in "biufmMU" else classes.astype(str)

    def dataset(values: Mapping[str, Any]) -> xr.Dataset:
        out = xr.Dataset(values, attrs={"inference_library": "pcvm_pymc"})
        return out.assign_coords({name: x for name, x in coords.items() if name in out.dims})

    drawn = [_drawn(mixture, part, data, target, rng) for part in parts]
    groups = {}
    for group, names in drawn[0].items():
        in_order = dict[str, Any]()
        for name in names:
            own, of_parts = dims.get(name, ()), [one[group][name] for one in drawn]
            chains = [each.reshape(N_CHAINS, -1, *each.shape[1:]) for each in of_parts]
            mixed = np.concatenate(chains, axis=1)[:, order]
            shape = mixed.shape[: 2 + len(own)]
            in_order[name] = (("chain", "draw", *own), mixed.reshape(shape))
        groups[group] = dataset(in_order)
    signed, posterior = mixture.centres.sign is not None, groups["posterior"]
    groups["log_likelihood"].attrs["leave_one_out"] = _SIGNED if signed else _FREE
    same = ((posterior == posterior.isel(chain=0, draw=0)) | posterior.isnull()).all()
    scalars = "bias", "rate", "amplitude", "noise", "width"
    known = [name for name in scalars if same.get(name, False)]
    groups["posterior"] = posterior.drop_vars(known)
    convergence: dict[str, Any] = {"share": ("component", [each.share for each in parts])}
    convergence |= {"rhat": diagnostics[0], "ess": diagnostics[1]}
    convergence["width"] = (("component", *of_width), width)
    convergence["kernel"] = ("component", [part.kernel.name for part in parts])
    constants = dict(posterior.isel(chain=0, draw=0, drop=True)[known])
    constants["centres"] = (("basis", "feature"), mixture.centres.points)
    for name, each_row in {"sample_weight": data.weight, "noise_std": data.noise}.items():
        if each_row is not None:
            constants[name] = ("obs", each_row)
    observed = data.label if classes is None else class_numbers(data.label, len(classes))
    groups["convergence"], groups["constant_data"] = xr.Dataset(convergence), dataset(constants)
    groups["observed_data"] = dataset({target: ("obs", observed)})
    tree = xr.DataTree.from_dict(groups)
    if classes is not None:
        tree.attrs["classes"] = json.dumps(classes.tolist(), default=str)
    return tree


def _drawn(
    mixture: PosteriorMixture, part: Component, data: TrainingData, target: str, rng: Any
) -> dict[str, dict[str, Array]]:
    """Return what the draws at one width give in each group, shape (n_draws, ...)."""
    one, values, label = replace(mixture, components=[part]), part.values, data.label
    latent, width = one.latent_draws(data.X), np.asarray(part.kernel.width)
    posterior = values._asdict() | {"latent": latent}
    if part.root is not None:
        posterior["amplitude"] = posterior.pop("rate")
    posterior["width"] = np.broadcast_to(width, (len(latent), *width.shape))
    if mixture.likelihood.targets != "numbers" or data.noise is not None:
        del posterior["noise"]
    if mixture.likelihood.targets == "labels":
        density, new = np.empty(latent.shape[:2]), np.empty(latent.shape[:2], np.int16)
        for rows in gen_batches(len(label), _ROWS):
            each = one.of_latent(log_class_probability, latent[:, rows])
            own = class_numbers(label[rows], each.shape[2])
            density[:, rows] = each[:, np.arange(len(own)), own]
            below = np.cumsum(np.exp(each[:, :, :-1]), axis=2)
            new[:, rows] = (rng.uniform(size=(*below.shape[:2], 1)) > below).sum(axis=2)
    else:
        known = values.noise.tolist() if data.noise is None else [data.noise] * len(latent)
        likelihood: Any = mixture.likelihood
        noisy = [likelihood.with_noise(noise) for noise in known]
        pairs = list(zip(noisy, latent, strict=True))
        density = np.stack([each.log_density(f, label) for each, f in pairs])
        new = np.stack([each.drawn_targets(f, rng) for each, f in pairs])
    if data.weight is not None:
        density *= data.weight
    groups = {"posterior": posterior, "sample_stats": dict(part.statistics)}
    return groups | {"log_likelihood": {target: density}, "posterior_predictive": {target: new}}
