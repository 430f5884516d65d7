"""Bases that a few of them span to rounding: the same values, prices and fits as without their factors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcvm_pymc import MatrixRBF
from pcvm_pymc.core.evidence import (
    ComputedBases,
    EvidenceProblem,
    fit_rvm,
    search,
    spanned,
    unit_design,
)
from pcvm_pymc.core.evidence.active_set import ActiveSet, refreshed
from pcvm_pymc.core.evidence.spanned import span_of
from pcvm_pymc.core.pieces.kernels import RBF, FunctionKernel, LinearSpline
from pcvm_pymc.core.pieces.likelihoods import Logit, Normal, StudentT

LIMIT = 2e7


def data(n, seed, d=2):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.5, 1.5, size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.4 * rng.normal(size=n)


def columns_of(X, centres, kernel, limit=LIMIT):
    problem = EvidenceProblem(ComputedBases(X, centres, kernel, limit), np.ones(len(X)))
    return unit_design(problem).columns


@given(st.integers(0, 10_000), st.integers(1, 2), st.booleans())
@settings(max_examples=15)
def test_factors_tell_every_value(seed, d, others):
    X = data(700, seed, d)[0]
    X[:3] += 30.0  # outliers, which need pivots of their own
    centres = data(600, seed + 1, d)[0] if others else X
    wide = MatrixRBF(np.eye(d) + 0.3, 4.0)
    for kernel in [RBF(4.0), wide]:
        span = span_of(X, centres, kernel, LIMIT)
        assert span.rows.shape[1] < len(centres) / 8
        np.testing.assert_allclose(span.rows @ span.columns.T, kernel(X, centres), atol=2e-12)
        assert span.nbytes == 8 * span.rows.shape[1] * (1300 if others else 700)


def test_no_factors_where_many_would_be_needed():
    X = data(700, 0)[0]
    assert span_of(X, X, RBF(3.0), LIMIT) is not None
    assert span_of(X, X, RBF(0.1), LIMIT) is None  # narrow
    assert span_of(data(700, 0, 10)[0], data(700, 0, 10)[0], RBF(3.0), LIMIT) is None
    assert span_of(X, X, RBF(3.0), 8 * 700 * 10) is None  # no room
    assert span_of(X[:40], X[:40], RBF(3.0), LIMIT) is None  # few
    for kernel in [LinearSpline(), FunctionKernel(lambda X, Z, w: (X @ Z.T) ** 2)]:
        assert span_of(X, X, kernel, LIMIT) is None  # nothing would bound the error


def test_factors_come_out_of_the_memory_limit():
    X = data(700, 0)[0]
    columns = columns_of(X, X, RBF(3.0))
    assert columns.bases.memory_limit + columns.span.nbytes == LIMIT
    least = ComputedBases.least_bytes(700)
    assert columns_of(X, X, RBF(3.0), least + 8 * 700 * 10).span is None


def test_centres_far_from_all_rows_are_computed():
    X = data(700, 0)[0]
    assert columns_of(X, np.vstack([X, [[1e3, 0.0]]]), RBF(3.0)).span is None
    assert columns_of(X, np.vstack([X, [[4.0, 4.0]]]), RBF(3.0)).span is not None


@given(st.integers(0, 10_000), st.sampled_from([Logit(), Normal(0.3), StudentT(3.0, 0.3)]))
@settings(max_examples=15)
def test_prices_are_those_of_columns_that_are_held(seed, likelihood):
    """S and Q at any state, also of a column next to those in the model, whose S a difference has not."""
    rng = np.random.default_rng(seed)
    X, target = data(700, seed)
    target = np.sign(target) if likelihood.name == "logit" else target
    centres = np.vstack([X, X[:5] + 1e-4])
    kernel = RBF(float(rng.uniform(2.5, 5.0)))
    none = np.empty(0)
    state = ActiveSet(
        index=np.append(np.arange(5), rng.choice(np.arange(5, 700), 6, replace=False)),
        alpha=10.0 ** rng.uniform(-3, 2, 11),
        mean=np.zeros(11),
        covariance=none,
        S=none,
        Q=none,
        log_evidence=0.0,
    )
    columns = columns_of(X, centres, kernel)
    assert columns.span is not None
    held = unit_design(EvidenceProblem(kernel(X, centres), target)).columns
    some = np.arange(0, 706, 3)
    some = np.union1d(some, state.index)
    state = ActiveSet(**{**vars(state), "index": np.searchsorted(some, state.index)})
    exact = refreshed(held[:, some], target, likelihood, state)
    found = refreshed(columns.taken(some), target, likelihood, state)
    np.testing.assert_allclose(found.S, exact.S, rtol=1e-5, atol=1e-13 * exact.S.max())
    np.testing.assert_allclose(found.Q, exact.Q, rtol=1e-7, atol=1e-8 * np.abs(exact.Q).max())
    assert found.log_evidence == pytest.approx(exact.log_evidence, abs=1e-8)


@pytest.mark.fixed_seeds  # searches may end in different optima
@pytest.mark.parametrize("name", ["normal", "logit"])
def test_a_fit_is_the_one_of_bases_that_are_computed(monkeypatch, name):
    X, target = data(700, 5)
    target = target if name == "normal" else np.sign(target)
    problem = EvidenceProblem(ComputedBases(X, X, RBF(3.0), LIMIT), target, name)
    assert unit_design(problem).columns.span is not None
    # a look by factors is not dear: no fit from coarse to fine
    monkeypatch.setattr(search, "MANY", 50)
    by_factors = fit_rvm(problem)
    monkeypatch.setattr(search, "MANY", 1000)
    monkeypatch.setattr(spanned, "_WORTH", 1000)
    assert unit_design(problem).columns.span is None
    other = fit_rvm(problem)
    # what each of both searches leaves: changes that gain less than 1e-4
    assert by_factors.log_evidence == pytest.approx(other.log_evidence, abs=1e-3)
    np.testing.assert_allclose(by_factors.latent, other.latent, atol=1e-2)
