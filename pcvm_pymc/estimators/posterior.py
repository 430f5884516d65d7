"""The posterior of a kernel machine as an estimator: drawn at each width, mixed by leave-one-out weights."""

from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral
from typing import Any, override

import numpy as np
from scipy.special import logsumexp, softmax
from sklearn.base import is_classifier

from pcvm_pymc.core.pieces.centres import MEANS, Centres, as_centres, choose_means
from pcvm_pymc.core.pieces.kernels import FeatureColumns, Precomputed
from pcvm_pymc.core.pieces.likelihoods import Likelihood, ScaleLikelihood
from pcvm_pymc.core.pieces.priors import (
    LATENT_SIZE,
    Hyperprior,
    SharedHyperprior,
    named_prior,
    typical_size,
)
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import as_seed, check_whole
from pcvm_pymc.core.problem import Problem, Status, Values
from pcvm_pymc.core.process import MOST_ROWS, ProcessPosterior
from pcvm_pymc.estimators.chains import (
    LEAST_ESS,
    MOST_RHAT,
    N_CHAINS,
    N_STATES,
    Chains,
    agree,
    joint_statistics,
    run_until_agreed,
)
from pcvm_pymc.estimators.chooser import choose, weighed_kernels
from pcvm_pymc.estimators.draws import Component, PosteriorMixture, to_datatree
from pcvm_pymc.estimators.estimation import CHOSEN, Estimation, Fitted, is_named, refuse
from pcvm_pymc.estimators.formulation import named_hyperprior
from pcvm_pymc.estimators.training import STREAMED, TrainingData

#: widths of a process, in units of that which was chosen
WIDTH_FACTORS = 2.0 ** np.linspace(-3.0, 3.0, 25)


@dataclass(frozen=True)
class PosteriorOptions:
    """How an estimator draws from its posterior, ``estimation="posterior"``.

    Parameters
    ----------
    draws : int
        That each of four chains keeps, of all widths together.
    max_iter : int
        Most transitions of a chain, trajectories or ten sweeps of a Gibbs sampler each, at least twice the
        draws; where the chains have not agreed by then, the
        fit warns.

    Raises
    ------
    ValueError
        If a number is not a positive whole one, or there are too few transitions for the draws.

    References
    ----------
    R. M. Neal (2011), "MCMC using Hamiltonian dynamics", Handbook of Markov Chain Monte Carlo, of the
    chains; A. Vehtari et al. (2021), "Rank-normalization, folding, and localization", Bayesian Analysis
    16(2), of when they have agreed.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import PCVMClassifier
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> how = {"estimation": "posterior", "options": PosteriorOptions(100)}
    >>> model = PCVMClassifier(width=1.0, **how).fit(X, X[:, 0] > 0)
    >>> model.idata_["posterior"].sizes["draw"]
    100
    """

    draws: int = 250
    max_iter: int = 10_000

    def __post_init__(self) -> None:
        check_whole("draws", self.draws, 1)
        check_whole("max_iter", self.max_iter, 1)
        if self.max_iter < 2 * self.draws:
            raise ValueError(f"max_iter={self.max_iter}; needed at least twice draws={self.draws}")


