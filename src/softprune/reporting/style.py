"""How the series of a chart are told apart in print: by colour, and without colours by dashes and markers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softprune.reporting.chart import Series

# Okabe and Ito's colours, which people with any colour vision tell apart; without their yellow, faint on paper.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
# More groups than colours are a sequence, such as layers: from dark blue to ochre, even in grey.
# Their lines are solid: so many dashes would hide each other.
SEQUENCE = ("#00224e", "#31446b", "#666970", "#958f78", "#cab969")
GREY = "#7f7f7f"
DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Look:
    """The look of one series: a colour as #rrggbb, a place in DASHES, a marker, and what is in front."""

    colour: str
    dash: int
    marker: str
    filled: bool
    opacity: float
    order: int


def looks(series: Sequence[Series]) -> list[Look]:
    """A look for each; those of one group share the colour, and no two that matter look the same."""
    groups = list(dict.fromkeys(s.group or s.name for s in series if not s.faint))
    colours = dict(zip(groups, _colours(len(groups)), strict=True))
    met: dict[str, int] = {}
    found = []
    for one in series:
        group = one.group or one.name
        if one.faint:
            # A reference has its group's colour if the group is there, and stays behind it.
            found.append(Look(colours.get(group, GREY), 1, "", filled=False, opacity=0.6, order=2))
            continue
        turn = met[group] = met.get(group, -1) + 1
        place = groups.index(group)
        dash = 0 if len(groups) > len(COLOURS) else (place + turn) % len(DASHES)
        marker = MARKERS[(place + turn) % len(MARKERS)]
        found.append(Look(colours[group], dash, marker, filled=turn % 2 == 0, opacity=1.0, order=3))
    return found


def _colours(number: int) -> list[str]:
    if number <= len(COLOURS):
        return list(COLOURS[:number])
    return [_between(place / (number - 1)) for place in range(number)]


def _between(share: float) -> str:
    """The colour at a share of the way along the sequence."""
    where = share * (len(SEQUENCE) - 1)
    left = min(int(where), len(SEQUENCE) - 2)
    pairs = zip(_channels(SEQUENCE[left]), _channels(SEQUENCE[left + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (where - left)):02x}" for a, b in pairs)


def _channels(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def thinned(number: int, *, room: int) -> list[int]:
    """Which of so many names to write where there is room for some: evenly spread, the first and the last among them.

    Example:
        >>> thinned(9, room=3), thinned(3, room=9)
        ([0, 4, 8], [0, 1, 2])
    """
    if number <= room:
        return list(range(number))
    return sorted({round(place * (number - 1) / (max(room, 2) - 1)) for place in range(max(room, 2))})
