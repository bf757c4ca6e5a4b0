"""The functions g that turn the learnable s into a threshold alpha = g(s).

The paper (appendix, "Characterization of g") asks three things of g: it is positive and rises from 0
(s -> -inf) without a bound; its derivative is positive and bounded; the derivative at s_init is below 1.
Its own two choices hold these on s < 0, where s lives throughout training: sigmoid for convolutions,
exp for the ranks of recurrent matrices.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

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
