from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcvm_pymc.core.design import ArrayRows, Request, StreamedDesign
from pcvm_pymc.core.em import EMOptions, fit_em
from pcvm_pymc.core.pieces.centres import class_signs
from pcvm_pymc.core.pieces.kernels import RBF, as_kernel, design_matrix, rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.resources import has_room_for_coupled
from pcvm_pymc.core.problem import Problem

PRIORS = {"plug_in": Hyperprior.plug_in()}


def clouds(n, n_classes, seed):
    rng = np.random.default_rng(seed)
    label = np.arange(n) % n_classes
    angle = 2 * np.pi * label / n_classes
    return rng.normal(size=(n, 2)) + 1.5 * np.column_stack([np.cos(angle), np.sin(angle)]), label


def both(n, n_classes, n_basis, hyperprior, *, seed=0, signs=True, kernel="rbf", **kwargs):
    """Return rows and labels, the same problem whole, and in chunks."""
    X, label = clouds(n, n_classes, seed)
    centres = X[:n_basis]
    sign = class_signs(label[:n_basis], n_classes) if signs else None
    Phi = design_matrix(kernel, X, centres, 1.3)
    likelihood = MultinomialProbit(n_classes)
    whole = Problem(Phi, label, sign, hyperprior, likelihood, **kwargs)

    def chunked(rows):
        chunks = StreamedDesign(rows, centres, as_kernel(kernel, 1.3))
        return Problem(chunks, None, sign, hyperprior, likelihood, **kwargs)

    return X, label, whole, chunked


@given(st.integers(2, 5), st.integers(1, 40), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=30)
def test_the_coupled_matrix_is_that_of_the_whole(n_classes, chunk, n_jobs, seed):
    X, label = clouds(30, n_classes, seed)
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(8, n_classes)), rng.normal(size=n_classes)
    Phi = rbf(squared_distances(X, X[:8]), 1.3)
    likelihood = MultinomialProbit(n_classes)
    at = weight, bias, weight, bias
    terms = {"terms": likelihood.terms, "gram": "coupled", "hessian": likelihood.hessian}
    asked = Request(X[:8], RBF(1.3), *at, **terms)
    found = ArrayRows(X, label, chunk, n_jobs).sums(asked)
    Z = np.column_stack([Phi, np.ones(len(Phi))])
    hessian = likelihood.hessian(Phi @ weight + bias, label)
    wanted = np.einsum("icd,ij,ik->cjdk", hessian, Z, Z).reshape(2 * (9 * n_classes,))
    np.testing.assert_allclose(np.tril(found.gram), np.tril(wanted), atol=1e-10)


@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("bias", ["prior", "free", "none"])
def test_coupled_steps_in_chunks_are_as_few_as_in_memory(signs, bias):
    options = EMOptions(tol=1e-8, max_iter=60)
    X, label, whole, problem = both(200, 4, 20, PRIORS["plug_in"], bias=bias, signs=signs)
    wanted = fit_em(whole, None, options)
    found = fit_em(problem(ArrayRows(X, label, 37)), None, options)
    assert found.converged
    assert found.n_iter <= wanted.n_iter + 5
    assert found.log_posterior == pytest.approx(wanted.log_posterior, abs=1e-8)
    np.testing.assert_allclose(found.weight, wanted.weight, atol=1e-5)


def test_without_room_for_the_matrix_steps_are_the_bounds():
    X, label, _, problem = both(90, 3, 20, PRIORS["plug_in"])
    coupled = problem(ArrayRows(X, label, 37))
    small = replace(coupled, Phi=replace(coupled.Phi, coupled=False))
    options = EMOptions(tol=1e-8, max_iter=5_000)
    few, many = fit_em(coupled, None, options), fit_em(small, None, options)
    assert many.converged
    assert many.n_iter > 3 * few.n_iter
    assert many.log_posterior == pytest.approx(few.log_posterior, abs=1e-6)


def test_room_for_the_coupled_matrix_follows_the_limit_and_the_jobs():
    matrix = 8 * (3 * 101) ** 2
    assert has_room_for_coupled(8.001 * matrix, 100, 3)
    assert not has_room_for_coupled(7.999 * matrix, 100, 3)
    assert not has_room_for_coupled(8.001 * matrix, 100, 3, n_jobs=2)
    assert not has_room_for_coupled(None, 1_000, 26)


def test_a_fit_whose_matrix_is_of_some_chunks_ends_where_it_would():
    X, label, whole, chunked = both(4500, 3, 4, Hyperprior.plug_in())
    asked = []

    class Counted(ArrayRows):
        def sums(self, request):
            asked.append((request.gram, request.every))
            return super().sums(request)

    wanted = fit_em(whole, None, EMOptions(tol=1e-9))
    found = fit_em(chunked(Counted(X, label, 50)), None, EMOptions(tol=1e-9))
    assert ("coupled", 3) in asked
    np.testing.assert_allclose(found.weight, wanted.weight, atol=1e-7)
    assert found.log_posterior == pytest.approx(wanted.log_posterior, abs=1e-7)
    assert found.status is wanted.status
