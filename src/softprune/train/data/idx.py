"""The idx format of MNIST: a big-endian header with the number and sizes of the dimensions, then the bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from softprune.train.data.bounded import open_regular
from softprune.train.data.origin import damaged

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
