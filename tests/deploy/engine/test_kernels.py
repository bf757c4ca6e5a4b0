"""Every operation of the format on the compiled kernels, against the reference engine."""

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
from spx_compare import sparse, worst
from spx_files import op

from softprune.deploy.engine import linear
from softprune.deploy.engine.library import library
from softprune.deploy.engine.linear import likely_kind

CLOSE = 2e-5
PLAIN = {"bias": None, "activation": None, "residual": None}
SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """Convolutions of every kind on small images."""
    pair = lambda low, high: [draw(st.integers(low, high)), draw(st.integers(low, high))]  # noqa: E731
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    kernel, dilation, padding = pair(1, 4), pair(1, 2), pair(0, 3)
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    return {
        "size": [n + draw(st.integers(0, 20)) for n in least],
        "inputs": groups * draw(st.integers(1, 5)),
        "outputs": groups * draw(st.integers(1, 8)),
        "kernel": kernel,
        "density": draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
        "batch": draw(st.integers(1, 3)),
        "threads": draw(st.integers(1, 2)),
        "residual": draw(st.booleans()),
        "fields": {
            "stride": pair(1, 3),
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "activation": draw(st.sampled_from([None, "relu", "relu6", "hardswish", "silu", "gelu", "tanh"])),
        },
    }


@SETTINGS
@given(convolutions())
def test_convolution(tmp_path: Path, case: dict[str, Any]) -> None:
    generator, fields = random(), case["fields"]
    shape = (case["outputs"], case["inputs"] // fields["groups"], *case["kernel"])
    weights = {
        "w": sparse(generator, shape, case["density"]),
        "b": generator.standard_normal(shape[0]).astype(np.float32),
        "v": sparse(generator, shape, case["density"]),
    }
    ops = [op("conv2d", ["x"], "y", weight="w", bias="b", residual=None, **fields)]
    if case["residual"]:
        ops.append(op("conv2d", ["x"], "z", weight="v", bias=None, residual="y", **fields))
    assert worst(tmp_path, {"x": (case["inputs"], *case["size"])}, ops, weights, batch=case["batch"]) < CLOSE


@pytest.mark.parametrize("width", [1, 2, 5, 7, 8, 15, 16])
def test_rows_that_share_a_vector_keep_their_halo(tmp_path: Path, width: int) -> None:
    fields = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, **PLAIN}
    ops = [op("conv2d", ["x"], "a", weight="w", **fields), op("conv2d", ["a"], "y", weight="v", **fields)]
    weights = {"w": sparse(random(), (6, 5, 3, 3), 0.9), "v": sparse(random(1), (4, 6, 3, 3), 0.9)}
    assert worst(tmp_path, {"x": (5, 6, width)}, ops, weights) < CLOSE


