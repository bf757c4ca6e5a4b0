"""A network as its channels see it: layers that read and make channels, with one number for those that go together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from softprune.channels.channel import Reader
from softprune.channels.tape import Tape
from softprune.channels.walk import Walk


@dataclass(frozen=True, eq=False)
class Place:
    """A layer with weights, as it is used at one place.

    Args:
        reader: what the walk has noted.
        inputs: the numbers of the channels that it reads, one stands for all that are joined.
        outputs: of those that it makes.
    """

    reader: Reader
    inputs: Tensor
    outputs: Tensor

    @property
    def sides(self) -> tuple[Tensor, Tensor]:
        return self.inputs, self.outputs


@dataclass(frozen=True, eq=False)
class Network:
    """What a walk has found.

    Args:
        places: the layers, each time one is used, in order.
        pools: the channels of each average pool, and how many numbers of each it averages.
        pins: channel -> why it must stay.
        count: how many numbers of channels there are.
        tape: what the channels hold.
    """

    places: tuple[Place, ...]
    pools: tuple[tuple[Tensor, int], ...]
    pins: dict[int, str]
    count: int
    tape: Tape

    def again(self, path: str) -> list[Place]:
        """All places of a layer that is used more than once."""
        return self._repeated.get(path, [])

    @cached_property
    def _repeated(self) -> dict[str, list[Place]]:
        found: dict[str, list[Place]] = {}
        for place in self.places:
            found.setdefault(place.reader.path, []).append(place)
        return {path: places for path, places in found.items() if len(places) > 1}

    @cached_property
    def listeners(self) -> list[Place]:
        """The layers that need what they read; norms and depthwise layers hand their channels on."""
        return [p for p in self.places if p.reader.kind != "norm" and not p.reader.depthwise]

    @cached_property
    def read(self) -> Tensor:
        """The channels that the listeners read, one layer after the other."""
        return torch.cat([p.inputs for p in self.listeners])

    @cached_property
    def free(self) -> Tensor:
        """Whether a channel is made by a layer and may go."""
        free = torch.zeros(self.count, dtype=torch.bool)
        for place in self.places:
            free[place.outputs] = True
        free[list(self.pins)] = False
        return free

    def empties(self, gone: Tensor) -> bool:
        """Whether a layer would be left without inputs or without outputs."""
        channels, side_of, count = self._sides
        kept = (~gone[channels]).double()
        return bool((torch.bincount(side_of, kept, minlength=count) == 0).any())

    @cached_property
    def _sides(self) -> tuple[Tensor, Tensor, int]:
        sides = [side for place in self.places for side in place.sides]
        lengths = torch.tensor([len(side) for side in sides], dtype=torch.int64)
        if not sides:
            return lengths, lengths, 0
        return torch.cat(sides), torch.arange(len(sides)).repeat_interleave(lengths), len(sides)

    def first_places(self) -> dict[str, Place]:
        """Each layer once, by its path."""
        found: dict[str, Place] = {}
        for place in self.places:
            found.setdefault(place.reader.path, place)
        return found


def network(walk: Walk) -> Network:
    """Once all is joined that belongs together."""
    channels = walk.channels
    stands_for = torch.tensor([channels.find(c) for c in range(channels.count)], dtype=torch.int64)
    places = tuple(Place(r, stands_for[list(r.inputs)], stands_for[list(r.outputs)]) for r in walk.readers)
    pools = tuple((stands_for[list(of)], each) for of, each in walk.pools)
    return Network(places, pools, channels.pins(), channels.count, walk.tape)
