"""CIFAR-10: 50,000 + 10,000 colour images of 32 x 32 pixels, ten classes.

Reference: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from softprune.train.data.augment import CropFlip, Normalise
from softprune.train.data.cifar_files import BINARY, PNG, PYTHON, TEST_FILE, TRAIN_FILES, Layout
from softprune.train.data.origin import missing
from softprune.train.data.samples import MemorySamples
from softprune.train.data.verification import Counts, check_labels

COUNTS = Counts(train=(5000,) * 10, test=(1000,) * 10)
LAYOUTS = (BINARY, PYTHON, PNG)
NORMALISE = Normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def read_cifar10(
    root: Path | None,
    *,
    augment: bool = True,
    normalise: Normalise = NORMALISE,
    layouts: Sequence[Layout] = LAYOUTS,
    counts: Counts = COUNTS,
) -> tuple[MemorySamples, MemorySamples]:
    """Training and test samples.

    Args:
        root: the folder with the six files, or the one above it; ``data`` without one.
        augment: move the training images by up to four pixels and mirror half of them.
        normalise: what makes floats of the pixels.
        layouts: how the files may be laid out, and their sums.
        counts: what they must contain, if they are not the official ones.
    """
    folder, layout = _find(root or Path("data"), layouts)
    train_images, train_labels = _read(folder, layout, TRAIN_FILES, counts.train)
    test_images, test_labels = _read(folder, layout, (TEST_FILE,), counts.test)
    change = CropFlip(pad=4, flip=True) if augment else None
    return (
        MemorySamples(train_images, train_labels, augment=change, normalise=normalise),
        MemorySamples(test_images, test_labels, normalise=normalise),
    )


def _find(root: Path, layouts: Sequence[Layout]) -> tuple[Path, Layout]:
    for layout in layouts:
        for folder in (root, root / layout.folder, root / "cifar10" / layout.folder):
            if any((folder / f"{file}{layout.suffix}").is_file() for file in (*TRAIN_FILES, TEST_FILE)):
                return folder, layout
    raise missing(root, "no files of cifar10 there", name="cifar10")


def _read(folder: Path, layout: Layout, files: Sequence[str], counts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    records = np.concatenate([layout.records(folder, file) for file in files])
    labels = torch.from_numpy(records[:, 0].astype(np.int64))
    check_labels(labels, counts, path=folder, name="cifar10")
    return torch.from_numpy(np.ascontiguousarray(records[:, 1:])).view(-1, 3, 32, 32), labels
