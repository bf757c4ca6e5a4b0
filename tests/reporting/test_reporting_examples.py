"""The examples in the docstrings run."""

import doctest
from importlib import import_module
from pkgutil import walk_packages

import pytest

import softprune.reporting

MODULES = [found.name for found in walk_packages(softprune.reporting.__path__, "softprune.reporting.")]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def test_there_are_examples() -> None:
    found = [len(test.examples) for name in MODULES for test in doctest.DocTestFinder().find(import_module(name))]
    assert sum(found) > 20
