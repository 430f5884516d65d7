from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import IMPROPER, PROPER, blobs, classes, refused

from pcvm_pymc.core.design import ArrayRows, StreamedDesign, SumsRequest, row_blocks
from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.em.coupled import DenseModel, Preconditioner, StreamedModel
from pcvm_pymc.core.em.rows import DenseRows, StreamedRows
from pcvm_pymc.core.pieces.centres import class_signs
from pcvm_pymc.core.pieces.kernels import RBF, as_kernel
from pcvm_pymc.core.pieces.likelihoods import MultinomialProbit, Probit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.resources import chunk_rows, has_room_for_coupled
from pcvm_pymc.core.pieces.row_weights import majority_label
from pcvm_pymc.core.problem import Problem, Status

TIGHT = EMOptions(tol=1e-9)


class CountedRows(ArrayRows):
    """Rows that know which sums they were asked for: `asked`, a list of each kind of matrix and share."""

    def sums(self, request):
        self.__dict__.setdefault("asked", []).append((request.gram, request.every))
        return super().sums(request)


def both(rows, n_basis, hyperprior, width=1.3, *, signs=True, kernel="rbf", single=False, **kwargs):
    """Return the problem of some rows in memory, and in chunks."""
    centres, label, piece = rows.X[:n_basis], rows.label, as_kernel(kernel, width)
    likelihood, sign, majority = Probit(), label[:n_basis], majority_label(label, None)
    if label.min() >= 0:
        likelihood = MultinomialProbit(label.max() + 1)
        sign = class_signs(sign, likelihood.n_scores)
    pieces = (sign if signs else None, hyperprior, likelihood)
    whole = Problem(piece(rows.X, centres), label, *pieces, width=width, **kwargs)
    design = StreamedDesign(rows, centres, piece, single, majority)
    return whole, replace(whole, Phi=design, label=None)


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("width", [1e-6, 1.0, 1e6])
def test_basis_functions_at_any_offset_and_width(offset, width):
    """A matrix product gives distances where that is exact enough, else they are taken one by one."""
    X, label = blobs(40, n_features=3, seed=1)
    X = np.vstack([X, 1e5 * X[:3]]) + offset
    label = np.append(label, label[:3])
    weight = np.random.default_rng(2).normal(size=(10, 1))
    at = weight, np.array([0.4]), 0 * weight, np.array([-0.2])
    found = ArrayRows(X, label, 7).sums(SumsRequest(X[:10], RBF(width), *at, Probit().terms))
    latent = RBF(width)(X, X[:10]) @ weight[:, 0] + 0.4
    assert found.log_likelihood == pytest.approx(Probit().log_likelihood(latent, label), rel=1e-9)
    assert found.change == pytest.approx(np.abs(latent + 0.2).max(), rel=1e-9)


@given(st.integers(2, 5), st.integers(1, 40), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=30)
def test_the_coupled_matrix_is_that_of_the_whole(n_classes, chunk, n_jobs, seed):
    X, label = classes(30, n_classes, seed)
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(8, n_classes)), rng.normal(size=n_classes)
    Phi = RBF(1.3)(X, X[:8])
    likelihood = MultinomialProbit(n_classes)
    terms = {"terms": likelihood.terms, "gram": "coupled", "hessian": likelihood.hessian}
    asked = SumsRequest(X[:8], RBF(1.3), weight, bias, weight, bias, **terms)
    found = ArrayRows(X, label, chunk, n_jobs).sums(asked)
    Z = np.column_stack([Phi, np.ones(len(Phi))])
    hessian = likelihood.hessian(Phi @ weight + bias, label)
    wanted = np.einsum("icd,ij,ik->cjdk", hessian, Z, Z).reshape(2 * (9 * n_classes,))
    np.testing.assert_allclose(np.tril(found.gram), np.tril(wanted), atol=1e-10)


#: prior, rows, number of basis functions, the matrix of Newton's steps, and the least share of chunks in it
PRIORS = PROPER | IMPROPER
SHARES = {name: (PRIORS[name], blobs(4000, seed=3), 6, "curvature", 5) for name in PRIORS}
SHARES["classes"] = Hyperprior.plug_in(), classes(4500, 3), 4, "coupled", 3


