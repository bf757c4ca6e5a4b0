"""Pure tensor functions: the soft threshold, its threshold functions g, its backward modes, and masks."""

from softprune.ops.threshold import (
    Backward,
    Custom,
    Exp,
    G,
    Sigmoid,
    Softplus,
    annealed,
    masked,
    power_shrink,
    shrink,
    soft_threshold,
    straight_through,
)
from softprune.ops.topk import at_random, largest

__all__ = [
    "Backward",
    "Custom",
    "Exp",
    "G",
    "Sigmoid",
    "Softplus",
    "annealed",
    "at_random",
    "largest",
    "masked",
    "power_shrink",
    "shrink",
    "soft_threshold",
    "straight_through",
]