@dataclass(frozen=True, kw_only=True)
class Posterior(Estimation):
    """Draws from the posterior, under the proper prior that the system's row of the family has.

    Attributes
    ----------
    chooser : Estimation
        Whose fits choose the width, or the widths with their weights.
    """

    chooser: Any

    solver_options = PosteriorOptions
    averages = False  # of modes, which have predictions of rows left out

    @override
    def fit(self, data: TrainingData) -> Fitted:
        """Choose widths, and draw the posterior at each."""
        # which widths
        model, likelihood = self.model, self.model._likelihood()
        rng = np.random.default_rng(as_seed(model.random_state))
        model._check_rows(data)
        few, most = data, None
        if not self.chooser.chosen and isinstance(model.width, str):
            few, most = model._search_rows(data, rng, in_chunks=False)
        n_coupled = len(data.X) * likelihood.n_scores if likelihood.n_scores > 1 else 0
        names = weighed_kernels(self.chooser, data, n_coupled)
        choice = choose(self.chooser, few, rng, most=most, kernels=names)
        kernels, weights = choice.parts(model._kernel_at)

        # the posterior at each width
        centres = self.centres(data)
        parts, (rhat, ess), n_iter = self.drawn(data, centres, kernels, weights, rng)

        # what a user reads
        mixture = PosteriorMixture(parts, centres, likelihood)
        classes, diagnostics = vars(model).get("classes_"), (rhat, ess)
        tree = to_datatree(mixture, data, classes, diagnostics, rng.spawn(1)[0])
        attributes: dict[str, Any] = {"idata_": tree}
        if not isinstance(kernels[0], FeatureColumns):
            attributes["relevance_vectors_"] = centres.points
            attributes |= {"support_": data.numbers(centres.rows), "width_": kernels[0].width}
        if likelihood.targets == "numbers":
            noise = np.concatenate([part.values.noise for part in parts])
            attributes["noise_"] = float(np.sqrt(np.mean(noise**2)))
        needed = f"needed at most {MOST_RHAT} and at least {LEAST_ESS:.0f}"
        words = f"posterior with r-hat {rhat:.3f} and {ess:.0f} effective draws, {needed}"
        statuses = [Status.CONVERGED if agree(rhat, ess) else Status.ITERATION_LIMIT]
        how: dict[str, Any] = {"n_iter": n_iter, "statuses": statuses, "solver": words, "rng": rng}
        if self.projected:
            how["formulation"] = self.chooser.formulation(data, model._basis_of(data))
        return Fitted(mixture, attributes, choice, **how)

    def drawn(
        self, data: TrainingData, centres: Centres, kernels: Any, weights: Any, rng: Any
    ) -> tuple[list[Component], tuple[float, float], int]:
        """Return the draws at each width, how their chains agree, and the most transitions of a chain.

        Several classes under a likelihood of one score are drawn one against the rest.
        """
        model, how = self.model, self.how
        likelihood: Likelihood = model._likelihood()
        data, of_rows, middle, unit = _standardised(data, likelihood)
        rows, n_classes = data.observed(of_rows), 0
        if likelihood.targets == "labels" and model._is_multiclass:
            n_classes = len(model.classes_)

        # of a chain's draws, one at least; what is left by the largest remainders
        wanted, bias = how.draws * np.asarray(weights), model._bias(by_em=True)
        whole = np.floor(wanted).astype(int)
        whole[np.argsort(whole - wanted, kind="stable")[: how.draws - whole.sum()]] += 1
        shares = np.maximum(whole, 1).tolist()
        chains: list[list[Chains]] = [[] for _ in kernels]
        arguments = zip(kernels, weights, shares, rng.spawn(len(kernels)), chains, strict=True)
        for kernel, share, n, seeds, of_kernel in arguments:
            Phi = np.ascontiguousarray(kernel(data.X, centres.points))
            prior, n_states = self.prior_at(Phi, centres.sign, data), max(n, int(share * N_STATES))
            pieces = centres.sign, prior, rows.likelihood
            problem = Problem(Phi, rows.target, *pieces, bias=bias, row_weight=rows.weight)
            for part in problem.machines(n_classes, rows.likelihood):
                of_kernel.append(Chains(part, seeds, n_states, how.max_iter))
        diagnostics = run_until_agreed(kernels, weights, chains)
        parts = []
        for kernel, share, n, of_kernel in zip(kernels, weights, shares, chains, strict=True):
            values = [chain.values(n) for chain in of_kernel]
            weight, bias = (np.concatenate([pair[k] for pair in values], axis=-1) for k in (0, 1))
            # of rows whose noise is known that of new ones is not
            scales = unit**2 * values[0].rate, unit * values[0].noise * (data.noise is None)
            drawn = Values(unit * weight, middle + unit * bias, *scales)
            parts.append(Component(kernel, share, drawn, joint_statistics(of_kernel, n)))
        return parts, diagnostics, max(chain.n_iter for part in chains for chain in part)

    @override
    def arguments(self) -> set[str]:
        names = {argument.name for argument in fields(self)}
        if self.model._width_rule in (*CHOSEN, "evidence"):  # else nothing is fitted
            names |= self.chooser.arguments()
        return names - {"scale"}  # which the posterior learns

    @override
    def check(self, in_chunks: bool) -> None:
        if in_chunks:
            refuse(self.model, "estimation", f"{STREAMED} another estimation than 'posterior'")
        if self.model._width_rule == "em":
            refuse(self.model, "width estimation", "it is moved by EM; needed an estimation by EM")
        if self.model._width_rule == "validity" and self.model._scores_all_rows:
            needed = "the validity is of a fit; needed another width, or estimation='auto'"
            refuse(self.model, "width estimation", needed)

    def prior_at(self, Phi: Array, sign: Array | None, data: TrainingData) -> Any:
        """Return the prior of the weights and the bias on some basis functions."""
        if self.model._likelihood().targets == "numbers":
            size = typical_size(data.label, data.weight)
            mean = float(np.average(data.label, weights=data.weight))
            prior = Hyperprior.default(Phi, None, latent_size=size)
            return replace(prior, f=prior.f * (size**2 + mean**2))
        prior = Hyperprior.default(Phi, None, latent_size=LATENT_SIZE)
        return SharedHyperprior(**asdict(prior)) if self.model._system.shared else prior

    def centres(self, data: TrainingData) -> Centres:
        """Return few centres: k-means centres with unconstrained weights, or those that are given."""
        model = self.model
        basis = model.basis if isinstance(model.basis, str) else model._resolved_basis(len(data.X))
        given = isinstance(basis, tuple) or isinstance(model._kernel_at(1.0), FeatureColumns)
        if given:  # with signs, or classes; or columns
            centres: Centres = model._centres(data, basis)
            return centres
        if isinstance(model._kernel, Precomputed):  # which has no means
            basis = MEANS if isinstance(basis, str) else basis
            basis = None if basis is None else min(basis, len(data.X))
        elif basis is None or isinstance(basis, Integral | str):
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
            refuse(self.model, "estimation hyperprior", needed)

    @override
    def prior_at(self, Phi: Array, sign: Array | None, data: TrainingData) -> Any:
        """Return a given prior, or one of a scale that is learned; without signs c = 5.

        Several classes have twice the prior size: on iris, glass .026 and .012 nats better, on wine the same;
        and biases of scale .45, as class frequencies have: those of scale one give rows far from all centres
        to a class with a few isolated rows (glass .02 to .05 nats).
        """
        if not is_named(self.hyperprior, "default"):
            return named_hyperprior(self.hyperprior, self.model._system.priors)
        if sign is None and len(self.model.classes_) == 2:
            return Hyperprior.learned(Phi, None)
        if sign is None:
            prior = Hyperprior.learned(Phi, None, latent_size=2.0 * LATENT_SIZE)
            return replace(prior, e=5.0, f=1.0)
        priors = [Hyperprior.learned(Phi, column) for column in sign.reshape(len(sign), -1).T]
        return replace(priors[0], d=float(np.mean([prior.d for prior in priors])))