def test_planes_of_odd_and_even_images_do_not_mix(tmp_path: Path) -> None:
    generator = random()
    fields = {"stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "groups": 1, **PLAIN}
    ops = [
        op("conv2d", ["x"], "a", weight="w", **fields),
        op("conv2d", ["z"], "b", weight="w", **fields),
        op("add", ["a", "b"], "y"),
    ]
    weights = {"w": sparse(generator, (6, 8, 3, 3), 0.9)}
    assert worst(tmp_path, {"x": (8, 16, 16), "z": (8, 15, 15)}, ops, weights) < CLOSE


@SETTINGS
@given(st.data())
def test_transposed_convolution(tmp_path: Path, data: st.DataObject) -> None:
    draw = data.draw
    groups, kernel, dilation = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    stride = draw(st.integers(1, 3))
    padding = draw(st.integers(0, dilation * (kernel - 1)))
    size = draw(st.integers(1 + 2 * padding, 10 + 2 * padding))
    fields = {
        "stride": [stride, stride],
        "padding": [padding, padding],
        "dilation": [dilation, dilation],
        "output_padding": [draw(st.integers(0, max(stride, dilation) - 1))] * 2,
        "groups": groups,
    }
    weights = {"w": sparse(random(), (groups * 3, 5, kernel, kernel), 0.5)}
    ops = [op("conv_transpose2d", ["x"], "y", weight="w", **fields, **PLAIN)]
    assert worst(tmp_path, {"x": (groups * 3, size, size)}, ops, weights) < CLOSE


def test_transposed_convolution_with_more_padding_than_kernel(tmp_path: Path) -> None:
    fields = {"stride": [2, 2], "padding": [3, 3], "dilation": [1, 1], "output_padding": [0, 0], "groups": 1}
    weights = {"w": sparse(random(), (3, 4, 2, 2), 0.9)}
    ops = [op("conv_transpose2d", ["x"], "y", weight="w", **fields, **PLAIN)]
    assert worst(tmp_path, {"x": (3, 8, 9)}, ops, weights) < CLOSE


@SETTINGS
@given(
    st.lists(st.integers(1, 5), min_size=0, max_size=3),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from([None, "relu", "gelu"]),
    st.booleans(),
    st.sampled_from(["dense", "index", "masks", "chosen"]),
)
def test_linear(
    tmp_path: Path,
    lead: list[int],
    inputs: int,
    outputs: int,
    density: float,
    activation: str | None,
    residual: bool,
    kind: str,
) -> None:
    kernels = library()
    if kind == "masks" and (kernels is None or not kernels.facts.expands):
        kind = "index"
    chosen = likely_kind if kind == "chosen" else lambda *_, **__: kind
    weights = {
        "w": sparse(random(), (outputs, inputs), density),
        "v": sparse(random(1), (outputs, inputs), density),
        "b": random(2).standard_normal(outputs).astype(np.float32),
    }
    ops = [op("linear", ["x"], "y", weight="w", bias="b", activation=activation, residual=None)]
    if residual:
        ops.append(op("linear", ["x"], "z", weight="v", bias=None, activation=activation, residual="y"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "likely_kind", chosen)
        assert worst(tmp_path, {"x": (*lead, inputs)}, ops, weights) < CLOSE


@pytest.mark.parametrize(
    "density, size, expands, kind",
    [
        (0.01, 1 << 12, True, "index"),
        (0.2, 1 << 12, True, "dense"),
        (0.2, 1 << 20, True, "masks"),
        (0.9, 1 << 20, True, "dense"),
        (0.25, 1 << 20, False, "index"),
        (0.5, 1 << 20, False, "dense"),
    ],
)
def test_the_kernel_of_a_linear_layer_follows_its_zeros(density: float, size: int, expands: bool, kind: str) -> None:
    assert likely_kind(int(density * size), size, expands=expands) == kind


@SETTINGS
@given(st.data())
def test_pools(tmp_path: Path, data: st.DataObject) -> None:
    draw = data.draw
    kernel = [draw(st.integers(1, 4)), draw(st.integers(1, 4))]
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    stride = [draw(st.integers(1, 3)), draw(st.integers(1, 3))]
    window = {"kernel": kernel, "padding": padding, "stride": stride, "ceil_mode": draw(st.booleans())}
    size = (draw(st.integers(8, 20)), draw(st.integers(8, 20)))
    dilation = [draw(st.integers(1, 2)), draw(st.integers(1, 2))]
    ops = [
        op("max_pool2d", ["x"], "a", dilation=dilation, **window),
        op("avg_pool2d", ["x"], "b", count_include_pad=draw(st.booleans()), **window),
        op("adaptive_avg_pool2d", ["x"], "c", size=[draw(st.integers(1, 9)), draw(st.integers(1, 9))]),
        op("mean", ["x"], "d", axes=[2, 3], keepdim=False),
    ]
    names = ["a", "b", "c", "d"]
    for i, name in enumerate(names):
        assert worst(tmp_path, {"x": (3, *size)}, [*ops[:i], ops[i]]) < CLOSE, name


KINDS = ["relu", "relu6", "hardswish", "hardsigmoid", "silu", "sigmoid", "tanh", "mish", "identity"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5,), (3, 7, 9), (4, 33)])
def test_activation(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    ops = [op("mul", ["x"], "s", value=3.0), op(kind, ["s"], "y")]
    assert worst(tmp_path, {"x": shape}, ops) < CLOSE


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(tmp_path: Path, approximate: str) -> None:
    ops = [op("mul", ["x"], "s", value=3.0), op("gelu", ["s"], "y", approximate=approximate)]
    assert worst(tmp_path, {"x": (5, 100)}, ops) < CLOSE


def bent(tmp_path: Path, kind: str, **numbers: float) -> float:
    """How far an activation with numbers of its own is off, of what it makes of numbers near and far from zero."""
    ops = [op("mul", ["x"], "s", value=40.0), op(kind, ["x"], "y", **numbers), op(kind, ["s"], "z", **numbers)]
    return worst(tmp_path, {"x": (5, 100)}, [*ops, op("concat", ["y", "z"], "o", axis=1)])


def padded(tmp_path: Path, mode: str, frame: list[int], size: tuple[int, int], *, batch: int = 2) -> float:
    """How far a frame of an image's own pixels is off, of an input and between two convolutions."""
    weights = {"a": sparse(random(), (4, 3, 3, 3)), "b": sparse(random(1), (5, 4, 3, 3), 0.5)}
    conv = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, **PLAIN}
    ops = [
        op("pad", ["x"], "p", padding=frame, mode=mode),
        op("conv2d", ["x"], "a", weight="a", **conv),
        op("pad", ["a"], "q", padding=frame, mode=mode),
        op("conv2d", ["q"], "y", weight="b", **conv),
        op("concat", ["y", "p"], "o", axis=1),
    ]
    return worst(tmp_path, {"x": (3, *size)}, ops, weights, batch=batch)


