"""What is given to type-II maximum likelihood: bases, targets, a likelihood, and options."""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcvm_pymc.core.em.points import Chunks
from pcvm_pymc.core.evidence.computed import ComputedBases, ComputedColumns
from pcvm_pymc.core.family import FAMILY, check_solver
from pcvm_pymc.core.pieces.likelihoods import (
    Likelihood,
    Normal,
    ScaleLikelihood,
    as_likelihood,
)
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import check_real, check_seed, check_whole, shown
from pcvm_pymc.core.problem import Problem

__all__ = [
    "NOISE_FLOOR",
    "Design",
    "EvidenceOptions",
    "EvidenceProblem",
    "Rotated",
    "check_fixed_bases",
    "check_held",
    "problem_among",
    "rotated_problem",
    "start_noise",
    "unit_design",
]

_FEW = 128  # columns
NOISE_FLOOR = 1e-4  # of the targets' standard deviation: below, rounding decides on the bases
_LIKELIHOODS = tuple(
    dict.fromkeys(
        name for row in FAMILY.values() if "evidence" in row.solvers for name in row.likelihoods
    )
)


@dataclass(frozen=True)
class Rotated:
    """What a rotated regression, cut down to the rows that are not zero, no longer says of itself.

    Attributes
    ----------
    n_obs : int
        Rows that there were.
    constant : ndarray, shape (n_rows,)
        What has become of a column of ones.
    """

    n_obs: int
    constant: Array


