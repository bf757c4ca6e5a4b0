"""What lies around an image.

Zeros are part of the convolution behind them where there is one, operations of their own otherwise; an image's own
pixels (reflect, circular, replicate) are one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from softprune.deploy.export.lowering import Lowering, UnsupportedError
from softprune.deploy.export.rules.spread import filled

MODES = ("reflect", "circular", "replicate")
PADS = ("aten.constant_pad_nd.default", "aten.pad.default")


class Frame(NamedTuple):
    """Rows and columns of zeros around an image."""

    top: int
    bottom: int
    left: int
    right: int

    def __add__(self, other: tuple[Any, ...]) -> Frame:  # type: ignore[override]
        return Frame(*(a + b for a, b in zip(self, other, strict=True)))


def frame_around(lowering: Lowering, x: Node) -> tuple[str, Frame]:
    """The image in front of zero padding, if that is what ``x`` is, and the frame of zeros."""
    if x.op == "call_function" and str(x.target) in PADS and isinstance(lowering[x], str):
        image, pads = x.args[0], list(x.args[1])  # type: ignore[arg-type]
        if len(pads) <= 4 and all(isinstance(size, int) and size >= 0 for size in pads) and _is_zero(x):
            left, right, top, bottom = (*pads, 0, 0)[:4]
            return lowering.value(lowering[image]), Frame(top, bottom, left, right)
    return lowering.value(lowering[x]), Frame(0, 0, 0, 0)


def _is_zero(pad: Node) -> bool:
    """Whether a pad is one with zeros."""
    named = str(pad.target) == "aten.pad.default"
    if named and len(pad.args) > 2 and pad.args[2] != "constant":
        return False
    value = pad.args[3 if named else 2] if len(pad.args) > (3 if named else 2) else pad.kwargs.get("value")
    return value in (None, 0)


def _pad(lowering: Lowering, x: Node, pads: Sequence[int], *rest: Any, **more: Any) -> str:
    """Zeros as values, joined to the image; unused where a convolution takes them over."""
    mode = rest[0] if rest and isinstance(rest[0], str) else more.get("mode", "constant")
    if mode != "constant":
        return _own_pixels(lowering, x, pads, mode)
    if not _is_zero(lowering.node):
        raise UnsupportedError("only padding with zeros or an image's own pixels is in the format")
    shape = list(lowering.shape(x))
    value = lowering.value(lowering[x])
    for position in range(len(pads) // 2):
        axis = len(shape) - 1 - position
        before, behind = pads[2 * position], pads[2 * position + 1]
        if before < 0 or behind < 0:
            raise UnsupportedError("negative padding is not in the format")
        if not before and not behind:
            continue
        parts = []
        for count in (before, behind):
            zeros = [*shape[:axis], count, *shape[axis + 1 :]]
            parts.append(filled(lowering, tuple(zeros), torch.zeros(())) if count else None)
        size: Any = shape[axis]
        shape[axis] = size + before + behind
        joined = [part for part in (parts[0], value, parts[1]) if part is not None]
        value = lowering.emit("concat", joined, tuple(shape), axis=axis)
    return value


def _own_pixels(lowering: Lowering, x: Node, pads: Sequence[int], mode: str) -> str:
    """Pixels of the image around it, of rows of samples too, which are images of one row."""
    shape = lowering.shape(x)
    if mode not in MODES:
        raise UnsupportedError(f"padding in mode {mode} is not in the format, only {', '.join(MODES)}")
    if len(shape) not in (3, 4) or len(pads) != 2 * (len(shape) - 2) or min(pads) < 0:
        raise UnsupportedError(f"padding {list(pads)} of {len(shape)} axes in mode {mode} is not in the format")
    value = lowering.value(lowering[x])
    if len(shape) == 4:
        left, right, top, bottom = pads
        return lowering.emit("pad", [value], padding=[top, bottom, left, right], mode=mode)
    batch, channels, width = shape
    row = lowering.emit("reshape", [value], (batch, channels, 1, width), shape=[None, channels, 1, width])
    _, _, after = lowering.shape(lowering.node)
    row = lowering.emit("pad", [row], (batch, channels, 1, after), padding=[0, 0, *pads], mode=mode)
    return lowering.emit("reshape", [row], shape=[None, channels, after])


RULES: dict[str, Callable[..., Any]] = dict.fromkeys(PADS, _pad)
