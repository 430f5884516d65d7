"""The family in one table: each named system is a row, f = Phi(x; width) w + b with its pieces.

The table drives: builders declare what a row says, the reader of models finds the rows that a model is
one of, and solvers and samplers take what a row allows them.
"""

from dataclasses import dataclass

import numpy as np

from pcvm_pymc.core.pieces.centres import SignRule, class_signs, label_signs
from pcvm_pymc.core.pieces.likelihoods import ALIASES, LIKELIHOODS, Likelihood
from pcvm_pymc.core.problem import Problem

#: names of the likelihoods whose latent responses can be drawn
AUGMENTED = ("label noise", "probit")


@dataclass(frozen=True)
class System:
    """One named system.

    Attributes
    ----------
    name : str
    likelihoods : tuple of str
        Names of the pieces that link labels (or targets) to the latent function, its own first.
    priors : tuple of str
        Names of the pieces that weights may have, its own first.
    signs : callable or None
        Sign of each weight from the label of the row at its centre, and the number of
        scores; None leaves the weights free.
    solvers : tuple of str
        What finds its point estimate, the paper's own first: ``"em"``, ``"evidence"`` or ``"bottom-up"``.
    any_sign : bool
        Whether weights may also be free under a sign rule.
    source : str
    shared : bool
        Whether the scores share what drops a basis.
    hyperprior : {"default", "learned", "laplace"}
        What a builder takes where nothing is said: the one whose posterior predicts best.
    """

    name: str
    source: str
    likelihoods: tuple[str, ...]
    priors: tuple[str, ...]
    solvers: tuple[str, ...]
    signs: SignRule | None = None
    any_sign: bool = False
    shared: bool = False
    hyperprior: str = "default"

    @property
    def likelihood(self) -> str:
        """The system's own likelihood."""
        return self.likelihoods[0]

    @property
    def samplers(self) -> tuple[str, ...]:
        """Names of the samplers of its posterior, see `sampler_of`."""
        gibbs = self.signs is not None and {*AUGMENTED} & {*self.likelihoods}
        return (*(("gibbs",) if gibbs else ()), "hmc", "nuts")

    def admits(self, problem: Problem) -> bool:
        """Whether a problem's pieces are the row's."""
        likelihood, prior = problem.likelihood.name, problem.hyperprior.name
        signs_fit = problem.is_signed == (self.signs is not None)
        free_fit = self.any_sign and not problem.is_signed
        return likelihood in self.likelihoods and prior in self.priors and (signs_fit or free_fit)


#: The systems by name: `System` of each row.
#:
#: :meta hide-value:
FAMILY = {
    "pcvm": System(
        name="PCVM",
        likelihoods=("probit", "logit", "label noise", "normal-probability"),
        priors=("gamma", "half-horseshoe", "laplace"),
        signs=label_signs,
        any_sign=True,
        solvers=("em", "bottom-up"),
        source="Chen, Tino & Yao (2009)",
        hyperprior="learned",
    ),
    "rvm_classification": System(
        name="RVM classification",
        likelihoods=("logit", "probit"),
        priors=("gamma",),
        solvers=("evidence",),
        source="Tipping (2001), Tipping & Faul (2003)",
    ),
    "rvm_regression": System(
        name="RVM regression",
        likelihoods=("normal", "student-t"),
        priors=("gamma",),
        solvers=("evidence",),
        source="Tipping (2001), Tipping & Faul (2003); RVM*: Rasmussen & Quinonero-Candela (2005)",
    ),
    "sparse_probit": System(
        name="sparse probit",
        likelihoods=("probit",),
        priors=("laplace", "gamma"),
        solvers=("em",),
        source="Figueiredo & Jain (2001)",
        hyperprior="laplace",
    ),
    "mpcvm_top_down": System(
        name="mPCVM1",
        likelihoods=("multinomial probit",),
        priors=("gamma",),
        signs=class_signs,
        any_sign=True,
        solvers=("em",),
        source="Lyu et al. (2020), Algorithm 1",
        hyperprior="learned",
    ),
    "mpcvm_bottom_up": System(
        name="mPCVM2",
        likelihoods=("multinomial probit",),
        priors=("gamma",),
        signs=class_signs,
        solvers=("bottom-up",),
        source="Lyu et al. (2020), Algorithm 2",
        hyperprior="learned",
    ),
    "mrvm_bottom_up": System(
        name="mRVM1",
        likelihoods=("multinomial probit",),
        priors=("gamma", "shared gamma"),
        solvers=("bottom-up", "em"),
        source="Damoulas et al. (2008)",
        shared=True,
    ),
    "mrvm_top_down": System(
        name="mRVM2",
        likelihoods=("multinomial probit",),
        priors=("gamma",),
        solvers=("em",),
        source="Psorakis et al. (2010)",
    ),
}


