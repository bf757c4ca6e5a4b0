"""Integer networks of random weights for the engine's tests, by name: graphs that are built by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from softprune.deploy.format.graph import Graph, Op

SCALE = 0.02


class Network:
    """A graph while it is built; weights and factors are drawn so that outputs use the whole range of a byte."""

    def __init__(self, shape: tuple[int, ...], seed: int = 0) -> None:
        self.graph, self.rng = Graph(inputs={"x": (None, *shape)}), np.random.default_rng(seed)

    def weight(self, array: Any) -> str:
        name = f"w{len(self.graph.weights)}"
        self.graph.weights[name] = np.ascontiguousarray(array)
        return name

    def op(self, kind: str, *inputs: str, **fields: Any) -> str:
        output = f"v{len(self.graph.ops)}"
        self.graph.ops.append(Op(kind, f"{kind}.{output}", list(inputs), output, fields))
        return output

    def quantize(self, zero: int = 128, of: str = "x") -> str:
        return self.op("quantize", of, scale=SCALE, zero=zero)

    def give(self, *values: str | tuple[str, int]) -> Graph:
        """The graph with these outputs; bytes, given with their zero, become floats."""
        for value in values:
            name = value if isinstance(value, str) else self.op("dequantize", value[0], scale=0.1, zero=value[1])
            self.graph.outputs.append(name)
        return self.graph

    def _layer(self, weight: Any, zero: int, out_zero: int | None, low: int, residual: tuple[str, int] | None) -> Any:
        outputs = len(weight)
        kept = max(1.0, np.count_nonzero(weight) / outputs)
        factor = self.rng.uniform(0.5, 1.5, outputs) * 255 / (2 * np.sqrt(kept) * 7300)
        integer = out_zero is not None
        return {
            "weight": self.weight(weight.astype(np.int8)),
            "bias": self.weight(self.rng.integers(-9000, 9000, outputs).astype(np.int32)),
            "factor": self.weight(factor.astype(np.float32)),
            "zero": zero,
            "out_zero": out_zero,
            "low": low if integer else None,
            "high": 250 if integer else None,
            "residual": residual[0] if residual else None,
            "residual_factor": 0.6 if residual and integer else None,
            "residual_zero": residual[1] if residual and integer else None,
        }

    def conv(
        self, source: str, shape: tuple[int, ...], *, zero: int = 0, out_zero: int | None = 0, low: int = 0,
        stride: int = 1, padding: tuple[int, int] | None = None, dilation: int = 1, groups: int = 1,
        density: float = 0.2, residual: tuple[str, int] | None = None,
    ) -> str:  # fmt: skip
        weight = self.rng.integers(-127, 128, shape) * (self.rng.random(shape) < density)
        reach = padding or (shape[2] // 2 * dilation, shape[3] // 2 * dilation)
        steps = {"stride": [stride] * 2, "padding": list(reach), "dilation": [dilation] * 2, "groups": groups}
        return self.op("conv2d_int8", source, **self._layer(weight, zero, out_zero, low, residual), **steps)

    def linear(
        self, source: str, inputs: int, outputs: int, *, zero: int = 0, out_zero: int | None = None,
        residual: tuple[str, int] | None = None,
    ) -> str:  # fmt: skip
        weight = self.rng.integers(-127, 128, (outputs, inputs)) * (self.rng.random((outputs, inputs)) < 0.3)
        return self.op("linear_int8", source, **self._layer(weight, zero, out_zero, 0, residual))


def _one_conv(weight: tuple[int, ...], size: tuple[int, int] = (14, 14), **fields: Any) -> Graph:
    groups = fields.get("groups", 1)
    net = Network((weight[1] * groups, *size))
    out_zero = fields.setdefault("out_zero", 3)
    made = net.conv(net.quantize(), weight, zero=128, **fields)
    return net.give(made if out_zero is None else (made, out_zero))


def residual_network() -> Graph:
    """Blocks with residuals, strides, a pool, a concatenation, a lookup, moves, and linear layers."""
    net = Network((3, 32, 32))
    first = net.conv(net.quantize(), (16, 3, 3, 3), zero=128)
    second = net.conv(net.conv(first, (16, 16, 3, 3)), (16, 16, 3, 3), residual=(first, 0))
    wide = net.conv(net.conv(second, (8, 16, 1, 1)), (8, 8, 3, 3))
    third = net.conv(wide, (16, 8, 1, 1), residual=(second, 0))
    steps = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "ceil_mode": False}
    pooled = net.op("max_pool2d", third, **steps)
    down = net.conv(pooled, (32, 16, 3, 3), stride=2, out_zero=7)
    short = net.conv(pooled, (32, 16, 1, 1), stride=2, out_zero=128)
    fourth = net.conv(down, (32, 32, 3, 3), zero=7, residual=(short, 128), out_zero=5, low=5)
    both = net.op("concat", fourth, short, axis=1)
    deep = net.conv(fourth, (32, 1, 3, 3), groups=32, zero=5)
    looked = net.op("lookup", deep, table=net.weight(net.rng.integers(0, 256, 256).astype(np.uint8)))
    last = net.conv(looked, (24, 32, 8, 8), padding=(0, 0))
    flat = net.op("reshape", last, shape=[None, 24])
    logits = net.linear(net.linear(flat, 24, 30, out_zero=9), 30, 10, zero=9)
    turned = net.op("permute", fourth, axes=[0, 2, 3, 1])
    rows = net.op("slice", turned, axis=1, start=1, stop=7, step=2)
    return net.give(logits, (both, 0), (rows, 5), (looked, 0))


def _one_pool(size: tuple[int, int], **fields: list[int]) -> Graph:
    net = Network((5, *size))
    steps = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "ceil_mode": False}
    return net.give((net.op("max_pool2d", net.quantize(), **(steps | fields)), 128))


def linear_network(shape: tuple[int, ...]) -> Graph:
    net = Network(shape)
    first = net.linear(net.quantize(), shape[-1], 50, zero=128, out_zero=100)
    second = net.linear(first, 50, 50, zero=100, out_zero=100, residual=(first, 100))
    return net.give(net.linear(second, 50, 20, zero=100), (second, 100))


def rows_with_floats() -> Graph:
    """A block of a transformer without its attention: what is added to a linear layer's sums are floats."""
    net = Network((19, 40))
    wide = net.linear(net.quantize(), 40, 70, zero=128, out_zero=3)
    bent = net.op("lookup", wide, table=net.weight(net.rng.integers(0, 256, 256).astype(np.uint8)))
    return net.give(net.linear(bent, 70, 40, zero=3, residual=("x", 0)))


