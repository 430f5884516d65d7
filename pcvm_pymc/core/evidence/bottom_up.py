"""Classes from the bottom up: mPCVM2 (Lyu et al. 2020, Algorithm 2, corrected), mRVM1, and two classes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pcvm_pymc.core.em.gram import BorderedGram
from pcvm_pymc.core.em.nonnegative import solve_nonnegative
from pcvm_pymc.core.em.points import Chunks
from pcvm_pymc.core.em.results import EMResult, EMTrace
from pcvm_pymc.core.evidence.bottom_up_changes import Change, Machine, improve
from pcvm_pymc.core.evidence.bottom_up_rows import Seen, bases_of, each_row
from pcvm_pymc.core.evidence.problem import check_fixed_bases
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.resources import threads_by_size
from pcvm_pymc.core.pieces.validation import check_choice, check_flag, check_real, check_whole
from pcvm_pymc.core.problem import Problem, Status

__all__ = ["BottomUpOptions", "fit_bottom_up"]

_UPDATES = ("truncated", "printed")
_UNBOUNDED = 1e3  # a score at which the probit is certain to more digits than there are


@dataclass(frozen=True)
class BottomUpOptions:
    """How long the search runs.

    Parameters
    ----------
    max_iter : int
        Epochs; in each, every class makes one change and the responses are computed anew.
    tol : float
        The search stops when no basis is to be added or deleted and no log precision moves by more.
    update : {"truncated", "printed"}
        ``"truncated"`` is corrected: a basis is admitted by what it gains, only with the sign of its class,
        and the weights are the mode on the signs' side. ``"printed"`` is Algorithm 2 as the paper has it,
        with signs only: the basis of the largest ``q^2 - s`` comes, a member chosen at random is weighed
        anew, and wrong-signed entries of the mean are set to zero (eq. 31). It diverges on many data: it
        stops, by a rule that the paper does not have, where a score exceeds 1000, and says so in its status.
    random_state : int
        For the members chosen at random, ``"printed"`` only.
    most : int
        Additions, or deletions, under the same responses, one after the other; each raises the bound of the
        evidence that EM climbs. One is the papers'. With more the model is larger before it is thinned out,
        and ends higher on most data.
    momentum : float
        From 0 to below 1: share of the weights' last move that the responses run ahead by, so that EM, which
        is slow, takes fewer epochs. It ends where it would without; zero is the papers'.
    is_rough : bool
        Whether integrals are computed to three digits until the end.

    References
    ----------
    S. Lyu et al. (2020), Algorithm 2, whose limit of epochs is not said.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import fit_evidence, pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0.5 * X[:, 1] ** 2, width=1.0)
    >>> result = fit_evidence(model, options=BottomUpOptions(max_iter=200, tol=1e-3))
    >>> int((result["posterior"]["weight"] != 0).sum()) < 15
    True
    """

    max_iter: int = 1000
    tol: float = 1e-2
    update: str = "truncated"
    random_state: int = 0
    most: int = 1
    momentum: float = 0.0
    is_rough: bool = False

    @classmethod
    def quick(cls, *, max_iter: int = 1000, tol: float = 1e-2) -> "BottomUpOptions":
        """Return a search of several changes under the same responses, which run ahead.

        Parameters
        ----------
        max_iter, tol
            As above.
        """
        return cls(max_iter=max_iter, tol=tol, most=2, momentum=0.8, is_rough=True)

    def __post_init__(self) -> None:
        check_choice("update", self.update, _UPDATES)
        check_whole("random_state", self.random_state, 0)
        if self.random_state and self.update != "printed":
            raise ValueError(
                f"random_state={self.random_state} has no effect on update={self.update!r}, which draws "
                "nothing; leave it out, or use update='printed'"
            )
        check_whole("max_iter", self.max_iter, 1)
        check_real("tol", self.tol)
        check_whole("most", self.most, 1)
        check_flag("is_rough", self.is_rough)
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum={self.momentum!r}; needed a number from 0 to below 1")
        if self.update == "printed" and (self.most > 1 or self.momentum or self.is_rough):
            raise ValueError(
                f"most={self.most}, momentum={self.momentum}, is_rough={self.is_rough} have no effect on "
                "update='printed'; leave them out, or use update='truncated'"
            )


def _mode(machine: Machine, pulled: Array, sign: Array) -> tuple[Array, float]:
    """Return weights of all bases, and the bias, as the mode of the posterior on the signs' side."""
    kept, design = machine.kept, machine.design
    n_basis, n_columns = len(sign), len(design.square)
    basis = kept.index < n_basis
    index, place = kept.index[basis], np.flatnonzero(basis)
    if n_columns > n_basis:
        border, corner = kept.cross[place, n_basis], float(design.square[n_basis])
    else:
        border, corner = np.zeros(len(index)), 0.0
    has_bias = not basis.all()
    gram = np.asfortranarray(design.beta * kept.cross[np.ix_(place, index)])
    weight, bias = solve_nonnegative(
        BorderedGram(gram, design.beta * border, design.beta * corner),
        sign[index] / np.sqrt(kept.alpha[place]),
        float(kept.alpha[~basis][0] ** -0.5) if has_bias else 0.0,
        (pulled[index], float(pulled[n_basis]) if has_bias else 0.0),
        np.ones(len(index), dtype=bool),
    )
    out = np.zeros(n_basis)
    out[index] = weight
    return out, bias


