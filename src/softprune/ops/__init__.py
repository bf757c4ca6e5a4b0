"""Pure tensor functions: the soft threshold, its threshold functions g, and its backward modes."""

from softprune.ops.g import Custom, Exp, G, Sigmoid, Softplus
from softprune.ops.threshold import Backward, annealed, masked, shrink, soft_threshold, straight_through

__all__ = [
    "Backward",
    "Custom",
    "Exp",
    "G",
    "Sigmoid",
    "Softplus",
    "annealed",
    "masked",
    "shrink",
    "soft_threshold",
    "straight_through",
]
