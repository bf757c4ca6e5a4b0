"""Data sets by name: the right source, the digits, the user's factories, and sentences for what is missing."""

import sys

import pytest
import torch
from data_files import write_image_folder

from softprune.train.config import ConfigError, RunConfig
from softprune.train.data import LoaderSource, Source, open_data, where_to_get
from softprune.train.data.datasets import DATA_SETS, DataSet
from softprune.train.data.digits import load_digits
from softprune.train.data.files import MissingError
from softprune.train.data.source import Epoch, MemorySamples


def test_the_digits_are_as_they_are_and_never_augmented():
    source = open_data("digits")
    digits = load_digits()
    assert (source.name, source.classes, source.example_shape) == ("digits", 10, (1, 1, 8, 8))
    assert (source.train_size, source.test_size) == (1280, 517)
    images, labels = zip(*source.test_epoch(batch=100), strict=True)
    assert torch.equal(torch.cat(images), digits.test_images)
    assert torch.equal(torch.cat(labels), digits.test_labels)
    picked, targets = next(source.train_epoch(Epoch(number=4, seed=0, batch=1280)))
    assert torch.equal(picked.sum((0, 1)), digits.train_images.sum((0, 1)))
    assert torch.equal(torch.bincount(targets), torch.bincount(digits.train_labels))


def test_a_subset_is_balanced_and_leaves_the_test_samples_alone():
    source = open_data("digits", subset=200)
    assert (source.train_size, source.test_size) == (200, 517)
    assert source.steps(64, drop_last=False) == 4
    (_, labels), *_ = source.train_epoch(Epoch(number=0, seed=0, batch=200))
    assert torch.bincount(labels).tolist() == [20] * 10
    with pytest.raises(ValueError, match="1 to 1280 training samples; got 1281"):
        open_data("digits", subset=1281)


def test_a_root_may_be_a_string_or_a_path(tmp_path):
    write_image_folder(tmp_path)
    for root in (str(tmp_path), tmp_path):
        assert open_data("image-folder", root=root, image_size=8).train_size == 8


def test_a_normalisation_for_three_colours_is_refused_elsewhere(tmp_path):
    for name in ("digits", "mnist", "mypackage.data:loaders"):
        message = f"normalise='imagenet' has no effect with {name}, only with cifar10 and image-folder"
        with pytest.raises(ValueError, match=message):
            open_data(name, normalise="imagenet")
    with pytest.raises(ValueError, match="normalise is own or imagenet; got 'cifar'"):
        open_data("cifar10", normalise="cifar")
    write_image_folder(tmp_path)
    own, other = (
        next(open_data("image-folder", root=tmp_path, image_size=8, normalise=n).test_epoch(batch=2))[0]
        for n in ("own", "imagenet")
    )
    assert torch.equal(own, other)


@pytest.mark.parametrize(
    ("name", "near"), [("cifar", "cifar10"), ("CIFAR10", "cifar10"), ("fashion_mnist", "fashion-mnist")]
)
def test_an_unknown_name_gets_the_nearest(name, near):
    with pytest.raises(ValueError, match=f"no data set '{name}': did you mean {near}"):
        open_data(name)
    with pytest.raises(ValueError, match=f"did you mean {near}"):
        where_to_get(name)


def test_a_name_like_none_gets_all():
    with pytest.raises(ValueError, match="choose digits, mnist, fashion-mnist, cifar10, image-folder"):
        open_data("zzz")


@pytest.mark.parametrize("name", DATA_SETS)
def test_there_is_a_sentence_for_each(name):
    assert where_to_get(name).endswith(".")


@pytest.mark.parametrize("name", [name for name in DATA_SETS if name != "digits"])
def test_missing_data_is_said_with_the_folder_and_the_sentence(tmp_path, name):
    with pytest.raises(FileNotFoundError) as caught:
        open_data(name, root=tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert where_to_get(name) in str(caught.value)


def test_without_a_root_the_folder_data_is_looked_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"^data: no files of cifar10"):
        open_data("cifar10")
    write_image_folder(tmp_path / "data")
    assert open_data("image-folder", image_size=8).train_size == 8


