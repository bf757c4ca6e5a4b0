"""The soft threshold operator: the paper's forward and backward in one pass each.

    S(w, s) = sign(w) * relu(|w| - alpha),            alpha = g(s)
    dL/dw   = dL/dS * 1[S != 0]
    dL/ds   = -g'(s) * <dL/dS, sign(w) * 1[S != 0]>   (reduced to the shape of s)

One deviation, where the paper's composition cannot learn: while alpha is exactly 0 the operator is the
identity, so its derivative at w = 0 is 1 and not 0. Otherwise a tensor that starts at zero would stay
there for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from softprune.ops.g import G, Sigmoid

# The reduction for s walks over the weights in pieces of this many elements, so that the temporary sign
# tensor stays in the cache instead of making two more trips to memory.
CACHE_PIECE = 1 << 18

# Not a sharded or otherwise special tensor.
PLAIN_TENSORS = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class Backward:
    """How much of the gradient a pruned weight receives: 0 is the paper's masked gradient, 1 all of it."""

    leak: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.leak <= 1.0:
            raise ValueError(f"the fraction of the gradient for pruned weights must be in [0, 1], got {self.leak}")


masked = Backward(0.0)
straight_through = Backward(1.0)


def annealed(fraction: float) -> Backward:
    """Pruned weights receive this fraction of the gradient; lower it step by step during training."""
    return Backward(fraction)


def soft_threshold(w: Tensor, s: Tensor, g: G | None = None, *, backward: Backward = masked) -> Tensor:
    """Shrink w by the learnable threshold g(s): ``sign(w) * relu(|w| - g(s))``.

    Args:
        w: weights of any shape.
        s: raw threshold, of any shape that broadcasts to that of w: one for the tensor, one per filter,
            one per weight. At least float32 is used for it whatever its dtype.
        g: threshold function; the paper's sigmoid by default.
        backward: `masked` (the paper), `straight_through` or `annealed(fraction)`.

    Returns:
        A tensor like w. Weights with ``|w| <= g(s)`` are exactly 0.

    >>> soft_threshold(torch.tensor([-1.0, 0.2, 0.75]), torch.tensor([0.0]))
    tensor([-0.5000,  0.0000,  0.2500])
    """
    if s.dtype not in (torch.float32, torch.float64):
        s = s.float()
    # Where g has underflown to 0 its slope is 0 too, so the sum for its gradient need not be made.
    return _shrink(w, (g or Sigmoid())(s), backward.leak, flat_at_zero=True)


def shrink(w: Tensor, alpha: Tensor, *, backward: Backward = masked) -> Tensor:
    """The same operator for a threshold that is given: ``sign(w) * relu(|w| - alpha)``, alpha >= 0.

    Raises:
        ValueError: if alpha does not broadcast to the shape of w.
    """
    return _shrink(w, alpha, backward.leak, flat_at_zero=False)


def _shrink(w: Tensor, alpha: Tensor, leak: float, *, flat_at_zero: bool) -> Tensor:
    if alpha.numel() != 1 and not _fits(alpha.shape, w.shape):
        raise ValueError(f"a threshold of shape {tuple(alpha.shape)} does not broadcast to {tuple(w.shape)}")
    # The compiler and the function transforms want plain operations, and the compiler fuses them itself.
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return _composed(w, alpha, leak)
    return _Shrink.apply(w, alpha, _cheap_number(alpha, w), leak, flat_at_zero)


def _fits(small: torch.Size, large: torch.Size) -> bool:
    """Whether a tensor of shape `small` broadcasts to exactly `large`."""
    return len(small) <= len(large) and all(a in (1, b) for a, b in zip(reversed(small), reversed(large), strict=False))


def _composed(w: Tensor, alpha: Tensor, leak: float) -> Tensor:
    """The operator as plain differentiable operations, with the gradients of `_Shrink`."""
    wide = w.to(torch.promote_types(w.dtype, alpha.dtype))
    active = (wide.abs() > alpha) | (alpha == 0)
    shrunk = torch.where(active, wide - torch.sign(wide) * alpha, 0.0)
    if leak:
        # Adds exactly 0 to the value, and `leak` to the derivative of a pruned weight.
        shrunk = shrunk + torch.where(active, 0.0, leak * (wide - wide.detach()))
    return shrunk.to(w.dtype)


def _cheap_number(alpha: Tensor, w: Tensor) -> float | None:
    """The threshold, where it is one number that can be read without waiting for an accelerator."""
    if alpha.numel() == 1 and w.is_cpu and w.dtype in (torch.float32, torch.float64) and type(w) in PLAIN_TENSORS:
        return alpha.item()
    return None


