"""Networks of bytes by chance: the engine computes the bytes of the reference, whatever kernels it takes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from fuzz_seeds import write_bytes
from integer_graphs import IntegerGraph
from random_integer_graphs import random_network
from spx_compare import reference

from softprune.deploy.engine.inference import load
from softprune.deploy.format.graph import Graph
from softprune.deploy.format.spx import check_built

SEEDS, PART = 120, 20


def compare(graph: Graph, folder: Path, seed: int) -> None:
    from fuzz_case import BATCH, by_chance, compare_bytes, exact_outputs

    engine = load(write_bytes(folder, f"{seed}", graph), threads=1 + seed % 2, tune=False)
    generator = np.random.default_rng(seed)
    for batch in (BATCH, 1, 5):
        inputs = [generator.standard_normal((batch, *graph.inputs["x"][1:])).astype(np.float32)]
        found = engine(*inputs)
        outputs = list(found) if isinstance(found, tuple) else [found]
        exact = exact_outputs(graph, check_built(graph))
        assert exact is not None and exact[0]  # means beside it are not
        compare_bytes(f"network {seed}", outputs, reference(engine, inputs), exact)
        if batch == BATCH and engine.team is not None:
            again = by_chance(engine, inputs, outputs, random.Random(seed))
            compare_bytes(f"network {seed} with other kernels", again, outputs, exact)


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_bytes_are_those_of_the_reference(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + PART):
        compare(random_network(seed), tmp_path, seed)


@pytest.mark.parametrize(
    ("kernel", "padding"), [((1, 1), [0, 2]), ((1, 2), [0, 1]), ((2, 1), [1, 0]), ((2, 2), [0, 2])]
)
def test_padding_of_one_axis_is_the_zero_of_the_input(
    kernel: tuple[int, int], padding: list[int], tmp_path: Path
) -> None:
    for stride in ([1, 1], [1, 2], [2, 2]):
        net = IntegerGraph((6, 5, 4))
        value = net.add("quantize", "x", scale=0.02, zero=128)
        value = net.conv(value, (9, 6, *kernel), padding=padding, stride=stride, zero=128)
        compare(net.finish(net.add("dequantize", value, scale=1.0, zero=0)), tmp_path, seed=stride[1])