@pytest.mark.parametrize("case", SHARES)
def test_a_fit_whose_matrix_is_of_some_chunks_ends_where_it_would(case):
    hyperprior, (X, label), n_basis, gram, least = SHARES[case]
    rows = CountedRows(X, label, 50)
    wanted, found = (fit_em(each, None, TIGHT) for each in both(rows, n_basis, hyperprior))
    assert max(every for kind, every in rows.asked if kind == gram) >= least
    np.testing.assert_allclose(found.weight, wanted.weight, atol=1e-7)
    assert found.log_posterior == pytest.approx(wanted.log_posterior, abs=1e-8)
    assert found.status is wanted.status


@pytest.mark.parametrize("hyperprior", [Hyperprior.plug_in(), Hyperprior.jeffreys()])
@pytest.mark.parametrize(("kernel", "signs"), [("rbf", False), ("linear-spline", True)])
def test_free_weights_and_other_kernels(hyperprior, kernel, signs):
    problems = both(ArrayRows(*blobs(80, seed=4), 13), 30, hyperprior, signs=signs, kernel=kernel)
    wanted, found = (fit_em(each, None, TIGHT) for each in problems)
    np.testing.assert_allclose(found.weight, wanted.weight, atol=1e-6)
    assert found.log_posterior == pytest.approx(wanted.log_posterior, abs=1e-8)
    wanted, found = (Start.ridge(each, 3.0) for each in problems)
    np.testing.assert_allclose(found.weight, wanted.weight, atol=1e-9)
    assert found.bias == pytest.approx(wanted.bias, abs=1e-9)


@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("bias", ["prior", "free", "none"])
def test_coupled_steps_in_chunks_are_as_few_as_in_memory(signs, bias):
    rows, options = ArrayRows(*classes(200, 4), 37), EMOptions(tol=1e-8, max_iter=60)
    problems = both(rows, 20, Hyperprior.plug_in(), bias=bias, signs=signs)
    wanted, found = (fit_em(each, None, options) for each in problems)
    assert found.converged
    assert found.n_iter <= wanted.n_iter + 5
    assert found.log_posterior == pytest.approx(wanted.log_posterior, abs=1e-8)
    np.testing.assert_allclose(found.weight, wanted.weight, atol=1e-5)


def test_the_model_of_a_pass_has_the_products_of_that_in_memory():
    whole, design = both(ArrayRows(*classes(90, 3), 37), 20, Hyperprior.plug_in())
    value = np.random.default_rng(0).normal(size=(21, 3))
    rows, at = (DenseRows(whole), StreamedRows(design)), (value[:-1], value[-1], None)
    wanted = DenseModel(rows[0], rows[0].at(*at), Preconditioner()).curved(value)
    found = StreamedModel(rows[1], rows[1].at(*at)).curved(value)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_without_room_for_the_matrix_steps_are_the_bounds():
    _, coupled = both(ArrayRows(*classes(90, 3), 37), 20, Hyperprior.plug_in())
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
    assert has_room_for_coupled(None, 500, 4)


def test_single_precision_ends_when_its_rounding_is_reached():
    rows = ArrayRows(*blobs(3000, seed=8), 500)
    problems = (both(rows, 30, Hyperprior.plug_in(), 1.0, single=each)[1] for each in (False, True))
    double, single = (fit_em(each, None, EMOptions(tol=1e-13)) for each in problems)
    assert single.status is Status.CONVERGED
    assert single.n_iter <= double.n_iter
    assert single.log_posterior == pytest.approx(double.log_posterior, rel=1e-7)


def test_bad_input_is_named():
    X, label = blobs(40, seed=10)
    _, streamed = both(ArrayRows(X, label, 9), 20, Hyperprior.jeffreys(), 1.0)
    start = Start(np.zeros(20), 0.0, response=label)
    refused("start.response is for rows in memory", fit_em, streamed, start)
    refused(r"memory_limit=1e\+06 bytes is too small for 500 bases", chunk_rows, 1e6, 500, 20)
    assert chunk_rows(11e6, 500, 20) < chunk_rows(12e6, 500, 20) < chunk_rows(30e6, 500, 20) == 2048
    assert [rows.stop - rows.start for rows in row_blocks(7, 3)] == [3, 3, 1]
