"""Remembered: the values that all tensors of a model had at one moment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn

# Where a managed tensor lives, and a name that it has in the plain model as well.
_MANAGED = re.compile(r"parametrizations\.(\w+)\.original$")


class Remembered(nn.Module):
    """Copies of every parameter and buffer that a model has now, to be put back later.

    State: one buffer for each, by its name in the plain model with slashes for dots.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for name, tensor in chain(model.named_parameters(), model.named_buffers()):
            self.register_buffer(_key(name), tensor.detach().clone())

    @torch.no_grad()
    def take_(self, model: nn.Module) -> None:
        """Remember the values of now."""
        for mine, theirs in self._pairs(model):
            mine.copy_(theirs)

    @torch.no_grad()
    def put_back_(self, model: nn.Module) -> None:
        """Give the model the remembered values; its tensors stay the objects that they are."""
        for mine, theirs in self._pairs(model):
            theirs.copy_(mine)

    def _pairs(self, model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
        # All names of a tied tensor: which of them comes first changes when it is managed.
        named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
        live = {_key(name): tensor for name, tensor in named}
        for key, mine in self.named_buffers():
            yield mine, live[key]


def _key(name: str) -> str:
    return _MANAGED.sub(r"\1", name).replace(".", "/")
