"""The family in one table: each named system is a row, f = Phi(x; width) w + b with its pieces.

The table drives: builders declare what a row says, the reader of models finds the rows that a model is
one of, and solvers and samplers take what a row allows them.
"""

from dataclasses import dataclass

from pcvm_pymc.core.pieces.centres import SignRule, class_signs, label_signs
from pcvm_pymc.core.pieces.likelihoods import ALIASES, LIKELIHOODS, Likelihood
from pcvm_pymc.core.pieces.row_weights import Weighted
from pcvm_pymc.core.problem import Problem


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
    samplers : tuple of str
        ``"nuts"``, and ``"gibbs"`` where there is one.
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
    samplers: tuple[str, ...] = ("nuts",)
    signs: SignRule | None = None
    shared: bool = False
    hyperprior: str = "default"

    @property
    def likelihood(self) -> str:
        """The system's own likelihood."""
        return self.likelihoods[0]

    def admits(self, problem: Problem) -> bool:
        """Whether a problem's pieces are the row's."""
        return (
            problem.likelihood.name in self.likelihoods
            and problem.hyperprior.name in self.priors
            and problem.is_signed == (self.signs is not None)
        )


#: The systems by name: `System` of each row.
#:
#: :meta hide-value:
FAMILY = {
    "pcvm": System(
        name="PCVM",
        likelihoods=("probit", "logit", "label noise", "normal-probability"),
        priors=("gamma", "half-horseshoe", "laplace"),
        signs=label_signs,
        solvers=("em", "bottom-up"),
        samplers=("nuts", "gibbs"),
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
        solvers=("em",),
        samplers=("nuts", "gibbs"),
        source="Lyu et al. (2020), Algorithm 1",
        hyperprior="learned",
    ),
    "mpcvm_bottom_up": System(
        name="mPCVM2",
        likelihoods=("multinomial probit",),
        priors=("gamma",),
        signs=class_signs,
        solvers=("bottom-up",),
        samplers=("nuts", "gibbs"),
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


def check_solver(problem: Problem, solver: str) -> None:
    """Raise unless a row that the problem is one of allows a solver or sampler.

    Parameters
    ----------
    problem : Problem
    solver : str
        One of the names of `System.solvers` and `System.samplers`.

    Raises
    ------
    ValueError
        With the names of the pieces, of the rows, and of what they allow.
    """
    if solver == "em":
        check_mode(problem)
    rows = systems_of(problem)
    if any(solver in (*row.solvers, *row.samplers) for row in rows):
        if solver == "gibbs" and isinstance(problem.likelihood, Weighted):
            raise ValueError(
                "the rows have weights, which 'gibbs' does not take; use 'em', 'evidence' or 'bottom-up'"
            )
        return
    signs = "signed" if problem.is_signed else "free"
    pieces = f"a {problem.likelihood.name} likelihood, a {problem.hyperprior.name} prior and {signs} weights"
    if not rows:
        raise ValueError(f"{pieces} are no row of FAMILY together; sample with method='nuts'")
    names = dict.fromkeys(row.name for row in rows)
    allowed = dict.fromkeys(each for row in rows for each in (*row.solvers, *row.samplers))
    raise ValueError(
        f"{pieces} are of {' or '.join(names)}, which {solver!r} does not take; use {' or '.join(allowed)}"
    )


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
        found: Likelihood = LIKELIHOODS[name]()
        return found
    raise ValueError(f"likelihood={likelihood!r} is unknown; use one of {allowed} or a Likelihood")