class _Search:
    """Machines, responses and weights of a fit, epoch after epoch; all with an axis of scores."""

    def __init__(self, problem: Problem, response: Array | None, options: BottomUpOptions) -> None:
        self.problem = problem
        self.options = options
        self.design = bases_of(problem, is_rough=options.is_rough)
        n_basis, n_scores = problem.Phi.shape[1], problem.n_scores
        self.sign = None if problem.sign is None else problem.sign.reshape(n_basis, n_scores)
        # of a machine's columns: zero for the constant, which is free
        rest = np.zeros((len(self.design.square) - n_basis, n_scores))
        self.column_sign = None if self.sign is None else np.vstack([self.sign, rest])
        self.machines = [Machine(self.design) for _ in range(1 if problem.shared else n_scores)]
        self.weight, self.bias = np.zeros((n_basis, n_scores)), np.zeros(n_scores)
        self._see(self.design.first(response))

    def _see(self, seen: Seen) -> None:
        self.pulled, self.log_likelihood, self.moved, self.latent = seen

    def step(self) -> Change:
        """Run one epoch: a change in every machine, then weights and responses."""
        changes = [
            self._changed(
                machine,
                self.pulled if self.problem.shared else self.pulled[:, [k]],
                None if self.column_sign is None else self.column_sign[:, k],
            )
            for k, machine in enumerate(self.machines)
        ]
        self._update()
        return Change(
            any(change.structural for change in changes),
            max(change.moved for change in changes),
        )

    @property
    def has_diverged(self) -> bool:
        """Whether to go on is of no use."""
        return False

    def _changed(self, machine: Machine, pulled: Array, sign: Array | None) -> Change:
        """Make one change to a machine."""
        return improve(machine, pulled, sign, self.options.most)

    def _signed_weights(self, machine: Machine, pulled: Array, sign: Array) -> tuple[Array, float]:
        """Return the weights of all bases, and the bias, on the signs' side."""
        return _mode(machine, pulled, sign)

    @property
    def n_active(self) -> int:
        """Number of weights that are not zero."""
        return int(np.count_nonzero(self.weight))

    def log_posterior(self) -> float:
        """Return log p(t | W) + log p(W | A), the precisions as they stand."""
        total, every = self.log_likelihood, np.vstack([self.weight, self.bias])
        for k, machine in enumerate(self.machines):
            kept = machine.kept
            value = every[kept.index] if self.problem.shared else every[kept.index, k : k + 1]
            square = np.einsum("ij,ij->i", value, value)
            log_alpha = value.shape[1] * np.log(kept.alpha / (2 * np.pi))
            total += 0.5 * float(log_alpha.sum() - kept.alpha @ square)
            if self.sign is not None:
                total += np.log(2.0) * np.sum(kept.index < len(self.weight))
        return total

    def result(self, status: Status, rows: list[tuple[float, int, float, float]]) -> EMResult:
        """Return where the search stands; without the axis of scores where there is one score."""
        several = self.problem.n_scores > 1
        return EMResult(
            weight=self.weight if several else self.weight[:, 0],
            bias=self.bias if several else float(self.bias[0]),
            width=self.problem.width,
            latent=self.latent if several else self.latent[:, 0],
            log_posterior=rows[-1][0],
            status=Status.EMPTY_MODEL if self.n_active == 0 else status,
            n_iter=len(rows) - 1,
            trace=EMTrace(*(np.asarray(column) for column in zip(*rows, strict=True))),
        )

    def _update(self) -> None:
        """Compute the weights, and the responses there or, under momentum, farther on in their direction."""
        old = self.weight, self.bias
        every = np.zeros((len(self.weight) + 1, len(self.bias)))
        for k, machine in enumerate(self.machines):
            index, sign = machine.kept.index, self.sign
            if self.problem.shared:
                every[index] = machine.mean(self.pulled)
            elif sign is None:
                every[index, k] = machine.mean(self.pulled[:, [k]])[:, 0]
            else:
                every[:-1, k], every[-1, k] = self._signed_weights(
                    machine, self.pulled[:, k], sign[:, k]
                )
        self.weight, self.bias = every[:-1], every[-1]
        share = self.options.momentum if old[0].any() else 0.0
        ahead = (
            new + share * (new - before)
            for new, before in zip((self.weight, self.bias), old, strict=True)
        )
        self._see(self.design.at(*ahead))

    def settle(self) -> None:
        """See the rows at the weights themselves, to all digits."""
        self.design.is_rough = False
        self._see(self.design.at(self.weight, self.bias))


