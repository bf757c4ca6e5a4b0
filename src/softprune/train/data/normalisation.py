"""The normalisation of sequences: which numbers, and what is done with them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# A feature that hardly changes is left as it is, shifted to zero.
_LEAST_DEVIATION = 1e-6


@dataclass(frozen=True, eq=False)
class Normalisation:
    """What makes raw sequences what a network is trained on: (values - mean) / scale.

    Args:
        mean: float64 [steps, features].
        scale: likewise, positive.
    """

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Normalisation:
        """To zero mean and unit deviation of every feature at every step."""
        mean = values.double().mean(0)
        deviation = (values.double() - mean).square_().mean(0).sqrt_()
        return cls(mean, torch.where(deviation < _LEAST_DEVIATION, 1.0, deviation))

    def __call__(self, values: Tensor) -> Tensor:
        """Sequences [n, steps, features], as float32."""
        return ((values - self.mean) / self.scale).float()

    def over_steps(self) -> Normalisation:
        """The same numbers [features] for all steps: mean and deviation of the values of all steps together.

        >>> both = Normalisation(torch.tensor([[1.0], [9.0]]), torch.tensor([[3.0], [3.0]])).over_steps()
        >>> both.mean, both.scale
        (tensor([5.]), tensor([5.]))
        """
        mean = self.mean.mean(0)
        return Normalisation(mean, (self.scale.square() + (self.mean - mean).square()).mean(0).sqrt())
