"""Joint costs: what units cost together, as they are stored or left by shrinking."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from softprune.budget.costs import NEARBY
from softprune.core.parametrization import raw_parameter
from softprune.goals.base import Measure
from softprune.goals.scan import Array
from softprune.structure.channels import named_tensor
from softprune.structure.gates import Gated, tensor_name
from softprune.structure.network import Foreseen, LayerCosts, Network, Removal, decide


class JointCost(ABC):
    """What the units of a constraint cost, in the unit of its goal.

    Units are given as one vector of bools for each of its tensors, in order: whether each is alive. ``sizes`` are the
    lengths of these. The more are alive the higher the total; only for groups of convolutions, which stay equally
    wide, that is not strict.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)

    @abstractmethod
    def total(self, alive: Sequence[Array]) -> float:
        """What the living units cost, with everything that the goal counts besides."""

    @abstractmethod
    def marginal(self, alive: Sequence[Array]) -> list[float]:
        """What one unit of each tensor more or less changes, on average; the learner weighs thresholds with it."""

    def full(self) -> float:
        return self.total([np.ones(size, np.bool_) for size in self.sizes])

    def least(self, floors: Sequence[int]) -> float:
        """The most that `floors` units of the tensors can cost: any total from there on can be reached."""
        return self.total([np.arange(size) < floor for size, floor in zip(self.sizes, floors, strict=True)])

    def at_density(self, density: float) -> float:
        """The total with this share of every tensor, at least one unit of each."""
        return self.total([np.arange(size) < max(1, round(density * size)) for size in self.sizes])

    def now(self) -> JointCost:
        """The cost with the network's present values, where it depends on them."""
        return self

    def on(self, model: nn.Module) -> JointCost:
        """The same cost for a copy of the model."""
        return self


class SumOfUnits(JointCost):
    """Every unit has its own cost: blocks, smaller at the edges; ``fixed`` is added to all totals."""

    def __init__(self, costs: Sequence[Array], fixed: float) -> None:
        super().__init__([len(cost) for cost in costs])
        self._costs = costs
        self._fixed = fixed

    def total(self, alive: Sequence[Array]) -> float:
        return self._fixed + sum(float(cost[on].sum()) for cost, on in zip(self._costs, alive, strict=True))

    def marginal(self, alive: Sequence[Array]) -> list[float]:
        return [float(cost.mean()) for cost in self._costs]

    def least(self, floors: Sequence[int]) -> float:
        dearest = [np.sort(cost)[::-1][:floor].sum() for cost, floor in zip(self._costs, floors, strict=True)]
        return self._fixed + float(sum(dearest))


class StoredUnits(JointCost):
    """A tensor's cost follows from its number of living units: directions, of which many are stored as one matrix.

    ``stored`` are these functions, one per tensor; ``fixed`` is added to all totals.
    """

    def __init__(self, sizes: Sequence[int], stored: Sequence[Callable[[int], float]], fixed: float) -> None:
        super().__init__(sizes)
        self._stored = stored
        self._fixed = fixed

    def total(self, alive: Sequence[Array]) -> float:
        pairs = zip(self._stored, alive, strict=True)
        return self._fixed + sum(stored(int(np.count_nonzero(on))) for stored, on in pairs)

    def marginal(self, alive: Sequence[Array]) -> list[float]:
        """Slopes around the present ranks: where one more direction is free, one less is not."""
        found = []
        for stored, on in zip(self._stored, alive, strict=True):
            count = int(np.count_nonzero(on))
            reach = max(1, round(NEARBY * count))
            low, high = max(0, count - reach), min(len(on), count + reach)
            found.append((stored(high) - stored(low)) / (high - low))
        return found


class FilterCost(JointCost):
    """What a network costs once its dead filters are cut out of it and of all that read them: what `shrink` leaves.

    Whether a constant can go may depend on biases and norms: they are read when this is made, and by `now`. ``gates``
    are on the model already; ``whole`` is what all of it costs as it is.
    """

    def __init__(
        self,
        network: Network,
        layers: LayerCosts,
        model: nn.Module,
        gates: Sequence[Gated],
        measure: Measure,
        whole: float,
    ) -> None:
        super().__init__([gate.shape[0] for gate in gates])
        self._network, self._layers, self._model, self._measure = network, layers, model, measure
        paths = {module: path for path, module in model.named_modules()}
        ends = np.cumsum(self.sizes).tolist()
        # Name of each gated tensor -> its filters among all.
        self._filters = {
            tensor_name(paths[module], tensor): slice(end - size, end)
            for gate, end, size in zip(gates, ends, self.sizes, strict=True)
            for module, tensor in gate.tensors
        }
        # The channel that each filter makes; none where a layer is not followed.
        self._made = [network.by_path[g.path][0].outputs if g.path in network.by_path else None for g in gates]
        self._writers = torch.zeros(network.count, dtype=torch.double)
        for made in self._made:
            if made is not None:
                self._writers[made] += 1.0
        self._values = self._read()
        alive = self._removal([np.ones(size, np.bool_) for size in self.sizes])
        self._fixed = whole - layers.total(replace(alive, gone=torch.zeros_like(alive.gone)), measure)

    def now(self) -> FilterCost:
        fresh = copy.copy(self)
        fresh._values = fresh._read()
        return fresh

    def on(self, model: nn.Module) -> FilterCost:
        theirs = copy.copy(self)
        theirs._model = model
        return theirs.now()

    def total(self, alive: Sequence[Array]) -> float:
        return self._fixed + self._layers.total(self._removal(alive), self._measure)

    def marginal(self, alive: Sequence[Array]) -> list[float]:
        """The mean over the filters of a layer. Where several layers write to a channel they share what it costs."""
        costs = self._layers.marginal(self._removal(alive), self._measure)
        costs[list(self._network.pins)] = 0.0
        return [0.0 if made is None else float((costs[made] / self._writers[made]).mean()) for made in self._made]

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
        self._values.alive = torch.from_numpy(np.concatenate(alive))
        return decide(self._network, self._values)

    def _read(self) -> Foreseen:
        return Foreseen(self._behind_gate, self._filters)

    def _behind_gate(self, name: str) -> Tensor:
        path, _, tensor = name.rpartition(".")
        module = self._model.get_submodule(path)
        gated = parametrize.is_parametrized(module, tensor)
        return raw_parameter(module, tensor) if gated else named_tensor(module, tensor)
