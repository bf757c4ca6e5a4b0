"""How series are told apart on a page: CSS classes for colour and dash, and a marker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softprune.reporting.chart import Series

COLOURS = 7  # classes c0 ... c6 of the style sheet
RAMP = 16  # classes r0 ... r15: a sequence of colours, for more groups than there are colours
DASHES = 4  # classes d0 ... d3
# One marker each, as a path around (0, 0).
MARKERS = (
    "m-3.2,0a3.2,3.2 0 1 0 6.4,0a3.2,3.2 0 1 0 -6.4,0z",  # circle
    "m-2.9,-2.9h5.8v5.8h-5.8z",  # square
    "m0,-3.8l3.6,6.4h-7.2z",  # triangle
    "m0,-4.1l4.1,4.1l-4.1,4.1l-4.1,-4.1z",  # diamond
    "m0,3.8l3.6,-6.4h-7.2z",  # triangle, point down
    "m-1.3,-3.9h2.6v2.6h2.6v2.6h-2.6v2.6h-2.6v-2.6h-2.6v-2.6h2.6z",  # plus
    "m0,-4.2l3.6,2.1v4.2l-3.6,2.1l-3.6,-2.1v-4.2z",  # hexagon
)


@dataclass(frozen=True)
class Look:
    """The look of one series: its classes, and a place in MARKERS."""

    classes: str
    marker: int


def looks(series: Sequence[Series]) -> list[Look]:
    """A look for each series; those of one group share the colour."""
    groups = {g: i for i, g in enumerate(dict.fromkeys(s.group or s.name for s in series if not s.faint))}
    met: dict[str, int] = {}
    found = []
    for one in series:
        group = one.group or one.name
        if one.faint:
            colour = _colour(groups[group], len(groups)) if group in groups else "grey"
            found.append(Look(f"{colour} d1 faint", 0))
            continue
        turn = met[group] = met.get(group, -1) + 1
        place = groups[group]
        # Many lines are solid: so many dashes would hide each other.
        dash = 0 if len(groups) > COLOURS else (place + turn) % DASHES
        hollow = " hollow" if turn % 2 else ""
        found.append(Look(f"{_colour(place, len(groups))} d{dash}{hollow}", (place + turn) % len(MARKERS)))
    return found


def _colour(place: int, groups: int) -> str:
    if groups <= COLOURS:
        return f"c{place}"
    return f"r{round(place * (RAMP - 1) / (groups - 1))}"
