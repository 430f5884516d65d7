"""The posterior of a kernel machine as an estimator: drawn at each width, mixed by leave-one-out weights."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, override

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.base import is_classifier
from sklearn.utils import gen_batches

from pcvm_pymc.core.hamiltonian import LogPosterior, Values
from pcvm_pymc.core.pieces.centres import MEANS, Centres, as_centres, choose_means
from pcvm_pymc.core.pieces.kernels import FeatureColumns, KernelPiece, Precomputed
from pcvm_pymc.core.pieces.likelihoods import Likelihood, ScaleLikelihood
from pcvm_pymc.core.pieces.priors import (
    LATENT_SIZE,
    Hyperprior,
    SharedHyperprior,
    named_prior,
    typical_size,
)
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.row_weights import against_rest
from pcvm_pymc.core.pieces.validation import as_seed
from pcvm_pymc.core.probabilities import (
    class_probability,
    log_class_probability,
    log_normalised,
    normalised,
)
from pcvm_pymc.core.problem import Problem, Status
from pcvm_pymc.estimators.base import STREAMED
from pcvm_pymc.estimators.chains import (
    LEAST_ESS,
    MOST_RHAT,
    N_CHAINS,
    N_STATES,
    Chains,
    agree,
    by_time,
    run_until_agreed,
)
from pcvm_pymc.estimators.chooser import choose, weighed_kernels
from pcvm_pymc.estimators.estimation import CHOSEN, Estimation, is_named
from pcvm_pymc.estimators.formulation import named_hyperprior
from pcvm_pymc.estimators.modes import Dense
from pcvm_pymc.estimators.predictors import Average, Predictor
from pcvm_pymc.estimators.training import TrainingData

if TYPE_CHECKING:
    import xarray as xr

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
        points = self.centres.points
        found = np.concatenate([e.values.latent(e.kernel(X, points)) for e in self.components])
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
        draws = self.probability_draws
        return _in_blocks(X, n_jobs, lambda rows: normalised(draws(rows).mean(axis=0)))

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

    @override
    def interval(self, X: Array, probability: float, data: TrainingData | None = None) -> Array:
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


@dataclass(frozen=True, kw_only=True)
class Posterior(Estimation):
    """Draws from the posterior, under the proper prior that the system's row of the family has.

    Attributes
    ----------
    draws : int
        That each chain keeps, of all widths together.
    max_iter : int
        Most transitions of a chain.
    chooser : Estimation
        Whose fits choose the width, or the widths with their weights.
    """

    draws: int = 250
    max_iter: int = 10_000
    chooser: Any

    leaves_out = False

    @override
    def fit(self, data: TrainingData, *, projected: bool = False) -> Dense:
        """Choose widths, draw the posterior at each, and set the fitted attributes."""
        # which widths
        model, likelihood = self.model, self.likelihood
        rng = np.random.default_rng(as_seed(model.random_state))
        model._check_rows(data)
        few, most = data, None
        if not self.chooser.chosen and isinstance(model.width, str):
            few, most = model._search_rows(data, rng, in_chunks=False)
        n_coupled = len(data.X) * likelihood.n_scores if likelihood.n_scores > 1 else 0
        names = weighed_kernels(self.chooser, data, n_coupled)
        choice = choose(self.chooser, few, rng, most=most, kernels=names)
        choice.publish(model)
        kernels, weights = choice.parts(model._kernel_at)

        # the posterior at each width
        centres = self.centres(data)
        parts, (rhat, ess), n_iter = self.drawn(data, centres, kernels, weights, rng)

        # what a user reads
        model._predictor_ = PosteriorMixture(parts, centres, likelihood)
        model._likelihood_ = likelihood
        if not isinstance(kernels[0], FeatureColumns):
            model.relevance_vectors_, model.support_ = centres.points, data.numbers(centres.rows)
            model.width_ = kernels[0].width
            model._set_widths(model.width_, choice.metric)
        if likelihood.targets == "numbers":
            noise = np.concatenate([part.values.noise for part in parts])
            model.noise_ = float(np.sqrt(np.mean(noise**2)))
        classes = vars(model).get("classes_")
        model.idata_ = to_datatree(model._predictor_, data, classes, (rhat, ess))
        model.n_iter_ = n_iter
        model.status_ = Status.CONVERGED if agree(rhat, ess) else Status.ITERATION_LIMIT
        needed = f"needed at most {MOST_RHAT} and at least {LEAST_ESS:.0f}"
        words = f"posterior with r-hat {rhat:.3f} and {ess:.0f} effective draws, {needed}"
        model._warn(words, model.status_)
        basis = model._basis_of(data)
        dense: Any = self.chooser.formulation(data, basis) if projected else None
        return Dense(dense, None, rng)

    def drawn(
        self, data: TrainingData, centres: Centres, kernels: Any, weights: Any, rng: Any
    ) -> tuple[list[Component], tuple[float, float], int]:
        """Return the draws at each width, how their chains agree, and the most transitions of a chain.

        Several classes under a likelihood of one score are drawn one against the rest.
        """
        model, likelihood = self.model, self.likelihood
        label, of_rows, middle, unit = _standardised(data.label, likelihood)
        labels = [label]
        if likelihood.targets == "labels" and model._is_multiclass:
            n_classes = len(model.classes_)
            each_class = range(n_classes) if n_classes > 2 else range(1, 2)
            labels = [against_rest(data.label, c) for c in each_class]

        def chains_of(kernel: Any, share: float, n: int, seeds: Any) -> list[Chains]:
            Phi = np.ascontiguousarray(kernel(data.X, centres.points))
            prior, each = self.prior_at(Phi, centres.sign, labels[0]), []
            bias = model._bias(by_em=True)
            for label in labels:
                problem = Problem(Phi, label, centres.sign, prior, of_rows, bias=bias)
                density = LogPosterior(problem.weighted(data.weight))
                each.append(Chains(density, seeds, max(n, int(share * N_STATES)), self.max_iter))
            return each

        shares = _shares(weights, self.draws)
        arguments = zip(kernels, weights, shares, rng.spawn(len(kernels)), strict=True)
        chains = [chains_of(*each) for each in arguments]
        diagnostics = run_until_agreed(kernels, weights, chains, model._jobs)
        parts = []
        for kernel, share, n, one in zip(kernels, weights, shares, chains, strict=True):
            values = [each.values(n) for each in one]
            weight, bias = (np.concatenate([each[k] for each in values], axis=-1) for k in (0, 1))
            scales = unit**2 * values[0].rate, unit * values[0].noise
            drawn = Values(unit * weight, middle + unit * bias, *scales)
            parts.append(Component(kernel, share, drawn))
        return parts, diagnostics, max(each.n_iter for one in chains for each in one)

    @override
    def arguments(self) -> set[str]:
        found = {each.name for each in fields(self)}
        if self.model._width_rule in (*CHOSEN, "evidence"):  # else nothing is fitted
            found |= self.chooser.arguments()
        return found - {"scale"}  # which the posterior learns

    @override
    def check(self, in_chunks: bool) -> None:
        if self.max_iter < 2 * self.draws:
            needed = "fewer transitions than warm-up and draws; needed twice the draws at least"
            self.refuse("max_iter draws", needed)
        if in_chunks:
            self.refuse("estimation", f"{STREAMED} another estimation than 'posterior'")
        if self.model._width_rule == "em":
            self.refuse("width estimation", "it is moved by EM; needed an estimation by EM")
        if self.model._width_rule == "validity" and self.model._scores_all_rows:
            needed = "the validity is of a fit; needed another width, or estimation='auto'"
            self.refuse("width estimation", needed)

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood; of a regression with the noise that is given."""
        found: Likelihood = self.model._likelihood()
        noise = vars(self.model).get("noise")
        return found.with_noise(noise) if noise else found

    def prior_at(self, Phi: Array, sign: Array | None, label: NDArray[Any]) -> Any:
        """Return the prior of the weights and the bias on some basis functions."""
        if self.likelihood.targets == "numbers":
            size = typical_size(label)
            prior = Hyperprior.default(Phi, None, latent_size=size)
            return replace(prior, f=prior.f * (size**2 + float(np.mean(label)) ** 2))
        prior = Hyperprior.default(Phi, None, latent_size=LATENT_SIZE)
        return SharedHyperprior(**asdict(prior)) if self.model._system.shared else prior

    def centres(self, data: TrainingData) -> Centres:
        """Return few centres: k-means centres with unconstrained weights, or those that are given."""
        model = self.model
        basis = model.basis if isinstance(model.basis, str) else model._resolved_basis(len(data.X))
        given = isinstance(basis, tuple) or isinstance(model._kernel_at(1.0), FeatureColumns)
        if given:  # with signs, or classes; or columns
            found: Centres = model._centres(data, basis)
            return found
        if isinstance(model._kernel, Precomputed):  # which has no means
            n_basis = MEANS if isinstance(basis, str) else basis
            rows = None if n_basis is None else min(int(n_basis), len(data.X))
            return replace(as_centres(rows, data.X, None), sign=None)
        if basis is None or isinstance(basis, Integral | str):
            n_basis = None if isinstance(basis, str) else model._basis_of(data) or len(data.X)
            label = data.label if is_classifier(model) else None
            points, _ = choose_means(data.X, label, n_basis, random_state=0, name="basis")
            return Centres(points, None, np.full(len(points), -1))
        return replace(as_centres(basis, data.X, None), sign=None)