@dataclass(frozen=True, init=False)
class EvidenceProblem:
    """What is given to type-II maximum likelihood.

    Parameters
    ----------
    Phi, target, likelihood, bias, rotated
        See the attributes; the likelihood may be given by its name.
    noise : float, optional
        Known scale of numbers around the latent function; None leaves it as the likelihood has it, to be
        estimated where that has NaN.

    Attributes
    ----------
    Phi : ndarray, shape (n_obs, n_basis), or ComputedBases
        Basis functions at the training inputs, in any unit; zero and equal columns are allowed.
    target : ndarray, shape (n_obs,)
        Numbers, or labels -1. and +1., as the likelihood has them.
    likelihood : Likelihood
        One of the rows of `FAMILY` that the evidence is maximised for.
    bias : bool
        Whether a constant belongs to the bases, under its own ARD precision like any other.
    rotated : Rotated, optional
        For a problem from `rotated_problem`.

    Raises
    ------
    ValueError
        If the likelihood is unknown or the noise cannot be used.
    """

    Phi: Any
    target: Array
    likelihood: Likelihood
    bias: bool
    rotated: Rotated | None

    def __init__(
        self,
        Phi: Array | ComputedBases,
        target: Array,
        likelihood: str | Likelihood = "normal",
        *,
        noise: float | None = None,
        bias: bool = True,
        rotated: Rotated | None = None,
    ) -> None:
        piece = _with_noise(as_likelihood(likelihood, _LIKELIHOODS), noise)
        if rotated is not None and not piece.is_quadratic:
            raise ValueError(
                f"likelihood={piece.name!r} is not that of a rotated problem; needed a normal one"
            )
        for name, value in (
            ("Phi", Phi),
            ("target", target),
            ("likelihood", piece),
            ("bias", bias),
            ("rotated", rotated),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, problem: Problem, *, noise: float | None = None) -> "EvidenceProblem":
        """Return the problem whose evidence is maximised for one that any solver may be given.

        Its hyperprior has no part in it: log precisions are flat, as in the papers.

        Parameters
        ----------
        problem : Problem
            Of a row of `FAMILY` with the solver ``"evidence"``. Under ``bias="prior"`` the constant is one
            of the bases, under ``"none"`` it is not.
        noise : float, optional
            As for the class.

        Raises
        ------
        ValueError
            If the problem is of another row, its bases are not fixed, or its bias is free.
        """
        check_fixed_bases(problem, "evidence")
        return cls(
            problem.Phi,
            problem.label,
            problem.likelihood,
            noise=noise,
            bias=problem.bias == "prior",
        )

    def with_bases(self, Phi: Any) -> "EvidenceProblem":
        """Return the problem of other bases, a constant among them where there is one."""
        out = copy(self)
        object.__setattr__(out, "Phi", Phi)
        object.__setattr__(out, "bias", False)
        return out

    @property
    def noise(self) -> float | None:
        """The known scale of the targets; None where there is none or it is to be estimated."""
        if not isinstance(self.likelihood, ScaleLikelihood) or np.isnan(self.likelihood.noise):
            return None
        return self.likelihood.noise

    @property
    def noise_is_estimated(self) -> bool:
        """Whether the likelihood has a scale that is not known."""
        return isinstance(self.likelihood, ScaleLikelihood) and self.noise is None

    @property
    def n_obs(self) -> int:
        """Number of rows."""
        return len(self.target) if self.rotated is None else self.rotated.n_obs

    @property
    def constant(self) -> Array:
        """A column of ones, or what a rotation has made of it, shape (n_rows,)."""
        return np.ones(len(self.target)) if self.rotated is None else self.rotated.constant

    @property
    def target_scale(self) -> float:
        """Standard deviation of the targets; their size where they are constant, 1 where zero."""
        if self.rotated is None:
            size = float(np.abs(self.target).max(initial=0.0))
            spread = float(np.std(self.target))
        else:
            along = self.rotated.constant / np.sqrt(self.n_obs)
            across = self.target - along * float(along @ self.target)
            size, spread = (
                float(np.linalg.norm(each) / np.sqrt(self.n_obs)) for each in (self.target, across)
            )
        return spread if spread > 1e-10 * size else size or 1.0

    def likelihood_at(self, noise: float) -> Likelihood:
        """Return the likelihood, of this scale where it has one."""
        if not isinstance(self.likelihood, ScaleLikelihood):
            return self.likelihood
        return self.likelihood.with_noise(noise)

    def noise_at(
        self, latent: Array, n_determined: float, noise: float, floor: float | None = None
    ) -> float:
        """Return the noise that follows upon another, not below a floor.

        ``sum_i u_i (t_i - Phi_i mu)^2 / (N - sum gamma)``, with ``gamma = 1 - alpha Sigma_ii`` and u the
        rows' curvature in units of noise^-2: one for a normal likelihood, where this is Chmielewski et
        al. (2019) eqs. 8 and 15. Targets that the bases reproduce exactly would have none; a
        ten-thousandth of their standard deviation remains.

        Parameters
        ----------
        latent : ndarray, shape (n_obs,)
        n_determined : float
            Sum of gamma over the bases.
        noise : float
            At which the two were found.
        floor : float, optional
            The least noise, where it is known already.
        """
        likelihood = self.likelihood_at(noise)
        assert isinstance(likelihood, ScaleLikelihood)
        square = likelihood.squared_residuals(latent, self.target)
        free = max(self.n_obs - n_determined, 1e-3)
        floor = NOISE_FLOOR * self.target_scale if floor is None else floor
        return max(float(np.sqrt(square / free)), floor)


def _with_noise(likelihood: Likelihood, noise: float | None) -> Likelihood:
    """Return the likelihood of a known scale, where one is given; raise where it cannot be used."""
    if not isinstance(likelihood, ScaleLikelihood):
        if noise is not None:
            raise ValueError(
                f"noise={noise} was given with likelihood={likelihood.name!r}, which has none"
            )
        return likelihood
    if noise is not None:
        likelihood = likelihood.with_noise(noise)
    found = likelihood.noise
    if (noise is not None or not np.isnan(found)) and not (np.isfinite(found) and found > 0):
        raise ValueError(f"noise={found} must be positive and finite, or None to estimate it")
    return likelihood


