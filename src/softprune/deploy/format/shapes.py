"""The shape of what each operation makes; refuses inputs, fields and weights that do not fit together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from softprune.deploy.format.graph import Op, Weight

Shape = tuple[int, ...]
# 2^28 numbers are 1 GB, within reach of the kernels' offsets.
MAX_ELEMENTS = 1 << 28
# Places in a kernel or a pooling window.
MAX_TAPS = 1 << 12
MAX_AXES = 6


class Scope:
    """What the rule of one operation may ask for."""

    def __init__(self, op: Op, shapes: Mapping[str, Shape], weights: Mapping[str, Weight], batch: int) -> None:
        self.op, self.shapes, self.weights, self.batch = op, shapes, weights, batch
        self.inputs = [shapes[name] for name in op.inputs]

    def need(self, fits: bool, why: str) -> None:  # noqa: FBT001
        if not fits:
            raise ValueError(f"{self.op}: {why}")

    def pairs(self, *fields: str) -> Iterator[Sequence[int]]:
        return (self.op.fields[field] for field in fields)

    def image(self) -> Shape:
        self.need(len(self.inputs[0]) == 4, f"needs 4 axes, the input has shape {self.inputs[0]}")
        return self.inputs[0]

    def axis(self, value: int, rank: int) -> int:
        self.need(-rank <= value < rank, f"axis {value} is outside of {rank} axes")
        return value % rank

    def axes(self, values: Sequence[int], rank: int) -> list[int]:
        axes = [self.axis(value, rank) for value in values]
        self.need(len(set(axes)) == len(axes), f"axes {list(values)} repeat")
        return axes

    def same(self) -> Shape:
        return self.inputs[0]

    def weight(self) -> Shape:
        return self.weights[self.op.fields["weight"]].shape

    def vector(self, field: str, length: int) -> None:
        """A field that is null or a weight with `length` numbers, all stored."""
        name = self.op.fields.get(field)
        if name is not None:
            weight = self.weights[name]
            fits = math.prod(weight.shape) == length and weight.index is None
            self.need(fits, f"{field} of shape {weight.shape} must be dense with {length} numbers")

    def finish(self, shape: Shape, channels: int) -> Shape:
        self.vector("bias", channels)
        self.vector("factor", channels)
        residual = self.op.fields.get("residual")
        if residual is not None:
            self.need(self.shapes[residual] == shape, f"residual of shape {self.shapes[residual]}, output of {shape}")
        return shape


def windows(
    size: int, kernel: int, *, stride: int, padding: int = 0, dilation: int = 1, ceil_mode: bool = False
) -> int:
    """How often a kernel fits along one axis; with ceil_mode also where it sticks out behind."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    # A window that begins behind the image and its front padding would see nothing.
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def conv(scope: Scope) -> Shape:
    n, c, h, w = scope.image()
    weight, groups = scope.weight(), scope.op.fields["groups"]
    fits = len(weight) == 4 and min(weight) > 0 and weight[1] * groups == c and weight[0] % groups == 0
    fits = fits and weight[2] * weight[3] <= MAX_TAPS
    scope.need(fits, f"weight of shape {weight} with {groups} groups does not fit {c} channels")
    sizes = []
    fields = scope.pairs("stride", "padding", "dilation")
    for size, k, s, p, d in zip((h, w), weight[2:], *fields, strict=True):
        count = windows(size, k, stride=s, padding=p, dilation=d)
        scope.need(count > 0 and size > 0, f"kernel {weight[2:]} is larger than the padded input of {(h, w)}")
        sizes.append(count)
    return scope.finish((n, weight[0], *sizes), weight[0])


