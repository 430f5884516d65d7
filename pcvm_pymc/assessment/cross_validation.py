"""Scores of a posterior on rows held out: honest cross-validation, PSIS-LOO with its caveat."""

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from arviz_stats.utils import ELPDDataLOOKFold
from numpy.typing import ArrayLike, NDArray

from pcvm_pymc.assessment import held_out
from pcvm_pymc.assessment.comparison import vector_count
from pcvm_pymc.assessment.leave_one_out import elpd_fields
from pcvm_pymc.core.pieces.centres import copied_rows, rows_under
from pcvm_pymc.core.pieces.kernels import KernelPiece
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
    if any(str(name).endswith("signs") and each.values.any() for name, each in data.items()):
        _log.warning(LOO_CAVEAT)
    return az.loo(posterior, **kwargs)


@dataclass(frozen=True, kw_only=True, repr=False)
class KFold(held_out.Scores):
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
        For a posterior with user-defined terms: ``model(X, y, **data)`` returns the model of some rows, given
        as arrays. Its observed variable is evaluated at the others, as by `compare`.
    data : mapping of str to array_like, optional
        The training rows of such a model's own `pm.Data`, by their names.
    **options
        For `sample`. Default: by Gibbs where the posterior is, not what `sample` would choose.

    Returns
    -------
    KFold
        Without a row for the MAP where EM finds none: of a hyperprior without mode, or an RVM; nor of a model
        with user-defined terms.

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

    def own(rows: Any) -> dict[str, Any]:
        return {name: np.asarray(each)[rows] for name, each in (data or {}).items()}

    def built(rows: Any) -> Any:
        return model and as_model(model(X[rows], np.asarray(y)[rows], **own(rows)))

    whole = built(slice(None))
    if whole is None and data is not None:
        raise ValueError("data is for a user-defined model, which model= builds; leave it out")
    label, classes = _training_labels(posterior if model else tree, X, y, whole)
    by_em = False
    if whole is None:
        built, kernel, by_em = _rebuilt(tree, X, label, kernel, options)
    fold = _folds(X, label, classes, cv, rng=rng, group=group_numbers(groups, len(X)))
    how: dict[str, Any] = {"kernel": kernel, "model": whole, "data": own(slice(None))}
    inside, _ = held_out.said_of(posterior, X, label, **how)
    stated: dict[str, Array] = {}
    pointwise: dict[str, Array] = {}
    vectors: dict[str, list[float]] = {}
    for k in range(1, fold.max() + 1):
        test, part = np.flatnonzero(fold == k), built(np.flatnonzero(fold != k))
        fits = {"MAP plug-in": find_map_em(part, progressbar=False)} if by_em else {}
        fits["posterior mean"] = sample(part, **{"random_seed": rng, "quiet": True, **options})
        how |= {"model": model and part, "data": own(test)}
        for name, fit in fits.items():
            log_density, p = held_out.said_of(fit, X[test], label[test], **how)
            pointwise.setdefault(name, np.empty(len(X)))[test] = log_density
            vectors.setdefault(name, []).append(vector_count(under_our_names(fit)))
            if p is not None:
                stated.setdefault(name, np.empty((len(X), *p.shape[1:])))[test] = p
    table, every = {}, {key: elpd_fields(each, inside, tree) for key, each in pointwise.items()}
    for name, each in every.items():
        measures = held_out.score(label, (pointwise[name], stated.get(name)))
        about = {"elpd": each["elpd"], "se": each["se"], **measures}
        table[name] = about | {"vectors": float(np.mean(vectors[name]))}
    fields = every["posterior mean"]
    n_samples = tree["posterior"]["chain"].size * tree["posterior"]["draw"].size
    fields |= {"n_samples": n_samples, "warning": False, "good_k": None, "n_folds": fold.max()}
    elpd = ELPDDataLOOKFold(**fields, p_kfold_i=inside - fields["elpd_i"])
    of_rows: Any = {"probability": stated, "label": label, "classes": classes}
    return KFold(elpd=elpd, table=pd.DataFrame(table).T, fold=fold, **of_rows)


