"""The fast RVM's bookkeeping against direct construction; candidate columns, in memory or streamed."""

import tracemalloc
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import blobs, fixed_rng, refused
from random_problems import case, state_at

from pcvm_pymc import Status
from pcvm_pymc.core.design import ArrayRows, StreamedDesign
from pcvm_pymc.core.evidence import EvidenceOptions, EvidenceProblem, columns, posterior, rank_one
from pcvm_pymc.core.evidence.active_set import gains, leave_one_out, scanned
from pcvm_pymc.core.evidence.columns import ComputedBases, DenseColumns
from pcvm_pymc.core.evidence.relevance import fit_batch, fit_rvm, fit_sequential
from pcvm_pymc.core.pieces.kernels import RBF, FunctionKernel, LinearSpline
from pcvm_pymc.core.pieces.likelihoods import Logit, Normal, Probit, StudentT
from pcvm_pymc.core.problem import ObservedRows

NOISE, SEARCH = 0.3, "pcvm_pymc.core.evidence.relevance"
LINKS = {each.name: each for each in (Logit(), Probit())}


def problem(n=30, m=12, seed=0):
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(n, m))
    design /= np.linalg.norm(design, axis=0)
    return design, 3 * design @ rng.normal(size=m) + NOISE * rng.normal(size=n)


def state_with(design, target, index, alpha, likelihood=None):
    index, alpha = np.asarray(index, dtype=np.int64), np.asarray(alpha, dtype=float)
    columns, mean = DenseColumns(design, None), np.zeros(len(index))
    return scanned(columns, ObservedRows(likelihood or Normal(NOISE), target), (index, alpha, mean))


def left_out(state):
    return leave_one_out(state.model, state.covariance.diagonal(), state.S, state.Q)


def noisy_sine(n=80, seed=0, noise=0.2):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-5, 5, (n, 1))
    return RBF(1.5)(x, x), np.sin(x[:, 0]) + noise * rng.normal(size=n), x


@given(st.integers(0, 10_000), st.integers(0, 6), st.sampled_from([*LINKS.values(), Normal(NOISE)]))
@settings(max_examples=75)
def test_s_and_q_are_those_of_c_without_the_basis(seed, m, likelihood):
    """C is the covariance of the targets, under a link of Laplace's working targets."""
    design, target = problem(seed=seed)
    is_normal, index = likelihood.targets == "numbers", np.arange(m) * 2 % 11
    alpha = 10.0 ** np.random.default_rng(seed).uniform(-1, 2, m)
    alpha[1:2] = 1e12  # as good as outside
    label, tolerance = (target, 1e-9) if is_normal else (np.sign(target), 1e-6)
    s, q = left_out(state_with(design, label, index, alpha, likelihood))
    end = posterior(design[:, index], alpha, ObservedRows(likelihood, label))
    working = target if is_normal else end.latent + end.score / end.curvature
    for j in range(design.shape[1]):
        others = index != j
        Phi = design[:, index[others]]
        C = np.diag(1 / end.curvature) + (Phi / alpha[others]) @ Phi.T
        pull = np.linalg.solve(C, design[:, j])
        assert s[j] == pytest.approx(design[:, j] @ pull, rel=1e-9 if is_normal else 1e-8)
        assert q[j] == pytest.approx(pull @ working, rel=tolerance, abs=tolerance)


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_gain_is_the_change_of_evidence(seed):
    """Of each kind of change, and no other precision gains more."""
    design, target = problem(seed=seed)
    index, alpha = [0, 5, 7], [0.3, 50.0, 2.0]
    state = state_with(design, target, index, alpha)
    gain, best = gains(state)
    for column in range(design.shape[1]):
        precisions = dict(zip(index, alpha, strict=True))

        def evidence(value, column=column, precisions=precisions):
            new = {**precisions, column: value}
            new = {k: v for k, v in new.items() if np.isfinite(v)}
            precision = np.array(list(new.values()))
            rows = ObservedRows(Normal(NOISE), target)
            return posterior(design[:, list(new)], precision, rows).log_evidence

        assert gain[column] == pytest.approx(evidence(best[column]) - state.log_evidence, abs=1e-8)
        if np.isfinite(best[column]):
            nearby = (1.1 * best[column], best[column] / 1.1)
            assert evidence(best[column]) >= max(map(evidence, nearby))


