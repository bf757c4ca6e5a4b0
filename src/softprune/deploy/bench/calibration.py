"""Calibration: from the times of single layers to times that add up to that of a call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# A step by itself is timed too long rather than too short; a call that seems shorter than this share of what does not
# depend on density was measured wrongly.
LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Sighting:
    """What was measured of a network at one density.

    Attributes:
        layers: tensor -> seconds of the steps of its layer.
        others: seconds of all other steps.
        call: seconds of a whole call.
    """

    layers: Mapping[str, float]
    others: float
    call: float


def calibrate(sightings: Sequence[Sighting]) -> tuple[float, dict[str, tuple[float, ...]]]:
    """Times whose sum is the time of a call, at every density that was measured.

    What does not depend on density is one number for all: the other steps, and the part of a call that no step
    accounts for, which is the least that calls take beyond their steps. What is left of a call belongs to the layers,
    and all of them are scaled by the same factor: steps that are timed one by one wait for each other, and chains of
    them run in bands when they run in earnest.

    Args:
        sightings: one for each density.

    Returns:
        The fixed seconds, and tensor -> seconds at each density.

    Example:
        >>> calibrate([Sighting({"a": 1.0, "b": 3.0}, 2.0, 9.0), Sighting({"a": 2.0, "b": 6.0}, 2.0, 11.0)])
        (3.0, {'a': (1.5, 2.0), 'b': (4.5, 6.0)})
    """
    others = min(seen.others for seen in sightings)
    beyond = min(seen.call - others - math.fsum(seen.layers.values()) for seen in sightings)
    fixed = others + max(0.0, beyond)
    times: dict[str, tuple[float, ...]] = {name: () for name in sightings[0].layers}
    for seen in sightings:
        steps = math.fsum(seen.layers.values())
        left = max(seen.call - fixed, LEAST_SHARE * steps)
        factor = left / steps if steps > 0 else 0.0
        times = {name: (*found, factor * seen.layers[name]) for name, found in times.items()}
    return fixed, times
