import numpy as np
import pytest
from problems import IMPROPER, PROPER, blobs, refused

from pcvm_pymc.core.design import ArrayRows, Request, StreamedDesign, row_blocks
from pcvm_pymc.core.em import EMOptions, Start, fit_em
from pcvm_pymc.core.evidence import EvidenceProblem, fit_bottom_up
from pcvm_pymc.core.pieces.kernels import RBF, as_kernel, design_matrix, rbf, squared_distances
from pcvm_pymc.core.pieces.likelihoods import Probit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.pieces.resources import chunk_rows
from pcvm_pymc.core.problem import Problem, Status

CAREFUL = {**PROPER, **IMPROPER}


def both(X, label, n_basis, hyperprior, width, *, signs=True, kernel="rbf"):
    """Return the same problem whole and in chunks."""
    centres = X[:n_basis]
    sign = label[:n_basis] if signs else None
    whole = Problem(design_matrix(kernel, X, centres, width), label, sign, hyperprior, width=width)
    majority = 1.0 if label.sum() >= 0 else -1.0
    return whole, (centres, sign, hyperprior, as_kernel(kernel, width), majority)


def fit_chunked(rows, given_, options=None, callback=None, *, start=None, single=False):
    centres, sign, hyperprior, kernel, majority = given_
    chunks = StreamedDesign(rows, centres, kernel, single, majority)
    return fit_em(Problem(chunks, None, sign, hyperprior), start, options, callback)


def request(centres, width, weight, old, gram="none", **kwargs):
    at = {"weight": weight[:, None], "bias": np.array([0.4])}
    before = {"old_weight": old[:, None], "old_bias": np.array([-0.2])}
    return Request(centres, RBF(width), **at, **before, terms=Probit().terms, gram=gram, **kwargs)


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("width", [1e-6, 1.0, 1e6])
def test_basis_functions_at_any_offset_and_width(offset, width):
    """A matrix product gives distances where that is exact enough, else they are taken one by one."""
    X, label = blobs(40, n_features=3, seed=1)
    X = np.vstack([X, 1e5 * X[:3]]) + offset
    label = np.append(label, label[:3])
    weight = np.random.default_rng(2).normal(size=10)
    found = ArrayRows(X, label, 7).sums(request(X[:10], width, weight, 0 * weight))
    latent = rbf(squared_distances(X, X[:10]), width) @ weight + 0.4
    assert found.log_likelihood == pytest.approx(Probit().log_likelihood(latent, label), rel=1e-9)
    assert found.change == pytest.approx(np.abs(latent + 0.2).max(), rel=1e-9)


@pytest.mark.parametrize("hyperprior", CAREFUL.values(), ids=CAREFUL)
def test_a_fit_whose_matrix_is_of_some_chunks_ends_where_it_would(hyperprior):
    X, label = blobs(4000, seed=3)
    whole, chunked = both(X, label, 6, hyperprior, 1.3)
    wanted = fit_em(whole, None, EMOptions(tol=1e-9))
    asked = []

    class Counted(ArrayRows):
        def sums(self, request):
            asked.append(request.every)
            return super().sums(request)

    found = fit_chunked(Counted(X, label, 50), chunked, EMOptions(tol=1e-9))
    assert max(asked) >= 5
    np.testing.assert_allclose(found.weight, wanted.weight, atol=1e-7)
    assert found.log_posterior == pytest.approx(wanted.log_posterior, abs=1e-8)
    assert found.status is wanted.status


@pytest.mark.parametrize("hyperprior", [Hyperprior.plug_in(), Hyperprior.jeffreys()])
def test_free_weights_and_other_kernels(hyperprior):
    X, label = blobs(80, seed=4)
    for kernel, signs in (("rbf", False), ("linear-spline", True)):
        whole, chunked = both(X, label, 30, hyperprior, 1.3, signs=signs, kernel=kernel)
        wanted = fit_em(whole, None, EMOptions(tol=1e-9))
        found = fit_chunked(ArrayRows(X, label, 13), chunked, EMOptions(tol=1e-9))
        np.testing.assert_allclose(found.weight, wanted.weight, atol=1e-6)
        assert found.log_posterior == pytest.approx(wanted.log_posterior, abs=1e-8)


def test_the_chunk_size_and_threads_change_nothing():
    X, label = blobs(120, seed=5)
    _, chunked = both(X, label, 40, Hyperprior.plug_in(), 1.0)
    first, *others = (
        fit_chunked(ArrayRows(X, label, chunk, n_jobs), chunked, EMOptions(tol=1e-9))
        for chunk, n_jobs in ((120, 1), (50, 1), (1, 1), (20, 2), (50, 4))
    )
    for other in others:
        np.testing.assert_allclose(other.weight, first.weight, atol=1e-9)


def test_single_precision_ends_when_its_rounding_is_reached():
    X, label = blobs(3000, seed=8)
    _, chunked = both(X, label, 30, Hyperprior.plug_in(), 1.0)
    rows, options = ArrayRows(X, label, 500), EMOptions(tol=1e-13)
    double = fit_chunked(rows, chunked, options)
    single = fit_chunked(rows, chunked, options, single=True)
    assert single.status is Status.CONVERGED
    assert single.n_iter <= double.n_iter
    assert single.log_posterior == pytest.approx(double.log_posterior, rel=1e-7)


def test_bad_input_is_named():
    X, label = blobs(40, seed=10)
    _, chunked = both(X, label, 20, Hyperprior.plug_in(), 1.0)
    rows = ArrayRows(X, label, 9)
    start = Start(np.zeros(20), 0.0, response=label)
    refused("response was given for a streamed design", fit_chunked, rows, chunked, start=start)
    design = StreamedDesign(rows, chunked[0], RBF(1.0))
    streamed = Problem(design, None, chunked[1], Hyperprior.jeffreys())
    with pytest.raises(ValueError, match=r"start of shape \(40,\) was given for rows in chunks"):
        fit_bottom_up(streamed, np.zeros(40))
    refused("'evidence'", EvidenceProblem.of, streamed)
    refused(r"memory_limit=1e\+06 bytes is too small for 500 bases", chunk_rows, 1e6, 500, 20)
    assert chunk_rows(11e6, 500, 20) < chunk_rows(12e6, 500, 20) < chunk_rows(30e6, 500, 20) == 2048
    assert [rows.stop - rows.start for rows in row_blocks(7, 3)] == [3, 3, 1]
