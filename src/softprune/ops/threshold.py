"""The soft threshold operator: the paper's forward and backward in one pass each.

    S(w, s) = sign(w) * relu(|w| - alpha),            alpha = g(s)
    dL/dw   = dL/dS * 1[S != 0]
    dL/ds   = -g'(s) * <dL/dS, sign(w) * 1[S != 0]>   (reduced to the shape of s)

One deviation, where the paper's composition cannot learn: while alpha is exactly 0 the operator is the
identity, so its derivative at w = 0 is 1 and not 0. Otherwise a tensor that starts at zero would stay
there for ever.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

# k="auto" takes this many standard deviations of the tensor's weights as the scale: sigmoid then
# spans the whole range of the weights, and no more, whatever the width of the layer.
AUTO_DEVIATIONS = 4.0


@dataclass(frozen=True)
class G(ABC):
    """A scaled threshold function ``alpha = k * shape(s)`` and its inverse.

    Args:
        k: scale of the threshold, or "auto" to take it from the weights (four standard deviations).
    """

    k: float | Literal["auto"] = 1.0

    def __post_init__(self) -> None:
        if self.k != "auto" and not (isinstance(self.k, int | float) and math.isfinite(self.k) and self.k > 0):
            raise ValueError(f'k must be a positive number or "auto", got {self.k!r}')

    @property
    def scale(self) -> float:
        if isinstance(self.k, str):
            raise ValueError(f'{self} has k="auto": call resolve(w) to take k from the weights first')
        return float(self.k)

    def resolve(self, w: Tensor) -> G:
        """The same function with ``k="auto"`` replaced by a number taken from the weights w."""
        if self.k != "auto":
            return self
        # A tensor of zeros (or one element) has no spread to measure: the paper's k = 1 is as good as any.
        spread = AUTO_DEVIATIONS * float(w.detach().double().std()) if w.numel() > 1 else 0.0
        return replace(self, k=spread if math.isfinite(spread) and spread > 0 else 1.0)

    def __call__(self, s: Tensor) -> Tensor:
        """The threshold alpha = g(s), differentiable."""
        alpha = self._shape(s)
        return alpha if self.scale == 1.0 else alpha * self.scale

    def inverse(self, alpha: Tensor) -> Tensor:
        """The s for which g(s) = alpha; alpha must be positive."""
        return self._shape_inverse(alpha / self.scale)

    def derivative(self, s: Tensor) -> Tensor:
        """g'(s), elementwise."""
        with torch.enable_grad():
            s = s.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self(s).sum(), s)
        return slope

    @abstractmethod
    def _shape(self, s: Tensor) -> Tensor: ...

    @abstractmethod
    def _shape_inverse(self, a: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Sigmoid(G):
    """``g(s) = k / (1 + exp(-s))``: the paper's choice for convolutions. Exactly 0 in float32 below s = -88.7.

    >>> Sigmoid()(torch.tensor([0.0]))
    tensor([0.5000])
    """

    def _shape(self, s: Tensor) -> Tensor:
        return torch.sigmoid(s)

    def _shape_inverse(self, a: Tensor) -> Tensor:
        return torch.logit(a)


@dataclass(frozen=True)
class Exp(G):
    """``g(s) = k * exp(s)``: the paper's choice for ranks.

    >>> Exp()(torch.tensor([0.0]))
    tensor([1.])
    """

    def _shape(self, s: Tensor) -> Tensor:
        return torch.exp(s)

    def _shape_inverse(self, a: Tensor) -> Tensor:
        return torch.log(a)


@dataclass(frozen=True)
class Softplus(G):
    """``g(s) = k * log(1 + exp(s))``: the one choice with all three properties on the whole line.

    >>> Softplus()(torch.tensor([0.0]))
    tensor([0.6931])
    """

    def _shape(self, s: Tensor) -> Tensor:
        return F.softplus(s)

    def _shape_inverse(self, a: Tensor) -> Tensor:
        # log(expm1(a)), written so that a large a does not overflow.
        return a + torch.log(-torch.expm1(-a))


@dataclass(frozen=True)
class Custom(G):
    """Your own g: ``g(s) = k * f(s)`` with ``f_inverse(f(s)) = s``, both elementwise functions of torch.

    The paper's properties are checked on ``[s_low, s_high]``, where s will lie (the paper keeps it below 0): f must be
    finite, positive and rising, its derivative finite, and f_inverse must undo f. Both functions must be importable
    (no lambda) if the model is to be pickled.
    """

    f: Callable[[Tensor], Tensor] = torch.sigmoid
    f_inverse: Callable[[Tensor], Tensor] = torch.logit
    s_low: float = -20.0
    s_high: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.s_low < self.s_high:
            raise ValueError(f"s_low must be below s_high, got s_low={self.s_low}, s_high={self.s_high}")
        check_properties(self.f, self.f_inverse, self.s_low, self.s_high)

    def _shape(self, s: Tensor) -> Tensor:
        return self.f(s)

    def _shape_inverse(self, a: Tensor) -> Tensor:
        return self.f_inverse(a)


def check_properties(
    f: Callable[[Tensor], Tensor], f_inverse: Callable[[Tensor], Tensor], s_low: float, s_high: float
) -> None:
    """Raise if f lacks one of the paper's three properties on [s_low, s_high], naming it and the s where it fails."""
    with torch.enable_grad():
        s = torch.linspace(s_low, s_high, 1001, dtype=torch.float64, requires_grad=True)
        alpha = f(s)
        if alpha.shape != s.shape:
            raise ValueError(f"g must be elementwise: it maps shape {tuple(s.shape)} to {tuple(alpha.shape)}")
        (slope,) = torch.autograd.grad(alpha.sum(), s)
    s, alpha = s.detach(), alpha.detach()

    def refuse_where(bad: Tensor, what: str) -> None:
        if bad.any():
            at = float(s[bad][0])
            raise ValueError(f"g {what} at s = {at:g}; it must hold on [{s_low:g}, {s_high:g}]")

    refuse_where(~torch.isfinite(alpha), "is not finite")
    refuse_where(alpha <= 0, "is not positive")
    refuse_where(~torch.isfinite(slope), "has no finite derivative")
    refuse_where(slope <= 0, "does not rise (its derivative is not positive)")
    # g -> 0 as s -> -inf: at the low end it must have come down to a small part of its value at the top.
    if alpha[0] > 0.5 * alpha[-1]:
        raise ValueError(f"g does not fall towards 0: it still has {float(alpha[0]):g} at s = {s_low:g}")
    if not slope[0] < 1:
        raise ValueError(f"g'(s) = {float(slope[0]):g} at s = {s_low:g}; it must start below 1")
    refuse_where((f_inverse(alpha) - s).abs() > 1e-6 * (1 + s.abs()), "is not undone by f_inverse")


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
