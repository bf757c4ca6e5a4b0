"""Handwritten digits, 1,797 grey images of 8 x 8 pixels that ship inside scikit-learn; and MNIST and Fashion-MNIST,
60,000 + 10,000 grey images of 28 x 28 pixels in idx files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from softprune.train.data.augment import CropFlip, Normalise
from softprune.train.data.files import Counts, MissingError, check_labels, read_idx
from softprune.train.data.source import MemorySamples

TRAIN_IMAGES, TEST_IMAGES = 1280, 517
SIDE = 28  # of MNIST's images


@dataclass(frozen=True)
class Digits:
    """Images [n, 1, 8, 8] in [0, 1] and labels 0 to 9, split once and for all by a fixed permutation."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_digits() -> Digits:
    """The digits, 1,280 for training and 517 for testing."""
    try:
        from sklearn.datasets import load_digits as embedded
    except ImportError as error:
        raise ImportError("the digits ship with scikit-learn: pip install 'softprune[digits]'") from error
    pixels, labels = embedded(return_X_y=True)
    images = torch.from_numpy(pixels).float().div(16).view(-1, 1, 8, 8)
    targets = torch.from_numpy(labels).long()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, targets = images[order], targets[order]
    return Digits(images[:TRAIN_IMAGES], targets[:TRAIN_IMAGES], images[TRAIN_IMAGES:], targets[TRAIN_IMAGES:])


def read_digits() -> tuple[MemorySamples, MemorySamples]:
    found = load_digits()
    return MemorySamples(found.train_images, found.train_labels), MemorySamples(found.test_images, found.test_labels)


@dataclass(frozen=True)
class IdxSet:
    name: str  # for messages
    counts: Counts  # of each class; they tell the two data sets apart, whose files have the same names
    normalise: Normalise  # mean and deviation of the 60,000 training images
    flip: bool  # whether a mirrored image is still of its class
    folders: tuple[str, ...]  # where to look for the files below the root
    installed: Path | None = None  # where a system package puts them


MNIST = IdxSet(
    "mnist",
    Counts(
        train=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        test=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    ),
    Normalise((0.1307,), (0.3081,)),
    flip=False,
    folders=("", "mnist", "MNIST/raw"),
)
FASHION_MNIST = IdxSet(
    "fashion-mnist",
    Counts(train=(6000,) * 10, test=(1000,) * 10),
    Normalise((0.2860,), (0.3530,)),
    flip=True,
    folders=("", "fashion-mnist", "FashionMNIST/raw"),
    installed=Path("/usr/share/datasets/fashion-mnist"),
)


def read_mnist(
    about: IdxSet, root: Path | None, *, augment: bool = True, counts: Counts | None = None
) -> tuple[MemorySamples, MemorySamples]:
    """Training and test samples of the files in ``root``; without one in ``data``, or where the system has them.

    ``augment`` moves the training images by up to four pixels, and mirrors those of Fashion-MNIST. ``counts`` of each
    class are by default the official ones.
    """
    folder, counts = _folder(about, root), counts or about.counts
    change = CropFlip(pad=4, flip=about.flip) if augment else None
    return (
        MemorySamples(*_read(folder, "train", counts.train), augment=change, normalise=about.normalise),
        MemorySamples(*_read(folder, "t10k", counts.test), normalise=about.normalise),
    )


def _folder(about: IdxSet, root: Path | None) -> Path:
    top = root or Path("data")
    places = [top / folder for folder in about.folders]
    if root is None and about.installed is not None:
        places.append(about.installed)
    for place in places:
        if any(place.glob("*-idx[13]-ubyte*")):
            return place
    raise MissingError(f"{top}: no idx files of {about.name} there")


def _read(folder: Path, part: str, counts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    images = read_idx(_file(folder / f"{part}-images-idx3-ubyte"), (sum(counts), SIDE, SIDE))
    path = _file(folder / f"{part}-labels-idx1-ubyte")
    labels = read_idx(path, (sum(counts),)).long()
    check_labels(labels, counts, path)
    return images.unsqueeze(1), labels


def _file(path: Path) -> Path:
    for each in (path, path.with_name(f"{path.name}.gz")):
        if each.is_file():
            return each
    raise MissingError(f"{path}: neither this file nor the same with .gz is there")
