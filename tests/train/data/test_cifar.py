"""CIFAR-10 in its three layouts: the same samples from each, and damage refused by name."""

from dataclasses import replace

import pytest
import torch
from data_files import (
    COUNTS,
    cifar_records,
    python2_pickle,
    with_sums,
    write_cifar_binary,
    write_cifar_png,
    write_cifar_python,
)
from PIL import Image
from real_data import data_root

from softprune.train.data.cifar import BINARY, LAYOUTS, NORMALISE, PNG, PYTHON, TEST_FILE, TRAIN_FILES, read_cifar10
from softprune.train.data.datasets import open_data
from softprune.train.data.files import Counts
from softprune.train.data.source import Epoch

WRITERS = {
    "binary": (BINARY, write_cifar_binary),
    "python": (PYTHON, write_cifar_python),
    "png": (PNG, write_cifar_png),
}


def written(folder, kind):
    """Files of one layout, and the layout with their sums."""
    layout, write = WRITERS[kind]
    records = write(folder)
    if layout is PNG:
        return with_sums(layout, {file: array.tobytes() for file, array in records.items()})
    return with_sums(layout, {file: (folder / f"{file}{layout.suffix}").read_bytes() for file in records})


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("below", [False, True])
def test_each_layout_gives_the_same_samples(tmp_path, kind, below):
    folder = tmp_path / WRITERS[kind][0].folder if below else tmp_path
    layout = written(folder, kind)
    train, test = read_cifar10(tmp_path, layouts=[layout], counts=COUNTS)
    records = cifar_records()
    expected = torch.cat([torch.from_numpy(records[file]) for file in TRAIN_FILES])
    assert torch.equal(train.images.flatten(1), expected[:, 1:])
    assert torch.equal(train.labels, expected[:, 0].long())
    assert torch.equal(test.images.flatten(1), torch.from_numpy(records[TEST_FILE][:, 1:]))
    assert train.images.shape == (20, 3, 32, 32)
    assert train.images.is_contiguous()


def test_the_planes_are_red_green_and_blue_row_by_row(tmp_path):
    layout = written(tmp_path, "binary")
    _, test = read_cifar10(tmp_path, layouts=[layout], counts=COUNTS)
    record = cifar_records()[TEST_FILE][0]
    assert test.images[0, 1, 2, 3] == record[1 + 1024 + 2 * 32 + 3]


@pytest.mark.parametrize("kind", WRITERS)
def test_every_file_is_checked_against_its_sum(tmp_path, kind):
    layout = written(tmp_path, kind)
    layout = replace(layout, sums={**layout.sums, "data_batch_3": "0" * 40})
    with pytest.raises(
        ValueError, match=f"data_batch_3{layout.suffix}: expected the {layout.algorithm} sum 0000.*found"
    ):
        read_cifar10(tmp_path, layouts=[layout], counts=COUNTS)


def test_the_official_sums_refuse_other_files(tmp_path):
    write_cifar_binary(tmp_path)
    with pytest.raises(ValueError, match=r"data_batch_1\.bin: expected the sha1 sum aadd24ac.*of 12,292 bytes.*kriz"):
        open_data("cifar10", root=tmp_path)


@pytest.mark.parametrize("kind", WRITERS)
def test_an_absent_file_is_named(tmp_path, kind):
    layout = written(tmp_path, kind)
    (tmp_path / f"data_batch_4{layout.suffix}").unlink()
    with pytest.raises(FileNotFoundError, match=f"data_batch_4{layout.suffix}: the file is not there"):
        read_cifar10(tmp_path, layouts=[layout], counts=COUNTS)


def test_an_empty_root_is_named_with_the_way_to_get_the_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no files of cifar10 there.*cifar-10-batches-bin") as caught:
        open_data("cifar10", root=tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in str(caught.value)


def test_a_binary_file_with_half_a_record_is_refused(tmp_path):
    layout = written(tmp_path, "binary")
    cut = (tmp_path / "test_batch.bin").read_bytes()[:-1]
    (tmp_path / "test_batch.bin").write_bytes(cut)
    layout = replace(layout, sums={**layout.sums, **with_sums(BINARY, {TEST_FILE: cut}).sums})
    with pytest.raises(ValueError, match=r"test_batch\.bin: expected records of 3073 bytes, found 30,729"):
        read_cifar10(tmp_path, layouts=[layout], counts=COUNTS)


def test_wrong_labels_are_refused(tmp_path):
    layout = written(tmp_path, "binary")
    with pytest.raises(ValueError, match="expected the labels 0 to 9 to occur"):
        read_cifar10(tmp_path, layouts=[layout], counts=Counts(train=(3, 1, *COUNTS.train[2:]), test=COUNTS.test))


def with_python_file(folder, content):
    """The python layout with one file replaced; its sum is right, so that its content is what is judged."""
    layout = written(folder, "python")
    (folder / "data_batch_2").write_bytes(content)
    return replace(layout, sums={**layout.sums, **with_sums(PYTHON, {"data_batch_2": content}).sums})


def test_a_malicious_pickle_is_refused_and_does_not_run(tmp_path):
    victim = tmp_path / "ran"
    content = b"cos\nsystem\n(S'touch " + str(victim).encode() + b"'\ntR."
    layout = with_python_file(tmp_path, content)
    with pytest.raises(ValueError, match=r"data_batch_2: not a pickle of plain arrays: it asks for os\.system"):
        read_cifar10(tmp_path, layouts=[layout], counts=COUNTS)
    assert not victim.exists()


RECORDS = cifar_records()["data_batch_2"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (python2_pickle(RECORDS[:, 1:], [1, 2, 3, 4])[:-100], "not a pickle of plain arrays"),
        (python2_pickle(RECORDS[:, 1:-1], [1, 2, 3, 4]), r"expected uint8 data \[n, 3072\]"),
        (python2_pickle(RECORDS[:, 1:], [1, 2, 3]), "expected 4 labels from 0 to 9, found"),
        (python2_pickle(RECORDS[:, 1:], [1, 2, 3, 10]), "expected 4 labels from 0 to 9, found"),
        (b"\x80\x02]K\x01a.", r"expected uint8 data \[n, 3072\]"),
    ],
)
def test_a_pickle_without_the_right_arrays_is_refused_by_name(tmp_path, content, message):
    layout = with_python_file(tmp_path, content)
    with pytest.raises(ValueError, match=message) as caught:
        read_cifar10(tmp_path, layouts=[layout], counts=COUNTS)
    assert str(tmp_path / "data_batch_2") in str(caught.value)


