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
from pcvm_pymc.core.pieces.likelihood import against_rest, log_normalised, normalised
from pcvm_pymc.core.pieces.likelihoods import Likelihood
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
# of the latent function of the mixture, at which chains have converged; see `mixture_diagnostics`
MOST_RHAT, LEAST_ESS = 1.01, 400.0
_LEAST_STATES = 100  # of a chain at a width, whatever its share
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
    """

    kernel: KernelPiece
    share: float
    values: Values


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
        return _in_blocks(
            X, n_jobs, lambda rows: normalised(self.probability_draws(rows).mean(axis=0))
        )

    def log_probability(self, X: Array, n_jobs: int = 1) -> Array:
        """Return logarithms of posterior means of the class probabilities, exact in the tails."""

        def log_mean(rows: Array) -> Array:
            each = self._draws(log_class_probability, rows)
            return log_normalised(logsumexp(each, axis=0))

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
    centres, labels = _centres(model, data, kernels[0]), [data.label]
    if likelihood.targets == "labels" and model._takes_several:
        n_classes = len(model.classes_)
        each_class = range(n_classes) if n_classes > 2 else range(1, 2)
        labels = [against_rest(data.label, c) for c in each_class]

    # the posterior at each width, until the chains of the mixture agree
    def chains_of(kernel: Any, share: float, n: int, own: np.random.Generator) -> list[Chains]:
        Phi = np.ascontiguousarray(kernel(data.X, centres.points))
        prior, each = _prior_of(model, Phi, centres.sign, data.label), []
        for label in labels:
            problem = Problem(Phi, label, centres.sign, prior, likelihood, bias=bias)
            density = LogPosterior(problem.weighted(data.weight))
            each.append(Chains(density, own, max(n, int(share * N_STATES)), model.max_iter))
        return each

    shares = _shares(weights, model.draws)
    own = zip(kernels, weights, shares, rng.spawn(len(kernels)), strict=True)
    chains = [chains_of(*each) for each in own]
    rhat, ess = run_until_agreed(kernels, weights, chains, model._jobs)
    parts = []
    for kernel, share, n, one in zip(kernels, weights, shares, chains, strict=True):
        values = [each.values(n) for each in one]
        weight, biases = (np.concatenate([each[k] for each in values], axis=-1) for k in (0, 1))
        parts.append(Component(kernel, share, values[0]._replace(weight=weight, bias=biases)))

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
    model.idata_ = to_datatree(model._predictor_, data, vars(model).get("classes_"), rhat, ess)
    if plan_of(model).project:
        from pcvm_pymc.estimators.projection import project_fit  # not for most fits

        project_fit(model, data, problems, None, rng)
    model.n_iter_ = max(each.n_iter for one in chains for each in one)
    model.status_ = Status.CONVERGED if _agree(rhat, ess) else Status.ITERATION_LIMIT
    needed = f"needed at most {MOST_RHAT} and at least {LEAST_ESS:.0f}"
    words = f"posterior with r-hat {rhat:.3f} and {ess:.0f} effective draws, {needed}"
    model._warn(words, model.status_)


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


def _agree(rhat: float, ess: float) -> bool:
    """Return whether the chains of a mixture agree."""
    return rhat <= MOST_RHAT and ess >= LEAST_ESS


def _by_time(sizes: Sequence[int]) -> NDArray[np.intp]:
    """Return the order in which draws of several widths are those of one chain: by their time in it."""
    times = np.concatenate([(np.arange(n) + 0.5) / n for n in sizes])
    return np.argsort(times, kind="stable")


def mixture_diagnostics(latent: Sequence[Array], shares: Sequence[float]) -> tuple[float, float]:
    """Return the largest r-hat and the least effective sample size of the latent function of a mixture.

    Each chain of the mixture has as many states of each width as its share says, evenly spaced, in the order
    of their time: its averages are those that predict.

    Parameters
    ----------
    latent : sequence of ndarray, shape (n_chains, n_states, n_values)
        At each width.
    shares : sequence of float
    """
    from arviz_stats.base import array_stats  # slow to import

    n_states = min(each.shape[1] / share for each, share in zip(latent, shares, strict=True))
    sizes = [max(int(n_states * share), 1) for share in shares]
    parts = [spaced(each, n) for each, n in zip(latent, sizes, strict=True)]
    mixed, axes = np.concatenate(parts, axis=1), {"chain_axis": 0, "draw_axis": 1}
    mixed = mixed[:, _by_time(sizes)]
    return float(array_stats.rhat(mixed, **axes).max()), float(array_stats.ess(mixed, **axes).min())


def spaced(states: Array, n: int) -> Array:
    """Return some states of each chain, evenly spaced."""
    return states[:, np.arange(n) * states.shape[1] // n]


class Chains:
    """Chains of the posterior at one width, which can be continued.

    Parameters
    ----------
    density : LogPosterior
    rng : numpy.random.Generator
    n_states : int
        Of each chain to begin with, if `max_iter` leaves room for them after the warm-up.
    max_iter : int

    Attributes
    ----------
    states : ndarray, shape (n_chains, n_states, n_parameters)
    n_iter : int
        Transitions of each chain, warm-up included.
    """

    def __init__(
        self, density: LogPosterior, rng: np.random.Generator, n_states: int, max_iter: int
    ) -> None:
        self.density, self._max_iter = density, max_iter
        self._chains = HamiltonianChains(density, rng, N_CHAINS)
        self._n_warm_up = min(WARM_UP, max_iter // 2)
        self._n_states = min(max(n_states, _LEAST_STATES), max_iter - self._n_warm_up)
        self.n_iter, self.states = 0, np.empty((N_CHAINS, 0, 0))

    def run(self) -> bool:
        """Take as many transitions again, if `max_iter` leaves room for them; return whether it does."""
        if not self.n_iter:
            self._chains.warm_up(self._n_warm_up)
            self.states = self._chains.draw(self._n_states)
            self.n_iter = self._n_warm_up + self._n_states
            return True
        more = self.n_iter - self._n_warm_up
        if self.n_iter + more > self._max_iter:
            return False
        new = self._chains.draw(self.states.shape[1], more // self.states.shape[1])
        self.states, self.n_iter = np.concatenate([self.states, new], 1), self.n_iter + more
        if self.states.shape[1] >= _MOST_STATES:
            self.states = self.states[:, 1::2]
        return True

    def values(self, n: int) -> Values:
        """Return the values of some states of each chain, chains one after the other."""
        return self.density.values(spaced(self.states, n).reshape(-1, self.states.shape[2]))

    def latent(self) -> Array:
        """Return the latent function by which they are judged, shape (n_chains, n_states, n_values)."""
        Phi, n_states = self.density.problem.Phi, self.states.shape[1]
        rows = Phi[:: -(-len(Phi) * self.density.problem.n_scores // _JUDGED)]
        latent = self.values(n_states).latent(rows)
        if latent.shape[2] > 1:  # a common shift of all scores does not show
            latent -= latent.mean(axis=2, keepdims=True)
        return latent.reshape(N_CHAINS, n_states, -1)


def run_until_agreed(
    kernels: Sequence[Any], shares: Sequence[float], chains: list[list[Chains]], n_jobs: int
) -> tuple[float, float]:
    """Run chains of each width and label until the mixture's agree for each label, or `max_iter` ends them.

    Returns the largest r-hat and the least effective sample size over the labels, see `mixture_diagnostics`.
    """

    def longer(kernel: Any, each: list[Chains], some: Sequence[int]) -> list[bool]:
        PROGRESS.info("posterior at width %.3g", np.mean(kernel.width))
        return [each[i].run() for i in some]

    run, some = Parallel(n_jobs, prefer="threads"), list(range(len(chains[0])))
    found = dict[int, tuple[float, float]]()
    while some:
        each = zip(kernels, chains, strict=True)
        ran = np.all(run(delayed(longer)(*one, some) for one in each), axis=0)
        for i in some:
            found[i] = mixture_diagnostics([one[i].latent() for one in chains], shares)
        some = [i for i, more in zip(some, ran, strict=True) if more and not _agree(*found[i])]
    rhat, ess = np.transpose(list(found.values()))
    return float(rhat.max()), float(ess.min())


def to_datatree(
    mixture: PosteriorMixture,
    data: TrainingData,
    classes: NDArray[Any] | None,
    rhat: float,
    ess: float,
) -> "xr.DataTree":
    """Return draws and data for ArviZ, and how the chains of the mixture converged.

    Within a chain the draws of several widths are in the order of their time.
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
        order = _by_time([each.shape[1] for each in of_parts])
        shape = (*whole.shape[:2], *whole.shape[2 : 2 + len(dims[name])])
        posterior[name] = (("chain", "draw", *dims[name]), whole[:, order].reshape(shape))
    found: dict[str, Any] = {"share": ("component", [each.share for each in parts])}
    found |= {"rhat": rhat, "ess": ess, "width": (("component", *dims["width"]), width)}
    coords = {"class": classes} if scores else {}
    groups = {
        "posterior": xr.Dataset(posterior, coords, {"inference_library": "pcvm_pymc"}),
        "convergence": xr.Dataset(found),
        "constant_data": xr.Dataset({"centres": (("basis", "feature"), mixture.centres.points)}),
        "observed_data": xr.Dataset({"target" if numbers else "label": ("obs", data.label)}),
    }
    return xr.DataTree.from_dict(groups)
