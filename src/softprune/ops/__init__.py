"""Pure tensor functions: the soft threshold, its threshold functions g, its backward modes, and masks."""

from softprune.ops.g import Custom, Exp, G, Sigmoid, Softplus
from softprune.ops.threshold import Backward, annealed, masked, power_shrink, shrink, soft_threshold, straight_through
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
