"""Values: what the layers of a network hold, and what follows for their channels."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from softprune.channels.channel import Reader


class Values:
    """Those of a network as it is.

    Args:
        model: the network.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def held(self, name: str) -> Tensor:
        """A parameter or buffer by its name, in double precision."""
        path, _, attribute = name.rpartition(".")
        found = getattr(self._model.get_submodule(path), attribute)
        assert isinstance(found, Tensor)
        return found.detach().cpu().double()

    def answer(self, reader: Reader, inputs: Tensor) -> Tensor:
        """What each output of a layer is without the bias, if all inputs that it listens to are constant."""
        return sums(reader, self.weight(reader), inputs)

    def listens(self, reader: Reader) -> Tensor:
        """Which inputs of a layer have a weight that is not zero."""
        taps = _taps(self.weight(reader)).abs().amax(2)
        heard: Tensor = taps.view(reader.groups, -1, taps.shape[1]).amax(1) > 0
        return heard.flatten()

    def scale(self, path: str) -> Tensor | None:
        """The weights of a norm, if it has any."""
        return None if self._model.get_submodule(path).weight is None else self.held(f"{path}.weight")

    def weight(self, reader: Reader) -> Tensor:
        """The weights of a convolution or linear layer, outputs first, inputs of the group second."""
        weight = self.held(f"{reader.path}.weight")
        return outputs_first(weight, reader.groups) if reader.kind == "transposed" else weight


def outputs_first(weight: Tensor, groups: int) -> Tensor:
    """The weights of a transposed convolution as those of a convolution: outputs, then inputs of the group."""
    parts = weight.view(groups, weight.shape[0] // groups, *weight.shape[1:]).transpose(1, 2)
    return parts.reshape(-1, *parts.shape[2:])


def sums(reader: Reader, weight: Tensor, inputs: Tensor) -> Tensor:
    """The outputs of a layer with these weights, NaN where an input that one listens to is no constant."""
    groups = reader.groups
    taps = _taps(weight).view(groups, weight.shape[0] // groups, weight.shape[1], -1)
    heard = taps.abs().amax(3) > 0
    known = inputs.view(groups, 1, -1).expand_as(heard)
    parts = torch.where(heard, taps.sum(3) * known, 0.0)
    if not reader.exact:
        parts = torch.where(heard & (known != 0), torch.nan, parts)
    return parts.sum(2).flatten()


def _taps(weight: Tensor) -> Tensor:
    return weight.reshape(*weight.shape[:2], math.prod(weight.shape[2:]))