@pytest.mark.parametrize("period", [1, 7, 50, 10_000])
def test_refreshes_do_not_change_the_end(period):
    Phi, target, _ = noisy_sine()
    fit = fit_sequential(EvidenceProblem(Phi, target), EvidenceOptions(refresh_period=period))
    plain = fit_sequential(EvidenceProblem(Phi, target))
    np.testing.assert_array_equal(fit.active, plain.active)
    assert fit.log_evidence == pytest.approx(plain.log_evidence, abs=1e-6)


@pytest.mark.fixed_seeds  # a seed that ends so
def test_a_rest_below_the_best_state_is_no_convergence():
    problem = EvidenceProblem(case(2266).Phi, 2.0 * case(2266).label - 1.0, "probit")
    fit = fit_sequential(problem)
    last = fit.trace.log_evidence
    assert last[-1] < fit.log_evidence - 0.02
    assert len(last) - last.argmax() < EvidenceOptions().patience
    assert fit.status is Status.BEST_OF_CYCLE
    assert gains(state_at(problem, fit))[0].max() > EvidenceOptions().tol


def test_a_cycle_is_stopped(monkeypatch):
    """Gains that never end: the search stops after `patience` steps and returns the best state."""
    X, label = blobs(40, seed=4)

    def to_and_fro(*arguments):
        _, swept, m = arguments[:3]
        if m < 3:
            return rank_one.change_precisions(*arguments)
        first = swept.members[0]
        swept.alpha[first] = 1.0 if swept.alpha[first] > 1.0 else 2.0
        return m, 1, False

    monkeypatch.setattr(f"{SEARCH}.change_precisions", to_and_fro)
    problem = EvidenceProblem(RBF(0.8)(X, X), label, "logit")
    fit = fit_sequential(problem, EvidenceOptions(patience=10))
    assert fit.status is Status.BEST_OF_CYCLE
    last = fit.trace.log_evidence
    assert fit.log_evidence == pytest.approx(last.max(), abs=1e-7)
    assert len(last) - 1 - last.argmax() == 10


def test_a_column_that_comes_and_goes_leaves_nothing_behind():
    design, target = problem()
    gram, change = design.T @ design, rank_one._change
    outside = np.full(12, np.inf), np.zeros((12, 12)), gram.diagonal().copy(), target @ design
    swept = rank_one.Swept(*outside, np.zeros(12, dtype=np.int64))
    assert change(gram, 1.0, swept, change(gram, 1.0, swept, 0, 3, 0.5), 8, 0.7) == 2
    before = swept.S.copy(), swept.Q.copy()
    assert change(gram, 1.0, swept, change(gram, 1.0, swept, 2, 5, 0.3), 5, np.inf) == 2
    np.testing.assert_allclose((swept.S, swept.Q), before, rtol=1e-12)
    gain, best = gains(state_with(design, target, [3, 8], [0.5, 0.7], Normal(1.0)))
    found, at = rank_one._best_change(swept), gain.argmax()
    assert found == pytest.approx((at, best[at], gain[at]))


@dataclass(frozen=True)
class Recomputed(Normal):
    """A normal likelihood that does not say that its curvature is constant."""

    name: ClassVar[str] = "normal"
    is_quadratic: ClassVar[bool] = False


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [np.nan, 0.2])
def test_the_search_that_computes_all_anew_ends_where_rank_one_steps_do(seed, noise):
    Phi, target, _ = noisy_sine(seed=seed)
    options = EvidenceOptions(tol=1e-6)
    plain = fit_sequential(EvidenceProblem(Phi, target, Normal(noise)), options)
    anew = fit_sequential(EvidenceProblem(Phi, target, Recomputed(noise)), options)
    np.testing.assert_array_equal(anew.active, plain.active)
    assert anew.log_evidence == pytest.approx(plain.log_evidence, abs=1e-3)
    assert anew.noise == pytest.approx(plain.noise, rel=1e-3)
    np.testing.assert_allclose(anew.latent, plain.latent, atol=1e-3)
    if np.isnan(noise):
        first = int(np.flatnonzero(anew.trace.noise != anew.trace.noise[0])[0])
        known = fit_sequential(EvidenceProblem(Phi, target, Normal(anew.trace.noise[0])), options)
        assert anew.trace.log_evidence[first - 1] == pytest.approx(known.log_evidence, abs=1e-3)
        assert (np.diff(np.flatnonzero(np.diff(anew.trace.noise))) <= options.noise_period).all()


