"""Goals: the total a user asks for. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

from softprune.budget.latency import LatencyTable

# What is counted: the managed weights alone, as in the paper, or every parameter of the model.
Scope = Literal["managed", "all"]


@dataclass(frozen=True)
class Sparsity:
    """The fraction of weights that shall be zero, strictly between 0 and 1.

    ``scope="all"`` takes it of every parameter of the model: biases, normalisation, tensors left alone.

    Example:
        >>> Sparsity(0.9).kept(1000)
        100
    """

    value: float
    scope: Scope = "managed"

    def __post_init__(self) -> None:
        value = _number(self.value, "Sparsity")
        if not 0.0 < value < 1.0:
            hint = f"; did you mean {value / 100:g}?" if 1.0 < value < 100.0 else ""
            raise ValueError(f"Sparsity must lie strictly between 0 and 1, got {value:g}{hint}")
        object.__setattr__(self, "value", value)
        _scope(self.scope)

    def __repr__(self) -> str:
        return f"Sparsity(value={self.value!r}{_unusual(self.scope)})"

    @property
    def density(self) -> float:
        """The fraction of weights that is kept."""
        return 1.0 - self.value

    def kept(self, count: int) -> int:
        """How many of ``count`` weights are kept, to the nearest whole weight."""
        return count - round(self.value * count)


@dataclass(frozen=True)
class Params:
    """The number of weights that shall be kept. Accepts whole floats: ``Params(2.5e6)``.

    ``scope="all"`` counts every parameter of the model.
    """

    count: int
    scope: Scope = "managed"

    def __post_init__(self) -> None:
        _scope(self.scope)
        object.__setattr__(self, "count", _whole(self.count, "Params", "weights to keep"))

    def __repr__(self) -> str:
        return f"Params(count={self.count!r}{_unusual(self.scope)})"


@dataclass(frozen=True)
class Filters:
    """The number of filters that shall be left in all gated layers together, for ``units=Units.filter``."""

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", _whole(self.count, "Filters", "filters to keep"))


@dataclass(frozen=True)
class Flops:
    """The multiply-adds one forward pass shall cost. Accepts whole floats: ``Flops(400e6)``.

    Fixed costs belong to the total: layers without a row, and average pools.
    """

    macs: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "macs", _whole(self.macs, "Flops", "multiply-adds"))


@dataclass(frozen=True)
class Latency:
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


@dataclass(frozen=True, init=False, repr=False)
class Rank:
    """The number of directions that low-rank layers shall keep, exactly: of each layer, by its name, or of all alike.

    No total: ranks are not traded against each other, so nothing but which directions stay is learnt. A name is the
    path of the layer or the end of it, and means every layer that it is the end of; layers that are not named are left
    alone.

    Example:
        >>> Rank(w=9, u=8).of("rnn.cell.u", 80), Rank(4).of("head", 10)
        (8, 4)
    """

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
        fitting = [(len(name), n) for name, n in self.layers if _is_end(name, path)]
        wanted = max(fitting)[1] if fitting else self.each
        if wanted is not None and wanted > full:
            raise ValueError(f"{self} asks for {wanted} directions of {path or 'the layer'}: its rank is 1 to {full}")
        return wanted

    def require_known(self, paths: Sequence[str]) -> None:
        """Refuse names that fit none of these layers."""
        for name, _ in self.layers:
            if not any(_is_end(name, path) for path in paths):
                raise ValueError(
                    f"{self} names {name!r}, which is no low-rank layer that learns its rank: these are "
                    f"{', '.join(paths) or 'none'}"
                )


def _is_end(name: str, path: str) -> bool:
    return path == name or path.endswith(f".{name}")


Goal = Sparsity | Params | Filters | Flops | Latency


def checked_goal(value: object) -> Goal:
    """The value itself, if it is a goal; a bare number most likely meant one."""
    if isinstance(value, Goal):
        return value
    hint = ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        hint = f"; did you mean Sparsity({value})?" if 0 < value < 1 else f"; did you mean Params({value})?"
    raise TypeError(
        f"a goal is Sparsity(...), Params(...), Filters(...), Flops(...) or Latency(...), got {value!r}{hint}"
    )


def require_reachable(goal: Params | Filters | Flops, low: float, *, high: float) -> None:
    """Refuse a goal outside ``(low, high]``, the totals that some set of densities can reach."""
    wanted = goal.macs if isinstance(goal, Flops) else goal.count
    unit = {Params: "weights", Filters: "filters", Flops: "multiply-adds"}[type(goal)]
    if not low < wanted <= high:
        raise ValueError(
            f"{goal} cannot be reached: choose more than {math.floor(low):,} and at most {math.floor(high):,} {unit}"
        )


def require_in_time(goal: Latency, low: float, *, high: float) -> None:
    """Refuse milliseconds outside ``(low, high]``, the seconds that some set of densities can reach."""
    if not low < goal.seconds <= high:
        # Rounded inwards, so that what the message proposes works.
        least, most = math.ceil(low * 1e7) / 1e4, math.floor(high * 1e7) / 1e4
        raise ValueError(
            f"{goal} cannot be reached: its table reaches from {least:,.4f} to {most:,.4f} milliseconds with "
            f"{goal.table.threads} threads and a batch of {goal.table.batch}"
        )


def require_managed(goal: Goal) -> None:
    """Refuse ``scope="all"`` where only the tensors of a profile are known."""
    if isinstance(goal, Sparsity | Params) and goal.scope != "managed":
        raise ValueError(f'{goal} counts parameters that an allocator does not see: leave out scope="all"')
    if isinstance(goal, Filters):
        raise ValueError(f"{goal} counts filters, an allocator shares out weights: give it to sparsify as the goal")


def _unusual(scope: Scope) -> str:
    """Goals are in messages and in the source of budgets, where the usual scope goes without saying."""
    return "" if scope == "managed" else f", scope={scope!r}"


def _scope(value: object) -> None:
    if value not in get_args(Scope):
        raise ValueError(f"scope is {' or '.join(map(repr, get_args(Scope)))}, got {value!r}")


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
