"""Tables of measured times: how long each layer of a network takes at each density. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import math
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from softprune.budget.budget import Budget, to_json
from softprune.budget.costs import whole
from softprune.budget.show import shape_text
from softprune.records import parse_json, read_text, require_format, write_text

# How far up to the dense time the sparse kernel is taken to be the faster one.
BEND = 0.9


@dataclass(frozen=True)
class Curve:
    """Seconds as a function of the density, linear between knots and never falling, from density 0 to 1."""

    densities: tuple[float, ...]
    seconds: tuple[float, ...]

    @classmethod
    def through(cls, densities: Sequence[float], seconds: Sequence[float]) -> Curve:
        """The curve of measured points.

        More weights take no less time, so points that fall are noise: they are replaced by the closest rising ones in
        the mean of squares (isotonic regression). Beyond the outermost points the slope there goes on, never below 0.

        A layer with few zeros is computed by a dense kernel, whose time does not depend on them. So a curve that
        flattens before a last point at density 1 keeps its slope for nine tenths of the rise to the dense time and
        covers the rest slowly: as it still rises, a total that falls bit by bit takes weights bit by bit.

        Example:
            >>> Curve.through((0.5, 1.0), (3.0, 4.0))
            Curve(densities=(0.0, 0.5, 1.0), seconds=(2.0, 3.0, 4.0))
            >>> Curve.through((0.1, 0.5, 1.0), (2.0, 1.0, 4.0)).seconds
            (1.5, 1.5, 1.5, 4.0)
            >>> Curve.through((0.2, 0.4, 1.0), (2.0, 4.0, 5.0))
            Curve(densities=(0.0, 0.2, 0.4, 0.49, 1.0), seconds=(0.0, 2.0, 4.0, 4.9, 5.0))
        """
        x, y = _with_bend(list(densities), isotonic(seconds))
        first = max(0.0, y[0] - x[0] * (y[1] - y[0]) / (x[1] - x[0]))
        x, y = [0.0, *x], [first, *y]
        if x[-1] < 1.0:
            y.append(y[-1] + (1.0 - x[-1]) * (y[-1] - y[-2]) / (x[-1] - x[-2]))
            x.append(1.0)
        return cls(tuple(x), tuple(y))

    def __call__(self, density: float) -> float:
        """The seconds at a density in [0, 1]."""
        index = min(max(bisect_right(self.densities, density), 1), len(self.densities) - 1)
        left, right = self.densities[index - 1 : index + 1]
        share = (density - left) / (right - left)
        return (1.0 - share) * self.seconds[index - 1] + share * self.seconds[index]


def _with_bend(x: list[float], y: list[float]) -> tuple[list[float], list[float]]:
    """The points with one more, from which on the dense kernel is the faster one."""
    if len(x) < 3 or x[-1] < 1.0 or y[-1] <= y[-2]:
        return x, y
    slope = (y[-2] - y[-3]) / (x[-2] - x[-3])
    rise = BEND * (y[-1] - y[-2])
    bend = x[-2] + rise / slope if slope > 0 else 1.0
    # Without a clear bend it is a straight line.
    if not x[-2] < bend < x[-2] + BEND * (1.0 - x[-2]):
        return x, y
    return [*x[:-1], bend, 1.0], [*y[:-1], y[-2] + rise, y[-1]]


def isotonic(values: Sequence[float]) -> list[float]:
    """The rising sequence that is closest in the mean of squares: neighbours that fall are given their mean.

    Example:
        >>> isotonic([1.0, 4.0, 2.0, 3.0, 5.0])
        [1.0, 3.0, 3.0, 3.0, 5.0]
    """
    pools: list[tuple[float, int]] = []  # sum and number
    for value in values:
        pool = (value, 1)
        while pools and pools[-1][0] / pools[-1][1] >= pool[0] / pool[1]:
            total, count = pools.pop()
            pool = (total + pool[0], count + pool[1])
        pools.append(pool)
    return [total / count for total, count in pools for _ in range(count)]


FORMAT = "softprune-latency"
VERSION = 1
_FACTS = ("processor", "level", "threads", "batch")


@dataclass(frozen=True)
class LayerTime:
    """The times of the layer that one tensor belongs to, measured at two densities or more, rising in (0, 1]."""

    name: str
    shape: tuple[int, ...]
    densities: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a tensor needs a name")
        if len(self.densities) < 2 or len(self.seconds) != len(self.densities):
            raise ValueError(
                f"{self.name} needs two densities or more and as many seconds, got {len(self.densities)} and "
                f"{len(self.seconds)}"
            )
        rising = all(a < b for a, b in zip(self.densities, self.densities[1:], strict=False))
        if not (rising and self.densities[0] > 0 and self.densities[-1] <= 1):
            raise ValueError(f"the densities of {self.name} must rise within (0, 1], got {list(self.densities)}")
        if not all(math.isfinite(s) and s >= 0 for s in self.seconds):
            raise ValueError(f"the seconds of {self.name} must be finite and not negative, got {list(self.seconds)}")

    @cached_property
    def curve(self) -> Curve:
        return Curve.through(self.densities, self.seconds)


@dataclass(frozen=True)
class TensorTime:
    """The seconds of one tensor's layer at the density that a budget gives the tensor, and dense."""

    name: str
    density: float
    seconds: float
    dense_seconds: float


