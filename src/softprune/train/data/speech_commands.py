"""Google-12: one-second clips of Speech Commands in twelve classes, by the protocol of TensorFlow's tutorial.

Ten command words, ``_silence_`` and ``_unknown_`` (the other words), the last two a tenth of the ten words' clips each.
A speaker is in one split only: a hash of the speaker decides, as in the official lists.

Reference: P. Warden, "Speech Commands: a dataset for limited-vocabulary speech recognition", 2018.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from softprune.train.data.logmel import CLIP, FILTERS, FRAMES, front_padded, log_mel
from softprune.train.data.origin import damaged, missing
from softprune.train.data.randomness import Draws, Purpose
from softprune.train.data.sequence import Sequences
from softprune.train.data.wav import RATE, read_wav

NAME = "google12"
SILENCE, UNKNOWN = "_silence_", "_unknown_"
COMMANDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
LABELS = (SILENCE, UNKNOWN, *COMMANDS)
OTHERS = (
    *("bed", "bird", "cat", "dog", "eight", "five", "four", "happy", "house", "marvin", "nine", "one", "seven"),
    *("sheila", "six", "three", "tree", "two", "wow", "zero"),
    *("backward", "follow", "forward", "learn", "visual"),  # of version 2
)
NOISE = "_background_noise_"
SHARE = 0.1
"""Silent and unknown clips, each as a share of the ten words' clips."""

# Samples, ten minutes; the official files have a minute and a half at most.
LONGEST_NOISE = 10 * 60 * RATE

Split: TypeAlias = Literal["training", "validation", "testing"]
_SEEDS = {"training": 20200601, "validation": 20200602, "testing": 20200603}
# Clips whose features are made at once.
_PIECE = 256


def split_of(file: str) -> Split:
    """The split of a clip by its speaker, the part of the name before ``_nohash_``: about 80, 10 and 10 %.

    >>> split_of("00176480_nohash_0.wav") == split_of("00176480_nohash_1.wav")
    True
    """
    speaker = file.rpartition("/")[2].partition("_nohash_")[0]
    most = 2**27 - 1
    percent = int(hashlib.sha1(speaker.encode(), usedforsecurity=False).hexdigest(), 16) % (most + 1) * (100 / most)
    if percent < 10:
        return "validation"
    return "testing" if percent < 20 else "training"


@dataclass(frozen=True)
class Clips:
    """The clips of one split, before any is read.

    Args:
        files: of spoken words.
        labels: of the files.
        silent: how many silent clips come after them.
    """

    files: tuple[Path, ...]
    labels: tuple[int, ...]
    silent: int


def list_clips(root: Path, split: Split) -> Clips:
    """Which clips a split has: all of the ten words, and of the others the first ones by a hash of their path.

    Args:
        root: the folder with one folder for each word.
        split: which part.

    Raises:
        FileNotFoundError: if a command word or the noise is not there.
        ValueError: for a folder of clips that is no word of the data set, or a split without a clip.
    """
    folders = {path.name: path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")}
    for word in (*COMMANDS, NOISE):
        if word not in folders:
            raise missing(root / word, "the folder is not there", name=NAME)
    strange = [n for n in folders if n not in (*COMMANDS, *OTHERS, NOISE) and any(folders[n].glob("*.wav"))]
    if strange:
        raise damaged(root / strange[0], "expected the folder of a word of the data set, found another name", name=NAME)
    commands = [path for word in COMMANDS for path in _clips(folders[word], split)]
    if not commands:
        raise damaged(root, f"expected clips for {split}, found none", name=NAME)
    wanted = int(np.ceil(SHARE * len(commands)))
    others = [path for word in OTHERS if word in folders for path in _clips(folders[word], split)]
    others.sort(key=lambda path: hashlib.sha1(f"{path.parent.name}/{path.name}".encode()).hexdigest())
    files = (*commands, *others[:wanted])
    labels = tuple(LABELS.index(p.parent.name) if p.parent.name in COMMANDS else LABELS.index(UNKNOWN) for p in files)
    return Clips(files, labels, silent=wanted)


def read_split(root: Path, split: Split) -> Sequences:
    """The features of a split, not normalised: float32 [n, 99, 32] and labels as in `LABELS`.

    Args:
        root: the folder with one folder for each word.
        split: which part.

    Raises:
        FileNotFoundError: if something is missing.
        ValueError: if something is not what it should be, such as a clip of another sample rate.
    """
    clips = list_clips(root, split)
    values = torch.empty(len(clips.files) + clips.silent, FRAMES, FILTERS)
    for first in range(0, len(clips.files), _PIECE):
        piece = clips.files[first : first + _PIECE]
        samples = [front_padded(torch.from_numpy(read_wav(path, name=NAME, longest=CLIP))) for path in piece]
        values[first : first + len(piece)] = log_mel(torch.stack(samples))
    for at, clip in enumerate(_silence(root / NOISE, clips.silent, split), len(clips.files)):
        values[at] = log_mel(clip[None])[0]
    return Sequences(values, torch.tensor([*clips.labels, *[LABELS.index(SILENCE)] * clips.silent]))


def _clips(folder: Path, split: Split) -> list[Path]:
    found = sorted(folder.glob("*.wav"))
    if not found:
        raise damaged(folder, "expected wav files, found none", name=NAME)
    return [path for path in found if split_of(path.name) == split]


def _silence(folder: Path, count: int, split: Split) -> list[Tensor]:
    """Seconds of noise from a file, at a place and with a volume that are functions of the split and the number."""
    paths = sorted(folder.glob("*.wav"))
    if not paths:
        raise damaged(folder, "expected wav files, found none", name=NAME)
    noises = [torch.from_numpy(read_wav(path, name=NAME, longest=LONGEST_NOISE)) for path in paths]
    for path, noise in zip(paths, noises, strict=True):
        if len(noise) < CLIP:
            raise damaged(path, f"expected at least {CLIP} samples of noise, found {len(noise)}", name=NAME)
    draws, numbers = Draws(_SEEDS[split], epoch=0), torch.arange(count)
    which = draws.integers(numbers, Purpose.NOISE, below=len(noises)).tolist()
    places, volumes = draws.floats(numbers, Purpose.PLACE).tolist(), draws.floats(numbers, Purpose.VOLUME).tolist()
    clips = []
    for noise, place, volume in zip((noises[k] for k in which), places, volumes, strict=True):
        start = int(place * (len(noise) - CLIP + 1))
        clips.append((noise[start : start + CLIP] * volume).trunc())
    return clips