def check_fixed_bases(problem: Problem, solver: str) -> None:
    """Raise unless a solver that takes bases as they are, each with a precision, may have a problem.

    Parameters
    ----------
    problem : Problem
    solver : {"evidence", "bottom-up"}

    Raises
    ------
    ValueError
        If the problem is of a row without this solver, its bases are not fixed, or its bias is free.
    """
    check_solver(problem, solver)
    if not isinstance(problem.hyperprior, Hyperprior):
        raise ValueError(
            f"{solver!r} estimates each weight's precision; found a {problem.hyperprior.name} prior, needed "
            "one of Gamma precisions (whose numbers it does not use)"
        )
    if problem.moves is not None:
        raise ValueError(
            f"{solver!r} takes basis functions as they are; found a width that may move, needed a number"
        )
    in_chunks = solver == "bottom-up" and isinstance(problem.Phi, Chunks)
    if not isinstance(problem.Phi, np.ndarray) and not in_chunks:
        raise ValueError(
            f"{solver!r} holds all basis functions in memory; found Phi of type "
            f"{type(problem.Phi).__name__}, needed an array"
        )
    if problem.bias == "free":
        raise ValueError(
            f"bias='free' has no precision for {solver!r} to estimate; use 'prior' or 'none'"
        )


def check_held(problem: EvidenceProblem, method: str) -> None:
    """Raise where a search that looks at all bases at each step is given computed ones.

    Raises
    ------
    ValueError
        With what to use.
    """
    if isinstance(problem.Phi, ComputedBases):
        raise ValueError(
            f"method={method!r} needs all basis functions at every step; found bases that are computed when "
            "needed (a memory_limit): use method='sequential', or fewer bases (basis=)"
        )


def rotated_problem(
    blocks: Iterable[tuple[Array, Array]], *, noise: float | None = None
) -> EvidenceProblem:
    """Return the regression of all rows in coordinates in which n_basis + 2 of them are left.

    The triangular factor of ``[1, Phi, t]`` says all of a regression's evidence and posterior; it comes
    from one block of rows after the other, so that Phi is never held whole.

    Parameters
    ----------
    blocks : iterable of (ndarray, shape (n_rows, n_basis), ndarray, shape (n_rows,))
        Basis functions and targets of the rows.
    noise : float, optional
        As for `EvidenceProblem`.
    """
    n_obs = 0

    def counted() -> Iterator[tuple[Array, Array]]:
        nonlocal n_obs
        for Phi, target in blocks:
            n_obs += len(target)
            yield Phi, target

    R = _triangle(counted())
    return _of_triangle(R, n_obs, noise=noise)


def _triangle(blocks: Iterable[tuple[Array, Array]]) -> Array:
    """Return the triangular factor of ``[1, Phi, t]``, of one block of rows after the other."""
    R = None
    for Phi, target in blocks:
        block = np.column_stack([np.ones(len(target)), Phi, target])
        R = np.linalg.qr(block if R is None else np.vstack([R, block]), mode="r")
    if R is None:
        raise ValueError("there are no rows; needed one or more")
    return R


def _of_triangle(
    R: Array, n_obs: int, *, noise: float | None, bias: bool = True
) -> EvidenceProblem:
    """Return the regression that the triangular factor of ``[1, Phi, t]`` says all of."""
    return EvidenceProblem(
        np.asfortranarray(R[:, 1:-1]),
        R[:, -1].copy(),
        Normal(n_obs=n_obs),
        noise=noise,
        bias=bias,
        rotated=Rotated(n_obs, R[:, 0].copy()),
    )


