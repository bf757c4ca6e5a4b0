"""Small files in the real formats, written here byte by byte."""

import gzip
import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from softprune.train.data.cifar import PIXELS, TEST_FILE, TRAIN_FILES, Layout
from softprune.train.data.files import Counts

# Two samples of each class, one of each for testing; CIFAR's five training files hold four samples each.
COUNTS = Counts(train=(2,) * 10, test=(1,) * 10)


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder: Path, *, compressed: bool) -> dict[str, np.ndarray]:
    """MNIST's four files with the samples of COUNTS; returns the arrays by file name."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, times in (("train", 2), ("t10k", 1)):
        labels = random.permutation(np.arange(10, dtype=np.uint8).repeat(times))
        arrays[f"{part}-images-idx3-ubyte"] = random.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = labels
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))
    return arrays


def cifar_records() -> dict[str, np.ndarray]:
    """The records of CIFAR's six files, with the samples of COUNTS."""
    random = np.random.default_rng(0)
    labels = random.permutation(np.arange(10, dtype=np.uint8).repeat(2))
    parts = {file: labels[4 * at : 4 * at + 4] for at, file in enumerate(TRAIN_FILES)}
    parts[TEST_FILE] = random.permutation(np.arange(10, dtype=np.uint8))
    return {
        file: np.concatenate(
            [part[:, None], random.integers(0, 256, (len(part), PIXELS), dtype=np.uint8)], axis=1, dtype=np.uint8
        )
        for file, part in parts.items()
    }


def write_cifar_binary(folder: Path) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    records = cifar_records()
    for file, array in records.items():
        (folder / f"{file}.bin").write_bytes(array.tobytes())
    return records


def python2_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    """What Python 2.7 and numpy 1 wrote into the official files: protocol 2, byte strings, numpy's old module name."""
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"".join(b"M" + struct.pack("<H", size) for size in pixels.shape)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
        b"(K\x01(" + shape + b"t" + dtype + b"\x89T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes((label,)) for label in labels) + b"e"
    return b"\x80\x02}(U\x0bbatch_labelU\x04testU\x06labels" + numbers + b"U\x04data" + array + b"u."


def write_cifar_python(folder: Path) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    records = cifar_records()
    for file, array in records.items():
        (folder / file).write_bytes(python2_pickle(array[:, 1:], array[:, 0].tolist()))
    return records


def write_cifar_png(folder: Path) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    records = cifar_records()
    for file, array in records.items():
        pixels = array[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)
        Image.fromarray(np.ascontiguousarray(pixels)).save(folder / f"{file}.png")
    labels = np.concatenate([records[file][:, 0] for file in TRAIN_FILES]).tolist()
    (folder / "train_lables.json").write_text(json.dumps(labels))
    (folder / "test_lables.json").write_text(json.dumps(records[TEST_FILE][:, 0].tolist()))
    return records


def with_sums(layout: Layout, contents: dict[str, bytes]) -> Layout:
    """The layout with the sums of these contents instead of the official ones: the check stays."""
    return replace(layout, sums={file: hashlib.new(layout.algorithm, c).hexdigest() for file, c in contents.items()})


def write_image_folder(root: Path, *, train: int = 4, val: int = 2, size: tuple[int, int] = (40, 30)) -> None:
    """Two classes of JPEGs full of noise."""
    random = np.random.default_rng(0)
    for part, count in (("train", train), ("val", val)):
        for name in ("n01", "n02"):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{name}_{number}.JPEG", quality=95)
