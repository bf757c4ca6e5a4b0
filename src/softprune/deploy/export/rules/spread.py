"""Constants that are as many as the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from softprune.deploy.export.graph import Shape
from softprune.deploy.export.lowering import Lowering, UnsupportedError


def filled(lowering: Lowering, shape: Shape, content: Tensor) -> str:
    """A value of a shape that may hold the batch, with ``content`` broadcast into it."""
    flexible = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
    fixed = [size if isinstance(size, int) else 1 for size in shape]
    full = content.detach().to(torch.float32).expand(fixed).contiguous()
    value = lowering.value(full)
    if not flexible:
        return value
    if len(flexible) > 1 or shape[flexible[0]] != lowering.batch:
        raise UnsupportedError(f"a constant of shape {shape} cannot be made for a batch of any size")
    return lowering.emit("add", [batch_zeros(lowering, len(shape), flexible[0]), value], shape)


def batch_zeros(lowering: Lowering, ndim: int, axis: int) -> str:
    """Zeros, one per sample, along one axis of a shape of ones.

    The format knows the size of the batch only through values, so the zeros are made of the first number of each
    sample: bounded first, because infinity times zero would be no zero.
    """
    name, sizes = next(iter(lowering.graph.inputs.items()))
    shape = list(lowering.graph.shapes[name])
    for position in range(1, len(sizes)):
        shape[position] = 1
        name = lowering.emit("slice", [name], tuple(shape), axis=position, start=0, stop=1, step=1)
    name = lowering.emit("tanh", [name], tuple(shape))
    name = lowering.emit("mul", [name], tuple(shape), value=0.0)
    ones: list[int | None] = [None if position == axis else 1 for position in range(ndim)]
    after: Shape = tuple(lowering.batch if size is None else size for size in ones)
    return lowering.emit("reshape", [name], after, shape=ones)
