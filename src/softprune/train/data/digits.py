"""Handwritten digits: 1,797 real 8x8 images that ship inside scikit-learn, so nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TRAIN_IMAGES = 1280


@dataclass(frozen=True)
class Digits:
    """Images [n, 1, 8, 8] in [0, 1] and labels 0 to 9, split once and for all by a fixed permutation."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_digits() -> Digits:
    """The digits, 1,280 for training and 517 for testing.

    Raises:
        ImportError: if scikit-learn is not installed, with the command that installs it.
    """
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
