"""What runs count: single weights, or filters, blocks and directions; and what these are called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from softprune.budget.counted import WEIGHT, checked_units, noun


def configured_units(config: Mapping[str, Any]) -> str:
    """What a configuration says is kept or pruned as a whole, in the words of a budget; weights if it says nothing.

    Example:
        >>> configured_units({"units": "filter"}), configured_units({"units": {"block": [4, 8]}})
        ('filter', 'block 4x8')
    """
    given = config.get("units")
    if isinstance(given, Mapping):
        block = given.get("block")
        given = f"block {'x'.join(map(str, block))}" if isinstance(block, list) else given.get("kind")
    try:
        return checked_units(given, origin="config")
    except ValueError:
        return WEIGHT


def shared_noun(units: Iterable[str]) -> str:
    """What several runs count, in the plural: "units" if it is not the same.

    Example:
        >>> shared_noun(["filter", "filter"]), shared_noun(["filter", "weight"]), shared_noun([])
        ('filters', 'units', 'weights')
    """
    words = {noun(one) for one in units} or {noun(WEIGHT)}
    return words.pop() if len(words) == 1 else "units"
