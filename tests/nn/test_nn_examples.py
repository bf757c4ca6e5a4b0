"""The examples in the docstrings of recurrent layers, layers of low rank and their data run."""

import doctest
from importlib import import_module

import pytest

MODULES = (
    *("nn.fastgrnn", "nn.low_rank", "ops.recurrence.fastgrnn"),
    *("train.data.source", "train.data.speech"),
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name):
    result = doctest.testmod(import_module(f"softprune.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
