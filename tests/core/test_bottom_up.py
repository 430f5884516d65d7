import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_mpcvm import classes

from pcvm_pymc.core.em.binary import Status
from pcvm_pymc.core.evidence.bottom_up import (
    BottomUpOptions,
    BottomUpProblem,
    Machine,
    _Design,
    fit_bottom_up,
)
from pcvm_pymc.core.family import class_signs
from pcvm_pymc.core.pieces.kernels import rbf, squared_distances


def problem(n=40, n_classes=3, *, seed=0, width=1.5, signs=True, **kwargs):
    X, label = classes(n, n_classes, seed)
    sign = class_signs(label, n_classes) if signs else None
    Phi = rbf(squared_distances(X, X), width)
    return BottomUpProblem(Phi, label, n_classes, sign, **kwargs)


def machine_with(given_, index, alpha):
    machine = Machine(_Design(given_))
    for n, a in zip(index, alpha, strict=True):
        machine.add(n, a)
    return machine


def dense(given_, machine):
    """Return covariance, and s and q of every column for C without it, by direct construction."""
    columns, index = machine.design.columns, machine.index
    response = np.random.default_rng(1).normal(size=(len(columns), 2))
    precision = columns[:, index].T @ columns[:, index] + np.diag(machine.alpha)
    s, q = np.empty(columns.shape[1]), np.empty((columns.shape[1], 2))
    for j in range(columns.shape[1]):
        kept = [k for k in range(len(index)) if index[k] != j]
        A = columns[:, np.array(index)[kept]]
        C = np.eye(len(columns)) + (A / machine.alpha[kept]) @ A.T
        pull = np.linalg.solve(C, columns[:, j])
        s[j], q[j] = columns[:, j] @ pull, response.T @ pull
    return np.linalg.inv(precision), s, q, columns.T @ response


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=20)
def test_rank_one_updates_and_leave_one_out_terms(seed, has_bias):
    rng = np.random.default_rng(seed)
    given_ = problem(20, seed=seed, has_bias=has_bias)
    n_columns = 20 + has_bias
    machine = machine_with(given_, rng.permutation(n_columns)[:6], rng.uniform(0.1, 5, 6))
    machine.set_alpha(2, 3.3)
    machine.delete(4)
    machine.add(int(np.setdiff1d(np.arange(n_columns), machine.index)[0]), 0.7)
    covariance, s, q, projected = dense(given_, machine)
    np.testing.assert_allclose(machine.covariance, covariance, atol=1e-10)
    found_s, found_q = machine.leave_one_out(projected)
    np.testing.assert_allclose(found_s, s, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found_q, q, rtol=1e-8, atol=1e-8)
    S = machine.S.copy()
    machine.refresh()
    np.testing.assert_allclose(machine.covariance, covariance, atol=1e-10)
    np.testing.assert_allclose(S, machine.S, atol=1e-9)


@pytest.mark.parametrize("signs", [True, False])
@given(
    st.integers(2, 6),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.1, 1.0, 5.0, 100.0]),
    st.booleans(),
)
@settings(max_examples=15)
def test_it_ends_with_finite_numbers_and_right_signs(signs, n_classes, seed, width, has_bias):
    given_ = problem(
        30, n_classes, seed=seed, width=width, signs=signs, shared=not signs, has_bias=has_bias
    )
    result = fit_bottom_up(given_, options=BottomUpOptions(max_iter=300))
    assert np.isfinite(result.latent).all()
    assert np.abs(result.latent).max() < 1e3
    np.testing.assert_allclose(result.latent, given_.Phi @ result.weight + result.bias, atol=1e-9)
    if signs:
        assert (result.weight * given_.sign >= 0).all()
    if not has_bias:
        assert (result.bias == 0).all()


@pytest.mark.parametrize("signs", [True, False])
def test_at_the_end_no_addition_or_deletion_is_admissible(signs):
    given_ = problem(60, seed=4, signs=signs, shared=not signs)
    result = fit_bottom_up(given_)
    assert result.status is Status.CONVERGED
    assert 3 <= len(result.support) < 30
    error = np.mean(result.latent.argmax(axis=1) != given_.label)
    assert error < 0.35


def test_the_shared_machine_keeps_a_basis_for_all_classes():
    result = fit_bottom_up(problem(60, seed=5, signs=False, shared=True))
    assert (result.weight[result.support] != 0).all()


@given(st.permutations(range(3)), st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_the_names_of_the_classes_mean_nothing(order, seed):
    order = np.array(order)
    given_ = problem(30, seed=seed)
    label = order[given_.label]
    other = BottomUpProblem(given_.Phi, label, 3, class_signs(label, 3))
    options = BottomUpOptions(max_iter=40)
    one, two = fit_bottom_up(given_, options=options), fit_bottom_up(other, options=options)
    np.testing.assert_allclose(two.latent[:, order], one.latent, atol=1e-6)


def test_duplicate_and_empty_columns():
    given_ = problem(30, seed=6)
    Phi = np.hstack([given_.Phi, given_.Phi[:, :5], np.zeros((30, 2))])
    sign = np.vstack([given_.sign, given_.sign[:5], np.ones((2, 3))])
    result = fit_bottom_up(BottomUpProblem(Phi, given_.label, 3, sign))
    assert np.isfinite(result.latent).all()
    assert not result.weight[35:].any()


def test_bad_arguments_are_named():
    given_ = problem()
    with pytest.raises(ValueError, match="shared precisions need free weights"):
        BottomUpProblem(given_.Phi, given_.label, 3, given_.sign, shared=True)
    with pytest.raises(ValueError, match="max_iter=0 must be at least 1"):
        BottomUpOptions(max_iter=0)
    with pytest.raises(ValueError, match="tol=0 must be positive"):
        BottomUpOptions(tol=0)


@pytest.mark.slow
def test_no_divergence_in_200_fits(data_folder):
    """mPCVM2 over real sets and widths of 1/4 to 4 times the root of the number of features."""
    from sklearn.datasets import load_iris, load_wine

    from pcvm_pymc.experiments.datasets import load

    def real(name):
        loaded = load(name, folder=data_folder)
        known = ~np.isnan(loaded.X).any(axis=1)
        return loaded.X[known], loaded.y[known]

    sets = [load_iris(return_X_y=True), load_wine(return_X_y=True)]
    sets += [real(name) for name in ("glass", "wisconsin_original", "crabs")]
    fits = 0
    for inputs, y in sets:
        label = np.unique(y, return_inverse=True)[1]
        X = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
        for factor in np.geomspace(0.25, 4, 8):
            for seed in range(5):
                rows = np.random.default_rng(seed).permutation(len(X))[: min(len(X), 250)]
                n_classes = label.max() + 1
                Phi = rbf(squared_distances(X[rows], X[rows]), factor * np.sqrt(X.shape[1]))
                given_ = BottomUpProblem(
                    Phi, label[rows], n_classes, class_signs(label[rows], n_classes)
                )
                result = fit_bottom_up(given_)
                fits += 1
                assert np.isfinite(result.latent).all()
                assert np.abs(result.latent).max() < 1e3
                assert np.mean(result.latent.argmax(axis=1) != label[rows]) < 0.6
    assert fits == 200
