"""Random changes of training samples, whole batches at once, and the random numbers that decide them.

A generator with a state gives a sample other numbers when the batch, the number of worker processes or of ranks
changes. Here each number is a pure function of (seed, epoch, sample index, purpose), by SplitMix64: position i of the
stream that starts at k is

    mix(k + (i + 1) * GAMMA)

with 64-bit arithmetic that wraps. Seed, epoch and purpose are absorbed one after the other, each as the position in
the stream that starts at the value before; the last position is the sample index, for a whole tensor at once.

Reference: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Purpose(IntEnum):
    """What a number is for. The values are part of every result: new purposes get new numbers, none is reused."""

    ORDER = 0
    ROW = 1
    COLUMN = 2
    FLIP = 3
    LOADER = 4
    NOISE = 5
    PLACE = 6
    VOLUME = 7
    AXIS_HEIGHT = 8
    AXIS_TURN = 9
    ANGLE = 10
    MOMENT = 11
    CROP_AREA = 100  # to 109, one for each attempt
    CROP_RATIO = 200  # to 209


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MULTIPLIERS = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))


def _step(position: int) -> int:
    return _signed((position + 1) * _GAMMA)


def _shifted(x: Tensor, by: int) -> Tensor:
    # torch shifts int64 with its sign; SplitMix64 shifts zeros in.
    return (x >> by) & (2 ** (64 - by) - 1)


def mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser, a bijection of int64 in which every input bit reaches every output bit."""
    x = (x ^ _shifted(x, 30)) * _MULTIPLIERS[0]
    x = (x ^ _shifted(x, 27)) * _MULTIPLIERS[1]
    return x ^ _shifted(x, 31)


@dataclass(frozen=True)
class Draws:
    """The random numbers of one epoch; seed and epoch are any integers.

    Example:
        >>> draws = Draws(seed=0, epoch=3)
        >>> few, more = torch.tensor([7]), torch.tensor([5, 6, 7])
        >>> bool(draws.floats(few, Purpose.FLIP) == draws.floats(more, Purpose.FLIP)[2])
        True
    """

    seed: int
    epoch: int

    @cached_property
    def _key(self) -> Tensor:
        key = torch.zeros((), dtype=torch.int64)
        for value in (self.seed, self.epoch):
            key = mix(key + _step(value))
        return key

    def bits(self, indices: Tensor, purpose: int) -> Tensor:
        """64 random bits for each index, as int64 of the same shape."""
        key = mix(self._key + _step(purpose))
        return mix(key + (indices + 1) * _GAMMA)

    def floats(self, indices: Tensor, purpose: int) -> Tensor:
        """Uniform in [0, 1), float64, multiples of 2^-53."""
        return _shifted(self.bits(indices, purpose), 11).double() * 2.0**-53

    def integers(self, indices: Tensor, purpose: int, *, below: int) -> Tensor:
        """Uniform in 0 to ``below - 1``, int64; ``below`` is at most 2^31, where the bias is under 2^-31."""
        return (_shifted(self.bits(indices, purpose), 32) * below) >> 32

    def order(self, count: int) -> Tensor:
        """A permutation of 0 to ``count - 1``: the indices sorted by their random bits."""
        return self.bits(torch.arange(count), Purpose.ORDER).argsort(stable=True)


@dataclass(frozen=True)
class CropFlip:
    """Pad with black, cut out a window of the old size at a random place, and mirror every second image."""

    pad: int  # pixels on each side, so that the image moves by at most that much
    flip: bool  # mirror left and right with probability one half; wrong for digits

    def __call__(self, images: Tensor, indices: Tensor, *, draws: Draws) -> Tensor:
        """Images [n, c, h, w] of the samples ``indices`` [n], augmented."""
        # Everything is index_select on whole rows or images: it copies blocks, where advanced indexing and torch.where
        # go byte by byte, five times slower.
        places = 2 * self.pad + 1
        rows = draws.integers(indices, Purpose.ROW, below=places)
        columns = draws.integers(indices, Purpose.COLUMN, below=places)
        images = _windows(F.pad(images, (self.pad,) * 4), rows, columns, size=images.shape[2:])
        if not self.flip:
            return images
        return flipped(images, draws.integers(indices, Purpose.FLIP, below=2), dim=3)


def flipped(images: Tensor, chosen: Tensor, *, dim: int) -> Tensor:
    """Images reversed along ``dim`` where ``chosen`` [n] is 1, unchanged where it is 0."""
    count = len(images)
    return torch.cat([images, images.flip(dim)]).index_select(0, torch.arange(count) + count * chosen)


def _windows(padded: Tensor, rows: Tensor, columns: Tensor, *, size: Sequence[int]) -> Tensor:
    """From each image [n, c, H, W] the window of ``size`` whose upper left corner is at (row, column)."""
    count, channels, height, width = padded.shape
    planes = torch.arange(count * channels).view(count, channels, 1) * height
    first_pixels = (planes + rows.view(-1, 1, 1) + torch.arange(size[0])) * width + columns.view(-1, 1, 1)
    # Row i of this view is the pixels i to i + w - 1 of all images in one line; it copies nothing.
    lines = padded.view(-1).as_strided((max(padded.numel() - size[1] + 1, 0), size[1]), (1, 1))
    return lines.index_select(0, first_pixels.view(-1)).view(count, channels, *size)


@dataclass(frozen=True)
class Normalise:
    """Bytes to floats: (x / 255 - mean) / std, with mean and deviation of each channel over the training images."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 [n, c, h, w] to float32 of the same shape."""
        mean, std = torch.tensor(self.mean).view(-1, 1, 1), torch.tensor(self.std).view(-1, 1, 1)
        return images.to(torch.float32, memory_format=torch.contiguous_format).mul_(1 / (255 * std)).sub_(mean / std)


# Which part of a photograph is cut out, and to what size it goes: torchvision's definitions, in whole pixels.
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
    Areas and ratios (one for each attempt), row and column are uniform numbers in [0, 1).
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
    return (short, int(short * height / width)) if width <= height else (int(short * width / height), short)


def central_box(width: int, height: int, *, side: int) -> Box:
    """The box of CenterCrop(side)."""
    left, top = round((width - side) / 2), round((height - side) / 2)
    return Box(left, top, left + side, top + side)


@dataclass(frozen=True)
class Rotation:
    """Turn the signals of each sequence as if the device had been worn a little differently.

    The features are triples (x, y, z), all turned alike, about an axis of any direction, by an angle that is uniform
    up to ``degrees``.
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
    """Move each sequence in time by up to ``steps``; its first or last step is repeated where nothing is left."""

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
