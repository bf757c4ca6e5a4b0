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
from torch.autograd import forward_ad

from softprune.ops.g import G, Sigmoid

# The reduction for s walks over the weights in pieces of this many elements, so that the temporary sign
# tensor stays in the cache instead of making two more trips to memory.
CACHE_PIECE = 1 << 18

# Not a sharded or otherwise special tensor, of a dtype that a Python number can be compared with exactly.
PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
NUMBERS = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Backward:
    """How much of the gradient a pruned weight receives.

    `leak` is 0 for the paper's masked gradient, 1 for all of it. Over the fraction `until` of the training it falls to
    0 in a straight line; None leaves it as it is.
    """

    leak: float = 0.0
    until: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.leak <= 1.0:
            raise ValueError(f"the fraction of the gradient for pruned weights must be in [0, 1], got {self.leak}")
        if self.until is not None and not 0.0 < self.until <= 1.0:
            raise ValueError(f"until is a fraction of the training, above 0 and at most 1, got {self.until}")

    def at(self, progress: float) -> float:
        """The leak at a point of the training, from 0 to 1.

        >>> annealed().at(0.25)
        0.75
        """
        return self.leak if self.until is None else self.leak * max(0.0, 1.0 - progress / self.until)


masked = Backward(0.0)
straight_through = Backward(1.0)


def annealed(leak: float = 1.0, *, until: float = 1.0) -> Backward:
    """Pruned weights receive this fraction of the gradient at first, and none from `until` of the training on."""
    return Backward(leak, until)


def soft_threshold(
    w: Tensor, s: Tensor, g: G | None = None, *, backward: Backward = masked, leak: Tensor | None = None
) -> Tensor:
    """Shrink w by the learnable threshold g(s): ``sign(w) * relu(|w| - g(s))``.

    Args:
        w: weights of any shape.
        s: raw threshold, of any shape that broadcasts to that of w: one for the tensor, one per filter,
            one per weight. At least float32 is used for it whatever its dtype.
        g: threshold function; the paper's sigmoid by default.
        backward: `masked` (the paper), `straight_through`, or `Backward(fraction)`.
        leak: in place of the fraction in `backward`: a tensor of one element, so that a change compiles nothing anew.

    Returns:
        A tensor like w. Weights with ``|w| <= g(s)`` are exactly 0.

    >>> soft_threshold(torch.tensor([-1.0, 0.2, 0.75]), torch.tensor([0.0]))
    tensor([-0.5000,  0.0000,  0.2500])
    """
    if s.dtype not in (torch.float32, torch.float64):
        s = s.float()
    # Where g has underflown to 0 its slope is 0 too, so the sum for its gradient need not be made.
    return _shrink(w, (g or Sigmoid())(s), backward.leak if leak is None else leak, flat_at_zero=True)


def shrink(w: Tensor, alpha: Tensor, *, backward: Backward = masked, leak: Tensor | None = None) -> Tensor:
    """The same operator for a given threshold: ``sign(w) * relu(|w| - alpha)``, where alpha >= 0 broadcasts to w."""
    return _shrink(w, alpha, backward.leak if leak is None else leak, flat_at_zero=False)


def _shrink(w: Tensor, alpha: Tensor, leak: float | Tensor, *, flat_at_zero: bool) -> Tensor:
    # The compiler, the function transforms and forward mode want plain operations; the compiler fuses them itself.
    plain = (
        torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    )
    if isinstance(leak, Tensor) and not plain:
        # On a CPU it can be read; reading it from an accelerator would wait for all that is still computed there.
        plain = not leak.is_cpu
        leak = leak if plain else leak.item()
    if alpha.numel() == 1:
        if alpha.dim() > w.dim():
            alpha = alpha.reshape(())  # one number for all, which is to add no dimension
        if not plain and not leak and w.is_cpu and w.dtype in NUMBERS and type(w) in PLAIN_TENSORS:
            return _shrink_by_number(w, alpha, flat_at_zero=flat_at_zero)
    elif not _fits(alpha.shape, w.shape):
        raise ValueError(f"a threshold of shape {tuple(alpha.shape)} does not broadcast to {tuple(w.shape)}")
    return _composed(w, alpha, leak) if plain else _Shrink.apply(w, alpha, leak)


