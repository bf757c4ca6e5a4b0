"""Reading the arguments of ATen operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx import Node

from softprune.deploy.export.lowering import Lowering, UnsupportedError


def pair(given: int | Sequence[int]) -> list[int]:
    """One number for rows and columns, or one for each."""
    if isinstance(given, int):
        return [given, given]
    sizes = [int(size) for size in given]
    return sizes * 2 if len(sizes) == 1 else sizes


def constant(lowering: Lowering, node: Node | None, what: str) -> Tensor:
    """A tensor that must not depend on the inputs."""
    found = lowering[node]
    if not isinstance(found, Tensor):
        raise UnsupportedError(f"its {what} is computed from an input, only a constant one is in the format")
    return found


def optional(lowering: Lowering, node: Node | None, what: str) -> str | None:
    """The name of a constant among the weights, None if there is none."""
    return None if node is None else lowering.weight(constant(lowering, node, what))


def axis_of(lowering: Lowering, x: Node, axis: int) -> int:
    """An axis counted from the front."""
    return axis % len(lowering.shape(x))


def length(lowering: Lowering, x: Node, axis: int) -> int:
    """The size of an axis, which must not be the batch."""
    size: Any = lowering.shape(x)[axis]
    if not isinstance(size, int):
        raise UnsupportedError("it works along the batch, and samples do not see each other in the format")
    return size
