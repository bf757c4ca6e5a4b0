"""Prices: what the kept weights of a tensor add to a total."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from softprune.budget.costs import Profile
from softprune.budget.latency import Curve
from softprune.core.parametrization import raw_parameter
from softprune.goals.goal import Filters, Flops, Goal, Latency, Params, Sparsity, require_in_time, require_reachable
from softprune.goals.scan import Array
from softprune.structure.network import Network, Removal, decide
from softprune.structure.removal import Foreseen, Ledger, Unit

# The slope of a curve is taken over this share of the kept weights to either side: about as far as thresholds look.
NEARBY = 0.1


@dataclass(frozen=True)
class Price:
    """The price of a number of weights; it never falls with it.

    Args:
        each: what every weight costs; 1 where a curve says it.
        curve: what this share of the tensor costs, where that is no multiple of the number of weights.
        size: the number of weights of the tensor, for the curve.
    """

    each: float = 1.0
    curve: Curve | None = None
    size: int = 0

    def of(self, count: float) -> float:
        """What this many weights cost."""
        if self.curve is None:
            return self.each * count
        return self.curve(min(1.0, count / self.size))

    def steps(self, first: int, count: int) -> Array:
        """What each of `count` more weights adds to the `first` ones."""
        if self.curve is None:
            return np.full(count, self.each)
        return np.diff(self._at(first + np.arange(count + 1)))

    def sampled(self, size: int, count: int) -> Array:
        """What each of `count` weights stands for that are a sample of `size`, in their order."""
        if self.curve is None:
            return np.full(count, self.each * size / count)
        return np.diff(self._at(np.linspace(0, size, count + 1)))

    def slope(self, count: int) -> float:
        """What one more weight adds at about this number, relative to `each`."""
        if self.curve is None:
            return 1.0
        reach = max(1.0, NEARBY * count)
        low, high = max(0.0, count - reach), min(float(self.size), count + reach)
        return (self.of(high) - self.of(low)) / (high - low)

    @property
    def most(self) -> float:
        """The most that one weight can add."""
        if self.curve is None:
            return self.each
        x, y = np.array(self.curve.densities), np.array(self.curve.seconds)
        return float((np.diff(y) / np.diff(x)).max()) / self.size

    def _at(self, counts: Array) -> Array:
        assert self.curve is not None
        values: Array = np.interp(counts / self.size, self.curve.densities, self.curve.seconds)
        return values


def in_order(keys: Array, steps: Array) -> Array:
    """The steps of a price for weights in the order of memory: the largest key takes the first, equal ones in order."""
    if len(steps) < 2 or steps.min() == steps.max():
        return steps
    placed = np.empty_like(steps)
    placed[np.argsort(-keys, kind="stable")] = steps
    return placed


def equal_density(total: Callable[[float], float], wanted: float, *, halvings: int = 60) -> float:
    """The density of all tensors at which a total that grows with it is what is wanted; found by halving."""
    low, high = 0.0, 1.0
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if total(middle) < wanted else (low, middle)
    return high


# Bills: what units cost together, where that is no price for each: as they are stored, or left after shrinking.


class Bill(ABC):
    """What the units of a part cost, in the unit of its goal.

    Units are given as one vector of bools for each tensor of the part, in order: whether each is alive. The more are,
    the higher the total; only for groups of convolutions, which stay equally wide, that is not strict.

    Args:
        sizes: the number of units of each tensor.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)

    @abstractmethod
    def total(self, alive: Sequence[Array]) -> float:
        """What these cost, with everything that the goal counts besides."""

    @abstractmethod
    def prices(self, alive: Sequence[Array]) -> list[float]:
        """For each tensor what one unit more or less changes about now; the learner weighs thresholds with it."""

    def full(self) -> float:
        """The total with all units."""
        return self.total([np.ones(size, np.bool_) for size in self.sizes])

    def least(self, floors: Sequence[int]) -> float:
        """The most that so many units of each tensor can cost: any total from here on can be reached."""
        return self.total([np.arange(size) < floor for size, floor in zip(self.sizes, floors, strict=True)])

    def at_density(self, density: float) -> float:
        """The total with this share of every tensor, at least one unit of each."""
        return self.total([np.arange(size) < max(1, round(density * size)) for size in self.sizes])

    def now(self) -> Bill:
        """The bill with the values that the network has now, where it depends on any."""
        return self

    def on(self, model: nn.Module) -> Bill:
        """The bill for a copy of the model."""
        return self


