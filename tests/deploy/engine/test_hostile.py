"""Files and inputs that are wrong: clear errors, never a crash."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spx_compare import reference, sparse
from spx_files import op, stored, write_file, write_net

from softprune.deploy.engine.inference import load
from softprune.deploy.format.spx import read_spx

CONV = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
REST = {"bias": None, "activation": None, "residual": None}


def graph(**changes: Any) -> dict[str, Any]:
    """A valid graph with one convolution, changed here and there."""
    base = {
        "inputs": [{"name": "x", "shape": [None, 3, 8, 8]}],
        "outputs": ["y"],
        "weights": {"w": {"shape": [4, 3, 3, 3], "storage": "mask"}},
        "ops": [op("conv2d", ["x"], "y", weight="w", **CONV, **REST)],
    }
    return {**base, **changes}


def tensors() -> dict[str, Any]:
    return stored("w", sparse(np.random.default_rng(0), (4, 3, 3, 3)), "mask")


@pytest.fixture
def valid(tmp_path: Path) -> Path:
    return write_file(tmp_path / "valid.spx", graph(), tensors())


def shifted(value: Any) -> dict[str, Any]:
    """A graph with one number in the place of a weight."""
    return graph(ops=[op("add", ["x"], "y", value=value)])


def conv(**changes: Any) -> dict[str, Any]:
    return graph(ops=[{**op("conv2d", ["x"], "y", weight="w", **CONV, **REST), **changes}])


def framed(padding: Any, mode: Any = "reflect", **more: Any) -> dict[str, Any]:
    """A graph that puts a frame around an image of 8 x 8."""
    return graph(ops=[op("pad", ["x"], "y", padding=padding, mode=mode, **more)])


BAD_GRAPHS = {
    "a mirror larger than the image": (
        framed([8, 0, 0, 0]),
        "padding 8 and 0 does not fit a size of 8 in mode reflect",
    ),
    "a mirror behind the image": (framed([0, 0, 0, 8]), "padding 0 and 8 does not fit a size of 8"),
    "a circle larger than the image": (framed([0, 0, 9, 0], "circular"), "does not fit a size of 8 in mode circular"),
    "an edge of more than memory": (framed([1 << 24, 1 << 24, 0, 0], "replicate"), "too large"),
    "a negative frame": (framed([-1, 0, 0, 0]), "padding"),
    "a frame of three sizes": (framed([1, 1, 1]), "padding"),
    "a frame of fractions": (framed([1.5, 1, 1, 1]), "padding"),
    "a huge frame": (framed([1 << 40, 0, 0, 0], "replicate"), "padding"),
    "an unknown frame": (framed([1, 1, 1, 1], "symmetric"), "mode"),
    "a frame around no image": (
        graph(
            ops=[op("reshape", ["x"], "r", shape=[None, -1]), op("pad", ["r"], "y", padding=[0] * 4, mode="reflect")]
        ),
        "4 axes",
    ),
    "an elu without its number": (graph(ops=[op("elu", ["x"], "y")]), "alpha"),
    "an elu with an infinite one": (graph(ops=[op("elu", ["x"], "y", alpha=10**400)]), "alpha"),
    "a softplus that divides by zero": (graph(ops=[op("softplus", ["x"], "y", beta=0.0, threshold=20.0)]), "beta"),
    "a softplus of a text": (graph(ops=[op("softplus", ["x"], "y", beta=1.0, threshold="20")]), "threshold"),
    "unknown operation": (graph(ops=[op("eval", ["x"], "y")]), "eval"),
    "unknown field": (conv(code="1"), "code"),
    "missing value": (conv(inputs=["z"]), "'z'"),
    "value made twice": (graph(ops=graph()["ops"] * 2), "second time"),
    "missing weight": (conv(weight="v"), "'v'"),
    "zero stride": (conv(stride=[0, 1]), "stride"),
    "huge padding": (conv(padding=[1 << 40, 0]), "padding"),
    "negative dilation": (conv(dilation=[-1, 1]), "dilation"),
    "groups that do not fit": (conv(groups=2), "groups"),
    "text for a number": (conv(stride="11"), "stride"),
    "unknown activation": (conv(activation="exec"), "activation"),
    "kernel larger than image": (conv(padding=[0, 0], dilation=[9, 9]), "larger"),
    "huge input": (graph(inputs=[{"name": "x", "shape": [None, 3, 1 << 20, 1 << 20]}]), "too large"),
    "batch in the middle": (graph(inputs=[{"name": "x", "shape": [None, None, 8, 8]}]), "shape"),
    "no outputs": (graph(outputs=[]), "outputs"),
    "unknown output": (graph(outputs=["q"]), "'q'"),
    "weights as a list": (graph(weights=[]), "weights"),
    "huge weight": (graph(weights={"w": {"shape": [1 << 30, 3, 3, 3], "storage": "gaps"}}), "too large"),
    "wrong storage": (graph(weights={"w": {"shape": [4, 3, 3, 3], "storage": "zip"}}), "storage"),
    "shape unlike the mask": (graph(weights={"w": {"shape": [4, 3, 5, 5], "storage": "mask"}}), "mask"),
    "dense without a tensor": (graph(weights={"w": {"shape": [4, 3, 3, 3], "storage": "dense"}}), "missing"),
    "bool for a number": (conv(groups=True), "groups"),
    "number larger than any float": (shifted(10**400), "value"),
    "number larger than 32 bits": (shifted(1e39), "value"),
    "no number": (shifted(float("nan")), "value"),
    "infinite number": (shifted(float("-inf")), "value"),
    "stride larger than any float": (conv(stride=[10**400, 1]), "stride"),
    "output larger than memory": (conv(padding=[1 << 20, 1 << 20]), "too large|larger|padding"),
    "not a graph": ([], "inputs"),
    "deep nesting": ({"inputs": json.loads("[" * 400 + "]" * 400)}, "inputs"),
}


@pytest.mark.parametrize("name", BAD_GRAPHS)
def test_bad_graph(tmp_path: Path, name: str) -> None:
    document, words = BAD_GRAPHS[name]
    path = write_file(tmp_path / "bad.spx", document, tensors())
    with pytest.raises(ValueError, match=words):
        load(path, threads=1, tune=False)


def test_bits_behind_the_last_weight(tmp_path: Path) -> None:
    content = tensors()
    content["w.mask"] = content["w.mask"] | np.uint8(128)
    content["w.values"] = np.ones(int(np.unpackbits(content["w.mask"]).sum()), np.float32)
    with pytest.raises(ValueError, match="bits behind"):
        load(write_file(tmp_path / "bad.spx", graph(), content), threads=1)


def test_gaps_that_leave_the_weight(tmp_path: Path) -> None:
    entry = {"w": {"shape": [4, 3, 3, 3], "storage": "gaps"}}
    content = {"w.gaps": np.full(3, 60000, np.uint16), "w.values": np.ones(3, np.float32)}
    with pytest.raises(ValueError, match="gaps"):
        load(write_file(tmp_path / "bad.spx", graph(weights=entry), content), threads=1)


@pytest.mark.parametrize("length", [0, 4, 8, 100, -1])
def test_cut_short(valid: Path, tmp_path: Path, length: int) -> None:
    cut = tmp_path / "cut.spx"
    cut.write_bytes(valid.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"spx|bytes"):
        load(cut, threads=1)


def test_huge_header(valid: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.spx"
    bad.write_bytes(struct.pack("<Q", 1 << 62) + valid.read_bytes()[8:])
    with pytest.raises(ValueError, match="header"):
        load(bad, threads=1)


def test_wrong_version_and_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="version '3'"):
        load(write_file(tmp_path / "a.spx", graph(), tensors(), version="3"), threads=1)
    with pytest.raises(ValueError, match=r"no \.spx file"):
        load(write_file(tmp_path / "b.spx", graph(), tensors(), format="pt"), threads=1)


OTHER_FILES = {
    "zip": b"PK\x03\x04" + bytes(60),
    "pickle": b"\x80\x04\x95" + bytes(60),
    "picture": b"\x89PNG\r\n\x1a\n" + bytes(60),
    "json": b'{"inputs": []}',
    "zeros": bytes(64),
}


@pytest.mark.parametrize("kind", OTHER_FILES)
def test_other_kinds_of_files(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "other.spx"
    path.write_bytes(OTHER_FILES[kind])
    with pytest.raises(ValueError, match=r"no \.spx file"):
        load(path, threads=1)


@pytest.mark.parametrize("begin, end", [(0, 1 << 62), (-4, 0), (1 << 63, 1 << 63), (8, 4), (10**30, 10**30 + 4)])
def test_tensors_outside_of_the_file(valid: Path, tmp_path: Path, begin: int, end: int) -> None:
    content = valid.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["w.values"]["data_offsets"] = [begin, end]
    text = json.dumps(header).encode()
    bad = tmp_path / "bad.spx"
    bad.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(ValueError, match=r"w\.values"):
        load(bad, threads=1)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nothing"):
        load(tmp_path / "nothing.spx")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs")
def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.spx")
    for path in (tmp_path / "fifo.spx", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            load(path)


def test_fixed_mutations(valid: Path, tmp_path: Path) -> None:
    """Bytes changed at random: each file is refused, or runs."""
    content = valid.read_bytes()
    generator = np.random.default_rng(3)
    refused = 0
    for number in range(150):
        changed = bytearray(content)
        for _ in range(int(generator.integers(1, 4))):
            changed[int(generator.integers(len(changed)))] = int(generator.integers(256))
        path = tmp_path / f"{number}.spx"
        path.write_bytes(bytes(changed))
        try:
            engine = load(path, threads=1, tune=False)
            shape = [2 if n is None else n for n in next(iter(engine.model.graph.inputs.values()))]
            engine(np.zeros(shape, np.float32))
        except (ValueError, OSError):
            refused += 1
    assert 20 < refused < 150


def test_wrong_inputs(valid: Path) -> None:
    engine = load(valid, threads=1, tune=False)
    with pytest.raises(TypeError, match="float32"):
        engine(np.zeros((1, 3, 8, 8)))
    with pytest.raises(ValueError, match=r"\(batch, 3, 8, 8\)"):
        engine(np.zeros((1, 3, 8, 9), np.float32))
    with pytest.raises(ValueError, match="takes 1 inputs"):
        engine(np.zeros((1, 3, 8, 8), np.float32), np.zeros(1, np.float32))
    for kind in (np.float16, np.int32, np.complex64, bool):
        with pytest.raises(TypeError, match="float32"):
            engine(np.zeros((1, 3, 8, 8), kind))
    with pytest.raises(TypeError, match="float32"):
        engine("text")
    with pytest.raises(ValueError, match=r"got \(3, 8, 8\)"):
        engine(np.zeros((3, 8, 8), np.float32))
    assert engine(np.zeros((0, 3, 8, 8), np.float32)).shape == (0, 4, 8, 8)


def test_inputs_in_another_order(valid: Path) -> None:
    engine = load(valid, threads=1, tune=False)
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    turned = np.asfortranarray(x)
    assert np.array_equal(engine(turned), engine(x))
    assert np.array_equal(engine(x[::-1]), engine(x)[::-1])
    x.flags.writeable = False
    assert engine(x).shape == (2, 4, 8, 8)


def test_not_a_number_passes(valid: Path) -> None:
    engine = load(valid, threads=1, tune=False)
    x = np.zeros((1, 3, 8, 8), np.float32)
    x[0, :, 4, 4] = np.nan
    y = engine(x)
    assert np.isnan(y[0, :, 3:6, 3:6]).any()
    assert not np.isnan(y[0, :, :3]).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e-45])
def test_numbers_at_the_end_of_the_range_stay_in_their_sample(valid: Path, value: float) -> None:
    engine = load(valid, threads=2, tune=False)
    x = np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)
    clean = engine(x)
    x[1] = value
    y = engine(x)
    assert np.array_equal(y[[0, 2]], clean[[0, 2]])
    assert np.isfinite(y[1]).all() == (value == 1e-45)
    x[1] = 0
    assert np.isfinite(engine(x)).all()  # nothing is left behind in the buffers


SPECIAL = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e13, -1e13, 104, -104, 1e-45, 0, -0.0, 1], np.float32)


NUMBERS = {"mish": {}, "elu": {"alpha": 0.5}, "softplus": {"beta": 2.0, "threshold": 20.0}}


@pytest.mark.parametrize(
    "kind", ["relu", "relu6", "hardswish", "hardsigmoid", "silu", "sigmoid", "tanh", "gelu", *NUMBERS]
)
def test_activations_are_finite_where_the_reference_is(tmp_path: Path, kind: str) -> None:
    fields = {"approximate": "none"} if kind == "gelu" else NUMBERS.get(kind, {})
    engine = load(write_net(tmp_path / "a.spx", {"x": (13,)}, [op(kind, ["x"], "y", **fields)], {}), tune=False)
    with np.errstate(all="ignore"):
        found, wanted = engine(SPECIAL[None]), reference(engine, [SPECIAL[None]])[0]
    sure = np.isfinite(wanted)
    assert np.array_equal(np.isfinite(found), sure)
    np.testing.assert_allclose(found[sure], wanted[sure], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("size", [[3, 2], [5, 7]])
def test_resized_images_are_finite_where_the_reference_is(tmp_path: Path, size: list[int], corners: bool) -> None:
    ops = [op("resize", ["x"], "y", size=size, scale=None, mode="bilinear", align_corners=corners)]
    images = np.stack(np.meshgrid(SPECIAL, SPECIAL, [1.0]), -1).reshape(1, -1, 3, 1).astype(np.float32)
    images = np.concatenate([images, images[:, ::-1]], 3)
    engine = load(write_net(tmp_path / "r.spx", {"x": images.shape[1:]}, ops, {}), tune=False)
    with np.errstate(all="ignore"):
        assert np.array_equal(np.isfinite(engine(images)), np.isfinite(reference(engine, [images])[0]))


def test_threads_out_of_range(valid: Path) -> None:
    with pytest.raises(ValueError, match="1 to 256"):
        load(valid, threads=0)


def test_reader_keeps_the_zeros(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    weights = {name: sparse(generator, (40, 30), 0.01) for name in ("a", "b", "c")}
    ops = [op("linear", ["x"], "y", weight="a", **REST)]
    model = read_spx(write_net(tmp_path / "net.spx", {"x": (30,)}, ops, weights))
    for name, weight in weights.items():
        assert np.array_equal(model.weights[name].dense(), weight)
        assert model.weights[name].count() == np.count_nonzero(weight)
