"""The posterior of a kernel machine as an estimator: drawn at each width, mixed by leave-one-out weights."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.utils import gen_batches

from pcvm_pymc.core.hamiltonian import HamiltonianChains, LogPosterior, Values
from pcvm_pymc.core.pieces.centres import Centres, as_centres, choose_means
from pcvm_pymc.core.pieces.kernels import FeatureColumns, KernelPiece, as_kernel, median_distance
from pcvm_pymc.core.pieces.likelihood import against_rest
from pcvm_pymc.core.pieces.likelihoods import Likelihood, ScaleLikelihood
from pcvm_pymc.core.pieces.priors import (
    LATENT_SIZE,
    Hyperprior,
    SharedHyperprior,
    named_prior,
    typical_size,
)
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import PROGRESS
from pcvm_pymc.core.pieces.validation import as_seed
from pcvm_pymc.core.problem import Problem, Status
from pcvm_pymc.estimators.average import (
    Average,
    Predictor,
    class_probability,
    log_class_probability,
)
from pcvm_pymc.estimators.base import check_size_and_scales, is_named
from pcvm_pymc.estimators.features import Metric, set_features
from pcvm_pymc.estimators.fit import (
    centres_of,
    fixed_width,
    plan_of,
    prior_of,
    problems_of,
    search_grid,
)
from pcvm_pymc.estimators.problems import TrainingData

if TYPE_CHECKING:
    import xarray as xr

#: chains; transitions before the first state that is kept; states of a chain to judge by
N_CHAINS, WARM_UP, N_STATES = 4, 300, 500
# of the latent function, at which chains have converged; see `_agree`
MOST_RHAT, LEAST_ESS = 1.01, 400.0
_MOST_RHAT_OF_A_PART, _LEAST_STATES = 1.05, 100
_JUDGED = 200  # values of the latent function, at most, by which convergence is judged
_MOST_STATES = 2000  # of a chain in memory: beyond, every other is kept
_ROWS = 100  # predicted at a time


# --- predictions -------------------------------------------------------------------------------


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
    rhat, ess : float
        The largest r-hat and the least effective sample size of the latent function at training rows. See
        `_agree` for what is enough.
    n_iter : int
        Transitions of each chain, warm-up included.
    """

    kernel: KernelPiece
    share: float
    values: Values
    rhat: float
    ess: float
    n_iter: int


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
        each = []
        for part in self.components:
            each.append(part.values.latent(part.kernel(X, self.centres.points)))
        found = np.concatenate(each)
        return found if found.shape[2] > 1 else found[:, :, 0]

    def _draws(self, function: Callable[[Likelihood, Array], Array], X: Array) -> Array:
        """Return a function of the latent values of each draw, shape (n_draws, n_new, n_classes)."""
        latent = self.latent_draws(X)
        flat = function(self.likelihood, latent.reshape(-1, *latent.shape[2:]))
        return flat.reshape(*latent.shape[:2], -1)

    def probability_draws(self, X: Array) -> Array:
        """Return class probabilities, shape (n_draws, n_new, n_classes)."""
        return self._draws(class_probability, X)

    def probability(self, X: Array, n_jobs: int = 1) -> Array:
        """Return posterior means of the class probabilities."""
        return _in_blocks(X, n_jobs, lambda rows: self.probability_draws(rows).mean(axis=0))

    def log_probability(self, X: Array, n_jobs: int = 1) -> Array:
        """Return logarithms of posterior means of the class probabilities, exact in the tails."""

        def log_mean(rows: Array) -> Array:
            each = self._draws(log_class_probability, rows)
            return np.asarray(logsumexp(each, axis=0) - np.log(len(each)))

        return _in_blocks(X, n_jobs, log_mean)

    def moments(self, X: Array) -> tuple[Array, Array]:
        """Return posterior mean and variance of the latent values, shape (n_new,) or (n_new, n_scores)."""

        def both(rows: Array) -> Array:
            draws = self.latent_draws(rows)
            return np.stack([draws.mean(axis=0), draws.var(axis=0)], axis=1)

        found = _in_blocks(X, 1, both)
        return found[:, 0], found[:, 1]

    def interval(self, X: Array, probability: float) -> Array:
        """Return quantiles of the draws' class probabilities, shape (n_new, n_classes, 2).

        Where targets are numbers, of the draws' latent values, shape (n_new, 2).
        """
        tails = 0.5 * (1.0 - probability), 0.5 * (1.0 + probability)
        numbers = self.likelihood.targets == "numbers"
        drawn = self.latent_draws if numbers else self.probability_draws

        def quantiles(rows: Array) -> Array:
            return np.moveaxis(np.quantile(drawn(rows), tails, axis=0), 0, -1)

        return _in_blocks(X, 1, quantiles)


