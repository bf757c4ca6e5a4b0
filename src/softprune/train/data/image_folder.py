"""Folders of image files, in ImageNet's layout (train/<class>/* and val/<class>/*), decoded with Pillow."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

from softprune.train.data.augment import ATTEMPTS, Draws, Normalise, Purpose, central_box, flipped, random_box, resized
from softprune.train.data.files import DamagedError, MissingError, open_regular
from softprune.train.data.source import Batch, Normalisation

if TYPE_CHECKING:
    from PIL.Image import Image


def open_rgb(path: Path, *, pixels: int | None = None) -> Image:
    """A JPEG or PNG as an RGB image, whatever its mode; only what is in the file is looked at, not its name.

    Grey becomes equal channels, 16 bits become 8, a palette and CMYK are converted, an alpha channel is dropped. The
    orientation that a camera may have noted in EXIF is ignored, as torchvision does. Refused are more ``pixels``, by
    default more than Pillow decodes, and a file that cannot be decoded to the last one.
    """
    with open_regular(path) as content:
        return _decoded(content, str(path), _rgb, pixels)


def open_grey(content: BinaryIO, shown: str, *, pixels: int | None = None) -> Image:
    """The same as a grey image of 8 bits; messages call the open file what ``shown`` says."""
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


# The mean and deviation of ImageNet's training images that everyone uses.
NORMALISE = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SUFFIXES = (".jpg", ".jpeg", ".png")
BILINEAR = 2  # Pillow's number, so that it is imported only when an image is read


class ImageSamples:
    """Images that are decoded when they are asked for.

    With draws and ``augment`` the image is a RandomResizedCrop, mirrored in half of the cases; else its shorter side
    is resized to 8/7 of ``size`` and the central square of ``size`` pixels is cut out: 256 and 224 for ImageNet. Both
    are bilinear with antialiasing. ``files`` are names below ``folder``.
    """

    normalisation: Normalisation | None = None

    def __init__(self, folder: Path, files: list[str], *, labels: Tensor, size: int, augment: bool) -> None:
        self.labels = labels
        self._folder = folder
        # One array of bytes: worker processes share it, whereas touching a list of strings would copy its pages.
        self._files = np.array([os.fsencode(file) for file in files])
        self._size, self._augment = size, augment

    def batch(self, indices: Tensor, *, draws: Draws | None) -> Batch:
        pixels = torch.empty(len(indices), self._size, self._size, 3, dtype=torch.uint8)
        chosen = draws if self._augment else None
        images = self._central(indices) if chosen is None else self._random(indices, chosen)
        for at, image in enumerate(images):
            pixels[at] = torch.from_numpy(np.array(image))
        if chosen is not None:
            pixels = flipped(pixels, chosen.integers(indices, Purpose.FLIP, below=2), dim=2)
        return NORMALISE(pixels.permute(0, 3, 1, 2)), self.labels[indices]

    def path(self, index: int) -> Path:
        return self._folder / os.fsdecode(self._files[index])

    def _random(self, indices: Tensor, draws: Draws) -> Iterator[Image]:
        rows, columns = (draws.floats(indices, purpose).tolist() for purpose in (Purpose.ROW, Purpose.COLUMN))
        areas, ratios = (
            torch.stack([draws.floats(indices, first + attempt) for attempt in range(ATTEMPTS)], dim=1).tolist()
            for first in (Purpose.CROP_AREA, Purpose.CROP_RATIO)
        )
        for at, index in enumerate(indices.tolist()):
            image = open_rgb(self.path(index))
            box = random_box(*image.size, areas=areas[at], ratios=ratios[at], row=rows[at], column=columns[at])
            # Cut first, then resize: no pixel outside the box has a part in the result.
            yield image.crop(box).resize((self._size, self._size), BILINEAR)

    def _central(self, indices: Tensor) -> Iterator[Image]:
        for index in indices.tolist():
            image = open_rgb(self.path(index))
            image = image.resize(resized(*image.size, short=round(self._size * 256 / 224)), BILINEAR)
            yield image.crop(central_box(*image.size, side=self._size))


def read_image_folder(
    root: Path | None, *, augment: bool = True, image_size: int = 224
) -> tuple[ImageSamples, ImageSamples]:
    """Samples of the folders train/ and val/ below the root (``data`` without one), as squares of ``image_size``.

    The labels are the places of the classes in alphabetical order.
    """
    if image_size < 1:
        raise ValueError(f"an image has at least one pixel; got image_size={image_size}")
    top = root or Path("data")
    train, val = top / "train", top / "val"
    classes = {name: label for label, name in enumerate(_folders(train))}
    if strange := [name for name in _folders(val) if name not in classes]:
        raise DamagedError(f"{val}: expected the classes of {train}, found {strange[:3]} besides")
    train_files, train_labels = _list(train, classes)
    test_files, test_labels = _list(val, {name: classes[name] for name in _folders(val)})
    return (
        ImageSamples(train, train_files, labels=train_labels, size=image_size, augment=augment),
        ImageSamples(val, test_files, labels=test_labels, size=image_size, augment=False),
    )


def _folders(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise MissingError(f"{folder}: there is no such folder")
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise MissingError(f"{folder}: expected one folder for each class, found none")
    return names


def _list(folder: Path, classes: Mapping[str, int]) -> tuple[list[str], Tensor]:
    """Names below ``folder`` and labels, sorted by class and path; classes may have folders of their own."""
    files: list[str] = []
    labels: list[int] = []
    for name, label in classes.items():
        found = sorted(
            os.path.relpath(os.path.join(place, file), folder)  # noqa: PTH118  a million files: no Path for each
            for place, _, inside in os.walk(folder / name, followlinks=True)
            for file in inside
            if file.lower().endswith(SUFFIXES) and not file.startswith(".")
        )
        if not found:
            raise MissingError(f"{folder / name}: expected images ({', '.join(SUFFIXES)}), found none")
        files += found
        labels += [label] * len(found)
    return files, torch.tensor(labels, dtype=torch.int64)
