"""STR: soft threshold weight reparameterization (Kusupati et al., ICML 2020)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from softprune.methods.base import GoalSettings, Method, Total, register
from softprune.methods.transforms import SoftThreshold, SolvedThreshold, Target, Transform, threshold_dtype
from softprune.ops import Backward, G, Sigmoid, annealed, masked

PAPER_G = Sigmoid()
ANNEALED = annealed()
GRANULARITIES = ("tensor", "filter", "weight", "global")


@register("str")
@dataclass(frozen=True)
class STR(Method):
    """Every weight tensor W is used as ``sign(W) * relu(|W| - g(s))``; the optimizer learns s with W.

    Under a goal (`sparsify(model, STR(), goal=Sparsity(0.95))`) the threshold is ``exp(s + c)``: the shared offset c is
    solved for, so that the total is met exactly, and the gradient of the loss moves every s against the others.

    Without a goal it is the paper's method: weight decay pulls s from s_init towards 0 and so raises the threshold, the
    gradient of the loss holds it back, and each tensor comes to rest at a sparsity of its own.

    Args:
        s_init: where s starts without a goal. With sigmoid any value below -88.7 is a threshold of exactly 0 and only
            sets how long it takes until sparsity sets in; `softprune.propose` finds it for your schedule.
        g: threshold function without a goal; sigmoid as in the paper's convolutions, Exp as for its ranks.
        granularity: one s per "tensor" (the paper's default), per "filter", per "weight", or one shared
            by all tensors ("global"; under a goal there is then nothing to learn).
        backward: `masked`, which is the paper and the default without a goal; `straight_through` lets pruned weights
            learn like all others; `annealed()`, the default under a goal, does so at first and no longer at the end.
        min_keep: weights that each tensor keeps whatever happens. 0 is the paper, where a tensor may die; under a goal
            it stands for a twentieth of what the tensor would have if all were equally dense.
        pace: under a goal, how far s can travel against the others over the training, in units of log alpha; 0 leaves
            the distribution where it starts.
        gradient: under a goal, "projected" follows the loss along the fixed total; "plain" takes each threshold as if
            it moved alone.
        start: under a goal, "equal" begins with one threshold for all weights; "mean" with thresholds proportional to
            the mean size of each tensor's weights, so that all are about equally dense.
        rescale: under a goal, multiply each filter to make up for the size that shrinking took, as ST-3 does.

    Deviations from the paper: with a threshold of exactly 0 it is the identity, also in its derivative at w = 0.
    State: ``s`` in the transform of each tensor; under a goal also the threshold and two running averages.
    """

    role = "learned"
    paper = "Kusupati et al. 2020"
    accepts = ("none", "goal", "budget")

    s_init: float = -3200.0
    g: G = PAPER_G
    granularity: Literal["tensor", "filter", "weight", "global"] = "tensor"
    backward: Backward | None = None
    min_keep: int = 0
    pace: float = 3.0
    gradient: Literal["projected", "plain"] = "projected"
    start: Literal["mean", "equal"] = "equal"
    rescale: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.s_init, int | float) or not math.isfinite(self.s_init):
            raise ValueError(f"s_init must be a finite number, got {self.s_init!r}")
        if not isinstance(self.g, G):
            raise TypeError(f"g must be one of softprune's functions, such as Sigmoid() or Exp(); got {self.g!r}")
        if not isinstance(self.backward, Backward | None):
            raise TypeError(f"backward must be masked, straight_through or annealed(); got {self.backward!r}")
        if self.granularity not in GRANULARITIES:
            raise ValueError(f"granularity must be one of {', '.join(GRANULARITIES)}; got {self.granularity!r}")
        if not isinstance(self.rescale, bool):
            raise TypeError(f"rescale is true or false, got {self.rescale!r}")
        super().__post_init__()

    @property
    def reads_weights(self) -> bool:
        return self.min_keep > 0

    @property
    def goal_settings(self) -> GoalSettings:
        if self.granularity == "global":
            # One s for all is absorbed by the offset that is solved for: there is nothing to learn.
            return GoalSettings(0.0, self.gradient, "equal", min_keep=self.min_keep)
        return GoalSettings(self.pace, self.gradient, self.start, min_keep=self.min_keep)

    def transform(self, target: Target, total: Total, mask: Tensor | None) -> Transform:
        w = target.raw
        if total != "none":
            backward = self.backward or ANNEALED
            return SolvedThreshold(w, self._shape(target), backward=backward, rescale=self.rescale)
        if w.device.type == "meta" and self.g.k == "auto":
            raise ValueError(
                f'{target.name} is on the meta device and has no weights to take k="auto" from: give k a number, '
                "or sparsify after loading the weights"
            )
        s = nn.Parameter(torch.full(self._shape(target), self.s_init, dtype=threshold_dtype(w), device=w.device))
        g, backward = self.g.resolve(w), self.backward or masked
        transform = SoftThreshold(s, g, backward=backward, first=self.s_init, min_keep=self.min_keep)
        if self.min_keep and w.device.type != "meta":
            transform.keep_at_least_(w, self.min_keep)
        return transform

    def _shape(self, target: Target) -> tuple[int, ...]:
        if self.granularity == "filter":
            axis = _filter_axis(target)
            return tuple(n if d == axis else 1 for d, n in enumerate(target.raw.shape))
        return tuple(target.raw.shape) if self.granularity == "weight" else (1,)

    def link(self, model: nn.Module, transforms: Mapping[str, Transform], methods: Mapping[str, Method]) -> None:
        # Tensors that a rule starts elsewhere have a threshold of their own, shared among them.
        shared: dict[float, nn.Parameter] = {}
        for name, transform in transforms.items():
            method = methods[name]
            if (
                not isinstance(method, STR)
                or method.granularity != "global"
                or not isinstance(transform, SoftThreshold)
            ):
                continue
            s = shared.setdefault(method.s_init, transform.s)
            if transform.s.dtype != s.dtype or transform.s.device != s.device:
                raise ValueError(
                    "one global threshold needs all tensors in one dtype on one device, got "
                    f"{s.dtype} on {s.device} and {transform.s.dtype} on {transform.s.device} for {name}; "
                    'use granularity="tensor", or move the model first'
                )
            with torch.no_grad():
                s.copy_(torch.minimum(s, transform.s))  # min_keep may have lowered one of them
            transform.s = s


def _filter_axis(target: Target) -> int:
    """The dimension of the weight that runs over output channels."""
    module = target.module
    if not isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        return 0
    if module.groups > 1:
        raise ValueError(
            f"{target.name}: a grouped transposed convolution has no single dimension of output channels; "
            'use granularity="tensor" or "weight" for it by a rule'
        )
    return 1
