"""Progress: how far a convolution is, so that the next one of a chain knows what it may read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]


@dataclass(frozen=True)
class Progress:
    """How far a convolution is after each of its tiles, in rows of all images.

    Attributes:
        done: rows of the output that are complete.
        needed: rows of the input that were read.
    """

    done: Longs
    needed: Longs
