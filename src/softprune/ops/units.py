"""Units: what is kept or pruned as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

KINDS = ("weight", "filter", "block", "rank")


@dataclass(frozen=True)
class Units:
    """What counts as one prunable unit: `Units.weight`, `Units.filter`, `Units.rank`, or `Units.block(rows, cols)`.

    Units other than weights have an importance each, a number that multiplies all weights of the unit and that the
    method keeps or prunes.

    Args:
        kind: "weight", "filter" (an output channel with its bias), "rank" (a direction of a low-rank layer) or "block".
        rows: of a block.
        cols: of a block.

    Example:
        >>> Units.block(4, 8)
        Units(kind='block', rows=4, cols=8)
    """

    weight: ClassVar[Units]
    filter: ClassVar[Units]
    rank: ClassVar[Units]

    kind: Literal["weight", "filter", "block", "rank"] = "weight"
    rows: int = 1
    cols: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"units are {', '.join(KINDS)}; got {self.kind!r}")
        for size in (self.rows, self.cols):
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"a block has whole numbers of rows and columns, at least 1; got {size!r}")
        if self.kind != "block" and (self.rows, self.cols) != (1, 1):
            raise ValueError(f"only blocks have rows and columns, not units of kind {self.kind!r}")

    @property
    def text(self) -> str:
        """As files have it: the kind, of blocks with their size, such as "block 4x8"."""
        return f"block {self.rows}x{self.cols}" if self.kind == "block" else self.kind

    @staticmethod
    def block(rows: int, cols: int) -> Units:
        """Blocks of so many outputs and inputs."""
        return Units("block", rows, cols)


Units.weight, Units.filter, Units.rank = Units("weight"), Units("filter"), Units("rank")
