"""What a data set must contain: the number of samples of every class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from softprune.train.data.origin import damaged


@dataclass(frozen=True)
class Counts:
    """How many samples each class has.

    Args:
        train: one number for each class.
        test: one number for each class.
    """

    train: tuple[int, ...]
    test: tuple[int, ...]


def check_labels(labels: Tensor, counts: tuple[int, ...], *, path: Path, name: str) -> None:
    """Refuse labels that are not the data set's: also files of another one under the same names."""
    found = tuple(torch.bincount(labels).tolist())
    if found != counts:
        raise damaged(
            path, f"expected the labels 0 to {len(counts) - 1} to occur {counts} times, found {found}", name=name
        )
