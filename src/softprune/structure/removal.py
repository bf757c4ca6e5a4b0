"""The ledger: what the layers of a network cost with some of their channels gone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from softprune.structure.channels import Reader, Values, sums
from softprune.structure.network import Network, Place, Removal, taken_over


class Ledger:
    """Counts what is left of the layers that channels are followed through, and of average pools.

    ``macs`` are the multiply-adds of all uses of each weight, by name, counted for ``batch`` samples.
    """

    def __init__(self, network: Network, model: nn.Module, macs: Mapping[str, int], batch: int) -> None:
        self._places = [places[0] for places in network.by_path.values()]
        numbers = torch.arange(len(self._places))
        sides = [[place.sides[side] for place in self._places] for side in (0, 1)]
        self._channels = [torch.cat(side) for side in sides]
        self._layer_of = [numbers.repeat_interleave(torch.tensor([len(s) for s in side])) for side in sides]
        figures = torch.tensor([_figures(place, model, macs) for place in self._places], dtype=torch.double)
        self._taps, self._groups, self._own, self._uses, alone = figures.T.contiguous()
        self._alone = alone.bool()
        pools = [(channel, each * batch) for of, each in network.pools for channel in of.tolist()]
        self._pooled = torch.tensor([channel for channel, _ in pools], dtype=torch.int64)
        self._averaged = torch.tensor([each for _, each in pools], dtype=torch.double)

    def total(self, removal: Removal, measure: str) -> int:
        """What these layers and pools cost without the channels that go, in "weights", "params" or "macs"."""
        inputs, outputs = self._widths(removal)
        weights = outputs * self._inputs_each(inputs) * self._taps
        if measure == "weights":
            return int(weights.sum())
        if measure == "params":
            return int((weights + outputs * (self._own + self._new_biases(removal))).sum())
        return round(float((weights * self._uses).sum() + self._averaged[~removal.gone[self._pooled]].sum()))

    def prices(self, removal: Removal, measure: str) -> Tensor:
        """What each channel adds to the total at the layers' present widths."""
        inputs, outputs = self._widths(removal)
        factor = self._uses if measure == "macs" else 1.0
        read = torch.where(self._alone, 0.0, outputs * self._taps / self._groups) * factor
        made = self._inputs_each(inputs) * self._taps * factor
        if measure == "params":
            made = made + self._own
        found = torch.zeros(len(removal.gone), dtype=torch.double)
        for side, price in enumerate((read, made)):
            found.index_add_(0, self._channels[side], price[self._layer_of[side]])
        return found.index_add_(0, self._pooled, self._averaged) if measure == "macs" else found

    def _widths(self, removal: Removal) -> list[Tensor]:
        """How many inputs and outputs each layer keeps."""
        kept = (~removal.gone).double()
        return [
            torch.bincount(layer_of, kept[channels], minlength=len(self._places))
            for channels, layer_of in zip(self._channels, self._layer_of, strict=True)
        ]

    def _inputs_each(self, inputs: Tensor) -> Tensor:
        return torch.where(self._alone, 1.0, inputs / self._groups)

    def _new_biases(self, removal: Removal) -> Tensor:
        """1 for each layer that gets a bias, which takes over constants of removed inputs."""
        pairs = zip(self._own.tolist(), self._places, strict=True)
        new = [own == 0 and taken_over(place, removal) is not None for own, place in pairs]
        return torch.tensor(new, dtype=torch.double)


def _figures(place: Place, model: nn.Module, macs: Mapping[str, int]) -> tuple[float, ...]:
    """Of one layer:

    - weights for one input and one output, 0 for a norm,
    - groups,
    - parameters that each output has besides its weights,
    - multiply-adds for each weight,
    - whether each output has one input, as in depthwise layers and norms.
    """
    reader = place.reader
    module: Any = model.get_submodule(reader.path)
    own = int(module.bias is not None)
    if reader.kind == "norm":
        return 0, 1, own + (module.weight is not None), 0, True
    uses = macs.get(f"{reader.path}.weight", 0) / module.weight.numel()
    return math.prod(module.weight.shape[2:]), reader.groups, own, uses, reader.depthwise


class Foreseen(Values):
    """What the layers would hold with only some filters ``alive``. A weight that no gate closes counts as not zero.

    Weights are looked at in the rare case that all inputs of a group are constants; else the cost is that of a few
    operations on vectors as long as a layer is wide. ``read`` gets a parameter or buffer by its name, as it is behind
    its gate; ``gates`` maps the names of gated tensors to their filters among all.
    """

    def __init__(self, read: Callable[[str], Tensor], gates: Mapping[str, slice]) -> None:
        self._read = read
        self._gates = gates
        self._held: dict[str, Tensor] = {}
        self.alive = torch.zeros(0, dtype=torch.bool)  # one for each filter

    def held(self, name: str) -> Tensor:
        if name not in self._held:
            found = self._read(name).detach().cpu().double()
            # A gated weight may be 0 for now, as where the scale of a last norm starts there; it will not stay so.
            gated = name in self._gates and name.endswith("weight")
            self._held[name] = torch.where(found == 0, 1.0, found) if gated else found
        found, gate = self._held[name], self._gates.get(name)
        if gate is None:
            return found
        return torch.where(self.alive[gate].view(-1, *[1] * (found.ndim - 1)), found, 0.0)

    def listens(self, reader: Reader) -> Tensor:
        gate = self._gates.get(f"{reader.path}.weight")
        if gate is None:
            return torch.ones(len(reader.inputs), dtype=torch.bool)
        heard = self.alive[gate].view(reader.groups, -1).any(1)
        return heard.repeat_interleave(len(reader.inputs) // reader.groups)

    def answer(self, reader: Reader, inputs: Tensor) -> Tensor:
        known = ~inputs.isnan() if reader.exact else inputs == 0
        whole = known.view(reader.groups, -1).all(1)
        count = len(reader.outputs)
        answer = torch.full((count,), torch.nan, dtype=torch.double)
        if bool(whole.any()):
            answer[whole.repeat_interleave(count // reader.groups)] = 0.0
            if bool((inputs.view(reader.groups, -1)[whole] != 0).any()):
                made = sums(reader, self.weight(reader), torch.where(known, inputs, 0.0))
                answer = torch.where(answer.isnan(), answer, made)
        gate = self._gates.get(f"{reader.path}.weight")
        return answer if gate is None else torch.where(self.alive[gate], answer, 0.0)
