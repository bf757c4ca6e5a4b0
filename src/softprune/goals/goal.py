"""The goals: sparsity, parameters, filters, multiply-adds, milliseconds, ranks. Needs no torch.

Each is one class that knows what a weight costs, what is left for the tensors that it is for, which totals can be
reached, and its words in plans, errors and reports. Nothing outside of this room asks which goal it has before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, get_args

from softprune.budget.costs import AlongCurve, Cost, PerWeight, Profile
from softprune.budget.latency import LatencyTable
from softprune.budget.units import KINDS, Units, UnitWords
from softprune.goals.base import Goal, Measure, Measured, Scope


class _Scoped(Goal):
    """Counts the managed weights, or every parameter of the model."""

    scoped = whole = of_units = True
    scope: Scope

    def __repr__(self) -> str:
        """Goals are in messages and in the source of budgets, where the usual scope goes without saying."""
        key = fields(self)[0].name  # type: ignore[arg-type]
        unusual = "" if self.scope == "managed" else f", scope={self.scope!r}"
        return f"{type(self).__name__}({key}={getattr(self, key)!r}{unusual})"

    def _check_scope(self) -> None:
        if self.scope not in get_args(Scope):
            raise ValueError(f"scope is {' or '.join(map(repr, get_args(Scope)))}, got {self.scope!r}")

    def fixed(self, profile: Profile) -> float:
        return profile.other_params if self.scope == "all" else 0

    def check_allocatable(self) -> None:
        self._check_managed("an allocator does not see")

    def _check_managed(self, who: str) -> None:
        if self.scope != "managed":
            raise ValueError(f'{self} counts parameters that {who}: leave out scope="all"')

    @classmethod
    def configured(cls, given: Any, scope: Scope) -> Goal:
        return cls(given, scope)  # type: ignore[call-arg]


@dataclass(frozen=True, repr=False)
class Sparsity(_Scoped):
    """The fraction of weights that shall be zero, strictly between 0 and 1.

    ``scope="all"`` takes it of every parameter of the model: biases, normalisation, tensors left alone.

    Example:
        >>> Sparsity(0.9).kept(1000)
        100
    """

    key = "sparsity"

    value: float
    scope: Scope = "managed"

    def __post_init__(self) -> None:
        value = _number(self.value, "Sparsity")
        if not 0.0 < value < 1.0:
            hint = f"; did you mean {value / 100:g}?" if 1.0 < value < 100.0 else ""
            raise ValueError(f"Sparsity must lie strictly between 0 and 1, got {value:g}{hint}")
        object.__setattr__(self, "value", value)
        self._check_scope()

    @property
    def density(self) -> float:
        """The fraction of weights that is kept."""
        return 1.0 - self.value

    @property
    def sparsity(self) -> float | None:
        return self.value

    def kept(self, count: int) -> int:
        """How many of ``count`` weights are kept, to the nearest whole weight."""
        return count - round(self.value * count)

    def amount(self, profile: Profile) -> float:
        return self.kept(profile.params + round(self.fixed(profile)))

    def check_reachable(self, amount: float, low: float, high: float) -> None:
        if low and amount - low < 1:
            raise ValueError(
                f"{self} cannot be reached: {low:,.0f} of the {high:,.0f} parameters of the model are not managed; "
                'leave out scope="all", or ask for less'
            )

    def check_units(self, units: Units, *, example: bool) -> None:
        if KINDS[units.kind].importances and self.scope != "managed":
            raise ValueError(f'{self} is a share of the units, of which there are no others: leave out scope="all"')

    def number(self, available: int) -> int:
        self._check_managed("these masks do not know")
        return self.kept(available)

    @classmethod
    def described(cls, given: object, units: UnitWords, scope: object) -> str:
        share = cls.number_in(given)
        of = f" of the {units.plural}" if units.importances else " of all parameters" if scope == "all" else ""
        return "" if share is None else f"{round(100 * share, 6):g} % sparsity{of}"

    @classmethod
    def compared(cls, number: float, found: Measured, units: UnitWords) -> tuple[int, int | None, str] | None:
        if found.units is None or not 0 < number < 1:
            return None
        return cls(number).kept(found.units), found.left, units.noun


@dataclass(frozen=True, repr=False)
class Params(_Scoped):
    """The number of weights that shall be kept. Accepts whole floats: ``Params(2.5e6)``.

    ``scope="all"`` counts every parameter of the model.
    """

    key = "params"

    count: int
    scope: Scope = "managed"

    def __post_init__(self) -> None:
        self._check_scope()
        object.__setattr__(self, "count", _whole(self.count, "Params", "weights to keep"))

    @property
    def measure(self) -> Measure | None:
        return "params" if self.scope == "all" else "weights"

    def amount(self, profile: Profile) -> float:
        return self.count

    def number(self, available: int) -> int:
        self._check_managed("these masks do not know")
        return min(self.count, available)

    @classmethod
    def described(cls, given: object, units: UnitWords, scope: object) -> str:
        kept = cls.number_in(given)
        what = "parameters" if scope == "all" or units.importances else "weights"
        return "" if kept is None else f"{kept:,.0f} {what}"

    @classmethod
    def compared(cls, number: float, found: Measured, units: UnitWords) -> tuple[int, int | None, str] | None:
        # Of other units it counts the parameters of the network without what is pruned.
        return (int(number), found.stored, "parameter") if units.importances else (int(number), found.left, units.noun)


@dataclass(frozen=True)
class Filters(Goal):
    """The number of filters that shall be left in all gated layers together, for ``units=Units.filter``."""

    key = counts = "filters"
    whole = of_units = True
    needs_units = "filter"

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", _whole(self.count, "Filters", "filters to keep"))

    def amount(self, profile: Profile) -> float:
        return self.count

    def check_allocatable(self) -> None:
        raise ValueError(f"{self} counts filters, an allocator shares out weights: give it to sparsify as the goal")

    def number(self, available: int) -> int:
        return min(self.count, available)

    @classmethod
    def compared(cls, number: float, found: Measured, units: UnitWords) -> tuple[int, int | None, str] | None:
        return int(number), found.left, units.noun


@dataclass(frozen=True)
class Flops(Goal):
    """The multiply-adds one forward pass shall cost. Accepts whole floats: ``Flops(400e6)``.

    Fixed costs belong to the total: layers without a row, and average pools.
    """

    key = mark = "flops"
    counts = "multiply-adds"
    of_units = True

    macs: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "macs", _whole(self.macs, "Flops", self.counts))

    @property
    def measure(self) -> Measure | None:
        return "macs"

    def amount(self, profile: Profile) -> float:
        return self.macs

    def costs(self, profile: Profile) -> dict[str, Cost]:
        return {t.name: PerWeight(t.macs, t.params) for t in profile}

    def fixed(self, profile: Profile) -> float:
        return profile.total_macs() - sum(t.macs for t in profile)

    def check_units(self, units: Units, *, example: bool) -> None:
        if KINDS[units.kind].importances and not example:
            raise ValueError(f"{self} needs an example input to count multiply-adds: pass example=")

    @classmethod
    def compared(cls, number: float, found: Measured, units: UnitWords) -> tuple[int, int | None, str] | None:
        return int(number), found.macs, "multiply-add"


@dataclass(frozen=True)
class Latency(Goal):
    """The milliseconds that one call of the engine shall take, as a table of measured times predicts it.

    Fixed times belong to the total: layers without a row, tensors that are left dense, the call itself.

    Args:
        ms: milliseconds for one call with the batch and the threads of the table.
        table: of the network, as ``softprune bench --table`` measures it.

    Example:
        >>> from softprune.budget.latency import LatencyTable, LayerTime
        >>> layer = LayerTime("fc.weight", (10, 8), (0.1, 1.0), (0.002, 0.011))
        >>> table = LatencyTable((layer,), fixed=0.001, processor="a", level="avx2", threads=1, batch=1)
        >>> Latency(7, table).seconds
        0.007
    """

    key = mark = "latency"
    counts = "milliseconds"

    ms: float
    table: LatencyTable

    def __post_init__(self) -> None:
        ms = _number(self.ms, "Latency")
        if ms <= 0:
            raise ValueError(f"Latency needs a positive number of milliseconds, got {ms:g}")
        if not isinstance(self.table, LatencyTable):
            raise TypeError(f"Latency needs a table: Latency({ms:g}, LatencyTable.load(path)), got {self.table!r}")
        object.__setattr__(self, "ms", ms)

    def __repr__(self) -> str:
        """Short, and the same for equal tables alone: checkpoints are compared by it."""
        return f"Latency(ms={self.ms!r}, table {self.table.digest})"

    @property
    def seconds(self) -> float:
        """The same in seconds, as tables have it."""
        return self.ms / 1000.0

    def amount(self, profile: Profile) -> float:
        return self.seconds

    def costs(self, profile: Profile) -> dict[str, Cost]:
        self.table.require({t.name: t.shape for t in profile})
        return {t.name: AlongCurve(self.table.curve(t.name), t.params) for t in profile}

    def fixed(self, profile: Profile) -> float:
        low, _ = self.reach(profile)
        return low - sum(self.table.seconds(t.name, 0.0) for t in profile)

    def reach(self, profile: Profile) -> tuple[float, float]:
        return self.table.total({t.name: 0.0 for t in profile}), self.table.total({})

    def check_reachable(self, amount: float, low: float, high: float) -> None:
        if not low < amount <= high:
            # Rounded inwards, so that what the message proposes works.
            least, most = math.ceil(low * 1e7) / 1e4, math.floor(high * 1e7) / 1e4
            raise ValueError(
                f"{self} cannot be reached: its table reaches from {least:,.4f} to {most:,.4f} milliseconds with "
                f"{self.table.threads} threads and a batch of {self.table.batch}"
            )

    def check_units(self, units: Units, *, example: bool) -> None:
        if KINDS[units.kind].importances:
            raise ValueError(
                f"{self} is for single weights: its table has times of layers with zeros in them, not of layers that "
                f"lack units of kind {units.kind!r}; use Flops(...)"
            )

    def words(self, total: float) -> str:
        return f"{1e3 * total:,.4f}"

    @classmethod
    def configured(cls, given: Any, scope: Scope) -> Goal:
        return cls(given["ms"], LatencyTable.from_dict(given["table"]))

    @classmethod
    def number_in(cls, given: object) -> float | None:
        return super().number_in(given.get("ms")) if isinstance(given, Mapping) else None

    @classmethod
    def described(cls, given: object, units: UnitWords, scope: object) -> str:
        ms = cls.number_in(given)
        return "" if ms is None else f"{ms:g} ms"


@dataclass(frozen=True, init=False, repr=False)
class Rank(Goal):
    """The number of directions that low-rank layers shall keep, exactly: of each layer, by its name, or of all alike.

    No total: ranks are not traded against each other, so nothing but which directions stay is learnt. A name is the
    path of the layer or the end of it, and means every layer that it is the end of; layers that are not named are left
    alone.

    Example:
        >>> Rank(w=9, u=8).of("rnn.cell.u", 80), Rank(4).of("head", 10)
        (8, 4)
    """

    key = "rank"
    counts = "directions of low-rank layers"
    of_units, needs_units = True, "rank"
    shared = False

    each: int | None
    layers: tuple[tuple[str, int], ...]

    def __init__(self, each: int | None = None, /, **layers: int) -> None:
        if (each is None) == (not layers):
            raise ValueError(f"Rank is for all layers, Rank(8), or by name, Rank(w=9, u=8); got {each!r} and {layers}")
        object.__setattr__(self, "each", each if each is None else _whole(each, "Rank", "directions"))
        named = tuple((name, _whole(n, f"Rank of {name}", "directions")) for name, n in layers.items())
        object.__setattr__(self, "layers", named)

    def __repr__(self) -> str:
        if self.each is not None:
            return f"Rank({self.each})"
        words = [f"{name}={n}" if name.isidentifier() else f"**{{{name!r}: {n}}}" for name, n in self.layers]
        return f"Rank({', '.join(words)})"

    def of(self, path: str, full: int) -> int | None:
        """What a layer keeps of its directions; None if this says nothing of it. The longest name that fits counts.

        Raises:
            ValueError: if that is more than there are.
        """
        fitting = [(len(name), n) for name, n in self.layers if f".{path}".endswith(f".{name}")]
        wanted = max(fitting)[1] if fitting else self.each
        if wanted is not None and wanted > full:
            raise ValueError(f"{self} asks for {wanted} directions of {path or 'the layer'}: its rank is 1 to {full}")
        return wanted

    def require_known(self, paths: Sequence[str]) -> None:
        """Refuse names that fit none of these layers."""
        for name, _ in self.layers:
            if not any(f".{path}".endswith(f".{name}") for path in paths):
                raise ValueError(
                    f"{self} names {name!r}, which is no low-rank layer that learns its rank: these are "
                    f"{', '.join(paths) or 'none'}"
                )

    def amount(self, profile: Profile) -> float:
        return sum(self.kept_by_each({t.name: t.params for t in profile}).values())

    def kept_by_each(self, sizes: Mapping[str, int]) -> dict[str, int]:
        paths = {name: name.rpartition(".")[0] for name in sizes}
        self.require_known(list(paths.values()))
        kept = {name: self.of(path, sizes[name]) for name, path in paths.items()}
        return {name: count for name, count in kept.items() if count is not None}

    def check_allocatable(self) -> None:
        raise ValueError(f"{self} says what each layer keeps: there is nothing to share out")

    @classmethod
    def configured(cls, given: Any, scope: Scope) -> Goal:
        return cls(**given) if isinstance(given, Mapping) else cls(given)

    @classmethod
    def described(cls, given: object, units: UnitWords, scope: object) -> str:
        each = [f"{name} {count}" for name, count in given.items()] if isinstance(given, Mapping) else [f"{given}"]
        return "" if given is None else f"rank {', '.join(each)}"


# By their keys in a configuration, which has one of them at most.
GOALS: dict[str, type[Goal]] = {kind.key: kind for kind in (Sparsity, Params, Filters, Flops, Latency, Rank)}


def checked_goal(value: object, *, total: bool = True) -> Goal:
    """The value itself, if it is a goal, and a total where that is asked for; a number most likely meant one."""
    if isinstance(value, Goal) and (value.shared or not total):
        return value
    hint = ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        hint = f"; did you mean Sparsity({value})?" if 0 < value < 1 else f"; did you mean Params({value})?"
    raise TypeError(
        f"a goal is Sparsity(...), Params(...), Filters(...), Flops(...) or Latency(...), got {value!r}{hint}"
    )


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{what} needs a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} needs a finite number, got {number}")
    return number


def _whole(value: object, what: str, unit: str) -> int:
    number = _number(value, what)
    if not number.is_integer() or number < 1:
        hint = "; for a fraction use Sparsity" if 0 < number < 1 else ""
        raise ValueError(f"{what} is a whole number of {unit}, at least 1, got {value!r}{hint}")
    # A large int must not take the way through float, which would round it.
    return value if isinstance(value, int) else int(number)
