"""Image files to RGB pixels, with Pillow."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

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
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("images are read with Pillow: pip install 'softprune[images]'") from error
    content = path.open("rb")  # outside the net below: an absent file keeps its own error
    with content, warnings.catch_warnings():
        # Odd metadata, such as a damaged EXIF block, is not our concern while the pixels are whole.
        warnings.simplefilter("ignore")
        try:
            with Image.open(content) as image:
                return _rgb(image)
        # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and more, by format and damage.
        except Exception as error:
            raise ValueError(f"{path}: cannot be decoded as an image: {error}") from error


def _rgb(image: Image) -> Image:
    if image.mode in ("I", "I;16", "I;16L", "I;16B"):
        from PIL.Image import fromarray

        # Pillow would clip 16-bit grey at 255, which leaves a white image.
        return fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")
