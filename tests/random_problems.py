"""Random problems of every kind that solvers take: scales 1e-8 to 1e8, odd kernels, few and equal rows."""

from dataclasses import dataclass, replace

import numpy as np

from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.evidence import EvidenceOptions, EvidenceProblem, fit_rvm
from pcvm_pymc.core.evidence.active_set import gains, scanned
from pcvm_pymc.core.evidence.active_set import leave_one_out as without_column
from pcvm_pymc.core.evidence.problem import columns_of
from pcvm_pymc.core.evidence.rank_one import _FAINT
from pcvm_pymc.core.gibbs import GibbsProblem, advance
from pcvm_pymc.core.loo import leave_one_out
from pcvm_pymc.core.pieces.kernels import as_kernel, median_distance
from pcvm_pymc.core.pieces.likelihoods import LIKELIHOODS, MultinomialProbit
from pcvm_pymc.core.pieces.priors import Hyperprior, Laplace
from pcvm_pymc.core.problem import Problem, Status
from pcvm_pymc.core.projection import Target, project_path
from pcvm_pymc.core.validity import pcvm_validity

PRIORS = (Hyperprior.plug_in(), Hyperprior(1.0, 0.01, 0.5, 1.0), Hyperprior.jeffreys())
PRIORS += (Hyperprior.chen2009(), Laplace(1.0))

LEAST_GAIN = 0.02  # of log posterior, where EM says that it converged
NEWTON = EMOptions(update="newton", max_iter=1)
STEP_LEFT = 1e-3  # of the latent function, at KKT points
LARGEST_SHARE = 1e15  # of squares of basis functions in the prior's precisions: above, they lose it
# the bound's steps creep: their changes fall far from the end
TIGHT = {"tol": 1e-8, "max_iter": 200}


def _inverse(X, Z, width):
    return 1.0 / (1.0 + np.abs(X[:, :1] - Z[:, :1].T) / width)


def _product(X, Z, width):
    return X @ Z.T / width**2


def _constant(X, Z, width):
    return np.ones((len(X), len(Z)))


def _indefinite(X, Z, width):
    return np.tanh(X @ Z.T / width**2 - 1.0)


KERNELS = ("rbf", _inverse, _product, _constant, _indefinite)


@dataclass
class Case:
    """Rows, labels, basis functions of a random scale, and where they stand."""

    X: np.ndarray
    label: np.ndarray
    Phi: np.ndarray
    scale: float
    width: float
    kernel: object


def case(seed, n_classes=2, kernel=None):
    """Return a random case; the same one for the same seed."""
    rng = np.random.default_rng([seed, n_classes])
    n, d = int(rng.integers(max(4, n_classes + 1), 26)), int(rng.integers(1, 4))
    X = rng.normal(size=(n, d)) + rng.choice([0.0, 0.0, 100.0])
    if rng.random() < 0.2:
        X[rng.integers(n)] = X[0]
    if rng.random() < 0.1:
        X[:, 0] = 1.0
    X *= 10.0 ** rng.integers(-8, 9)
    width = median_distance(X) * 10.0 ** rng.uniform(-1.5, 1.5)
    kernel = KERNELS[rng.integers(len(KERNELS))] if kernel is None else kernel
    scale = 10.0 ** rng.integers(-8, 9) if kernel != "rbf" and rng.random() < 0.7 else 1.0
    label = rng.integers(n_classes, size=n)
    label[:n_classes] = np.arange(n_classes)
    Phi = as_kernel(kernel, width)(X, X) if kernel == "rbf" else kernel(X, X, width)
    largest = np.abs(Phi).max() or 1.0
    return Case(X, label, scale * Phi / (largest if kernel != "rbf" else 1.0), scale, width, kernel)


def problem_of(seed, prior=None, likelihood="probit", signed=True):
    """Return a random problem of two classes."""
    found, rng = case(seed), np.random.default_rng([seed, 1])
    label = 2.0 * found.label - 1.0
    prior = PRIORS[rng.integers(len(PRIORS))] if prior is None else prior
    sign = label.copy() if signed else None
    piece = LIKELIHOODS[likelihood]()
    return found, Problem(found.Phi, label, sign, prior, piece, width=found.width)


def faults_of_em(problem, result, tolerance=1e-7):
    """Return what is wrong with a fit: not finite, not monotone, no stationary point of the log posterior."""
    values = result.trace.log_posterior
    # a start with responses of its own: monotone from the first iteration on
    if problem.n_scores > 1:
        values = values[1:]
    parts = (result.weight, result.bias, result.latent, values)
    if not all(np.isfinite(each).all() for each in parts):
        return "not finite"
    fall = float(np.max(values[:-1] - values[1:], initial=0.0))
    if fall > tolerance * max(1.0, float(np.abs(values).max())):
        return f"falls by {fall:.3g} from {values[0]:.6g}"
    if problem.is_signed and (result.weight * problem.weight_sign < 0).any():
        return "a sign is wrong"
    step = step_left(problem, result) if result.status is Status.CONVERGED else 0.0
    return f"no KKT point: a step of {step:.3g} is left" if step > STEP_LEFT else ""


