"""Static sparse training: a random mask that never changes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from softprune.methods.base import Method, Total, register
from softprune.methods.masks import Masked
from softprune.methods.transforms import Target, Transform


@register("static")
@dataclass(frozen=True)
class Static(Method):
    """Each tensor keeps as many weights as its budget says, drawn at random before training: ``w * m``, m fixed.

    The baseline that every method which moves weights must beat: `uniform` and `erk` budgets in Evci et al. (2020),
    Mocanu et al. (2018) call it fixed-probability sparse connectivity.

    Deviations from the paper: none.
    State: the mask in the transform of each tensor.
    """

    role = "given"
    paper = "Mocanu et al. 2018; Evci et al. 2020"
    accepts = ("budget",)
    moves_masks = True
    selects = False


@register("keep-zeros")
@dataclass(frozen=True)
class KeepZeros(Method):
    """Every weight that is zero now stays zero, the others train freely: ``w * 1[w_0 != 0]``.

    Deviations from the paper: none; this is plain fine-tuning on a fixed support.
    State: the mask in the transform of each tensor.
    """

    role = "given"
    paper = ""
    selects = False

    def transform(self, target: Target, total: Total, mask: Tensor | None) -> Transform:
        return Masked(target.raw != 0)
