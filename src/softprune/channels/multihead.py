"""nn.MultiheadAttention with the batch in front, as the engine likes it.

PyTorch's own forward turns (batch, place, width) into (place, batch, width) and back, folds batch and heads into one
axis, and so leaves a dozen moves around each attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@contextmanager
def batch_in_front(module: nn.Module) -> Iterator[None]:
    """While this lasts, the attentions inside compute the same with fewer moves."""
    changed: list[Any] = [m for m in module.modules() if type(m) is nn.MultiheadAttention and "forward" not in vars(m)]
    for attention in changed:
        attention.forward = MethodType(_forward, attention)
    try:
        yield
    finally:
        for attention in changed:
            del attention.forward


def _forward(
    self: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,  # noqa: FBT001, FBT002 - PyTorch's own order
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,  # noqa: FBT001, FBT002
    is_causal: bool = False,  # noqa: FBT001, FBT002
) -> tuple[Tensor, Tensor | None]:
    plain = self.batch_first and self._qkv_same_embed_dim and self.bias_k is None and not self.add_zero_attn
    masked = key_padding_mask is not None or (attn_mask is not None and attn_mask.ndim != 2)
    if not plain or masked or need_weights or query.ndim != 3:
        return nn.MultiheadAttention.forward(
            self, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )
    q, k, v = (
        part.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        for part in _projected(self, query, key, value)
    )
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=_added(attn_mask))
    return self.out_proj(out.transpose(1, 2).flatten(2)), None


def _projected(attention: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    if query is key and key is value:
        return F.linear(query, weight, bias).chunk(3, dim=-1)
    weights = weight.chunk(3)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    return tuple(F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))


def _added(mask: Tensor | None) -> Tensor | None:
    """A mask as what is added to the scores; True means forbidden here, and allowed in the attention itself."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)
