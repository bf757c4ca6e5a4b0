"""The examples in the docstrings run."""

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["claims", "report", "figures", "printed", "recount", "tables"])
def test_docstring_examples(name: str) -> None:
    result = doctest.testmod(import_module(f"benchmarks.paper.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
