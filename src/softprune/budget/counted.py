"""What a budget counts: single weights, or units that are kept or pruned as a whole. Needs no torch."""

import re

WEIGHT = "weight"
_NOUNS = {WEIGHT: "weight", "filter": "filter", "rank": "direction", "block": "block"}
_TEXT = re.compile(r"weight|filter|rank|block [1-9][0-9]*x[1-9][0-9]*")


def checked_units(units: object, *, origin: str) -> str:
    """The text itself if it names a kind of units.

    Raises:
        ValueError: for anything else; ``origin`` says where it stands.

    Example:
        >>> checked_units("block 4x8", origin="a file")
        'block 4x8'
    """
    if not isinstance(units, str) or not _TEXT.fullmatch(units):
        raise ValueError(f"{origin}: units are weight, filter, rank or a block such as 'block 4x8'; got {units!r}")
    return units


def noun(units: str, count: int = 2) -> str:
    """What one of them is called, or several.

    Example:
        >>> noun("rank"), noun("block 4x8", 1)
        ('directions', 'block')
    """
    return _NOUNS[units.partition(" ")[0]] + ("" if count == 1 else "s")
