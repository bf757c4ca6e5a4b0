"""Reading files no further than their format goes: a zip of 3 MB may hold 6 GB, a FIFO never ends.

Every reader of a data set says how many bytes a file of it can have. A file that is longer, or says that it is, is
refused before its content is read or unpacked.
"""

from __future__ import annotations

import json
import os
import stat
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from softprune.train.data.origin import damaged

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