def conv_transpose(scope: Scope) -> Shape:
    n, c, h, w = scope.image()
    weight, groups = scope.weight(), scope.op.fields["groups"]
    fits = len(weight) == 4 and min(weight) > 0 and weight[0] == c and c % groups == 0
    scope.need(fits and weight[2] * weight[3] <= MAX_TAPS, f"weight of shape {weight} does not fit {c} channels")
    scope.need(h > 0 and w > 0, f"the input of shape {scope.inputs[0]} is empty")
    fields = scope.pairs("stride", "padding", "dilation", "output_padding")
    sizes = []
    for size, k, s, p, d, more in zip((h, w), weight[2:], *fields, strict=True):
        scope.need(more < max(s, d), f"output_padding {more} must be below stride {s} or dilation {d}")
        sizes.append((size - 1) * s - 2 * p + d * (k - 1) + more + 1)
    scope.need(min(sizes) > 0, f"the output would have size {sizes}")
    return scope.finish((n, weight[1] * groups, *sizes), weight[1] * groups)


def linear(scope: Scope) -> Shape:
    shape, weight = scope.inputs[0], scope.weight()
    fits = len(weight) == 2 and min(weight) > 0 and len(shape) > 0 and shape[-1] == weight[1]
    scope.need(fits, f"weight of shape {weight} does not fit an input of {shape}")
    return scope.finish((*shape[:-1], weight[0]), weight[0])


def pool(scope: Scope) -> Shape:
    n, c, h, w = scope.image()
    dilation, ceil_mode, sizes = scope.op.fields.get("dilation", (1, 1)), scope.op.fields["ceil_mode"], []
    for size, k, s, p, d in zip((h, w), *scope.pairs("kernel", "stride", "padding"), dilation, strict=True):
        span = size + 2 * p - d * (k - 1) - 1
        # With ceil_mode a window may stick out, also the only one.
        fits = span > (-s if ceil_mode else -1) and size > 0 and 2 * p <= k <= MAX_TAPS
        scope.need(fits, f"kernel {k}, padding {p} do not fit a size of {size}")
        sizes.append(windows(size, k, stride=s, padding=p, dilation=d, ceil_mode=ceil_mode))
    return (n, c, *sizes)


def adaptive(scope: Scope) -> Shape:
    n, c, h, w = scope.image()
    scope.need(h > 0 and w > 0, "the input is empty")
    return (n, c, *scope.op.fields["size"])


def mean(scope: Scope) -> Shape:
    shape = scope.inputs[0]
    axes = scope.axes(scope.op.fields["axes"], len(shape))
    scope.need(all(shape[a] > 0 for a in axes), f"mean over an empty axis of {shape}")
    if scope.op.fields["keepdim"]:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def binary(scope: Scope) -> Shape:
    value = scope.op.fields.get("value")
    scope.need((value is None) == (len(scope.inputs) == 2), "needs two inputs, or one input and a value")
    return _broadcast(scope, scope.inputs)


def _broadcast(scope: Scope, shapes: Sequence[Shape]) -> Shape:
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError as error:
        raise ValueError(f"{scope.op}: shapes {shapes} cannot be broadcast") from error


def concat(scope: Scope) -> Shape:
    first = scope.inputs[0]
    axis = scope.axis(scope.op.fields["axis"], len(first))
    for shape in scope.inputs:
        same = len(shape) == len(first) and all(a == axis or shape[a] == first[a] for a in range(len(first)))
        scope.need(same, f"shapes {scope.inputs} differ outside of axis {axis}")
    return tuple(sum(s[a] for s in scope.inputs) if a == axis else n for a, n in enumerate(first))


def softmax(scope: Scope) -> Shape:
    scope.axis(scope.op.fields["axis"], len(scope.inputs[0]))
    return scope.inputs[0]


def layer_norm(scope: Scope) -> Shape:
    shape = scope.inputs[0]
    axes = sorted(scope.axes(scope.op.fields["axes"], len(shape)))
    scope.need(axes == list(range(len(shape) - len(axes), len(shape))), f"axes {axes} must be the last ones")
    count = math.prod(shape[len(shape) - len(axes) :])
    scope.need(count > 0, f"shape {shape} is empty")
    scope.vector("weight", count)
    scope.vector("bias", count)
    return shape


