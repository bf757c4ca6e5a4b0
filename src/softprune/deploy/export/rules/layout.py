"""Operations that move elements: reshapes, permutations, slices, joins; and constants that are as many as the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from softprune.deploy.export.graph_builder import GraphBuilder, UnsupportedError, axis_of, length
from softprune.deploy.format.graph import SymbolicShape

# Constants that are as many as the batch.


def filled(builder: GraphBuilder, shape: SymbolicShape, content: Tensor) -> str:
    """A value of a shape that may hold the batch, with ``content`` broadcast into it."""
    flexible = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
    fixed = [size if isinstance(size, int) else 1 for size in shape]
    full = content.detach().to(torch.float32).expand(fixed).contiguous()
    value = builder.value(full)
    if not flexible:
        return value
    if len(flexible) > 1 or shape[flexible[0]] != builder.batch:
        raise UnsupportedError(f"a constant of shape {shape} cannot be made for a batch of any size")
    return builder.emit("add", [batch_zeros(builder, len(shape), flexible[0]), value], shape)


def batch_zeros(builder: GraphBuilder, ndim: int, axis: int) -> str:
    """Zeros, one per sample, along one axis of a shape of ones.

    The format knows the size of the batch only through values, so the zeros are made of the first number of each
    sample: bounded first, because infinity times zero would be no zero.
    """
    name, sizes = next(iter(builder.graph.inputs.items()))
    shape = list(builder.graph.shapes[name])
    for position in range(1, len(sizes)):
        shape[position] = 1
        name = builder.emit("slice", [name], tuple(shape), axis=position, start=0, stop=1, step=1)
    name = builder.emit("tanh", [name], tuple(shape))
    name = builder.emit("mul", [name], tuple(shape), value=0.0)
    ones: list[int | None] = [None if position == axis else 1 for position in range(ndim)]
    after: SymbolicShape = tuple(builder.batch if size is None else size for size in ones)
    return builder.emit("reshape", [name], after, shape=ones)


def reshaped(builder: GraphBuilder, value: str, shape: SymbolicShape) -> str:
    """The same elements in another shape."""
    if builder.graph.shapes[value] == shape:
        return value
    return builder.emit("reshape", [value], shape, shape=builder.sizes(shape, "a shape"))


def _reshape(builder: GraphBuilder, x: Node, *rest: Any, **more: Any) -> str:
    return reshaped(builder, builder.value(builder[x]), builder.shape(builder.node))


def _same(builder: GraphBuilder, x: Node, *rest: Any, **more: Any) -> Any:
    return builder[x]


def _permuted(builder: GraphBuilder, x: Node, order: list[int]) -> str:
    return builder.emit("permute", [builder.value(builder[x])], axes=order)


def _permute(builder: GraphBuilder, x: Node, axes: Sequence[int]) -> str:
    return _permuted(builder, x, [axis_of(builder, x, axis) for axis in axes])


def _transpose(builder: GraphBuilder, x: Node, a: int = 0, b: int = 1) -> str:
    order = list(range(len(builder.shape(x))))
    first, second = axis_of(builder, x, a), axis_of(builder, x, b)
    order[first], order[second] = order[second], order[first]
    return _permuted(builder, x, order)


def cut(builder: GraphBuilder, value: str, axis: int, start: int, stop: int, *, step: int = 1) -> str:
    """The elements from start to before stop along one axis."""
    shape = builder.graph.shapes[value]
    if (start, stop, step) == (0, shape[axis], 1):
        return value
    after = (*shape[:axis], len(range(start, stop, step)), *shape[axis + 1 :])
    return builder.emit("slice", [value], after, axis=axis, start=start, stop=stop, step=step)


def _slice(
    builder: GraphBuilder, x: Node, axis: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> str:
    place = axis_of(builder, x, axis)
    if builder.shape(x) == builder.shape(builder.node):
        return builder.value(builder[x])
    size = length(builder, x, place)
    first, last, _ = slice(start, stop).indices(size)
    return cut(builder, builder.value(builder[x]), place, first, max(first, last), step=step)


def _select(builder: GraphBuilder, x: Node, axis: int, index: int) -> str:
    place = axis_of(builder, x, axis)
    index %= length(builder, x, place)
    one = cut(builder, builder.value(builder[x]), place, index, index + 1)
    return reshaped(builder, one, builder.shape(builder.node))


def _parts(builder: GraphBuilder, x: Node, axis: int, sizes: Sequence[int]) -> list[str]:
    value, place = builder.value(builder[x]), axis_of(builder, x, axis)
    total, start, parts = length(builder, x, place), 0, []
    for size in sizes:
        parts.append(cut(builder, value, place, start, min(start + size, total)))
        start += size
    return parts


def _split(builder: GraphBuilder, x: Node, size: int, axis: int = 0) -> list[str]:
    total = length(builder, x, axis_of(builder, x, axis))
    return _parts(builder, x, axis, [size] * (-(-total // size)))


def _split_with_sizes(builder: GraphBuilder, x: Node, sizes: Sequence[int], axis: int = 0) -> list[str]:
    return _parts(builder, x, axis, sizes)


def _unbind(builder: GraphBuilder, x: Node, axis: int = 0) -> list[str]:
    place = axis_of(builder, x, axis)
    shape = builder.shape(x)
    rest = (*shape[:place], *shape[place + 1 :])
    return [reshaped(builder, one, rest) for one in _split(builder, x, 1, axis)]


def _joined(builder: GraphBuilder, parts: list[str], axis: int) -> str:
    return parts[0] if len(parts) == 1 else builder.emit("concat", parts, axis=axis)


def _cat(builder: GraphBuilder, parts: Sequence[Node], axis: int = 0) -> str:
    # torch lets an empty vector be joined to anything.
    full = [part for part in parts if builder.shape(part) != (0,)]
    place = axis_of(builder, full[0], axis)
    length(builder, full[0], place)
    return _joined(builder, [builder.value(builder[part]) for part in full], place)


def _stack(builder: GraphBuilder, parts: Sequence[Node], axis: int = 0) -> str:
    shape = builder.shape(parts[0])
    place = axis % (len(shape) + 1)
    one = (*shape[:place], 1, *shape[place:])
    return _joined(builder, [reshaped(builder, builder.value(builder[part]), one) for part in parts], place)


def _expand(builder: GraphBuilder, x: Node, sizes: Sequence[Any], **more: Any) -> Any:
    shape = builder.shape(builder.node)
    found = builder[x]
    if isinstance(found, Tensor):
        return filled(builder, shape, found)
    value = reshaped(builder, found, (1,) * (len(shape) - len(builder.shape(x))) + builder.shape(x))
    before = builder.graph.shapes[value]
    if before == shape:
        return value
    grown: SymbolicShape = tuple(1 if size == old else size for size, old in zip(shape, before, strict=True))
    zeros = filled(builder, grown, torch.zeros(()))
    return builder.emit("add", [value, zeros])


def _repeat(builder: GraphBuilder, x: Node, times: Sequence[Any]) -> str:
    value = builder.value(builder[x])
    value = reshaped(builder, value, (1,) * (len(times) - len(builder.shape(x))) + builder.shape(x))
    shape = builder.graph.shapes[value]
    target = builder.shape(builder.node)
    for axis, count in enumerate(times):
        if isinstance(count, int):
            shape = (*shape[:axis], target[axis], *shape[axis + 1 :])
            value = value if count == 1 else builder.emit("concat", [value] * count, shape, axis=axis)
    if shape == target:
        return value
    grown: SymbolicShape = tuple(1 if size == old else size for size, old in zip(target, shape, strict=True))
    return builder.emit("add", [value, filled(builder, grown, torch.zeros(()))])


def _roll(builder: GraphBuilder, x: Node, shifts: Sequence[int], axes: Sequence[int] = ()) -> str:
    if not axes:
        raise UnsupportedError("a roll over all elements at once is not in the format")
    value = builder.value(builder[x])
    for shift, axis in zip(shifts, axes, strict=True):
        place = axis_of(builder, x, axis)
        size = length(builder, x, place)
        if shift % size:
            tail = cut(builder, value, place, size - shift % size, size)
            head = cut(builder, value, place, 0, size - shift % size)
            value = builder.emit("concat", [tail, head], axis=place)
    return value


def _pixel_shuffle(builder: GraphBuilder, x: Node, factor: int) -> str:
    batch, channels, rows, columns = builder.shape(x)
    assert isinstance(channels, int)
    apart = (batch, channels // factor**2, factor, factor, rows, columns)
    value = reshaped(builder, builder.value(builder[x]), apart)
    order = [0, 1, 4, 2, 5, 3]
    mixed = builder.emit("permute", [value], tuple(apart[axis] for axis in order), axes=order)
    return reshaped(builder, mixed, builder.shape(builder.node))


def _filled(content: float) -> Callable[..., str]:
    def rule(builder: GraphBuilder, *rest: Any, **more: Any) -> str:
        return filled(builder, builder.shape(builder.node), torch.tensor(content))

    return rule


def _full(builder: GraphBuilder, sizes: Any, content: Any, *rest: Any, **more: Any) -> str:
    return filled(builder, builder.shape(builder.node), torch.tensor(float(content)))


def _new_full(builder: GraphBuilder, x: Node, sizes: Any, content: Any, **more: Any) -> str:
    return _full(builder, sizes, content)


def _getitem(builder: GraphBuilder, parts: Node, index: int) -> Any:
    return builder[parts][index]


_RESHAPES = ("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze")
_SAME = ("clone", "contiguous", "alias", "detach", "detach_", "dropout", "lift_fresh_copy", "_to_copy")

RULES: dict[str, Callable[..., Any]] = {
    "<built-in function getitem>": _getitem,
    **{f"aten.{name}.default": _reshape for name in _RESHAPES},
    **{f"aten.{name}": _reshape for name in ("squeeze.dim", "squeeze.dims", "flatten.using_ints", "unflatten.int")},
    **{f"aten.{name}.default": _same for name in _SAME},
    **{f"aten.to.{name}": _same for name in ("dtype", "dtype_layout", "device", "other")},
    "aten.feature_dropout.default": _same,
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.t.default": _transpose,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split_with_sizes,
    "aten.unbind.int": _unbind,
    "aten.cat.default": _cat,
    "aten.stack.default": _stack,
    "aten.expand.default": _expand,
    "aten.repeat.default": _repeat,
    "aten.roll.default": _roll,
    "aten.pixel_shuffle.default": _pixel_shuffle,
    "aten.full.default": _full,
    "aten.new_full.default": _new_full,
    **{f"aten.{name}.default": _filled(0.0) for name in ("zeros", "new_zeros", "zeros_like")},
    **{f"aten.{name}.default": _filled(1.0) for name in ("ones", "new_ones", "ones_like")},
}
