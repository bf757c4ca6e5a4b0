"""The bill of filters: what a network costs once its dead filters are cut out of it and of all that read them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from softprune.channels.foreseen import Foreseen
from softprune.channels.ledger import Ledger, Unit
from softprune.channels.network import Network
from softprune.channels.removal import Removal, decide
from softprune.core.goals.bill import Bill
from softprune.core.goals.sweep import Array
from softprune.core.parametrization import raw_parameter


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
