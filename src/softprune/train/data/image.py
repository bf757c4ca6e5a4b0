"""Image files to RGB pixels, with Pillow."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image


def open_rgb(path: Path) -> Image:
    """A JPEG or PNG as an RGB image, whatever its mode; only what is in the file is looked at, not its name.

    Grey becomes equal channels, 16 bits become 8, a palette and CMYK are converted, an alpha channel is dropped. The
    orientation that a camera may have noted in EXIF is ignored, as torchvision does.

    Args:
        path: the file.

    Raises:
        ValueError: if it cannot be decoded to the last pixel; names the file.
    """
    with path.open("rb") as content:
        return _decoded(content, str(path), _rgb)


def open_grey(content: BinaryIO, shown: str) -> Image:
    """A PNG or JPEG as a grey image of 8 bits.

    Args:
        content: an open file.
        shown: what to call it in a message.

    Raises:
        ValueError: if it cannot be decoded to the last pixel; names the file.
    """
    return _decoded(content, shown, lambda image: image.convert("L"))


def _decoded(content: BinaryIO, shown: str, convert: Callable[[Image], Image]) -> Image:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("images are read with Pillow: pip install 'softprune[images]'") from error
    with warnings.catch_warnings():
        # Odd metadata, such as a damaged EXIF block, is not our concern while the pixels are whole.
        warnings.simplefilter("ignore")
        try:
            with Image.open(content) as image:
                return convert(image)
        # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and more, by format and damage.
        except Exception as error:
            raise ValueError(f"{shown}: cannot be decoded as an image: {error}") from error


def _rgb(image: Image) -> Image:
    if image.mode in ("I", "I;16", "I;16L", "I;16B"):
        from PIL.Image import fromarray

        # Pillow would clip 16-bit grey at 255, which leaves a white image.
        return fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")
