"""A fixed share of architectures.py in the normal tests, and that it would see what is wrong."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch

if sys.platform != "linux":
    pytest.skip("children are forked, and their memory is limited, as Linux does it", allow_module_level=True)

import architectures
from random_networks import FAMILIES

from softprune.core.sparsifier import Sparsifier

SEED = 0
# A case of most families; recurrent layers are slow to capture.
CASES = {"mlp": 1, "tied": 0, "cnn": 1, "residual": 0, "conv1d": 0, "attention": 0}


@pytest.mark.parametrize("family", CASES)
def test_a_case_of_each_family(family, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome, finding = architectures.attempt(family, SEED, tmp_path)(CASES[family])
    assert finding is None and outcome in ("agreed", "no engine"), (outcome, finding)


def test_a_pool_that_is_larger_than_what_is_left(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome, finding = architectures.attempt("cnn", SEED, tmp_path)(0)
    assert finding is None and outcome in ("agreed", "no engine"), (outcome, finding)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_network_is_its_family_seed_and_number(family):
    one, other = (architectures.network(family, SEED, 7)[0] for _ in range(2))
    assert one.shape == other.shape and str(one.model) == str(other.model)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))
    drawn = {str(architectures.network(family, SEED, number)[0].model) for number in range(12)}
    assert len(drawn) > 6
    for number in range(12):
        made = architectures.network(family, SEED, number)[0]
        assert made.model.eval()(torch.zeros(2, *made.shape)).shape == (2, 5)


def test_a_baked_network_that_computes_something_else_is_seen(monkeypatch, tmp_path):
    bake = Sparsifier.bake

    def wrong(self):
        model = bake(self)
        with torch.no_grad():
            next(p for p in model.parameters() if p.ndim > 1)[0, 0] += 1
        return model

    monkeypatch.setattr(Sparsifier, "bake", wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome, finding = architectures.attempt("mlp", SEED, tmp_path)(CASES["mlp"])
    assert outcome == "wrong" and "bake" in finding["what"]


def test_the_help_teaches(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(Path(architectures.__file__)), "--help"])
    with pytest.raises(SystemExit):
        architectures.main()
    assert "no engine" in capsys.readouterr().out
