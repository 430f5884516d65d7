"""Scores of a posterior on rows held out: honest cross-validation, PSIS-LOO with its caveat."""

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from arviz_stats.utils import ELPDDataLOOKFold
from numpy.typing import ArrayLike, NDArray

from pcvm_pymc.assessment.comparison import n_draws, vector_count
from pcvm_pymc.assessment.held_out import (
    Scores,
    classes_of,
    coded,
    held_out,
    observed_of,
    score,
)
from pcvm_pymc.assessment.leave_one_out import elpd_fields
from pcvm_pymc.core.pieces.centres import copied_rows, rows_under
from pcvm_pymc.core.pieces.names import check_same_rows
from pcvm_pymc.core.pieces.priors import HalfHorseshoe
from pcvm_pymc.core.pieces.probit import Array
from pcvm_pymc.core.pieces.validation import InputWarning, as_features, check_seed, shown
from pcvm_pymc.estimators.training import group_numbers, inner_folds
from pcvm_pymc.inference import results
from pcvm_pymc.inference.estimates import find_map_em
from pcvm_pymc.inference.names import under_our_names
from pcvm_pymc.inference.prediction import Seed
from pcvm_pymc.inference.sampling import sample
from pcvm_pymc.model.bases import AnyKernel
from pcvm_pymc.model.build import build
from pcvm_pymc.model.data import as_model

_log = logging.getLogger("pymc.pcvm_pymc")

LOO_CAVEAT = (
    "PSIS-LOO keeps the basis function of the row it leaves out, whose sign is that row's own label: the "
    "score is optimistic (by about .01 nats a row), and Pareto k does not show it. kfold(...) is the honest "
    "score: it refits without the held-out rows and without their bases"
)


def psis_loo(posterior: xr.DataTree, **kwargs: Any) -> Any:
    """Return ArviZ's PSIS-LOO, and log a warning of what it means where a sign rule reads the labels.

    Parameters
    ----------
    posterior : DataTree
        From `sample`.
    **kwargs
        For `arviz.loo`.

    Returns
    -------
    ELPDData

    Raises
    ------
    ValueError
        If `posterior` has no ``log_likelihood``.

    References
    ----------
    A. Vehtari, A. Gelman and J. Gabry (2017), "Practical Bayesian model evaluation using leave-one-out
    cross-validation and WAIC", Statistics and Computing 27.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import pcvm_model, sample
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 2))
    >>> y = X[:, 0] + rng.normal(size=40) > 0
    >>> model = pcvm_model(X, y, width=2.0, hyperprior="default")
    >>> draws = sample(model, draws=250, random_seed=1, quiet=True)
    >>> int(psis_loo(draws).n_data_points)
    40
    """
    results.check_result(posterior, "posterior", "log_likelihood")
    data = posterior["constant_data"].to_dataset()
    # do weights have the signs of their bases' labels? Not where each centre has one of either sign
    tells_labels = []
    for name in [str(each) for each in data if str(each).endswith("signs")]:
        total, centres = data[name].values, data.get(f"{name.removesuffix('signs')}centres")
        if centres is not None:
            _, place = np.unique(centres.values, axis=0, return_inverse=True)
            total = np.zeros((place.max() + 1, *data[name].shape[1:]))
            np.add.at(total, place.ravel(), data[name].values)
        tells_labels.append(total.any())
    if any(tells_labels):
        _log.warning(LOO_CAVEAT)
    return az.loo(posterior, **kwargs)


@dataclass(frozen=True, kw_only=True, repr=False)
class KFold(Scores):
    """Cross-validation by refits without the held-out rows and their bases.

    Attributes
    ----------
    elpd : ELPDData
        ArviZ's result for the posterior, which `arviz.compare` takes.
    table : pandas.DataFrame
        MAP plug-in and posterior mean on the held-out rows: elpd and its standard error, error, AUC,
        1-RMSE, log loss, expected calibration error, vectors (mean over folds).
    probability : dict of str to ndarray, shape (n_obs,), or (n_obs, n_classes) of several classes
        Out-of-fold probability of the greater class, or of each; empty where targets are numbers.
    label : ndarray, shape (n_obs,)
        Numbers of the classes: 0 and 1, of several from 0; or the targets.
    fold : ndarray of int, shape (n_obs,)
        The fold, from 1, in which a row was held out.
    classes : ndarray, shape (n_classes,)
    """

    elpd: Any
    fold: NDArray[Any]


