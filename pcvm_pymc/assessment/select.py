"""Width and scale of a PCVM, of two classes or several, chosen from the data."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.multiclass import check_classification_targets

from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.pieces import validation
from pcvm_pymc.core.pieces.centres import CentresLike
from pcvm_pymc.core.pieces.kernels import Kernel, as_kernel, median_distance, width_grid
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.names import check_same_rows
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.estimators import candidates
from pcvm_pymc.estimators.chooser import choose, score_of_rows
from pcvm_pymc.estimators.multiclass import MPCVMClassifier
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.estimators.training import inner_folds
from pcvm_pymc.inference.progress import progress_bars

_OVER = (("width", "scale"), ("width",), ("scale",), ("width", "scale", "features"))


def select(
    X: ArrayLike,
    y: ArrayLike,
    *,
    over: Sequence[str] = ("width", "scale"),
    method: str = "loo",
    width: float | None = None,
    scale: float | None = None,
    kernel: Kernel = "rbf",
    likelihood: str | Likelihood = "probit",
    basis: Any = "auto",
    cv: int = 5,
    random_state: int | np.random.Generator | None = None,
    groups: ArrayLike | None = None,
    options: candidates.ChoiceOptions | None = None,
) -> candidates.HyperparameterSearch:
    """Choose the width (or a width for each feature) and the scale of a PCVM for its posterior mode.

    The grid of widths (steps of 1.65 from the median distance of the rows) and scales (steps of the square
    root of ten from one) grows from its middle while leave-one-out gives grid points weight, under weak
    priors: normals on the logarithms of scale and of width over median distance.

    Parameters
    ----------
    X : array_like, shape (n_obs, n_features)
    y : array_like, shape (n_obs,)
        Labels of two classes, or of more.
    over : ("width", "scale"), ("width",), ("scale",) or ("width", "scale", "features")
        What is chosen. With ``"features"`` a width for each feature is learned: the search's ``width`` is
        that of each, for ``pcvm_model(X, y, width=found.width)``; or, with a prior around it,
        ``width=pm.LogNormal.dist(np.log(found.width), 0.3, shape=len(found.width))``.
    method : {"loo", "cv"}
        Leave-one-out from one factorisation, see `pcvm_pymc.core.loo`; or cross-validation by refits,
        without the held-out rows' bases. For the width alone `select_width` has evidence and validity
        besides.
    cv : int
        Folds, for ``"cv"``; fewer where a class has fewer rows.
    width : float, optional
        Where it is not chosen.
    scale : float, optional
        Where it is not chosen. Default: 1.
    kernel, likelihood, basis
        As for `PCVMClassifier`; several classes have the multinomial probit. A kernel without a
        width, such as ``"precomputed"`` (X is then its matrix), needs ``over=("scale",)``.
    random_state : int or numpy.random.Generator, optional
        For the rows by which grid points are scored, where they are many.
    groups : array_like, shape (n_obs,), optional
        Rows of one group, such as repeated measurements, are held out together: grid points are then scored
        by five folds, or `cv`.
    options : ChoiceOptions, optional
        The grid, and what counts.

    Returns
    -------
    HyperparameterSearch

    Raises
    ------
    ValueError
        For input that cannot be used, or a width or scale that is both given and to be chosen.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> found = select(X, X[:, 0] > 0, random_state=0)
    >>> bool(found.weights.sum() > 0.999)
    True
    >>> len(found.widths) == len(found.scales)
    True
    """
    kind = candidates.ChoiceOptions
    validation.check_instance("options", options, kind, "ChoiceOptions", optional=True)
    has_width = PCVMClassifier(kernel=kernel)._has_width
    _check_choice(over, method, cv, has_width, width=width, scale=scale)
    check_same_rows(X, y=y, groups=groups)
    # without a width it may be a table of a kernel's values
    rows: Any = validation.as_features(X) if has_width else X
    y = validation.present_labels(y)
    check_classification_targets(y)
    arguments: dict[str, Any] = {"kernel": kernel, "basis": basis, "random_state": random_state}
    fixed = 1.0 if scale is None else scale
    arguments |= {"estimation": "em", "scale": "auto" if "scale" in over else fixed}
    if "width" in over:
        arguments["width"] = "auto" if "features" in over else "shared"
    elif has_width or width is not None:
        arguments["width"] = median_distance(rows) if width is None else width
    model: Any = PCVMClassifier(likelihood=likelihood, **arguments)
    if len(validation.as_classes(y, len(rows))[1]) > 2:
        if likelihood != "probit":
            needed = "several have the multinomial probit"
            raise ValueError(f"likelihood={likelihood!r} is for two classes; {needed}")
        model = MPCVMClassifier(**arguments)
    model._choice = options or candidates.OPTIONS
    if method == "cv":
        return _by_cross_validation(model, rows, y, cv, groups)
    found: candidates.HyperparameterSearch = model.fit(rows, y, groups=groups).selection_
    return found


def _check_choice(over: Any, method: Any, cv: Any, has_width: bool, **given: Any) -> None:
    """Raise unless what is chosen, and how, fits together with what is given."""
    if not isinstance(over, list | tuple) or tuple(over) not in _OVER:
        raise ValueError(f"over={validation.shown(over)}; needed one of {_OVER}")
    if "width" in over and not has_width:
        raise ValueError(f"over={over!r} with a kernel that has no width; needed over=('scale',)")
    validation.check_whole("cv", cv, 2)
    if not isinstance(method, str) or method not in ("loo", "cv"):
        found = validation.shown(method)
        raise ValueError(f"method={found}; needed 'loo' or 'cv'. select_width has more methods")
    if method == "loo" and cv != 5:
        raise ValueError(f"cv={cv!r} was given with method='loo', without effect; leave it at 5")
    for name, value in given.items():
        if value is not None and name in over:
            raise ValueError(f"{name}={value!r} was given with over={over!r}; leave it out")
    if "features" in over and method == "cv":
        raise ValueError("widths per feature are chosen by leave-one-out; needed method='loo'")


def _by_cross_validation(
    model: Any, X: Any, y: Any, cv: int, groups: Any
) -> candidates.HyperparameterSearch:
    """Return the search whose grid points are scored by refits."""
    estimation = model._begin()
    data, chosen = model._training(X, y, groups=groups), estimation.chosen
    rng = np.random.default_rng(validation.as_seed(model.random_state))
    data, most = model._search_rows(data, rng, in_chunks=False)
    folds = inner_folds(data.label, cv, rng, groups=data.groups)
    if not folds or not chosen:
        needed = "two rows or more of each class"
        raise ValueError(f"cv={cv!r} with {len(X)} rows: nothing can be held out; needed {needed}")
    formulation = estimation.formulation(data, model._basis_of(data), most)
    width = model.width if model._has_width else np.nan
    if "width" in chosen:
        formulation, width = formulation.for_many_widths(), median_distance(X)
    space = candidates.Space({"width": width, **estimation.middle}, chosen, model._choice)
    return candidates.grow(space, score_of_rows(formulation, folds), method="cv")


def select_width(
    X: ArrayLike,
    y: ArrayLike,
    *,
    hyperprior: Hyperprior | None = None,
    likelihood: str | Likelihood = "probit",
    kernel: Kernel = "rbf",
    widths: Sequence[float] | None = None,
    basis: CentresLike = None,
    cv: int = 5,
    method: str = "cv",
    options: EMOptions | None = None,
    random_state: int | np.random.Generator | None = None,
    sample_weight: ArrayLike | None = None,
    progressbar: bool = False,
) -> candidates.WidthSelection:
    """Choose the kernel width of a PCVM.

    Parameters
    ----------
    X : array_like, shape (n_obs, n_features)
    y : array_like, shape (n_obs,)
        Labels, two classes.
    hyperprior : Hyperprior, optional
        Default: `Hyperprior.plug_in`, since it is the MAP that is scored. Not to be given with
        ``"evidence"``, which has none.
    likelihood : str or Likelihood
        One that `PCVMClassifier` takes.
    kernel : "rbf" or callable
        ``"validity"`` and ``"em"`` need ``"rbf"``.
    widths : sequence of float, optional
        Candidates. Default: nine in geometric progression between 0.2 and 2.5 times the median distance.
    basis : None, int or (array_like, array_like)
        Centres of the basis functions: all rows, so many of them (`choose_basis`), or centres, shape
        (n_basis, n_features), with signs. Given centres are left out with a fold where they are its rows.
    cv : int
        Folds; fewer where a class has fewer points. The bases of held-out rows are left out with them.
    method : {"cv", "evidence", "validity", "em"}
        What is scored at each candidate, on all rows but for ``"cv"``:

        - ``"cv"``: the cross-validated log loss of the PCVM. The honest one. Candidates that fall far behind
          drop out, see `pcvm_pymc.core.race.race`; the rest of their folds is masked in ``log_loss``.
        - ``"evidence"``: the log evidence, by Laplace's approximation and maximised over ARD precisions, of
          the relevance vector machine of this likelihood on the same bases. It replaces the PCVM's own,
          which its sign rule leaves without a normal approximation. One fit per width.
        - ``"validity"``: the log kernel validity (Kropotov et al. 2006, extended) of the PCVM's MAP: how
          far its kernels may shift before the likelihood falls. One fit per width; a diagnostic.
        - ``"em"``: no candidates are scored; EM moves the width to the maximum of the log posterior
          (Chen et al. 2009 eq. 10, corrected).
    options : EMOptions, optional
    random_state : int or numpy.random.Generator, optional
        For the folds.
    sample_weight : array_like, shape (n_obs,), optional
        How often each row counts, at least 0. Default: once.
    progressbar : bool

    Returns
    -------
    WidthSelection
        Its scores are NaN for ``"em"``; and for ``"cv"`` where there is nothing to compare: a single
        candidate, or a class of a single point, so that nothing can be held out (then the median
        candidate is taken).

    Raises
    ------
    ValueError
        For input that cannot be used, or an unknown method.

    References
    ----------
    H. Chen, P. Tino and X. Yao (2009); M. E. Tipping (2001), "Sparse Bayesian learning and the
    relevance vector machine", JMLR 1, 211-244; D. A. Kropotov, D. P. Vetrov and N. O. Ptashko
    (2006), corrected, see `pcvm_pymc.core.validity`.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> select_width(X, X[:, 0] > 0, widths=[0.5, 2.0], random_state=0).width
    2.0
    """
    if not PCVMClassifier(kernel=kernel)._has_width:
        raise ValueError(f"kernel={kernel!r} has no width; select(..., over=('scale',)) takes it")
    check_same_rows(X, y=y, sample_weight=sample_weight)
    X = validation.as_features(X)
    validation.as_labels(y, len(X))
    validation.check_flag("progressbar", progressbar)
    validation.check_instance("options", options, EMOptions, "EMOptions", optional=True)
    validation.check_instance("hyperprior", hyperprior, Hyperprior, "a Hyperprior", optional=True)
    validation.check_choice("method", method, ("cv", "evidence", "validity", "em"))
    if method == "evidence" and hyperprior is not None:
        raise ValueError(
            "hyperprior was given with method='evidence', which has none; leave it out"
        )
    if method != "cv":
        validation.check_whole("cv", cv, 2)
    given: dict[str, Any] = {"kernel": kernel, "basis": basis, "likelihood": likelihood}
    given |= {"random_state": random_state, "hyperprior": hyperprior or Hyperprior.plug_in()}
    n_folds = cv if method == "cv" else 5
    model = PCVMClassifier(width=method, cv=n_folds, options=options, **given)
    estimation: Any = model._begin()
    data = model._training(X, y, sample_weight)
    grid = width_grid(X) if widths is None else validation.as_numbers(widths, "widths")
    if grid.ndim != 1 or not len(grid) or not ((grid > 0) & np.isfinite(grid)).all():
        found = validation.shown(widths)
        raise ValueError(f"widths={found}; needed one or more positive finite numbers")
    as_kernel(kernel, float(grid[0]))(X[:2], X[:1])
    formulation = estimation.formulation(data, model._basis_of(data))
    if method == "em":
        at = {"width": median_distance(X), **estimation.middle}
        problem = formulation.at(at, moves=True)
        width = float(fit_em(problem, None, options or EMOptions()).width)
        return candidates.WidthSelection.unscored(width, grid, method)
    with progress_bars(progressbar, f"width by {method}") as progress:
        bar = progress.add_task("", total=len(grid) * (method != "cv" or cv))
        follow = partial(progress.advance, bar)
        rng = np.random.default_rng(validation.as_seed(random_state))
        chosen = choose(estimation, data, rng, widths=grid, follow=follow).selection
    assert chosen is not None
    return chosen
