"""How EM runs."""

from dataclasses import dataclass
from typing import Literal

from pcvm_pymc.core.pieces.validation import check_choice, check_real, check_whole

__all__ = ["SETTLED", "EMOptions"]

SETTLED = 0.05  # on the probit's scale: no probability moves by more than 0.02


@dataclass(frozen=True)
class EMOptions:
    """How EM runs.

    Parameters
    ----------
    update : {"auto", "newton", "em", "clip"}
        ``"em"`` is the papers' EM with the exact non-negative M-step. ``"newton"`` takes only the
        precisions as missing data and the likelihood's own curvature instead of the bound (for the probit
        one) that the latent responses amount to; of several classes it solves for all scores at once. It
        has the same fixed points in fewer iterations, and falls back to the ``"em"`` step where it
        would lower the log posterior. ``"clip"`` is what the authors' program does: an unconstrained
        solve, then wrong-signed and small weights are dropped; it is not monotone. ``"auto"`` takes
        ``"newton"``, but under an improper weight prior only once an ``"em"`` step prunes nothing and
        moves no latent value by more than 0.05: before that, the longer steps end in poorer local maxima.
    bias : {"joint", "alternating"}
        Whether weights and bias are solved for together, or in turn as eqs. 11 and 12 print it.
    max_iter : int
        Most iterations; where they do not suffice, the result's status says so.
    tol : float
        EM stops once no latent value changes by more than this in one iteration (for ``"clip"``: no
        weight, the authors' rule). Where a Newton step would still gain 0.01 nats of log posterior,
        ``"auto"`` and ``"newton"`` go on by it, and ``"em"`` ends with the status ``SHORT_STEPS``.
    drop : float
        ``"clip"`` only: weights at most this large are dropped.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009), eqs. 11 and 12 (``bias="alternating"``); their
    program (``"clip"``).

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0, width=1.0)
    >>> result = find_map_em(model, options=EMOptions(update="em", tol=1e-4), progressbar=False)
    >>> result["optimizer_result"]["status"].item()
    'CONVERGED'
    """

    update: Literal["auto", "newton", "em", "clip"] = "auto"
    bias: Literal["joint", "alternating"] = "joint"
    max_iter: int = 10_000
    tol: float = 1e-5
    drop: float = 1e-3

    def __post_init__(self) -> None:
        check_choice("update", self.update, ("auto", "newton", "em", "clip"))
        check_choice("bias", self.bias, ("joint", "alternating"))
        check_whole("max_iter", self.max_iter, 1)
        check_real("tol", self.tol)
        check_real("drop", self.drop, closed=True)

    @classmethod
    def chen2009(cls) -> "EMOptions":
        """Return the authors' program: clip and drop, bias in turn, 500 iterations, change 1e-3."""
        return cls(update="clip", bias="alternating", max_iter=500, tol=1e-3, drop=1e-3)
