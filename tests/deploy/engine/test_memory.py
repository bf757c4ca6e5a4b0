"""What the engine holds: at most 8 bytes per nonzero and twice the peak of the activations."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from spx_compare import REST, block, sparse
from spx_files import op, write_net

from softprune.deploy.engine.conv import ConvKernel
from softprune.deploy.engine.inference import load
from softprune.deploy.engine.library import library

SAME = {"stride": [1, 1], "dilation": [1, 1], "groups": 1}


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


def test_all_layers_share_one_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 1 x 1 convolutions with so many inputs that a tile of them does not fit into the first-level cache.
    monkeypatch.setenv("SOFTPRUNE_CACHE", str(tmp_path / "cache"))
    widths = (256, 96, 320, 192)
    weights = {
        f"w{i}": sparse(np.random.default_rng(i), (outputs, inputs, 1, 1), 0.2)
        for i, (inputs, outputs) in enumerate(itertools.pairwise(widths))
    }
    ops = [
        op("conv2d", [f"v{i}"], f"v{i + 1}", weight=f"w{i}", padding=[0, 0], **SAME, **REST)
        for i in range(len(weights))
    ]
    path = write_net(tmp_path / "net.spx", {"v0": (256, 14, 14)}, ops, weights)
    for tune in (False, True):
        engine = load(path, threads=1, tune=tune)
        steps = [step for step in engine.plan(1).program.steps if step.choice is not None and step.choice.blocks > 1]
        if not tune:
            assert len(steps) > 1
        sizes = [step.kernel.scratch_size(step.choice) for step in steps if isinstance(step.kernel, ConvKernel)]
        own = {step.keep[-1].ctypes.data: step.keep[-1].size for step in steps}
        assert len(own) <= 1 and set(own.values()) <= {max(sizes, default=0)}


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
