"""How a notebook shows a result: a short table above the groups of the DataTree."""

from typing import Any

import pandas as pd
import xarray as xr

from pcvm_pymc.inference.convergence import convergence

#: what says how a result was made and whether it converged: of ``optimizer_result``, or attributes
_TOLD = (
    "method sampler seconds sampling_time status message nit n_active log_posterior log_evidence"
)


class Result(xr.DataTree):
    """A DataTree that a notebook shows with a short table above its groups, and no more than that."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        table = overview(self)
        with pd.option_context("display.max_colwidth", None):
            shown = table.to_html(float_format="{:.4g}".format, max_rows=20)
        return ("" if table.empty else shown) + super()._repr_html_()


def overview(tree: xr.DataTree) -> pd.DataFrame:
    """Return a summary table of a mode or posterior; of predictions their means over the draws.

    How it was made, whether it converged, and each variable or constant that is one number, of draws as mean
    and standard deviation. Empty where a tree is neither.
    """
    group = "posterior" if "posterior" in tree.children else "predictions"
    data = tree[group].to_dataset() if group in tree.children else xr.Dataset()
    if not {"chain", "draw"} <= {*data.dims}:
        return pd.DataFrame()
    if group == "predictions":
        return data.mean(("chain", "draw")).to_dataframe()
    n_chains, n_draws = data.sizes["chain"], data.sizes["draw"]
    end, constants = (dict(tree.get(name, {})) for name in ("optimizer_result", "constant_data"))
    told = data.attrs | {name: x.item() for name, x in end.items() if x.ndim == 0}
    rows: dict[Any, Any] = {name: told[name] for name in _TOLD.split() if name in told}
    if n_chains > 1 and n_draws >= 100:  # of fewer it cannot be told
        rows["convergence"] = str(convergence(tree))
    for name, x in {**constants, **data}.items():
        if {*x.dims} <= {"chain", "draw"} and x.dtype.kind == "f":
            spread = f"{x.mean().item():.4g} ± {x.std().item():.2g}"
            rows[name] = spread if x.size > 1 else x.item()
    return pd.DataFrame({"posterior" if n_chains * n_draws > 1 else "mode": rows})
