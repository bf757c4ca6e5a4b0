"""Tables of times as they are read: nothing in a file is believed. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from softprune.budget.latency import LatencyTable, LayerTime


def read_table(data: Mapping[str, Any], *, origin: str) -> LatencyTable:
    """A table from its JSON form.

    Args:
        data: the document.
        origin: names the file in a message.

    Raises:
        ValueError: for anything that is not as it must be.
    """
    rows = data.get("layers")
    if not isinstance(rows, list):
        raise ValueError(f"{origin} has no list 'layers'")
    try:
        return LatencyTable(
            tuple(_layer(row, number) for number, row in enumerate(rows)),
            fixed=_number(data.get("fixed"), "fixed"),
            processor=_text(data.get("processor"), "processor"),
            level=_text(data.get("level"), "level"),
            threads=_count(data.get("threads"), "threads"),
            batch=_count(data.get("batch"), "batch"),
        )
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from error


def _layer(row: Any, number: int) -> LayerTime:
    where = f"layer {number}"
    if not isinstance(row, Mapping):
        raise ValueError(f"{where} needs a name, a shape, densities and seconds, got {row!r}")
    name = _text(row.get("name"), f"the name of {where}")
    lists = {key: row.get(key) for key in ("shape", "densities", "seconds")}
    if wrong := [key for key, value in lists.items() if not isinstance(value, list)]:
        raise ValueError(f"{name} needs a list {wrong[0]!r}, got {lists[wrong[0]]!r}")
    shape, densities, seconds = (list(value or ()) for value in lists.values())
    return LayerTime(
        name,
        tuple(_count(size, f"shape of {name}") for size in shape),
        tuple(_number(value, f"density of {name}") for value in densities),
        tuple(_number(value, f"seconds of {name}") for value in seconds),
    )


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{what} is too large a number") from None


def _count(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what} must be a whole number of 1 or more, got {value!r}")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} must be a text, got {value!r}")
    return value
