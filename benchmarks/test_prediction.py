"""Predictions of a sparse classifier for a million rows of 20 features, 20 vectors, two threads."""

import numpy as np

from pcvm_pymc.core.design import latent_in_blocks


def test_a_million_rows(benchmark):
    rng = np.random.default_rng(0)
    X, centres, weight = (
        rng.normal(size=(1_000_000, 20)),
        rng.normal(size=(20, 20)),
        rng.normal(size=20),
    )
    benchmark.pedantic(
        lambda: latent_in_blocks(X, centres, weight, 0.1, kernel="rbf", width=6.0, n_jobs=2),
        rounds=5,
        warmup_rounds=1,
    )
