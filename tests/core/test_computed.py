"""Bases that are computed when needed: the same fit as with all of them held."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcvm_pymc import Status
from pcvm_pymc.core.evidence import (
    ComputedBases,
    EvidenceOptions,
    EvidenceProblem,
    computed,
    fit_rvm,
    search,
    unit_design,
)
from pcvm_pymc.core.evidence.active_set import ActiveSet, gains, refreshed
from pcvm_pymc.core.pieces.kernels import RBF, FunctionKernel, LinearSpline
from pcvm_pymc.core.pieces.likelihood import Weighted, weighted_target
from pcvm_pymc.core.pieces.likelihoods import Logit, StudentT

LIKELIHOODS = {"normal": "normal", "logit": "logit", "probit": "probit", "student": StudentT(4.0)}


def data(n, seed, d=2):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] ** 2 - 1 + 0.4 * rng.normal(size=n)


def both(X, target, likelihood, kernel, limit=2e6, **more):
    """Return the problem with its bases held, and with its bases computed."""
    return (
        EvidenceProblem(kernel(X, X), target, likelihood, **more),
        EvidenceProblem(ComputedBases(X, X, kernel, limit), target, likelihood, **more),
    )


def assert_same(held, other):
    np.testing.assert_array_equal(other.active, held.active)
    assert other.log_evidence == pytest.approx(held.log_evidence, abs=1e-8)
    # wide bases trade large weights of either sign: rounding is that of the largest
    for name, tol in (("weight", 1e-8), ("covariance", 1e-7)):
        first, second = getattr(held, name), getattr(other, name)
        largest = max(1.0, np.abs(first).max(initial=0.0))
        np.testing.assert_allclose(second, first, rtol=tol, atol=1e-8 * largest, err_msg=name)
    assert other.bias == pytest.approx(held.bias, rel=1e-8, abs=1e-8)
    np.testing.assert_allclose(other.latent, held.latent, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(other.noise, held.noise, rtol=1e-8)


@given(
    st.integers(0, 10_000),
    st.sampled_from(sorted(LIKELIHOODS)),
    st.booleans(),
    st.sampled_from([20, 16_384]),
    st.sampled_from([7, 2048]),
)
@settings(max_examples=20)
def test_computed_bases_change_nothing(seed, name, bias, live, rows):
    rng = np.random.default_rng(seed)
    X, target = data(int(rng.integers(30, 50)), seed)
    if name in {"logit", "probit"}:
        target = np.where(target > 0, 1.0, -1.0)
    kernel = RBF(float(rng.uniform(0.7, 2.0)))
    problems = both(X, target, LIKELIHOODS[name], kernel, limit=2e5 + 100.0 * seed, bias=bias)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MANY", live)
        patch.setattr(search, "MOST_LIVE", live)
        patch.setattr(computed, "_ROWS", rows)
        held, other = (fit_rvm(each, options=EvidenceOptions(max_iter=150)) for each in problems)
    assert_same(held, other)


@pytest.mark.parametrize("kernel", [LinearSpline(), FunctionKernel(lambda X, Z, w: (X @ Z.T) ** 2)])
def test_any_kernel_and_weighted_rows(kernel):
    X, target = data(50, 3)
    label = weighted_target(np.where(target > 0, 1.0, -1.0), 1.0 + np.arange(50) % 3)
    held, other = (fit_rvm(each) for each in both(X, label, Weighted(Logit()), kernel))
    assert held.log_evidence > 50 * np.log(0.5) * 2
    assert_same(held, other)


@given(st.integers(0, 10_000), st.booleans(), st.integers(1, 2))
@settings(max_examples=20)
def test_prices_are_those_of_columns_that_are_held(seed, is_label, n_jobs):
    """S and Q at any state, of zero columns, too, and where S has lost its digits in a difference."""
    rng = np.random.default_rng(seed)
    X, target = data(40, seed)
    centres = np.vstack([X, [[1e6, 0.0]], X[:5] + 1e-7])  # zeros, and all but equal columns
    target, likelihood = (np.sign(target), Logit()) if is_label else (target, StudentT(3.0, 0.3))
    kernel = RBF(float(rng.uniform(0.5, 3.0)))
    index = rng.choice(41, 6, replace=False)
    none = np.empty(0)
    state = ActiveSet(
        index=index,
        alpha=10.0 ** rng.uniform(-3, 2, 6),
        mean=np.zeros(6),
        covariance=none,
        S=none,
        Q=none,
        log_evidence=0.0,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computed, "blas_thread_count", lambda: n_jobs)
        patch.setattr(computed, "_COLUMNS", 9)
        found = [
            refreshed(unit_design(EvidenceProblem(Phi, target, likelihood)).columns, *rest)
            for Phi in (kernel(X, centres), ComputedBases(X, centres, kernel, 1e6))
            for rest in [(target, likelihood, state)]
        ]
    held, other = found
    np.testing.assert_allclose(other.S, held.S, rtol=1e-6, atol=1e-11 * held.S.max())
    np.testing.assert_allclose(other.Q, held.Q, rtol=1e-8, atol=1e-9 * np.abs(held.Q).max())
    assert held.S[41] == other.S[41] == other.Q[41] == 0.0
    assert (other.S >= 0).all()


@pytest.mark.parametrize("name", ["normal", "logit"])
def test_from_coarse_to_fine_ends_where_nothing_gains(monkeypatch, name):
    monkeypatch.setattr(search, "MANY", 40)
    monkeypatch.setattr(search, "MOST_LIVE", 40)
    X, target = data(150, 7)
    target = target if name == "normal" else np.sign(target)
    held, other = both(X, target, name, RBF(1.5))
    result = fit_rvm(other, options=EvidenceOptions(patience=200))
    assert result.status is Status.CONVERGED
    columns, norm = vars(unit_design(held)).values()
    index = result.active + 1
    alpha, mean = result.alpha[result.active], result.weight[result.active]
    if np.isfinite(result.bias_alpha):
        index = np.append(0, index)
        alpha, mean = np.append(result.bias_alpha, alpha), np.append(result.bias, mean)
    none = np.empty(0)
    state = ActiveSet(
        index=index,
        alpha=alpha / norm[index] ** 2,
        mean=mean * norm[index],
        covariance=none,
        S=none,
        Q=none,
        log_evidence=0.0,
    )
    likelihood = held.likelihood_at(result.noise)
    assert gains(refreshed(columns, target, likelihood, state))[0].max() < 1.1e-4


def test_bases_are_never_held_whole():
    X, target = data(4000, 1)
    tracemalloc.start()
    problem = EvidenceProblem(ComputedBases(X, X, RBF(1.5), 8e6), np.sign(target), "logit")
    result = fit_rvm(problem, options=EvidenceOptions(max_iter=1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.status is Status.ITERATION_LIMIT
    assert peak < 3e7  # they are 128 MB


def test_what_computed_bases_cannot_take_is_refused():
    X, target = data(60, 0)
    problem = EvidenceProblem(ComputedBases(X, X, RBF(1.0), 1e6), target)
    for method in ("batch", "random"):
        with pytest.raises(ValueError, match=f"method='{method}' needs all basis functions"):
            fit_rvm(problem, method=method)
    with pytest.raises(
        ValueError, match=r"memory_limit=1e\+05 bytes is too small for 60 rows.*needed at least"
    ):
        ComputedBases(X, X, RBF(1.0), 1e5)
    far = ComputedBases(X, np.full((3, 2), 20.0), RBF(1.0), 1e6)
    with pytest.raises(ValueError, match=r"basis 0 is .* at the most.*no memory_limit"):
        fit_rvm(EvidenceProblem(far, target))
