"""The examples in the docstrings run."""

import doctest
from importlib import import_module

import pytest

MODULES = [
    "budget.allocate",
    "budget.budget",
    "budget.costs",
    "budget.profiler",
    "goals.goal",
    "goals.magnitude",
    "nn.catalog",
]


@pytest.mark.parametrize("name", [f"softprune.{m}" for m in MODULES])
def test_docstring_examples(name):
    result = doctest.testmod(import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
