"""What a network costs, tensor by tensor, and what the kept weights of a tensor add to a total. Needs no torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from softprune.budget.show import profile_table
from softprune.records import require_format

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.table import Table

    from softprune.budget.latency import Curve

    Array: TypeAlias = NDArray[Any]

FORMAT = "softprune-profile"
VERSION = 1


@dataclass(frozen=True)
class TensorCost:
    """One prunable tensor: its name, its shape, and the multiply-adds it takes part in."""

    name: str
    shape: tuple[int, ...]
    macs: int

    def __post_init__(self) -> None:
        # Such numbers come from files, and have no floating point number.
        if max(math.prod(self.shape), self.macs) >= 1 << 512:
            raise ValueError(f"{self.name} has more weights or multiply-adds than can be counted")

    @property
    def params(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Profile:
    """The costs of a network on one input, as counted by :func:`softprune.profile`.

    Example:
        >>> conv, fc = TensorCost("conv.weight", (8, 3, 3, 3), 21600), TensorCost("fc.weight", (10, 8), 80)
        >>> small = Profile((conv, fc))
        >>> small.params, small.macs, small.head
        (296, 21680, 'fc.weight')
    """

    tensors: tuple[TensorCost, ...]  # the prunable ones, in the order in which the forward pass uses them
    other_macs: int = 0  # multiply-adds of everything else: attention products, layers that are not listed
    pool_macs: int = 0  # input elements of the average pools, which the paper counts as FLOPs
    other_params: int = 0  # parameters in no row: biases, normalisation
    counted: bool = True  # False for a profile of shapes alone, without multiply-adds

    def __post_init__(self) -> None:
        names = [t.name for t in self.tensors]
        if not names:
            raise ValueError("a profile needs at least one tensor; the model has no prunable weights")
        if not any(t.params for t in self.tensors):
            raise ValueError(f"a profile needs at least one weight, but {', '.join(names)} have none")
        if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
            raise ValueError(f"a profile lists each tensor once, but these are repeated: {', '.join(repeated)}")

    def __getitem__(self, name: str) -> TensorCost:
        if name not in self._by_name:
            raise KeyError(f"no tensor {name!r} in this profile; it has {', '.join(self.names)}")
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[TensorCost]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @cached_property
    def _by_name(self) -> dict[str, TensorCost]:
        return {t.name: t for t in self.tensors}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(t.name for t in self.tensors)

    @property
    def params(self) -> int:
        """Weights of all rows; biases and normalisation are not counted, as in the paper."""
        return sum(t.params for t in self.tensors)

    @property
    def macs(self) -> int:
        """Multiply-adds of the rows and of everything else, average pools left out."""
        if not self.counted:
            raise ValueError(
                "multiply-adds were not counted: pass an example input, as in softprune.profile(model, example)"
            )
        return sum(t.macs for t in self.tensors) + self.other_macs

    def total_macs(self, *, pool: bool = True) -> int:
        """Multiply-adds of the whole forward pass, with or without the average pools."""
        return self.macs + (self.pool_macs if pool else 0)

    @property
    def head(self) -> str:
        """Name of the last tensor that computes anything: the classifier."""
        return next((t.name for t in reversed(self.tensors) if t.macs), self.tensors[-1].name)

    def match(self, patterns: Iterable[str]) -> tuple[str, ...]:
        """The names matched by shell-style ``patterns``; one that matches nothing is an error."""
        wanted = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        hits = {p: [n for n in self.names if n == p or fnmatchcase(n, p)] for p in wanted}
        if idle := [p for p, found in hits.items() if not found]:
            raise ValueError(f"{idle} match no tensor; the tensors are {', '.join(self.names)}")
        chosen = {name for found in hits.values() for name in found}
        return tuple(name for name in self.names if name in chosen)

    def only(self, names: Iterable[str]) -> Profile:
        """The same network with rows for ``names`` alone; what the others cost becomes fixed cost."""
        wanted = set(names)
        if unknown := sorted(wanted - set(self.names)):
            raise ValueError(f"no tensor {', '.join(unknown)} in this profile; it has {', '.join(self.names)}")
        dropped = [t for t in self.tensors if t.name not in wanted]
        return Profile(
            tuple(t for t in self.tensors if t.name in wanted),
            other_macs=self.other_macs + sum(t.macs for t in dropped),
            pool_macs=self.pool_macs,
            other_params=self.other_params + sum(t.params for t in dropped),
            counted=self.counted,
        )

    def _repr_html_(self) -> str:
        return profile_table(self).html()

    def __rich__(self) -> Table:
        return profile_table(self).rich()

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "tensors": [{"name": t.name, "shape": list(t.shape), "macs": t.macs} for t in self.tensors],
            "other_macs": self.other_macs,
            "pool_macs": self.pool_macs,
            "other_params": self.other_params,
            "counted": self.counted,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, origin: str = "profile") -> Profile:
        """Read and check what :meth:`to_dict` returns; ``origin`` names the file in messages."""
        if not isinstance(data, Mapping):
            raise ValueError(f"{origin} holds a {type(data).__name__} where a profile object is needed")
        require_format(dict(data), FORMAT, version=VERSION, origin=origin)
        if not isinstance(rows := data.get("tensors"), list):
            raise ValueError(f"{origin} has no list 'tensors'")
        tensors = tuple(_row(row, f"{origin}, tensor {i}") for i, row in enumerate(rows))
        extras = {key: whole(data.get(key), f"{origin}, {key}") for key in ("other_macs", "pool_macs", "other_params")}
        try:
            return cls(tensors, **extras, counted=bool(data.get("counted", True)))
        except ValueError as error:
            raise ValueError(f"{origin}: {error}") from error


def _row(row: Any, where: str) -> TensorCost:
    if not isinstance(row, Mapping) or not isinstance(row.get("name"), str) or not row["name"]:
        raise ValueError(f"{where} needs a name, a shape and macs, got {row!r}")
    where = f"{where} ({row['name']})"
    if not isinstance(shape := row.get("shape"), list):
        raise ValueError(f"{where} needs a list 'shape', got {shape!r}")
    sizes = tuple(whole(size, f"{where}, shape") for size in shape)
    return TensorCost(row["name"], sizes, whole(row.get("macs"), f"{where}, macs"))


def whole(value: Any, what: str, *, least: int = 0) -> int:
    """A value from a file, checked; `what` names it in the message."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{what} must be a whole number >= {least}, got {value!r}")
    return value