def linear_classes(seed, n=100, d=20, width=20.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    label = np.where(X[:, 0] - X[:, 1] + 0.3 * rng.normal(size=n) > 0, 1.0, -1.0)
    return RBF(width)(X, X), label


@pytest.mark.parametrize("seed", range(3))
def test_wide_bases_that_gain_together_alone_are_found(seed, monkeypatch):
    Phi, label = linear_classes(seed)
    problem = EvidenceProblem(Phi, label, "logit")
    found = fit_sequential(problem)
    monkeypatch.setattr(f"{SEARCH}._TRAPPED", -1)
    plain = fit_sequential(problem)  # from the empty model alone
    assert np.count_nonzero(plain.weight) <= 1
    assert plain.log_evidence < 100 * np.log(0.5) + 5
    assert found.log_evidence > plain.log_evidence + 20
    assert np.mean(np.sign(found.latent) != label) < 0.1
    assert found.log_evidence >= fit_batch(problem).log_evidence - 3


@given(st.integers(0, 2**32 - 1), st.floats(0.3, 30.0))
def test_a_second_beginning_never_ends_lower(seed, width):
    Phi, label = linear_classes(seed, n=30, d=3, width=width)
    problem = EvidenceProblem(Phi, label, "probit")
    found = fit_sequential(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{SEARCH}._TRAPPED", -1)
        assert found.log_evidence >= fit_sequential(problem).log_evidence


def test_the_next_noise_is_that_of_eq_8():
    rng = np.random.default_rng(5)
    Phi, target, alpha = rng.normal(size=(20, 3)), rng.normal(size=20), rng.exponential(size=3)
    gram, products = Phi.T @ Phi, Phi.T @ target
    covariance = np.linalg.inv(np.diag(alpha) + 4.0 * gram)
    weight, variance = 4.0 * covariance @ products, np.diag(covariance)
    quadratic = rank_one.Quadratic(Phi.T, gram, products, target @ target, 20.0)
    swept = rank_one.Swept(alpha, np.zeros((3, 3)), -variance, weight, np.arange(3))
    left, free = np.sum((target - Phi @ weight) ** 2), 20 - np.sum(1 - alpha * variance)
    assert rank_one._next_noise(quadratic, swept, 3, 0.01) == pytest.approx(np.sqrt(left / free))
    assert rank_one._next_noise(quadratic, swept, 3, 9.0) == 9.0


@pytest.mark.fixed_seeds  # a seed whose noise once ended at 1e27
def test_wide_bases_whose_rounding_tells_end_where_nothing_gains():
    """120 rows in one dimension under a width of four: all columns came in, and the noise ended at 1e27."""
    rng = np.random.default_rng(88)
    x = rng.normal(size=(120, 1))
    y = np.sin(2 * x[:, 0]) + 0.01 * rng.normal(size=120)
    Phi = RBF(4.0)(x, x)
    fit = fit_sequential(EvidenceProblem(Phi, y, "normal", bias=False))
    assert fit.converged
    assert fit.noise < 0.05
    assert len(fit.active) < 40
    # weights of 3e7: changing the columns by one rounding moves the log evidence by up to 0.6 at the end
    assert fit.log_evidence >= fit.trace.log_evidence.max() - 2.0
    for seed in (1, 2, 4):  # updates alone would lose their digits
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(60, 1))
        y = np.sin(2 * x[:, 0]) + 1e-4 * rng.normal(size=60)
        known = EvidenceProblem(RBF(2.0)(x, x), y, "normal", bias=False)
        assert (np.diff(fit_sequential(known).trace.log_evidence) > -1e-3).all()


# --- columns of unit norm, in memory or streamed ---------------------------------------------------

LIKELIHOODS = {"normal": "normal", "logit": "logit", "probit": "probit", "student": StudentT(4.0)}


def data(n, seed, d=2):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] ** 2 - 1 + 0.4 * rng.normal(size=n)


