"""Depthwise convolutions on the compiled kernels, against the reference engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from spx_compare import difference, reference, sparse
from spx_files import op, write_net

from softprune.deploy.engine.depthwise import DepthwiseKernel
from softprune.deploy.engine.execution import Executable
from softprune.deploy.engine.inference import Engine, load

CLOSE = 2e-5
PLAIN = {"bias": None, "activation": None, "residual": None}
POINT = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
SETTINGS = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Any]:
    """Depthwise layers of every kind between two convolutions of one pixel."""
    pair = lambda low, high: [draw(st.integers(low, high)), draw(st.integers(low, high))]  # noqa: E731
    kernel, dilation, padding = pair(1, 4), pair(1, 2), pair(0, 3)
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    groups = draw(st.integers(2, 6))
    return {
        "size": [n + draw(st.integers(0, 40)) for n in least],
        "shape": (groups * draw(st.integers(1, 2)), 1, *kernel),
        "density": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "batch": draw(st.integers(1, 3)),
        "threads": draw(st.integers(1, 2)),
        "bands": draw(st.integers(1, 9)),
        "fields": {
            "stride": pair(1, 3),
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "activation": draw(st.sampled_from([None, "relu", "relu6", "silu"])),
        },
    }


def network(path: Path, case: dict[str, Any], *, first: bool) -> Path:
    """A file with the layer; `first` lets it read the caller's array."""
    generator = np.random.default_rng(3)
    outputs, groups = case["shape"][0], case["fields"]["groups"]
    weights = {
        "w": sparse(generator, case["shape"], case["density"]),
        "b": generator.standard_normal(outputs).astype(np.float32),
        "p": sparse(generator, (groups, groups, 1, 1), 0.7),
        "q": sparse(generator, (5, outputs, 1, 1), 0.7),
    }
    ops = [
        op("conv2d", ["x"], "p", weight="p", **POINT, **PLAIN),
        op("conv2d", ["x" if first else "p"], "y", weight="w", bias="b", residual=None, **case["fields"]),
        op("conv2d", ["y"], "q", weight="q", **POINT, **PLAIN),
    ]
    return write_net(path / "net.spx", {"x": (groups, *case["size"])}, ops[first:], weights)


def inputs(case: dict[str, Any]) -> NDArray[np.float32]:
    shape = (case["batch"], case["fields"]["groups"], *case["size"])
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def run(engine: Engine, plan: Executable, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The output of a plan."""
    out = engine.slots(len(x))[-1]
    plan.run([x.ctypes.data, out.ctypes.data])
    return out


@SETTINGS
@given(layers(), st.booleans())
def test_every_choice_is_right(tmp_path: Path, case: dict[str, Any], first: bool) -> None:
    engine = load(network(tmp_path, case, first=first), threads=case["threads"], tune=False)
    x = inputs(case)
    wanted = reference(engine, [x])[0]
    assert difference(engine(x), wanted) < CLOSE
    program = engine.plan(len(x)).program
    kernels, team = engine._kernels, engine.team
    assert kernels is not None and team is not None
    plan = Executable(kernels, team, program, grouped=False)
    for place, step in enumerate(program.steps):
        for choice in step.kernel.choices() if isinstance(step.kernel, DepthwiseKernel) else ():
            plan.choose(place, choice)
            assert difference(run(engine, plan, x), wanted) < CLOSE, choice
    program.bands = {chain.start: case["bands"] for chain in program.chains}
    assert difference(run(engine, Executable(kernels, team, program), x), wanted) < CLOSE


def case_of(size: int, stride: int) -> dict[str, Any]:
    fields = {"stride": [stride] * 2, "padding": [1, 1], "dilation": [1, 1], "groups": 4, "activation": "relu"}
    return {"size": [size, size], "shape": (4, 1, 3, 3), "density": 1.0, "batch": 1, "fields": fields}


@pytest.mark.parametrize("stride", [1, 2])
def test_it_takes_part_in_a_wavefront_and_copies_nothing(tmp_path: Path, stride: int) -> None:
    program = load(network(tmp_path, case_of(20, stride), first=False), threads=1, tune=False).plan(1).program
    # The caller's array is copied in, the result out; nothing between the three convolutions.
    assert [step.kernel is not None for step in program.steps] == [False, True, True, True, False]
    assert sum(isinstance(step.kernel, DepthwiseKernel) for step in program.steps) == 1
    assert [len(chain) for chain in program.chains] == [3] if stride == 1 else [2]


def test_values_outside_of_the_image_do_not_leak_in(tmp_path: Path) -> None:
    case = case_of(7, 1)
    engine = load(network(tmp_path, case, first=False), threads=1, tune=False)
    x = inputs(case)
    wanted = engine(x)
    engine(np.full_like(x, np.nan))  # leaves it in every place that is not a pixel
    assert np.array_equal(engine(x), wanted)


def far_network(path: Path, far: list[int]) -> Engine:
    """A layer whose taps lie `far` from each other; the output is as large as the input."""
    case = case_of(20, 1)
    case["size"] = [3, 300]
    case["fields"] |= {"padding": far, "dilation": far}
    return load(network(path, case, first=False), threads=1, tune=False)


def test_taps_far_outside_of_the_image(tmp_path: Path) -> None:
    x = np.random.default_rng(7).standard_normal((1, 4, 3, 300)).astype(np.float32)
    # Once the outer columns of the kernel miss the image, it does not matter by how much.
    near = far_network(tmp_path, [1, 400])
    found = near(x)
    assert difference(found, reference(near, [x])[0]) < CLOSE
    assert np.array_equal(far_network(tmp_path, [1, 1 << 24])(x), found)
    with pytest.raises(ValueError, match="reaches"):
        far_network(tmp_path, [1 << 24, 1])(x)


def test_not_a_number_stays_in_its_channel(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    fields = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 3, **PLAIN}
    ops = [op("conv2d", ["x"], "y", weight="w", **fields)]
    weights = {"w": sparse(generator, (3, 1, 3, 3), 1.0)}
    engine = load(write_net(tmp_path / "net.spx", {"x": (3, 9, 9)}, ops, weights), threads=1, tune=False)
    x = np.zeros((1, 3, 9, 9), np.float32)
    x[0, 1, 0, 0] = np.nan
    found = np.isnan(engine(x)[0])
    assert found[1, :2, :2].all() and found.sum() == 4


@pytest.mark.parametrize("level", ["portable", "avx2", "avx512"])
def test_instruction_sets(tmp_path: Path, level: str) -> None:
    """Each in a process of its own, because the choice is made once."""
    script = (
        "from pathlib import Path; import test_depthwise as t\n"
        "from softprune.deploy.engine.inference import load; from spx_compare import difference, reference\n"
        "for case in (t.case_of(7, 1), t.case_of(37, 1), t.case_of(37, 2), t.case_of(8, 2)):\n"
        f"    engine = load(t.network(Path({str(tmp_path)!r}), case, first=False), threads=2, tune=False)\n"
        "    x = t.inputs(case)\n"
        "    print(difference(engine(x), reference(engine, [x])[0]))\n"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "SOFTPRUNE_KERNELS_LEVEL": level, "PYTHONPATH": paths}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert [float(line) < CLOSE for line in result.stdout.split()] == [True] * 4
