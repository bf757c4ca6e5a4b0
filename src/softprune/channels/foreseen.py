"""Foreseen values: those of a network some of whose filters will be zero as a whole, by a gate on each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from softprune.channels.channel import Reader
from softprune.channels.values import Values, sums


class Foreseen(Values):
    """What the layers would hold with these filters alive. A weight that no gate closes counts as not zero.

    Weights are looked at in the rare case that all inputs of a group are constants; else the cost is that of a few
    operations on vectors as long as a layer is wide.

    Args:
        read: a parameter or buffer by its name, as it is behind its gate.
        gates: name of a gated tensor -> which of all units are its own.
    """

    def __init__(self, read: Callable[[str], Tensor], gates: Mapping[str, slice]) -> None:
        self._read = read
        self._gates = gates
        self._held: dict[str, Tensor] = {}
        self.alive = torch.zeros(0, dtype=torch.bool)

    def with_alive(self, alive: Tensor) -> Foreseen:
        """The same with these units alive, one bool each."""
        self.alive = alive
        return self

    def held(self, name: str) -> Tensor:
        if name not in self._held:
            found = self._read(name).detach().cpu().double()
            # A gated number may be 0 just now, as where the scale of a last norm starts there; it will not stay.
            self._held[name] = torch.where(found == 0, 1.0, found) if self._scales(name) else found
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

    def _scales(self, name: str) -> bool:
        return name in self._gates and name.endswith("weight")
