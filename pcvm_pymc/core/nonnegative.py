"""Exact M-steps: a strictly convex quadratic programme under the sign rule, and ridge regression without."""

import numpy as np
from scipy.linalg import cho_factor, cho_solve, svd

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.quadratic import POTRF, POTRS, SINGLE_ROUNDING, Gram, Mask, with_bias

# of a ridge problem's Gram matrix: above, it has lost what the identity adds, and singular values are taken
_LARGEST_SQUARE = 1e10
_MOST_EXCHANGES = 100  # and ten for each weight: far more than exact arithmetic was seen to need
# scaled problems have unit diagonal curvature from the prior: smaller slopes are rounding
_SLOPE_TOLERANCE = 1e-10
_MOST_ROUNDING = 0.3  # of a matrix in single precision, in units of what the prior bends
# of the diagonal, one after the other where a matrix is not positive definite for rounding
_INFLATIONS = (0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)


class _Scaled:
    """The problem in units of the prior's standard deviations, as a change from a point.

    Its matrix is ``D G D + I``, the ridge in place of the one for the bias.

    Attributes
    ----------
    gram : Gram
    scale : ndarray, shape (n_basis + 1,)
        The bias last, here and below.
    ridge : ndarray, shape (n_basis + 1,)
        Ones; zero for a bias whose prior is flat.
    at : ndarray, shape (n_basis + 1,)
        The point.
    rhs : ndarray, shape (n_basis + 1,)
        Minus the gradient there.
    """

    def __init__(self, gram: Gram, scale: Array, target: Array, start: Array) -> None:
        self.gram, self.scale, self.ridge = gram, scale, np.ones(len(scale))
        if scale[-1] == np.inf:  # any unit will do where the prior gives none
            corner = gram.product(np.append(np.zeros(len(scale) - 1), 1.0))[-1]
            if corner > 0:
                self.scale[-1], self.ridge[-1] = 1.0 / np.sqrt(corner), 0.0
            else:  # no row has a curvature either: the step of a standard normal prior
                self.scale[-1] = 1.0
        self.at = np.zeros(len(scale))  # scales of zero leave out
        np.divide(start, scale, out=self.at, where=scale != 0)
        self.rhs = scale * target - self.ridge * self.at

    def product(self, change: Array) -> Array:
        """Return D G D times a change."""
        return self.scale * self.gram.product(self.scale * change)

    def unscaled(self, u: Array) -> tuple[Array, float]:
        """Return weights and bias."""
        value = self.scale * u
        return value[:-1], float(value[-1])

    def change(self, passive: Mask) -> Array:
        """Return the step to the solution in which all but the passive weights are zero."""
        leaving = np.where(passive, 0.0, -self.at[:-1])
        if not leaving.any():
            return self._solved(passive, self.rhs)
        leaving = with_bias(leaving, 0.0)
        return self._solved(passive, self.rhs - self.product(leaving)) + leaving

    def _solved(self, passive: Mask, rhs: Array) -> Array:
        """Solve the equations of the passive weights and the bias.

        The matrix is I + positive semi-definite; where bases are so large that rounding takes the I away, it
        is computed in double precision, and then its diagonal grows by what rounding may have taken.
        """
        for inflation in _INFLATIONS:
            columns, H = self.gram.block(passive, self.scale)
            n, single = len(columns), H.dtype == np.float32
            diagonal = H.T.ravel()[:: n + 2]  # a view, the matrix being in column order
            rounding = diagonal.sum(dtype=float) * SINGLE_ROUNDING if single else 0.0
            diagonal[:n] += 1.0
            diagonal[n] += self.ridge[-1]
            if inflation:
                diagonal *= 1.0 + inflation
            factor, failed = POTRF[H.dtype.char](H, lower=1, overwrite_a=1)
            # written so that what is not a number is too much
            if single and (failed or not rounding < _MOST_ROUNDING):
                self.gram.widen()
                return self._solved(passive, rhs)
            if not failed:
                goal = with_bias(rhs[columns], rhs[-1], factor.dtype)
                solution, _ = POTRS[H.dtype.char](factor, goal, lower=1, overwrite_b=1)
                out = np.zeros(len(rhs))
                out[columns], out[-1] = solution[:-1], solution[-1]
                return out
        fault = "kernel: squares of its values are too large"
        raise ValueError(f"{fault}; standardise the features, or scale the kernel")