def test_png_without_its_labels_is_refused(tmp_path):
    layout = written(tmp_path, "png")
    (tmp_path / "train_lables.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"train_lables\.json: the file is not there"):
        read_cifar10(tmp_path, layouts=[layout], counts=COUNTS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "expected a JSON file, found"),
        ("{", "expected a JSON file, found"),
        ('{"a": 1}', "expected 4 labels from 0 to 9, found 0 among 0"),
        ("[[1, 2], [3], 4, 5" + ", 1" * 16 + "]", "expected 4 labels from 0 to 9, found 2 among 4"),
        ("[" + " " * (1 << 20) + "]", "expected at most 1,048,576 bytes, found 1,048,578"),
    ],
    ids=["deep", "cut", "object", "ragged", "long"],
)
def test_labels_of_png_that_are_none_are_refused(tmp_path, content, message):
    layout = written(tmp_path, "png")
    (tmp_path / "train_lables.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_cifar10(tmp_path, layouts=[layout], counts=COUNTS)


def test_png_with_more_pixels_than_ten_thousand_images_is_refused(tmp_path):
    layout = written(tmp_path, "png")
    Image.new("1", (1024, 10_001)).save(tmp_path / "data_batch_1.png")
    with pytest.raises(ValueError, match="expected at most 10,240,000 pixels, found 1024 x 10001"):
        read_cifar10(tmp_path, layouts=[layout], counts=COUNTS)
    Image.new("RGB", (1023, 4)).save(tmp_path / "data_batch_1.png")
    with pytest.raises(ValueError, match="expected 1024 pixels a row"):
        read_cifar10(tmp_path, layouts=[layout], counts=COUNTS)


@pytest.mark.parametrize(("kind", "most"), [("binary", "30,730,000"), ("python", "34,924,304")])
def test_a_file_longer_than_the_format_is_not_read(tmp_path, kind, most):
    layout = written(tmp_path, kind)
    with (tmp_path / f"data_batch_3{layout.suffix}").open("r+b") as file:
        file.truncate(8 << 30)  # takes no place on the disk
    with pytest.raises(ValueError, match=f"expected at most {most} bytes, found 8,589,934,592"):
        read_cifar10(tmp_path, layouts=[layout], counts=COUNTS)


def test_the_layouts_have_the_six_official_files():
    assert all(set(layout.sums) == {*TRAIN_FILES, TEST_FILE} for layout in LAYOUTS)


def test_the_real_cifar10():
    root = data_root("SOFTPRUNE_CIFAR10", "cifar-10-batches-bin/test_batch.bin")
    source = open_data("cifar10", root=root)
    assert (source.train_size, source.test_size, source.classes) == (50_000, 10_000, 10)
    assert source.example_shape == (1, 3, 32, 32)
    assert source._train.labels[:5].tolist() == [6, 9, 9, 4, 1]
    assert source._test.labels[:5].tolist() == [3, 8, 8, 0, 6]
    # A tenth of the images has the mean and deviation of all to two digits.
    pixels = source._train.images[::10].double() / 255
    torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.tensor(NORMALISE.mean).double(), rtol=0, atol=5e-3)
    torch.testing.assert_close(pixels.std((0, 2, 3)), torch.tensor(NORMALISE.std).double(), rtol=0, atol=5e-3)
    images, labels = next(source.train_epoch(Epoch(number=0, seed=0, batch=512, start=3)))
    assert images.shape == (512, 3, 32, 32)
    assert torch.bincount(labels, minlength=10).min() > 20
    # The same pixels, normalised as many trained networks expect them.
    (own, _), (other, _) = (
        next(s.test_epoch(batch=8)) for s in (source, open_data("cifar10", root=root, normalise="imagenet"))
    )
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (NORMALISE.mean, NORMALISE.std))
    red_green_blue = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    torch.testing.assert_close(other, (own * std + mean - red_green_blue) / deviation, rtol=0, atol=1e-5)
