"""Google-12 from the official folder of wav files or from ready features."""

from __future__ import annotations

from pathlib import Path

from softprune.train.data.origin import missing
from softprune.train.data.samples import Augment
from softprune.train.data.sequence import Held, NormalisedSamples, Sequences, normalised
from softprune.train.data.speech_commands import COMMANDS, LABELS, NAME, Split, read_split
from softprune.train.data.speech_features import FILE, read_features
from softprune.train.data.verification import Counts, check_labels

# Classes as in LABELS; the ten words' own numbers are left to the files, which may be those of either version.
CLASSES = len(LABELS)


def read_google12(
    root: Path | None, *, held: Held = "test", augment: Augment | None = None, counts: Counts | None = None
) -> tuple[NormalisedSamples, NormalisedSamples]:
    """Training and test samples, normalised.

    Args:
        root: the folder with one folder for each word, the one above it, or the zip of ready features; ``data``
            without one.
        held: "test" for the clips of the testing speakers, "validation" for those of the validation speakers.
        augment: what is done to training clips.
        counts: how many clips of each class there must be; not checked by default.

    Raises:
        FileNotFoundError: if something is not there.
        ValueError: if something is not what it should be.
    """
    place = _find(root or Path("data"))
    parts: tuple[Split, Split] = ("training", "testing" if held == "test" else "validation")
    train, test = (_read(place, part) for part in parts)
    if counts is not None:
        check_labels(train.labels, counts.train, path=place, name=NAME)
        check_labels(test.labels, counts.test, path=place, name=NAME)
    return normalised(train, test, augment)


def _read(place: Path, split: Split) -> Sequences:
    return read_features(place, split) if place.is_file() else read_split(place, split)


def _find(root: Path) -> Path:
    if root.is_file() and root.suffix == ".zip":
        return root
    for folder in (root, root / "speech_commands", root / "train" / "audio"):
        if any((folder / word).is_dir() for word in COMMANDS):
            return folder
    for folder in (root, root / "speech_commands"):
        if (folder / FILE).is_file():
            return folder / FILE
    raise missing(root, f"neither folders of words nor {FILE} there", name=NAME)
