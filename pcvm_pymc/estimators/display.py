"""What notebooks show of a fitted estimator: a short table of what was chosen, in scikit-learn's diagram."""

from html import escape
from typing import Any

import numpy as np

from pcvm_pymc.core.probabilities import class_numbers

_ROW = '<tr class="default"><td class="param">{}</td><td class="value">{}</td></tr>'


def table(model: Any) -> str:
    """Return HTML with what a fit has chosen, in the style of scikit-learn's tables."""
    rows = [_ROW.format(escape(name), escape(value)) for name, value in chosen(model).items()]
    body = f"<table class='parameters-table'><tbody>{''.join(rows)}</tbody></table>"
    return (
        f"<div class='estimator-table'><details open><summary>Fit</summary>{body}</details></div>"
    )


def chosen(model: Any) -> dict[str, str]:
    """Return names and values of what a fit has chosen, as far as it has them."""
    fit, out = vars(model), {"kernel": _kernels(model)}
    width = fit.get("width_", np.nan)
    width = fit.get("feature_widths_", width) if np.ndim(width) else width
    if not np.isnan(width).all():
        how: Any = {"formatter": {"float_kind": "{:.4g}".format}, "threshold": 6, "edgeitems": 2}
        out["widths" * bool(np.ndim(width)) or "width"] = np.array2string(np.asarray(width), **how)
    if not np.isnan(fit.get("scale_", np.nan)):
        out["scale"] = f"{fit['scale_']:.4g}"
    vectors = fit.get("relevance_vectors_", fit.get("selected_", ()))
    out["vectors" if "relevance_vectors_" in fit else "selected features"] = str(len(vectors))
    if (n_modes := len(fit.get("components_", ()))) > 1:
        out["modes averaged"] = f"{n_modes}; width, scale and vectors are the best one's"
    if not np.isnan(loss := _held_out_loss(model)):
        out["held-out log loss"] = f"{loss:.4f} nats a row, approximate"
    ends = dict.fromkeys(each.name for each in np.atleast_1d(fit["status_"]))
    out["status"] = ", ".join(ends).lower().replace("_", " ") + f" ({fit['n_iter_']} iterations)"
    if "idata_" in fit:
        chains = fit["idata_"]["convergence"]
        out["r-hat"], out["effective draws"] = (f"{float(chains[x]):.4g}" for x in ("rhat", "ess"))
    if "_seconds_" in fit:
        out["seconds"] = f"{fit['_seconds_']:.3g}"
    return out


def _kernels(model: Any) -> str:
    """Return the names of the kernels, of several with their weights; or of other features."""
    fit, shares = vars(model), dict[str, float]()
    if "components_" in fit:
        names = [each.kernel.name for each in model.components_]
        parts = zip(names, model.component_weights_, strict=True)
    elif "idata_" in fit:
        chains = model.idata_["convergence"]
        parts = zip(chains["kernel"].values, chains["share"].values, strict=True)
    else:
        kernel = fit.get("_kernel_", model._kernel_at(1.0))
        return str(vars(kernel).get("features", kernel.name))
    for name, share in parts:
        shares[name] = shares.get(name, 0.0) + share
    weighed = [f"{name} {share:.2f}" for name, share in shares.items()]
    return ", ".join(weighed if len(shares) > 1 else shares)


def _held_out_loss(model: Any) -> float:
    """Return the mean negative log probability, or density, of rows left out; NaN where none were."""
    fit = vars(model)
    if "held_out_" in fit and "_training_" in fit:
        data, probability = model._training_, model.held_out_
        number = data.of_all(class_numbers(data.label, probability.shape[1]))
        first = slice(None) if data.copies is None else np.unique(data.copies, return_index=True)[1]
        own = probability[np.arange(len(number)), number][first]
        return -float(np.average(np.log(own), weights=data.count))
    if "projection_" in fit:
        log_density, weight = model.projection_.log_density, model.projection_.reference.weight
        of_size = log_density[model.projection_.index]
        total = len(of_size) if weight is None else weight.sum()
        return -float(of_size.sum() / total) if of_size.size else np.nan
    if "selection_" in fit and "idata_" not in fit:
        return float(model.selection_.best.scored().log_loss)
    if "width_selection_" in fit and model.width_selection_.method == "cv":
        return -float(model.width_selection_.scores.max())
    return np.nan
