"""Random changes of training sequences, whole batches at once: what should make no difference to the label."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softprune.train.data.randomness import Draws, Purpose


@dataclass(frozen=True)
class Rotation:
    """Turn the signals of each sequence as if the device had been worn a little differently.

    The features are triples (x, y, z), all turned alike, about an axis of any direction.

    Args:
        degrees: the largest angle; smaller ones are as likely.
    """

    degrees: float

    def __call__(self, values: Tensor, indices: Tensor, *, draws: Draws) -> Tensor:
        """Sequences [n, steps, features] of the samples ``indices`` [n], turned."""
        triples = values.unflatten(2, (-1, 3))
        turned = torch.einsum("nij,ntkj->ntki", self._matrices(indices, draws).to(values.dtype), triples)
        return turned.flatten(2)

    def _matrices(self, indices: Tensor, draws: Draws) -> Tensor:
        """Rodrigues: 1 + sin(a) K + (1 - cos(a)) K K, with K v the cross product of the axis and v."""
        z = 2.0 * draws.floats(indices, Purpose.AXIS_HEIGHT) - 1.0
        around = 2.0 * math.pi * draws.floats(indices, Purpose.AXIS_TURN)
        radius = (1.0 - z.square()).sqrt()
        x, y = radius * around.cos(), radius * around.sin()
        zero = torch.zeros_like(z)
        cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=1).view(-1, 3, 3)
        angle = (math.radians(self.degrees) * draws.floats(indices, Purpose.ANGLE)).view(-1, 1, 1)
        return torch.eye(3, dtype=z.dtype) + angle.sin() * cross + (1.0 - angle.cos()) * (cross @ cross)


@dataclass(frozen=True)
class Shift:
    """Move each sequence in time; its first or last step is repeated where nothing is left.

    Args:
        steps: the furthest in either direction.
    """

    steps: int

    def __call__(self, values: Tensor, indices: Tensor, *, draws: Draws) -> Tensor:
        """Sequences [n, steps, features] of the samples ``indices`` [n], moved."""
        count, length, features = values.shape
        by = draws.integers(indices, Purpose.MOMENT, below=2 * self.steps + 1) - self.steps
        places = (torch.arange(length) - by.view(-1, 1)).clamp_(0, length - 1)
        rows = (places + length * torch.arange(count).view(-1, 1)).view(-1)
        return values.reshape(-1, features).index_select(0, rows).view_as(values)


@dataclass(frozen=True)
class Distortions:
    """Several changes, one after the other."""

    each: tuple[Rotation | Shift, ...]

    def __call__(self, values: Tensor, indices: Tensor, *, draws: Draws) -> Tensor:
        for one in self.each:
            values = one(values, indices, draws=draws)
        return values
