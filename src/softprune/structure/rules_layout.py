"""Rules for operations that move, join, cut or pool what a channel holds."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from softprune.structure.channels import Flow, Values, Walk, shape

# They keep a constant plane as it is.
PLANES = (
    "upsample_nearest1d.vec",
    "upsample_nearest2d.vec", "upsample_nearest3d.vec", "upsample_bilinear2d.vec", "upsample_linear1d.vec",
    "upsample_bicubic2d.vec", "max_pool1d", "max_pool2d", "max_pool3d",
)  # fmt: skip
AVERAGES = ("avg_pool1d", "avg_pool2d", "avg_pool3d")
ADAPTIVE = ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")


def plane(walk: Walk, node: Node) -> Flow | None:
    """Pools and resizing: channel by channel."""
    x = walk.flow(node.args[0])
    if x is None or x.axis != 1:
        walk.stay(node)
        return None
    return x


def pool(walk: Walk, node: Node) -> Flow | None:
    """A plane whose numbers are averaged, which costs as many additions."""
    x = plane(walk, node)
    if x is not None:
        walk.pools.append((x.channels, math.prod(shape(node.args[0])[2:])))
    return x


def average(walk: Walk, node: Node) -> Flow | None:
    """An average next to padding is smaller."""
    x = pool(walk, node)
    padding = node.args[3] if len(node.args) > 3 else [0]
    if x is None or not any(padding):  # type: ignore[arg-type]
        return x
    made = walk.tape.note(lambda _, held: torch.where(held == 0, 0.0, torch.nan), x.constant)
    return Flow(x.axis, x.channels, made)


def mean(walk: Walk, node: Node) -> Flow | None:
    """aten.mean.dim(x, axes, keepdim), over all but channels."""
    x = walk.flow(node.args[0])
    dimensions = len(shape(node.args[0]))
    axes = {int(a) % dimensions for a in (node.args[1] or range(dimensions))}  # type: ignore[union-attr,arg-type]
    if x is None or x.axis in axes:
        walk.stay(node)
        return None
    if x.axis == 1 and axes == set(range(2, dimensions)) and len(axes) > 1:
        walk.pools.append((x.channels, math.prod(shape(node.args[0])[2:])))
    kept = len(node.args) > 2 and bool(node.args[2])
    axis = x.axis if kept else x.axis - sum(1 for a in axes if a < x.axis)
    return Flow(axis, x.channels, x.constant)


def reshape(walk: Walk, node: Node) -> Flow | None:
    """Channels stay on their axis, or every number of a channel becomes one."""
    x = walk.flow(node.args[0])
    before, after = shape(node.args[0]), shape(node)
    if x is None or x.axis != 1 or len(after) < 2 or str(before[0]) != str(after[0]):
        walk.stay(node)
        return None
    if after[1] == before[1]:
        return x
    inner = math.prod(before[2:])
    if len(after) == 2 and after[1] == before[1] * inner:
        channels = [channel for channel in x.channels for _ in range(inner)]
        return Flow(1, channels, walk.tape.note(lambda _, held: held.repeat_interleave(inner), x.constant))
    walk.stay(node)
    return None


def permute(walk: Walk, node: Node) -> Flow | None:
    """aten.permute(x, axes) and aten.transpose.int(x, one, other)."""
    x = walk.flow(node.args[0])
    if x is None:
        return None
    dimensions = len(shape(node))
    order = list(range(dimensions))
    if str(node.target).startswith("aten.transpose"):
        one, other = (int(a) % dimensions for a in node.args[1:3])  # type: ignore[arg-type]
        order[one], order[other] = order[other], order[one]
    else:
        order = [int(a) % dimensions for a in node.args[1]]  # type: ignore[union-attr,arg-type]
    return Flow(order.index(x.axis), x.channels, x.constant)


def squeeze(walk: Walk, node: Node) -> Flow | None:
    """aten.squeeze.dims, aten.squeeze.dim, aten.unsqueeze: an axis of size one comes or goes."""
    x = walk.flow(node.args[0])
    if x is None:
        return None
    before, after = len(shape(node.args[0])), len(shape(node))
    given = node.args[1] if isinstance(node.args[1], list | tuple) else [node.args[1]]
    if after > before:
        place = int(given[0]) % after  # type: ignore[arg-type,call-overload]
        return Flow(x.axis + (place <= x.axis), x.channels, x.constant)
    places = {int(a) % before for a in given}  # type: ignore[arg-type,call-overload]
    gone = {a for a in places if shape(node.args[0])[a] == 1}
    if x.axis in gone:
        walk.stay(node)
        return None
    return Flow(x.axis - sum(1 for a in gone if a < x.axis), x.channels, x.constant)


def cut(walk: Walk, node: Node) -> Flow | None:
    """aten.slice.Tensor(x, axis, start, end, step)."""
    x = walk.flow(node.args[0])
    axis = (int(node.args[1]) if len(node.args) > 1 else 0) % len(shape(node))  # type: ignore[arg-type]
    if x is not None and axis == x.axis and shape(node)[axis] != shape(node.args[0])[axis]:
        walk.stay(node, "channels are picked by their number")
        return None
    return x


def pad(walk: Walk, node: Node) -> Flow | None:
    """aten.pad(x, widths, mode, value): widths from the last axis on."""
    x = walk.flow(node.args[0])
    if x is None:
        return None
    widths = [int(w) for w in node.args[1]]  # type: ignore[union-attr,arg-type]
    mode = node.args[2] if len(node.args) > 2 else "constant"
    given = node.args[3] if len(node.args) > 3 else None
    value = 0.0 if given is None else float(given)  # type: ignore[arg-type]
    place = 2 * (len(shape(node)) - 1 - x.axis)
    before, behind = (widths[place], widths[place + 1]) if place + 1 < len(widths) else (0, 0)
    others = [w for position, w in enumerate(widths) if position not in (place, place + 1)]
    constant = x.constant
    if any(others) and mode == "constant":
        constant = walk.tape.note(lambda _, held: torch.where(held == value, held, torch.nan), constant)
    if not before and not behind:
        return Flow(x.axis, x.channels, constant)
    if mode != "constant" or min(before, behind) < 0:
        walk.stay(node, "channels are padded with others, or cut off")
        return None
    ends = [walk.channels.fresh(width) for width in (before, behind)]
    for end in ends:
        walk.channels.pin(end, f"{node.name}: padding of channels has a fixed width")
    edges = [torch.full((width,), value, dtype=torch.double) for width in (before, behind)]
    made = walk.tape.note(lambda _, held: torch.cat([edges[0], held, edges[1]]), constant)
    return Flow(x.axis, [*ends[0], *x.channels, *ends[1]], made)


def concatenate(walk: Walk, node: Node) -> Flow | None:
    """aten.cat(tensors, axis)."""
    tensors: Any = node.args[0]
    axis = (int(node.args[1]) if len(node.args) > 1 else 0) % len(shape(node))  # type: ignore[arg-type]
    parts = [walk.flow(n) for n in tensors]
    found = [p for p in parts if p is not None]
    if len(found) < len(parts) or len({p.axis for p in found}) > 1:
        walk.stay(node, "not all of the tensors are followed")
        return None
    if axis == found[0].axis:
        channels = [channel for p in found for channel in p.channels]
        made = walk.tape.note(lambda _, *held: torch.cat(held), *(p.constant for p in found))
        return Flow(axis, channels, made)
    for p in found[1:]:
        walk.channels.join(found[0].channels, p.channels)
    made = walk.tape.note(_same, *(p.constant for p in found))
    return Flow(found[0].axis, found[0].channels, made)


def _same(_: Values, *held: Tensor) -> Tensor:
    """What all hold, NaN where they differ."""
    stacked = torch.stack(held)
    return torch.where((stacked == stacked[0]).all(0), stacked[0], torch.nan)


RULES: dict[str, Any] = {f"aten.{name}" if "." in name else f"aten.{name}.default": plane for name in PLANES}
RULES |= {f"aten.{name}.default": average for name in AVERAGES}
RULES |= {f"aten.{name}.default": pool for name in ADAPTIVE}
RULES |= {
    "aten.mean.dim": mean,
    "aten.view.default": reshape,
    "aten.reshape.default": reshape,
    "aten._unsafe_view.default": reshape,
    "aten.flatten.using_ints": reshape,
    "aten.permute.default": permute,
    "aten.transpose.int": permute,
    "aten.squeeze.dims": squeeze,
    "aten.squeeze.dim": squeeze,
    "aten.unsqueeze.default": squeeze,
    "aten.slice.Tensor": cut,
    "aten.pad.default": pad,
    "aten.constant_pad_nd.default": pad,
    "aten.cat.default": concatenate,
}
