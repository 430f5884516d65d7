"""EM in models of one's own: modes against SciPy's, what is in them, and what is refused by name."""

import numpy as np
import pytensor.tensor as pt
import pytest
from own_models import Reference, random_model
from problems import blobs

from pcvm_pymc import (
    Hyperprior,
    find_map_em,
)
from pcvm_pymc.model.terms import OwnTerms

X, LABEL = blobs(24, seed=3, fixed=True)
Y = (LABEL > 0).astype(int)
GROUP = np.arange(24) % 3
PROPER = Hyperprior(1.0, 0.3, 0.5, 0.5)
ORDINARY = 3  # of twenty random models
QUIET = {"progressbar": False}


def values_of(model, result):
    """Return a result's values in the order of `Reference`, and as a point of the model."""
    own = OwnTerms(model)
    posterior = result["posterior"].isel(chain=0, draw=0)
    point = own.point(own.first)
    for rv in model.free_RVs:
        value, transform = model.rvs_to_values[rv], model.rvs_to_transforms[rv]
        natural = posterior[rv.name].values
        if transform is not None:
            with np.errstate(divide="ignore"):
                natural = transform.forward(pt.constant(natural), *rv.owner.inputs).eval()
        point[value.name] = natural
    return own.vector(point), point


@pytest.mark.parametrize(
    "seed",
    [*range(ORDINARY), *(pytest.param(i, marks=pytest.mark.slow) for i in range(ORDINARY, 20))],
)
def test_the_mode_is_that_of_an_independent_optimiser(seed):
    model = random_model(seed)
    result = find_map_em(model, **QUIET)
    end, trace = result["optimizer_result"], result["em_trace"]["log_posterior"].values
    assert end["success"].item()
    assert (np.diff(trace) >= 0).all()
    vector, point = values_of(model, result)
    best = end["log_posterior"].item()
    assert trace[-1] == best
    assert model.compile_logp(jacobian=False)(point) == pytest.approx(best, abs=1e-8)
    reference = Reference(model)
    assert reference.best(vector) - best < 1e-6
    # other starts may end at other modes: from one that is near they end at this one, or higher
    near = np.where(
        reference.fixed, vector, vector + 1e-3 * np.sign(np.sin(np.arange(len(vector))))
    )
    assert reference.best(np.maximum(near, reference.lower)) > best - 1e-6
