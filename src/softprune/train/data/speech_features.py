"""Google-12 as ready log-mel features: a zip of grey PNG images, a thousand clips an image, one byte a number."""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from softprune.train.data.bounded import Member, open_regular, read_bounded, read_json
from softprune.train.data.image import open_grey
from softprune.train.data.logmel import FILTERS, FRAMES
from softprune.train.data.origin import damaged, missing
from softprune.train.data.sequence import Sequences
from softprune.train.data.speech_commands import LABELS, NAME, Split

FILE = "google12_logmel32_u8.zip"
# What the file can have: clips of a split (all of Speech Commands has 105,829), characters in a row of its table.
MAX_CLIPS, MAX_ROW = 120_000, 200
MAX_META = 1 << 20
MAX_NUMBER = 1e30


def read_features(path: Path, split: Split) -> Sequences:
    """The features of a split, not normalised.

    Args:
        path: the zip; ``meta.json`` in it says which number a byte stands for.
        split: which part.

    Raises:
        FileNotFoundError: if a part is not in the zip.
        ValueError: if the zip is cut short or something in it is not what it should be.
    """
    try:
        with open_regular(path, name=NAME) as file, zipfile.ZipFile(file) as archive:
            archive.filename = str(path)  # for the messages
            top = Member(archive, "")
            step, floor = _scale(path, read_json(top / "meta.json", MAX_META, name=NAME))
            labels = _labels(path, read_bounded(top / f"{split}/index.csv", MAX_CLIPS * MAX_ROW, name=NAME))
            shards = sorted(n for n in archive.namelist() if n.startswith(f"{split}/") and n.endswith(".png"))
            codes: list[NDArray[np.uint8]] = []
            for shard in shards:
                codes.append(_codes(path, top / shard, clips=len(labels) - sum(map(len, codes))))
    except KeyError as error:
        raise missing(path, f"{error} is not in it", name=NAME) from error
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError) as error:
        raise damaged(path, f"expected a whole zip file of features, found: {error}", name=NAME) from error
    if sum(map(len, codes)) != len(labels) or not labels:
        raise damaged(path, f"expected {len(labels)} clips for {split}, found {sum(map(len, codes))}", name=NAME)
    values = np.concatenate(codes) * np.float32(step) + np.float32(floor)
    return Sequences(torch.from_numpy(values), torch.tensor(labels))


def _scale(path: Path, meta: Any) -> tuple[float, float]:
    """What a byte is multiplied with, and what is added, if the classes are ours."""
    facts = meta if isinstance(meta, dict) else {}
    if facts.get("labels") != list(LABELS):
        raise damaged(path, f"expected the labels {', '.join(LABELS)}, found {facts.get('labels')!r:.200}", name=NAME)
    for key in ("step", "floor"):
        number: Any = facts.get(key)
        if type(number) not in (int, float) or not abs(number) <= MAX_NUMBER:
            raise damaged(path, f"expected a number as {key} in meta.json, found {number!r:.50}", name=NAME)
    return facts["step"], facts["floor"]


def _labels(path: Path, content: bytes) -> list[int]:
    numbers = {str(number): number for number in range(len(LABELS))}
    try:
        found = [str(row.get("label")) for row in csv.DictReader(io.StringIO(content.decode(), newline=""))]
    except (UnicodeDecodeError, csv.Error) as error:
        raise damaged(path, f"expected index.csv to be a table of texts, found: {error}", name=NAME) from error
    if len(found) > MAX_CLIPS:
        raise damaged(path, f"expected at most {MAX_CLIPS:,} clips in index.csv, found {len(found):,}", name=NAME)
    wrong = next((label for label in found if label not in numbers), None)
    if wrong is not None:
        raise damaged(path, f"expected labels from 0 to {len(LABELS) - 1}, found {wrong!r:.50}", name=NAME)
    return [numbers[label] for label in found]


def _codes(path: Path, shard: Member, *, clips: int) -> NDArray[np.uint8]:
    """uint8 [clips, 99, 32] of an image with 99 rows and 32 columns a clip; ``clips`` are left to be found."""
    # A byte a number at worst, and the frame of a PNG.
    content = read_bounded(shard, clips * FRAMES * FILTERS + (1 << 20), name=NAME, kind="PNG file")
    image = np.asarray(open_grey(io.BytesIO(content), str(shard), pixels=clips * FRAMES * FILTERS))
    if image.ndim != 2 or image.shape[0] != FRAMES or image.shape[1] % FILTERS:
        problem = f"expected {shard.name} to have {FRAMES} rows and {FILTERS} columns a clip, found {image.shape}"
        raise damaged(path, problem, name=NAME)
    return image.reshape(FRAMES, -1, FILTERS).transpose(1, 0, 2)
