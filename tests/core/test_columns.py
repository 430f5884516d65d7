"""Candidate columns of unit norm, in memory or streamed: the same states and fits."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import refused

from pcvm_pymc import MatrixRBF, Status
from pcvm_pymc.core.evidence import (
    ComputedBases,
    EvidenceOptions,
    EvidenceProblem,
    columns,
    fit_rvm,
)
from pcvm_pymc.core.evidence.columns import DenseColumns, LowRankColumns
from pcvm_pymc.core.evidence.posterior import scanned
from pcvm_pymc.core.evidence.problem import columns_of
from pcvm_pymc.core.pieces.kernels import RBF, FunctionKernel, LinearSpline
from pcvm_pymc.core.pieces.likelihood import Weighted, weighted_target
from pcvm_pymc.core.pieces.likelihoods import Logit, Normal, StudentT

LIKELIHOODS = {"normal": "normal", "logit": "logit", "probit": "probit", "student": StudentT(4.0)}


def data(n, seed, d=2):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] ** 2 - 1 + 0.4 * rng.normal(size=n)


def both(X, target, likelihood, kernel, limit=2e6, **more):
    """Return the problem with its bases in memory, and with its bases streamed."""
    return (
        EvidenceProblem(kernel(X, X), target, likelihood, **more),
        EvidenceProblem(ComputedBases(X, X, kernel, limit), target, likelihood, **more),
    )


def assert_same(dense, other):
    np.testing.assert_array_equal(other.active, dense.active)
    assert other.log_evidence == pytest.approx(dense.log_evidence, abs=1e-8)
    # wide bases trade large weights of either sign: rounding is that of the largest
    for name, tol in (("weight", 1e-8), ("covariance", 1e-7)):
        first, second = getattr(dense, name), getattr(other, name)
        largest = max(1.0, np.abs(first).max(initial=0.0))
        np.testing.assert_allclose(second, first, rtol=tol, atol=1e-8 * largest, err_msg=name)
    assert other.bias == pytest.approx(dense.bias, rel=1e-8, abs=1e-8)
    np.testing.assert_allclose(other.latent, dense.latent, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(other.noise, dense.noise, rtol=1e-8)


@pytest.mark.parametrize("size", [1e-110, 1e110])
def test_columns_whose_squares_over_or_underflow_change_nothing(size):
    rng = np.random.default_rng(2)
    Phi = rng.normal(size=(60, 9))
    target = Phi[:, 2] / np.abs(Phi[:, 2]).max() + 0.1 * rng.normal(size=60)
    plain = fit_rvm(EvidenceProblem(Phi, target))
    Phi[:, 2] *= size
    fit = fit_rvm(EvidenceProblem(Phi, target))
    assert fit.log_evidence == pytest.approx(plain.log_evidence, abs=1e-6)
    assert list(fit.active) == list(plain.active)


def test_s_keeps_its_digits_next_to_a_column_of_the_model():
    """Outside the model and almost equal to a free column within: what is left of it, not rounding."""
    rng = np.random.default_rng(0)
    Phi = rng.normal(size=(40, 140))
    Phi[:, 1] = Phi[:, 0] + 1e-6 * rng.normal(size=40)
    target, unit = rng.normal(size=40), Phi / np.linalg.norm(Phi, axis=0)
    left = unit[:, 1] - unit[:, 0] * (unit[:, 0] @ unit[:, 1])
    at = np.array([0]), np.array([1e-9]), np.zeros(1)
    found = scanned(DenseColumns(Phi, None), target, Normal(1.0), at)
    assert found.S[1] == pytest.approx(left @ left + 1e-9, rel=1e-3)


@given(
    st.integers(0, 10_000),
    st.sampled_from(sorted(LIKELIHOODS)),
    st.booleans(),
    st.sampled_from([7, 2048]),
)
@settings(max_examples=20)
def test_streamed_bases_change_nothing(seed, name, bias, rows):
    rng = np.random.default_rng(seed)
    X, target = data(int(rng.integers(30, 50)), seed)
    if name in {"logit", "probit"}:
        target = np.where(target > 0, 1.0, -1.0)
    kernel = RBF(float(rng.uniform(0.7, 2.0)))
    problems = both(X, target, LIKELIHOODS[name], kernel, limit=2e5 + 100.0 * seed, bias=bias)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_ROWS", rows)
        dense, other = (fit_rvm(each, options=EvidenceOptions(max_iter=150)) for each in problems)
    assert_same(dense, other)


@pytest.mark.parametrize("kernel", [LinearSpline(), FunctionKernel(lambda X, Z, w: (X @ Z.T) ** 2)])
def test_any_kernel_and_weighted_rows(kernel):
    X, target = data(50, 3)
    label = weighted_target(np.where(target > 0, 1.0, -1.0), 1.0 + np.arange(50) % 3)
    dense, other = (fit_rvm(each) for each in both(X, label, Weighted(Logit()), kernel))
    assert dense.log_evidence > 50 * np.log(0.5) * 2
    assert_same(dense, other)


def test_streamed_bases_are_never_in_memory_as_a_whole():
    X, target = data(4000, 1)
    tracemalloc.start()
    problem = EvidenceProblem(ComputedBases(X, X, RBF(1.5), 8e6), np.sign(target), "logit")
    result = fit_rvm(problem, options=EvidenceOptions(max_iter=1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.status is Status.ITERATION_LIMIT
    assert peak < 3e7  # they are 128 MB


def test_what_streamed_bases_cannot_do_is_refused():
    X, target = data(60, 0)
    problem = EvidenceProblem(ComputedBases(X, X, RBF(1.0), 1e6), target)
    refused("method='batch' needs all basis functions", fit_rvm, problem, method="batch")
    with pytest.raises(
        ValueError, match=r"memory_limit=1e\+05 bytes is too small for 60 rows.*needed at least"
    ):
        ComputedBases(X, X, RBF(1.0), 1e5)
    far = ComputedBases(X, np.full((3, 2), 20.0), RBF(1.0), 1e6)
    refused(r"basis 0 is .* at the most.*no memory_limit", fit_rvm, EvidenceProblem(far, target))


# --- low rank -----------------------------------------------------------------------------------


def near(n, seed, d=2):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.5, 1.5, size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.4 * rng.normal(size=n)


@given(st.integers(0, 10_000), st.integers(1, 2), st.booleans())
@settings(max_examples=15)
def test_low_rank_factors_have_every_value(seed, d, others):
    X = near(700, seed, d)[0]
    X[:3] += 30.0  # outliers, which need pivots of their own
    centres = near(600, seed + 1, d)[0] if others else X
    for kernel in [RBF(4.0), MatrixRBF(np.eye(d) + 0.3, 4.0)]:
        found = LowRankColumns.of(ComputedBases(X, centres, kernel, 2e7), True)
        assert found.L.shape[1] < len(centres) / 8
        np.testing.assert_allclose(found.L @ found.F.T, kernel(X, centres), atol=2e-12)
        taken = 8 * found.L.shape[1] * (len(X) + (len(centres) if others else 0))
        assert found.bases.memory_limit + taken == 2e7


@pytest.mark.parametrize("name", ["normal", "logit"])
def test_a_fit_by_low_rank_factors_is_that_of_streamed_bases(monkeypatch, name):
    X, target = near(700, 5)
    target = target if name == "normal" else np.sign(target)
    problem = EvidenceProblem(ComputedBases(X, X, RBF(3.0), 2e7), target, name)
    assert isinstance(columns_of(problem), LowRankColumns)
    by_factors = fit_rvm(problem)
    monkeypatch.setattr(columns, "_ROUNDS", 0)
    assert not isinstance(columns_of(problem), LowRankColumns)
    other = fit_rvm(problem)
    # what both searches leave: changes that gain less than 1e-4
    assert by_factors.log_evidence == pytest.approx(other.log_evidence, abs=1e-3)
    np.testing.assert_allclose(by_factors.latent, other.latent, atol=1e-2)
