"""Small data sets of sequences in their official layouts, written here."""

import io
import json
import wave
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from softprune.train.data.files import Counts
from softprune.train.data.har import CLASS_OF, FOLDER, SIGNALS, STEPS
from softprune.train.data.speech import COMMANDS, LABELS, NOISE, split_of

# Two windows of each activity and subject, five training subjects and one test subject.
SUBJECTS = {"train": (1, 3, 5, 6, 8), "test": (2,)}
HAR_COUNTS = Counts(train=(30, 30), test=(6, 6))


def write_har(root: Path) -> dict[str, np.ndarray]:
    """The official folder below ``root``; returns the windows [n, 128, 9] and activities of both parts."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, subjects in SUBJECTS.items():
        activities = np.array([a for _ in subjects for a in CLASS_OF for _ in range(2)])
        people = np.repeat(subjects, 2 * len(CLASS_OF))
        windows = (random.normal(size=(len(activities), STEPS, len(SIGNALS))) + activities[:, None, None]).round(4)
        folder = root / FOLDER / part
        (folder / "Inertial Signals").mkdir(parents=True)
        (folder / f"y_{part}.txt").write_text("".join(f"{a}\n" for a in activities))
        (folder / f"subject_{part}.txt").write_text("".join(f"{p}\n" for p in people))
        for at, signal in enumerate(SIGNALS):
            lines = ["".join(f" {value:.7e}" for value in row) + "\n" for row in windows[:, :, at]]
            (folder / "Inertial Signals" / f"{signal}_{part}.txt").write_text("".join(lines))
        arrays |= {f"{part}_x": windows.astype(np.float32), f"{part}_y": activities, f"{part}_subjects": people}
    return arrays


def zipped(root: Path, path: Path) -> Path:
    """The folder of `write_har` as a zip."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((root / FOLDER).rglob("*.txt")):
            archive.write(file, file.relative_to(root))
    return path


def wav(samples: np.ndarray, *, rate: int = 16_000, channels: int = 1, width: int = 2) -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.astype({1: "u1", 2: "<i2"}[width]).tobytes())
    return content.getvalue()


def speakers(split: str, count: int) -> list[str]:
    """The first speakers that the hash puts into a split."""
    found = []
    for number in range(10_000):
        if split_of(f"{number:08x}_nohash_0.wav") == split:
            found.append(f"{number:08x}")
        if len(found) == count:
            return found
    raise AssertionError("too few")


def write_speech(root: Path, *, others: tuple[str, ...] = ("bed", "cat")) -> None:
    """Three training, one validation and one testing clip of each word, and two files of noise."""
    random = np.random.default_rng(0)
    everyone = [*speakers("training", 3), *speakers("validation", 1), *speakers("testing", 1)]
    for word in (*COMMANDS, *others):
        (root / word).mkdir(parents=True)
        for at, speaker in enumerate(everyone):
            samples = random.integers(-3000, 3000, 16_000 if at else 12_000)
            (root / word / f"{speaker}_nohash_0.wav").write_bytes(wav(samples))
    (root / NOISE).mkdir()
    for name in ("pink", "white"):
        (root / NOISE / f"{name}.wav").write_bytes(wav(random.integers(-500, 500, 40_000)))


def write_features(path: Path, *, labels: tuple[str, ...] = LABELS, rows: int = 99, last_label: int = 3) -> np.ndarray:
    """The zip of ready features with four clips a split; returns the bytes [3, 4, 99, 32]."""
    codes = np.random.default_rng(0).integers(0, 256, (3, 4, rows, 32), dtype=np.uint8)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.json", json.dumps({"labels": labels, "step": 0.5, "floor": -20.0}))
        for part, split in zip(codes, ("training", "validation", "testing"), strict=True):
            content = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(part.transpose(1, 0, 2)).reshape(rows, -1)).save(content, "PNG")
            archive.writestr(f"{split}/000.png", content.getvalue())
            archive.writestr(f"{split}/index.csv", f"label,source\n0,a\n1,b\n2,c\n{last_label},d\n")
    return codes
