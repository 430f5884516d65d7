"""How solvers run: defaults, what is still allowed, and what lies beyond is refused by name."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from pcvm_pymc.core.approximation import PropagationOptions
from pcvm_pymc.core.em import EMOptions
from pcvm_pymc.core.evidence import BottomUpOptions, EvidenceOptions
from pcvm_pymc.core.projection import SearchOptions

#: what a call without options does, which users and stored results rely on
DEFAULTS = {
    EMOptions: {
        "update": "auto",
        "max_iter": 10_000,
        "tol": 1e-5,
    },
    BottomUpOptions: {
        "max_iter": 1000,
        "tol": 1e-2,
        "most": 1,
        "momentum": 0.0,
        "is_rough": False,
    },
    EvidenceOptions: {
        "max_iter": 100_000,
        "tol": 1e-4,
        "noise_tol": 1e-4,
        "noise_starts": (0.3,),
        "noise_period": 5,
        "patience": 30,
        "refresh_period": 50,
    },
    PropagationOptions: {"max_iter": 1000, "tol": 1e-7, "damping": 0.7},
    SearchOptions: {"tol": 1e-6},
}
#: the last value of a range that is allowed, and the first that is not
ENDS = [
    (EMOptions(), "max_iter", 1, 0),
    (EMOptions(), "tol", 1e-300, 0.0),
    (BottomUpOptions(), "max_iter", 1, 0),
    (BottomUpOptions(), "tol", 1e-300, 0.0),
    (BottomUpOptions(), "most", 1, 0),
    (BottomUpOptions(), "momentum", np.nextafter(1.0, 0.0), 1.0),
    (EvidenceOptions(), "max_iter", 1, 0),
    (EvidenceOptions(), "noise_period", 1, 0),
    (EvidenceOptions(), "patience", 1, 0),
    (EvidenceOptions(), "refresh_period", 1, 0),
    (EvidenceOptions(), "tol", 1e-300, 0.0),
    (EvidenceOptions(), "noise_tol", 1e-300, 0.0),
    (EvidenceOptions(), "noise_starts", (1e-300,), (0.0,)),
    (PropagationOptions(), "max_iter", 1, 0),
    (PropagationOptions(), "tol", 1e-300, 0.0),
    (PropagationOptions(), "damping", 1e-300, 0.0),
    (PropagationOptions(), "damping", 1.0, np.nextafter(1.0, 2.0)),
    (SearchOptions(), "tol", 1e-300, 0.0),
]


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_defaults(kind):
    assert asdict(kind()) == DEFAULTS[kind]


@pytest.mark.parametrize(
    ("options", "name", "last", "beyond"),
    ENDS,
    ids=lambda each: type(each).__name__ if hasattr(each, "tol") else None,
)
def test_the_end_of_a_range_is_allowed_and_what_lies_beyond_is_refused(options, name, last, beyond):
    assert getattr(replace(options, **{name: last}), name) == last
    with pytest.raises(ValueError, match=f"^{name}="):
        replace(options, **{name: beyond})


@pytest.mark.parametrize("name", ["candidates", "exchanges", "max_exchanges", "l1", "backward"])
def test_what_the_search_no_longer_does_is_refused(name):
    with pytest.raises(ValueError, match=f"{name}=0 is no longer there: .* leave {name} out"):
        SearchOptions(**{name: 0})
