"""Operations that move elements: reshapes, permutations, slices, joins; and constants with one part per sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from softprune.deploy.export.translate import GraphBuilder, Rules, UnsupportedError, aten
from softprune.deploy.format.graph import SymbolicShape

# Constants with one part per sample.


def filled(builder: GraphBuilder, shape: SymbolicShape, content: Tensor) -> str:
    """A value of a shape that may hold the batch, with ``content`` broadcast into it."""
    flexible = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
    fixed = [size if isinstance(size, int) else 1 for size in shape]
    value = builder.value(content.detach().to(torch.float32).expand(fixed).contiguous())
    if not flexible:
        return value
    if len(flexible) > 1 or shape[flexible[0]] != builder.batch:
        raise UnsupportedError(f"a constant of shape {shape} cannot be made for a batch of any size")
    return builder.emit("add", [_batch_zeros(builder, len(shape), flexible[0]), value], shape)


def _batch_zeros(builder: GraphBuilder, ndim: int, axis: int) -> str:
    """Zeros, one per sample, along one axis of a shape of ones.

    The format knows the size of the batch only through values, so the zeros are made of the first number of each
    sample: bounded first, because infinity times zero is not zero.
    """
    value = next(iter(builder.graph.inputs))
    for position in range(1, len(builder.shape(value))):
        shape = builder.shape(value)
        one = (*shape[:position], 1, *shape[position + 1 :])
        value = builder.emit("slice", [value], one, axis=position, start=0, stop=1, step=1)
    value = builder.emit("tanh", [value], builder.shape(value))
    value = builder.emit("mul", [value], builder.shape(value), value=0.0)
    after = tuple(builder.batch if position == axis else 1 for position in range(ndim))
    return builder.emit("reshape", [value], after, shape=[None if position == axis else 1 for position in range(ndim)])


def _full(builder: GraphBuilder, content: float) -> str:
    return filled(builder, builder.made, torch.tensor(float(content)))


# Moves within a value.


def _permute(builder: GraphBuilder, x: Node, axes: Sequence[int]) -> str:
    return builder.emit("permute", [x], axes=[builder.axis(x, axis) for axis in axes])


def _transpose(builder: GraphBuilder, x: Node, a: int = 0, b: int = 1) -> str:
    order = list(range(len(builder.shape(x))))
    order[a], order[b] = order[b], order[a]
    return _permute(builder, x, order)


def _pixel_shuffle(builder: GraphBuilder, x: Node, factor: int) -> str:
    batch, _, rows, columns = builder.shape(x)
    apart = (batch, builder.length(x, 1) // factor**2, factor, factor, rows, columns)
    order = [0, 1, 4, 2, 5, 3]
    mixed = builder.emit("permute", [builder.reshape(x, apart)], tuple(apart[axis] for axis in order), axes=order)
    return builder.reshape(mixed, builder.made)


def _cut(builder: GraphBuilder, value: str, axis: int, start: int, stop: int, step: int = 1) -> str:
    """The elements from start to before stop along one axis."""
    shape = builder.shape(value)
    if (start, stop, step) == (0, shape[axis], 1):
        return value
    after = (*shape[:axis], len(range(start, stop, step)), *shape[axis + 1 :])
    return builder.emit("slice", [value], after, axis=axis, start=start, stop=stop, step=step)


def _slice(
    builder: GraphBuilder, x: Node, axis: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> str:
    if builder.shape(x) == builder.made:
        return builder.value(x)
    first, last, _ = slice(start, stop).indices(builder.length(x, axis))
    return _cut(builder, builder.value(x), builder.axis(x, axis), first, max(first, last), step)


def _select(builder: GraphBuilder, x: Node, axis: int, index: int) -> str:
    index %= builder.length(x, axis)
    one = _cut(builder, builder.value(x), builder.axis(x, axis), index, index + 1)
    return builder.reshape(one, builder.made)


def _split(builder: GraphBuilder, x: Node, sizes: int | Sequence[int], axis: int = 0) -> list[str]:
    value, place, total = builder.value(x), builder.axis(x, axis), builder.length(x, axis)
    if isinstance(sizes, int):
        sizes = [sizes] * -(-total // sizes)
    starts = [sum(sizes[:position]) for position in range(len(sizes))]
    parts = zip(starts, sizes, strict=True)
    return [_cut(builder, value, place, start, min(start + size, total)) for start, size in parts]


def _unbind(builder: GraphBuilder, x: Node, axis: int = 0) -> list[str]:
    shape, place = builder.shape(x), builder.axis(x, axis)
    rest = (*shape[:place], *shape[place + 1 :])
    return [builder.reshape(one, rest) for one in _split(builder, x, 1, axis)]


def _roll(builder: GraphBuilder, x: Node, shifts: Sequence[int], axes: Sequence[int] = ()) -> str:
    if not axes:
        raise UnsupportedError("a roll over all elements at once is not in the format")
    value = builder.value(x)
    for shift, axis in zip(shifts, axes, strict=True):
        place, size = builder.axis(x, axis), builder.length(x, axis)
        if shift % size:
            tail = _cut(builder, value, place, size - shift % size, size)
            head = _cut(builder, value, place, 0, size - shift % size)
            value = builder.emit("concat", [tail, head], axis=place)
    return value


# Joins and copies.


def _joined(builder: GraphBuilder, parts: list[str], axis: int) -> str:
    return parts[0] if len(parts) == 1 else builder.emit("concat", parts, axis=axis)


def _cat(builder: GraphBuilder, parts: Sequence[Node], axis: int = 0) -> str:
    # torch lets an empty vector be joined to anything.
    full = [part for part in parts if builder.shape(part) != (0,)]
    builder.length(full[0], axis)
    return _joined(builder, [builder.value(part) for part in full], builder.axis(full[0], axis))


def _stack(builder: GraphBuilder, parts: Sequence[Node], axis: int = 0) -> str:
    shape = builder.shape(parts[0])
    place = axis % (len(shape) + 1)
    one = (*shape[:place], 1, *shape[place:])
    return _joined(builder, [builder.reshape(part, one) for part in parts], place)


def _with_axes(builder: GraphBuilder, x: Node, ndim: int) -> str:
    """A value with axes of size 1 in front, up to so many axes."""
    return builder.reshape(x, (1,) * (ndim - len(builder.shape(x))) + builder.shape(x))


def _grown(builder: GraphBuilder, value: str) -> str:
    """A value broadcast to the shape of the current node."""
    before, after = builder.shape(value), builder.made
    if before == after:
        return value
    missing = tuple(1 if new == old else new for new, old in zip(after, before, strict=True))
    return builder.emit("add", [value, filled(builder, missing, torch.zeros(()))])


def _expand(builder: GraphBuilder, x: Node, sizes: Sequence[Any], **more: Any) -> Any:
    found = builder[x]
    if isinstance(found, Tensor):
        return filled(builder, builder.made, found)
    return _grown(builder, _with_axes(builder, x, len(builder.made)))


def _repeat(builder: GraphBuilder, x: Node, times: Sequence[Any]) -> str:
    value = _with_axes(builder, x, len(times))
    for axis, count in enumerate(times):
        if isinstance(count, int) and count != 1:
            shape = builder.shape(value)
            shape = (*shape[:axis], builder.made[axis], *shape[axis + 1 :])
            value = builder.emit("concat", [value] * count, shape, axis=axis)
    return _grown(builder, value)


RULES: Rules = {
    "<built-in function getitem>": lambda builder, parts, index: builder[parts][index],
    **aten(
        lambda builder, x, *rest, **more: builder.reshape(x, builder.made),
        *("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims"),
        *("flatten.using_ints", "unflatten.int"),
    ),
    **aten(
        lambda builder, x, *rest, **more: builder[x],
        *("clone", "contiguous", "alias", "detach", "detach_", "dropout", "feature_dropout", "lift_fresh_copy"),
        *("_to_copy", "to.dtype", "to.dtype_layout", "to.device", "to.other"),
    ),
    **aten(_permute, "permute"),
    **aten(_transpose, "transpose.int", "t"),
    **aten(_pixel_shuffle, "pixel_shuffle"),
    **aten(_slice, "slice.Tensor"),
    **aten(_select, "select.int"),
    **aten(_split, "split.Tensor", "split_with_sizes"),
    **aten(_unbind, "unbind.int"),
    **aten(_roll, "roll"),
    **aten(_cat, "cat"),
    **aten(_stack, "stack"),
    **aten(_expand, "expand"),
    **aten(_repeat, "repeat"),
    **aten(lambda builder, sizes, content, *rest, **more: _full(builder, content), "full"),
    **aten(lambda builder, x, sizes, content, **more: _full(builder, content), "new_full"),
    **aten(lambda builder, *rest, **more: _full(builder, 0), "zeros", "new_zeros", "zeros_like"),
    **aten(lambda builder, *rest, **more: _full(builder, 1), "ones", "new_ones", "ones_like"),
}