def _in_blocks(X: Array, n_jobs: int, predicted: Callable[[Array], Array]) -> Array:
    """Return predictions for rows, block by block: those of all draws would not fit into memory."""
    blocks = [X[rows] for rows in gen_batches(len(X), _ROWS)]
    return np.concatenate(Parallel(n_jobs, prefer="threads")(map(delayed(predicted), blocks)))


# --- the fit -----------------------------------------------------------------------------------


def fit_posterior(model: Any, data: TrainingData) -> None:
    """Choose widths, draw the posterior at each, and set the fitted attributes.

    Several classes under a likelihood of one score are drawn one against the rest.
    """
    rng = np.random.default_rng(as_seed(model.random_state))
    problems: Any = None
    if hasattr(model, "hyperprior") or hasattr(model, "algorithm"):  # a PCVM, or of several scores
        problems = problems_of(model, data)
        likelihood, bias = problems.likelihood, problems.bias
    else:
        likelihood, own = model._likelihood_, getattr(model, "bias", None)
        bias = "free" if is_named(own, "free") else "prior"
    kernels, weights, metric = _kernels(model, data, problems, rng)
    label, of_rows, middle, unit = _standardised(data.label, likelihood)
    centres, labels = _centres(model, data, kernels[0]), [label]
    if likelihood.targets == "labels" and model._takes_several:
        n_classes = len(model.classes_)
        each_class = range(n_classes) if n_classes > 2 else range(1, 2)
        labels = [against_rest(data.label, c) for c in each_class]

    # the posterior at each width
    def component(kernel: Any, share: float, n: int, own: np.random.Generator) -> Component:
        PROGRESS.info("posterior at width %.3g", np.mean(kernel.width))
        Phi = np.ascontiguousarray(kernel(data.X, centres.points))
        prior, drawn = _prior_of(model, Phi, centres.sign, labels[0]), []
        for label in labels:
            problem = Problem(Phi, label, centres.sign, prior, of_rows, bias=bias)
            density = LogPosterior(problem.weighted(data.weight))
            states, *ended = sample_posterior(density, own, n, model.max_iter, share)
            kept = states[:, np.arange(n) * states.shape[1] // n]  # evenly spaced
            drawn.append((density.values(kept.reshape(-1, kept.shape[2])), *ended))
        values, rhat, ess, n_iter = zip(*drawn, strict=True)
        weight, biases = (np.concatenate([each[i] for each in values], axis=-1) for i in (0, 1))
        scales = unit**2 * values[0].rate, unit * values[0].noise
        whole = Values(unit * weight, middle + unit * biases, *scales)
        return Component(kernel, share, whole, max(rhat), min(ess), max(n_iter))

    shares, run = _shares(weights, model.draws), Parallel(model._jobs, prefer="threads")
    each = zip(kernels, weights, shares, rng.spawn(len(kernels)), strict=True)
    parts = run(delayed(component)(*arguments) for arguments in each)

    # what a user reads
    model._predictor_ = PosteriorMixture(parts, centres, likelihood)
    model._likelihood_ = likelihood
    if not isinstance(kernels[0], FeatureColumns):
        model.relevance_vectors_, model.support_ = centres.points, data.numbers(centres.rows)
        model.width_ = kernels[0].width
        set_features(model, model.width_, metric)
    if likelihood.targets == "numbers":
        noise = np.concatenate([part.values.noise for part in parts])
        model.noise_ = float(np.sqrt(np.mean(noise**2)))
    model.idata_ = to_datatree(model._predictor_, data, vars(model).get("classes_"))
    if plan_of(model).project:
        from pcvm_pymc.estimators.projection import project_fit  # not for most fits

        project_fit(model, data, problems, None, rng)
    model.n_iter_ = max(part.n_iter for part in parts)
    away = [each for each in parts if not _agree(each.rhat, each.ess, each.share)]
    model.status_ = Status.ITERATION_LIMIT if away else Status.CONVERGED
    rhat, ess = max((each.rhat, each.ess) for each in away or parts)
    model._warn(f"posterior with r-hat {rhat:.3f} and {ess:.0f} effective draws", model.status_)


def _standardised(label: NDArray[Any], likelihood: Any) -> tuple[Any, Any, float, float]:
    """Return targets of unit size around zero, their likelihood, and what was subtracted and divided by.

    So draws do not depend on the targets' zero and unit. Labels are returned as they are.
    """
    if not isinstance(likelihood, ScaleLikelihood):
        return label, likelihood, 0.0, 1.0
    middle = float(likelihood.middle(label))
    unit = typical_size(label - middle)
    return (label - middle) / unit, likelihood.with_noise(likelihood.noise / unit), middle, unit


def _kernels(
    model: Any, data: TrainingData, problems: Any, rng: np.random.Generator
) -> tuple[list[KernelPiece], list[float], Metric | None]:
    """Return kernels, their weights, and the relative widths of the features.

    Widths are those of the estimator's other fits: with their weights in an average of modes, or one.
    """
    if hasattr(model, "features"):
        kernel, _, metric = model._basis_functions(data)
        return [kernel], [1.0], metric
    check_size_and_scales(model, data.X, data.groups)
    widths, weights = [], [1.0]
    if plan_of(model).moves[0]:
        middle = median_distance(data.X)
        model.selection_, _, _, metric = search_grid(model, problems, data, middle, rng=rng)
        widths, weights = model.selection_.by_width()
    elif problems is not None:
        width, metric = fixed_width(model, data, rng)
    else:  # a relevance vector machine
        from pcvm_pymc.estimators.relevance import width_of  # slow: compiled

        points = as_centres(data.basis(model), data.X, None).points
        width, metric = width_of(model, data, points, rng)
    widths = widths or [width]
    return [as_kernel(model.kernel, np.asarray(each)[()]) for each in widths], weights, metric


def _centres(model: Any, data: TrainingData, kernel: KernelPiece) -> Centres:
    """Return few centres: k-means centres with unconstrained weights, or those that are given."""
    basis = model.basis
    if isinstance(kernel, FeatureColumns):
        return model._basis_functions(data)[1]
    if basis is None or isinstance(basis, Integral) or is_named(basis, "auto"):
        n_basis = None if is_named(basis, "auto") else data.basis(model) or len(data.X)
        label = None if hasattr(model, "noise") else data.label
        points, _ = choose_means(data.X, label, n_basis, random_state=0, name="basis")
        return Centres(points, None, np.full(len(points), -1))
    if isinstance(basis, tuple):  # with signs, or classes
        return centres_of(model, data)
    return replace(as_centres(basis, data.X, None), sign=None)


def _prior_of(model: Any, Phi: Array, sign: Array | None, label: NDArray[Any]) -> Any:
    """Return the prior: a given one, or the proper one that the system's row of the family has.

    A PCVM's scale is learned; without signs c = 5. Several classes have twice the prior size: on iris, glass
    .026 and .012 nats better, on wine the same; and biases of scale .45, as class frequencies have: those of
    scale one give rows far from all centres to a class with a few isolated rows (glass .02 to .05 nats).
    """
    if hasattr(model, "prior"):
        return named_prior(model.prior, Phi, gamma=model.gamma)
    if not hasattr(model, "hyperprior"):
        size, of_bias = LATENT_SIZE, 1.0
        if hasattr(model, "noise"):
            size = typical_size(label)
            of_bias = size**2 + float(np.mean(label)) ** 2
        prior = Hyperprior.default(Phi, None, latent_size=size)
        prior = replace(prior, f=prior.f * of_bias)
        return SharedHyperprior(**asdict(prior)) if model._system.shared else prior
    if not is_named(model.hyperprior, "default"):
        return prior_of(model, 1.0)
    if sign is None and len(model.classes_) == 2:
        return Hyperprior.learned(Phi, None, c=5.0)
    if sign is None:
        prior = Hyperprior.learned(Phi, None, latent_size=2.0 * LATENT_SIZE, c=5.0)
        return replace(prior, e=5.0, f=1.0)
    each = [Hyperprior.learned(Phi, one) for one in sign.reshape(len(sign), -1).T]
    return replace(each[0], d=float(np.mean([one.d for one in each])))


def _shares(weights: Sequence[float], n_draws: int) -> list[int]:
    """Return how many of a chain's draws each width has: the largest remainder first, one at least."""
    wanted = n_draws * np.asarray(weights)
    found = np.floor(wanted).astype(int)
    found[np.argsort(found - wanted, kind="stable")[: n_draws - found.sum()]] += 1
    return [max(int(n), 1) for n in found]


def _agree(rhat: float, ess: float, share: float) -> bool:
    """Return whether chains agree as closely as a part of a mixture needs.

    Its error counts by its share: with 400 times its share of effective draws in each part, means over the
    mixture are as exact as with 400 of one posterior; r-hat of so many exceeds one by as much more.
    """
    most_rhat = min(1.0 + (MOST_RHAT - 1.0) / share, _MOST_RHAT_OF_A_PART)
    return rhat <= most_rhat and ess >= LEAST_ESS * share


def sample_posterior(
    density: LogPosterior, rng: np.random.Generator, draws: int, max_iter: int, share: float
) -> tuple[Array, float, float, int]:
    """Run chains until they agree, or `max_iter` transitions would be exceeded: as many again each time.

    Returns
    -------
    states : ndarray, shape (n_chains, n_states, n_parameters)
    rhat, ess : float
        See `Component`.
    n_iter : int
        Transitions of each chain.
    """
    from arviz_stats.base import array_stats  # slow to import

    Phi = density.problem.Phi
    rows = Phi[:: -(-len(Phi) * density.problem.n_scores // _JUDGED)]
    n_warm_up = min(WARM_UP, max_iter // 2)
    n_states = min(max(draws, int(share * N_STATES), _LEAST_STATES), max_iter - n_warm_up)
    chains = HamiltonianChains(density, rng, N_CHAINS)
    chains.warm_up(n_warm_up)
    states, n_iter = chains.draw(n_states), n_warm_up + n_states
    while True:
        latent = density.values(states.reshape(-1, states.shape[2])).latent(rows)
        if latent.shape[2] > 1:  # a common shift of all scores does not show
            latent -= latent.mean(axis=2, keepdims=True)
        each, axes = latent.reshape(*states.shape[:2], -1), {"chain_axis": 0, "draw_axis": 1}
        rhat = float(array_stats.rhat(each, **axes).max())
        ess = float(array_stats.ess(each, **axes).min())
        more = n_iter - n_warm_up
        if _agree(rhat, ess, share) or n_iter + more > max_iter:
            return states, rhat, ess, n_iter
        thin = more // states.shape[1]
        states, n_iter = (
            np.concatenate([states, chains.draw(states.shape[1], thin)], 1),
            n_iter + more,
        )
        if states.shape[1] >= _MOST_STATES:
            states = states[:, 1::2]


def to_datatree(
    mixture: PosteriorMixture, data: TrainingData, classes: NDArray[Any] | None
) -> "xr.DataTree":
    """Return draws and data for ArviZ, and how the chains of each width converged.

    Within a chain the draws of several widths are in random order.
    """
    import xarray as xr  # slow to import

    parts, numbers = mixture.components, mixture.likelihood.targets == "numbers"
    scores = ("class",) if parts[0].values.bias.shape[1] > 1 else ()
    width = np.stack([np.asarray(part.kernel.width) for part in parts])
    dims = {
        "weight": ("basis", *scores),
        "bias": scores,
        "rate": (),
        **({"noise": ()} if numbers else {}),
        "latent": ("obs", *scores),
        "width": ("feature",)[: width.ndim - 1],
    }
    each: dict[str, list[Array]] = {name: [] for name in dims}
    for part, own in zip(parts, width, strict=True):
        one = replace(mixture, components=[part])
        drawn = part.values._asdict() | {"latent": one.latent_draws(data.X)}
        drawn["width"] = np.broadcast_to(own, (len(part.values.rate), *own.shape))
        for name, of_part in each.items():
            of_part.append(drawn[name].reshape(N_CHAINS, -1, *drawn[name].shape[1:]))
    posterior = {}
    for name, of_parts in each.items():
        whole = np.concatenate(of_parts, axis=1)
        order = np.arange(whole.shape[1])
        if len(parts) > 1:
            order = np.random.default_rng(0).permutation(order)
        shape = (*whole.shape[:2], *whole.shape[2 : 2 + len(dims[name])])
        posterior[name] = (("chain", "draw", *dims[name]), whole[:, order].reshape(shape))
    convergence = {name: [getattr(p, name) for p in parts] for name in ("share", "rhat", "ess")}
    found: dict[str, Any] = {name: ("component", value) for name, value in convergence.items()}
    found["width"] = (("component", *dims["width"]), width)
    coords = {"class": classes} if scores else {}
    groups = {
        "posterior": xr.Dataset(posterior, coords, {"inference_library": "pcvm_pymc"}),
        "convergence": xr.Dataset(found),
        "constant_data": xr.Dataset({"centres": (("basis", "feature"), mixture.centres.points)}),
        "observed_data": xr.Dataset({"target" if numbers else "label": ("obs", data.label)}),
    }
    return xr.DataTree.from_dict(groups)