def solve_nonnegative(
    gram: Gram,
    scale: Array,
    bias_scale: float,
    target: tuple[Array, float],
    passive: Mask,
    *,
    start: tuple[Array, float] | None = None,
    constrained: bool = True,
    slack: float = 0.0,
) -> tuple[Array, float]:
    r"""Minimise 1/2 v' G v - t' v + 1/2 (w / scale)^2 + 1/2 (b / bias_scale)^2 over v = (w, b).

    In u = v / scale this is strictly convex with matrix ``D G D + I`` (the stable form
    ``M (M Phi'Phi M + I)^-1 M`` of Chen et al. 2009, appendix C), so that a scale of zero simply
    removes a weight. Block principal pivoting with Murty's single exchange as the fallback
    that makes it finite.

    Parameters
    ----------
    gram : Gram
        G, of [Phi, 1].
    scale : ndarray, shape (n_basis,)
        Prior standard deviation of each weight times its sign: w / scale >= 0 is the constraint.
    bias_scale : float
        Prior standard deviation of the bias, which is free of constraints; infinite: a flat prior.
    target : tuple of ndarray, shape (n_basis,), and float
        t = [Phi, 1]' (working response).
    passive : ndarray of bool, shape (n_basis,)
        Weights expected to be non-zero; the solution does not depend on it, the time does.
    start : tuple of ndarray, shape (n_basis,), and float, optional
        A point v_0 for which `target` is t - G v_0, the slope of what is not the prior. It is the change
        that is solved for then: where the slopes at v_0 are the prior's, the solution is v_0, however
        roughly G is known.
    constrained : bool
        False solves without the sign constraint.
    slack : float
        Be content once at most this share of the passive weights is on the wrong side of zero, or should
        not be zero; the former are set to zero then. 0 solves to the end.

    Returns
    -------
    weight : ndarray, shape (n_basis,)
    bias : float

    References
    ----------
    J. J. Judice and F. M. Pires (1994), "A block principal pivoting algorithm for large-scale
    strictly monotone linear complementarity problems", Computers & Operations Research 21.
    """
    at = np.zeros(len(scale) + 1) if start is None else with_bias(*start)
    scaled = _Scaled(gram, with_bias(scale, bias_scale), with_bias(*target), at)
    usable = scale != 0
    if not constrained:
        return scaled.unscaled(scaled.at + scaled.change(usable))
    passive = passive & usable
    fewest, patience = len(scale) + 1, 3
    for _ in range(_MOST_EXCHANGES + 10 * len(scale)):
        change = scaled.change(passive)
        u = scaled.at + change
        wrong = passive & (u[:-1] < 0)
        idle = usable & ~passive
        if idle.any():  # weights at zero, whose prior does not pull
            slope = (scaled.product(change) + change - scaled.rhs)[:-1]
            least = -_SLOPE_TOLERANCE * (1.0 + np.abs(scaled.rhs[:-1]))
            wrong |= idle & (slope < least)
        count = int(np.count_nonzero(wrong))
        if count == 0 or (slack and count <= slack * np.count_nonzero(passive)):
            break
        if count < fewest:
            fewest, patience = count, 3
        elif patience > 0:
            patience -= 1
        elif gram.widen():  # rounding may have made it go in circles
            fewest, patience = len(scale) + 1, 3
        else:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        passive = passive ^ wrong
    # what is left of the sign rule's violations is slack, or rounding that has made it go in circles
    u[:-1] = np.maximum(u[:-1], 0.0)
    return scaled.unscaled(u)


def ridge_solve(
    Phi: Array,
    response: Array,
    precision: Array,
    bias_precision: float,
    *,
    row_weight: Array | None = None,
    dual: bool | None = None,
) -> tuple[Array, float]:
    r"""Minimise ``|response - Phi w - b|^2 + w' diag(precision) w + bias_precision b^2``.

    By ``w = T (I + T Phi' Phi T)^-1 T Phi' v``, ``T = precision^(-1/2)`` (Figueiredo & Jain 2001
    eq. 16), which takes infinite precisions as weights of zero, or by its dual ``T Phi'_T (I + Phi_T
    Phi_T')^-1 v``, ``Phi_T = Phi T``.

    Parameters
    ----------
    Phi : ndarray, shape (n_obs, n_features)
    response : ndarray, shape (n_obs,)
    precision : ndarray, shape (n_features,)
        Positive, infinity included.
    bias_precision : float
        0 leaves the bias free; infinity leaves it out.
    row_weight : ndarray, shape (n_obs,), optional
        Positive weights of the squares. Default: ones.
    dual : bool, optional
        Whether to solve n_obs equations in place of n_features. Default: whichever are fewer.

    Returns
    -------
    weight : ndarray, shape (n_features,)
    bias : float
    """
    root = np.ones(len(response)) if row_weight is None else np.sqrt(row_weight)
    kept = np.flatnonzero(np.isfinite(precision))
    scale = 1.0 / np.sqrt(precision[kept])
    A = root[:, None] * Phi[:, kept] * scale
    v = root * response
    free = bias_precision == 0
    if free:  # what the bias explains is projected out
        unit = root / np.linalg.norm(root)
        A = A - np.outer(unit, unit @ A)
    elif np.isfinite(bias_precision):
        scale = np.append(scale, 1.0 / np.sqrt(bias_precision))
        A = np.column_stack([A, root * scale[-1]])
    solution = scale * _unit_ridge(A, v, A.shape[1] > A.shape[0] if dual is None else dual)
    weight = np.zeros(Phi.shape[1])
    weight[kept] = solution[: len(kept)]
    if free:
        residual = response - Phi[:, kept] @ weight[kept]
        return weight, float((root**2) @ residual / (root @ root))
    return weight, float(solution[-1]) if len(solution) > len(kept) else 0.0


def _unit_ridge(A: Array, v: Array, dual: bool) -> Array:
    """Return (I + A'A)^-1 A'v."""
    if A.shape[1] == 0:
        return np.zeros(0)
    gram = A @ A.T if dual else A.T @ A
    if gram.diagonal().max() > _LARGEST_SQUARE:  # the Gram matrix has lost what the identity adds
        U, size, Vt = svd(A, full_matrices=False, check_finite=False)
        return Vt.T @ (size / (1.0 + size**2) * (U.T @ v))
    gram[np.diag_indices_from(gram)] += 1.0
    factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
    if dual:
        return A.T @ cho_solve(factor, v, check_finite=False)
    return cho_solve(factor, A.T @ v, check_finite=False)