def float_readers(kind: str, **fields: Any) -> Graph:
    """An image of bytes that one operation on floats reads."""
    net = Network((8, 9, 9))
    value = net.op("dequantize", net.conv(net.quantize(), (8, 8, 3, 3), zero=128, out_zero=7), scale=0.1, zero=7)
    return net.give(net.op(kind, value, **fields))


def zeros_of_their_own() -> Graph:
    """Two kernels that read one value and disagree about its zero, and so about what lies around it."""
    net = Network((8, 9, 9))
    value = net.quantize()
    made = [net.conv(value, (4, 8, 3, 3), zero=zero, out_zero=None) for zero in (128, 0, 255)]
    return net.give(*made)


# Name -> makes the graph.
NETWORKS: dict[str, Callable[[], Graph]] = {
    "1x1": lambda: _one_conv((16, 8, 1, 1)),
    "3x3": lambda: _one_conv((16, 8, 3, 3)),
    "dense": lambda: _one_conv((20, 40, 3, 3), density=1.0),
    "without weights": lambda: _one_conv((4, 8, 3, 3), density=0.0),
    "stride 2": lambda: _one_conv((16, 8, 3, 3), stride=2),
    "stride 2, one pixel": lambda: _one_conv((16, 8, 1, 1), (13, 13), stride=2),
    "stride 2, odd": lambda: _one_conv((16, 3, 7, 7), (33, 31), stride=2),
    "stride 2, small": lambda: _one_conv((5, 3, 1, 1), (7, 7), stride=2),
    "stride 2, tiny": lambda: _one_conv((5, 3, 3, 3), (3, 2), stride=2),
    "stride 2, flat": lambda: _one_conv((5, 3, 3, 3), (5, 131), stride=2),
    "stride 2, tall": lambda: _one_conv((5, 3, 1, 1), (70, 64), stride=2),
    "pool": lambda: _one_pool((15, 14)),
    "pool of wide rows": lambda: _one_pool((6, 150), kernel=[2, 3], padding=[0, 1]),
    "pool, stride 1": lambda: _one_pool((9, 70), stride=[1, 1], kernel=[5, 5], padding=[2, 2]),
    "pool, stride 3": lambda: _one_pool((20, 100), stride=[3, 3], dilation=[2, 2]),
    "pool of everything": lambda: _one_pool((6, 7), kernel=[6, 7], padding=[0, 0], stride=[6, 7]),
    "stride 3": lambda: _one_conv((16, 8, 3, 3), stride=3),
    "dilated": lambda: _one_conv((16, 8, 5, 5), dilation=2),
    "one row": lambda: _one_conv((16, 8, 1, 3)),
    "without padding": lambda: _one_conv((16, 8, 3, 3), padding=(0, 0)),
    "larger output": lambda: _one_conv((16, 8, 3, 3), padding=(2, 2)),
    "even kernel": lambda: _one_conv((16, 8, 2, 2), padding=(1, 1)),
    "groups": lambda: _one_conv((16, 4, 3, 3), groups=2),
    "depthwise": lambda: _one_conv((16, 1, 3, 3), groups=8, density=0.6),
    "depthwise, stride 2": lambda: _one_conv((8, 1, 3, 3), groups=8, stride=2, density=0.6),
    "depthwise, one pixel": lambda: _one_conv((8, 1, 1, 1), groups=8, density=1.0),
    "depthwise to floats": lambda: _one_conv((8, 1, 3, 3), groups=8, density=0.6, out_zero=None),
    "whole image": lambda: _one_conv((16, 8, 14, 14), padding=(0, 0)),
    "image of one pixel": lambda: _one_conv((16, 8, 3, 3), (1, 1)),
    "pixel to pixel": lambda: _one_conv((16, 8, 1, 1), (1, 1)),
    "one column": lambda: _one_conv((16, 8, 3, 3), (5, 1)),
    "wide": lambda: _one_conv((16, 8, 3, 3), (33, 70)),
    "to floats": lambda: _one_conv((16, 8, 3, 3), out_zero=None),
    "1x1 to floats": lambda: _one_conv((16, 8, 1, 1), out_zero=None),
    "stride 2 to floats": lambda: _one_conv((16, 8, 3, 3), stride=2, out_zero=None),
    "floats are added": rows_with_floats,
    "relu of floats": lambda: float_readers("relu"),
    "zeros of their own": zeros_of_their_own,
    "residuals": residual_network,
    "linear": lambda: linear_network((40,)),
    "linear, rows": lambda: linear_network((12, 40)),
    "linear, wide": lambda: linear_network((2, 3, 200)),
}
