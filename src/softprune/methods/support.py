"""KeepZeros: train on with the zeros a tensor already has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from softprune.methods.base import Method, Target
from softprune.methods.registry import register
from softprune.methods.transforms import Masked, Transform


@register("keep-zeros")
@dataclass(frozen=True)
class KeepZeros(Method):
    """Every weight that is zero now stays zero, the others train freely: ``w * 1[w_0 != 0]``.

    Deviations from the paper: none; this is plain fine-tuning on a fixed support.
    State: the mask in the transform of each tensor.
    """

    role: ClassVar[Literal["given", "moved", "learned"]] = "given"
    paper: ClassVar[str] = ""
    selects: ClassVar[bool] = False

    def transform(self, target: Target) -> Transform:
        return Masked(target.raw != 0)
