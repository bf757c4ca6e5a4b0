"""The data sets by name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from softprune.nn.catalog import load_factory
from softprune.train.data.augment import Distortions, Rotation, Shift
from softprune.train.data.cifar import NORMALISE as CIFAR10
from softprune.train.data.cifar import read_cifar10
from softprune.train.data.digits import FASHION_MNIST, MNIST, load_digits, read_mnist
from softprune.train.data.files import ORIGINS, unknown
from softprune.train.data.har import read_har2
from softprune.train.data.images import NORMALISE as IMAGENET
from softprune.train.data.images import read_image_folder
from softprune.train.data.loader import LoaderSource
from softprune.train.data.source import Held, IndexedSource, MemorySamples, Samples, Source, SubsetSamples, balanced
from softprune.train.data.speech import read_google12

DATA_SETS = tuple(ORIGINS)
_SEQUENCES = {"har2": (read_har2, 2), "google12": (read_google12, 12)}
# Of one input; those of an image folder are as large as is wished.
_SHAPES: dict[str, tuple[int, ...]] = {
    "digits": (1, 1, 8, 8), "mnist": (1, 1, 28, 28), "fashion-mnist": (1, 1, 28, 28), "cifar10": (1, 3, 32, 32),
    "har2": (1, 128, 9), "google12": (1, 99, 32),
}  # fmt: skip


def open_data(
    name: str,
    *,
    root: Path | str | None = None,
    augment: bool = True,
    normalise: Literal["own", "imagenet"] = "own",
    subset: int | None = None,
    workers: int = 0,
    image_size: int = 224,
    held: Held = "test",
    rotate: float = 0.0,
    shift: int = 0,
) -> Source:
    """Open a data set. Its files are checked now, so that a run does not fail later.

    Args:
        name: digits, mnist, fashion-mnist, cifar10, image-folder, har2, google12, or ``package.module:factory``. A
            factory is called without arguments and returns a Source or a pair of loaders; root, subset, normalise,
            held and augment=False are refused.
        root: the folder with the files; by default ``data``, and for Fashion-MNIST also the system's.
        augment: change the training images at random, in the way that suits the data set (the digits: not at all).
        normalise: pixels with the mean and deviation of the data set's "own" training images, or with those of
            "imagenet", which many trained networks expect; for cifar10 and image-folder (whose own they are).
        subset: train on this many samples of a fixed permutation, the classes as equal as they can be.
        workers: processes that decode an image folder; the other data sets lie in memory and need none.
        image_size: side of the squares that an image folder gives.
        held: what is tested on: the official "test" samples, or a "validation" part of the training samples (other
            subjects in har2, other speakers in google12), so that settings are chosen without the test samples.
        rotate: turn the signals of each training window of har2 by up to so many degrees about any axis.
        shift: move each training sequence of har2 or google12 by up to so many steps in time.

    Raises:
        FileNotFoundError: if the files are not there, with the way to get them.
        ValueError: if a file is not what it should be, or there is no such data set.

    Example:
        >>> from softprune.train.data import Epoch
        >>> source = open_data("digits", subset=100)
        >>> images, labels = next(source.train_epoch(Epoch(number=0, seed=0, batch=10)))
        >>> images.shape, source.steps(10, drop_last=False)
        (torch.Size([10, 1, 8, 8]), 10)
    """
    folder = None if root is None else Path(root)
    if normalise not in ("own", "imagenet"):
        raise ValueError(f"normalise is own or imagenet; got {normalise!r}")
    if normalise == "imagenet" and name not in ("cifar10", "image-folder"):
        raise ValueError(f"{name!r}: normalise=imagenet is for cifar10 and image-folder, which have three colours")
    if held not in ("test", "validation"):
        raise ValueError(f"held is test or validation; got {held!r}")
    if held == "validation" and name not in _SEQUENCES:
        raise ValueError(f"{name!r}: held=validation is for {' and '.join(_SEQUENCES)}, which say how to split")
    changes = _changes(name, rotate=rotate, shift=shift)
    if ":" in name:
        if root is not None or subset is not None or not augment:
            raise ValueError(f"{name!r}: root, subset and augment are up to the factory")
        return _made_by(name)
    if name not in ORIGINS:
        raise ValueError(unknown(name))
    if workers < 0:
        raise ValueError(f"workers is 0 or more; got {workers}")
    classes = 10
    shape: tuple[int, ...] = (3, image_size, image_size)
    normalisation = None
    train: Samples
    test: Samples
    if name == "image-folder":
        train, test, names = read_image_folder(folder, augment=augment, image_size=image_size)
        classes = len(names)
    elif name in _SEQUENCES:
        read, classes = _SEQUENCES[name]
        sequences = read(folder, held=held, augment=changes if augment else None)
        train, test, normalisation = *sequences, sequences[0].normalisation
        shape = tuple(sequences[0].images.shape[1:])
    else:
        train, test = _in_memory(name, folder, augment=augment, normalise=normalise)
        shape = tuple(train.images.shape[1:])
    if subset is not None:
        train = SubsetSamples(train, balanced(train.labels, subset))
    return IndexedSource(
        name,
        train=train,
        test=test,
        classes=classes,
        example_shape=(1, *shape),
        workers=workers if name == "image-folder" else 0,
        normalisation=normalisation,
    )


def known_shape(name: str, *, image_size: int) -> tuple[int, ...]:
    """The shape of one input of a data set of the catalog, with batch 1; its files need not be there.

    Example:
        >>> known_shape("har2", image_size=224), known_shape("image-folder", image_size=64)
        ((1, 128, 9), (1, 3, 64, 64))
    """
    return _SHAPES.get(name, (1, 3, image_size, image_size))


def _changes(name: str, *, rotate: float, shift: int) -> Distortions | None:
    """What is done to training sequences; None for nothing."""
    if not 0.0 <= rotate <= 180.0:
        raise ValueError(f"rotate is 0 to 180 degrees; got {rotate:g}")
    if shift < 0:
        raise ValueError(f"shift is 0 or more steps; got {shift}")
    if rotate and name != "har2":
        raise ValueError(f"{name!r}: rotate is for har2, whose signals have directions")
    if shift and name not in _SEQUENCES:
        raise ValueError(f"{name!r}: shift is for {' and '.join(_SEQUENCES)}, which have steps in time")
    wanted: list[Rotation | Shift] = [Rotation(rotate)] if rotate else []
    if shift:
        wanted.append(Shift(shift))
    return Distortions(tuple(wanted)) if wanted else None


def _in_memory(name: str, root: Path | None, *, augment: bool, normalise: str) -> tuple[MemorySamples, MemorySamples]:
    if name == "cifar10":
        return read_cifar10(root, augment=augment, normalise=IMAGENET if normalise == "imagenet" else CIFAR10)
    if name == "digits":
        digits = load_digits()
        train = MemorySamples(digits.train_images, digits.train_labels)
        return train, MemorySamples(digits.test_images, digits.test_labels)
    return read_mnist(MNIST if name == "mnist" else FASHION_MNIST, root, augment=augment)


def _made_by(name: str) -> Source:
    """What ``package.module:factory`` returns, as a source."""
    made = load_factory(name)()
    if isinstance(made, Source):
        return made
    if isinstance(made, tuple | list) and len(made) == 2:
        return LoaderSource(made[0], made[1], name=name)
    raise TypeError(f"{name!r} returned a {type(made).__name__}, not a Source or a pair of loaders")
