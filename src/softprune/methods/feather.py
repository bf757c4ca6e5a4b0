"""Feather: an operator between soft and hard threshold (Glentis Georgoulakis, Retsinas and Maragos 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from softprune.goals.base import cubic
from softprune.methods.base import GoalSettings, Method, Total, register
from softprune.methods.masks import is_number, require_fraction
from softprune.methods.transforms import SolvedThreshold, Target, Transform
from softprune.ops import Backward


@register("feather")
@dataclass(frozen=True)
class Feather(Method):
    """One threshold on all weights, an operator that shrinks large weights hardly at all, gradients for the pruned.

    The weight in use is ``sign(w) * (|w|^p - alpha^p)^(1/p)`` above alpha and 0 below; the derivative is 1 above and
    `leak` below. alpha is solved for at every step, for a sparsity that rises from the first step to half of the
    training as ``s_f * (1 - (1 - x)^3)``.

    Args:
        power: p; the paper has 3. With 1 it is the soft threshold, with a large p the hard one.
        leak: the part of the gradient that pruned weights get; the paper has 1 up to 95 % sparsity, 0.5 above.
        min_keep: weights that each tensor keeps whatever happens; by default a twentieth of what it would have if all
            tensors were equally dense.

    Deviations from the paper: the final network has the weights that were trained with, where the authors' code puts
    the raw ones above the threshold in their place; the floor under min_keep.
    State: ``alpha`` in the transform of each tensor.
    """

    role = "learned"
    paper = "Glentis Georgoulakis et al. 2023"
    accepts = ("goal", "budget")

    power: float = 3.0
    leak: float = 1.0
    min_keep: int = 0

    def __post_init__(self) -> None:
        if not (is_number(self.power) and 1.0 <= self.power <= 64.0):
            raise ValueError(f"power is a number from 1 to 64, got {self.power!r}")
        require_fraction("leak", self.leak)
        super().__post_init__()

    @property
    def goal_settings(self) -> GoalSettings:
        return GoalSettings(min_keep=self.min_keep, schedule=cubic(0.0, 0.5))

    def transform(self, target: Target, total: Total, mask: Tensor | None) -> Transform:
        return SolvedThreshold(target.raw, power=self.power, backward=Backward(self.leak))
