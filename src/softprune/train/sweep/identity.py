"""What makes two sweeps the same, so that a second start joins the first and nothing else."""

from __future__ import annotations

from typing import Any

from softprune.train.config import RunConfig
from softprune.train.sweep.config import SweepConfig


def description(config: SweepConfig, base: RunConfig) -> dict[str, Any]:
    """All that decides the trials, as plain data. Where the study is kept does not.

    Args:
        config: of the sweep.
        base: what it names, with its changes made.
    """
    return {
        **config.model_dump(mode="json", exclude={"storage", "changes"}),
        "base": base.model_dump(mode="json"),
    }


def differences(one: dict[str, Any], other: dict[str, Any], prefix: str = "") -> list[str]:
    """The dotted keys whose values differ.

    Example:
        >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4})
        ['a.c', 'd']
    """
    found = []
    for key in dict.fromkeys([*one, *other]):
        mine, theirs = one.get(key), other.get(key)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found += differences(mine, theirs, f"{prefix}{key}.")
        elif mine != theirs:
            found.append(f"{prefix}{key}")
    return found
