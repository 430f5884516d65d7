"""How solvers run: defaults, what is still allowed, and what lies beyond is refused by name."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from problems import refused

from pcvm_pymc import BottomUpOptions, EMOptions, EvidenceOptions

#: what a call without options does, which users and stored results rely on
BOTTOM_UP = {"max_iter": 10_000, "tol": 1e-3, "most": 1, "momentum": 0.0, "is_rough": False}
EVIDENCE = {"max_iter": 100_000, "tol": 1e-4, "noise_tol": 1e-4, "noise_starts": (0.3,)}
DEFAULTS = {
    EMOptions: {"update": "auto", "max_iter": 10_000, "tol": 1e-5, "kernel_dtype": "float64"},
    BottomUpOptions: BOTTOM_UP,
    EvidenceOptions: EVIDENCE | {"noise_period": 5, "patience": 30, "refresh_period": 50},
}
WHOLE, POSITIVE = (1, 0), (1e-300, 0.0)
BELOW_ONE = (np.nextafter(1.0, 0.0), 1.0)
#: the last value of a range that is allowed, and the first that is not
ENDS = [
    *((EMOptions(), name, ends) for name, ends in (("max_iter", WHOLE), ("tol", POSITIVE))),
    *((BottomUpOptions(), name, WHOLE) for name in ("max_iter", "most")),
    (BottomUpOptions(), "tol", POSITIVE),
    (BottomUpOptions(), "momentum", BELOW_ONE),
    *((EvidenceOptions(), f"{name}_period", WHOLE) for name in ("noise", "refresh")),
    *((EvidenceOptions(), name, WHOLE) for name in ("max_iter", "patience")),
    *((EvidenceOptions(), name, POSITIVE) for name in ("tol", "noise_tol")),
    (EvidenceOptions(), "noise_starts", ((1e-300,), (0.0,))),
]


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_defaults(kind):
    assert asdict(kind()) == DEFAULTS[kind]


@pytest.mark.parametrize(("options", "name", "ends"), ENDS, ids=range(len(ENDS)))
def test_the_end_of_a_range_is_allowed_and_what_lies_beyond_is_refused(options, name, ends):
    last, beyond = ends
    assert getattr(replace(options, **{name: last}), name) == last
    refused(f"^{name}=.*; needed ", replace, options, **{name: beyond})