class _Printed(_Search):
    """Algorithm 2 of Lyu et al. (2020) as it is printed."""

    def __init__(self, problem: Problem, response: Array | None, options: BottomUpOptions) -> None:
        super().__init__(problem, response, options)
        self._rng = np.random.default_rng(options.random_state)

    @property
    def has_diverged(self) -> bool:
        """Whether a score is beyond what a probit tells apart."""
        return not np.abs(self.latent).max() < _UNBOUNDED

    def _changed(self, machine: Machine, pulled: Array, sign: Array | None) -> Change:
        s, q = machine.leave_one_out(pulled)
        excess = q[:, 0] ** 2 - s
        member = np.zeros(len(s), dtype=bool)
        member[machine.kept.index] = True
        # beside the print: a column that is one of the model's again has an S of rounding alone
        outside = ~member & (excess > 0) & (machine.design.rounding < machine.kept.S)
        if outside.any():
            n = int(np.where(outside, excess, -np.inf).argmax())
            machine.add(n, float(s[n] ** 2 / excess[n]))
            return Change(True, np.inf)
        if (member & (excess < 0)).any():
            n = int(np.where(member, excess, np.inf).argmin())
            machine.delete(int(np.flatnonzero(machine.kept.index == n)[0]))
            return Change(True, np.inf)
        if not member.any():
            return Change(False, 0.0)
        index = machine.kept.index
        with np.errstate(over="ignore", divide="ignore"):  # one that is about to go
            alpha = s[index] ** 2 / excess[index]
        place = int(self._rng.integers(len(index)))
        moved = float(np.abs(np.log(alpha / machine.kept.alpha)).max())
        machine.set_alpha(place, float(alpha[place]))
        return Change(False, moved)

    def _signed_weights(self, machine: Machine, pulled: Array, sign: Array) -> tuple[Array, float]:
        """Return the mean with wrong-signed entries set to zero (eq. 31)."""
        every = np.zeros(len(sign) + 1)
        every[machine.kept.index] = machine.mean(pulled[:, None])[:, 0]
        weight = every[:-1]
        return np.where(weight * sign > 0, weight, 0.0), float(every[-1])


