"""What notebooks show of a fitted estimator: a short table of what was chosen, in scikit-learn's diagram."""

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from pcvm_pymc.core.probabilities import class_numbers

_ROW = '<tr class="default"><td class="param">{}</td><td class="value">{}</td></tr>'
_TABLE = (
    "<div class='estimator-table'><details open><summary>Fit</summary>"
    "<table class='parameters-table'><tbody>{}</tbody></table></details></div>"
)


def table(rows: Mapping[str, str]) -> str:
    """Return names and values as HTML, in the style of scikit-learn's tables."""
    return _TABLE.format("".join(_ROW.format(*map(escape, row)) for row in rows.items()))


def chosen(fit: Mapping[str, Any], kernel: Any) -> dict[str, str]:
    """Return names and values of what a fit chose, from its attributes and the kernel that was asked for."""
    shares, chains = dict[str, float](), fit["idata_"]["convergence"] if "idata_" in fit else None
    kernels = [mode.kernel.name for mode in fit.get("components_", ())]
    parts = list(zip(kernels, fit.get("component_weights_", ()), strict=True))
    if chains is not None and not parts:
        parts = list(zip(chains["kernel"].values, chains["share"].values, strict=True))
    for name, share in parts:
        shares[name] = shares.get(name, 0.0) + share
    kernel = fit.get("_kernel_", kernel)
    weighed = [f"{name} {share:.2f}" for name, share in shares.items()]
    alone = list(shares) or [vars(kernel).get("features", kernel.name)]
    names = weighed if len(weighed) > 1 else alone
    out, width = {"kernel": ", ".join(names)}, fit.get("width_", np.nan)
    if not np.isnan(width).all():
        width = np.asarray(fit.get("feature_widths_", width) if np.ndim(width) else width)
        how: Any = {"formatter": {"float_kind": "{:.4g}".format}, "threshold": 6, "edgeitems": 2}
        out["widths" if width.ndim else "width"] = np.array2string(width, **how)
    if not np.isnan(fit.get("scale_", np.nan)):
        out["scale"] = f"{fit['scale_']:.4g}"
    is_sparse = "relevance_vectors_" not in fit
    vectors = fit.get("selected_", ()) if is_sparse else fit["relevance_vectors_"]
    out["selected features" if is_sparse else "vectors"] = str(len(vectors))
    if len(parts) > 1 and chains is None:
        out["modes averaged"] = f"{len(parts)}; width, scale and vectors are the best one's"
    if not np.isnan(loss := _held_out_loss(fit)):
        out["held-out log loss"] = f"{loss:.4f} nats a row, approximate"
    ends = ", ".join(dict.fromkeys(status.name for status in np.atleast_1d(fit["status_"])))
    out["status"] = f"{ends.lower().replace('_', ' ')} ({fit['n_iter_']} iterations)"
    if chains is not None:
        out |= {x: f"{float(chains[x]):.4g}" for x in ("rhat", "ess")}
    return out | ({"seconds": f"{fit['_seconds_']:.3g}"} if "_seconds_" in fit else {})


def _held_out_loss(fit: Mapping[str, Any]) -> float:
    """Return the mean negative log probability, or density, of rows left out; NaN where none were."""
    if "held_out_" in fit and "_training_" in fit:
        data, probability = fit["_training_"], fit["held_out_"]
        first = np.unique(data.of_all(np.arange(len(data.X))), return_index=True)[1]
        own = probability[first, class_numbers(data.label, probability.shape[1])]
        return -float(np.average(np.log(own), weights=data.count))
    if "projection_" in fit:
        projection, weight = fit["projection_"], fit["projection_"].reference.weight
        density = projection.log_density
        of_rows = density[projection.index] if density.size else np.full(1, np.nan)
        return -float(of_rows.sum() / (len(of_rows) if weight is None else weight.sum()))
    if "selection_" in fit and "idata_" not in fit:
        return float(fit["selection_"].best.scored().log_loss)
    if "width_selection_" in fit:
        return float(fit["width_selection_"].log_loss.min())
    return np.nan
