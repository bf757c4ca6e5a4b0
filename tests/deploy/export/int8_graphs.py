"""Graphs with integer operations, made by hand, the bytes inside them, and a network to be quantised by others."""

import numpy as np
import torch
from torch import nn

from softprune.deploy.format.graph import Graph, Op, Weight
from softprune.deploy.format.operations import OPERATIONS
from softprune.deploy.format.reference import run
from softprune.deploy.format.value_kinds import BYTE, infer_kinds


class Building:
    """A graph while it grows, with random weights of which most are zero."""

    def __init__(self, *shape, seed=0):
        self.random = np.random.default_rng(seed)
        self.graph = Graph(inputs={"x": (None, *shape)})

    def add(self, kind, *inputs, **fields):
        name = f"v{len(self.graph.ops)}"
        whole = {**dict.fromkeys(OPERATIONS[kind].fields), **fields}
        self.graph.ops.append(Op(kind, f"layer{len(self.graph.ops)}", list(inputs), name, whole))
        return name

    def weight(self, array):
        name = f"w{len(self.graph.weights)}"
        self.graph.weights[name] = array
        return name

    def _layer(self, kind, x, shape, step, zero, relu, residual, fields, out_zero, high):
        """Outputs fill about half of the range of a byte."""
        weight = self.random.integers(-127, 128, shape, dtype=np.int8) * (self.random.random(shape) < 0.4)
        size = np.sqrt((weight.astype(float) ** 2).sum(tuple(range(1, len(shape)))) + 1) * 50
        factor = (step * self.random.uniform(20, 40, shape[0]) / size).astype(np.float32)
        bounds = {"out_zero": out_zero, "low": None if out_zero is None else out_zero if relu else 0, "high": high}
        if residual is not None and out_zero is not None:
            fields |= {"residual_factor": 0.6, "residual_zero": residual[1]}
        return self.add(
            kind,
            x,
            weight=self.weight(weight.astype(np.int8)),
            bias=self.weight(self.random.integers(-3000, 3000, shape[0], dtype=np.int32)),
            factor=self.weight(factor),
            zero=zero,
            residual=None if residual is None else residual[0],
            **bounds,
            **fields,
        )

    def conv(self, x, shape, *, zero=0, relu=True, residual=None, out_zero=0, high=255, stride=1, padding=0, groups=1):
        fields = {"stride": [stride] * 2, "padding": [padding] * 2, "dilation": [1, 1], "groups": groups}
        return self._layer("conv2d_int8", x, shape, 1, zero, relu, residual, fields, out_zero, high)

    def linear(self, x, shape, *, zero=0, relu=False, residual=None, out_zero=None, high=None, step=1.0):
        return self._layer("linear_int8", x, shape, step, zero, relu, residual, {}, out_zero, high)

    def done(self, *outputs):
        self.graph.outputs = list(outputs)
        return self.graph


def small_network(seed=0):
    """Convolutions with strides, groups, signed outputs, bounds and a residual; a pool, a concat, a table, a head."""
    g = Building(3, 13, 11, seed=seed)
    x = g.add("quantize", "x", scale=0.02, zero=117)
    a = g.conv(x, (8, 3, 3, 3), zero=117, padding=1)
    b = g.conv(a, (8, 1, 3, 3), padding=1, groups=8, relu=False, out_zero=128)
    c = g.conv(b, (8, 8, 1, 1), zero=128, residual=(a, 0), high=200)
    pool = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "ceil_mode": False}
    d = g.add("max_pool2d", c, **pool)
    e = g.conv(c, (4, 8, 3, 3), stride=2, padding=1)
    f = g.add("concat", d, e, axis=1)
    table = (255 - np.arange(256) * 3 // 4).astype(np.uint8)
    h = g.add("lookup", f, table=g.weight(table))
    i = g.add("reshape", h, shape=[None, 12 * 7 * 6])
    j = g.linear(i, (9, 12 * 7 * 6), out_zero=120, high=255)
    k = g.add("dequantize", j, scale=0.03, zero=120)
    return g.done(k, g.linear(i, (5, 12 * 7 * 6), step=0.02))


def tokens_network(seed=0):
    """Linear layers on the last of three axes, a permutation, and a residual in float32."""
    g = Building(6, 16, seed=seed)
    x = g.add("quantize", "x", scale=0.02, zero=128)
    a = g.linear(x, (24, 16), zero=128, relu=True, out_zero=0, high=255)
    b = g.linear(a, (16, 24), residual=("x", None), step=0.05)
    c = g.add("quantize", b, scale=0.05, zero=100)
    d = g.add("permute", c, axes=[0, 2, 1])
    e = g.linear(d, (6, 6), zero=100, out_zero=90, high=255, residual=(d, 100))
    return g.done(g.add("dequantize", e, scale=0.04, zero=90))


def every_value(graph, x):
    """What the reference makes of each value that is bytes, and of the outputs."""
    kinds = infer_kinds(graph, {name: Weight(w.shape, w) for name, w in graph.weights.items()})
    names = [*(op.output for op in graph.ops if kinds[op.output] == BYTE), *graph.outputs]
    found = run({**graph.document, "outputs": names}, graph.weights, [x])
    return dict(zip(names, found, strict=True))


class Residual(nn.Module):
    """What residual networks are made of, and branches that are joined."""

    def __init__(self):
        super().__init__()
        self.stem, self.pool = nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(3, 2, 1)
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.short, self.depthwise = nn.Conv2d(8, 12, 1, 2), nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.left, self.right = nn.Conv2d(12, 6, 1), nn.Conv2d(12, 5, 1)
        self.head, self.last = nn.Linear(11, 16), nn.Linear(16, 7)

    def forward(self, x):
        x = self.pool(self.stem(x).relu())
        x = (x + self.second(self.first(x).relu())).relu()
        x = nn.functional.relu6(self.depthwise(self.short(x)))
        x = torch.cat([self.left(x), self.right(x).sigmoid()], 1)
        return self.last(self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)).relu())