def scale_shift(scope: Scope) -> Shape:
    shape = scope.inputs[0]
    scope.need(len(shape) >= 2, f"needs a channel axis, the input has shape {shape}")
    scope.vector("scale", shape[1])
    scope.vector("shift", shape[1])
    return shape


def lookup(scope: Scope) -> Shape:
    scope.vector("table", 256)
    return scope.inputs[0]


def reshape(scope: Scope) -> Shape:
    shape = [scope.batch if n is None else n for n in scope.op.fields["shape"]]
    total, rest = math.prod(scope.inputs[0]), math.prod([n for n in shape if n != -1])
    scope.need(shape.count(-1) <= 1, f"shape {shape} has more than one -1")
    if -1 in shape:
        scope.need(rest > 0 and total % rest == 0, f"{scope.inputs[0]} cannot become {shape}")
        shape[shape.index(-1)] = total // rest
    scope.need(math.prod(shape) == total, f"{scope.inputs[0]} cannot become {shape}")
    return tuple(shape)


def permute(scope: Scope) -> Shape:
    shape = scope.inputs[0]
    axes = scope.axes(scope.op.fields["axes"], len(shape))
    scope.need(len(axes) == len(shape), f"axes {axes} must be all of {len(shape)}")
    return tuple(shape[a] for a in axes)


def take(scope: Scope) -> Shape:
    shape, fields = scope.inputs[0], scope.op.fields
    axis = scope.axis(fields["axis"], len(shape))
    count = len(range(*slice(fields.get("start"), fields.get("stop"), fields["step"]).indices(shape[axis])))
    return tuple(count if a == axis else n for a, n in enumerate(shape))


def matmul(scope: Scope) -> Shape:
    a, b = scope.inputs
    scope.need(len(a) >= 2 and len(b) >= 2 and a[-1] == b[-2], f"shapes {a} and {b} cannot be multiplied")
    return (*_broadcast(scope, (a[:-2], b[:-2])), a[-2], b[-1])


def attention(scope: Scope) -> Shape:
    q, k, v = scope.inputs
    fits = 2 <= len(q) == len(k) == len(v) and q[-1] == k[-1] and k[-2] == v[-2] and min(len(q), 6) == len(q)
    scope.need(fits and q[:-2] == k[:-2] == v[:-2], f"shapes {q}, {k}, {v} do not fit together")
    scope.need(k[-2] > 0, "there are no keys")
    mask = scope.op.fields.get("mask")
    if mask is not None:
        scores = (*q[:-1], k[-2])
        fits = _broadcast(scope, (scores, scope.weights[mask].shape)) == scores
        scope.need(fits, f"mask of shape {scope.weights[mask].shape} does not fit scores of {scores}")
    return (*q[:-1], v[-1])


def resize(scope: Scope) -> Shape:
    n, c, h, w = scope.image()
    size: Any = scope.op.fields.get("size")
    scale: Any = scope.op.fields.get("scale")
    scope.need((size is None) != (scale is None), "needs either a size or a scale")
    sizes = tuple(size) if size is not None else (int(h * scale[0]), int(w * scale[1]))
    scope.need(min(*sizes, h, w) > 0, f"{(h, w)} cannot become {sizes}")
    return (n, c, *sizes)


def pad(scope: Scope) -> Shape:
    n, c, h, w = scope.image()
    top, bottom, left, right = scope.op.fields["padding"]
    mode = scope.op.fields["mode"]
    for size, before, behind in ((h, top, bottom), (w, left, right)):
        # What is mirrored lies behind the edge; what is repeated is in the image once; an edge needs a pixel.
        most = {"reflect": size - 1, "circular": size}.get(mode, MAX_ELEMENTS)
        fits = size > 0 and max(before, behind) <= most
        scope.need(fits, f"padding {before} and {behind} does not fit a size of {size} in mode {mode}")
    return (n, c, h + top + bottom, w + left + right)
