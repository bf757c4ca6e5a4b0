"""Static sparse training: a random mask that never changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from softprune.methods.base import Method, Total
from softprune.methods.registry import register


@register("static")
@dataclass(frozen=True)
class Static(Method):
    """Each tensor keeps as many weights as its budget says, drawn at random before training: ``w * m``, m fixed.

    The baseline that every method which moves weights must beat: `uniform` and `erk` budgets in Evci et al. (2020),
    Mocanu et al. (2018) call it fixed-probability sparse connectivity.

    Deviations from the paper: none.
    State: the mask in the transform of each tensor.
    """

    role: ClassVar[Literal["given", "moved", "learned"]] = "given"
    paper: ClassVar[str] = "Mocanu et al. 2018; Evci et al. 2020"
    accepts: ClassVar[tuple[Total, ...]] = ("budget",)
    moves_masks: ClassVar[bool] = True
    selects: ClassVar[bool] = False
