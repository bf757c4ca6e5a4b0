"""From a plain module to the program that torch.export makes of it, with a batch of any size."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import Node

# nn.MultiheadAttention with the batch in front. PyTorch's own forward turns (batch, place, width) into (place, batch,
# width) and back, folds batch and heads into one axis, and so leaves a dozen moves around each attention.


@contextmanager
def batch_in_front(module: nn.Module) -> Iterator[None]:
    """Within the block, the attentions of a module compute the same with fewer moves."""
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
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # True means forbidden here, and allowed in the attention itself: make it what is added to the scores.
        attn_mask = torch.zeros(attn_mask.shape).masked_fill(attn_mask, -torch.inf)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
    return self.out_proj(out.transpose(1, 2).flatten(2)), None


def _projected(attention: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    if query is key and key is value:
        return F.linear(query, weight, bias).chunk(3, dim=-1)
    weights = weight.chunk(3)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    return tuple(F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))


Example = Tensor | Sequence[Tensor]


def exported(module: nn.Module, example: Example) -> ExportedProgram:
    """The operations of a plain module in eval mode, without in-place operations; the module is left as it was.

    Only the batch is of any size; all other sizes are those of the example.
    """
    inputs = batch_of_two(example)
    with _evaluating(module) as ready:
        try:
            with batch_in_front(ready):
                program = torch.export.export(ready, inputs, dynamic_shapes=_dynamic(ready, inputs), strict=False)
        except Exception as error:  # torch.export fails with whatever the module's code stumbles over
            raise ValueError(
                f"torch.export cannot follow {type(module).__name__} with a batch of any size; "
                "its forward must not decide by values, or turn the batch size into a number "
                f"(len(x) does, x.shape[0] does not): {error}"
            ) from error
        # An empty table keeps composite operations whole and still removes every in-place operation.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch warns of its own code
            return program.run_decompositions({})


def batch_of_two(example: Example) -> tuple[Tensor, ...]:
    """The example on the CPU with a batch of at least two: torch.export takes a batch of one for a fixed size."""
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    if not inputs:
        raise ValueError("the example is empty: give one tensor per input of forward")
    ready = []
    for position, x in enumerate(inputs):
        if not isinstance(x, Tensor):
            raise TypeError(f"input {position} of the example must be a tensor, got {type(x).__name__}")
        if x.dtype != torch.float32 or x.ndim == 0 or x.shape[0] == 0:
            raise ValueError(
                f"input {position} of the example must be float32 with a batch of at least 1 in front, "
                f"got {x.dtype} of shape {tuple(x.shape)}"
            )
        x = x.detach().cpu()
        ready.append(torch.cat([x, x]) if x.shape[0] == 1 else x)
    if len({x.shape[0] for x in ready}) > 1:
        raise ValueError(f"all inputs need the same batch size, got {[x.shape[0] for x in inputs]}")
    return tuple(ready)


def _dynamic(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[object, ...]:
    batch = Dim("batch", min=1)
    shapes = tuple({0: batch} for _ in inputs)
    # forward(*inputs) hands over one argument that holds them all.
    code = getattr(type(module).forward, "__code__", None)
    takes_many = code is not None and code.co_flags & 0x04 and code.co_argcount == 1
    return (shapes,) if takes_many else shapes


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[nn.Module]:
    """The module in eval mode on the CPU in float32; afterwards the caller's is as before."""
    tensors = [*module.parameters(), *module.buffers()]
    if any(t.device.type != "cpu" or t.dtype in (torch.float16, torch.bfloat16, torch.float64) for t in tensors):
        module = copy.deepcopy(module).cpu().float()
    training = {m: m.training for m in module.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    # The fast path is one operation for a whole encoder layer, which hides its weights.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield module.eval()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for m, was in training.items():
            m.training = was


def module_path(node: Node) -> str:
    """The path of the module whose forward made this node."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]) if stack else ""
    return "" if path.startswith("_empty_nn_module_stack") else path
