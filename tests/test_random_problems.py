"""Random problems: solvers end with finite numbers, never lower what they raise, and keep the sign rule."""

import pytest
import random_problems

ORDINARY = {"several classes": 25, "projection": 15, "leave-one-out": 25}


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(random_problems.SOLVERS))
def test_random_problems(name, many):
    solve = random_problems.SOLVERS[name]
    seeds = range(1000, 11_000) if many else range(ORDINARY.get(name, 60))
    wrong = {seed: said for seed in seeds if (said := solve(seed))}
    assert not wrong
