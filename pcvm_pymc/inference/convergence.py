"""Whether chains have converged: one verdict, for `sample`, its rounds of draws and `compare`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.inference.names import under_our_names

_MOST_RHAT, _LEAST_ESS = 1.01, 400
#: of a model of the family, in addition to parameters of its likelihood; single weights are not identified
GATED = ("latent", "width")


@dataclass(frozen=True)
class Convergence:
    """r-hat, effective sample size and divergences of latent function, width and likelihood parameters.

    Attributes
    ----------
    divergences : int
        After tuning, of all chains.
    rhat : float
        Worst rank-normalised split r-hat, of the latent function at the training inputs.
    ess : float
        Smallest bulk effective sample size of the same.
    n_draws : int
        Draws of all chains.
    names : tuple of str
        What was judged.
    """

    divergences: int
    rhat: float
    ess: float
    n_draws: int
    names: tuple[str, ...] = ("latent",)

    @property
    def ok(self) -> bool:
        """Whether r-hat is at most 1.01 and the effective sample size at least 400, or half of few draws."""
        return self.rhat <= _MOST_RHAT and self.ess >= min(_LEAST_ESS, self.n_draws // 2)

    def __str__(self) -> str:
        if not self.ok:
            verdict = (
                "NOT converged: draw more, raise max_iter (Gibbs, HMC) or target_accept (NUTS)"
            )
        elif self.divergences:
            verdict = "converged, but with divergences: raise target_accept (NUTS) or draw more"
        else:
            verdict = "converged"
        noun = "divergence" if self.divergences == 1 else "divergences"
        what = ", ".join("latent function" if name == "latent" else name for name in self.names)
        return (
            f"{verdict} ({self.divergences} {noun} in {self.n_draws} draws; {what}: "
            f"worst r-hat {self.rhat:.3f}, smallest ESS {self.ess:.0f})"
        )


def judge(draws: Mapping[str, Array], divergences: int = 0) -> Convergence:
    """Return the convergence of variables by their draws, shape (n_chains, n_draws, ...) each.

    Scores of several classes, shape (n_chains, n_draws, n_obs, n_classes), are judged less their mean: a
    common shift of all of them changes no prediction.
    """
    import arviz as az

    given = dict(draws)
    if "latent" in given and given["latent"].ndim == 4:
        given["latent"] = given["latent"] - given["latent"].mean(axis=3, keepdims=True)
    rhat, ess = az.rhat(given), az.ess(given)
    return Convergence(
        divergences=divergences,
        rhat=max(float(rhat[name].max()) for name in given),
        ess=min(float(ess[name].min()) for name in given),
        n_draws=int(np.prod(next(iter(given.values())).shape[:2])),
        names=tuple(given),
    )


def convergence(tree: xr.DataTree, more: Sequence[str] = ()) -> Convergence:
    """Return the convergence of a posterior's latent function, its width and further variables.

    Parameters
    ----------
    tree : DataTree
    more : sequence of str
        Further variables of the group ``posterior``, in addition to the latent function and a width.
    """
    posterior = under_our_names(tree)["posterior"].to_dataset().transpose("chain", "draw", ...)
    stats: Any = tree.get("sample_stats", {})  # an approximation's draws are independent
    names = [name for name in dict.fromkeys((*GATED, *more)) if name in posterior]
    draws = {str(name): posterior[name].values for name in names or posterior}
    return judge(draws, int(stats["diverging"].sum()) if "diverging" in stats else 0)


@contextmanager
def keeping(draws: Any) -> Iterator[None]:
    """Keep draws when later code raises: in the attribute ``draws`` of the error."""
    try:
        yield
    except BaseException as error:
        error.draws = draws  # type: ignore[attr-defined]
        error.add_note("nothing is lost: the draws are in the attribute draws of this error")
        raise