def _shrink_by_number(w: Tensor, alpha: Tensor, *, flat_at_zero: bool) -> Tensor:
    """The paper's operator where its threshold is one number that can be read without waiting for an accelerator.

    It runs once per tensor and step, between operations that have swept the cache, so every Python call counts.
    """
    number = alpha.item()
    shrunk = F.softshrink(w, number) if number else w
    if not alpha.requires_grad:
        return shrunk
    return _Brake.apply(shrunk, alpha, flat_at_zero and not number)


def _fits(small: torch.Size, large: torch.Size) -> bool:
    """Whether a tensor of shape `small` broadcasts to exactly `large`."""
    return len(small) <= len(large) and all(a in (1, b) for a, b in zip(reversed(small), reversed(large), strict=False))


def _composed(w: Tensor, alpha: Tensor, leak: float | Tensor) -> Tensor:
    """The operator as plain differentiable operations, with the gradients of `_Shrink`."""
    wide = w.to(torch.promote_types(w.dtype, alpha.dtype))
    active = (wide.abs() > alpha) | (alpha == 0)
    shrunk = torch.where(active, wide - torch.sign(wide) * alpha, 0.0)
    if isinstance(leak, Tensor) or leak:
        # Adds exactly 0 to the value, and `leak` to the derivative of a pruned weight.
        shrunk = shrunk + torch.where(active, 0.0, leak * (wide - wide.detach()))
    return shrunk.to(w.dtype)


class _Brake(torch.autograd.Function):
    """Passes the shrunk weights on; its backward gives the threshold its gradient.

    `forward` takes the context itself, because with a separate `setup_context` torch inspects the signature each time.
    """

    @staticmethod
    def forward(ctx: Any, shrunk: Tensor, alpha: Tensor, idle: bool) -> Tensor:  # type: ignore[override]  # noqa: FBT001
        ctx.idle = idle
        ctx.save_for_backward(shrunk, alpha)
        return shrunk

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:  # type: ignore[override]
        shrunk, alpha = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return grad, None, None
        # A zero, not None: an optimizer skips the decay of a parameter without a gradient.
        return grad, torch.zeros_like(alpha) if ctx.idle else _grad_alpha(grad, shrunk, alpha), None


class _Shrink(torch.autograd.Function):
    """The operator for everything else: many thresholds, pruned weights that learn, half precision, accelerators.

    Keeps its output and nothing else of the size of w: S tells both the mask and the sign.
    """

    @staticmethod
    def forward(ctx: Any, w: Tensor, alpha: Tensor, leak: float) -> Tensor:  # type: ignore[override]
        wide = w.to(torch.promote_types(w.dtype, alpha.dtype))
        shrunk = (wide - torch.clamp(wide, -alpha, alpha)).to(w.dtype)
        ctx.leak = leak
        ctx.save_for_backward(shrunk, alpha)
        return shrunk

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # type: ignore[override]
        shrunk, alpha = ctx.saved_tensors
        wants_w, wants_alpha, _ = ctx.needs_input_grad
        grad_w = _grad_w(grad, shrunk, alpha, ctx.leak) if wants_w else None
        return grad_w, _grad_alpha(grad, shrunk, alpha) if wants_alpha else None, None


def _grad_w(grad: Tensor, shrunk: Tensor, alpha: Tensor, leak: float) -> Tensor:
    if leak == 1.0:
        return grad
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


def power_shrink(w: Tensor, alpha: Tensor, power: float, *, backward: Backward = masked) -> Tensor:
    """Between soft and hard: ``sign(w) * (|w|^p - alpha^p)^(1/p)`` above alpha, else 0; p = 1 is the soft threshold.

    The derivative is that of the identity for weights that live, and `backward.leak` of it for the others. With alpha 0
    the operator is the identity.

    >>> power_shrink(torch.tensor([-2.0, 0.5]), torch.tensor([1.0]), 3.0)
    tensor([-1.9129,  0.0000])
    """
    alive = (w.abs() > alpha) | (alpha == 0)
    with torch.no_grad():
        # By the quotient, since alpha^p of a small threshold would underflow.
        shrunk = (w * (1 - (alpha / w.abs()) ** power).clamp_min(0.0) ** (1 / power)).to(w.dtype)
        # Just above alpha the difference may be lost to rounding; what lives must not be 0.
        least = torch.finfo(w.dtype).tiny * w.sign()
        value = torch.where(alive, torch.where(shrunk == 0, least, shrunk), 0.0)
        value = torch.where(alpha == 0, w, value)
    through = w - w.detach()
    return value + torch.where(alive, through, backward.leak * through)
