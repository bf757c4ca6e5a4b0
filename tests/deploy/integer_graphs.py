"""Networks of bytes, built by hand as graphs of the format."""

from __future__ import annotations

from typing import Any

import numpy as np

from softprune.deploy.format.graph import Graph, Op


def whole_numbers(generator: np.random.Generator, shape: tuple[int, ...], density: float = 0.4) -> Any:
    """Random int8 weights from -127 to 127, most of them zero."""
    values = generator.integers(-127, 128, shape)
    return (values * (generator.random(shape) < density)).astype(np.int8)


class IntegerGraph:
    """A graph that grows by one operation at a time; each call names the value that it makes."""

    def __init__(self, shape: tuple[int, ...], seed: int = 0) -> None:
        self.graph = Graph(inputs={"x": (None, *shape)})
        self.generator = np.random.default_rng(seed)

    def add(self, kind: str, *inputs: str, **fields: Any) -> str:
        """Append an operation."""
        output = f"v{len(self.graph.ops)}"
        self.graph.ops.append(Op(kind, f"net.{output}", list(inputs), output, fields))
        return output

    def weight(self, array: Any) -> str:
        """A new weight's name."""
        name = f"w{len(self.graph.weights)}"
        self.graph.weights[name] = array
        return name

    def layer(self, kind: str, value: str, shape: tuple[int, ...], **fields: Any) -> str:
        """A layer of random weights, whose outputs spread over the bytes."""
        weight, rng = whole_numbers(self.generator, shape), self.generator
        spread = 74.0 * 73.0 * np.sqrt(max(1, np.count_nonzero(weight) / shape[0]))
        factor = (rng.uniform(30, 90, shape[0]) / spread).astype(np.float32)
        if fields.get("residual") is not None and fields.get("out_zero") is not None:
            fields = {"residual_factor": 0.75, "residual_zero": 0, **fields}
        names = {"weight": weight, "bias": rng.integers(-9999, 9999, shape[0], dtype=np.int32), "factor": factor}
        absent = dict.fromkeys(("residual", "residual_factor", "residual_zero", "out_zero", "low", "high"))
        return self.add(kind, value, **{k: self.weight(a) for k, a in names.items()}, **{**absent, **fields})

    def conv(self, value: str, shape: tuple[int, ...], **fields: Any) -> str:
        """A convolution that keeps the size of the image, with ReLU, unless something else is asked for."""
        around = [k // 2 for k in shape[2:]]
        same = {"stride": [1, 1], "padding": around, "dilation": [1, 1], "groups": 1, "zero": 0}
        return self.layer("conv2d_int8", value, shape, **{**same, "out_zero": 0, "low": 0, "high": 255, **fields})

    def linear(self, value: str, shape: tuple[int, ...], **fields: Any) -> str:
        """A linear layer with ReLU, unless something else is asked for."""
        return self.layer("linear_int8", value, shape, **{"zero": 0, "out_zero": 0, "low": 0, "high": 255, **fields})

    def finish(self, *outputs: str) -> Graph:
        self.graph.outputs = list(outputs)
        return self.graph


def residual_network(seed: int = 0, size: tuple[int, int] = (9, 11)) -> Graph:
    """Strides, a residual, a depthwise layer, a pool, a join, a table and two linear layers; then numbers."""
    net = IntegerGraph((3, *size), seed)
    q = net.add("quantize", "x", scale=0.02, zero=121)
    a = net.conv(q, (8, 3, 3, 3), stride=[2, 2], zero=121)
    b = net.conv(a, (8, 8, 1, 1), out_zero=128)  # signed, so that its padding is not zero
    c = net.conv(b, (8, 8, 3, 3), zero=128, residual=a)
    d = net.conv(c, (8, 1, 3, 3), groups=8, high=77)
    pool = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "ceil_mode": False}
    e = net.add("max_pool2d", d, **pool)
    f = net.add("max_pool2d", a, **pool)
    g = net.add("concat", e, f, axis=1)
    table = net.weight(net.generator.integers(0, 256, 256, dtype=np.uint8))
    h = net.add("lookup", g, table=table)
    i = net.conv(h, (6, 8, 2, 3), groups=2, padding=[0, 2], dilation=[1, 2], zero=90, out_zero=5)
    j = net.add("slice", i, axis=1, start=1, stop=6, step=2)
    k = net.add("permute", j, axes=[0, 2, 3, 1])
    m = net.linear(k, (7, 3), zero=5, out_zero=128, low=3, high=250)
    s = net.add("dequantize", m, scale=0.05, zero=128)
    y = net.linear(m, (7, 7), zero=128, out_zero=None, low=None, high=None, residual=s)
    return net.finish(y, s, net.add("mean", y, axes=[1, 2], keepdim=False))


def token_network(seed: int = 0) -> Graph:
    """Linear layers on rows, with a residual of bytes, between moves of bytes."""
    net = IntegerGraph((6, 8), seed)
    q = net.add("quantize", "x", scale=0.025, zero=128)
    a = net.linear(q, (16, 8), zero=128, out_zero=0)
    b = net.linear(a, (8, 16), out_zero=128, residual=q, residual_zero=128, residual_factor=1.5)
    c = net.add("reshape", net.add("identity", b), shape=[None, 48])
    y = net.linear(c, (5, 48), zero=128, out_zero=None, low=None, high=None)
    return net.finish(y, net.add("dequantize", b, scale=1.0, zero=128))
