"""The examples in the docstrings run."""

import doctest
from importlib import import_module

import pytest

MODULES = ["allocators", "budget", "costs", "goals", "magnitude", "profiler", "prunable", "published"]


@pytest.mark.parametrize("name", [*(f"softprune.budget.{m}" for m in MODULES), "softprune.nn.catalog"])
def test_docstring_examples(name):
    result = doctest.testmod(import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