def step_left(problem, result):
    """Return how far any one weight or bias still wants to go, in units of the latent function.

    Its gradient over the bound of its curvature: zero where the KKT conditions hold. A weight at zero counts
    where its gradient points the allowed way and is above the penalty; not where the prior holds zeros for
    good.
    """
    prior, Phi = problem.hyperprior, problem.Phi
    n_basis, n_scores = Phi.shape[1], problem.n_scores
    weight, sign = (w.reshape(n_basis, n_scores) for w in (result.weight, problem.weight_sign))
    slope = problem.likelihood.score(result.latent, problem.label).reshape(-1, n_scores)
    active, pull = weight != 0, Phi.T @ slope
    has_precision = active | (not prior.holds_zeros)
    precision = np.zeros(weight.shape)
    precision[has_precision] = prior.weight_precision(weight)[has_precision]
    gradient = pull - precision * weight
    outward = sign * pull if problem.is_signed else np.abs(pull)
    at_zero = 0.0 if prior.holds_zeros and prior.penalty == 0 else outward - prior.penalty
    square = (Phi**2).sum(axis=0)[:, None]
    if (square > LARGEST_SHARE * precision)[active].any():
        return 0.0
    wanted = np.where(active, np.abs(gradient), np.maximum(at_zero, 0.0))
    bend = problem.likelihood.bound * square + precision
    steps = np.abs(Phi).max(axis=0)[:, None] * wanted / np.maximum(bend, 1e-300)
    bias = np.atleast_1d(result.bias)
    of_bias = prior.bias_precision(bias[bias != 0])
    left = slope.sum(axis=0)[bias != 0] - of_bias * bias[bias != 0]
    left = left / (problem.likelihood.bound * len(slope) + of_bias)
    return float(max(steps.max(initial=0.0), np.abs(left).max(initial=0.0)))


def fit_em_randomly(seed):
    """Fit a PCVM by EM; return what is wrong."""
    rng = np.random.default_rng([seed, 2])
    likelihood = ("probit", "logit", "label noise", "normal-probability")[rng.integers(4)]
    _, problem = problem_of(seed, likelihood=likelihood)
    options = EMOptions(update=("auto", "newton", "em")[rng.integers(3)], **TIGHT)
    result = fit_em(problem, None, options)
    if result.status is Status.CONVERGED:
        further = fit_em(problem, Start(result.weight, result.bias), NEWTON)
        gain = further.log_posterior - result.log_posterior
        # under a flat prior a weight that vanishes gains without end, and changes nothing
        if gain > LEAST_GAIN and np.abs(further.latent - result.latent).max() > 1e-6:
            return f"a Newton step gains {gain:.3g}"
    return faults_of_em(problem, result)


def fit_sparse_probit_randomly(seed):
    """Fit a sparse probit by EM; return what is wrong."""
    _, problem = problem_of(seed, signed=False)
    result = fit_em(problem, None, EMOptions(**TIGHT))
    found = faults_of_em(problem, result)
    size = np.abs(result.weight[result.weight != 0])
    if not found and isinstance(problem.hyperprior, Laplace) and size.size:
        share = size * np.abs(problem.Phi).max()
        if result.converged and share.min() < 1e-30:
            return f"a weight of {size.min():.3g} is active"
    return found


def classes_of(seed, rng):
    """Return a random problem of two to four classes."""
    n_classes = int(rng.integers(2, 5))
    found = case(seed, n_classes)
    prior = PRIORS[rng.integers(3)]
    sign = np.where(found.label[:, None] == np.arange(n_classes), 1.0, -1.0)
    bias = ("prior", "none")[rng.integers(2)]
    return Problem(found.Phi, found.label, sign, prior, MultinomialProbit(n_classes), bias)


def fit_classes_randomly(seed):
    """Fit several classes by EM; return what is wrong."""
    problem = classes_of(seed, np.random.default_rng([seed, 3]))
    try:
        result = fit_em(problem, None, EMOptions(tol=1e-8, max_iter=60))
    except ValueError as error:  # scores too far apart are refused by name
        return "" if "standardise the features" in str(error) else str(error)
    return faults_of_em(problem, result)


def fit_evidence_randomly(seed):
    """Maximise a random evidence; return what is wrong."""
    rng = np.random.default_rng([seed, 4])
    found = case(seed)
    kind = ("normal", "logit", "probit")[rng.integers(3)]
    target = 2.0 * found.label - 1.0
    if kind == "normal":
        target = np.sin(np.arange(len(target))) * 10.0 ** rng.integers(-8, 9)
    method = ("sequential", "batch")[rng.integers(2)]
    problem = EvidenceProblem(found.Phi, target, LIKELIHOODS[kind]())
    result = fit_rvm(problem, method=method)
    numbers = (result.weight, result.bias, result.log_evidence, result.covariance)
    if not all(np.isfinite(each).all() for each in numbers):
        return "not finite"
    if said := fall_of(result.trace.log_evidence, result.log_evidence, kind, method):
        return said
    if not result.converged:
        return ""
    end = state_at(problem, result)
    if abs(end.log_evidence - result.log_evidence) > 1e-6 * max(1.0, abs(end.log_evidence)):
        return f"log evidence {end.log_evidence:.9g}, said to be {result.log_evidence:.9g}"
    gain = gains(end)[0]
    # the search leaves a precision alone whose s, a difference with it, has lost half of its digits
    own = without_column(end.model, end.covariance.diagonal(), end.S, end.Q)[0][end.index]
    gain[end.index[own <= _FAINT * end.alpha]] = 0.0
    left = float(gain.max()) if result.status is Status.CONVERGED else 0.0
    return f"a change of one precision gains {left:.3g}" if left > 1e-4 else ""