@dataclass(frozen=True)
class Timing:
    """The times of a budget in seconds."""

    rows: tuple[TensorTime, ...]  # one for each tensor of the table
    fixed: float
    seconds: float  # of all, with the fixed part
    dense_seconds: float


@dataclass(frozen=True)
class LatencyTable:
    """Times of a network on one machine: per layer as a function of its density, and of everything else.

    The measured points are kept as they are; times are read from the monotone curve through them. `fixed` are the
    seconds of what no tensor accounts for: other layers, and the call itself. `level` is the instruction set.

    Example:
        >>> layer = LayerTime("fc.weight", (10, 8), (0.1, 1.0), (2e-6, 11e-6))
        >>> table = LatencyTable((layer,), fixed=1e-6, processor="a", level="avx2", threads=1, batch=1)
        >>> round(1e6 * table.seconds("fc.weight", 0.5), 6), round(1e6 * table.total({"fc.weight": 0.5}), 6)
        (6.0, 7.0)
    """

    layers: tuple[LayerTime, ...]
    fixed: float
    processor: str
    level: str
    threads: int
    batch: int

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("a table of times needs at least one tensor, got none")
        if repeated := sorted(n for n, count in Counter(layer.name for layer in self.layers).items() if count > 1):
            raise ValueError(f"a table lists each tensor once, but these are repeated: {', '.join(repeated)}")
        if not (math.isfinite(self.fixed) and self.fixed >= 0):
            raise ValueError(f"the fixed seconds must be finite and not negative, got {self.fixed}")
        for key in ("threads", "batch"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be 1 or more, got {getattr(self, key)}")

    @cached_property
    def _by_name(self) -> dict[str, LayerTime]:
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits that equal tables share."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]

    def curve(self, name: str) -> Curve:
        """Seconds of one tensor's layer as a function of its density."""
        if name not in self._by_name:
            raise KeyError(f"no tensor {name!r} in this table; it has {', '.join(self._by_name)}")
        return self._by_name[name].curve

    def seconds(self, name: str, density: float) -> float:
        """The seconds of one tensor's layer at a density."""
        if not 0 <= density <= 1:
            raise ValueError(f"a density lies in [0, 1], got {density} for {name}")
        return self.curve(name)(density)

    def total(self, densities: Mapping[str, float]) -> float:
        """The seconds of a call; tensors of the table that are not named are dense."""
        if strange := sorted(set(densities) - set(self._by_name)):
            raise ValueError(f"the table says nothing of {', '.join(strange[:5])}: measure one of this network")
        return self.fixed + math.fsum(self.seconds(name, densities.get(name, 1.0)) for name in self._by_name)

    def require(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise a ValueError that names tensors that this table does not have, or has in other shapes."""
        missing = [name for name in shapes if name not in self._by_name]
        other = [
            f"{name} is {shape_text(self._by_name[name].shape)} there and {shape_text(shape)} here"
            for name, shape in shapes.items()
            if name in self._by_name and self._by_name[name].shape != tuple(shape)
        ]
        if faults := [*[f"it lacks {', '.join(missing[:5])}"] * bool(missing), *other[:5]]:
            raise ValueError(
                f"the table of times is of another network: {'; '.join(faults)}. Measure one of this network with "
                "softprune bench --table"
            )

    def of(self, budget: Budget) -> Timing:
        """The times of a budget, tensor by tensor; tensors of the table that it does not name are dense."""
        if budget.profile is not None:
            self.require({t.name: t.shape for t in budget.profile})
        total, dense = self.total(budget), self.total({})
        given = [(layer, budget.densities.get(layer.name, 1.0)) for layer in self.layers]
        rows = tuple(TensorTime(layer.name, d, layer.curve(d), layer.curve(1.0)) for layer, d in given)
        return Timing(rows, self.fixed, total, dense)

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            **{key: getattr(self, key) for key in _FACTS},
            "fixed": self.fixed,
            "layers": [
                {"name": x.name, "shape": list(x.shape), "densities": list(x.densities), "seconds": list(x.seconds)}
                for x in self.layers
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, origin: str = "table of times") -> LatencyTable:
        """Read and check what :meth:`to_dict` returns; ``origin`` names the file in messages."""
        require_format(dict(data), FORMAT, version=VERSION, origin=origin)
        if not isinstance(rows := data.get("layers"), list):
            raise ValueError(f"{origin} has no list 'layers'")
        try:
            return cls(
                tuple(_layer(row, number) for number, row in enumerate(rows)),
                fixed=_number(data.get("fixed"), "fixed"),
                processor=_text(data.get("processor"), "processor"),
                level=_text(data.get("level"), "level"),
                threads=whole(data.get("threads"), "threads", least=1),
                batch=whole(data.get("batch"), "batch", least=1),
            )
        except ValueError as error:
            raise ValueError(f"{origin}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a ``.json`` file; an existing one is replaced as a whole."""
        if Path(path).suffix != ".json":
            raise ValueError(f"a table of times is saved as .json, got {os.fspath(path)!r}")
        return write_text(path, to_json(self.to_dict()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LatencyTable:
        """Read a file that ``softprune bench --table`` wrote; every value is checked."""
        return cls.from_dict(parse_json(read_text(Path(path)), str(path)), origin=str(path))


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
        tuple(whole(size, f"shape of {name}", least=1) for size in shape),
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


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} must be a text, got {value!r}")
    return value