def systems_of(problem: Problem) -> tuple[System, ...]:
    """Return the rows that a problem is one of; none where its pieces fit no row together."""
    return tuple(row for row in FAMILY.values() if row.admits(problem))


def sampler_of(problem: Problem) -> tuple[str, str]:
    """Return the fastest sampler for a problem's posterior, and why; one rule for all rows.

    Signs of the labels make many weights of one sign add up, each nearly free to be zero: there single
    updates given latent responses mix, trajectories of a common step size do not. Unconstrained weights are
    drawn along trajectories, several chains at a time, at unknown widths too. All else is left to NUTS.
    Measured in ``benchmarks/README.md``.
    """
    prior, likelihood = problem.hyperprior, problem.likelihood
    parameters = (getattr(likelihood, name, 1.0) for name in ("flip", "degrees"))
    if np.isnan([*parameters]).any():
        return "nuts", f"a {likelihood.name} likelihood with an unknown parameter"
    if not prior.is_proper or prior.name == "half-horseshoe":
        return "nuts", f"a {prior.name} prior"
    if not problem.is_signed:
        return "hmc", "weights have either sign, and precisions are integrated out"
    drawn = likelihood.name in AUGMENTED and problem.row_weight is None
    of_gamma = prior.name == "gamma" and prior.rate_spread is None
    if drawn and of_gamma and problem.moves is None and problem.bias == "prior":
        return "gibbs", "weights have the signs of labels, and latent responses can be drawn"
    return "nuts", "weights have known signs, under what Gibbs sampling does not draw"


def check_solver(problem: Problem, solver: str) -> None:
    """Raise unless a row that the problem is one of allows a solver, or the sampler draws from it.

    Parameters
    ----------
    problem : Problem
    solver : str
        One of the names of `System.solvers`, or ``"gibbs"`` or ``"hmc"``.

    Raises
    ------
    ValueError
        With the names of the pieces, of the rows, and of what they allow.
    """
    if solver == "em":
        check_mode(problem)
    rows, sampler = systems_of(problem), sampler_of(problem)
    taken = {name for row in rows for name in row.solvers} | ({sampler[0]} if rows else set())
    if not problem.is_signed and all(row.signs for row in rows if "bottom-up" in row.solvers):
        taken.discard("bottom-up")  # a search among signed weights
    if "gibbs" in taken:  # slow there, and right
        taken.add("hmc")
    if solver in taken:
        return
    signs = "signed" if problem.is_signed else "free"
    pieces = f"a {problem.likelihood.name} likelihood, a {problem.hyperprior.name} prior and {signs} weights"
    if not rows:
        raise ValueError(f"{pieces} are no row of FAMILY together; sample with method='nuts'")
    names = dict.fromkeys(row.name for row in rows)
    allowed = " or ".join(sorted({*taken, "nuts"}))
    fault = f"{pieces} are of {' or '.join(names)}, which {solver!r} does not take"
    needed = "; gibbs needs probit or label noise, a gamma prior, signs of two classes, one width, a bias"
    raise ValueError(f"{fault}; use {allowed}{needed if solver == 'gibbs' else ''}")


def check_mode(problem: Problem) -> None:
    """Raise where the prior has no mode that EM could find: one of unknown scale, or a half-horseshoe."""
    if not problem.hyperprior.has_mode:
        fault = f"hyperprior={problem.hyperprior} has no mode that EM could find"
        raise ValueError(f"{fault}; needed one of fixed scale (rate_shape=None) or a Laplace")


def as_likelihood(likelihood: str | Likelihood, allowed: tuple[str, ...]) -> Likelihood:
    """Return a likelihood by its name, or as it was given.

    Parameters
    ----------
    likelihood : str or Likelihood
    allowed : tuple of str
        Names that the row of the family table takes.

    Raises
    ------
    ValueError
        If it is not one of the row's.
    """
    if isinstance(likelihood, Likelihood) and likelihood.name in allowed:
        return likelihood
    name = ALIASES.get(str(likelihood), likelihood)
    if isinstance(name, str) and name in allowed:
        piece: Likelihood = LIKELIHOODS[name]()
        return piece
    raise ValueError(f"likelihood={likelihood!r} is unknown; use one of {allowed} or a Likelihood")
