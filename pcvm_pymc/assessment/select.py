"""Width and scale of a PCVM, of two classes or several, chosen from the data."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.multiclass import check_classification_targets

from pcvm_pymc.core.pieces import validation
from pcvm_pymc.core.pieces.kernels import Kernel, as_kernel, median_distance, width_grid
from pcvm_pymc.core.pieces.likelihoods import Likelihood
from pcvm_pymc.core.pieces.names import check_same_rows
from pcvm_pymc.estimators.candidates import OPTIONS, ChoiceOptions, HyperparameterSearch
from pcvm_pymc.estimators.chooser import choose
from pcvm_pymc.estimators.multiclass import MPCVMClassifier
from pcvm_pymc.estimators.pcvm import PCVMClassifier

_OVER = (("width", "scale"), ("width",), ("scale",), ("width", "scale", "features"))
#: arguments, and the methods in which they have an effect
_EFFECTIVE = {
    "widths": ("cv", "evidence", "validity"),
    "cv": ("cv",),
    "groups": ("loo", "cv"),
    "options": ("loo", "cv"),
}


def select(
    X: ArrayLike,
    y: ArrayLike,
    *,
    by: str = "loo",
    over: Sequence[str] | None = None,
    width: float | None = None,
    scale: float | None = None,
    widths: Sequence[float] | None = None,
    kernel: Kernel = "rbf",
    likelihood: str | Likelihood = "probit",
    basis: Any = "auto",
    cv: int | None = None,
    random_state: int | np.random.Generator | None = None,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    options: ChoiceOptions | None = None,
) -> HyperparameterSearch:
    """Choose the width (or a width for each feature) and the scale of a PCVM for its posterior mode.

    By leave-one-out the grid of widths (steps of 1.65 from the median distance of the rows) and scales (steps
    of the square root of ten from one) grows from its middle while its grid points have weight, under weak
    priors: normals on the logarithms of scale and of width over median distance. The other methods choose one
    of several widths. `PCVMClassifier` takes their names as its ``width``.

    Parameters
    ----------
    X : array_like, shape (n_obs, n_features)
    y : array_like, shape (n_obs,)
        Labels of two classes, or of more.
    by : {"loo", "cv", "evidence", "validity"}
        How candidates are scored.

        - ``"loo"``: leave-one-out from one factorisation, see `pcvm_pymc.core.loo`.
        - ``"cv"``: the cross-validated log loss, by refits without the held-out rows' bases. Widths that fall
          far behind drop out, see `pcvm_pymc.core.race.race`; the rest of their folds is masked in
          ``fold_log_loss``, and the chosen width has all of them. Where nothing can be held out, or there is
          a single width, nothing is scored: the scores are NaN, and the median width is taken.
        - ``"evidence"``: the log evidence, by Laplace's approximation and maximised over ARD precisions, of
          the relevance vector machine of this likelihood on the same bases. It replaces the PCVM's own,
          which its sign rule leaves without a normal approximation. One fit per width.
        - ``"validity"``: the log kernel validity (Kropotov et al. 2006, extended) of the PCVM's mode: how
          far its kernels may shift before the likelihood falls. One fit per width; a diagnostic. It needs
          ``kernel="rbf"``.

        Evidence and validity of several classes are summed over each against the rest.
    over : ("width", "scale"), ("width",), ("scale",) or ("width", "scale", "features"), optional
        What is chosen: by default width and scale by ``"loo"``, the width by another method, which chooses
        nothing else. With ``"features"`` a width for each feature is learned: the search's ``width`` is
        that of each, for ``pcvm_model(X, y, width=found.width)``; or, with a prior around it,
        ``width=pm.LogNormal.dist(np.log(found.width), 0.3, shape=len(found.width))``.
    width : float, optional
        Where it is not chosen.
    scale : float, optional
        Where it is not chosen. Default: 1.
    widths : sequence of float, optional
        Candidates, but by ``"loo"``. Default: nine in geometric progression between 0.2 and 2.5 times the
        median distance.
    kernel, likelihood, basis
        As for `PCVMClassifier`; several classes have the multinomial probit. A kernel without a
        width, such as ``"precomputed"`` (X is then its matrix), needs ``over=("scale",)``.
    cv : int, optional
        Folds, by ``"cv"``; fewer where a class has fewer rows. Default: 5.
    random_state : int or numpy.random.Generator, optional
        For folds, and the rows by which grid points are scored, where they are many.
    sample_weight : array_like, shape (n_obs,), optional
        How often each row counts, at least 0. Default: once.
    groups : array_like, shape (n_obs,), optional
        Rows of one group, such as repeated measurements, are held out together: by ``"loo"``, too, grid
        points are then scored by five folds.
    options : ChoiceOptions, optional
        The grid, and what counts.

    Returns
    -------
    HyperparameterSearch

    Raises
    ------
    ValueError
        For input that cannot be used, an argument that has no effect, or a width or scale that is both given
        and to be chosen.

    References
    ----------
    M. E. Tipping (2001), "Sparse Bayesian learning and the relevance vector machine", JMLR 1, 211-244; D. A.
    Kropotov, D. P. Vetrov and N. O. Ptashko (2006), corrected, see `pcvm_pymc.core.validity`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> found = select(X, X[:, 0] > 0, random_state=0)
    >>> bool(found.weights.sum() > 0.999)
    True
    >>> len(found.widths) == len(found.scales)
    True
    >>> how = {"by": "cv", "widths": [0.5, 2.0], "random_state": 0}
    >>> select(X, X[:, 0] > 0, **how).width
    2.0
    """
    validation.check_choice("by", by, ("loo", "cv", "evidence", "validity"))
    for name, value in (("widths", widths), ("cv", cv), ("groups", groups), ("options", options)):
        if value is not None and by not in _EFFECTIVE[name]:
            fault = f"{name}={validation.shown(value)} was given with by={by!r}, without effect"
            raise ValueError(f"{fault}; needed by in {_EFFECTIVE[name]}, or leave it out")
    validation.check_instance("options", options, ChoiceOptions, "ChoiceOptions", optional=True)
    has_width = PCVMClassifier(kernel=kernel)._has_width
    if over is None:
        over = ("width", "scale") if by == "loo" else ("width",)
    _check_over(over, by, kernel if not has_width else None, width=width, scale=scale)
    validation.check_whole("cv", cv, 2, optional=True)
    check_same_rows(X, y=y, sample_weight=sample_weight, groups=groups)
    # without a width it may be a table of a kernel's values
    rows: Any = validation.as_features(X) if has_width else X
    y = validation.present_labels(y)
    check_classification_targets(y)
    grid = None if by == "loo" else _grid(rows, widths, kernel)

    several = len(validation.as_classes(y, len(rows))[1]) > 2
    if several and likelihood != "probit":
        needed = "several have the multinomial probit"
        raise ValueError(f"likelihood={likelihood!r} is for two classes; {needed}")
    model: Any = MPCVMClassifier() if several else PCVMClassifier(likelihood=likelihood)
    model.set_params(kernel=kernel, basis=basis, random_state=random_state, estimation="em")
    model.cv = 5 if cv is None else cv
    model.scale = "auto" if "scale" in over else 1.0 if scale is None else scale
    if "width" in over:
        by_rows = "auto" if "features" in over else "shared"
        model.width = by_rows if by == "loo" else by
    elif has_width or width is not None:
        model.width = median_distance(rows) if width is None else width
    model._choice = options or OPTIONS
    estimation = model._begin(rows)
    data = model._training(rows, y, sample_weight, groups)
    with model._running(data):
        model._check_rows(data)
        model._centres(data, model._basis_of(data))  # raises where the basis cannot be used
        rng = np.random.default_rng(validation.as_seed(random_state))
        some, most = model._search_rows(data, rng, in_chunks=False)
        choice = choose(estimation, some, rng, most=most, widths=grid)
    return choice.search if choice.widths is None else choice.widths


def _check_over(over: Any, by: str, widthless: Any, **given: Any) -> None:
    """Raise unless what is chosen fits together with the method, the kernel and what is given."""
    if not isinstance(over, list | tuple) or tuple(over) not in _OVER:
        raise ValueError(f"over={validation.shown(over)}; needed one of {_OVER}")
    if by != "loo" and tuple(over) != ("width",):
        needed = "needed over=('width',), or by='loo'"
        raise ValueError(
            f"over={over!r} was given with by={by!r}, which chooses one width; {needed}"
        )
    if "width" in over and widthless is not None:
        fault = f"over={over!r} with kernel={validation.shown(widthless)}, which has no width"
        raise ValueError(f"{fault}; needed over=('scale',), and by='loo'")
    for name, value in given.items():
        if value is not None and name in over:
            raise ValueError(f"{name}={value!r} was given with over={over!r}; leave it out")


def _grid(X: Any, widths: Any, kernel: Kernel) -> Any:
    """Return the widths that are compared, checked."""
    grid = width_grid(X) if widths is None else validation.as_numbers(widths, "widths")
    if grid.ndim != 1 or not len(grid) or not ((grid > 0) & np.isfinite(grid)).all():
        shown = validation.shown(widths)
        raise ValueError(f"widths={shown}; needed one or more positive finite numbers")
    as_kernel(kernel, float(grid[0]))(X[:2], X[:1])  # raises where it is none
    return grid
