"""The examples in the docstrings run."""

import doctest
from importlib import import_module

import pytest

MODULES = ["follow", "naming", "page", "reading", "sizes", "summary", "tabular", "svg.plot", "svg.scale"]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    result = doctest.testmod(import_module(f"softprune.reporting.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