@dataclass(frozen=True, kw_only=True)
class PCVMPosterior(Posterior):
    """Draws from the posterior of a PCVM of two classes or several; its scale is learned."""

    hyperprior: Any

    @override
    def check(self, in_chunks: bool) -> None:
        super().check(in_chunks)
        prior = named_hyperprior(self.hyperprior, self.model._system.priors)
        if not prior.is_proper:
            needed = "an improper prior has no posterior; needed a proper Hyperprior, or 'default'"
            self.refuse("estimation hyperprior", needed)

    @override
    def prior_at(self, Phi: Array, sign: Array | None, label: NDArray[Any]) -> Any:
        """Return a given prior, or one of a scale that is learned; without signs c = 5.

        Several classes have twice the prior size: on iris, glass .026 and .012 nats better, on wine the same;
        and biases of scale .45, as class frequencies have: those of scale one give rows far from all centres
        to a class with a few isolated rows (glass .02 to .05 nats).
        """
        if not is_named(self.hyperprior, "default"):
            return named_hyperprior(self.hyperprior, self.model._system.priors)
        if sign is None and len(self.model.classes_) == 2:
            return Hyperprior.learned(Phi, None, c=5.0)
        if sign is None:
            prior = Hyperprior.learned(Phi, None, latent_size=2.0 * LATENT_SIZE, c=5.0)
            return replace(prior, e=5.0, f=1.0)
        each = [Hyperprior.learned(Phi, one) for one in sign.reshape(len(sign), -1).T]
        return replace(each[0], d=float(np.mean([one.d for one in each])))


