"""A fixed set of the cases of fuzz_spx.py, in this process and without sanitizers."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz_mutations import MUTATIONS, Parts
from fuzz_seeds import write_seeds
from fuzz_spx import make_case
from integer_graphs import residual_network
from spx_files import op, write_net

from softprune.deploy.engine.inference import Engine, load
from softprune.deploy.format.graph import Op
from softprune.deploy.format.spx import check_built

CASES = 300


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_seeds(tmp_path_factory.mktemp("seeds"), exported=False)


def test_files_are_refused_or_run(seeds: list[Path], tmp_path: Path) -> None:
    from fuzz_case import try_file

    contents = [path.read_bytes() for path in seeds]
    stages: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(CASES):
            _, content, dice = make_case(contents, 1, number)
            path = tmp_path / f"{number}.spx"
            path.write_bytes(content)
            stages[try_file(path, dice)] += 1
    assert sum(stages.values()) == CASES
    assert stages["refused"] > CASES // 5 and stages["run"] > CASES // 4, stages


def layer(path: Path, weight: list[list[float]], **options: Any) -> Engine:
    ops = [op("linear", ["x"], "y", weight="w", bias=None, activation=None, residual=None)]
    return load(
        write_net(path / "net.spx", {"x": (2,)}, ops, {"w": np.array(weight, np.float32)}), tune=False, **options
    )


def test_where_numbers_are_finite_is_compared(tmp_path: Path) -> None:
    """Both with and without zero times infinity are right, anything else is not."""
    from fuzz_case import DifferenceError, compare_finite

    engine = layer(tmp_path, [[0.0, 2.0], [3.0, 1.0]], threads=1)
    x = np.array([[np.inf, 1.0], [1.0, 2.0]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        skipped, counted = (np.array([[first, np.inf], [4.0, 5.0]], np.float32) for first in (2.0, np.nan))
        assert compare_finite(engine, [x], {"skipped": [skipped], "counted": [counted]}) == "between"
        assert compare_finite(engine, [x], {"counted": [counted]}) == "the same"
        for row, column, value in ((0, 1, 5.0), (1, 0, np.nan)):
            wrong = skipped.copy()
            wrong[row, column] = value
            with pytest.raises(DifferenceError, match="wrong"):
                compare_finite(engine, [x], {"wrong": [wrong]})
        x[0] = 3e38
        assert compare_finite(engine, [x], {"any": [skipped]}) == "by order"


def test_networks_of_bytes_are_compared_bit_for_bit_where_they_are_exact() -> None:
    from fuzz_case import DifferenceError, compare_bytes, exact_outputs

    graph = residual_network()
    kinds = check_built(graph)
    exact = exact_outputs(graph, kinds)
    assert exact == [True, True, False]  # the last is a mean
    wanted = [np.ones((2, 3), np.float32) for _ in exact]
    near = [x * np.float32(1 + 1e-6) for x in wanted]
    compare_bytes("near", [*wanted[:2], near[2]], wanted, exact)
    for place in (0, 1):
        with pytest.raises(DifferenceError, match=r"near: .* at "):
            compare_bytes("near", [*wanted[:place], near[place], *wanted[place + 1 :]], wanted, exact)
    with pytest.raises(DifferenceError, match="differs by"):
        compare_bytes("far", [*wanted[:2], 2 * wanted[2]], wanted, exact)
    mean = graph.outputs[2]
    graph.ops.append(Op("quantize", "", [mean], "bytes", {"scale": 1.0, "zero": 0}))
    graph.ops.append(Op("dequantize", "", ["bytes"], "last", {"scale": 1.0, "zero": 0}))
    assert exact_outputs(graph, check_built(graph)) is None
    compare_bytes("anything", [2 * x for x in wanted], wanted, None)
    with pytest.raises(DifferenceError, match="shape"):
        compare_bytes("anything", [x[:1] for x in wanted], wanted, None)


def test_a_case_is_its_number(seeds: list[Path]) -> None:
    contents = [path.read_bytes() for path in seeds]
    assert make_case(contents, 3, 17)[:2] == make_case(contents, 3, 17)[:2]
    assert len({make_case(contents, 3, number)[1] for number in range(20)}) == 20


@pytest.mark.parametrize("kind", MUTATIONS)
def test_every_mutation_changes_something(seeds: list[Path], kind: str) -> None:
    dice = random.Random(5)
    contents = [Parts.of(path.read_bytes()).joined() for path in seeds]
    changed = [MUTATIONS[kind](content, dice) != content for content in contents * 4]
    assert sum(changed) > len(changed) // 2
