"""Matrix products, of which one with a constant is a linear layer, and scaled dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from softprune.deploy.export.graph_builder import Everyone, GraphBuilder, UnsupportedError, length
from softprune.deploy.export.rules.arithmetic import combine
from softprune.deploy.export.rules.convolution import linear
from softprune.deploy.format.graph import SymbolicShape


def product(builder: GraphBuilder, a: Any, b: Any, shape: SymbolicShape | None = None) -> str:
    """a b over the last two axes."""
    if isinstance(b, Tensor) and b.ndim == 2:
        return linear(builder, builder.value(a), b.detach().t().contiguous())
    first, second = builder.value(a), builder.value(b)
    if min(len(builder.graph.shapes[first]), len(builder.graph.shapes[second])) < 2:
        raise UnsupportedError("products with a vector are not in the format: give it a second axis")
    return builder.emit("matmul", [first, second], shape)


def _matmul(builder: GraphBuilder, a: Node, b: Node) -> str:
    return product(builder, builder[a], builder[b])


def _addmm(builder: GraphBuilder, bias: Node, a: Node, b: Node, *, beta: float = 1, alpha: float = 1) -> str:
    out = product(builder, builder[a], builder[b])
    out = out if alpha == 1 else combine(builder, "mul", out, alpha)
    if beta == 0:
        return out
    more = builder[bias]
    if beta != 1:
        more = more * beta if isinstance(more, Tensor) else combine(builder, "mul", more, beta)
    return combine(builder, "add", out, more)


def _attention(
    builder: GraphBuilder,
    query: Node,
    key: Node,
    value: Node,
    attn_mask: Node | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - ATen's own order
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> str:
    if dropout_p or enable_gqa:
        raise UnsupportedError("dropout and grouped queries in an attention are not in the format")
    inputs = [builder.value(builder[part]) for part in (query, key, value)]
    factor = 1.0 / math.sqrt(length(builder, query, -1)) if scale is None else float(scale)
    mask = None if attn_mask is None else _mask(builder, attn_mask)
    if is_causal:
        seen = torch.ones(length(builder, query, -2), length(builder, key, -2), dtype=torch.bool).tril()
        mask = _added(seen)
    shared = len({builder.shape(part)[:-2] for part in (query, key, value)}) == 1
    if isinstance(mask, str) or not shared:
        added = _added(mask) if isinstance(mask, Tensor) else mask
        return _in_steps(builder, inputs, factor, added, query, key)
    name = None if mask is None else builder.weight(_added(mask))
    return builder.emit("attention", inputs, scale=factor, mask=name)


def _mask(builder: GraphBuilder, node: Node) -> str | Tensor | None:
    """What a mask is; None if it is a constant that allows everything."""
    found = builder[node]
    # One mask for all samples: the scores broadcast it themselves.
    if isinstance(found, Everyone):
        found = found.tensor
    return None if isinstance(found, Tensor) and found.dtype == torch.bool and bool(found.all()) else found


def _added(mask: Tensor) -> Tensor:
    """A mask as what is added to the scores: nothing where it allows, minus infinity where it forbids."""
    if mask.dtype != torch.bool:
        return mask.detach().float()
    return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)


def _in_steps(
    builder: GraphBuilder, inputs: list[str], factor: float, mask: str | Tensor | None, query: Node, key: Node
) -> str:
    """The same in single steps: in the format a mask is a constant, and q, k and v have the same batches."""
    queries, keys = builder.shape(query), builder.shape(key)
    order = [*range(len(keys) - 2), len(keys) - 1, len(keys) - 2]
    turned = builder.emit("permute", [inputs[1]], tuple(keys[axis] for axis in order), axes=order)
    scores = combine(builder, "mul", product(builder, inputs[0], turned, (*queries[:-1], keys[-2])), factor)
    scores = scores if mask is None else combine(builder, "add", scores, mask)
    shape = builder.graph.shapes[scores]
    shares = builder.emit("softmax", [scores], shape, axis=len(shape) - 1)
    return product(builder, shares, inputs[2])


RULES: dict[str, Callable[..., Any]] = {
    "aten.matmul.default": _matmul,
    "aten.mm.default": _matmul,
    "aten.bmm.default": _matmul,
    "aten.addmm.default": _addmm,
    "aten.baddbmm.default": _addmm,
    "aten.scaled_dot_product_attention.default": _attention,
}