class Sum(Bill):
    """Every unit has a cost of its own: blocks, of which those at the edges are smaller.

    Args:
        costs: of the units of each tensor.
        fixed: what else the goal counts.
    """

    def __init__(self, costs: Sequence[Array], fixed: float) -> None:
        super().__init__([len(cost) for cost in costs])
        self._costs = costs
        self._fixed = fixed

    def total(self, alive: Sequence[Array]) -> float:
        return self._fixed + sum(float(cost[on].sum()) for cost, on in zip(self._costs, alive, strict=True))

    def prices(self, alive: Sequence[Array]) -> list[float]:
        return [float(cost.mean()) for cost in self._costs]

    def least(self, floors: Sequence[int]) -> float:
        dearest = [np.sort(cost)[::-1][:floor].sum() for cost, floor in zip(self._costs, floors, strict=True)]
        return self._fixed + float(sum(dearest))


class Stored(Bill):
    """Each tensor costs what its number of units is stored as: directions, of which many are stored as one matrix.

    Args:
        sizes: the number of units of each tensor.
        stored: for each tensor the cost of a number of them.
        fixed: what else the goal counts.
    """

    def __init__(self, sizes: Sequence[int], stored: Sequence[Callable[[int], float]], fixed: float) -> None:
        super().__init__(sizes)
        self._stored = stored
        self._fixed = fixed

    def total(self, alive: Sequence[Array]) -> float:
        counts = (int(np.count_nonzero(on)) for on in alive)
        return self._fixed + sum(stored(count) for stored, count in zip(self._stored, counts, strict=True))

    def prices(self, alive: Sequence[Array]) -> list[float]:
        """Slopes around the present ranks, as where one more direction is free the next one less is not."""
        found = []
        for stored, on in zip(self._stored, alive, strict=True):
            count = int(np.count_nonzero(on))
            reach = max(1, round(NEARBY * count))
            low, high = max(0, count - reach), min(len(on), count + reach)
            found.append((stored(high) - stored(low)) / (high - low))
        return found


# What a goal means for the tensors that it is for: the price of their weights, and what they may cost together.


def prices_of(goal: Goal, sizes: Mapping[str, int], profile: Profile) -> dict[str, Price]:
    """What kept weights of each tensor cost in the unit of the goal.

    Args:
        goal: the total.
        sizes: the number of weights of each tensor.
        profile: their multiply-adds, for a Flops goal.
    """
    if isinstance(goal, Latency):
        return {name: Price(curve=goal.table.curve(name), size=size) for name, size in sizes.items()}
    if isinstance(goal, Flops):
        return {name: Price(profile[name].macs / size) for name, size in sizes.items()}
    return dict.fromkeys(sizes, Price())


def allowance(goal: Goal, sizes: Mapping[str, int], profile: Profile, other_params: int) -> float:
    """What the tensors may cost together.

    Raises:
        ValueError: if no set of densities reaches the goal.
    """
    if isinstance(goal, Latency):
        table = goal.table
        none = table.total(dict.fromkeys(sizes, 0.0))
        require_in_time(goal, none, high=table.total({}))
        return goal.seconds - (none - sum(table.seconds(name, 0.0) for name in sizes))
    if isinstance(goal, Flops):
        fixed = profile.total_macs() - sum(profile[name].macs for name in sizes)
        require_reachable(goal, fixed, high=profile.total_macs())
        return float(goal.macs - fixed)
    count = sum(sizes.values())
    if isinstance(goal, Filters):
        require_reachable(goal, 0, high=count)
        return float(goal.count)
    if isinstance(goal, Params):
        outside = other_params if goal.scope == "all" else 0
        require_reachable(goal, outside, high=count + outside)
        return float(goal.count - outside)
    return float(_kept(goal, count, other_params))