def fall_of(values, end, kind, method):
    """Return how far the evidence has fallen, if it should not have.

    Laplace's approximation has its maximum elsewhere than where no change of its quadratic model gains:
    re-estimation goes past it, a search of single changes ends at the best state that it met.
    """
    rounding = 1e-9 * max(1.0, float(np.abs(values).max()))
    if kind != "normal" and method == "sequential":
        fall, most = float(values.max()) - end, EvidenceOptions().tol + rounding
    else:
        fall = float(np.max(values[:-1] - values[1:], initial=0.0))
        most = rounding if kind == "normal" else 0.05
    return f"falls by {fall:.3g}" if fall > most else ""


def state_at(problem, result):
    """Return the state of a sequential search where a search of the evidence has ended."""
    columns = columns_of(problem)
    precision = np.append(result.alpha, result.bias_alpha)
    mean = np.append(result.weight, result.bias)
    if problem.bias:
        precision, mean = np.roll(precision, 1), np.roll(mean, 1)
    else:
        precision, mean = precision[:-1], mean[:-1]
    index = np.flatnonzero(np.isfinite(precision))
    norm = columns.norm[index]
    at = index, precision[index] / norm**2, mean[index] * norm
    return scanned(columns, problem.observed(result.noise), at)


def validity_randomly(seed):
    """Take the validity of a random PCVM; return what is wrong."""
    found = case(seed, kernel="rbf")
    label = 2.0 * found.label - 1.0
    prior = (Hyperprior.plug_in(), Hyperprior.jeffreys())[seed % 2]
    problem = Problem(found.Phi, label, label.copy(), prior, width=found.width)
    result = fit_em(problem, None, EMOptions(max_iter=200))
    value = pcvm_validity(found.X, problem, result, centres=found.X).log_validity
    return "" if np.isfinite(value) else f"log validity {value}"


def project_randomly(seed):
    """Project a random PCVM's probabilities; return what is wrong."""
    _, problem = problem_of(seed, PRIORS[0])
    result = fit_em(problem, None, EMOptions(max_iter=200))
    probability = problem.likelihood.probability(result.latent)
    target = Target(problem.Phi, problem.sign, probability, likelihood=problem.likelihood)
    path = project_path(target, range(min(6, len(problem.label))))
    if not (np.isfinite(path.kl).all() and np.isfinite(path.objective).all()):
        return "not finite"
    if path.kl.min() < -1e-9:
        return f"KL {path.kl.min():.3g}"
    if any((w * target.sign[j] < 0).any() for w, j in zip(path.weights, path.columns, strict=True)):
        return "a sign is wrong"
    left = max(abs(target.mass @ target.terms(f).score).max() for f in path.latent(target.Phi))
    if left > 1e-5:
        return f"a slope of {left:.3g} is left in the bias"
    rise = float(np.max(np.diff(path.objective), initial=0.0))
    return f"KL and ridge rise by {rise:.3g}" if rise > 1e-12 else ""


def leave_one_out_randomly(seed):
    """Leave one out of a random PCVM; return what is wrong."""
    _, problem = problem_of(seed, PRIORS[seed % 2])
    result = fit_em(problem, None, EMOptions(max_iter=200))
    found = leave_one_out(problem, result.weight, result.bias, np.arange(len(problem.label)))
    if not np.isfinite(found.latent).all() or np.isnan(found.log_density).any():
        return "not finite"
    return "positive log probability" if (found.log_density > 1e-9).any() else ""


def gibbs_randomly(seed):
    """Draw some sweeps of a random problem; return what is wrong."""
    rng = np.random.default_rng([seed, 5])
    _, problem = problem_of(seed, likelihood="probit" if seed % 4 < 2 else "label noise")
    problem = replace(problem, hyperprior=PRIORS[seed % 2])
    given = GibbsProblem.of(problem)
    size, bias, rate = advance(given, given.start(rng), rng, draws=5, thin=2)
    if not all(np.isfinite(each).all() for each in (size, bias, rate)):
        return "not finite"
    return "a size is negative" if (size < 0).any() else ""


SOLVERS = {
    "EM": fit_em_randomly,
    "sparse probit": fit_sparse_probit_randomly,
    "several classes": fit_classes_randomly,
    "evidence": fit_evidence_randomly,
    "validity": validity_randomly,
    "projection": project_randomly,
    "leave-one-out": leave_one_out_randomly,
    "Gibbs": gibbs_randomly,
}