def test_a_size_of_images_that_have_one_is_refused():
    with pytest.raises(ValueError, match="image_size=32 has no effect with cifar10, only with image-folder"):
        open_data("cifar10", image_size=32)


def test_one_record_makes_a_data_set_known_everywhere(tmp_path, monkeypatch):
    def read(given):
        if not (given["root"] / "file").exists():
            raise MissingError(f"{given['root']}: no file there")
        samples = MemorySamples(torch.zeros(6, 4, 5), torch.tensor([0, 1, 2, 0, 1, 2]))
        return samples, samples

    record = DataSet(
        "six", read, sizes=(6, 6), shape=(4, 5), classes=3, origin="Make them.", licence="MIT", places="the root",
        options=("held",),
    )  # fmt: skip
    monkeypatch.setitem(DATA_SETS, "six", record)
    with pytest.raises(FileNotFoundError, match=r"no file there\. Make them\.$"):
        open_data("six", root=tmp_path)
    (tmp_path / "file").touch()
    source = open_data("six", root=tmp_path, subset=3)
    assert (source.train_size, source.test_size, source.classes, source.example_shape) == (3, 6, 3, (1, 4, 5))
    config = RunConfig.load("digits/dense", ["data=six", "data.held=validation"])
    assert (config.data.name, where_to_get("six")) == ("six", "Make them.")
    with pytest.raises(ConfigError, match=r"data\.shift: 2 has no effect with six, only with har2 and google12"):
        RunConfig.load("digits/dense", ["data=six", "data.shift=2"])
    with pytest.raises(ConfigError, match=r"held: 'validation' has no effect with digits, only with .* and six; leave"):
        RunConfig.load("digits/dense", ["data.held=validation"])


def test_workers_cannot_be_negative():
    with pytest.raises(ValueError, match="workers is 0 or more; got -1"):
        open_data("digits", workers=-1)


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_data.py").write_text(
        "import torch\n"
        "from softprune.train.data import LoaderSource\n"
        "batches = [(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))]\n"
        "def source(): return LoaderSource(batches, batches, classes=4, name='own')\n"
        "class Loader(list):\n"
        "    class dataset:\n"
        "        classes = ['a', 'b']\n"
        "def loaders(): return Loader(batches), batches\n"
        "def nothing(): return None\n"
        "number = 3\n"
    )
    (tmp_path / "needs_more.py").write_text("import surely_absent\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for module in ("own_data", "needs_more"):
        sys.modules.pop(module, None)


def test_a_factory_returns_a_source_or_a_pair(own):
    source = open_data("own_data:source")
    assert isinstance(source, Source)
    assert (source.name, source.classes) == ("own", 4)
    pair = open_data("own_data:loaders")
    assert isinstance(pair, LoaderSource)
    assert (pair.name, pair.classes, pair.train_size) == ("own_data:loaders", 2, 2)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("own_data:absent", ValueError, "own_data has no callable 'absent'"),
        ("own_data:number", ValueError, "own_data has no callable 'number'"),
        ("own_data:nothing", TypeError, "returned a NoneType, not a Source or a pair of loaders"),
        ("surely.absent:f", ValueError, "there is no module 'surely'"),
        ("needs_more:f", ModuleNotFoundError, "surely_absent"),
        (":f", ValueError, "not of the form package.module:factory"),
    ],
)
def test_a_factory_that_is_none_is_refused(own, name, error, message):
    with pytest.raises(error, match=message):
        open_data(name)


@pytest.mark.parametrize("options", [{"root": "data"}, {"subset": 3}, {"augment": False}])
def test_what_a_factory_decides_cannot_be_asked_for(own, options):
    with pytest.raises(ValueError, match="has no effect with own_data:source, which makes its own data"):
        open_data("own_data:source", **options)
