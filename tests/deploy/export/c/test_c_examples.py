"""The examples in the docstrings of the C export."""

import doctest
from importlib import import_module

import pytest

MODULES = ("integer_network", "programs", "writing")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(import_module(f"softprune.deploy.export.c.{name}"))
    assert result.attempted > 0 and result.failed == 0
