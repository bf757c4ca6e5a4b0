"""A table of measured times: how long each layer takes at each density. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from softprune.budget.budget import Budget
from softprune.budget.curve import Curve
from softprune.budget.files import parse_json, read_text, require_format, write_text
from softprune.budget.table import to_json

FORMAT = "softprune-latency"
VERSION = 1
_FACTS = ("processor", "level", "threads", "batch")


@dataclass(frozen=True)
class LayerTime:
    """The times of the layer that one tensor belongs to, as measured.

    Args:
        name: of the tensor, as in budgets and profiles.
        shape: of the tensor.
        densities: at which it was measured, rising, in (0, 1], two at least.
        seconds: at each of them.
    """

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
        """Seconds as a function of the density: monotone, see `Curve.through`."""
        return Curve.through(self.densities, self.seconds)


@dataclass(frozen=True)
class TensorTime:
    """One tensor at the density that a budget gives it, and dense."""

    name: str
    density: float
    seconds: float
    dense_seconds: float


@dataclass(frozen=True)
class Timing:
    """What a table says of a budget: a row for each tensor of the table, and the totals, both with the fixed part."""

    rows: tuple[TensorTime, ...]
    fixed: float
    seconds: float
    dense_seconds: float


@dataclass(frozen=True)
class LatencyTable:
    """Times of a network on one machine: per layer as a function of its density, and of everything else.

    The measured points are kept as they are; times are read from the monotone curve through them.

    Args:
        layers: one entry for each tensor.
        fixed: seconds of what no tensor accounts for: other layers, and the call itself.
        processor: that it was measured on.
        level: the instruction set.
        threads: of the engine.
        batch: samples per call.

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
        """The seconds of one tensor's layer as a function of its density."""
        if name not in self._by_name:
            raise KeyError(f"no tensor {name!r} in this table; it has {', '.join(self._by_name)}")
        return self._by_name[name].curve

    def seconds(self, name: str, density: float) -> float:
        """The time of one tensor's layer at a density: linear between the points, the slope at the ends held."""
        if not 0 <= density <= 1:
            raise ValueError(f"a density lies in [0, 1], got {density} for {name}")
        return self.curve(name)(density)

    def total(self, densities: Mapping[str, float]) -> float:
        """The time of a call; tensors of the table that are not named are dense."""
        if strange := sorted(set(densities) - set(self._by_name)):
            raise ValueError(f"the table says nothing of {', '.join(strange[:5])}: measure one of this network")
        return self.fixed + math.fsum(self.seconds(name, densities.get(name, 1.0)) for name in self._by_name)

    def require(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse tensors that this table does not have, or has in other shapes.

        Raises:
            ValueError: naming them.
        """
        missing = [name for name in shapes if name not in self._by_name]
        other = [
            f"{name} is {_shape(self._by_name[name].shape)} there and {_shape(shape)} here"
            for name, shape in shapes.items()
            if name in self._by_name and self._by_name[name].shape != tuple(shape)
        ]
        faults = [f"it lacks {', '.join(missing[:5])}"] if missing else []
        if faults := faults + other[:5]:
            raise ValueError(
                f"the table of times is of another network: {'; '.join(faults)}. Measure one of this network with "
                "softprune bench --table"
            )

    def of(self, budget: Budget) -> Timing:
        """The times of a budget, tensor by tensor; tensors of the table that it does not name are dense."""
        if budget.profile is not None:
            self.require({t.name: t.shape for t in budget.profile})
        total = self.total(dict(budget))
        rows = []
        for layer in self.layers:
            density = budget.densities.get(layer.name, 1.0)
            rows.append(TensorTime(layer.name, density, layer.curve(density), layer.curve(1.0)))
        return Timing(tuple(rows), self.fixed, total, self.total({}))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
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
        """Read the JSON form; ``origin`` names the file in a message."""
        from softprune.budget.latency_file import read_table  # here, because it makes these

        require_format(dict(data), FORMAT, version=VERSION, origin=origin)
        return read_table(data, origin=origin)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a ``.json`` file; an existing one is replaced as a whole."""
        if Path(path).suffix != ".json":
            raise ValueError(f"a table of times is saved as .json, got {os.fspath(path)!r}")
        return write_text(path, to_json(self.to_dict()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LatencyTable:
        """Read a file that ``softprune bench --table`` wrote; every value is checked."""
        file = Path(path)
        return cls.from_dict(parse_json(read_text(file), str(file)), origin=str(file))


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
