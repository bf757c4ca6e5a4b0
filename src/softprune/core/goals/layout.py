"""Tensors as vectors in the order of their memory, whatever their strides: channels-last weights need no copy."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def flat(t: Tensor) -> Tensor:
    """The tensor as a vector in the order of its memory; a view where it is dense."""
    return flat_like(t, t)


def flat_like(t: Tensor, other: Tensor) -> Tensor:
    """A tensor as a vector in the memory order of another one of the same shape."""
    return t.reshape(-1) if other.is_contiguous() else t.permute(_dimensions(other)).reshape(-1)


def lower_(w: Tensor, places: Tensor) -> Tensor:
    """Bring the weights at these places in memory, none of them zero, one unit in the last place closer to zero."""
    dimensions = _dimensions(w)
    found: list[Tensor] = list(torch.unravel_index(places, [w.shape[d] for d in dimensions]))
    where = tuple(found[dimensions.index(d)] for d in range(w.ndim))
    # Sign and size are apart in a float: one less in its bits is one step closer to zero for either sign.
    w[where] = (w[where].view(_BITS[w.dtype]) - 1).view(w.dtype)
    return w


def _dimensions(t: Tensor) -> list[int]:
    """Its dimensions, that with the largest stride first."""
    strides: tuple[int, ...] = t.stride()
    return sorted(range(t.ndim), key=lambda d: (-strides[d], d))
