"""Arrays in, frozen dataclasses out."""

import dataclasses
import importlib
import pkgutil

from pcvm_pymc import core


def test_dataclasses_are_frozen():
    found = set()
    for each in pkgutil.walk_packages(core.__path__, f"{core.__name__}."):
        for kind in vars(importlib.import_module(each.name)).values():
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                found.add(kind)
    assert len(found) > 40
    # a chain moves its state in place
    assert {each.__name__ for each in found if not each.__dataclass_params__.frozen} == {
        "GibbsState"
    }