@dataclass(frozen=True)
class EvidenceOptions:
    """How the evidence is maximised.

    Parameters
    ----------
    max_iter : int
        Most changes of single precisions (sequential) or sweeps over all of them (batch).
    tol : float
        Stop once no single change gains more log evidence than this (sequential), or a sweep has
        changed it by less than a hundredth of this (batch, whose bases leave slowly).
    noise_tol : float
        ... and the logarithm of the estimated noise changes by less than this.
    noise_starts : tuple of float
        Where the noise starts, as multiples of the targets' standard deviation; the fit of
        highest evidence is kept. ``(0.1, 0.3, 0.7)`` is the careful choice.
    noise_period : int
        Steps between updates of the noise, once the precisions have converged for the first time.
    patience : int
        Steps without a better evidence after which a cycling classification is stopped. (A regression,
        which only rounding can make cycle, after four times as many.)
    refresh_period : int
        Rank-one steps after which all is computed anew.
    random_state : int, numpy.random.Generator or None
        For the choice of the basis by ``method="random"``.

    References
    ----------
    M. E. Tipping and A. C. Faul (2003), which does not say when the noise is estimated.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import RVMRegressor, fit_evidence, rvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = rvm_model(X, np.sin(X[:, 0]), width=1.5)
    >>> result = fit_evidence(model, options=EvidenceOptions(noise_starts=(0.1, 0.3, 0.7)))
    >>> bool(result["posterior"]["noise"] < 0.3)
    True
    """

    max_iter: int = 100_000
    tol: float = 1e-4
    noise_tol: float = 1e-4
    noise_starts: tuple[float, ...] = (0.3,)
    noise_period: int = 5
    patience: int = 30
    refresh_period: int = 50
    random_state: int | np.random.Generator | None = None

    def __post_init__(self) -> None:
        for name in ("max_iter", "noise_period", "patience", "refresh_period"):
            check_whole(name, getattr(self, name), 1)
        for name in ("tol", "noise_tol"):
            check_real(name, getattr(self, name))
        starts = self.noise_starts
        if not isinstance(starts, Sequence) or isinstance(starts, str) or not starts:
            raise ValueError(
                f"noise_starts={shown(starts)}; needed a tuple of one or more positive numbers"
            )
        for start in starts:
            check_real("noise_starts", start)
        check_seed("random_state", self.random_state)


def start_noise(
    problem: EvidenceProblem, options: EvidenceOptions, multiple: float | None = None
) -> float:
    """Return the noise to begin with: the known one, or 0.3 standard deviations of the targets."""
    if not problem.noise_is_estimated:
        return np.nan if problem.noise is None else problem.noise
    return (multiple or options.noise_starts[0]) * problem.target_scale


@dataclass(frozen=True)
class Design:
    """All bases, the constant first where there is one, each column divided by its norm.

    Attributes
    ----------
    columns : ndarray, shape (n_obs, n_columns), or ComputedColumns
        Of unit norm; a zero column stays zero.
    norm : ndarray, shape (n_columns,)
    """

    columns: Any
    norm: Array


def unit_design(problem: EvidenceProblem) -> Design:
    """Return the problem's bases as columns of unit norm, so that no unit matters."""
    if isinstance(problem.Phi, ComputedBases):
        computed = ComputedColumns.of(problem.Phi, problem.bias)
        return Design(computed, computed.norm)
    n_obs, n_basis = problem.Phi.shape
    first = int(problem.bias)
    columns = np.empty((n_obs, n_basis + first), order="F")  # columns are what is taken out
    columns[:, :first] = problem.constant[:, None]
    columns[:, first:] = problem.Phi
    size = np.maximum(columns.max(axis=0), -columns.min(axis=0))
    size[size == 0] = 1.0
    columns /= size  # squares of what remains neither overflow nor vanish
    norm = np.sqrt(np.einsum("ij,ij->j", columns, columns))
    norm[norm == 0] = 1.0
    columns /= norm
    return Design(columns, size * norm)


def problem_among(
    problem: EvidenceProblem, columns: Array | ComputedColumns, number: NDArray[np.int64]
) -> EvidenceProblem:
    """Return the problem of some columns; a regression with many rotated to two rows more than columns.

    Few columns, of rows that are held, are worked on in less time than they are rotated.

    Parameters
    ----------
    problem : EvidenceProblem
    columns : ndarray, shape (n_obs, n_columns), or ComputedColumns
        All there are, the constant among them.
    number : ndarray of int, shape (n_some,)
    """
    n_rows, few = columns.shape[0], len(number) <= _FEW and not isinstance(columns, ComputedColumns)
    if not problem.likelihood.is_quadratic or few or n_rows <= len(number) + 2:
        return problem.with_bases(columns[:, number])
    if isinstance(columns, ComputedColumns):
        target = problem.target
        norm = columns.norm[number]
        R = _triangle((Phi / norm, target[rows]) for rows, Phi in columns.tiles(number))
    else:
        every = np.column_stack([problem.constant, columns[:, number], problem.target])
        R = np.linalg.qr(every, mode="r")
    return _of_triangle(R, problem.n_obs, noise=problem.noise, bias=False)
