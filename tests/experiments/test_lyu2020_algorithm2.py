"""Algorithm 2 of Lyu et al. (2020) as it is printed."""

from dataclasses import replace

import numpy as np
import pytest

from pcvm_pymc.core.evidence import BottomUpOptions, fit_bottom_up
from pcvm_pymc.core.family import class_signs
from pcvm_pymc.core.pieces.kernels import rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.problem import Problem, Status
from pcvm_pymc.experiments.datasets import overlap_classes
from pcvm_pymc.experiments.replicas.lyu2020_algorithm2 import fit_printed


def given_classes(Phi, label, n_classes, sign):
    prior = Hyperprior.jeffreys()
    return Problem(Phi, label, sign, prior, MultinomialProbit(n_classes), bias="none")


def problem(n=40, n_classes=3, *, seed=0, width=1.5):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    label = np.digitize(X[:, 0] + 0.5 * rng.normal(size=n), [-0.5, 0.5][: n_classes - 1])
    Phi = rbf(squared_distances(X, X), width)
    return given_classes(Phi, label, n_classes, class_signs(label, n_classes))


def test_as_printed_the_first_basis_has_the_largest_excess_and_the_mean_is_clipped():
    given_ = problem(width=0.7)
    first = fit_printed(given_, max_iter=1)
    response = given_.likelihood.response(given_.label)
    excess = (given_.Phi.T @ response) ** 2 - (given_.Phi**2).sum(axis=0)[:, None]
    for c in range(3):
        # from an empty model s = phi' phi and q = phi' z (eqs. 37 and 38); of eq. 31 one entry is left
        n = excess[:, c].argmax()
        s = (given_.Phi[:, n] ** 2).sum()
        alpha = s**2 / excess[n, c]
        mean = given_.Phi[:, n] @ response[:, c] / (s + alpha)
        wanted = mean if mean * given_.sign[n, c] > 0 else 0.0
        assert first.weight[n, c] == pytest.approx(wanted)
        assert np.count_nonzero(first.weight[:, c]) == (wanted != 0.0)
    for n_epochs in (5, 30):
        assert (fit_printed(given_, max_iter=n_epochs).weight * given_.sign >= 0).all()


def test_as_printed_it_diverges_where_the_corrected_search_converges():
    X, label = overlap_classes(120, random_state=1)
    Phi = rbf(squared_distances(X, X), 4 * np.sqrt(2))
    given_ = given_classes(Phi, label, 3, class_signs(label, 3))
    found = fit_printed(given_)
    assert found.status is Status.DIVERGED
    assert not found.converged
    assert np.abs(found.latent).max() >= 1e3
    assert fit_bottom_up(given_).status is Status.CONVERGED


def test_as_printed_at_rest_no_change_is_left():
    given_ = problem(width=1.0, seed=2)
    found = fit_printed(given_)
    assert found.status is Status.CONVERGED
    np.testing.assert_array_equal(fit_printed(given_).weight, found.weight)
    assert (
        fit_printed(given_, random_state=3).n_iter != found.n_iter
    )  # members are chosen at random
    with pytest.raises(ValueError, match="needs weights with signs"):
        fit_printed(replace(given_, sign=None))
    for given in ({"update": "printed"}, {"random_state": 3}):
        with pytest.raises(ValueError, match=r"is now .*lyu2020_algorithm2.fit_printed"):
            BottomUpOptions(**given)
