"""Which part of an image is cut out, and to what size it goes: torchvision's definitions, in whole pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

ATTEMPTS = 10
AREAS = (0.08, 1.0)
RATIOS = (3 / 4, 4 / 3)


class Box(NamedTuple):
    """A rectangle of pixels; right and bottom are outside, as in Pillow."""

    left: int
    top: int
    right: int
    bottom: int


def random_box(
    width: int, height: int, *, areas: Sequence[float], ratios: Sequence[float], row: float, column: float
) -> Box:
    """The box of RandomResizedCrop: 8 to 100 % of the area, 3:4 to 4:3, wherever it fits.

    The ratio is uniform in its logarithm. If no attempt fits, the box is the largest central one with a ratio in range.

    Args:
        width: of the image.
        height: of the image.
        areas: a uniform number in [0, 1) for each attempt.
        ratios: likewise.
        row: a uniform number in [0, 1), for the place of the box.
        column: likewise.
    """
    for area, ratio in zip(areas, ratios, strict=True):
        pixels = width * height * (AREAS[0] + area * (AREAS[1] - AREAS[0]))
        shape = math.exp(math.log(RATIOS[0]) + ratio * (math.log(RATIOS[1]) - math.log(RATIOS[0])))
        across, down = round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))
        if 0 < across <= width and 0 < down <= height:
            left, top = math.floor(column * (width - across + 1)), math.floor(row * (height - down + 1))
            return Box(left, top, left + across, top + down)
    across, down = width, height
    if width / height < RATIOS[0]:
        down = round(width / RATIOS[0])
    elif width / height > RATIOS[1]:
        across = round(height * RATIOS[1])
    left, top = (width - across) // 2, (height - down) // 2
    return Box(left, top, left + across, top + down)


def resized(width: int, height: int, *, short: int) -> tuple[int, int]:
    """Width and height of Resize(short): the shorter side gets that length, the longer one follows, rounded down."""
    if width <= height:
        return short, int(short * height / width)
    return int(short * width / height), short


def central_box(width: int, height: int, *, side: int) -> Box:
    """The box of CenterCrop(side)."""
    left, top = round((width - side) / 2), round((height - side) / 2)
    return Box(left, top, left + side, top + side)