def _kept(goal: Sparsity, count: int, other_params: int) -> int:
    if goal.scope == "managed":
        return goal.kept(count)
    kept = goal.kept(count + other_params) - other_params
    if kept < 1:
        raise ValueError(
            f"{goal} cannot be reached: {other_params:,} of the {count + other_params:,} parameters of the model are "
            'not managed; leave out scope="all", or ask for less'
        )
    return kept


# The bill of filters: what a network costs once its dead filters are cut out of it and of all that read them.


@dataclass(frozen=True, eq=False)
class Gates:
    """The filters that a part decides on.

    Args:
        paths: the layers whose filters they are, in the order of the part's tensors.
        sizes: the number of filters of each.
        tensors: for each layer the names of the tensors that its gates act on.
    """

    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    tensors: tuple[tuple[str, ...], ...]

    def slices(self) -> list[slice]:
        ends = np.cumsum(self.sizes).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]


class FilterBill(Bill):
    """What `softprune.shrink` leaves.

    Whether a constant can go may depend on biases and norms: they are read when the bill is made, and by `now`.

    Args:
        network: the channels of the model, followed.
        ledger: what its layers cost.
        model: with gates on.
        gates: whose filters are decided on.
        unit: what is counted.
        whole: what the network costs as it is.
    """

    def __init__(
        self, network: Network, ledger: Ledger, model: nn.Module, gates: Gates, unit: Unit, whole: float
    ) -> None:
        super().__init__(gates.sizes)
        self._network, self._ledger, self._model, self._gates = network, ledger, model, gates
        self._unit: Unit = unit
        places = network.first_places()
        # The channel that each filter makes; none where a layer is not followed.
        self._made = [places[path].outputs if path in places else None for path in gates.paths]
        self._writers = torch.zeros(network.count, dtype=torch.double)
        for made in self._made:
            if made is not None:
                self._writers[made] += 1.0
        self._values = self._read()
        alive = self._removal([np.ones(size, np.bool_) for size in gates.sizes])
        self._fixed = whole - ledger.total(replace(alive, gone=torch.zeros_like(alive.gone)), unit)

    def now(self) -> FilterBill:
        fresh = copy.copy(self)
        fresh._values = fresh._read()
        return fresh

    def on(self, model: nn.Module) -> FilterBill:
        theirs = copy.copy(self)
        theirs._model = model
        return theirs.now()

    def total(self, alive: Sequence[Array]) -> float:
        return self._fixed + self._ledger.total(self._removal(alive), self._unit)

    def prices(self, alive: Sequence[Array]) -> list[float]:
        """The mean over the filters of a layer. Where several layers write to a channel they share what it costs."""
        prices = self._ledger.prices(self._removal(alive), self._unit)
        prices[list(self._network.pins)] = 0.0
        return [0.0 if made is None else float((prices[made] / self._writers[made]).mean()) for made in self._made]

    def least(self, floors: Sequence[int]) -> float:
        """With filters that write to channels which no other keeps alive, as far as there are such."""
        kept = ~self._network.free
        alive = []
        for made, size, floor in zip(self._made, self.sizes, floors, strict=True):
            taken = np.zeros(size) if made is None else kept[made].numpy()
            chosen = np.argsort(taken, kind="stable")[:floor]
            if made is not None:
                kept[made[torch.from_numpy(chosen)]] = True
            alive.append(np.isin(np.arange(size), chosen))
        return self.total(alive)

    def _removal(self, alive: Sequence[Array]) -> Removal:
        return decide(self._network, self._values.with_alive(torch.from_numpy(np.concatenate(alive))))

    def _read(self) -> Foreseen:
        named = zip(self._gates.tensors, self._gates.slices(), strict=True)
        return Foreseen(self._behind_gate, {name: of for names, of in named for name in names})

    def _behind_gate(self, name: str) -> Tensor:
        path, _, tensor = name.rpartition(".")
        module = self._model.get_submodule(path)
        if parametrize.is_parametrized(module, tensor):
            return raw_parameter(module, tensor)
        found = getattr(module, tensor)
        assert isinstance(found, Tensor)
        return found