def both(X, target, likelihood, kernel, limit=2e6, **more):
    """Return the problem with its bases in memory, and with its bases streamed."""
    bases = kernel(X, X), ComputedBases(X, X, kernel, limit)
    return [EvidenceProblem(each, target, likelihood, **more) for each in bases]


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


@pytest.mark.parametrize("size", [1e-110, 1e110, 1e-170])
def test_columns_of_any_size_change_nothing_until_they_count_as_zeros(size):
    rng = np.random.default_rng(2)
    Phi = rng.normal(size=(60, 9))
    target = Phi[:, 2] / np.abs(Phi[:, 2]).max() + 0.1 * rng.normal(size=60)
    plain = fit_rvm(EvidenceProblem(Phi * (np.arange(9) != 2) if size == 1e-170 else Phi, target))
    Phi[:, 2] *= size
    fit = fit_rvm(EvidenceProblem(Phi, target))
    assert fit.log_evidence == pytest.approx(plain.log_evidence, abs=1e-6)
    assert list(fit.active) == list(plain.active)
    assert fit.weight[2] * size == pytest.approx(plain.weight[2], rel=1e-6)
    assert np.isfinite(fit.covariance).all()


@pytest.mark.parametrize("weight", [np.full(50, 2.0), 1.0 + np.arange(50) % 3])
def test_columns_have_unit_norm_or_are_zero(weight):
    """And products with them are those of the columns taken."""
    Phi = np.random.default_rng(0).normal(size=(50, 6)) * [0.1, 1.0, 0.0, 1e-3, 5.0, 1.0]
    kernel = FunctionKernel(lambda X, Z, w: Phi[X.astype(int), Z.astype(int).T])
    bases = ComputedBases(np.arange(50.0)[:, None], np.arange(6.0)[:, None], kernel, 1e6)
    left, every, own = Phi[:, 4:], np.arange(7), np.linalg.norm(Phi, axis=0)
    unit = np.column_stack([np.full(50, 50**-0.5), Phi / np.where(own > 0.0, own, 1.0)])
    for each in DenseColumns(Phi, np.ones(50)), columns.StreamedColumns(bases, True):
        np.testing.assert_allclose(each.take(every[[3, 0, 2]]), unit[:, [3, 0, 2]], atol=1e-15)
        U, square = each.products(left, weight, every)
        np.testing.assert_allclose(U, left.T @ unit, atol=1e-12)
        np.testing.assert_allclose(square, weight @ unit**2, rtol=1e-12)


def test_s_keeps_its_digits_next_to_a_column_of_the_model():
    """Outside the model and almost equal to a free column within: what is left of it, not rounding."""
    rng = np.random.default_rng(0)
    Phi = rng.normal(size=(40, 140))
    Phi[:, 1] = Phi[:, 0] + 1e-6 * rng.normal(size=40)
    target, unit = rng.normal(size=40), Phi / np.linalg.norm(Phi, axis=0)
    left = unit[:, 1] - unit[:, 0] * (unit[:, 0] @ unit[:, 1])
    at = np.array([0]), np.array([1e-9]), np.zeros(1)
    found = scanned(DenseColumns(Phi, None), rows := ObservedRows(Normal(1.0), target), at)
    assert found.S[1] == pytest.approx(left @ left + 1e-9, rel=1e-3)
    both = unit[:, :2]
    upper, lower = posterior(both, np.full(2, 1e-9), rows).orthogonal(both)
    np.testing.assert_allclose(upper.T @ upper + lower.T @ lower, np.eye(2), atol=1e-12)


