"""CIFAR-10: 50,000 + 10,000 colour images of 32 x 32 pixels, in any of the three layouts that it comes in.

Each layout is read to the same records: one label byte and 3,072 pixel bytes (the red, green and blue planes, row by
row), as in the official binary files. Every file is checked against a published sum.

Reference: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softprune.train.data.array_pickle import load_arrays
from softprune.train.data.augment import CropFlip, Normalise
from softprune.train.data.files import Counts, DamagedError, MissingError, check_labels, read_bounded, read_json
from softprune.train.data.image_folder import open_rgb
from softprune.train.data.source import MemorySamples

PIXELS = 3 * 32 * 32
IMAGES = 10_000  # of one file
# Of a pickle, which has the names of the images too.
MAX_BYTES = IMAGES * (1 + PIXELS) + (4 << 20)
MAX_LABELS = 1 << 20
TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILE = "test_batch"

Records = NDArray[np.uint8]  # [n, 1 + PIXELS]


@dataclass(frozen=True)
class Layout:
    folder: str  # what the official folder is called
    suffix: str  # of the file names
    algorithm: str  # of the sums
    sums: Mapping[str, str]  # of each file, or of its records where they are not in a file
    read: Callable[[Path, str, str], Records]  # of one file: path, algorithm, sum

    def records(self, folder: Path, file: str) -> Records:
        path = folder / f"{file}{self.suffix}"
        if not path.is_file():
            raise MissingError(f"{path}: the file is not there")
        return self.read(path, self.algorithm, self.sums[file])


def _check_sum(path: Path, content: bytes, algorithm: str, wanted: str) -> bytes:
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found != wanted:
        raise DamagedError(f"{path}: expected the {algorithm} sum {wanted}, found {found} of {len(content):,} bytes")
    return content


def _records(path: Path, pixels: Records, labels: object) -> Records:
    """Labels and pixels [n, PIXELS] side by side."""
    # Looked at one by one: a list of lists of lists may have more numbers than any array.
    numbers = labels if isinstance(labels, list) else []
    right = [label for label in numbers if type(label) is int and 0 <= label < 10]
    if not len(right) == len(numbers) == len(pixels):
        found = f"{len(right)} among {len(numbers)}"
        raise DamagedError(f"{path}: expected {len(pixels)} labels from 0 to 9, found {found}")
    return np.concatenate([np.array(right, np.uint8)[:, None], pixels], axis=1)


def _read_binary(path: Path, algorithm: str, wanted: str) -> Records:
    content = _check_sum(path, read_bounded(path, IMAGES * (1 + PIXELS)), algorithm, wanted)
    if len(content) % (1 + PIXELS):
        raise DamagedError(f"{path}: expected records of {1 + PIXELS} bytes, found {len(content):,} bytes")
    return np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)


def _read_python(path: Path, algorithm: str, wanted: str) -> Records:
    # The sum shows damage, not intent: whoever can change the file may know a way around it, so the reader is safe too.
    content = _check_sum(path, read_bounded(path, MAX_BYTES), algorithm, wanted)
    try:
        batch = load_arrays(content)
    except ValueError as error:
        raise DamagedError(f"{path}: {error}") from error
    pixels = batch.get(b"data") if isinstance(batch, dict) else None
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise DamagedError(f"{path}: expected uint8 data [n, {PIXELS}], found something else")
    return _records(path, pixels, batch.get(b"labels"))


def _read_png(path: Path, algorithm: str, wanted: str) -> Records:
    labels_path = path.parent / ("test_lables.json" if path.stem == TEST_FILE else "train_lables.json")
    if not labels_path.is_file():
        raise MissingError(f"{labels_path}: the file is not there")
    labels = read_json(labels_path, MAX_LABELS)
    image = np.asarray(open_rgb(path, pixels=IMAGES * PIXELS // 3))
    if image.shape[1:] != (PIXELS // 3, 3):
        raise DamagedError(f"{path}: expected {PIXELS // 3} pixels a row, one image each, found {image.shape}")
    pixels = image.transpose(0, 2, 1).reshape(len(image), -1)
    first = 0 if path.stem == TEST_FILE else TRAIN_FILES.index(path.stem) * len(image)
    labels = labels[first : first + len(image)] if isinstance(labels, list) else labels
    records = _records(path, pixels, labels)
    _check_sum(path, records.tobytes(), algorithm, wanted)
    return records


# Of the files of cifar-10-binary.tar.gz, as Apache MXNet publishes them.
_BINARY_SUMS = {
    "data_batch_1": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch": "67eb016db431130d61cd03c7ad570b013799c88c",
}
# Of the files of cifar-10-python.tar.gz, as torchvision publishes them.
_PYTHON_SUMS = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}

BINARY = Layout("cifar-10-batches-bin", ".bin", "sha1", _BINARY_SUMS, _read_binary)
PYTHON = Layout("cifar-10-batches-py", "", "md5", _PYTHON_SUMS, _read_python)
PNG = Layout("package", ".png", "sha1", _BINARY_SUMS, _read_png)

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
    """Training and test samples of the six files in ``root`` or a folder below it; ``data`` without one.

    ``augment`` moves the training images by up to four pixels and mirrors half of them.
    """
    folder, layout = _find(root or Path("data"), layouts)
    change = CropFlip(pad=4, flip=True) if augment else None
    return (
        MemorySamples(*_read(folder, layout, TRAIN_FILES, counts.train), augment=change, normalise=normalise),
        MemorySamples(*_read(folder, layout, (TEST_FILE,), counts.test), normalise=normalise),
    )


def _find(root: Path, layouts: Sequence[Layout]) -> tuple[Path, Layout]:
    for layout in layouts:
        for folder in (root, root / layout.folder, root / "cifar10" / layout.folder):
            if any((folder / f"{file}{layout.suffix}").is_file() for file in (*TRAIN_FILES, TEST_FILE)):
                return folder, layout
    raise MissingError(f"{root}: no files of cifar10 there")


def _read(folder: Path, layout: Layout, files: Sequence[str], counts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Images [n, 3, 32, 32] and labels [n]."""
    records = np.concatenate([layout.records(folder, file) for file in files])
    labels = torch.from_numpy(records[:, 0].astype(np.int64))
    check_labels(labels, counts, folder)
    return torch.from_numpy(np.ascontiguousarray(records[:, 1:])).view(-1, 3, 32, 32), labels
