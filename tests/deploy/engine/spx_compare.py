"""The kernels against the reference engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spx_files import write_net

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
