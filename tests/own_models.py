"""Random models of one's own, and their log posterior by PyMC alone, maximised by SciPy."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from problems import blobs, fixed_rng
from pymc.model.transform.conditioning import remove_value_transforms
from scipy.optimize import Bounds, minimize

from pcvm_pymc import Hyperprior, Laplace, ProbitBernoulli, pcvm_latent, rvm_latent

LIKELIHOODS = ("logit", "probit", "flipped", "normal", "student", "poisson", "counts")
LATENT = ("pcvm", "both signs", "rvm", "two", "lasso", "exponential", "unknown width")
TERMS = ("none", "intercepts", "scaled intercepts", "slope")
PRIORS = (None, Hyperprior.plug_in(), Hyperprior(1.0, 0.05, 0.5, 0.5))
LASSO = 0.3  # the scale of Laplace weights


def observe(kind, eta, signal, rng):
    """Declare a likelihood of a linear predictor, and observe what is simulated from a signal."""
    noise = rng.normal(size=len(signal))
    label, target = (signal + noise > 0).astype(int), signal + 0.5 * noise
    count = rng.poisson(np.exp(np.clip(signal, -3.0, 2.0)))
    if kind == "logit":
        pm.Bernoulli("z", logit_p=eta, observed=label)
    elif kind == "probit":
        ProbitBernoulli("z", eta, observed=label)
    elif kind == "flipped":
        flip = pm.Beta("flip", 1.0, 9.0)
        p = flip + (1.0 - 2.0 * flip) * pm.math.invprobit(eta)
        pm.Bernoulli("z", p=p, observed=label)
    elif kind == "normal":
        pm.Normal("z", eta, pm.InverseGamma("noise", 3.0, 1.0), observed=target)
    elif kind == "student":
        pm.StudentT("z", nu=3.0, mu=eta, sigma=0.5, observed=target)
    elif kind == "poisson":
        pm.Poisson("z", pt.exp(eta), observed=count)
    else:
        alpha = pm.Gamma("alpha", 2.0, 0.5)
        pm.NegativeBinomial("z", mu=pt.exp(eta), alpha=alpha, observed=count)


def function(kind, X, y, rng):
    """Add a latent function, or two, to the model of the block."""
    prior, width = PRIORS[rng.integers(3)], float(rng.uniform(0.7, 2.5))
    given = {"width": width, "hyperprior": prior, "bias": bool(rng.random() < 0.6)}
    if kind == "lasso":
        Z = np.column_stack([X, X**2, rng.normal(size=(len(X), 4))])
        weight = pm.Laplace("weight", 0.0, LASSO, shape=Z.shape[1])
        return pt.dot(Z, weight) + pm.Flat("bias")
    if kind == "rvm":
        return rvm_latent(X, **given)
    if kind == "two":
        f = pcvm_latent(X, y, name="f", **given)
        return f + rvm_latent(X[:, :1], name="g", basis=6, width=1.0)
    if kind == "both signs":
        given |= {"signs": "both", "basis": 8}
    elif kind == "exponential":
        given |= {"hyperprior": Laplace(4.0)}
    elif kind == "unknown width":
        given |= {"width": pm.LogNormal("ell", 0.3, 0.4)}
    return pcvm_latent(X, y, **given)


def random_model(seed):
    """Return a random model."""
    rng = fixed_rng(seed)
    n = int(rng.integers(16, 40))
    X, label = blobs(n, n_features=int(rng.integers(1, 4)), seed=seed, fixed=True)
    group = rng.integers(3, size=n)
    likelihood, latent, term = (rng.choice(each) for each in (LIKELIHOODS, LATENT, TERMS))
    with pm.Model(coords={"group": list("abc")}) as model:
        eta = function(latent, X, label > 0, rng)
        if term == "intercepts":
            eta = eta + pm.Normal("a", dims="group")[group]
        elif term == "scaled intercepts":
            eta = eta + pm.HalfNormal("tau") * pm.Normal("a", dims="group")[group]
        elif term == "slope":
            eta = eta + pm.Normal("slope", 0.0, 2.0) * X[:, -1]
        signal = 0.8 * label + np.array([-0.7, 0.0, 0.7])[group]
        observe(likelihood, eta, signal, rng)
    return model


class Reference:
    """A model's log posterior over sizes with bounds, for L-BFGS-B.

    Values with a Laplace density are a difference of two that are positive: smooth, where they are penalised
    one by one.
    """

    def __init__(self, model):
        kinds = {rv.name: rv.owner.op._print_name[0] for rv in model.free_RVs}
        ours = ("MarginalWeight", "Exponential", "FreeWeight")
        self.rates = [name for name in kinds if name.endswith("rate")]
        natural = [name for name, kind in kinds.items() if kind in ours]
        plain = remove_value_transforms(model, [model[name] for name in natural + self.rates])
        self.names = [v.name for v in plain.value_vars]
        self.start = plain.initial_point()
        self.shapes = [np.shape(self.start[name]) for name in self.names]
        self._logp = plain.compile_logp(jacobian=False)
        self._slope = plain.compile_dlogp(jacobian=False)

        def each(found):
            parts = zip(self.names, self.shapes, strict=True)
            return np.concatenate([np.full(int(np.prod(s)), found(kinds.get(n))) for n, s in parts])

        sizes = each(lambda kind: kind in ("MarginalWeight", "Exponential")) > 0
        self.lower = np.where(sizes, 0.0, -np.inf)
        # of the lasso's weights, or of the bias of exponential sizes
        of_laplace = 1.0 / LASSO if "Flat" in kinds.values() else 2.0
        self.penalty = each(lambda kind: of_laplace if kind == "Laplace" else 0.0)
        names = np.repeat(self.names, [int(np.prod(s)) for s in self.shapes])
        self.fixed = np.isin(names, self.rates)

    def joined(self, values):
        """Return a vector of values by name."""
        return np.concatenate([np.ravel(values[name]).astype(float) for name in self.names])

    def at(self, vector):
        """Return value and slope at a vector."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        parts = zip(self.names, np.split(vector, ends), self.shapes, strict=True)
        point = {name: part.reshape(shape) for name, part, shape in parts}
        with np.errstate(all="ignore"):
            return float(self._logp(point)), self._slope(point)

    def best(self, start):
        """Return the maximum that L-BFGS-B finds from a start."""
        x, split, n = start.astype(float), np.flatnonzero(self.penalty), len(start)
        penalty = self.penalty[split]

        def objective(both):
            w = both[:n].copy()
            w[split] -= both[n:]
            value, slope = self.at(w)
            if not np.isfinite(value):
                return 1e100, np.zeros(len(both))
            value += float(penalty @ (np.abs(w[split]) - both[split] - both[n:]))
            smooth = slope[split] + penalty * np.sign(w[split])
            slope[split] = smooth - penalty
            return -value, -np.append(slope, -smooth - penalty)

        first = np.append(x, np.maximum(-x[split], 0.0))
        first[split] = np.maximum(x[split], 0.0)
        lower, upper = self.lower.copy(), np.full(n, np.inf)
        lower[split] = 0.0
        lower[self.fixed] = upper[self.fixed] = x[self.fixed]
        more = np.full(len(split), np.inf)
        bounds = Bounds(np.append(lower, np.zeros(len(split))), np.append(upper, more))
        stop = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-9}
        found = minimize(objective, first, jac=True, method="L-BFGS-B", bounds=bounds, options=stop)
        return -found.fun
