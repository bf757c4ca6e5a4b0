"""Rules by which channels are followed through operations; one that returns None has no channels to tell of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from softprune.structure.channels import Flow, Reader, Values, Walk, shape

# Operations that treat every number by itself, or number by number with another tensor.


def alone(walk: Walk, node: Node) -> Flow | None:
    """An operation on one tensor and numbers, element by element."""
    x = walk.flow(next(iter(node.all_input_nodes), None))
    if x is None or len(node.all_input_nodes) > 1:
        return walk.stay(node)
    return walk.after(x, lambda _, held: _apply(node, *(held if isinstance(a, Node) else a for a in node.args)))


def pair(walk: Walk, node: Node) -> Flow | None:
    """Two tensors, or a tensor and a number. One channel may act on all of the other tensor."""
    first, second = node.args[:2]
    if not isinstance(first, Node) or not isinstance(second, Node):
        return alone(walk, node)
    a, b = walk.flow(first), walk.flow(second)
    if a is None or b is None or len(shape(first)) != len(shape(second)) or a.axis != b.axis:
        return walk.stay(node, "one of the two is not followed")
    wide, narrow = sorted((a, b), key=lambda flow: len(flow.channels), reverse=True)
    count = len(wide.channels)
    if len(narrow.channels) == count:
        walk.channels.join(a.channels, b.channels)
    elif len(narrow.channels) == 1:
        walk.channels.pin(narrow.channels, f"{node.name}: it acts on all channels of another tensor")
    else:
        return walk.stay(node, "the two have different numbers of channels")

    multiplies = str(node.target).startswith("aten.mul")

    def made(_: Values, one: Tensor, other: Tensor) -> Tensor:
        one, other = one.expand(count), other.expand(count)
        result = _apply(node, one, other, *node.args[2:])
        # A product with zero is zero whatever the other factor is: activations are finite.
        return torch.where((one == 0) | (other == 0), 0.0, result) if multiplies else result

    return walk.after(wide, made, a.constant, b.constant)


def _apply(node: Node, *arguments: Any) -> Tensor:
    made: Tensor = node.target(*arguments, **node.kwargs)  # type: ignore[operator]
    for one in arguments:
        if isinstance(one, Tensor):
            made = torch.where(one.isnan(), torch.nan, made)
    return made


# Layers with weights read channels and make new ones.

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def convolution(walk: Walk, node: Node) -> Flow | None:
    """aten.conv{1,2,3}d(x, weight, bias, stride, padding, dilation, groups) and
    aten.conv_transpose{1,2,3}d(x, weight, bias, stride, padding, output_padding, groups, dilation).
    """
    turned = str(node.target).startswith("aten.conv_transpose")
    path = _owner(walk, node, TRANSPOSED if turned else CONVOLUTIONS)
    if path is None:
        return None
    _, _, bias, _, padding, _, groups = [*node.args, *([None] * 7)][:7]
    parts = int(groups or 1)  # type: ignore[arg-type,call-overload]
    rows, columns = shape(node.args[1])[:2]
    inputs, outputs = (rows, columns * parts) if turned else (columns * parts, rows)
    x = walk.read(node.args[0], 1, count=inputs)
    # Next to padding, and at the edges of a transposed one, fewer taps reach an output.
    exact = not turned and (padding == "valid" or not any(padding or ()))  # type: ignore[arg-type]
    kind = "transposed" if turned else "convolution"
    return _made(walk, path, kind, x, outputs, bias=bias, groups=parts, exact=exact)


def linear(walk: Walk, node: Node) -> Flow | None:
    """aten.linear(x, weight, bias)."""
    path = _owner(walk, node, (nn.Linear,))
    if path is None:
        return None
    outputs, inputs = shape(node.args[1])
    x = walk.read(node.args[0], len(shape(node)) - 1, count=inputs)
    return _made(walk, path, "linear", x, outputs, bias=(*node.args, None)[2])


def norm(walk: Walk, node: Node) -> Flow | None:
    """aten._native_batch_norm_legit_no_training(x, weight, bias, mean, variance, momentum, eps)."""
    weight, bias, mean, variance = (walk.name(place) for place in node.args[1:5])
    if mean is None or variance is None:
        return walk.stay(node)
    path = mean.rpartition(".")[0]
    if not isinstance(walk.model.get_submodule(path), NORMS):
        return walk.stay(node, f"{path} is no batch norm of torch")
    count, eps = shape(node.args[3])[0], float(node.args[6])  # type: ignore[arg-type]
    x = walk.read(node.args[0], 1, count=count)

    def made(values: Values, held: Tensor) -> Tensor:
        scale = held.new_ones(count) if weight is None else values.held(weight)
        shift = held.new_zeros(count) if bias is None else values.held(bias)
        usual = (held - values.held(mean)) / (values.held(variance) + eps).sqrt() * scale + shift
        return torch.where(scale == 0, shift, usual)

    walk.use(Reader(path, "norm", x.channels, x.constant, x.channels))
    return walk.after(x, made)


def _owner(walk: Walk, node: Node, kinds: tuple[type[nn.Module], ...]) -> str | None:
    """The path of the layer whose weight this is, if it is one that can be cut."""
    name = walk.name(node.args[1])
    if name is None:
        walk.stay(node, "its weight is computed")
        return None
    path, _, tensor = name.rpartition(".")
    if tensor != "weight" or not isinstance(walk.model.get_submodule(path), kinds):
        walk.stay(node, f"{name} is not the weight of a layer of torch")
        return None
    return path


def _made(
    walk: Walk, path: str, kind: str, x: Flow, count: int, *, bias: Any, groups: int = 1, exact: bool = True
) -> Flow:
    """What a layer with `count` outputs makes; in a depthwise one each input goes on in its own outputs."""
    if groups > 1 and groups == len(x.channels):
        outputs = [channel for channel in x.channels for _ in range(count // groups)]
    else:
        outputs = walk.channels.fresh(count)
    reader = Reader(path, kind, x.channels, x.constant, outputs, groups, exact)
    walk.use(reader)
    shift = walk.name(bias)

    def made(values: Values, held: Tensor) -> Tensor:
        answer = values.answer(reader, held)
        return answer if shift is None else answer + values.held(shift)

    return Flow(x.axis, outputs, walk.trace.add(made, x.constant))


# Operations that move, join, cut or pool what a channel holds.


def plane(walk: Walk, node: Node) -> Flow | None:
    """An operation on each channel by itself that keeps constants, such as max pools and resizing."""
    x = walk.flow(node.args[0])
    return walk.stay(node) if x is None or x.axis != 1 else x


def pool(walk: Walk, node: Node) -> Flow | None:
    """A plane whose numbers are averaged, which costs as many additions."""
    x = plane(walk, node)
    if x is not None:
        walk.pools.append((x.channels, math.prod(shape(node.args[0])[2:])))
    return x


def average(walk: Walk, node: Node) -> Flow | None:
    """An average pool: next to padding its averages are smaller, so that with padding only 0 stays a constant."""
    x = pool(walk, node)
    padding = node.args[3] if len(node.args) > 3 else [0]
    if x is None or not any(padding):  # type: ignore[arg-type]
        return x
    return walk.after(x, lambda _, held: torch.where(held == 0, 0.0, torch.nan))


def mean(walk: Walk, node: Node) -> Flow | None:
    """aten.mean.dim(x, axes, keepdim), over all but channels."""
    x = walk.flow(node.args[0])
    dimensions = len(shape(node.args[0]))
    axes = {int(a) % dimensions for a in (node.args[1] or range(dimensions))}  # type: ignore[union-attr,arg-type]
    if x is None or x.axis in axes:
        return walk.stay(node)
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
        return walk.stay(node)
    if after[1] == before[1]:
        return x
    inner = math.prod(before[2:])
    if len(after) == 2 and after[1] == before[1] * inner:
        channels = [channel for channel in x.channels for _ in range(inner)]
        return Flow(1, channels, walk.trace.add(lambda _, held: held.repeat_interleave(inner), x.constant))
    return walk.stay(node)


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
    places = (int(a) % before for a in given)  # type: ignore[arg-type,call-overload]
    gone = {a for a in places if shape(node.args[0])[a] == 1}
    if x.axis in gone:
        return walk.stay(node)
    return Flow(x.axis - sum(1 for a in gone if a < x.axis), x.channels, x.constant)


def cut(walk: Walk, node: Node) -> Flow | None:
    """aten.slice.Tensor(x, axis, start, end, step)."""
    x = walk.flow(node.args[0])
    axis = int((*node.args, 0)[1]) % len(shape(node))  # type: ignore[arg-type]
    if x is not None and axis == x.axis and shape(node)[axis] != shape(node.args[0])[axis]:
        return walk.stay(node, "channels are picked by their number")
    return x


def pad(walk: Walk, node: Node) -> Flow | None:
    """aten.pad(x, widths, mode, value): widths from the last axis on."""
    x = walk.flow(node.args[0])
    if x is None:
        return None
    widths = [int(w) for w in node.args[1]]  # type: ignore[union-attr,arg-type]
    mode, given = [*node.args[2:], None, None][:2]
    value = 0.0 if given is None else float(given)  # type: ignore[arg-type]
    place = 2 * (len(shape(node)) - 1 - x.axis)
    before, behind = (widths[place], widths[place + 1]) if place + 1 < len(widths) else (0, 0)
    others = [w for position, w in enumerate(widths) if position not in (place, place + 1)]
    if any(others) and mode in (None, "constant"):
        x = walk.after(x, lambda _, held: torch.where(held == value, held, torch.nan))
    if not before and not behind:
        return x
    if mode not in (None, "constant") or min(before, behind) < 0:
        return walk.stay(node, "channels are padded with others, or cut off")
    ends = [walk.channels.fresh(width) for width in (before, behind)]
    for end in ends:
        walk.channels.pin(end, f"{node.name}: padding of channels has a fixed width")
    edges = [torch.full((width,), value, dtype=torch.double) for width in (before, behind)]
    made = walk.trace.add(lambda _, held: torch.cat([edges[0], held, edges[1]]), x.constant)
    return Flow(x.axis, [*ends[0], *x.channels, *ends[1]], made)


def concatenate(walk: Walk, node: Node) -> Flow | None:
    """aten.cat(tensors, axis)."""
    tensors: Any = node.args[0]
    axis = int((*node.args, 0)[1]) % len(shape(node))  # type: ignore[arg-type]
    parts = [walk.flow(n) for n in tensors]
    found = [p for p in parts if p is not None]
    if len(found) < len(parts) or len({p.axis for p in found}) > 1:
        return walk.stay(node, "not all of the tensors are followed")
    if axis == found[0].axis:
        channels = [channel for p in found for channel in p.channels]
        made = walk.trace.add(lambda _, *held: torch.cat(held), *(p.constant for p in found))
        return Flow(axis, channels, made)
    for p in found[1:]:
        walk.channels.join(found[0].channels, p.channels)
    return walk.after(found[0], _same, *(p.constant for p in found))


def _same(_: Values, *held: Tensor) -> Tensor:
    """What all hold, NaN where they differ."""
    stacked = torch.stack(held)
    return torch.where((stacked == stacked[0]).all(0), stacked[0], torch.nan)


# Names of operations, with the overload where it is not the default one.
_NAMES: dict[Callable[[Walk, Node], Flow | None], str] = {
    alone: "relu relu6 hardtanh hardswish hardsigmoid silu gelu sigmoid tanh leaky_relu elu selu celu mish softplus "
    "neg abs exp sqrt square clamp clamp_min clamp_max clone dropout feature_dropout alpha_dropout alias detach "
    "contiguous lift_fresh_copy",
    pair: "add add.Tensor add.Scalar add.Tensor_Scalar sub sub.Tensor sub.Scalar sub.Tensor_Scalar "
    "mul mul.Tensor mul.Scalar mul.Tensor_Scalar div div.Tensor div.Scalar div.Tensor_Scalar "
    "pow.Tensor pow.Scalar pow.Tensor_Scalar maximum maximum.Tensor minimum minimum.Tensor",
    convolution: "conv1d conv2d conv3d conv_transpose1d conv_transpose2d.input conv_transpose3d.input",
    linear: "linear",
    norm: "_native_batch_norm_legit_no_training",
    plane: "upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec upsample_bilinear2d.vec "
    "upsample_linear1d.vec upsample_bicubic2d.vec max_pool1d max_pool2d max_pool3d",
    average: "avg_pool1d avg_pool2d avg_pool3d",
    pool: "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
    mean: "mean.dim",
    reshape: "view reshape _unsafe_view flatten.using_ints",
    permute: "permute transpose.int",
    squeeze: "squeeze.dims squeeze.dim unsqueeze",
    cut: "slice.Tensor",
    pad: "pad constant_pad_nd",
    concatenate: "cat",
}
RULES = {
    f"aten.{name}" if "." in name else f"aten.{name}.default": rule
    for rule, names in _NAMES.items()
    for name in names.split()
}
