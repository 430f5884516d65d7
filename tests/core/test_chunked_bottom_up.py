"""Searches from the bottom up with rows in chunks: the same as with all of them in memory."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcvm_pymc.core.design import ArrayRows, StreamedDesign
from pcvm_pymc.core.evidence import BottomUpOptions, EvidenceProblem, fit_bottom_up
from pcvm_pymc.core.family import class_signs
from pcvm_pymc.core.pieces.kernels import RBF
from pcvm_pymc.core.pieces.likelihoods import Logit, MultinomialProbit, Probit
from pcvm_pymc.core.pieces.priors import Hyperprior
from pcvm_pymc.core.problem import Problem

KINDS = ("PCVM", "PCVM, logit", "mPCVM2", "mRVM1")


def problem(kind, seed, bias="prior"):
    """Return a random problem, its inputs and its centres."""
    rng = np.random.default_rng(seed)
    X, width = rng.normal(size=(int(rng.integers(30, 70)), 2)), float(rng.uniform(0.8, 2.0))
    value = X[:, 0] + 0.5 * X[:, 1] ** 2 + 0.5 * rng.normal(size=len(X))
    centres = X[::2]
    Phi, prior = RBF(width)(X, centres), Hyperprior.jeffreys()
    if kind.startswith("PCVM"):
        label = np.where(value > np.median(value), 1.0, -1.0)
        piece = Logit() if kind.endswith("logit") else Probit()
        made = Problem(Phi, label, label[::2], prior, piece, bias=bias, width=width)
        return made, X, centres
    label = np.digitize(value, np.quantile(value, [0.3, 0.7]))
    sign = class_signs(label[::2], 3) if kind == "mPCVM2" else None
    given_ = {"bias": bias if sign is not None else "none", "shared": sign is None, "width": width}
    return Problem(Phi, label, sign, prior, MultinomialProbit(3), **given_), X, centres


def in_chunks(whole, X, centres, size=7, n_jobs=1):
    rows = ArrayRows(X, whole.label, size, n_jobs)
    return replace(whole, Phi=StreamedDesign(rows, centres, RBF(whole.width)), label=None)


@given(
    st.integers(0, 10_000),
    st.sampled_from(KINDS),
    st.sampled_from(["prior", "none"]),
    st.booleans(),
    st.integers(1, 2),
)
@settings(max_examples=12)
def test_chunks_end_where_all_rows_do(seed, kind, bias, weighted, n_jobs):
    whole, X, centres = problem(kind, seed, bias)
    if weighted:
        whole = whole.weighted(1.0 + np.arange(len(X)) % 3)
    options = BottomUpOptions(max_iter=40)
    wanted = fit_bottom_up(whole, options=options)
    found = fit_bottom_up(in_chunks(whole, X, centres, n_jobs=n_jobs), options=options)
    assert (found.status, found.n_iter) == (wanted.status, wanted.n_iter)
    np.testing.assert_array_equal(found.support, wanted.support)
    for name in ("weight", "bias", "log_posterior"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(wanted, name), rtol=1e-8, atol=1e-8
        )
    for name in ("log_posterior", "change"):
        np.testing.assert_allclose(
            getattr(found.trace, name)[1:], getattr(wanted.trace, name)[1:], rtol=1e-7, atol=1e-7
        )
    assert found.latent.size == 0


def test_what_rows_in_chunks_do_not_hold_is_refused():
    whole, X, centres = problem("mPCVM2", 1)
    chunks = in_chunks(whole, X, centres)
    with pytest.raises(ValueError, match=r"start of shape \(\d+, 3\) was given for rows in chunks"):
        fit_bottom_up(chunks, np.zeros((len(X), 3)))
    with pytest.raises(ValueError, match="'evidence'"):
        EvidenceProblem.of(chunks)
