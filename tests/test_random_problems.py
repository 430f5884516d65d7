"""Random problems: solvers end with finite numbers, never lower what they raise, and keep the sign rule."""

import pytest
import random_problems

ORDINARY = {"several classes": 25, "projection": 15, "leave-one-out": 25}


def check(name, seeds):
    solve = random_problems.SOLVERS[name]
    wrong = {seed: said for seed in seeds if (said := solve(seed))}
    assert not wrong


@pytest.mark.parametrize("name", sorted(random_problems.SOLVERS))
def test_some_random_problems(name):
    check(name, range(ORDINARY.get(name, 60)))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(random_problems.SOLVERS))
def test_10000_random_problems(name):
    check(name, range(1000, 11_000))