def _start(problem: Problem, start: Array | None) -> Array | None:
    """Return the responses of the first epoch, shape (n_obs, n_scores); None for rows in chunks."""
    if isinstance(problem.Phi, Chunks):
        if start is not None:
            raise ValueError(
                f"start of shape {np.shape(start)} was given for rows in chunks, whose responses are not "
                "held; needed None, the likelihood's own, or basis functions in memory"
            )
        return None
    shape = (len(problem.label), problem.n_scores)
    if start is None:
        start = problem.likelihood.response(problem.label)
    if start is None:
        slope = problem.likelihood.terms(np.zeros(shape), problem.label).slope
        return slope / (each_row(problem) * problem.likelihood.bound)
    if np.shape(start) != shape and (problem.n_scores > 1 or np.shape(start) != shape[:1]):
        raise ValueError(f"start has shape {np.shape(start)}; needed {shape}")
    return np.reshape(start, shape)


@threads_by_size
def fit_bottom_up(
    problem: Problem,
    start: Array | None = None,
    options: BottomUpOptions | None = None,
    callback: Callable[[int, float], None] | None = None,
) -> EMResult:
    """Add, delete and weigh bases one at a time: mPCVM2 with signs, mRVM1 shared without.

    Under the probit, with signs, it is the PCVM of two classes from the bottom up: the same search for one
    score, as Chen et al. (2014) have it, but with the responses of EM, from weights of zero, in place of
    Laplace's approximation: on Ripley's mixture both keep four vectors, and this has the lower log loss.

    Parameters
    ----------
    problem : Problem
        Of a row of `FAMILY` with the solver ``"bottom-up"``; its `Phi` in memory, or `Chunks`, of which the
        Gram matrix is held. Each weight has a precision of its own, or each basis where `shared`; under
        ``bias="prior"`` so has the constant, which the papers lack. The precisions are estimated, their
        logarithms flat: the numbers of the hyperprior are not used.
    start : ndarray, shape (n_obs,) or (n_obs, n_scores), optional
        Latent responses of the first epoch. Default: the likelihood's own, 10.5 for the own class and 0.5 for
        the others; for two classes those at weights of zero.
    options : BottomUpOptions, optional
    callback : callable, optional
        Called with the epoch's number and log posterior after each epoch.

    Returns
    -------
    EMResult
        Its log posterior is that of the weights given the precisions.

    Raises
    ------
    ValueError
        If the problem is of another row, its bases are not fixed, its bias is free, or the start's shape is
        another.

    References
    ----------
    S. Lyu, X. Tian, Y. Li, B. Jiang and H. Chen (2020), "Multiclass probabilistic classification
    vector machine", IEEE Transactions on Neural Networks and Learning Systems 31(10), Algorithm 2,
    corrected: its eq. 31 diverges, and it has no rule for when to stop. mRVM1: T. Damoulas, Y. Ying,
    M. A. Girolami and C. Campbell (2008), "Inferring sparse kernel combinations and relevance
    vectors", ICMLA. Two classes: H. Chen, P. Tino and X. Yao (2014), "Efficient probabilistic classification
    vector machine with incremental basis function selection", IEEE Transactions on Neural Networks and
    Learning Systems 25(2), 356-369.
    """
    check_fixed_bases(problem, "bottom-up")
    if problem.shared and problem.is_signed:
        raise ValueError("shared precisions need free weights: sign=None, found signs")
    options = options or BottomUpOptions()
    response = _start(problem, start)
    if options.update == "printed":
        if problem.sign is None or problem.shared:
            raise ValueError("update='printed' is of weights with signs; found none")
        if isinstance(problem.Phi, Chunks):
            raise ValueError(
                "update='printed' is stopped by the scores of all rows, which rows in chunks do not keep; "
                "needed update='truncated', or basis functions in memory"
            )
        search: _Search = _Printed(problem, response, options)
    else:
        search = _Search(problem, response, options)
    rows = [(search.log_posterior(), 0, np.nan, problem.width)]
    status = Status.ITERATION_LIMIT
    for n_iter in range(1, options.max_iter + 1):
        change = search.step()
        rows.append((search.log_posterior(), search.n_active, search.moved, problem.width))
        if callback is not None:
            callback(n_iter, rows[-1][0])
        if search.has_diverged:
            status = Status.DIVERGED
            break
        if not change.structural and change.moved < options.tol:
            status = Status.CONVERGED
            break
    if options.momentum or options.is_rough:
        search.settle()
        rows[-1] = (search.log_posterior(), *rows[-1][1:])
    return search.result(status, rows)
