"""Convolutions, pools and resizing, and the padding in front of them; matrix products and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from softprune.deploy.export.aten.arithmetic import add, mul
from softprune.deploy.export.aten.moves import filled
from softprune.deploy.export.translate import GraphBuilder, Rules, SharedMask, UnsupportedError, aten
from softprune.deploy.format.graph import SymbolicShape

Sizes = int | Sequence[int]


def _pair(given: Sizes) -> list[int]:
    """One number for rows and columns, or one for each."""
    sizes = [given] if isinstance(given, int) else [int(size) for size in given]
    return sizes * 2 if len(sizes) == 1 else sizes


def _sizes(builder: GraphBuilder, given: Sizes, row: int) -> list[int]:
    """For rows and columns; an operation over one axis has ``row`` for the only row that its images have."""
    return [row, _pair(given)[1]] if "1d" in str(builder.node.target) else _pair(given)


def _over_images(builder: GraphBuilder, kind: str, x: Node | str, **fields: Any) -> str:
    """Emit an operation over images; [batch, channels, width] are images of one row."""
    shape, target = builder.shape(x), str(builder.node.target)
    if len(shape) == 4 and "1d" not in target:
        return builder.emit(kind, [x], **fields)
    if len(shape) != 3 or "2d" in target:
        raise _no_images(shape)
    *before, width = builder.made
    row = builder.reshape(x, (*shape[:2], 1, shape[2]))
    return builder.reshape(builder.emit(kind, [row], (*before, 1, width), **fields), builder.made)


def _no_images(shape: SymbolicShape) -> UnsupportedError:
    return UnsupportedError(f"only batches of images are in the format, got shape {shape}")


# What lies around an image.
#
# Zeros are part of the convolution behind them where there is one, operations of their own otherwise; an image's own
# pixels (reflect, circular, replicate) are one operation.

MODES = ("reflect", "circular", "replicate")
PADS = ("aten.constant_pad_nd.default", "aten.pad.default")


def _unpadded(builder: GraphBuilder, x: Node) -> tuple[Node, list[int]]:
    """The image in front of zero padding, if that is what ``x`` is; zeros at its top, bottom, left and right."""
    if x.op == "call_function" and str(x.target) in PADS and isinstance(builder[x], str):
        image: Any = x.args[0]
        pads: Any = x.args[1]
        if len(pads) <= 4 and all(isinstance(size, int) and size >= 0 for size in pads) and _is_zero(x):
            left, right, top, bottom = (*pads, 0, 0)[:4]
            return image, [top, bottom, left, right]
    return x, [0, 0, 0, 0]


def _is_zero(pad: Node) -> bool:
    named = str(pad.target) == "aten.pad.default"
    if named and len(pad.args) > 2 and pad.args[2] != "constant":
        return False
    value = pad.args[3 if named else 2] if len(pad.args) > (3 if named else 2) else pad.kwargs.get("value")
    return value in (None, 0)


def _pad(builder: GraphBuilder, x: Node, pads: Sequence[int], *rest: Any, **more: Any) -> str:
    mode = rest[0] if rest and isinstance(rest[0], str) else more.get("mode", "constant")
    if mode != "constant":
        return _own_pixels(builder, x, pads, mode)
    if not _is_zero(builder.node):
        raise UnsupportedError("only padding with zeros or an image's own pixels is in the format")
    if min(pads, default=0) < 0:
        raise UnsupportedError("negative padding is not in the format")
    # Zeros as values, joined to the image; unused where a convolution takes them over.
    value, shape = builder.value(x), builder.shape(x)
    for position in range(len(pads) // 2):
        axis = len(shape) - 1 - position
        sizes = [*pads[2 * position : 2 * position + 2]]
        if any(sizes):
            zeros = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
            before, behind = ([filled(builder, part, torch.zeros(()))] if part[axis] else [] for part in zeros)
            shape = (*shape[:axis], shape[axis] + sum(sizes), *shape[axis + 1 :])  # type: ignore[operator]
            value = builder.emit("concat", [*before, value, *behind], shape, axis=axis)
    return value


def _own_pixels(builder: GraphBuilder, x: Node, pads: Sequence[int], mode: str) -> str:
    ndim = len(builder.shape(x))
    if mode not in MODES:
        raise UnsupportedError(f"padding in mode {mode} is not in the format, only {', '.join(MODES)}")
    if ndim not in (3, 4) or len(pads) != 2 * (ndim - 2) or min(pads) < 0:
        raise UnsupportedError(f"padding {list(pads)} of {ndim} axes in mode {mode} is not in the format")
    left, right, top, bottom = (*pads, 0, 0)[:4]
    return _over_images(builder, "pad", x, padding=[top, bottom, left, right], mode=mode)


# Convolutions and linear layers.

NOTHING_AFTER = {"activation": None, "residual": None}


def _conv(
    builder: GraphBuilder,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> str:
    kernel, step = builder.constant(weight, "weight"), _sizes(builder, dilation, 1)
    kernel = kernel.unsqueeze(2) if kernel.ndim == 3 else kernel
    image, margins = _unpadded(builder, x) if "2d" in str(builder.node.target) else (x, [0, 0, 0, 0])
    if padding == "same":
        rows, columns = (d * (k - 1) for d, k in zip(step, kernel.shape[2:], strict=True))
        own = [rows // 2, rows - rows // 2, columns // 2, columns - columns // 2]
    else:
        rows, columns = _sizes(builder, 0 if isinstance(padding, str) else padding, 0)
        own = [rows, rows, columns, columns]
    kernel, margin = _symmetric(kernel, [a + b for a, b in zip(margins, own, strict=True)], step)
    return _over_images(
        builder,
        "conv2d",
        image,
        weight=builder.weight(kernel),
        bias=builder.bias(bias),
        stride=_sizes(builder, stride, 1),
        padding=margin,
        dilation=step,
        groups=groups,
        **NOTHING_AFTER,
    )


@torch.no_grad()
def _symmetric(kernel: Tensor, margins: Sequence[int], dilation: list[int]) -> tuple[Tensor, list[int]]:
    """The same convolution with as much padding in front as behind.

    A kernel that has zeros where the larger padding would let it see more computes the same, and zeros cost nothing.
    """
    top, bottom, left, right = margins
    margin = [max(top, bottom), max(left, right)]
    if top == bottom and left == right:
        return kernel, margin
    if (top != bottom and dilation[0] != 1) or (left != right and dilation[1] != 1):
        raise UnsupportedError("uneven padding together with a dilation is not in the format")
    grown = (margin[1] - left, margin[1] - right, margin[0] - top, margin[0] - bottom)
    return torch.nn.functional.pad(kernel, grown), margin


def _conv_transpose2d(
    builder: GraphBuilder,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> str:
    return builder.emit(
        "conv_transpose2d",
        [x],
        weight=builder.weight(builder.constant(weight, "weight")),
        bias=builder.bias(bias),
        stride=_pair(stride),
        padding=_pair(padding),
        output_padding=_pair(output_padding),
        dilation=_pair(dilation),
        groups=groups,
        **NOTHING_AFTER,
    )


def _linear(builder: GraphBuilder, x: Any, weight: Any, bias: Node | None = None) -> str:
    kernel = builder.weight(builder.constant(weight, "weight"))
    return builder.emit("linear", [x], weight=kernel, bias=builder.bias(bias), **NOTHING_AFTER)


# Pools and resizing.


def _window(builder: GraphBuilder, kernel: Sizes, stride: Sizes, padding: Sizes) -> dict[str, list[int]]:
    return {
        "kernel": _sizes(builder, kernel, 1),
        "stride": _sizes(builder, stride or kernel, 1),
        "padding": _sizes(builder, padding, 0),
    }


def _max_pool(
    builder: GraphBuilder,
    x: Node,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> str:
    fields = {**_window(builder, kernel, stride, padding), "dilation": _sizes(builder, dilation, 1)}
    return _over_images(builder, "max_pool2d", x, **fields, ceil_mode=ceil_mode)


def _avg_pool(
    builder: GraphBuilder,
    x: Node,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> str:
    if divisor_override is not None:
        raise UnsupportedError("divisor_override is not in the format")
    fields = _window(builder, kernel, stride, padding)
    return _over_images(builder, "avg_pool2d", x, **fields, ceil_mode=ceil_mode, count_include_pad=count_include_pad)


def _adaptive_avg_pool(builder: GraphBuilder, x: Node, size: Sizes) -> str:
    return _over_images(builder, "adaptive_avg_pool2d", x, size=_sizes(builder, builder.made[2:], 1))  # type: ignore[arg-type]


def _adaptive_max_pool2d(builder: GraphBuilder, x: Node, size: Sizes) -> list[str | None]:
    """A max pool, where the windows are all alike."""
    if len(builder.shape(x)) != 4:
        raise _no_images(builder.shape(x))
    before = [builder.length(x, 2), builder.length(x, 3)]
    after = [int(n) for n in builder.node.meta["val"][0].shape[2:]]
    if any(b % a for b, a in zip(before, after, strict=True)):
        raise UnsupportedError(f"an adaptive max pool from {before} to {after} has windows of different sizes")
    window = [b // a for b, a in zip(before, after, strict=True)]
    fields = {"kernel": window, "stride": window, "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False}
    return [builder.emit("max_pool2d", [x], (*builder.shape(x)[:2], *after), **fields), None]


def _resize(builder: GraphBuilder, x: Node, scale: Sequence[float] | None, mode: str, *, align_corners: bool) -> str:
    before = [builder.length(x, 2), builder.length(x, 3)]
    after = [int(n) for n in builder.node.meta["val"].shape[2:]]
    # Where the scale leads to a whole number of pixels, the size alone says the same.
    exact = scale is None or all(b * s == a for b, s, a in zip(before, scale, after, strict=True))
    fields: dict[str, Any] = {"size": after} if exact or scale is None else {"scale": [float(s) for s in scale]}
    return builder.emit("resize", [x], **fields, mode=mode, align_corners=align_corners)


def _bilinear(
    builder: GraphBuilder, x: Node, size: Any, align_corners: bool, scale: Sequence[float] | None = None
) -> str:
    # With aligned corners the corners decide, not the scale.
    return _resize(builder, x, None if align_corners else scale, "bilinear", align_corners=align_corners)


# Matrix products, of which one with a constant is a linear layer, and scaled dot-product attention.


def _matmul(builder: GraphBuilder, a: Any, b: Any, shape: SymbolicShape | None = None) -> str:
    """a b over the last two axes."""
    right = builder[b]
    if isinstance(right, Tensor) and right.ndim == 2:
        return _linear(builder, a, right.detach().t().contiguous())
    first, second = builder.value(a), builder.value(right)
    if min(len(builder.shape(first)), len(builder.shape(second))) < 2:
        raise UnsupportedError("products with a vector are not in the format: give it a second axis")
    return builder.emit("matmul", [first, second], shape)


def _addmm(builder: GraphBuilder, bias: Node, a: Node, b: Node, *, beta: float = 1, alpha: float = 1) -> str:
    out = _matmul(builder, a, b)
    out = out if alpha == 1 else mul(builder, out, alpha)
    return out if beta == 0 else add(builder, out, bias, beta)


def _attention(
    builder: GraphBuilder,
    query: Node,
    key: Node,
    value: Node,
    attn_mask: Node | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> str:
    if dropout_p or enable_gqa:
        raise UnsupportedError("dropout and grouped queries in an attention are not in the format")
    inputs = [builder.value(part) for part in (query, key, value)]
    factor = 1.0 / math.sqrt(builder.length(query, -1)) if scale is None else float(scale)
    mask = builder[attn_mask]
    if is_causal:
        mask = torch.ones(builder.length(query, -2), builder.length(key, -2), dtype=torch.bool).tril()
    # One mask for all samples: the scores broadcast it themselves.
    mask = mask.tensor if isinstance(mask, SharedMask) else mask
    if isinstance(mask, Tensor):
        if mask.dtype != torch.bool:
            mask = mask.detach().float()
        elif bool(mask.all()) and not is_causal:
            mask = None
        else:
            mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    shared = len({builder.shape(part)[:-2] for part in (query, key, value)}) == 1
    if not isinstance(mask, str) and shared:
        return builder.emit("attention", inputs, scale=factor, mask=None if mask is None else builder.weight(mask))
    # In single steps: in the format a mask is a constant, and query, key and value have the same batches.
    queries, keys = builder.shape(query), builder.shape(key)
    order = [*range(len(keys) - 2), len(keys) - 1, len(keys) - 2]
    turned = builder.emit("permute", [inputs[1]], tuple(keys[axis] for axis in order), axes=order)
    scores = mul(builder, _matmul(builder, inputs[0], turned, (*queries[:-1], keys[-2])), factor)
    scores = scores if mask is None else add(builder, scores, mask)
    shape = builder.shape(scores)
    return _matmul(builder, builder.emit("softmax", [scores], shape, axis=len(shape) - 1), inputs[2])


RULES: Rules = {
    **dict.fromkeys(PADS, _pad),
    **aten(_conv, "conv1d", "conv1d.padding", "conv2d", "conv2d.padding"),
    **aten(_conv_transpose2d, "conv_transpose2d.input"),
    **aten(_linear, "linear"),
    **aten(_max_pool, "max_pool1d", "max_pool2d"),
    **aten(_avg_pool, "avg_pool1d", "avg_pool2d"),
    **aten(_adaptive_avg_pool, "adaptive_avg_pool1d", "adaptive_avg_pool2d"),
    **aten(_adaptive_max_pool2d, "adaptive_max_pool2d"),
    **aten(
        lambda builder, x, size, scale=None: _resize(builder, x, scale, "nearest", align_corners=False),
        "upsample_nearest2d.vec",
    ),
    **aten(_bilinear, "upsample_bilinear2d.vec"),
    **aten(_matmul, "matmul", "mm", "bmm"),
    **aten(_addmm, "addmm", "baddbmm"),
    **aten(_attention, "scaled_dot_product_attention"),
}
