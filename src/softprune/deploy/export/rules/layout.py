"""Operations that move elements: reshapes, permutations, slices, joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from softprune.deploy.export.graph import Shape
from softprune.deploy.export.lowering import Lowering, UnsupportedError
from softprune.deploy.export.rules.argument import axis_of, length
from softprune.deploy.export.rules.spread import filled


def reshaped(lowering: Lowering, value: str, shape: Shape) -> str:
    """The same elements in another shape."""
    if lowering.graph.shapes[value] == shape:
        return value
    return lowering.emit("reshape", [value], shape, shape=lowering.sizes(shape, "a shape"))


def _reshape(lowering: Lowering, x: Node, *rest: Any, **more: Any) -> str:
    return reshaped(lowering, lowering.value(lowering[x]), lowering.shape(lowering.node))


def _same(lowering: Lowering, x: Node, *rest: Any, **more: Any) -> Any:
    return lowering[x]


def _permuted(lowering: Lowering, x: Node, order: list[int]) -> str:
    return lowering.emit("permute", [lowering.value(lowering[x])], axes=order)


def _permute(lowering: Lowering, x: Node, axes: Sequence[int]) -> str:
    return _permuted(lowering, x, [axis_of(lowering, x, axis) for axis in axes])


def _transpose(lowering: Lowering, x: Node, a: int = 0, b: int = 1) -> str:
    order = list(range(len(lowering.shape(x))))
    first, second = axis_of(lowering, x, a), axis_of(lowering, x, b)
    order[first], order[second] = order[second], order[first]
    return _permuted(lowering, x, order)


def cut(lowering: Lowering, value: str, axis: int, start: int, stop: int, *, step: int = 1) -> str:
    """The elements from start to before stop along one axis."""
    shape = lowering.graph.shapes[value]
    if (start, stop, step) == (0, shape[axis], 1):
        return value
    after = (*shape[:axis], len(range(start, stop, step)), *shape[axis + 1 :])
    return lowering.emit("slice", [value], after, axis=axis, start=start, stop=stop, step=step)


def _slice(
    lowering: Lowering, x: Node, axis: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> str:
    place = axis_of(lowering, x, axis)
    if lowering.shape(x) == lowering.shape(lowering.node):
        return lowering.value(lowering[x])
    size = length(lowering, x, place)
    first, last, _ = slice(start, stop).indices(size)
    return cut(lowering, lowering.value(lowering[x]), place, first, max(first, last), step=step)


def _select(lowering: Lowering, x: Node, axis: int, index: int) -> str:
    place = axis_of(lowering, x, axis)
    index %= length(lowering, x, place)
    one = cut(lowering, lowering.value(lowering[x]), place, index, index + 1)
    return reshaped(lowering, one, lowering.shape(lowering.node))


def _parts(lowering: Lowering, x: Node, axis: int, sizes: Sequence[int]) -> list[str]:
    value, place = lowering.value(lowering[x]), axis_of(lowering, x, axis)
    total, start, parts = length(lowering, x, place), 0, []
    for size in sizes:
        parts.append(cut(lowering, value, place, start, min(start + size, total)))
        start += size
    return parts


def _split(lowering: Lowering, x: Node, size: int, axis: int = 0) -> list[str]:
    total = length(lowering, x, axis_of(lowering, x, axis))
    return _parts(lowering, x, axis, [size] * (-(-total // size)))


def _split_with_sizes(lowering: Lowering, x: Node, sizes: Sequence[int], axis: int = 0) -> list[str]:
    return _parts(lowering, x, axis, sizes)


def _unbind(lowering: Lowering, x: Node, axis: int = 0) -> list[str]:
    place = axis_of(lowering, x, axis)
    shape = lowering.shape(x)
    rest = (*shape[:place], *shape[place + 1 :])
    return [reshaped(lowering, one, rest) for one in _split(lowering, x, 1, axis)]


def _joined(lowering: Lowering, parts: list[str], axis: int) -> str:
    return parts[0] if len(parts) == 1 else lowering.emit("concat", parts, axis=axis)


def _cat(lowering: Lowering, parts: Sequence[Node], axis: int = 0) -> str:
    # torch lets an empty vector be joined to anything.
    full = [part for part in parts if lowering.shape(part) != (0,)]
    place = axis_of(lowering, full[0], axis)
    length(lowering, full[0], place)
    return _joined(lowering, [lowering.value(lowering[part]) for part in full], place)


def _stack(lowering: Lowering, parts: Sequence[Node], axis: int = 0) -> str:
    shape = lowering.shape(parts[0])
    place = axis % (len(shape) + 1)
    one = (*shape[:place], 1, *shape[place:])
    return _joined(lowering, [reshaped(lowering, lowering.value(lowering[part]), one) for part in parts], place)


def _expand(lowering: Lowering, x: Node, sizes: Sequence[Any], **more: Any) -> Any:
    shape = lowering.shape(lowering.node)
    found = lowering[x]
    if isinstance(found, Tensor):
        return filled(lowering, shape, found)
    value = reshaped(lowering, found, (1,) * (len(shape) - len(lowering.shape(x))) + lowering.shape(x))
    before = lowering.graph.shapes[value]
    if before == shape:
        return value
    grown: Shape = tuple(1 if size == old else size for size, old in zip(shape, before, strict=True))
    zeros = filled(lowering, grown, torch.zeros(()))
    return lowering.emit("add", [value, zeros])


def _repeat(lowering: Lowering, x: Node, times: Sequence[Any]) -> str:
    value = lowering.value(lowering[x])
    value = reshaped(lowering, value, (1,) * (len(times) - len(lowering.shape(x))) + lowering.shape(x))
    shape = lowering.graph.shapes[value]
    target = lowering.shape(lowering.node)
    for axis, count in enumerate(times):
        if isinstance(count, int):
            shape = (*shape[:axis], target[axis], *shape[axis + 1 :])
            value = value if count == 1 else lowering.emit("concat", [value] * count, shape, axis=axis)
    if shape == target:
        return value
    grown: Shape = tuple(1 if size == old else size for size, old in zip(target, shape, strict=True))
    return lowering.emit("add", [value, filled(lowering, grown, torch.zeros(()))])


def _roll(lowering: Lowering, x: Node, shifts: Sequence[int], axes: Sequence[int] = ()) -> str:
    if not axes:
        raise UnsupportedError("a roll over all elements at once is not in the format")
    value = lowering.value(lowering[x])
    for shift, axis in zip(shifts, axes, strict=True):
        place = axis_of(lowering, x, axis)
        size = length(lowering, x, place)
        if shift % size:
            tail = cut(lowering, value, place, size - shift % size, size)
            head = cut(lowering, value, place, 0, size - shift % size)
            value = lowering.emit("concat", [tail, head], axis=place)
    return value


def _pixel_shuffle(lowering: Lowering, x: Node, factor: int) -> str:
    batch, channels, rows, columns = lowering.shape(x)
    assert isinstance(channels, int)
    apart = (batch, channels // factor**2, factor, factor, rows, columns)
    value = reshaped(lowering, lowering.value(lowering[x]), apart)
    order = [0, 1, 4, 2, 5, 3]
    mixed = lowering.emit("permute", [value], tuple(apart[axis] for axis in order), axes=order)
    return reshaped(lowering, mixed, lowering.shape(lowering.node))


def _filled(content: float) -> Callable[..., str]:
    def rule(lowering: Lowering, *rest: Any, **more: Any) -> str:
        return filled(lowering, lowering.shape(lowering.node), torch.tensor(content))

    return rule


def _full(lowering: Lowering, sizes: Any, content: Any, *rest: Any, **more: Any) -> str:
    return filled(lowering, lowering.shape(lowering.node), torch.tensor(float(content)))


def _new_full(lowering: Lowering, x: Node, sizes: Any, content: Any, **more: Any) -> str:
    return _full(lowering, sizes, content)


def _getitem(lowering: Lowering, parts: Node, index: int) -> Any:
    return lowering[parts][index]


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
