"""Masks: which weights live. Counts are exact and ties go by position, so that every process decides alike."""

from __future__ import annotations

import torch
from torch import Tensor


def largest(scores: Tensor, count: int) -> Tensor:
    """True at the `count` largest scores; of equal ones at the first.

    >>> largest(torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0]), 3)
    tensor([False,  True,  True,  True, False])
    """
    # A stable sort: topk leaves the order of equal scores to the device.
    order = torch.sort(scores.reshape(-1), descending=True, stable=True).indices
    return _at(order[: max(0, count)], scores.shape)


def at_random(among: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """True at `count` places drawn from where `among` is True; at all of these if they are fewer.

    The draw is made on the CPU, so that it is the same on every device.

    >>> int(at_random(torch.tensor([True, False, True, True]), 2, torch.Generator()).sum())
    2
    """
    (places,) = torch.nonzero(among.reshape(-1), as_tuple=True)
    drawn = torch.randperm(len(places), generator=generator)[: max(0, count)]
    return _at(places[drawn.to(places.device)], among.shape)


def _at(places: Tensor, shape: torch.Size) -> Tensor:
    mask = torch.zeros(shape.numel(), dtype=torch.bool, device=places.device)
    mask[places] = True
    return mask.view(shape)
