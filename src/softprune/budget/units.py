"""Units: what is kept or pruned as a whole, and the words for it in files and reports. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class UnitWords:
    """What is said of a kind of units, and what can be told of one; what they do is in `structure.kinds`."""

    kind: str  # its name in files and configurations
    noun: str  # one of them
    importances: bool = True  # whether each has an importance, so that managed tensors hold these and not weights
    costed: bool = False  # whether each adds a known cost of its own, as a weight adds its multiply-adds
    sized: bool = False  # whether it has rows and columns

    @property
    def plural(self) -> str:
        return f"{self.noun}s"


KINDS = {
    words.kind: words
    for words in (
        UnitWords("weight", "weight", importances=False, costed=True),
        UnitWords("filter", "filter"),
        UnitWords("block", "block", sized=True),
        UnitWords("rank", "direction"),
    )
}
USUAL = "weight"  # where a file or a configuration does not say it


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
        if not KINDS[self.kind].sized and (self.rows, self.cols) != (1, 1):
            raise ValueError(f"only blocks have rows and columns, not units of kind {self.kind!r}")

    @property
    def text(self) -> str:
        """As files have it: the kind, of blocks with their size, such as "block 4x8"."""
        return f"{self.kind} {self.rows}x{self.cols}" if KINDS[self.kind].sized else self.kind

    @staticmethod
    def block(rows: int, cols: int) -> Units:
        """Blocks of `rows` outputs and `cols` inputs."""
        return Units("block", rows, cols)


Units.weight, Units.filter, Units.rank = Units("weight"), Units("filter"), Units("rank")


def checked_units(units: object, *, origin: str) -> str:
    """The text itself if it names units, such as "block 4x8"; else a ValueError, in which ``origin`` says where."""
    sizes = r" [1-9][0-9]*x[1-9][0-9]*"
    pattern = "|".join(words.kind + (sizes if words.sized else "") for words in KINDS.values())
    if not isinstance(units, str) or not re.fullmatch(pattern, units):
        plain = ", ".join(words.kind for words in KINDS.values() if not words.sized)
        raise ValueError(f"{origin}: units are {plain} or a block such as 'block 4x8'; got {units!r}")
    return units


def unit_words(units: str) -> UnitWords:
    """The words of the units that a text such as "block 4x8" names."""
    return KINDS[units.partition(" ")[0]]


def noun(units: str, count: int = 2) -> str:
    """The word for units in a sentence, singular for a count of 1.

    Example:
        >>> noun("rank"), noun("block 4x8", 1)
        ('directions', 'block')
    """
    words = unit_words(units)
    return words.noun if count == 1 else words.plural


def shared_noun(units: Iterable[str]) -> str:
    """The plural for what several budgets or runs count: "units" if they differ.

    Example:
        >>> shared_noun(["filter", "filter"]), shared_noun(["filter", "weight"]), shared_noun([])
        ('filters', 'units', 'weights')
    """
    words = {noun(one) for one in units} or {noun(USUAL)}
    return words.pop() if len(words) == 1 else "units"
