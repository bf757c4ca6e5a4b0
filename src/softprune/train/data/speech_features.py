"""Google-12 as ready log-mel features: a zip of grey PNG images, a thousand clips an image, one byte a number."""

from __future__ import annotations

import csv
import io
import json
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from softprune.train.data.image import open_grey
from softprune.train.data.logmel import FILTERS, FRAMES
from softprune.train.data.origin import damaged, missing
from softprune.train.data.sequence import Sequences
from softprune.train.data.speech_commands import LABELS, NAME, Split

FILE = "google12_logmel32_u8.zip"


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
        with zipfile.ZipFile(path) as archive:
            meta = json.loads(archive.read("meta.json"))
            if tuple(meta["labels"]) != LABELS:
                raise damaged(path, f"expected the labels {', '.join(LABELS)}, found {meta['labels']}", name=NAME)
            labels = _labels(path, archive.read(f"{split}/index.csv").decode())
            shards = sorted(n for n in archive.namelist() if n.startswith(f"{split}/") and n.endswith(".png"))
            codes = [_codes(path, shard, archive.read(shard)) for shard in shards]
    except KeyError as error:
        raise missing(path, f"{error} is not in it", name=NAME) from error
    except (zipfile.BadZipFile, EOFError, zlib.error, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise damaged(path, f"expected a whole zip file of features, found: {error}", name=NAME) from error
    if sum(map(len, codes)) != len(labels) or not labels:
        raise damaged(path, f"expected {len(labels)} clips for {split}, found {sum(map(len, codes))}", name=NAME)
    values = np.concatenate(codes) * np.float32(meta["step"]) + np.float32(meta["floor"])
    return Sequences(torch.from_numpy(values), torch.tensor(labels))


def _labels(path: Path, text: str) -> list[int]:
    found = [row.get("label", "") for row in csv.DictReader(io.StringIO(text))]
    wrong = next((label for label in found if not label.isdecimal() or int(label) >= len(LABELS)), None)
    if wrong is not None:
        raise damaged(path, f"expected labels from 0 to {len(LABELS) - 1}, found {wrong!r}", name=NAME)
    return [int(label) for label in found]


def _codes(path: Path, shard: str, content: bytes) -> NDArray[np.uint8]:
    """uint8 [clips, 99, 32] of an image with 99 rows and 32 columns a clip."""
    image = np.asarray(open_grey(io.BytesIO(content), f"{path}/{shard}"))
    if image.ndim != 2 or image.shape[0] != FRAMES or image.shape[1] % FILTERS:
        problem = f"expected {shard} to have {FRAMES} rows and {FILTERS} columns a clip, found {image.shape}"
        raise damaged(path, problem, name=NAME)
    return image.reshape(FRAMES, -1, FILTERS).transpose(1, 0, 2)
