import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcvm_pymc.core.em.binary import EMOptions, Status
from pcvm_pymc.core.em.chunked import ChunkedProblem
from pcvm_pymc.core.em.chunked_classes import fit_classes_chunked, multinomial_terms_of_rows
from pcvm_pymc.core.em.mpcvm import ClassProblem, fit_top_down, row_curvature
from pcvm_pymc.core.em.rows import ArrayRows, Request
from pcvm_pymc.core.family import class_signs
from pcvm_pymc.core.pieces.kernels import design_matrix, rbf, squared_distances
from pcvm_pymc.core.pieces.multinomial import class_terms
from pcvm_pymc.core.pieces.priors import Hyperprior

PRIORS = {
    "plug_in": Hyperprior.plug_in(),
    "jeffreys": Hyperprior.jeffreys(),
    "chen2009": Hyperprior.chen2009(),
}


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
    whole = ClassProblem(Phi, label, n_classes, sign, hyperprior, **kwargs)
    return X, label, whole, ChunkedProblem(centres, sign, hyperprior, 1.3, kernel)


@given(st.integers(2, 5), st.integers(1, 40), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=30)
def test_sums_are_those_of_the_whole(n_classes, chunk, n_jobs, seed):
    X, label = clouds(30, n_classes, seed)
    rng = np.random.default_rng(seed)
    weight, old = rng.normal(size=(2, 8, n_classes))
    bias, old_bias = rng.normal(size=(2, n_classes))
    Phi = rbf(squared_distances(X, X[:8]), 1.3)
    latent = Phi @ weight + bias
    terms = class_terms(latent, label)
    asked = Request(
        X[:8],
        "rbf",
        1.3,
        weight,
        bias,
        old,
        old_bias,
        terms=multinomial_terms_of_rows,
        gram="curvature",
    )
    found = ArrayRows(X, label, chunk, n_jobs).sums(asked)
    assert found.log_likelihood == pytest.approx(terms.log_probability.sum(), rel=1e-10)
    np.testing.assert_allclose(found.pull, Phi.T @ terms.score, atol=1e-10)
    np.testing.assert_allclose(found.total, terms.score.sum(axis=0), atol=1e-10)
    assert found.change == pytest.approx(np.abs(latent - Phi @ old - old_bias).max())
    wanted = Phi.T @ (row_curvature(terms)[:, None] * Phi)
    np.testing.assert_allclose(np.tril(found.gram.gram), np.tril(wanted), atol=1e-10)


@pytest.mark.parametrize("hyperprior", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_fit_in_chunks_is_the_fit_of_the_whole(hyperprior, has_bias):
    options = EMOptions(tol=1e-9, max_iter=20_000)
    X, label, whole, problem = both(90, 3, 30, hyperprior, has_bias=has_bias)
    wanted = fit_top_down(whole, None, options)
    found = fit_classes_chunked(
        ArrayRows(X, label, 17), problem, 3, has_bias=has_bias, options=options
    )
    assert found.status is wanted.status is Status.CONVERGED
    np.testing.assert_allclose(found.weight, wanted.weight, atol=1e-6)
    np.testing.assert_allclose(found.bias, wanted.bias, atol=1e-6)
    assert found.log_posterior == pytest.approx(wanted.log_posterior, abs=1e-8)


@pytest.mark.parametrize("update", ["em", "newton"])
@pytest.mark.parametrize("hyperprior", PRIORS.values(), ids=PRIORS)
def test_the_first_iterations_are_those_of_the_whole(update, hyperprior):
    options = EMOptions(update=update, max_iter=4)
    X, label, whole, problem = both(90, 4, 30, hyperprior, seed=1)
    wanted = fit_top_down(whole, None, options)
    found = fit_classes_chunked(ArrayRows(X, label, 40), problem, 4, options=options)
    assert found.status is wanted.status is Status.ITERATION_LIMIT
    np.testing.assert_allclose(found.weight, wanted.weight, atol=1e-8)
    np.testing.assert_allclose(found.trace.log_posterior, wanted.trace.log_posterior, rtol=1e-9)
    np.testing.assert_array_equal(found.trace.n_active, wanted.trace.n_active)


def test_shared_weights_of_either_sign_on_another_kernel():
    options = EMOptions(tol=1e-8, max_iter=20_000)
    settings = {"has_bias": False, "shared": True}
    X, label, whole, problem = both(
        60, 3, 20, Hyperprior.jeffreys(), signs=False, kernel="linear-spline", **settings
    )
    wanted = fit_top_down(whole, None, options)
    found = fit_classes_chunked(ArrayRows(X, label, 9), problem, 3, **settings, options=options)
    np.testing.assert_array_equal(found.support, wanted.support)
    np.testing.assert_allclose(found.weight, wanted.weight, atol=1e-5)


@pytest.mark.parametrize("hyperprior", PRIORS.values(), ids=PRIORS)
@given(st.integers(2, 5), st.integers(0, 99))
@settings(max_examples=8)
def test_the_log_posterior_never_falls(hyperprior, n_classes, seed):
    X, label, _, problem = both(40, n_classes, 25, hyperprior, seed=seed)
    found = fit_classes_chunked(
        ArrayRows(X, label, 11), problem, n_classes, options=EMOptions(max_iter=60)
    )
    value = found.trace.log_posterior[1:]  # the first responses are not those of the start
    assert (np.diff(value) >= -1e-9 * (1 + np.abs(value[1:]))).all()


def test_the_papers_recipe_needs_the_rows():
    X, label, _, problem = both(30, 3, 10, Hyperprior.jeffreys())
    with pytest.raises(ValueError, match="update='clip'"):
        fit_classes_chunked(ArrayRows(X, label, 9), problem, 3, options=EMOptions.chen2009())