@dataclass(frozen=True, kw_only=True)
class ProcessDraws(Posterior):
    """Draws from the posterior of a regression as a Gaussian process of its rows, under normal noise."""

    @override
    def centres(self, data: TrainingData) -> Centres:
        return as_centres(MOST_ROWS if len(data.X) > MOST_ROWS else None, data.X, None)

    @override
    def drawn(
        self, data: TrainingData, centres: Centres, kernels: Any, weights: Any, rng: Any
    ) -> tuple[list[Component], tuple[float, float], int]:
        """Return draws at widths around the one that was chosen, each with its posterior probability.

        Draws are independent, so that their chains agree, however few they are.
        """
        draws, points = self.how.draws, centres.points
        data, likelihood, middle, unit = _standardised(data, self.model._likelihood())
        seen: Any = data.observed(likelihood)
        of_rows = seen.target, seen.likelihood.noise, seen.weight
        factors = WIDTH_FACTORS if isinstance(self.model.width, str) else np.ones(1)
        at = [kernels[0].with_width(kernels[0].width * factor) for factor in factors]
        bases = ((kernel(data.X, points), kernel(points, points)) for kernel in at)
        processes = [ProcessPosterior.of(*basis, *of_rows) for basis in bases]
        density = np.array([logsumexp(process.log_density) for process in processes])
        shares, parts = softmax(density - 0.5 * np.log(factors) ** 2), []  # log-normal widths
        sizes = rng.multinomial(draws, shares)
        for kernel, process, share, n in zip(at, processes, shares, sizes, strict=True):
            if n:
                weight, bias, amplitude, noise = process.draws(N_CHAINS * n, rng)
                scales = unit**2 * amplitude, unit * noise * (data.noise is None)
                values = Values(unit * weight[:, :, None], middle + unit * bias[:, None], *scales)
                parts.append(Component(kernel, float(share), values, {}, process.root))
        return parts, (1.0, max(N_CHAINS * draws, LEAST_ESS)), draws


@dataclass(frozen=True, kw_only=True)
class SparsePosterior(Posterior):
    """Draws from the posterior of a sparse probit, under a proper prior."""

    prior: Any
    gamma: float

    @override
    def check(self, in_chunks: bool) -> None:
        super().check(in_chunks)
        if not named_prior(self.prior, np.ones((1, 1)), gamma=self.gamma).is_proper:
            needed = "needed prior='laplace' or another proper one"
            refuse(self.model, "estimation prior", f"an improper prior has no posterior; {needed}")

    @override
    def prior_at(self, Phi: Array, sign: Array | None, data: TrainingData) -> Any:
        return named_prior(self.prior, Phi, gamma=self.gamma)

    @override
    def fit(self, data: TrainingData) -> Fitted:
        prior = named_prior(self.prior, np.ones((1, 1)), gamma=self.gamma)
        fitted = super().fit(data)
        return replace(fitted, attributes=fitted.attributes | {"prior_": prior})


def _standardised(data: TrainingData, likelihood: Any) -> tuple[TrainingData, Any, float, float]:
    """Return rows with targets of unit size around zero, the likelihood, and what was taken off and divided.

    So draws do not depend on the targets' zero and unit. Labels are returned as they are.
    """
    if not isinstance(likelihood, ScaleLikelihood):
        return data, likelihood, 0.0, 1.0
    weight = data.observed(likelihood).weight
    middle = float(likelihood.middle(data.label, weights=weight))
    unit = typical_size(data.label - middle, data.weight)
    known = None if data.noise is None else data.noise / unit
    scaled = replace(data, label=(data.label - middle) / unit, noise=known)
    return scaled, likelihood.with_noise(likelihood.noise / unit), middle, unit
