"""HAR-2: windows of a phone's accelerometer and gyroscope, 9 signals of 128 steps, six activities in two classes.

Reference: D. Anguita et al., "A public domain dataset for human activity recognition using smartphones", ESANN 2013.
The two classes are those of FastGRNN (Kusupati et al., 2018).
"""

from __future__ import annotations

import io
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softprune.train.data.files import Counts, Member, Place, check_labels, damaged, missing, open_regular, read_bounded
from softprune.train.data.source import Augment, Held, NormalisedSamples, Sequences, normalised

NAME = "har2"
FOLDER = "UCI HAR Dataset"
STEPS = 128
SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
# Activities: 1 walking, 2 upstairs, 3 downstairs, 4 sitting, 5 standing, 6 laying.
CLASS_OF = {2: 0, 4: 0, 6: 0, 1: 1, 3: 1, 5: 1}
COUNTS = Counts(train=(3766, 3586), test=(1499, 1448))
# Of the sorted subjects of the training set each fifth one is kept for validation: 4 of 21.
VALIDATION = slice(4, None, 5)

# Characters of a number and what stands between two; the official files have 16.
MAX_WIDTH = 32
# The zip in the official zip, which has 61 MB.
MAX_INNER = 128 << 20
SUBJECTS = 30


@dataclass(frozen=True)
class _Part:
    sequences: Sequences
    subjects: Tensor


def read_har2(
    root: Path | None, *, held: Held = "test", augment: Augment | None = None, counts: Counts = COUNTS
) -> tuple[NormalisedSamples, NormalisedSamples]:
    """Training and test samples, normalised.

    Args:
        root: the official zip, the unpacked folder, or the folder that one of them is in; ``data`` without one.
        held: "test" trains on all 21 training subjects; "validation" keeps four of them to test on.
        augment: what is done to training windows.
        counts: what the files must contain, if they are not the official ones.

    Raises:
        FileNotFoundError: if a file is not there.
        ValueError: if a file is not what it should be.
    """
    top = _find(root or Path("data"))
    train = _read(top, "train", counts.train)
    if held == "test":
        return normalised(train.sequences, _read(top, "test", counts.test).sequences, augment)
    kept = torch.isin(train.subjects, train.subjects.unique()[VALIDATION])
    if not kept.any():
        raise ValueError(f"{top}: {len(train.subjects.unique())} training subjects are too few to keep a fifth of them")
    return normalised(train.sequences.at(~kept), train.sequences.at(kept), augment)


def _find(root: Path) -> Place:
    for folder in (root, root / FOLDER, root / "uci_har" / FOLDER):
        if (folder / "train").is_dir() and any((folder / "train").glob("y_*.txt")):
            return folder
    for path in (root, root / f"{FOLDER}.zip", root / "uci_har" / f"{FOLDER}.zip"):
        if path.suffix == ".zip" and path.is_file():
            return _inside(path)
    raise missing(root, "no files of har2 there", name=NAME)


def _inside(path: Path) -> Member:
    try:
        archive = zipfile.ZipFile(open_regular(path, name=NAME))
        archive.filename = str(path)  # for the messages
        # What the repository hands out is a zip in a zip.
        inner = Member(archive, f"{FOLDER}.zip")
        if inner.is_file():
            content = read_bounded(inner, MAX_INNER, name=NAME, kind="zip file")
            archive = zipfile.ZipFile(io.BytesIO(content))
            archive.filename = str(path)
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError) as error:
        raise damaged(path, f"expected a whole zip file, found: {error}", name=NAME) from error
    if not any(name.startswith(f"{FOLDER}/") for name in archive.namelist()):
        raise damaged(path, f"expected the folder {FOLDER!r} in the zip, found none", name=NAME)
    return Member(archive, FOLDER)


def _read(top: Place, part: str, counts: tuple[int, ...]) -> _Part:
    folder, rows = top / part, sum(counts)
    path = folder / f"y_{part}.txt"
    labels = torch.tensor([CLASS_OF[activity] for activity in _codes(path, rows, len(CLASS_OF), "labels").tolist()])
    check_labels(labels, counts, path=_named(path), name=NAME)
    subjects = torch.from_numpy(_codes(folder / f"subject_{part}.txt", rows, SUBJECTS, "subjects"))
    signals = folder / "Inertial Signals"
    columns = [_numbers(signals / f"{signal}_{part}.txt", rows * STEPS).reshape(rows, STEPS) for signal in SIGNALS]
    return _Part(Sequences(torch.from_numpy(np.stack(columns, 2)), labels), subjects)


def _named(place: Place) -> Path:
    return Path(str(place))


def _codes(place: Place, count: int, most: int, what: str) -> NDArray[np.int64]:
    """Whole numbers from 1 on."""
    found = _numbers(place, count)
    wrong = found[(found != np.trunc(found)) | (found < 1) | (found > most)]
    if len(wrong):
        raise damaged(_named(place), f"expected the {what} 1 to {most}, found {wrong[0]:g}", name=NAME)
    return found.astype(np.int64)


def _numbers(place: Place, count: int) -> NDArray[np.float32]:
    """All numbers of a text file; another number of them, or anything else in it, is refused."""
    if not place.is_file():
        raise missing(_named(place), "the file is not there", name=NAME)
    content = read_bounded(place, MAX_WIDTH * count, name=NAME, kind="text file")
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError as error:
        raise damaged(_named(place), f"expected a text file, found: {error}", name=NAME) from error
    found = _parsed(text)
    if len(found) != count or not np.isfinite(found).all():
        problem = f"expected {count:,} numbers, found {len(found):,} up to the first that is none"
        raise damaged(_named(place), problem, name=NAME)
    return found


def _parsed(text: str) -> NDArray[np.float32]:
    """The numbers up to the first that is none; nothing where NumPy does not give these."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # older releases stop there, newer ones raise
        try:
            return np.fromstring(text, np.float32, sep=" ")
        except ValueError:
            return np.empty(0, np.float32)
