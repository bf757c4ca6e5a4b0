"""ST-3: straight-through, soft threshold, scaled (Vanderschueren and De Vleeschouwer, WACV 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from softprune.methods.base import GoalSettings, Method, Total, register
from softprune.methods.transforms import SolvedThreshold, Target, Transform
from softprune.ops import straight_through


@register("st3")
@dataclass(frozen=True)
class ST3(Method):
    """One soft threshold on all weights, given by the schedule; pruned weights get the whole gradient.

    The weight in use is ``c * sign(w) * relu(|w| - alpha)``, with c per filter making up for the size that was lost:
    ``c = 1.01 / (0.01 + r)``, r the share of the filter's absolute weight that survives. The gradient passes through
    all of it unchanged.

    Args:
        sigma: the variant ST-3-sigma, which compares ``|w| * sqrt(sum of the tensor's dimensions)``: closer to equal
            densities, and fewer multiply-adds.
        min_keep: weights that each tensor keeps whatever happens; by default a twentieth of what it would have if all
            tensors were equally dense.

    Deviations from the paper: the floor under min_keep, as a tensor may die there; exact counts at every step.
    State: ``alpha`` in the transform of each tensor.
    """

    role = "learned"
    paper = "Vanderschueren and De Vleeschouwer 2023"
    accepts = ("goal", "budget")

    sigma: bool = False
    min_keep: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.sigma, bool):
            raise TypeError(f"sigma is true or false, got {self.sigma!r}")
        super().__post_init__()

    @property
    def goal_settings(self) -> GoalSettings:
        return GoalSettings(start="dimensions" if self.sigma else "equal", min_keep=self.min_keep)

    def transform(self, target: Target, total: Total, mask: Tensor | None) -> Transform:
        return SolvedThreshold(target.raw, backward=straight_through, rescale=True)
