"""Weights with a variance each: the transforms of variational dropout, and its divergence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softprune.methods.transforms import SolvedMask, WideTensors, threshold_dtype

# Molchanov et al. 2017, equation 14: the divergence from a log-uniform prior, fitted.
K1, K2, K3 = 0.63576, 1.87320, 1.48695
# A weight whose variance is e^3 times its square is noise (a dropout rate of 0.95).
CUT = 3.0
_LEAST = 1e-8


def log_alpha(w: Tensor, log_sigma2: Tensor) -> Tensor:
    """The logarithm of sigma^2 / w^2; the square is held above 1e-8."""
    return log_sigma2 - torch.log(w.to(log_sigma2.dtype).square() + _LEAST)


def divergence(log_alpha: Tensor) -> Tensor:
    """The divergence of each weight from the prior; 0 for pure noise.

    >>> divergence(torch.tensor([-4.0, 3.0, 30.0]))
    tensor([2.6342e+00, 2.5420e-02, 4.6788e-14])
    """
    return K1 * torch.sigmoid(-(K2 + K3 * log_alpha)) + 0.5 * F.softplus(-log_alpha)


def divergence_slopes(w: Tensor, log_sigma2: Tensor) -> tuple[Tensor, Tensor]:
    """The derivatives of the divergence by w and by log_sigma2."""
    ratio = log_alpha(w, log_sigma2)
    gate = torch.sigmoid(K2 + K3 * ratio)
    slope = -K1 * K3 * gate * (1.0 - gate) - 0.5 * torch.sigmoid(-ratio)
    wide = w.to(slope.dtype)
    return slope * (-2.0 * wide / (wide.square() + _LEAST)), slope


class Variational(WideTensors):
    """``w + sigma * noise`` in training; else w, or 0 where it is mostly noise (log alpha of 3 and more).

    Noise is drawn where gradients are recorded: reading a weight without them, as to count or to bake it, gives the one
    that evaluation uses.

    State: the parameter ``log_sigma2``, one for each weight.
    """

    def __init__(self, w: Tensor, log_sigma2: float) -> None:
        super().__init__()
        self.log_sigma2 = _parameter(w, log_sigma2)
        self.first["log_sigma2"] = log_sigma2

    def forward(self, w: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            return _noisy(w, self.log_sigma2)
        return torch.where(log_alpha(w, self.log_sigma2) < CUT, w, 0.0)


class VariationalMask(SolvedMask):
    """The same with a solved mask in place of the fixed cut: kept are the weights with the largest |w| / sigma.

    State: as a solved mask, and the parameter ``log_sigma2``.
    """

    def __init__(self, w: Tensor, log_sigma2: float) -> None:
        super().__init__(w)
        self.log_sigma2 = _parameter(w, log_sigma2)
        self.first["log_sigma2"] = log_sigma2

    def forward(self, w: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            return _noisy(w, self.log_sigma2)
        return super().forward(w)

    def scores(self, w: Tensor) -> Tensor:
        return w.to(self.log_sigma2.dtype) * torch.exp(-0.5 * self.log_sigma2)


def _parameter(w: Tensor, value: float) -> nn.Parameter:
    return nn.Parameter(torch.full_like(w, value, dtype=threshold_dtype(w), requires_grad=False))


def _noisy(w: Tensor, log_sigma2: Tensor) -> Tensor:
    # From torch's own generator, whose state checkpoints hold.
    noise = torch.randn_like(w, dtype=log_sigma2.dtype)
    return (w + torch.exp(0.5 * log_sigma2) * noise).to(w.dtype)
