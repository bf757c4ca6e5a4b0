"""VD: sparse variational dropout (Molchanov, Ashukha and Vetrov, ICML 2017; Gale, Elsen and Hooker 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softprune.goals.base import constant
from softprune.methods.base import Context, GoalSettings, Method, Total, register
from softprune.methods.masks import is_number
from softprune.methods.transforms import Solved, Target, Transform, above, threshold_dtype

# Molchanov et al. 2017, equation 14: the divergence from a log-uniform prior, fitted.
K1, K2, K3 = 0.63576, 1.87320, 1.48695
# A weight whose variance is e^3 times its square is noise (a dropout rate of 0.95).
CUT = 3.0
_LEAST = 1e-8


def log_alpha(w: Tensor, log_sigma2: Tensor) -> Tensor:
    """The logarithm of sigma^2 / w^2; the square is held above 1e-8."""
    return log_sigma2 - torch.log(w.to(log_sigma2.dtype).square() + _LEAST)


def divergence(log_alpha: Tensor) -> Tensor:
    """Of each weight from the prior; 0 for pure noise.

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


class Variational(Transform):
    """``w + sigma * noise`` in training; else w, or 0 where it is mostly noise (log alpha of 3 and more).

    Noise is drawn where gradients are recorded: reading a weight without them, as to count or to bake it, gives the one
    that evaluation uses.

    State: the parameter ``log_sigma2``, one for each weight.
    """

    countable = False
    decayed = False
    log_sigma2: nn.Parameter

    def __init__(self, w: Tensor, log_sigma2: float) -> None:
        super().__init__()
        self.log_sigma2 = nn.Parameter(torch.full_like(w, log_sigma2, dtype=threshold_dtype(w), requires_grad=False))
        self.first["log_sigma2"] = log_sigma2

    def forward(self, w: Tensor) -> Tensor:
        if not (self.training and torch.is_grad_enabled()):
            return torch.where(self.lives(w), w, 0.0)
        # From torch's own generator, whose state checkpoints hold.
        noise = torch.randn_like(w, dtype=self.log_sigma2.dtype)
        return (w + torch.exp(0.5 * self.log_sigma2) * noise).to(w.dtype)

    def lives(self, w: Tensor) -> Tensor:
        """The weights that evaluation uses, as bools."""
        return log_alpha(w, self.log_sigma2) < CUT


class VariationalMask(Variational, Solved):
    """The same with a solved mask in place of the fixed cut: kept are the weights with the largest |w| / sigma.

    State: that of `Solved`, the bool buffer ``mask``, and the parameter ``log_sigma2``.
    """

    countable = True
    mask: Tensor

    def __init__(self, w: Tensor, log_sigma2: float) -> None:
        super().__init__(w, log_sigma2)
        self._begin_solution(w)
        self.register_buffer("mask", torch.ones_like(w, dtype=torch.bool))
        self.first["mask"] = True

    def lives(self, w: Tensor) -> Tensor:
        return self.mask

    def scores(self, w: Tensor) -> Tensor:
        return w.to(self.log_sigma2.dtype) * torch.exp(-0.5 * self.log_sigma2)

    def take_(self, alpha: Tensor, crossing: Tensor, w: Tensor) -> None:
        super().take_(alpha, crossing, w)
        self.mask.copy_(above(w, alpha))


@register("vd")
@dataclass(frozen=True)
class VD(Method):
    """Every weight learns how much noise it bears; those that are mostly noise go.

    Training uses ``theta + sigma * eps``, eps normal and new at every pass. To the loss comes the divergence from a
    log-uniform prior, with ``log alpha = log sigma^2 - log theta^2`` and summed over all weights,

        k1 - k1 * sigmoid(k2 + k3 * log alpha) + 0.5 * log(1 + 1 / alpha),    k = (0.63576, 1.87320, 1.48695),

    whose gradient is added before each step, so that your loop does not change (clipping of yours does not see it).
    Evaluation and the baked model use theta where log alpha < 3, else 0. Under a goal they use theta where |theta| /
    sigma is among the largest of all tensors: the same order, cut where the total is met. Training is never masked.

    Args:
        kl: the final weight of the mean divergence over all weights, beside the mean loss. The variational bound
            itself is the number of weights over that of training samples, 20 for ResNet50 on ImageNet and 7 for LeNet
            on MNIST; Gale et al. take 0.01 to 100 times that. More is sparser. Under a goal choose it such that the
            method's own cut comes near the goal.
        begin: fraction of the training after which the divergence sets in; Gale et al. have 1/16 to 5/16.
        saturate: fraction after which its weight has risen in a straight line to `kl`; Gale et al. have 0.5 to 0.8.
        log_sigma2_init: where log sigma^2 starts.
        min_keep: under a goal, weights that each tensor keeps whatever happens; by default a twentieth of what it would
            have if all tensors were equally dense.

    Deviations from the paper: noise is on the weights, one draw for a batch, as a transform sees no activations; the
    papers draw it for each output (local reparameterisation), which has less variance. log alpha is not clipped. Goals.
    State: the parameter ``log_sigma2`` of each transform, in a group without decay; under a goal also ``mask``.
    """

    role = "learned"
    paper = "Molchanov et al. 2017; Gale et al. 2019"
    accepts = ("none", "goal")

    kl: float = 20.0
    begin: float = 0.1
    saturate: float = 0.6
    log_sigma2_init: float = -10.0
    min_keep: int = 0

    def __post_init__(self) -> None:
        if not (is_number(self.kl) and 0 <= self.kl < math.inf):
            raise ValueError(f"kl is a finite number, 0 or more; got {self.kl!r}")
        if not 0.0 <= self.begin < self.saturate <= 1.0:
            raise ValueError(
                f"begin comes before saturate, both fractions of the training; got {self.begin!r} and {self.saturate!r}"
            )
        if not isinstance(self.log_sigma2_init, int | float) or not math.isfinite(self.log_sigma2_init):
            raise ValueError(f"log_sigma2_init must be a finite number, got {self.log_sigma2_init!r}")
        super().__post_init__()

    @property
    def goal_settings(self) -> GoalSettings:
        return GoalSettings(every=16, min_keep=self.min_keep, schedule=constant())

    def transform(self, target: Target, total: Total, mask: Tensor | None) -> Transform:
        return (Variational if total == "none" else VariationalMask)(target.raw, self.log_sigma2_init)

    def weight_at(self, progress: float) -> float:
        """The weight of the mean divergence at a point of the training.

        >>> VD(kl=8.0, begin=0.2, saturate=0.6).weight_at(0.3)
        2.0
        """
        return self.kl * min(1.0, max(0.0, (progress - self.begin) / (self.saturate - self.begin)))

    def before_step(self, ctx: Context) -> None:
        weight = ctx.loss_scale * self.weight_at(ctx.progress) / sum(t.shape.numel() for t in ctx.targets)
        for target in ctx.targets if weight else ():
            assert isinstance(target.transform, Variational)
            raw, log_sigma2 = target.raw, target.transform.log_sigma2
            if raw.grad is not None:
                by_weight, by_variance = divergence_slopes(raw, log_sigma2)
                raw.grad.add_(by_weight.to(raw.grad.dtype), alpha=weight)
                log_sigma2.grad = torch.zeros_like(log_sigma2) if log_sigma2.grad is None else log_sigma2.grad
                log_sigma2.grad.add_(by_variance, alpha=weight)
