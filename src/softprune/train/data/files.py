"""The files of data sets, read no further than their format goes: a zip of 3 MB may hold 6 GB, a FIFO never ends.

Every reader says how many bytes a file can have. One that is longer, or says that it is, is refused before its content
is read or unpacked. Nothing is downloaded.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import stat
import struct
import wave
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class MissingError(FileNotFoundError):
    """A file or folder of a data set that is not there."""


class DamagedError(ValueError):
    """A file of a data set that is damaged or another; the message says what was expected and what was found."""


@dataclass(frozen=True)
class Counts:
    """How many samples each class has."""

    train: tuple[int, ...]
    test: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        return sum(self.train), sum(self.test)


def check_labels(labels: Tensor, counts: tuple[int, ...], path: object) -> None:
    """Refuse labels that are not the data set's: also files of another one under the same names."""
    found = tuple(torch.bincount(labels).tolist())
    if found != counts:
        wanted = f"the labels 0 to {len(counts) - 1} to occur {counts} times"
        raise DamagedError(f"{path}: expected {wanted}, found {found}")


_ENCRYPTED = 1
_BROKEN_ZIP = (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError)


@dataclass(frozen=True)
class ZipEntry:
    """A file or folder in a zip, written like a path."""

    archive: zipfile.ZipFile
    name: str

    def __truediv__(self, part: str) -> ZipEntry:
        return ZipEntry(self.archive, f"{self.name}/{part}" if self.name else part)

    def __str__(self) -> str:
        return f"{self.archive.filename}/{self.name}"

    def is_file(self) -> bool:
        return self.name in self.archive.NameToInfo

    def read(self, most: int, kind: str) -> bytes:
        if not self.is_file():
            raise MissingError(f"{self.archive.filename}: {self.name!r} is not in it")
        info = self.archive.getinfo(self.name)
        _check_size(self, info.file_size, most)
        # The other ways to pack ask for as much memory as the file says.
        if info.flag_bits & _ENCRYPTED or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DamagedError(f"{self}: expected a {kind}, stored or deflated and without a password, found another")
        try:
            # Without a size all of it is unpacked first, and then cut to what the zip says.
            with self.archive.open(info) as file:
                return file.read(info.file_size)
        except (*_BROKEN_ZIP, OSError, ValueError) as error:
            raise DamagedError(f"{self}: expected a {kind}, found: {error}") from error


DataPath: TypeAlias = Path | ZipEntry


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read it; a FIFO or a device could keep its reader waiting for ever."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedError(f"{path}: expected a regular file, found a folder, a device or a FIFO")
    return os.fdopen(descriptor, "rb")


@contextmanager
def open_zip(path: DataPath, most: int | None = None) -> Iterator[ZipEntry]:
    """The top of a zip file; one in a zip may have at most ``most`` bytes, since it is unpacked to memory."""
    file: BinaryIO
    if isinstance(path, ZipEntry):
        file, name = io.BytesIO(path.read(most or 0, "zip file")), path.archive.filename
    else:
        file, name = open_regular(path), str(path)
    with file:
        try:
            archive = zipfile.ZipFile(file)
        except _BROKEN_ZIP as error:
            raise DamagedError(f"{path}: expected a whole zip file, found: {error}") from error
        archive.filename = name  # for the messages
        yield ZipEntry(archive, "")


def read_bounded(path: DataPath, most: int, kind: str = "file") -> bytes:
    """The content of a file of at most ``most`` bytes; messages call it a ``kind``."""
    if isinstance(path, ZipEntry):
        return path.read(most, kind)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        _check_size(path, size, most)
        return file.read(size)


def _check_size(path: DataPath, size: int, most: int) -> None:
    if size > most:
        raise DamagedError(f"{path}: expected at most {most:,} bytes, found {size:,}")


def read_json(path: DataPath, most: int) -> Any:
    content = read_bounded(path, most, "JSON file")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: expected a JSON file, found: {error}") from error


_UNSIGNED_BYTE = 8


def read_idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    """The uint8 values of a file in MNIST's idx format (compressed if it ends in .gz), which must have that shape.

    The format is a big-endian header with the dimensions, then the bytes.
    """
    header = 4 + 4 * len(shape)
    wanted = header + math.prod(shape)
    try:
        with open_regular(path) as whole:
            file = gzip.GzipFile(fileobj=whole) if path.suffix == ".gz" else whole
            content = file.read(wanted + 1)  # one more than there must be, and never a bomb's worth
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DamagedError(f"{path}: expected a whole gzip file, found: {error}") from error
    magic = bytes((0, 0, _UNSIGNED_BYTE, len(shape)))
    if content[:4] != magic:
        raise DamagedError(f"{path}: expected an idx file that begins {magic.hex()}, found {content[:4].hex()}")
    if len(content) >= header and (found := struct.unpack_from(f">{len(shape)}I", content, 4)) != shape:
        sizes, others = (" x ".join(map(str, each)) for each in (shape, found))
        raise DamagedError(f"{path}: expected {sizes} in the header, found {others}")
    if len(content) != wanted:
        length = f"{len(content):,}" if len(content) < wanted else "more"
        raise DamagedError(f"{path}: expected {wanted:,} bytes, found {length}")
    return torch.from_numpy(np.frombuffer(bytearray(content), np.uint8, offset=header).reshape(shape))


RATE = 16_000  # samples a second of the clips of Speech Commands


def read_wav(path: Path, *, longest: int) -> NDArray[np.int16]:
    """The samples of a clip of sound: 16 bit, one channel, 16 kHz, at most ``longest`` samples."""
    try:
        with open_regular(path) as whole, wave.open(whole) as file:
            facts = file.getparams()
            # The header may promise 4 GB, and room for them would be made first.
            for right, wanted, found in (
                (facts.framerate == RATE, f"{RATE} samples a second", facts.framerate),
                (facts.nchannels == 1, "one channel", facts.nchannels),
                (facts.sampwidth == 2, "16 bits a sample", 8 * facts.sampwidth),
                (facts.nframes <= longest, f"at most {longest} samples", facts.nframes),
            ):
                if not right:
                    raise DamagedError(f"{path}: expected {wanted}, found {found}")
            content = file.readframes(facts.nframes)
    # A seek out of a chunk is a RuntimeError of wave's without a word.
    except (wave.Error, EOFError, struct.error, OverflowError, RuntimeError) as error:
        raise DamagedError(f"{path}: expected a wav file of 16-bit numbers, found: {str(error) or 'damage'}") from error
    if len(content) != 2 * facts.nframes:
        raise DamagedError(f"{path}: expected {facts.nframes} samples, found {len(content) // 2}: cut short")
    return np.frombuffer(content, "<i2").astype(np.int16)
