"""What the engine holds: at most 8 bytes per nonzero and twice the peak of the activations."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from spx_compare import sparse
from spx_files import op, write_net
from test_engine import block

from softprune.deploy.runtime.engine import load
from softprune.deploy.runtime.library import library

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.mark.parametrize("name", ["mobilenetv1/str-89.01", pytest.param("resnet50/str-90.23", marks=pytest.mark.slow)])
def test_networks_of_the_paper(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch", reason="makes the network")
    from make_spx import make_spx

    memory = load(make_spx(name, tmp_path / "net.spx", size=64), threads=1, tune=False).memory()
    assert memory.nonzeros > 400_000
    assert 4 * memory.nonzeros < memory.tables
    assert memory.activations < memory.buffers
    assert memory.total <= 8 * memory.nonzeros + 2 * memory.activations


def test_the_account_of_a_small_network(tmp_path: Path) -> None:
    weights = {"a": sparse(np.random.default_rng(0), (500, 300), 0.1), "b": sparse(np.random.default_rng(1), (20, 500))}
    ops = [
        op("linear", ["x"], "a", weight="a", bias=None, activation=None, residual=None),
        op("linear", ["a"], "y", weight="b", bias=None, activation=None, residual=None),
    ]
    engine = load(write_net(tmp_path / "net.spx", {"x": (300,)}, ops, weights), threads=1, tune=False)
    memory = engine.memory()
    assert memory.nonzeros == sum(np.count_nonzero(weight) for weight in weights.values())
    assert memory.activations == 4 * (300 + 500)  # the second layer has 500 and 20
    assert memory.total == memory.tables + memory.buffers
    assert engine.memory(5).activations == 5 * memory.activations


def test_tables_of_choices_that_lost_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTPRUNE_CACHE", str(tmp_path / "cache"))
    path = block(tmp_path)
    measured, remembered = load(path, threads=1), load(path, threads=1)
    measured(np.zeros((1, 3, 23, 23), np.float32))
    assert remembered.memory().tables <= 1.2 * measured.memory().tables


def test_the_reference_keeps_no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTPRUNE_KERNELS", "none")
    library.cache_clear()
    try:
        with pytest.warns(UserWarning, match="reference"):
            engine = load(block(tmp_path))
        with pytest.raises(RuntimeError, match="build the kernels"):
            engine.memory()
    finally:
        monkeypatch.undo()
        library.cache_clear()