def kfold(
    posterior: xr.DataTree,
    X: ArrayLike,
    y: ArrayLike,
    *,
    cv: int = 5,
    kernel: AnyKernel | None = None,
    random_seed: Seed = None,
    groups: ArrayLike | None = None,
    model: Callable[..., pm.Model] | None = None,
    data: Mapping[str, ArrayLike] | None = None,
    **options: Any,
) -> KFold:
    """Cross-validate a posterior and its MAP, each fold refitted without its rows and their bases.

    Where signs of the bases are labels, a score that keeps the bases of the rows it scores has seen
    their labels. Width and hyperprior are those of `posterior`.

    Parameters
    ----------
    posterior : DataTree
        From `sample`, of a model of two classes or several with a fixed width.
    X : array_like, shape (n_obs, n_features)
        The training inputs. Bases centred on other points stay in every fold. k-means centres
        (``basis="kmeans"``) do so too, although the held-out rows had a part in them.
    y : array_like, shape (n_obs,)
        The training labels.
    cv : int
        Folds, stratified; fewer where a class is in fewer groups.
    kernel : str, callable or pm.gp.cov.Covariance, optional
        The kernel that the model was built with; needed where it was a function or a covariance.
    random_seed : int or numpy.random.Generator, optional
        For the folds and the samplers.
    groups : array_like, shape (n_obs,), optional
        Rows of one group, such as repeated measurements, are held out together.
    model : callable, optional
        For a posterior with terms of one's own: ``model(X, y, **data)`` returns the model of some rows, given
        as arrays. Its observed variable is evaluated at the others, as by `compare`.
    data : mapping of str to array_like, optional
        The training rows of such a model's own `pm.Data`, by their names.
    **options
        For `sample`. Default: by Gibbs where the posterior is, not what `sample` would choose.

    Returns
    -------
    KFold
        Without a row for the MAP where EM finds none: of a hyperprior without mode, or an RVM; nor of a model
        with terms of one's own.

    Raises
    ------
    ValueError
        If the posterior is of a regression, its width or a parameter of its likelihood was drawn, inputs or
        labels are not its own, or a class has fewer rows than there are folds.

    References
    ----------
    A. Vehtari, A. Gelman and J. Gabry (2017), "Practical Bayesian model evaluation using leave-one-out
    cross-validation and WAIC", Statistics and Computing 27, section 2.3. That bases go with their rows
    is ours.

    Examples
    --------
    >>> import numpy as np
    >>> from pcvm_pymc import pcvm_model, sample
    >>> X = np.random.default_rng(0).normal(size=(12, 2))
    >>> y = np.arange(12) % 2
    >>> model = pcvm_model(X, y, width=1.0)
    >>> fast = {"draws": 20, "max_iter": 200, "cores": 1, "quiet": True}
    >>> posterior = sample(model, random_seed=1, **fast)
    >>> found = kfold(posterior, X, y, cv=2, random_seed=1, **fast)
    >>> found.table.index.tolist()
    ['MAP plug-in', 'posterior mean']
    """
    tree = results.check_result(posterior, "posterior")
    check_seed("random_seed", random_seed)
    check_same_rows(X, y=y, groups=groups)
    X, rng = as_features(X), np.random.default_rng(random_seed)
    if model is not None:
        plan = _of_model(posterior, model, X, y, data or {}, random_seed=rng, **options)
    elif data is None:
        plan = _of_builder(tree, X, y, kernel, random_seed=rng, **options)
    else:
        raise ValueError("data is for a model of one's own, which model= builds; leave it out")
    label = plan.label
    fold = _folds(X, label, plan.classes, cv, rng=rng, group=group_numbers(groups, len(X)))
    stated: dict[str, Array] = {}
    pointwise: dict[str, Array] = {}
    vectors: dict[str, list[float]] = {}
    for k in range(1, fold.max() + 1):
        test = np.flatnonzero(fold == k)
        fits, how = plan.refits(np.flatnonzero(fold != k), test)
        for name, fit in fits.items():
            log_density, p = held_out(fit, X[test], label[test], **how)
            pointwise.setdefault(name, np.empty(len(X)))[test] = log_density
            vectors.setdefault(name, []).append(vector_count(under_our_names(fit)))
            if p is not None:
                stated.setdefault(name, np.empty((len(X), *p.shape[1:])))[test] = p
    inside, _ = held_out(posterior, X, label, **plan.whole)
    every = {name: elpd_fields(each, inside, tree) for name, each in pointwise.items()}
    table = {
        name: {
            "elpd": each["elpd"],
            "se": each["se"],
            **score(label, (pointwise[name], stated.get(name))),
            "vectors": float(np.mean(vectors[name])),
        }
        for name, each in every.items()
    }
    fields = every["posterior mean"]
    about = {"n_samples": n_draws(tree), "warning": False, "good_k": None, "n_folds": fold.max()}
    elpd = ELPDDataLOOKFold(**fields, **about, p_kfold_i=inside - fields["elpd_i"])
    frame = pd.DataFrame(table).T
    return KFold(
        elpd=elpd, table=frame, probability=stated, label=label, fold=fold, classes=plan.classes
    )


class Plan(NamedTuple):
    """How a posterior is fitted to some of its rows.

    Attributes
    ----------
    label : ndarray, shape (n_obs,)
        Numbers of the classes, or targets.
    classes : ndarray, shape (n_classes,)
    refits : callable
        Of training and held-out rows: fits by their names, and how `held_out` evaluates them.
    whole : dict
        How it evaluates the posterior at all rows.
    """

    label: NDArray[Any]
    classes: NDArray[Any]
    refits: Callable[[NDArray[Any], NDArray[Any]], tuple[dict[str, xr.DataTree], dict[str, Any]]]
    whole: dict[str, Any]


