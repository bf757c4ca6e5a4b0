"""Networks of bytes by chance: kernels, strides, paddings, moves and residuals that nobody would choose together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from integer_graphs import IntegerGraph

from softprune.deploy.format.graph import Graph
from softprune.deploy.format.shapes import windows

Shape = tuple[int, ...]


def random_network(seed: int) -> Graph:
    """A chain of operations on values of 1 to 4 axes beside the batch, with residuals, joins and a few outputs."""
    chance = np.random.default_rng(seed)
    axes = int(chance.choice([1, 2, 3, 3, 3, 4]))
    grown = _Grown(IntegerGraph(tuple(int(n) for n in chance.integers(1, 14 if axes == 3 else 9, axes)), seed), chance)
    for _ in range(int(chance.integers(2, 9))):
        grown.step()
    return grown.finish()


class _Grown:
    """The last value of a growing network of bytes, its shape without the batch, and its zero."""

    def __init__(self, net: IntegerGraph, chance: np.random.Generator) -> None:
        self.net, self.chance = net, chance
        self.shape: Shape = tuple(n or 0 for n in net.graph.inputs["x"][1:])
        self.zero = self.byte()
        self.value = net.add("quantize", "x", scale=float(chance.uniform(0.01, 0.05)), zero=self.zero)
        self.known: list[tuple[str, Shape]] = []  # bytes that were made before
        self.ends: list[str] = []

    def whole(self, low: int, high: int) -> int:
        """A number from low to high."""
        return int(self.chance.integers(low, high + 1))

    def pair(self, low: int, high: int) -> list[int]:
        return [self.whole(low, high), self.whole(low, high)]

    def byte(self) -> int:
        return int(self.chance.choice([0, 0, 128, self.whole(0, 255)]))

    def divisor(self, number: int) -> int:
        return int(self.chance.choice([n for n in range(1, number + 1) if number % n == 0]))

    def step(self) -> None:
        """Append an operation, or none where the one that is drawn does not fit."""
        self.known.append((self.value, self.shape))
        steps: list[Callable[[], None]] = [self.linear, self.lookup, self.permute, self.cut, self.join, self.reshape]
        steps.append(self.numbers)
        if len(self.shape) == 3:
            steps += [self.conv] * 8 + [self.pool] * 2
        steps[self.whole(0, len(steps) - 1)]()

    def ending(self, shape: Shape) -> dict[str, Any]:
        """The fields of an output of bytes, with a residual where one of its shape is known."""
        low = self.whole(0, 255)
        bounds = {"low": 0, "high": 255} if self.chance.random() < 0.7 else {"low": low, "high": self.whole(low, 255)}
        fields: dict[str, Any] = {"zero": self.zero, "out_zero": self.byte(), **bounds}
        others = [name for name, other in self.known if other == shape]
        if others and self.chance.random() < 0.6:
            fields |= {"residual": others[self.whole(0, len(others) - 1)], "residual_zero": self.byte()}
        self.zero, self.shape = fields["out_zero"], shape
        return fields

    def linear(self) -> None:
        inputs = self.shape[-1]
        outputs = int(self.chance.choice([inputs, self.whole(1, 70)]))
        self.value = self.net.linear(self.value, (outputs, inputs), **self.ending((*self.shape[:-1], outputs)))

    def conv(self) -> None:
        channels = self.shape[0]
        kernel = self.pair(1, 3) if self.chance.random() < 0.6 else [1, 1]
        stride, dilation = ([int(self.chance.choice([1, 1, n])) for n in self.pair(1, most)] for most in (3, 2))
        same = [d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True)]
        padding = same if self.chance.random() < 0.5 else self.pair(0, 2)
        axes = zip(self.shape[1:], kernel, stride, padding, dilation, strict=True)
        size = [windows(n, k, stride=s, padding=p, dilation=d) for n, k, s, p, d in axes]
        if min(size) < 1:
            return
        groups = int(self.chance.choice([1, 1, channels, self.divisor(channels)]))
        outputs = groups * self.whole(1, max(1, 40 // groups)) if self.chance.random() < 0.6 else channels
        fields = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        weight, ending = (outputs, channels // groups, *kernel), self.ending((outputs, *size))
        self.value = self.net.conv(self.value, weight, **fields, **ending)

    def pool(self) -> None:
        kernel, stride, dilation, ceil = self.pair(1, 3), self.pair(1, 2), [1, 1], self.chance.random() < 0.3
        padding = [self.whole(0, k // 2) for k in kernel]
        axes = zip(self.shape[1:], kernel, stride, padding, strict=True)
        size = [windows(n, k, stride=s, padding=p, ceil_mode=ceil) for n, k, s, p in axes]
        if min(size) < 1:
            return
        fields = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil}
        self.move("max_pool2d", (self.shape[0], *size), **fields)

    def move(self, kind: str, made: Shape, **fields: Any) -> None:
        self.value, self.shape = self.net.add(kind, self.value, **fields), made

    def lookup(self) -> None:
        self.move("lookup", self.shape, table=self.net.weight(self.chance.integers(0, 256, 256, dtype=np.uint8)))
        self.zero = self.byte()

    def permute(self) -> None:
        order = [int(n) for n in self.chance.permutation(len(self.shape))]
        self.move("permute", tuple(self.shape[n] for n in order), axes=[0, *(n + 1 for n in order)])

    def cut(self) -> None:
        axis = self.whole(0, len(self.shape) - 1)
        start, step = self.whole(0, self.shape[axis] - 1), self.whole(1, 2)
        made = list(self.shape)
        made[axis] = len(range(start, made[axis], step))
        self.move("slice", tuple(made), axis=axis + 1, start=start, stop=None, step=step)

    def join(self) -> None:
        axis = self.whole(0, len(self.shape) - 1)
        here = (*self.shape[:axis], *self.shape[axis + 1 :])
        fits = [(n, s) for n, s in self.known if len(s) > axis and (*s[:axis], *s[axis + 1 :]) == here]
        name, shape = fits[self.whole(0, len(fits) - 1)]  # at least itself
        self.value, made = self.net.add("concat", self.value, name, axis=axis + 1), list(self.shape)
        made[axis] += shape[axis]
        self.shape = tuple(made)

    def reshape(self) -> None:
        total = int(np.prod(self.shape))
        first = self.divisor(total)
        second = self.divisor(total // first)
        made = [(total,), (first, total // first), (first, second, total // first // second)][self.whole(0, 2)]
        self.move("reshape", made, shape=[None, *made])

    def numbers(self) -> None:
        """Numbers or their mean over an image as an output, and bytes of the numbers again."""
        numbers = self.net.add("dequantize", self.value, scale=0.5, zero=self.byte())
        if len(self.shape) == 3 and self.chance.random() < 0.5:
            mean: dict[str, Any] = {"axes": [2, 3], "keepdim": self.chance.random() < 0.5}
            kind, fields = [("mean", mean), ("adaptive_avg_pool2d", {"size": [1, 1]})][self.whole(0, 1)]
            self.ends.append(self.net.add(kind, numbers, **fields))
            return
        self.ends.append(numbers)
        if self.chance.random() < 0.5:
            self.zero = self.byte()
            self.value = self.net.add("quantize", numbers, scale=0.7, zero=self.zero)

    def finish(self) -> Graph:
        """A last layer that gives numbers, sometimes with numbers added."""
        residual = None
        if self.chance.random() < 0.3:
            self.linear()
            residual = self.net.add("dequantize", self.value, scale=0.5, zero=7)
        inputs = self.shape[-1]
        fields = {"zero": self.zero, "residual": residual, **dict.fromkeys(("out_zero", "low", "high"))}
        outputs = inputs if residual is not None else self.whole(1, 40)
        return self.net.finish(self.net.linear(self.value, (outputs, inputs), **fields), *self.ends)
