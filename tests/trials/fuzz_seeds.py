"""The files that fuzzing starts from: small, but with every operation, every storage and real exported networks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "deploy"))

from integer_graphs import residual_network, token_network  # noqa: E402
from spx_compare import sparse  # noqa: E402
from spx_files import op, write_net  # noqa: E402

from softprune.deploy.format.graph import Graph  # noqa: E402
from softprune.deploy.format.spx import spx_content  # noqa: E402
from softprune.deploy.format.storage import write_tensors  # noqa: E402

REST = {"bias": None, "activation": "relu", "residual": None}
CONV = {"dilation": [1, 1], "groups": 1, **REST}
SAME = {"stride": [1, 1], "padding": [1, 1], **CONV}
POINT = {"stride": [1, 1], "padding": [0, 0], **CONV}


def write_seeds(folder: Path, *, exported: bool = True) -> list[Path]:
    """Write all files; those that torch exports only if asked for and where it is installed."""
    written = [_image(folder), _tokens(folder), _blocks(folder), _depthwise(folder), _numbers(folder)]
    written += [write_bytes(folder, "residual", residual_network()), write_bytes(folder, "rows", token_network())]
    if not exported:
        return written
    try:
        import torch
    except ImportError:
        return written
    torch.manual_seed(0)
    return written + _exported(folder)


def _image(folder: Path) -> Path:
    """Convolutions, a transposed one, pools, resizing, a join."""
    generator = np.random.default_rng(0)
    weights = {
        "a": sparse(generator, (8, 3, 3, 3)),
        "b": sparse(generator, (8, 8, 1, 1)),
        "c": sparse(generator, (8, 8, 3, 3)),
        "d": sparse(generator, (5, 8)),
        "s": np.ones(8, np.float32),
    }
    ops = [
        op("conv2d", ["x"], "a", weight="a", **{**SAME, "stride": [2, 2]}),
        op("conv2d", ["a"], "b", weight="b", **{**POINT, "bias": "s"}),
        op("conv2d", ["b"], "c", weight="c", **{**SAME, "residual": "a"}),
        op("conv_transpose2d", ["c"], "t", weight="b", output_padding=[1, 1], **{**POINT, "stride": [2, 2]}),
        op("max_pool2d", ["t"], "p", kernel=[3, 3], stride=[2, 2], padding=[1, 1], dilation=[1, 1], ceil_mode=True),
        op("resize", ["p"], "r", size=[5, 7], mode="bilinear", align_corners=False),
        op("scale_shift", ["r"], "n", scale="s", shift="s"),
        op("concat", ["n", "r"], "k", axis=1),
        op("slice", ["k"], "l", axis=1, start=0, stop=8, step=1),
        op("adaptive_avg_pool2d", ["l"], "q", size=[1, 1]),
        op("reshape", ["q"], "f", shape=[None, 8]),
        op("linear", ["f"], "y", weight="d", **REST),
    ]
    return write_net(folder / "image.spx", {"x": (3, 9, 11)}, ops, weights)


def _tokens(folder: Path) -> Path:
    """Products, attention, norms."""
    weights = {"d": sparse(np.random.default_rng(1), (5, 8)), "s": np.ones(5, np.float32)}
    ops = [
        op("linear", ["x"], "h", weight="d", **{**REST, "activation": "gelu", "bias": "s"}),
        op("reshape", ["h"], "q", shape=[None, 2, 3, 5]),
        op("permute", ["q"], "k", axes=[0, 1, 3, 2]),
        op("matmul", ["q", "k"], "m"),
        op("softmax", ["m"], "s", axis=-1),
        op("attention", ["q", "q", "q"], "a", scale=0.5, mask=None),
        op("matmul", ["s", "a"], "w"),
        op("layer_norm", ["w"], "n", weight="s", bias=None, eps=1e-5, axes=[-1]),
        op("mean", ["n"], "y", axes=[1, 2], keepdim=False),
    ]
    return write_net(folder / "tokens.spx", {"x": (6, 8)}, ops, weights)


def _blocks(folder: Path) -> Path:
    """Bottlenecks with residuals: chains for the wavefront; all three storages."""
    generator = np.random.default_rng(2)
    ops = [op("conv2d", ["x"], "v", weight="w0", **{**SAME, "stride": [2, 1]})]
    weights = {"w0": sparse(generator, (12, 3, 3, 3), 0.6)}
    for i in range(2):
        names = [f"{kind}{i}" for kind in "abc"]
        shapes: Sequence[tuple[int, ...]] = ((20, 12, 1, 1), (20, 20, 3, 3), (12, 20, 1, 1))
        weights |= {name: sparse(generator, shape, 0.1) for name, shape in zip(names, shapes, strict=True)}
        first, source = ("v", "v") if i == 0 else ("c0", "c0")
        ops += [
            op("conv2d", [first], names[0], weight=names[0], **POINT),
            op("conv2d", [names[0]], names[1], weight=names[1], **SAME),
            op("conv2d", [names[1]], names[2], weight=names[2], **{**POINT, "residual": source}),
        ]
    ops.append(op("mean", ["c1"], "y", axes=[2, 3], keepdim=True))
    return write_net(folder / "blocks.spx", {"x": (3, 14, 17)}, ops, weights)


def _depthwise(folder: Path) -> Path:
    """Depthwise pairs, a dilation, average pools, nearest resizing by a scale."""
    generator = np.random.default_rng(3)
    shapes = {"a": (9, 1, 5, 5), "b": (18, 9, 1, 1), "c": (18, 1, 3, 3), "d": (6, 6, 2, 3)}
    weights = {name: sparse(generator, shape, 0.5) for name, shape in shapes.items()}
    ops = [
        op("conv2d", ["x"], "a", weight="a", **{**CONV, "stride": [2, 2], "padding": [2, 2], "groups": 9}),
        op("conv2d", ["a"], "b", weight="b", **POINT),
        op("conv2d", ["b"], "c", weight="c", **{**SAME, "dilation": [1, 2], "groups": 18, "activation": "relu6"}),
        op("conv2d", ["c"], "d", weight="d", **{**POINT, "groups": 3, "padding": [0, 1], "activation": "silu"}),
        op("avg_pool2d", ["d"], "e", kernel=[2, 3], stride=[1, 2], padding=[1, 1], ceil_mode=False,
           count_include_pad=False),
        op("resize", ["e"], "f", scale=[1.5, 2.0], mode="nearest", align_corners=False),
        op("hardsigmoid", ["f"], "g"),
        op("mul", ["f", "g"], "y"),
    ]  # fmt: skip
    return write_net(folder / "depthwise.spx", {"x": (9, 12, 10)}, ops, weights)


def _numbers(folder: Path) -> Path:
    """Linear layers with residuals, constants and two inputs."""
    generator = np.random.default_rng(4)
    weights = {"k": sparse(generator, (1, 40), 0.9), "a": sparse(generator, (40, 30), 0.1)}
    weights |= {"b": sparse(generator, (40, 40), 0.05), "c": sparse(generator, (7, 40), 0.5)}
    ops = [
        op("linear", ["x"], "a", weight="a", **REST),
        op("linear", ["a"], "b", weight="b", **{**REST, "residual": "a", "activation": "tanh"}),
        op("constant", [], "k", weight="k"),
        op("add", ["b", "k"], "s"),
        op("add", ["s", "z"], "t"),
        op("mul", ["t"], "u", value=0.25),
        op("sigmoid", ["u"], "o"),
        op("linear", ["o"], "y", weight="c", **{**REST, "activation": None}),
    ]
    return write_net(folder / "numbers.spx", {"x": (30,), "z": (40,)}, ops, weights, outputs=["y", "o"])


def write_bytes(folder: Path, name: str, graph: Graph) -> Path:
    """A network of bytes."""
    path = folder / f"{name}.spx"
    write_tensors(path, *spx_content(graph))
    return path


def _exported(folder: Path) -> list[Path]:
    """Networks as users have them."""
    import torch
    from exported_networks import Joined, Transformer, UNet, depthwise_net, thin_out

    from softprune.deploy.export import export

    mobile = depthwise_net()
    mobile(torch.zeros(1, 3, 13, 11))  # gives the lazy layer its shape
    networks: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
        "mobile": (mobile, [(3, 13, 11)]),
        "unet": (UNet(), [(3, 13, 9)]),
        "transformer": (Transformer(side=10, width=8), [(3, 10, 10)]),
        "joined": (Joined(), [(3, 9, 11), (5, 9, 11)]),
    }
    return [
        export(thin_out(module), folder / f"{name}.spx", example=tuple(torch.zeros(1, *shape) for shape in shapes))
        for name, (module, shapes) in networks.items()
    ]
