"""Tables of the walk over output positions: tiles of vectors, and where their lanes are stored."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.runtime.grid import Grid

PIECE = np.dtype([("offset", "<i4"), ("residual", "<i4"), ("mask", "<u2"), ("more", "<u2")])
TILE = np.dtype([("vector", "<i4"), ("count", "<i4"), ("position", "<i8")])


@dataclass(frozen=True)
class Pieces:
    """The vectors that hold an output pixel, and the pieces in which they are stored."""

    vectors: NDArray[np.int64]
    pieces: NDArray[np.void]
    start: NDArray[np.int32]


def make_pieces(grid: Grid, out: NDArray[np.float32], residual: NDArray[np.float32] | None, *, width: int) -> Pieces:
    """Follow every output pixel from its position in the grid to its places in the output and the residual.

    Args:
        grid: the input's grid; position = image, row and column counted in it.
        out: the output as (images, channels, rows, columns) with columns side by side.
        residual: what is added, or None.
        width: lanes per vector.
    """
    images, _, rows, columns = out.shape
    index = np.arange(images)[:, None, None], np.arange(rows)[:, None], np.arange(columns)
    position = _places(index, (grid.image, grid.pitch, 1))
    target = _places(index, _steps(out))
    source = target if residual is None else _places(index, _steps(residual))
    vector, lane = position // width, position % width
    # A piece ends where the vector ends, where the lanes skip the halo between two rows, or where neighbours in the
    # grid are no neighbours in the output.
    key = np.stack([vector, target - lane, source - lane])
    ends = (np.diff(key, axis=1) != 0).any(axis=0) | (np.diff(position) != 1)
    first = np.flatnonzero(np.concatenate([[True], ends]))
    count = np.diff(np.append(first, len(position)))
    pieces = np.zeros(len(first), PIECE)
    pieces["offset"], pieces["residual"] = key[1, first], key[2, first]
    pieces["mask"] = ((1 << count) - 1) << lane[first]
    owner = vector[first]
    pieces["more"][:-1] = owner[1:] == owner[:-1]
    vectors, start = np.unique(owner, return_index=True)
    return Pieces(vectors, pieces, np.append(start, len(first)).astype(np.int32))


def _steps(array: NDArray[np.float32]) -> tuple[int, int, int]:
    return array.strides[0] // 4, array.strides[2] // 4, 1


def _places(index: tuple[NDArray[np.int64], ...], steps: tuple[int, int, int]) -> NDArray[np.int64]:
    total: NDArray[np.int64] = sum(i * step for i, step in zip(index, steps, strict=True))  # type: ignore[assignment]
    return total.reshape(-1)


def make_tiles(vectors: NDArray[np.int64], count: int, *, width: int) -> NDArray[np.void]:
    """Tiles of at most `count` neighbouring vectors, as equal as possible."""
    breaks = np.flatnonzero(np.diff(vectors) != 1) + 1
    rows = []
    for begin, end in zip([0, *breaks], [*breaks, len(vectors)], strict=True):
        tiles = -(-(end - begin) // count)
        edges = begin + np.arange(tiles + 1) * (end - begin) // tiles
        rows += [(a, b - a, vectors[a] * width) for a, b in pairwise(edges)]
    return np.array(rows, TILE)
