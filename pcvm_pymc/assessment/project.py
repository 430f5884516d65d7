"""Projecting a posterior, or a dense classifier, onto a classifier of few vectors."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pcvm_pymc.core.pieces.centres import Centres
from pcvm_pymc.core.pieces.kernels import Kernel
from pcvm_pymc.core.pieces.names import check_same_rows
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.validation import as_classes, as_labels, check_instance
from pcvm_pymc.core.probabilities import normalised
from pcvm_pymc.core.projection.choice import Reference
from pcvm_pymc.estimators.multiclass import MPCVMClassifier, MRVMClassifier
from pcvm_pymc.estimators.pcvm import PCVMClassifier
from pcvm_pymc.estimators.projection import Projection, project_reference, reference_of
from pcvm_pymc.estimators.training import TrainingData


def project(
    reference: Any,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    size: int | str = "auto",
    sizes: Sequence[int] | None = None,
    kernel: Kernel | None = None,
    cv: int | None = None,
    hyperprior: Hyperprior | None = None,
    random_state: int | np.random.Generator | None = None,
) -> Projection:
    """Project a posterior or a dense classifier onto few vectors.

    For each number of vectors, the submodel is sought that loses least in Kullback-Leibler divergence from
    the reference's class probabilities at the training rows, under the sign rule of its machine; of several
    classes each vector has a weight in each. The number is the smallest that loses at most .003 nats a row
    against an average, at the training rows: at new rows of 30 problems it lost .0033 in the mean, and .050
    at worst. Of another reference it is the smallest whose cross-validated expected log predictive
    density (elpd) is within one standard error, of the difference, of the best.

    Parameters
    ----------
    reference : DataTree, PCVMClassifier, MPCVMClassifier or MRVMClassifier
        From `sample` or `find_map_em` (then its posterior mean probabilities are projected), or a
        fitted classifier.
    X : array_like, shape (n_obs, n_features), optional
        Training inputs. Needed with a classifier; a posterior has them among its data.
    y : array_like, shape (n_obs,), optional
        Training labels. Needed with a classifier.
    size : "auto" or int
        Number of vectors. With a number nothing is cross-validated.
    sizes : sequence of int, optional
        Sizes of the path, 0 being the bias alone. Default: 0, 1, 2, 3, ... in growing steps up to 50; for an
        average as far as it takes.
    kernel : str or callable, optional
        The kernel of the posterior's model, needed where it is a function, which is not stored; a
        classifier brings its own.
    cv : int, optional
        Folds, by default 5; fewer where a class has fewer points. Not for an average.
    hyperprior : Hyperprior, optional
        Of the folds' references. Default: the classifier's, `Hyperprior.plug_in` for a posterior.
    random_state : int or numpy.random.Generator, optional
        For the folds.

    Returns
    -------
    Projection

    Raises
    ------
    ValueError
        For input that cannot be used.

    Notes
    -----
    In each fold the reference is refitted without the held-out rows and without their bases, whose
    signs would tell their labels. It is a dense proper MAP at the reference's width, also where the
    reference itself is a posterior: it costs a fraction of a second. The width stays.
    The posterior's uncertainty enters through its mean probabilities alone: a submodel is one point.

    References
    ----------
    J. Piironen, M. Paasiniemi and A. Vehtari (2020), "Projective inference in high-dimensional problems:
    prediction and feature selection", Electronic Journal of Statistics 14(1).

    Examples
    --------
    >>> from pcvm_pymc import PCVMClassifier
    >>> from pcvm_pymc.experiments.datasets import ripley_mixture
    >>> X, y = ripley_mixture(100, random_state=0)
    >>> dense = PCVMClassifier(random_state=0).fit(X, y)
    >>> sparse = project(dense, X, y, size=5).classifier
    >>> len(dense.weight_) > 50, len(sparse.weight_)
    (True, 5)
    """
    check_instance("hyperprior", hyperprior, Hyperprior, "a Hyperprior", optional=True)
    if hasattr(reference, "decision_function"):
        if kernel is not None:
            raise ValueError(f"kernel={kernel!r} was given with a classifier; leave it out")
        known = _from_classifier(reference, X, y)
    else:
        known = _from_datatree(reference, X, y, kernel)
    if hyperprior is not None:
        known = replace(known, hyperprior=hyperprior)
    return project_reference(known, size=size, sizes=sizes, cv=cv, random_state=random_state)


def _from_classifier(model: Any, X: ArrayLike | None, y: ArrayLike | None) -> Reference:
    """Return a fitted classifier as a reference."""
    if not isinstance(model, PCVMClassifier | MPCVMClassifier | MRVMClassifier):
        needed = "a PCVMClassifier, MPCVMClassifier or MRVMClassifier"
        raise ValueError(f"reference is a {type(model).__name__}; needed {needed}")
    if X is None or y is None:
        raise ValueError("a classifier does not keep its training data; needed X and y")
    check_same_rows(X, y=y)
    inputs = model._inputs(X)
    label, classes = (as_classes if model._is_multiclass else as_labels)(y, len(inputs))
    if not np.array_equal(classes, model.classes_):
        both, needed = classes.tolist(), model.classes_.tolist()
        raise ValueError(f"y has the classes {both}; needed the classifier's {needed}")
    held_out, data = getattr(model, "held_out_", None), TrainingData(inputs, label).merged()
    same, n_rows = True, len(inputs) if held_out is None else len(held_out)
    if model._is_precomputed:  # the numbers of its rows are those of its columns
        own = inputs.take(model.support_, axis=0, mode="clip")
        same = np.array_equal(own, model.relevance_vectors_)
    elif held_out is not None:
        same = np.array_equal(data.X, vars(model).get("_training_", data).X)
    if not same or n_rows != len(inputs):
        raise ValueError(f"X has {len(inputs)} rows; needed the {n_rows} of the fit, in its order")
    if held_out is not None:
        held_out = held_out[slice(None) if data.given is None else data.given]
    centres = model._centres(data, model._basis_of(data))
    return reference_of(model, vars(model), data, centres, held_out)


def _from_datatree(
    tree: Any, X: ArrayLike | None, y: ArrayLike | None, kernel: Kernel | None
) -> Reference:
    """Return a posterior as a reference: the mean of its draws' probabilities."""
    from pcvm_pymc.assessment.leave_one_out import pieces_of  # PyMC is slow to import
    from pcvm_pymc.inference import results
    from pcvm_pymc.inference.prediction import probability_draws

    tree = results.check_result(tree, "reference")
    data, multiclass = tree["constant_data"].to_dataset(), results.likelihood_of(tree).n_scores > 1
    sign, centres = data.get("signs"), data["centres"].values
    sign = None if sign is None else sign.values.astype(float)
    if sign is None and not multiclass:  # a PCVM has weights of either sign as two, on one centre
        sign, centres = np.repeat([1.0, -1.0], len(centres)), np.tile(centres, (2, 1))
    if hasattr(kernel, "full"):
        needed = "lambda X, Z, width: covariance(X, Z).eval() for a PyMC covariance"
        raise ValueError(f"kernel={kernel!r}; needed {needed}")
    likelihood, piece = pieces_of(tree, kernel)
    label, classes = results.target_of(tree), results.classes_of(tree)
    inputs = results.inputs_of(tree, X)
    if y is not None and not np.array_equal(y, classes[np.maximum(label, 0).astype(int)]):
        raise ValueError("y differs from the labels of the posterior; leave it out")
    mean = probability_draws(tree, results.training_latent(tree)).mean(axis=0)
    width, signed = np.asarray(piece.width), MPCVMClassifier if multiclass else PCVMClassifier
    return Reference(
        X=inputs,
        label=label,
        classes=classes,
        centres=Centres.among(inputs, centres, sign),
        probability=normalised(mean) if multiclass else mean,
        kernel=piece.name if kernel is None else kernel,
        width=float(width) if width.ndim == 0 else width,
        hyperprior=Hyperprior.plug_in(),
        likelihood=likelihood,
        kind=MRVMClassifier if sign is None else signed,
    )
