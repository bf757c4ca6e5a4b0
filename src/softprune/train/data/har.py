"""HAR-2: windows of a phone's accelerometer and gyroscope, 9 signals of 128 steps, six activities in two classes.

Reference: D. Anguita et al., "A public domain dataset for human activity recognition using smartphones", ESANN 2013.
The two classes are those of FastGRNN (Kusupati et al., 2018).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softprune.train.data.files import (
    Counts,
    DamagedError,
    DataPath,
    MissingError,
    check_labels,
    open_zip,
    read_bounded,
)
from softprune.train.data.source import Augment, Held, MemorySamples, Sequences, normalised

FOLDER = "UCI HAR Dataset"
STEPS = 128
SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
# Activities: 1 walking, 2 upstairs, 3 downstairs, 4 sitting, 5 standing, 6 laying.
CLASS_OF = {2: 0, 4: 0, 6: 0, 1: 1, 3: 1, 5: 1}
COUNTS = Counts(train=(3766, 3586), test=(1499, 1448))
# Of the sorted subjects of the training set each fifth one is kept for validation: 4 of 21.
VALIDATION = slice(4, None, 5)

MAX_WIDTH = 32  # characters of a number and what stands between two; the official files have 16
MAX_INNER = 128 << 20  # bytes of the zip in the official zip, which has 61 MB
SUBJECTS = 30


def read_har2(
    root: Path | None, *, held: Held = "test", augment: Augment | None = None, counts: Counts = COUNTS
) -> tuple[MemorySamples, MemorySamples]:
    """Training and test samples, normalised.

    ``root`` is the official zip, the unpacked folder, or the folder that one of them is in; ``data`` without one.
    ``held="test"`` trains on all 21 training subjects, "validation" keeps four of them to test on.
    """
    with _opened(root or Path("data")) as top:
        train, subjects = _read(top, "train", counts.train)
        if held == "test":
            return normalised(train, _read(top, "test", counts.test)[0], augment)
    kept = torch.isin(subjects, subjects.unique()[VALIDATION])
    if not kept.any():
        raise ValueError(f"{top}: {len(subjects.unique())} training subjects are too few to keep a fifth of them")
    return normalised(train.at(~kept), train.at(kept), augment)


@contextmanager
def _opened(root: Path) -> Iterator[DataPath]:
    """The official folder, on the disk or in a zip."""
    for folder in (root, root / FOLDER, root / "uci_har" / FOLDER):
        if (folder / "train").is_dir() and any((folder / "train").glob("y_*.txt")):
            yield folder
            return
    for path in (root, root / f"{FOLDER}.zip", root / "uci_har" / f"{FOLDER}.zip"):
        if path.suffix == ".zip" and path.is_file():
            with open_zip(path) as outer:
                inner = outer / f"{FOLDER}.zip"  # what the repository hands out is a zip in a zip
                with open_zip(inner, MAX_INNER) if inner.is_file() else nullcontext(outer) as top:
                    if not any(name.startswith(f"{FOLDER}/") for name in top.archive.namelist()):
                        raise DamagedError(f"{path}: expected the folder {FOLDER!r} in the zip, found none")
                    yield top / FOLDER
            return
    raise MissingError(f"{root}: no files of har2 there")


def _read(top: DataPath, part: str, counts: tuple[int, ...]) -> tuple[Sequences, Tensor]:
    """The windows of a part, and the subject of each."""
    folder, rows = top / part, sum(counts)
    path = folder / f"y_{part}.txt"
    labels = torch.tensor([CLASS_OF[activity] for activity in _codes(path, rows, len(CLASS_OF), "labels").tolist()])
    check_labels(labels, counts, path)
    subjects = torch.from_numpy(_codes(folder / f"subject_{part}.txt", rows, SUBJECTS, "subjects"))
    signals = folder / "Inertial Signals"
    columns = [_numbers(signals / f"{signal}_{part}.txt", rows * STEPS).reshape(rows, STEPS) for signal in SIGNALS]
    return Sequences(torch.from_numpy(np.stack(columns, 2)), labels), subjects


def _codes(path: DataPath, count: int, most: int, what: str) -> NDArray[np.int64]:
    """The `count` whole numbers of a file, each from 1 to `most`; anything else is refused."""
    found = _numbers(path, count)
    wrong = found[(found != np.trunc(found)) | (found < 1) | (found > most)]
    if len(wrong):
        raise DamagedError(f"{path}: expected the {what} 1 to {most}, found {wrong[0]:g}")
    return found.astype(np.int64)


def _numbers(path: DataPath, count: int) -> NDArray[np.float32]:
    """All numbers of a text file; another number of them, or anything else in it, is refused."""
    if not path.is_file():
        raise MissingError(f"{path}: the file is not there")
    try:
        text = read_bounded(path, MAX_WIDTH * count, "text file").decode("ascii")
    except UnicodeDecodeError as error:
        raise DamagedError(f"{path}: expected a text file, found: {error}") from error
    with warnings.catch_warnings():
        # Where a number ends in something else, older releases of NumPy stop with a warning, newer ones raise.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            found = np.fromstring(text, np.float32, sep=" ")
        except ValueError:
            found = np.empty(0, np.float32)
    if len(found) != count or not np.isfinite(found).all():
        raise DamagedError(f"{path}: expected {count:,} numbers, found {len(found):,} up to the first that is not one")
    return found
