"""From raw values of sensors to what the network was trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from softprune.deploy.export.c.network import Floats


@dataclass(frozen=True)
class Normalisation:
    """(x - mean) * inverse, computed in float32 as the C program does.

    Attributes:
        mean: [1, features] for all steps alike, or [steps, features].
        inverse: one over the deviation, of the same shape.
    """

    mean: Floats
    inverse: Floats

    @property
    def by_step(self) -> bool:
        """Whether each step has numbers of its own."""
        return len(self.mean) > 1

    def __call__(self, windows: Floats) -> Floats:
        """Raw windows [n, steps, features], normalised."""
        return (windows - self.mean) * self.inverse

    def undone(self, windows: Floats) -> Floats:
        """Raw windows that normalise to these, up to rounding."""
        return (windows / self.inverse.astype(np.float64) + self.mean).astype(np.float32)


def read_normalisation(given: tuple[ArrayLike, ArrayLike] | None, *, steps: int, features: int) -> Normalisation | None:
    """Mean and deviation, checked.

    Args:
        given: mean and deviation, [features] or [steps, features] each; None if inputs come normalised.
        steps: of a window.
        features: of an input.

    Raises:
        ValueError: for another shape, or numbers that cannot be used.
    """
    if given is None:
        return None
    mean, deviation = (np.asarray(part, np.float64) for part in given)
    for name, part in (("mean", mean), ("deviation", deviation)):
        if part.shape not in ((features,), (steps, features)) or part.shape != mean.shape:
            raise ValueError(
                f"the {name} of the normalisation has shape {part.shape}; mean and deviation must both be "
                f"({features},) or ({steps}, {features})"
            )
    with np.errstate(divide="ignore", over="ignore"):
        inverse = (1 / deviation).astype(np.float32)
        shift = mean.astype(np.float32)
    if not np.isfinite(shift).all() or not (np.isfinite(inverse) & (inverse > 0)).all():
        raise ValueError("the normalisation needs finite means and positive, finite deviations (in float32)")
    return Normalisation(shift.reshape(-1, features), inverse.reshape(-1, features))