@pytest.mark.parametrize("alpha", [1.0, 0.3, -2.0, 0.0])
def test_elu(tmp_path: Path, alpha: float) -> None:
    assert bent(tmp_path, "elu", alpha=alpha) < CLOSE


@pytest.mark.parametrize(("beta", "threshold"), [(1.0, 20.0), (2.5, 1.0), (0.1, 20.0), (1e-6, 5.0), (1e6, -3.0)])
def test_softplus(tmp_path: Path, beta: float, threshold: float) -> None:
    assert bent(tmp_path, "softplus", beta=beta, threshold=threshold) < CLOSE


@SETTINGS
@given(st.data())
def test_frames_of_an_images_own_pixels(tmp_path: Path, data: st.DataObject) -> None:
    draw = data.draw
    mode = draw(st.sampled_from(["reflect", "circular", "replicate"]))
    size = draw(st.integers(1, 9)), draw(st.integers(1, 20))
    most = [{"reflect": n - 1, "circular": n, "replicate": 12}[mode] for n in size]
    frame = [draw(st.integers(0, most[axis])) for axis in (0, 0, 1, 1)]
    assert padded(tmp_path, mode, frame, size, batch=draw(st.integers(1, 3))) < CLOSE


@pytest.mark.parametrize("level", ["portable", "avx2", "avx512"])
def test_frames_and_bends_on_every_instruction_set(tmp_path: Path, level: str) -> None:
    """Each in a process of its own, because the choice is made once."""
    script = (
        "from pathlib import Path; import test_kernels as t; from softprune.deploy.engine.library import library\n"
        f"here = Path({str(tmp_path)!r})\n"
        "found = [t.bent(here, 'elu', alpha=0.7), t.bent(here, 'softplus', beta=2.0, threshold=3.0)]\n"
        "found += [t.bent(here, 'mish')]\n"
        "found += [t.padded(here, mode, [2, 1, 3, 0], (4, 9)) for mode in ('reflect', 'circular', 'replicate')]\n"
        "print(library().facts.level, max(found) < t.CLOSE)"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "SOFTPRUNE_KERNELS_LEVEL": level, "PYTHONPATH": paths}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found, right = result.stdout.split()
    assert right == "True"
    assert found == level or level != "portable"


