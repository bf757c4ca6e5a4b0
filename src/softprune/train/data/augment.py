"""Augmentation and normalisation of whole batches of small images, without a loop over the samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from softprune.train.data.randomness import Draws, Purpose


@dataclass(frozen=True)
class CropFlip:
    """Pad with black, cut out a window of the old size at a random place, and mirror every second image.

    Args:
        pad: pixels on each side, so that the image moves by at most that much.
        flip: mirror left and right with probability one half; wrong for digits.
    """

    pad: int
    flip: bool

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
    """Those images reversed along ``dim`` for which ``chosen`` [n] is 1, the others, with 0, as they are."""
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
    """Bytes to floats: (x / 255 - mean) / std for each channel.

    Args:
        mean: of each channel over the training images, in [0, 1].
        std: deviation of each channel.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 [n, c, h, w] to float32 of the same shape."""
        mean, std = torch.tensor(self.mean).view(-1, 1, 1), torch.tensor(self.std).view(-1, 1, 1)
        return images.to(torch.float32, memory_format=torch.contiguous_format).mul_(1 / (255 * std)).sub_(mean / std)
