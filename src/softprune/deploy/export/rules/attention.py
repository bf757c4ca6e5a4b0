"""Scaled dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from softprune.deploy.export.lowering import Everyone, Lowering, UnsupportedError
from softprune.deploy.export.rules.argument import length
from softprune.deploy.export.rules.arithmetic import combine
from softprune.deploy.export.rules.product import product


def _attention(
    lowering: Lowering,
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
    inputs = [lowering.value(lowering[part]) for part in (query, key, value)]
    factor = 1.0 / math.sqrt(length(lowering, query, -1)) if scale is None else float(scale)
    mask = None if attn_mask is None else _mask(lowering, attn_mask)
    if is_causal:
        seen = torch.ones(length(lowering, query, -2), length(lowering, key, -2), dtype=torch.bool).tril()
        mask = _added(seen)
    shared = len({lowering.shape(part)[:-2] for part in (query, key, value)}) == 1
    if isinstance(mask, str) or not shared:
        added = _added(mask) if isinstance(mask, Tensor) else mask
        return _in_steps(lowering, inputs, factor, added, query, key)
    name = None if mask is None else lowering.weight(_added(mask))
    return lowering.emit("attention", inputs, scale=factor, mask=name)


def _mask(lowering: Lowering, node: Node) -> str | Tensor | None:
    """What a mask is; None if it is a constant that allows everything."""
    found = lowering[node]
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
    lowering: Lowering, inputs: list[str], factor: float, mask: str | Tensor | None, query: Node, key: Node
) -> str:
    """The same in single steps: in the format a mask is a constant, and q, k and v have the same batches."""
    queries, keys = lowering.shape(query), lowering.shape(key)
    order = [*range(len(keys) - 2), len(keys) - 1, len(keys) - 2]
    turned = lowering.emit("permute", [inputs[1]], tuple(keys[axis] for axis in order), axes=order)
    scores = combine(lowering, "mul", product(lowering, inputs[0], turned, (*queries[:-1], keys[-2])), factor)
    scores = scores if mask is None else combine(lowering, "add", scores, mask)
    shape = lowering.graph.shapes[scores]
    shares = lowering.emit("softmax", [scores], shape, axis=len(shape) - 1)
    return product(lowering, shares, inputs[2])


RULES: dict[str, Callable[..., Any]] = {"aten.scaled_dot_product_attention.default": _attention}