@given(st.integers(0, 10_000), st.sampled_from(sorted(LIKELIHOODS)), st.booleans(), st.booleans())
@settings(max_examples=20)
def test_streamed_bases_change_nothing(seed, name, bias, few):
    rng = np.random.default_rng(seed)
    X, target = data(int(rng.integers(30, 50)), seed)
    if name in {"logit", "probit"}:
        target = np.where(target > 0, 1.0, -1.0)
    kernel = RBF(float(rng.uniform(0.7, 2.0)))
    problems = both(X, target, LIKELIHOODS[name], kernel, limit=2e5 + 100.0 * seed, bias=bias)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_ROWS", 7 if few else 2048)
        dense, other = (fit_rvm(each, options=EvidenceOptions(max_iter=150)) for each in problems)
    assert_same(dense, other)


SQUARE = FunctionKernel(lambda X, Z, w: 1e-4 * (X @ Z.T) ** 2)


@pytest.mark.parametrize("kernel", [LinearSpline(), SQUARE])
def test_any_kernel_and_weighted_rows(kernel):
    X, target = data(50, 3)
    label, weight = np.where(target > 0, 1.0, -1.0), 1.0 + np.arange(50) % 3
    dense, other = map(fit_rvm, both(X, label, Logit(), kernel, row_weight=weight))
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


def elsewhere_and_whole(X, label, centres, width, name, **more):
    """Return the fits to rows that a design reads in chunks, and to basis functions in memory."""
    design = StreamedDesign(ArrayRows(X, label, 17, n_jobs=2), centres, RBF(width))
    whole = EvidenceProblem(RBF(width)(X, centres), label, name, **more)
    return fit_rvm(EvidenceProblem(design, np.empty(0), name, **more)), fit_rvm(whole)


@pytest.mark.parametrize("name", ["logit", "probit"])
@pytest.mark.parametrize("bias", [False, True])
def test_rows_that_lie_elsewhere_change_nothing(name, bias):
    """A centre is far from all rows."""
    rng = fixed_rng(7)
    X = rng.normal(size=(100, 2))
    label = np.where(X[:, 0] - X[:, 1] + 0.3 * rng.normal(size=100) > 0, 1.0, -1.0)
    centres = np.vstack([X[:70], X[:1] + 1e3])
    elsewhere, whole = elsewhere_and_whole(X, label, centres, 0.8, name, bias=bias)
    np.testing.assert_array_equal(elsewhere.active, whole.active)
    np.testing.assert_allclose(elsewhere.weight, whole.weight, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(elsewhere.covariance, whole.covariance, rtol=1e-6, atol=1e-9)
    assert elsewhere.bias == pytest.approx(whole.bias, rel=1e-6)
    assert elsewhere.log_evidence == pytest.approx(whole.log_evidence, abs=1e-9)
    assert elsewhere.latent.size == 0


def test_wide_bases_of_rows_that_lie_elsewhere_are_found_too():
    X = fixed_rng(7).normal(size=(100, 20))
    label = np.where(X[:, 0] > X[:, 1], 1.0, -1.0)
    elsewhere, whole = elsewhere_and_whole(X, label, X[:70], 20.0, "logit")
    assert len(elsewhere.active) > 2  # a search from the empty model alone ends with one or none
    assert elsewhere.log_evidence == pytest.approx(whole.log_evidence, abs=0.1)


def test_targets_of_rows_that_lie_elsewhere_are_labels():
    design = StreamedDesign(ArrayRows(np.zeros((5, 1)), np.zeros(5), 2), np.zeros((1, 1)), RBF(1.0))
    refused("need labels; found likelihood='normal'", EvidenceProblem, design, np.empty(0))


def test_what_streamed_bases_cannot_do_is_refused():
    X, target = data(60, 0)
    problem = EvidenceProblem(ComputedBases(X, X, RBF(1.0), 1e6), target)
    refused("method='batch' needs all basis functions", fit_rvm, problem, method="batch")
    words = r"memory_limit=1e\+05 bytes is too small for 60 rows.*needed at least 1.26e\+05"
    refused(words, ComputedBases, X, X, RBF(1.0), 1e5)
    ComputedBases(X, X, RBF(1.0), ComputedBases.least_bytes(60))
