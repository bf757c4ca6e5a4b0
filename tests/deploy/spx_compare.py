"""The kernels against the reference engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spx_files import op, write_net

from softprune.deploy.engine.inference import Engine, load
from softprune.deploy.format.reference import run


def sparse(generator: np.random.Generator, shape: Sequence[int], density: float = 0.3) -> NDArray[np.float32]:
    """Random weights, most of them zero."""
    values = generator.standard_normal(shape)
    return (values * (generator.random(shape) < density)).astype(np.float32)


def reference(engine: Engine, inputs: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    """What the reference engine makes of the same file."""
    weights = {name: weight.dense() for name, weight in engine.model.weights.items()}
    return run(engine.model.graph.document, weights, inputs)


def difference(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """The largest difference, as a share of the largest number."""
    assert found.shape == wanted.shape, f"{found.shape} instead of {wanted.shape}"
    if not wanted.size:
        return 0.0
    return float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max()))


def worst(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    ops: Sequence[Mapping[str, Any]],
    weights: Mapping[str, NDArray[np.float32]] | None = None,
    *,
    batch: int = 2,
    threads: int = 1,
) -> float:
    """The largest difference between kernels and reference over all outputs of a small network."""
    engine = load(write_net(path / "net.spx", shapes, ops, weights or {}), threads=threads, tune=False)
    generator = np.random.default_rng(7)
    inputs = [generator.standard_normal((batch, *shape)).astype(np.float32) for shape in shapes.values()]
    found = engine(*inputs)
    outputs = found if isinstance(found, tuple) else (found,)
    return max(difference(a, b) for a, b in zip(outputs, reference(engine, inputs), strict=True))


REST = {"bias": None, "activation": "relu", "residual": None}


def block(tmp_path: Path, size: int = 23) -> Path:
    """A bottleneck with a residual behind a stride, then a classifier."""
    generator = np.random.default_rng(5)
    shapes = {"a": (16, 3, 3, 3), "b": (24, 16, 1, 1), "c": (24, 24, 3, 3), "d": (16, 24, 1, 1), "e": (10, 16)}
    weights = {name: sparse(generator, shape, 0.3) for name, shape in shapes.items()}
    fields = {"dilation": [1, 1], "groups": 1}
    same = {"stride": [1, 1], **fields}
    ops = [
        op("conv2d", ["x"], "a", weight="a", stride=[2, 2], padding=[1, 1], **fields, **REST),
        op("conv2d", ["a"], "b", weight="b", padding=[0, 0], **same, **REST),
        op("conv2d", ["b"], "c", weight="c", padding=[1, 1], **same, **REST),
        op("conv2d", ["c"], "d", weight="d", padding=[0, 0], **same, **{**REST, "residual": "a"}),
        op("mean", ["d"], "m", axes=[2, 3], keepdim=False),
        op("linear", ["m"], "y", weight="e", **{**REST, "activation": None}),
    ]
    return write_net(tmp_path / "block.spx", {"x": (3, size, size)}, ops, weights)


def images(batch: int, size: int = 23) -> NDArray[np.float32]:
    return np.random.default_rng(batch).standard_normal((batch, 3, size, size)).astype(np.float32)


def close(engine: Engine, batch: int, size: int = 23) -> bool:
    x = images(batch, size)
    return difference(engine(x), reference(engine, [x])[0]) < 2e-5
