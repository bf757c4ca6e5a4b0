"""Google-12: one-second clips of Speech Commands in twelve classes, as log-mel features.

Ten command words, ``_silence_`` and ``_unknown_`` (the other words), the last two a tenth of the ten words' clips each,
by the protocol of TensorFlow's tutorial. A speaker is in one split only: a hash of the speaker decides, as in the
official lists. Features say how loud a clip is in 32 bands of frequency, a hundred times a second; they are defined as
in the package python_speech_features with a Hamming window, which FastGRNN's authors used.

Reference: P. Warden, "Speech Commands: a dataset for limited-vocabulary speech recognition", 2018.
"""

from __future__ import annotations

import csv
import hashlib
import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from softprune.train.data.augment import Draws, Purpose
from softprune.train.data.files import (
    RATE,
    DamagedError,
    MissingError,
    ZipEntry,
    open_zip,
    read_bounded,
    read_json,
    read_wav,
)
from softprune.train.data.image_folder import open_grey
from softprune.train.data.source import Augment, Held, MemorySamples, Sequences, normalised

CLIP = RATE
WINDOW, HOP, FFT = 400, 160, 512  # 25 ms, 10 ms
FRAMES, FILTERS = 99, 32
EMPHASIS = 0.97
FLOOR = 1e-10  # gives silence a finite logarithm


def log_mel(clips: Tensor) -> Tensor:
    """The features, float32 [n, 99, 32], of clips of one second, [n, 16000], on the scale of 16-bit integers.

    >>> log_mel(torch.zeros(1, 16000)).shape
    torch.Size([1, 99, 32])
    """
    if clips.dim() != 2 or clips.shape[1] != CLIP:
        raise ValueError(f"clips are [n, {CLIP}]; got {tuple(clips.shape)}")
    clips = clips.double()
    sharp = torch.cat([clips[:, :1], clips[:, 1:] - EMPHASIS * clips[:, :-1]], 1)
    frames = F.pad(sharp, (0, (FRAMES - 1) * HOP + WINDOW - CLIP)).unfold(1, WINDOW, HOP)
    window = torch.hamming_window(WINDOW, periodic=False, dtype=torch.float64)
    power = torch.fft.rfft(frames * window, n=FFT).abs().square() / FFT
    bands = power @ _filters().T
    # The package puts a tiny number in the place of an exact zero; it vanishes beside the floor.
    return (bands + FLOOR).log().float()


def front_padded(samples: Tensor) -> Tensor:
    """A clip of at most a second with zeros in front, so that it is one second long."""
    return F.pad(samples, (CLIP - len(samples), 0))


