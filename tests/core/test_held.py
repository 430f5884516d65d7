"""Bases in memory as columns of unit norm, without a copy of them; states of a regression by products."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcvm_pymc.core.evidence import EvidenceProblem, fit_rvm, unit_design
from pcvm_pymc.core.evidence.active_set import (
    WELL_CONDITIONED,
    ActiveSet,
    is_well_conditioned,
    refreshed,
)
from pcvm_pymc.core.evidence.held import MOST_FEW, FewColumns, HeldColumns
from pcvm_pymc.core.pieces.kernels import design_matrix
from pcvm_pymc.core.pieces.likelihoods import Logit, Normal


def bases(n=60, m=150, seed=0):
    """Return bases of many sizes, a column of zeros among them."""
    rng = np.random.default_rng(seed)
    Phi = rng.normal(size=(n, m)) * 10.0 ** rng.uniform(-3, 3, m)
    Phi[:, 7] = 0.0
    return Phi


def bare(index, alpha):
    none = np.empty(0)
    return ActiveSet(
        index=np.asarray(index),
        alpha=np.asarray(alpha, dtype=float),
        mean=np.zeros(len(index)),
        covariance=none,
        S=none,
        Q=none,
        log_evidence=0.0,
    )


@pytest.mark.parametrize("has_constant", [False, True])
@pytest.mark.parametrize("m", [20, 150])
@pytest.mark.parametrize("order", ["C", "F"])
def test_they_are_the_columns_of_unit_norm(m, has_constant, order):
    Phi = np.asarray(bases(m=m), order=order)
    problem = EvidenceProblem(Phi, np.zeros(60), bias=has_constant)
    design = unit_design(problem)
    held = HeldColumns.of(Phi, problem.constant if has_constant else None)
    assert isinstance(held, FewColumns) == (held.shape[1] <= MOST_FEW)
    np.testing.assert_allclose(held.norm, design.norm)
    for number in (np.array([0, 3, 7]), np.array([9, 0, 2]), np.empty(0, dtype=np.int64)):
        np.testing.assert_allclose(held[:, number], design.columns[:, number], atol=1e-15)
    rng = np.random.default_rng(1)
    left, curvature = rng.normal(size=(60, 4)), rng.uniform(0.1, 1.0, 60)
    np.testing.assert_allclose(held.products(left), left.T @ design.columns, atol=1e-13)
    for number in (np.array([5, 1]), np.array([1, 8, 5]), np.array([2])):  # some are known already
        wanted = design.columns[:, number].T @ design.columns
        np.testing.assert_allclose(held.cross(number), wanted, atol=1e-14)
    for weight in (curvature, np.full(60, 0.3)):
        wanted = weight @ np.square(design.columns)
        np.testing.assert_allclose(held.weighted_squares(weight), wanted, atol=1e-14)


@pytest.mark.parametrize("size", [1e-110, 1e110])
def test_sizes_whose_squares_are_lost_are_refused_and_fitted_all_the_same(size):
    Phi, rng = bases(m=9), np.random.default_rng(2)
    target = Phi[:, 2] / np.abs(Phi[:, 2]).max() + 0.1 * rng.normal(size=60)
    plain = fit_rvm(EvidenceProblem(Phi, target))
    Phi[:, 2] *= size
    assert HeldColumns.of(Phi, None) is None
    fit = fit_rvm(EvidenceProblem(Phi, target))
    assert fit.log_evidence == pytest.approx(plain.log_evidence, abs=1e-6)
    assert list(fit.active) == list(plain.active)


@given(st.integers(0, 10_000), st.booleans(), st.booleans())
@settings(max_examples=30)
def test_a_state_by_products_is_that_of_the_rows(seed, is_label, are_close):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, (80, 1))
    centres = np.linspace(-3, 3, 160)[:, None] if are_close else rng.normal(size=(160, 1))
    Phi = design_matrix("rbf", x, centres, 0.5)
    target = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=80)
    target, likelihood = (np.sign(target), Logit()) if is_label else (target, Normal(0.1))
    state = bare(rng.choice(160, 8, replace=False), 10.0 ** rng.uniform(-3, 2, 8))
    columns = unit_design(EvidenceProblem(Phi, target, bias=False)).columns
    wanted = refreshed(columns, target, likelihood, state)
    found = refreshed(HeldColumns.of(Phi, None), target, likelihood, state)
    for name in ("mean", "covariance", "S", "Q"):
        exact, size = getattr(wanted, name), np.abs(getattr(wanted, name)).max()
        np.testing.assert_allclose(getattr(found, name), exact, rtol=1e-5, atol=1e-8 * size)
    assert found.log_evidence == pytest.approx(wanted.log_evidence, abs=1e-7)


def test_s_keeps_its_digits_beside_a_column_of_the_model():
    """Outside the model and all but equal to a free column within: what is left of it, not rounding."""
    rng = np.random.default_rng(0)
    Phi = rng.normal(size=(40, 140))
    Phi[:, 1] = Phi[:, 0] + 1e-6 * rng.normal(size=40)
    state = bare([0], [1e-9])
    target = rng.normal(size=40)
    columns = unit_design(EvidenceProblem(Phi, target, bias=False)).columns
    left = columns[:, 1] - columns[:, 0] * (columns[:, 0] @ columns[:, 1])
    found = refreshed(HeldColumns.of(Phi, None), target, Normal(1.0), state)
    assert found.S[1] == pytest.approx(left @ left + 1e-9, rel=1e-3)
    assert not is_well_conditioned(found, np.ones(140), 1.0)  # its S is no difference's


def test_what_is_well_conditioned():
    """Whatever the scales of the weights: equal columns are not, orthogonal ones are."""
    square = np.ones(2)

    def state_of(covariance):
        return ActiveSet(
            index=np.array([0, 1]),
            alpha=np.full(2, 1e-10),
            mean=np.zeros(2),
            covariance=np.asarray(covariance),
            S=np.ones(2),
            Q=np.zeros(2),
            log_evidence=0.0,
        )

    assert is_well_conditioned(state_of(np.eye(2)), square, 1.0)
    assert not is_well_conditioned(state_of(WELL_CONDITIONED * np.eye(2)), square, 1.0)
    assert not is_well_conditioned(state_of(-np.eye(2)), square, 1.0)