# What the kept weights of one tensor add to a total: it never falls with their number.

# The slope of a curve is taken over this share of the kept weights to either side: about as far as thresholds look.
NEARBY = 0.1


@dataclass(frozen=True)
class PerWeight:
    """Every one of the `size` weights costs the same, all of them `total`."""

    total: float = 1.0
    size: int = 1
    linear = True

    @cached_property
    def each(self) -> float:
        return self.total / self.size if self.size else 0.0

    @property
    def most(self) -> float:
        """The most that one weight can add."""
        return self.each

    def of(self, count: float) -> float:
        return self.each * count

    def at(self, density: float) -> float:
        return density * self.total

    def exact(self, count: int) -> Fraction:
        """As `of`, without rounding."""
        return Fraction(self.total) * count / self.size

    def slope(self, count: int) -> float:
        """What one more weight adds at about this number, relative to `each`."""
        return 1.0

    def steps(self, first: int, count: int) -> Array:
        """What each of `count` more weights adds to the `first` ones."""
        import numpy as np

        return np.full(count, self.each)

    def sampled(self, size: int, count: int) -> Array:
        """What each of `count` weights stands for that are a sample of `size`, in their order."""
        import numpy as np

        return np.full(count, self.each * size / count)


@dataclass(frozen=True)
class AlongCurve:
    """A share of the `size` weights costs what a curve says: seconds, which are not proportional to their number."""

    curve: Curve
    size: int
    linear = False
    each = 1.0  # the curve says it

    @property
    def most(self) -> float:
        x, y = self.curve.densities, self.curve.seconds
        slopes = [(d - b) / (c - a) for a, b, c, d in zip(x, y, x[1:], y[1:], strict=False)]
        return max(slopes) / self.size

    def of(self, count: float) -> float:
        return self.curve(min(1.0, count / self.size))

    def at(self, density: float) -> float:
        return self.curve(min(1.0, density))

    def exact(self, count: int) -> Fraction:
        return Fraction(self.of(count))

    def slope(self, count: int) -> float:
        reach = max(1.0, NEARBY * count)
        low, high = max(0.0, count - reach), min(float(self.size), count + reach)
        return (self.of(high) - self.of(low)) / (high - low)

    def steps(self, first: int, count: int) -> Array:
        return self._between(first, first + count, count)

    def sampled(self, size: int, count: int) -> Array:
        return self._between(0, size, count)

    def _between(self, first: int, last: int, count: int) -> Array:
        import numpy as np

        densities = np.linspace(first, last, count + 1) / self.size
        return np.diff(np.interp(densities, self.curve.densities, self.curve.seconds))


Cost: TypeAlias = PerWeight | AlongCurve


def equal_density(total: Callable[[float], float], wanted: float, *, most: float = 1.0, halvings: int = 60) -> float:
    """The lowest density (or other amount in [0, `most`]) at which a growing total reaches `wanted`, by bisection."""
    low, high = 0.0, most
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if total(middle) < wanted else (low, middle)
    return high