@cache
def _filters() -> Tensor:
    """Triangles [filters, bins] between neighbouring points that are equally far apart in mel."""
    top = 2595 * torch.log10(torch.tensor(1 + RATE / 2 / 700, dtype=torch.float64))
    mel = torch.linspace(0, 1, FILTERS + 2, dtype=torch.float64) * top
    hertz = 700 * (10 ** (mel / 2595) - 1)
    edges = ((FFT + 1) * hertz / RATE).floor()
    left, middle, right = (edges[k : k + FILTERS, None] for k in range(3))
    bins = torch.arange(FFT // 2 + 1, dtype=torch.float64)
    rising = (bins - left) / (middle - left)
    falling = (right - bins) / (right - middle)
    up, down = (bins >= left) & (bins < middle), (bins >= middle) & (bins < right)
    return torch.where(up, rising, 0.0) + torch.where(down, falling, 0.0)


SILENCE, UNKNOWN = "_silence_", "_unknown_"
COMMANDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
LABELS = (SILENCE, UNKNOWN, *COMMANDS)
OTHERS = (
    *("bed", "bird", "cat", "dog", "eight", "five", "four", "happy", "house", "marvin", "nine", "one", "seven"),
    *("sheila", "six", "three", "tree", "two", "wow", "zero"),
    *("backward", "follow", "forward", "learn", "visual"),  # of version 2
)
NOISE = "_background_noise_"
SHARE = 0.1  # of the ten words' clips: so many silent ones, and so many unknown ones
LONGEST_NOISE = 10 * 60 * RATE  # samples, ten minutes; the official files have a minute and a half at most

Split: TypeAlias = Literal["training", "validation", "testing"]
_SEEDS = {"training": 20200601, "validation": 20200602, "testing": 20200603}
_PIECE = 256  # clips whose features are made at once


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
    """The clips of one split, before any is read: files of spoken words, then the silent clips."""

    files: tuple[Path, ...]
    labels: tuple[int, ...]
    silent: int


def list_clips(root: Path, split: Split) -> Clips:
    """Which clips a split has: all of the ten words, and of the others the first ones by a hash of their path."""
    folders = {path.name: path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")}
    for word in (*COMMANDS, NOISE):
        if word not in folders:
            raise MissingError(f"{root / word}: the folder is not there")
    strange = [n for n in folders if n not in (*COMMANDS, *OTHERS, NOISE) and any(folders[n].glob("*.wav"))]
    if strange:
        wanted = "the folder of a word of the data set"
        raise DamagedError(f"{root / strange[0]}: expected {wanted}, found another name")
    commands = [path for word in COMMANDS for path in _clips(folders[word], split)]
    if not commands:
        raise DamagedError(f"{root}: expected clips for {split}, found none")
    share = int(np.ceil(SHARE * len(commands)))
    others = [path for word in OTHERS if word in folders for path in _clips(folders[word], split)]
    others.sort(key=lambda path: hashlib.sha1(f"{path.parent.name}/{path.name}".encode()).hexdigest())
    files = (*commands, *others[:share])
    labels = tuple(LABELS.index(p.parent.name) if p.parent.name in COMMANDS else LABELS.index(UNKNOWN) for p in files)
    return Clips(files, labels, silent=share)


def read_split(root: Path, split: Split) -> Sequences:
    """The features of a split, not normalised: float32 [n, 99, 32] and labels as in `LABELS`."""
    clips = list_clips(root, split)
    values = torch.empty(len(clips.files) + clips.silent, FRAMES, FILTERS)
    for first in range(0, len(clips.files), _PIECE):
        piece = clips.files[first : first + _PIECE]
        samples = [front_padded(torch.from_numpy(read_wav(path, longest=CLIP))) for path in piece]
        values[first : first + len(piece)] = log_mel(torch.stack(samples))
    for at, clip in enumerate(_silence(root / NOISE, clips.silent, split), len(clips.files)):
        values[at] = log_mel(clip[None])[0]
    return Sequences(values, torch.tensor([*clips.labels, *[LABELS.index(SILENCE)] * clips.silent]))


def _wav_files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.wav"))
    if not found:
        raise DamagedError(f"{folder}: expected wav files, found none")
    return found


def _clips(folder: Path, split: Split) -> list[Path]:
    return [path for path in _wav_files(folder) if split_of(path.name) == split]


def _silence(folder: Path, count: int, split: Split) -> list[Tensor]:
    """Seconds of noise from a file, at a place and with a volume that are functions of the split and the number."""
    noises = []
    for path in _wav_files(folder):
        noises.append(torch.from_numpy(read_wav(path, longest=LONGEST_NOISE)))
        if len(noises[-1]) < CLIP:
            raise DamagedError(f"{path}: expected at least {CLIP} samples of noise, found {len(noises[-1])}")
    draws, numbers = Draws(_SEEDS[split], epoch=0), torch.arange(count)
    which = draws.integers(numbers, Purpose.NOISE, below=len(noises)).tolist()
    places, volumes = draws.floats(numbers, Purpose.PLACE).tolist(), draws.floats(numbers, Purpose.VOLUME).tolist()
    clips = []
    for noise, place, volume in zip((noises[k] for k in which), places, volumes, strict=True):
        start = int(place * (len(noise) - CLIP + 1))
        clips.append((noise[start : start + CLIP] * volume).trunc())
    return clips


# Ready features: a zip of grey PNG images, a thousand clips an image, one byte a number.
FILE = "google12_logmel32_u8.zip"
# What the file can have: clips of a split (all of Speech Commands has 105,829), characters in a row of its table.
MAX_CLIPS, MAX_ROW = 120_000, 200
MAX_META = 1 << 20
MAX_NUMBER = 1e30


def read_features(path: Path, split: Split) -> Sequences:
    """The ready features of a split, not normalised; ``meta.json`` in the zip says which number a byte stands for."""
    with open_zip(path) as top:
        step, floor = _scale(path, read_json(top / "meta.json", MAX_META))
        labels = _labels(path, read_bounded(top / f"{split}/index.csv", MAX_CLIPS * MAX_ROW))
        shards = sorted(n for n in top.archive.namelist() if n.startswith(f"{split}/") and n.endswith(".png"))
        codes: list[NDArray[np.uint8]] = []
        for shard in shards:
            codes.append(_codes(path, top / shard, clips=len(labels) - sum(map(len, codes))))
    if sum(map(len, codes)) != len(labels) or not labels:
        raise DamagedError(f"{path}: expected {len(labels)} clips for {split}, found {sum(map(len, codes))}")
    values = np.concatenate(codes) * np.float32(step) + np.float32(floor)
    return Sequences(torch.from_numpy(values), torch.tensor(labels))


def _scale(path: Path, meta: Any) -> tuple[float, float]:
    """What a byte is multiplied with, and what is added, if the classes are ours."""
    facts = meta if isinstance(meta, dict) else {}
    if facts.get("labels") != list(LABELS):
        raise DamagedError(f"{path}: expected the labels {', '.join(LABELS)}, found {facts.get('labels')!r:.200}")
    for key in ("step", "floor"):
        number: Any = facts.get(key)
        if type(number) not in (int, float) or not abs(number) <= MAX_NUMBER:
            raise DamagedError(f"{path}: expected a number as {key} in meta.json, found {number!r:.50}")
    return facts["step"], facts["floor"]


def _labels(path: Path, content: bytes) -> list[int]:
    numbers = {str(number): number for number in range(len(LABELS))}
    try:
        found = [str(row.get("label")) for row in csv.DictReader(io.StringIO(content.decode(), newline=""))]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DamagedError(f"{path}: expected index.csv to be a table of texts, found: {error}") from error
    if len(found) > MAX_CLIPS:
        raise DamagedError(f"{path}: expected at most {MAX_CLIPS:,} clips in index.csv, found {len(found):,}")
    wrong = next((label for label in found if label not in numbers), None)
    if wrong is not None:
        raise DamagedError(f"{path}: expected labels from 0 to {len(LABELS) - 1}, found {wrong!r:.50}")
    return [numbers[label] for label in found]


def _codes(path: Path, shard: ZipEntry, *, clips: int) -> NDArray[np.uint8]:
    """uint8 [clips, 99, 32] of an image with 99 rows and 32 columns a clip; ``clips`` are left to be found."""
    # A byte a number at worst, and the frame of a PNG.
    content = read_bounded(shard, clips * FRAMES * FILTERS + (1 << 20), "PNG file")
    image = np.asarray(open_grey(io.BytesIO(content), str(shard), pixels=clips * FRAMES * FILTERS))
    if image.ndim != 2 or image.shape[0] != FRAMES or image.shape[1] % FILTERS:
        wanted = f"{FRAMES} rows and {FILTERS} columns a clip"
        raise DamagedError(f"{path}: expected {shard.name} to have {wanted}, found {image.shape}")
    return image.reshape(FRAMES, -1, FILTERS).transpose(1, 0, 2)


def read_google12(
    root: Path | None, *, held: Held = "test", augment: Augment | None = None
) -> tuple[MemorySamples, MemorySamples]:
    """Training and test samples, normalised. How many there are of each class depends on the version of the files.

    ``root`` is the folder with one folder for each word, the one above it, or the zip of ready features; ``data``
    without one. Tested on are the clips of the testing speakers, or with ``held="validation"`` of the validation ones.
    """
    place = _find(root or Path("data"))
    read = read_features if place.is_file() else read_split
    return normalised(read(place, "training"), read(place, "testing" if held == "test" else "validation"), augment)


def _find(root: Path) -> Path:
    if root.is_file() and root.suffix == ".zip":
        return root
    for folder in (root, root / "speech_commands", root / "train" / "audio"):
        if any((folder / word).is_dir() for word in COMMANDS):
            return folder
    for folder in (root, root / "speech_commands"):
        if (folder / FILE).is_file():
            return folder / FILE
    raise MissingError(f"{root}: neither folders of words nor {FILE} there")