@dataclass(frozen=True, kw_only=True)
class SparsePosterior(Posterior):
    """Draws from the posterior of a sparse probit, under a proper prior."""

    prior: Any
    gamma: float

    @override
    def check(self, in_chunks: bool) -> None:
        super().check(in_chunks)
        if not named_prior(self.prior, np.ones((1, 1)), gamma=self.gamma).is_proper:
            needed = (
                "an improper prior has no posterior; needed prior='laplace' or another proper one"
            )
            self.refuse("estimation prior", needed)

    @override
    def prior_at(self, Phi: Array, sign: Array | None, label: NDArray[Any]) -> Any:
        return named_prior(self.prior, Phi, gamma=self.gamma)

    @override
    def fit(self, data: TrainingData, *, projected: bool = False) -> Dense:
        self.model.prior_ = named_prior(self.prior, np.ones((1, 1)), gamma=self.gamma)
        return super().fit(data, projected=projected)


def _standardised(label: NDArray[Any], likelihood: Any) -> tuple[Any, Any, float, float]:
    """Return targets of unit size around zero, their likelihood, and what was subtracted and divided by.

    So draws do not depend on the targets' zero and unit. Labels are returned as they are.
    """
    if not isinstance(likelihood, ScaleLikelihood):
        return label, likelihood, 0.0, 1.0
    middle = float(likelihood.middle(label))
    unit = typical_size(label - middle)
    return (label - middle) / unit, likelihood.with_noise(likelihood.noise / unit), middle, unit


def _shares(weights: Sequence[float], n_draws: int) -> list[int]:
    """Return how many of a chain's draws each width has: the largest remainder first, one at least."""
    wanted = n_draws * np.asarray(weights)
    found = np.floor(wanted).astype(int)
    found[np.argsort(found - wanted, kind="stable")[: n_draws - found.sum()]] += 1
    return [max(int(n), 1) for n in found]


def to_datatree(
    mixture: PosteriorMixture,
    data: TrainingData,
    classes: NDArray[Any] | None,
    diagnostics: tuple[float, float],
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
    for part, of_part in zip(parts, width, strict=True):
        one = replace(mixture, components=[part])
        drawn = part.values._asdict() | {"latent": one.latent_draws(data.X)}
        drawn["width"] = np.broadcast_to(of_part, (len(part.values.rate), *of_part.shape))
        for name, values in each.items():
            values.append(drawn[name].reshape(N_CHAINS, -1, *drawn[name].shape[1:]))
    posterior = {}
    for name, of_parts in each.items():
        chains = np.concatenate(of_parts, axis=1)
        order = by_time([each.shape[1] for each in of_parts])
        shape = (*chains.shape[:2], *chains.shape[2 : 2 + len(dims[name])])
        posterior[name] = (("chain", "draw", *dims[name]), chains[:, order].reshape(shape))
    found: dict[str, Any] = {"share": ("component", [each.share for each in parts])}
    found |= {
        "rhat": diagnostics[0],
        "ess": diagnostics[1],
        "width": (("component", *dims["width"]), width),
        "kernel": ("component", [part.kernel.name for part in parts]),
    }
    coords = {"class": classes} if scores else {}
    groups = {
        "posterior": xr.Dataset(posterior, coords, {"inference_library": "pcvm_pymc"}),
        "convergence": xr.Dataset(found),
        "constant_data": xr.Dataset({"centres": (("basis", "feature"), mixture.centres.points)}),
        "observed_data": xr.Dataset({"target" if numbers else "label": ("obs", data.label)}),
    }
    return xr.DataTree.from_dict(groups)