def _folds(
    X: Array, label: NDArray[Any], classes: Array, cv: int, *, rng: Any, group: Any
) -> NDArray[np.int_]:
    """Return the fold of each row, from 1; copies of a row are in one."""
    first, copies = copied_rows(X, label)
    fewest = int(np.bincount(label[first]).min()) if len(classes) else len(first)
    if not isinstance(cv, Integral) or not 2 <= cv <= fewest:
        raise ValueError(
            f"cv={shown(cv)}; needed a whole number, 2 to {fewest}, the rows of the smallest class"
        )
    together = None if group is None else group[first]
    rows, fold = None if len(classes) else X[first], np.zeros(len(X), dtype=int)
    for k, (_, test) in enumerate(inner_folds(label[first], cv, rng, X=rows, groups=together), 1):
        fold[np.isin(copies, test)] = k
    return fold


def _training_labels(
    seen: NDArray[Any], classes: NDArray[Any], X: Array, y: ArrayLike
) -> NDArray[Any]:
    """Return the labels or targets of the rows that a posterior was sampled with; raise for others."""
    if len(X) != len(seen):
        raise ValueError(
            f"X has {len(X)} rows; needed the {len(seen)} training rows of the posterior, in their order"
        )
    label = coded(y, classes, "y", len(X))
    if not np.array_equal(seen, label):
        raise ValueError(
            f"y is not the {len(seen)} labels of the posterior; needed the training data in order"
        )
    return label


def _of_builder(tree: xr.DataTree, X: Array, y: ArrayLike, kernel: Any, **options: Any) -> Plan:
    """Return how posterior and MAP are fitted to some rows, without the bases on the others.

    Raises
    ------
    ValueError
        If their model cannot be built for some of its rows.
    """
    results.check_refits(tree)
    classes = classes_of(tree, "the posterior")
    drawn = ["width"] if "width" in tree["posterior"] else list(results.nuisance_of(tree))
    if drawn:
        raise ValueError(
            f"the posterior has a {drawn[0]} that was drawn; kfold needs a model with a number as {drawn[0]}"
        )
    label = _training_labels(np.maximum(results.target_of(tree), 0), classes, X, y)
    constants = tree["constant_data"].to_dataset()
    pieces, rows = results.rows_of(tree)
    piece, prior = results.kernel_of(tree, kernel), pieces.hyperprior
    centres, inputs = constants["centres"].values, constants["X"].values
    Phi, basis_row = piece(X, centres), rows_under(centres, X)
    known, how = piece(inputs, centres), {"kernel": piece}
    if known.shape != Phi.shape or not np.allclose(Phi, known, rtol=1e-9, atol=1e-12):
        raise ValueError(
            "X has other basis functions than the posterior; needed the training inputs, in their order"
        )
    is_gibbs = tree["posterior"].attrs.get("sampler", "").startswith("Gibbs")
    if is_gibbs and not {"method", "nuts_sampler"} & set(options):
        options["method"] = "gibbs"
    by_em = any("em" in row.solvers for row in rows) and not isinstance(prior, HalfHorseshoe)

    def refits(train: Array, _: Array) -> tuple[dict[str, xr.DataTree], dict[str, Any]]:
        bases = np.flatnonzero((basis_row < 0) | np.isin(basis_row, train))
        with warnings.catch_warnings():  # the model with all bases gave them
            warnings.simplefilter("ignore", InputWarning)
            model = build(
                rows[0],
                X[train],
                label[train],
                likelihood=pieces.likelihood,
                kernel=piece,
                hyperprior=prior,
                bias=pieces.bias,
                basis=centres[bases],
                signs=constants["signs"].values[bases] if "signs" in constants else None,
            )
        fits = {"MAP plug-in": find_map_em(model, progressbar=False)} if by_em else {}
        return fits | {"posterior mean": sample(model, **{"quiet": True, **options})}, how

    return Plan(label, classes, refits, how)


def _of_model(
    posterior: xr.DataTree, model: Any, X: Array, y: ArrayLike, data: Any, **options: Any
) -> Plan:
    """Return how a posterior with terms of one's own is fitted to some rows."""

    def of(rows: Any) -> dict[str, Any]:
        return {name: np.asarray(values)[rows] for name, values in data.items()}

    def built(rows: Any) -> Any:
        return as_model(model(X[rows], np.asarray(y)[rows], **of(rows)))

    def refits(train: Array, test: Array) -> tuple[dict[str, xr.DataTree], dict[str, Any]]:
        part = built(train)
        fit = sample(part, **{"quiet": True, **options})
        return {"posterior mean": fit}, {"model": part, "data": of(test)}

    whole = {"model": built(slice(None)), "data": of(slice(None))}
    classes = classes_of(posterior, "the posterior", whole["model"])
    seen = posterior["observed_data"][observed_of(whole["model"])[0].name].values
    return Plan(_training_labels(seen, classes, X, y), classes, refits, whole)