def _folds(X: Array, label: Any, classes: Array, cv: int, *, rng: Any, group: Any) -> Any:
    """Return the fold of each row, from 1; copies of a row are in one."""
    first, copies = copied_rows(X, label)
    fewest = int(np.bincount(label[first]).min()) if len(classes) else len(first)
    if not isinstance(cv, Integral) or not 2 <= cv <= fewest:
        raise ValueError(
            f"cv={shown(cv)}; needed a whole number, 2 to {fewest}: the smallest class"
        )
    together = None if group is None else group[first]
    rows, fold = None if len(classes) else X[first], np.zeros(len(X), dtype=int)
    for k, (_, test) in enumerate(inner_folds(label[first], cv, rng, X=rows, groups=together), 1):
        fold[np.isin(copies, test)] = k
    return fold


def _training_labels(
    posterior: xr.DataTree, X: Array, y: ArrayLike, model: pm.Model | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the labels or targets that a posterior was sampled with, and classes; raise for others."""
    if model is None:
        results.check_refits(posterior)
        seen = np.maximum(results.target_of(posterior), 0)
    else:
        seen = posterior["observed_data"][held_out.observed_of(model)[0].name].values
    classes = held_out.classes_of(posterior, "the posterior", model)
    if len(X) != len(seen):
        raise ValueError(f"X has {len(X)} rows; needed the {len(seen)} training rows in order")
    label = held_out.coded(y, classes, "y", len(X))
    if not np.array_equal(seen, label):
        raise ValueError(f"y is not the {len(seen)} labels; needed the training data in order")
    return label, classes


def _rebuilt(
    tree: xr.DataTree, X: Array, label: Array, kernel: Any, options: dict[str, Any]
) -> tuple[Callable[..., Any], KernelPiece, bool]:
    """Return what builds the model of some rows without the others' bases, its kernel, and if EM fits it.

    Folds are sampled as the posterior was, unless the options of `sample` say otherwise.

    Raises
    ------
    ValueError
        If their model cannot be built for some of its rows.
    """
    for x in ("width", *results.nuisance_of(tree)):
        if x in tree["posterior"]:
            raise ValueError(f"posterior has a {x} that was drawn; needed one with a number as {x}")
    constants = tree["constant_data"].to_dataset()
    pieces, rows = results.rows_of(tree)
    piece, prior, sign = results.kernel_of(tree, kernel), pieces.hyperprior, pieces.sign
    centres, inputs = constants["centres"].values, constants["X"].values
    Phi, basis_row, known = piece(X, centres), rows_under(centres, X), piece(inputs, centres)
    if known.shape != Phi.shape or not np.allclose(Phi, known, rtol=1e-9, atol=1e-12):
        raise ValueError("X has other basis functions than the posterior; needed its inputs")
    same: dict[str, Any] = {"kernel": piece, "hyperprior": prior, "bias": pieces.bias}
    same["likelihood"] = pieces.likelihood

    def built(train: Array) -> pm.Model:
        bases = np.flatnonzero((basis_row < 0) | np.isin(basis_row, train))
        with warnings.catch_warnings():  # the model with all bases gave them
            warnings.simplefilter("ignore", InputWarning)
            own = {"basis": centres[bases], "signs": "both" if sign is None else sign[bases]}
            return build(rows[0], X[train], label[train], **same, **own)

    is_gibbs = tree["posterior"].attrs.get("sampler", "").startswith("Gibbs")
    if is_gibbs and not {"method", "nuts_sampler"} & set(options):
        options["method"] = "gibbs"
    by_em = any("em" in row.solvers for row in rows) and not isinstance(prior, HalfHorseshoe)
    return built, piece, by_em
