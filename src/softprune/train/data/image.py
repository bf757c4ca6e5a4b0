"""Image files to RGB pixels, with Pillow."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from softprune.train.data.bounded import open_regular

if TYPE_CHECKING:
    from PIL.Image import Image


def open_rgb(path: Path, *, name: str = "image-folder", pixels: int | None = None) -> Image:
    """A JPEG or PNG as an RGB image, whatever its mode; only what is in the file is looked at, not its name.

    Grey becomes equal channels, 16 bits become 8, a palette and CMYK are converted, an alpha channel is dropped. The
    orientation that a camera may have noted in EXIF is ignored, as torchvision does.

    Args:
        path: the file.
        name: the data set, for the messages.
        pixels: how many it can have; as many as Pillow decodes by default.

    Raises:
        ValueError: if it has more pixels, or cannot be decoded to the last one; names the file.
    """
    with open_regular(path, name=name) as content:
        return _decoded(content, str(path), _rgb, pixels)


def open_grey(content: BinaryIO, shown: str, *, pixels: int | None = None) -> Image:
    """A PNG or JPEG as a grey image of 8 bits.

    Args:
        content: an open file.
        shown: what to call it in a message.
        pixels: how many it can have; as many as Pillow decodes by default.

    Raises:
        ValueError: if it has more pixels, or cannot be decoded to the last one; names the file.
    """
    return _decoded(content, shown, lambda image: image.convert("L"), pixels)


def _decoded(content: BinaryIO, shown: str, convert: Callable[[Image], Image], pixels: int | None) -> Image:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("images are read with Pillow: pip install 'softprune[images]'") from error
    with warnings.catch_warnings():
        # Odd metadata, such as a damaged EXIF block, is not our concern while the pixels are whole.
        warnings.simplefilter("ignore")
        try:
            # Of Pillow's many formats some run other programs.
            with Image.open(content, formats=("JPEG", "PNG")) as image:
                if pixels is not None and image.width * image.height > pixels:
                    raise ValueError(f"expected at most {pixels:,} pixels, found {image.width} x {image.height}")
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
