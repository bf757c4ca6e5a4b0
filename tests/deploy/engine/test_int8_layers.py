"""Integer networks in the engine: every byte as the reference has it, whatever the kernels, threads and batch."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from int8_networks import NETWORKS, float_readers, residual_network

from softprune.deploy.engine.execution import Executable
from softprune.deploy.engine.inference import load
from softprune.deploy.engine.library import library
from softprune.deploy.export.exporting import export, write_spx
from softprune.deploy.format.reference import run
from softprune.deploy.format.spx import read_spx

LEVELS = ("vnni512", "vnni256", "portable")


def differing(path: Path, batch: int, threads: int, *, tune: bool = False) -> list[int]:
    """How many numbers of each output are not those of the reference."""
    model = read_spx(path)
    shapes = model.graph.inputs.values()
    inputs = [np.random.default_rng(5).normal(size=(batch, *shape[1:])).astype(np.float32) for shape in shapes]
    wanted = run(model.graph.document, {name: weight.dense() for name, weight in model.weights.items()}, inputs)
    engine = load(path, threads=threads, tune=tune)
    for _ in range(2):  # what the first call leaves in the buffers must not reach the second
        found = engine(*inputs)
    found = found if isinstance(found, tuple) else (found,)
    return [int((a != b).sum()) for a, b in zip(found, wanted, strict=True)]


def written(name: str, folder: Path) -> Path:
    path = folder / "network.spx"
    write_spx(NETWORKS[name](), path)
    return path


@pytest.mark.parametrize("name", NETWORKS)
def test_every_byte_is_that_of_the_reference(name, tmp_path):
    path = written(name, tmp_path)
    for batch, threads in ((1, 1), (3, 2), (9, 1), (2, 3)):
        assert not any(differing(path, batch, threads)), (batch, threads)


@pytest.mark.parametrize("name", ["residuals", "linear", "linear, rows"])
def test_an_empty_batch_gives_nothing(name, tmp_path):
    assert not any(differing(written(name, tmp_path), 0, 2))


def test_convolutions_in_a_row_on_an_empty_batch_give_nothing(tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Conv2d(4, 5, 3, padding=1)).eval()
    engine = load(export(model, tmp_path / "two.spx", example=torch.zeros(1, 3, 6, 6)), threads=1, tune=False)
    assert engine(np.zeros((0, 3, 6, 6), np.float32)).shape == (0, 5, 6, 6)


def test_tuned_kernels_give_the_same_bytes(tmp_path):
    path = written("residuals", tmp_path)
    for batch, threads in ((1, 1), (2, 2)):
        assert not any(differing(path, batch, threads, tune=True))


def test_every_choice_of_a_kernel_gives_the_same_bytes(tmp_path):
    path = tmp_path / "network.spx"
    write_spx(residual_network(), path)
    for threads in (1, 2):
        engine = load(path, threads=threads, tune=False)
        x = np.random.default_rng(1).normal(size=(2, 3, 32, 32)).astype(np.float32)
        wanted = engine(x)
        plan = engine.plan(2)
        outputs = [np.empty_like(array) for array in wanted]
        addresses = [array.ctypes.data for array in (x, *outputs)]
        tried = 0
        for step in plan.program.steps:
            if step.kernel is None:
                continue
            for choice in step.kernel.choices():
                step.choose(choice)
                Executable(library(), engine.team, plan.program).run(addresses)
                tried += 1
                for found, right in zip(outputs, wanted, strict=True):
                    np.testing.assert_array_equal(found, right, err_msg=f"{step.path}: {asdict(choice)}")
        assert tried > 60


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("mean", {"axes": [2, 3], "keepdim": True}),
        ("mean", {"axes": [-1, 2], "keepdim": False}),
        ("mean", {"axes": [1], "keepdim": True}),
        ("adaptive_avg_pool2d", {"size": [1, 1]}),
        ("adaptive_avg_pool2d", {"size": [2, 3]}),
    ],
)
def test_means_of_bytes_are_those_of_the_floats(kind, fields, tmp_path):
    path = tmp_path / "network.spx"
    write_spx(float_readers(kind, **fields), path)
    model = read_spx(path)
    x = np.random.default_rng(5).normal(size=(3, 8, 9, 9)).astype(np.float32)
    (wanted,) = run(model.graph.document, {name: weight.dense() for name, weight in model.weights.items()}, [x])
    found = load(path, threads=2, tune=False)(x)
    assert wanted.std() > 0.1
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_engine_counts_what_it_holds(tmp_path):
    engine = load(written("residuals", tmp_path), threads=1, tune=False)
    use = engine.memory(1)
    assert use.buffers > use.activations // 8 > 0
    assert use.nonzeros == sum(weight.count() for weight in engine.model.weights.values())


@pytest.mark.parametrize("level", LEVELS)
def test_every_instruction_set_gives_the_same_bytes(level, tmp_path):
    """In a process of its own, since the instruction set is chosen when the library is loaded."""
    here = Path(__file__).resolve().parent
    code = (
        "import sys, pathlib\n"
        "from int8_networks import NETWORKS\n"
        "from test_int8_layers import differing, library, written\n"
        "print(library().facts.integer_level)\n"
        "for name in NETWORKS:\n"
        "    path = written(name, pathlib.Path(sys.argv[1]))\n"
        "    if any(differing(path, 2, 2)):\n"
        "        print(name)\n"
    )
    paths = os.pathsep.join([str(here), *sys.path])
    environment = {**os.environ, "SOFTPRUNE_INT8_LEVEL": level, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found, *wrong = done.stdout.split("\n")[:-1]
    if found != level:
        pytest.skip(f"this processor has no {level}")
    assert wrong == []
