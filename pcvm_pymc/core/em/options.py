"""How EM runs, and where it starts."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pcvm_pymc.core.design import FirstResponses, StreamedDesign
from pcvm_pymc.core.nonnegative import ridge_solve, solve_nonnegative
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.row_weights import majority_label
from pcvm_pymc.core.pieces.validation import check_choice, check_real, check_whole
from pcvm_pymc.core.problem import Problem
from pcvm_pymc.core.quadratic import BorderedGram

_RIDGE = 1e-6  # penalty of the ridge start, Step 2 of Figueiredo & Jain (2001)

# default tolerances: the largest change of a latent value in one iteration, in units of the latent function
TOLERANCE = 1e-5
CLASS_TOLERANCE = 1e-4  # of the estimators for several classes


@dataclass(frozen=True)
class EMOptions:
    """How EM runs.

    Parameters
    ----------
    update : {"auto", "newton", "em"}
        ``"em"`` is the papers' EM with the exact non-negative M-step. ``"newton"`` takes only the
        precisions as missing data, and the likelihood's own curvature instead of the bound (for the probit
        one) that latent responses amount to; with several classes it solves for all scores at once. It
        has the same fixed points in fewer iterations, and falls back to the ``"em"`` step where it
        would lower the log posterior. ``"auto"`` takes ``"newton"``, but under an improper weight prior
        only once an ``"em"`` step prunes nothing and moves no latent value by more than 0.05: before
        that, the longer steps end in poorer local maxima.
    max_iter : int
        Most iterations; where they do not suffice, the result's status says so.
    tol : float
        EM stops once no latent value changes by more than this in one iteration. Where a Newton step would
        still gain 0.01 nats of log posterior, ``"auto"`` and ``"newton"`` go on with it, and ``"em"``
        ends with the status ``SHORT_STEPS``.
    kernel_dtype : {"float64", "float32"}
        Of estimators whose rows go through EM in chunks (`memory_limit`, Dask arrays): precision of the basis
        functions within a chunk. ``"float32"`` is about twice as fast, its probabilities agree to about 1e-4.

    Notes
    -----
    The authors' program (clipped M-steps, bias and weights in turn) is `pcvm_pymc.experiments.replicas`.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), IEEE Transactions on Neural Networks 20(6), Algorithm 1, corrected.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0, width=1.0)
    >>> options = EMOptions(update="em", tol=1e-4)
    >>> result = find_map_em(model, options=options, progressbar=False)
    >>> result["optimizer_result"]["status"].item()
    'CONVERGED'
    """

    update: Literal["auto", "newton", "em"] = "auto"
    max_iter: int = 10_000
    tol: float = TOLERANCE
    kernel_dtype: Literal["float64", "float32"] = "float64"

    def __post_init__(self) -> None:
        check_choice("update", self.update, ("auto", "newton", "em"))
        check_choice("kernel_dtype", self.kernel_dtype, ("float64", "float32"))
        check_whole("max_iter", self.max_iter, 1)
        check_real("tol", self.tol)

    def check_in_memory(self) -> None:
        """Raise for an option that rows in memory do not have."""
        if self.kernel_dtype != "float64":
            fault = f"kernel_dtype={self.kernel_dtype!r} has no effect on rows in memory"
            raise ValueError(f"{fault}; needed 'float64'")


@dataclass(frozen=True)
class Start:
    """Where a fit begins.

    Parameters
    ----------
    weight : ndarray, shape (n_basis,), or (n_basis, n_scores) for several scores
    bias : float, or ndarray, shape (n_scores,)
    response : ndarray, shape (n_obs,) or (n_obs, n_scores), optional
        Latent responses in place of the first E-step; of weights and biases only the sizes then matter,
        which give the first precisions.

    References
    ----------
    `Start.ridge` is that of M. Figueiredo and A. Jain (2001), section 3, step 2, corrected. Random starts
    are `pcvm_pymc.experiments.replicas`.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> start = Start(weight=np.where(X[:, 0] > 0, 0.1, -0.1), bias=0.0)
    >>> model = pcvm_model(X, X[:, 0] > 0, width=1.0)
    >>> result = find_map_em(model, start=start, progressbar=False)
    >>> result["optimizer_result"]["status"].item()
    'CONVERGED'
    """

    weight: Array
    bias: Any
    response: Array | None = None

    @classmethod
    def default(cls, problem: Problem) -> "Start":
        """Return a deterministic start.

        One score under a sign rule: zero, or weights of size one where the prior keeps zeros at zero
        (d = 0). One score of free weights: the ridge fit, see `ridge`. Several scores: precisions of
        one and the likelihood's first responses.

        Parameters
        ----------
        problem : Problem

        Returns
        -------
        Start
        """
        streamed = isinstance(problem.Phi, StreamedDesign)
        if problem.n_scores > 1:
            response = None if streamed else problem.likelihood.response(problem.label)
            bias = np.full(problem.n_scores, 0.0 if problem.bias == "none" else 1.0)
            return cls(problem.weight_sign.copy(), bias, response)
        if not problem.is_signed:
            return cls.ridge(problem)
        prior = problem.hyperprior
        leaves_zero = prior.penalty > 0 or not prior.holds_zeros
        weight = np.zeros(problem.weight_shape) if leaves_zero else problem.weight_sign.copy()
        if problem.bias != "prior" or prior.penalty > 0 or not prior.holds_zero_bias:
            return cls(weight, 0.0)
        if streamed:
            return cls(weight, problem.Phi.majority)
        return cls(weight, majority_label(problem.label, problem.row_weight))

    @classmethod
    def ridge(cls, problem: Problem, ridge: float = _RIDGE) -> "Start":
        """Return the weakly penalised ridge fit to labels -1 and +1 (Figueiredo & Jain, Step 2, corrected).

        The printed ``(eps I + H'H)^-1 H y`` lacks a prime. Under Jeffreys' prior the start decides the end:
        labels 0 and 1 with ``ridge >= 0.1`` end at no weights at all.

        Parameters
        ----------
        problem : Problem
        ridge : float
            The penalty, eps.

        Returns
        -------
        Start
        """
        Phi, penalty = problem.Phi, np.full(problem.Phi.shape[1], ridge)
        bias_penalty = {"prior": ridge, "free": 0.0, "none": np.inf}[problem.bias]
        if not isinstance(Phi, StreamedDesign):
            label, row_weight = np.asarray(problem.label, dtype=float), problem.row_weight
            return cls(*ridge_solve(Phi, label, penalty, bias_penalty, row_weight=row_weight))
        at = np.zeros((len(penalty), 1)), np.zeros(1)
        sums = Phi.sums(at, FirstResponses(problem.likelihood), gram="unit")
        with np.errstate(divide="ignore"):
            scale, bias_scale = penalty**-0.5, float(np.float64(bias_penalty) ** -0.5)
        target = sums.gradient[:, 0], float(sums.total[0])
        gram, every = BorderedGram(sums.gram), np.ones(len(penalty), dtype=bool)
        return cls(*solve_nonnegative(gram, scale, bias_scale, target, every, constrained=False))
