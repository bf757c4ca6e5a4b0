"""Values of several layouts take turns in one buffer: the zeros around images must be there each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spx_compare import difference, reference, sparse
from spx_files import op, write_net

from softprune.deploy.engine.inference import load
from softprune.deploy.engine.library import Clear

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
CHANNELS = 6


@st.composite
def networks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Layers one after the other; sizes never shrink to nothing."""
    layers = []
    for _ in range(draw(st.integers(3, 7))):
        kernel = [draw(st.integers(1, 4)), draw(st.integers(1, 4))]
        fields = {
            "stride": [draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 1, 2]))],
            "padding": [draw(st.integers(k // 2, k)) for k in kernel],
            "dilation": [1, 1],
            "groups": draw(st.sampled_from([1, 1, CHANNELS])),
            "bias": None,
            "activation": None,
            "residual": None,
        }
        layers.append({"kernel": kernel, "fields": fields})
    return layers


def network(path: Path, layers: list[dict[str, Any]], size: tuple[int, int]) -> Path:
    """A file with the layers."""
    generator = np.random.default_rng(1)
    weights, ops = {}, []
    for number, layer in enumerate(layers):
        shape = (CHANNELS, CHANNELS // layer["fields"]["groups"], *layer["kernel"])
        weights[f"w{number}"] = sparse(generator, shape, 0.8)
        ops.append(op("conv2d", [f"v{number}"], f"v{number + 1}", weight=f"w{number}", **layer["fields"]))
    return write_net(path / "net.spx", {"v0": (CHANNELS, *size)}, ops, weights)


@SETTINGS
@given(networks(), st.tuples(st.integers(1, 30), st.integers(1, 30)), st.integers(1, 3), st.integers(1, 2))
def test_nothing_is_left_of_other_values(
    tmp_path: Path, layers: list[dict[str, Any]], size: tuple[int, int], batch: int, threads: int
) -> None:
    engine = load(network(tmp_path, layers, size), threads=threads, tune=False)
    x = np.random.default_rng(2).standard_normal((batch, CHANNELS, *size)).astype(np.float32)
    engine(np.full_like(x, np.nan))
    found = engine(x)
    assert difference(found, reference(engine, [x])[0]) < 2e-5
    assert np.array_equal(engine(x), found)


def test_layouts_share_memory(tmp_path: Path) -> None:
    same = {"stride": [1, 1], "dilation": [1, 1], "groups": 1, "bias": None, "activation": "gelu", "residual": None}
    layers = [
        {"kernel": [3, 3], "fields": {**same, "padding": [1, 1]}},
        {"kernel": [1, 1], "fields": {**same, "padding": [0, 0]}},
        {"kernel": [5, 5], "fields": {**same, "padding": [2, 2]}},
        {"kernel": [1, 1], "fields": {**same, "padding": [0, 0]}},
        {"kernel": [3, 1], "fields": {**same, "padding": [1, 0]}},
    ]
    engine = load(network(tmp_path, layers, (64, 64)), threads=1, tune=False)
    program = engine.plan(1).program
    assert sum(isinstance(step.record, Clear) for step in program.steps) >= 2
    # Six values and as many layouts, of which two are needed at a time; one more buffer for the largest halo.
    value = CHANNELS * 68 * 80
    assert engine._local().builders[1].arena.floats < 4 * value