@pytest.mark.parametrize("kind", ["add", "mul"])
@pytest.mark.parametrize("other", [(3, 5, 7), (3, 1, 1), (1, 5, 7), (1, 1, 1)])
def test_broadcasting(tmp_path: Path, kind: str, other: tuple[int, ...]) -> None:
    for names in (["x", "z"], ["z", "x"]):
        assert worst(tmp_path, {"x": (3, 5, 7), "z": other}, [op(kind, names, "y")]) < CLOSE


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_concat_softmax_slice(tmp_path: Path, axis: int) -> None:
    ops = [
        op("concat", ["x", "x", "x"], "c", axis=axis),
        op("softmax", ["c"], "s", axis=axis),
        op("slice", ["s"], "y", axis=axis, start=1, stop=None, step=2),
    ]
    assert worst(tmp_path, {"x": (4, 6)}, ops) < CLOSE


def test_norms(tmp_path: Path) -> None:
    generator = random()
    weights = {name: generator.standard_normal(n).astype(np.float32) for name, n in (("w", 35), ("b", 35), ("c", 4))}
    ops = [
        op("scale_shift", ["x"], "s", scale="c", shift="c"),
        op("permute", ["s"], "p", axes=[0, 2, 1, 3]),
        op("permute", ["p"], "q", axes=[0, 2, 1, 3]),
        op("layer_norm", ["q"], "n", weight="w", bias="b", eps=1e-5, axes=[2, 3]),
        op("layer_norm", ["n"], "y", weight=None, bias=None, eps=1e-5, axes=[-1]),
    ]
    assert worst(tmp_path, {"x": (4, 5, 7)}, ops, weights) < CLOSE


def test_reshape_of_images_and_transposed_values(tmp_path: Path) -> None:
    weights = {"w": sparse(random(), (6, 3, 3, 3)), "v": sparse(random(), (11, 6))}
    conv = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    ops = [
        op("conv2d", ["x"], "y", weight="w", **conv, **PLAIN),
        op("reshape", ["y"], "t", shape=[None, 6, -1]),
        op("permute", ["t"], "u", axes=[0, 2, 1]),
        op("linear", ["u"], "v", weight="v", **PLAIN),
        op("reshape", ["v"], "z", shape=[None, -1]),
    ]
    assert worst(tmp_path, {"x": (3, 5, 7)}, ops, weights) < CLOSE


@pytest.mark.parametrize("tokens", [1, 5, 33])
def test_matmul_and_attention(tmp_path: Path, tokens: int) -> None:
    mask = np.where(random().random((tokens, tokens)) < 0.7, 0.0, -1e9).astype(np.float32)
    np.fill_diagonal(mask, 0.0)
    ops = [
        op("attention", ["q", "k", "v"], "a", scale=0.3, mask="m"),
        op("attention", ["q", "k", "v"], "b", scale=0.3, mask=None),
        op("permute", ["b"], "t", axes=[0, 1, 3, 2]),
        op("matmul", ["a", "t"], "y"),
    ]
    shapes = {name: (2, tokens, 8) for name in "qkv"}
    assert worst(tmp_path, shapes, ops, {"m": mask}) < CLOSE


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("how", [{"size": [7, 13]}, {"scale": [2.0, 1.5]}, {"size": [3, 3]}, {"size": [1, 1]}])
@pytest.mark.parametrize("corners", [False, True])
def test_resize(tmp_path: Path, mode: str, how: dict[str, Any], corners: bool) -> None:
    ops = [op("resize", ["x"], "y", mode=mode, align_corners=corners, **how)]
    assert worst(tmp_path, {"x": (3, 5, 6)}, ops) < CLOSE


def test_constants_and_inputs_as_outputs(tmp_path: Path) -> None:
    weights = {"c": random().standard_normal((1, 4, 3)).astype(np.float32)}
    ops = [op("constant", [], "c", weight="c"), op("add", ["x", "c"], "y"), op("identity", ["y"], "z")]
    assert worst(tmp_path, {"x": (4, 3)}, ops, weights) < CLOSE
    assert worst(tmp_path, {"x": (4, 3)}, [op("identity", ["x"], "z")]) == 0.0
