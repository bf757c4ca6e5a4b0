"""Tables of times that were never measured, with the forms that real ones have."""

import random

from softprune.budget.latency import LatencyTable, LayerTime
from softprune.core.candidates import managed_names

DENSITIES = (0.01, 0.05, 0.1, 0.3, 1.0)


def made_table(model, seed=0, *, names=None):
    """Convex, concave and flat curves, with noise that makes some points fall."""
    chance = random.Random(seed)
    tensors = dict(model.named_parameters())
    layers = []
    for name in names or managed_names(model):
        size, power = tensors[name].numel(), chance.choice((0.3, 1.0, 1.0, 2.0))
        start, rate = chance.uniform(0, 1e-5), 1e-9 * chance.uniform(0.1, 100)
        seconds = [start + rate * size * d**power * chance.uniform(0.9, 1.1) for d in DENSITIES]
        layers.append(LayerTime(name, tuple(tensors[name].shape), DENSITIES, tuple(seconds)))
    return LatencyTable(tuple(layers), fixed=3e-6, processor="made up", level="none", threads=1, batch=1)