class _Shrink(torch.autograd.Function):
    """Keeps its output and nothing else of the size of w: S tells both the mask and the sign.

    It runs once per tensor and step, between operations that have swept the cache, so every Python call counts:
    `forward` takes the context itself, because with a separate `setup_context` torch inspects the signature each time.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        w: Tensor,
        alpha: Tensor,
        number: float | None,
        leak: float,
        flat_at_zero: bool,  # noqa: FBT001
    ) -> Tensor:
        if number is None:
            wide = w.to(torch.promote_types(w.dtype, alpha.dtype))
            shrunk = (wide - torch.clamp(wide, -alpha, alpha)).to(w.dtype)
        else:
            shrunk = w.view_as(w) if number == 0.0 else F.softshrink(w, number)
        ctx.number, ctx.leak, ctx.flat_at_zero = number, leak, flat_at_zero
        ctx.save_for_backward(shrunk, alpha)
        ctx.save_for_forward(shrunk, alpha)
        return shrunk

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        shrunk, alpha = ctx.saved_tensors
        wants_w, wants_alpha, *_ = ctx.needs_input_grad
        grad_w = _grad_w(grad, shrunk, alpha, ctx.leak, number=ctx.number) if wants_w else None
        grad_alpha = None
        if wants_alpha:
            # A zero, not None: an optimizer skips the decay of a parameter without a gradient.
            idle = ctx.flat_at_zero and ctx.number == 0.0
            grad_alpha = torch.zeros_like(alpha) if idle else _grad_alpha(grad, shrunk, alpha)
        return grad_w, grad_alpha, None, None, None

    @staticmethod
    def jvp(ctx: Any, w_tangent: Tensor | None, alpha_tangent: Tensor | None, *_: None) -> Tensor:
        shrunk, alpha = ctx.saved_tensors
        tangent = torch.zeros_like(shrunk)
        if w_tangent is not None:
            tangent = tangent + _grad_w(w_tangent, shrunk, alpha, ctx.leak, number=None)
        if alpha_tangent is not None:
            tangent = tangent - shrunk.sign() * alpha_tangent
        return tangent.to(shrunk.dtype)


def _grad_w(grad: Tensor, shrunk: Tensor, alpha: Tensor, leak: float, *, number: float | None) -> Tensor:
    if leak == 1.0 or number == 0.0:
        return grad
    if number is not None and leak == 0.0:
        # One vectorised pass: zero where -0 <= S <= 0, the gradient elsewhere; differentiable in grad.
        return torch.ops.aten.hardshrink_backward.default(grad, shrunk, 0.0)
    active = (shrunk != 0) | (alpha == 0)
    return torch.where(active, grad, leak * grad if leak else 0.0)


def _grad_alpha(grad: Tensor, shrunk: Tensor, alpha: Tensor) -> Tensor:
    """-P, where P = <grad, sign(w) * 1[S != 0]>, reduced to the shape of alpha and in its dtype."""
    one_number = alpha.numel() == 1 and grad.is_cpu and grad.dtype == shrunk.dtype == alpha.dtype
    if one_number and not torch.is_grad_enabled():
        flat = _flat_pair(grad, shrunk)
        if flat is not None:
            return _negative_dot(*flat, like=alpha)
    return -(grad * shrunk.sign()).to(alpha.dtype).sum_to_size(alpha.shape)


def _negative_dot(grad: Tensor, shrunk: Tensor, *, like: Tensor) -> Tensor:
    if like.ndim == 1 and grad.numel() <= CACHE_PIECE:
        # A matrix of one row: the product, its sign and its shape in one call. beta=0 leaves `like` unread.
        return torch.addmv(like, shrunk.sign().unsqueeze(0), grad, beta=0, alpha=-1)
    pieces = zip(grad.split(CACHE_PIECE), shrunk.split(CACHE_PIECE), strict=True)
    return torch.full_like(like, -sum(torch.dot(g, piece.sign()).item() for g, piece in pieces))


def _flat_pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
    """Both tensors as vectors in one common memory order, without a copy; None if they have none."""
    if a.is_contiguous() and b.is_contiguous():
        return a.view(-1), b.view(-1)
    if a.stride() != b.stride():
        return None
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(a.dim())
    if layout is None or not a.is_contiguous(memory_format=layout):
        return None
    return a.as_strided((a.numel(),), (1,)), b.as_strided((b.numel(),), (1,))
