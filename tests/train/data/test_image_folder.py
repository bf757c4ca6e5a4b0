"""Image folders: labels by folder, crops as defined, the same with worker processes, real JPEGs of every kind."""

import shutil
import zipfile

import numpy as np
import pytest
import torch
from data_files import write_image_folder
from PIL import Image
from real_data import shared

from softprune.train.data.augment import Draws, Purpose, central_box, random_box, resized
from softprune.train.data.datasets import open_data
from softprune.train.data.image_folder import NORMALISE, open_rgb, read_image_folder
from softprune.train.data.source import Epoch


def normalised(image):
    return NORMALISE(torch.from_numpy(np.array(image)).permute(2, 0, 1)[None])[0]


def test_labels_follow_the_sorted_folders_and_files_are_sorted(tmp_path):
    write_image_folder(tmp_path)
    (tmp_path / "train" / "n01" / "notes.txt").write_text("no image")
    (tmp_path / "train" / ".cache").mkdir()
    nested = tmp_path / "train" / "n02" / "images"
    nested.mkdir()
    shutil.move(tmp_path / "train" / "n02" / "n02_3.JPEG", nested / "n02_3.JPEG")
    train, test = read_image_folder(tmp_path)
    assert train.labels.tolist() == [0] * 4 + [1] * 4
    assert test.labels.tolist() == [0, 0, 1, 1]
    names = [train.path(index).relative_to(tmp_path / "train").as_posix() for index in range(8)]
    assert names == [*(f"n01/n01_{i}.JPEG" for i in range(4)), "n02/images/n02_3.JPEG",
                     *(f"n02/n02_{i}.JPEG" for i in range(3))]  # fmt: skip


def test_a_training_image_is_cropped_resized_and_mirrored_by_its_own_numbers(tmp_path):
    write_image_folder(tmp_path)
    train, _ = read_image_folder(tmp_path, image_size=16)
    draws, indices = Draws(seed=1, epoch=2), torch.tensor([5, 0, 3, 6])
    images, labels = train.batch(indices, draws=draws)
    assert images.shape == (4, 3, 16, 16)
    assert images.is_contiguous()
    assert labels.tolist() == [1, 0, 0, 1]
    mirrored = 0
    for found, index in zip(images, indices, strict=True):
        key = index.view(1)

        def number(purpose, key=key):
            return draws.floats(key, purpose).item()

        box = random_box(
            40,
            30,
            areas=[number(Purpose.CROP_AREA + attempt) for attempt in range(10)],
            ratios=[number(Purpose.CROP_RATIO + attempt) for attempt in range(10)],
            row=number(Purpose.ROW),
            column=number(Purpose.COLUMN),
        )
        image = open_rgb(train.path(int(index))).crop(box).resize((16, 16), Image.Resampling.BILINEAR)
        if draws.integers(key, Purpose.FLIP, below=2).item():
            image, mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), mirrored + 1
        assert torch.equal(found, normalised(image))
    assert 0 < mirrored < 4


def test_a_test_image_is_resized_and_its_centre_cut_out(tmp_path):
    write_image_folder(tmp_path)
    _, test = read_image_folder(tmp_path)
    images, _ = test.batch(torch.tensor([2]), draws=None)
    image = open_rgb(test.path(2)).resize(resized(40, 30, short=256), Image.Resampling.BILINEAR)
    assert image.size == (341, 256)
    assert torch.equal(images[0], normalised(image.crop(central_box(341, 256, side=224))))


def test_without_augmentation_training_images_are_treated_as_test_images(tmp_path):
    write_image_folder(tmp_path)
    train, _ = read_image_folder(tmp_path, augment=False, image_size=16)
    plain, _ = train.batch(torch.arange(8), draws=None)
    assert torch.equal(train.batch(torch.arange(8), draws=Draws(0, 0))[0], plain)


def test_workers_batches_and_ranks_make_no_difference(tmp_path):
    write_image_folder(tmp_path)
    alone = open_data("image-folder", root=tmp_path, image_size=16)
    helped = open_data("image-folder", root=tmp_path, image_size=16, workers=2)
    assert alone.example_shape == (1, 3, 16, 16)
    assert alone.classes == 2
    expected = list(alone.train_epoch(Epoch(number=1, seed=0, batch=3)))
    for (images, labels), (expected_images, expected_labels) in zip(
        helped.train_epoch(Epoch(number=1, seed=0, batch=3)), expected, strict=True
    ):
        assert torch.equal(images, expected_images)
        assert torch.equal(labels, expected_labels)
    everything = torch.cat([images for images, _ in expected])
    assert torch.equal(next(alone.train_epoch(Epoch(number=1, seed=0, batch=8)))[0], everything)
    shares = [next(helped.train_epoch(Epoch(number=1, seed=0, batch=8, rank=rank, world=2)))[0] for rank in range(2)]
    assert torch.equal(torch.stack(shares, dim=1).flatten(0, 1), everything)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_is_named_also_from_a_worker(tmp_path, workers):
    write_image_folder(tmp_path)
    broken = tmp_path / "train" / "n02" / "n02_1.JPEG"
    broken.write_bytes(broken.read_bytes()[:300])
    source = open_data("image-folder", root=tmp_path, image_size=16, workers=workers)
    with pytest.raises(ValueError, match=r"n02_1\.JPEG: cannot be decoded"):
        list(source.train_epoch(Epoch(number=0, seed=0, batch=4)))


def test_folders_that_do_not_fit_are_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"train: there is no such folder.*train/<class>/"):
        open_data("image-folder", root=tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(FileNotFoundError, match="train: expected one folder for each class"):
        read_image_folder(tmp_path)
    shutil.rmtree(tmp_path / "train")
    write_image_folder(tmp_path)
    shutil.copytree(tmp_path / "val" / "n01", tmp_path / "val" / "n07")
    with pytest.raises(ValueError, match=r"val: expected the classes of .*train, found \['n07'\] besides"):
        read_image_folder(tmp_path)
    shutil.rmtree(tmp_path / "val" / "n07")
    (tmp_path / "train" / "n03").mkdir()
    with pytest.raises(FileNotFoundError, match=r"n03: expected images .* found none"):
        read_image_folder(tmp_path)
    with pytest.raises(ValueError, match="image_size=0"):
        read_image_folder(tmp_path, image_size=0)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    with zipfile.ZipFile(shared("data", "imagenet_mini", "imagenet_mini.zip")) as archive:
        archive.extractall(folder)
    return folder


def test_all_tiny_imagenet_jpegs_decode(real):
    root = real / "tiny-imagenet-20"
    source = open_data("image-folder", root=root, image_size=56)
    assert (source.train_size, source.test_size, source.classes) == (2000, 500, 20)
    train = list(source.train_epoch(Epoch(number=0, seed=0, batch=250)))
    test = list(source.test_epoch(batch=250))
    assert torch.bincount(torch.cat([labels for _, labels in train])).tolist() == [100] * 20
    assert torch.bincount(torch.cat([labels for _, labels in test])).tolist() == [25] * 20
    images = torch.cat([images for images, _ in train + test])
    assert images.shape == (2500, 3, 56, 56)
    assert images.isfinite().all()
    assert images.flatten(1).std(1).min() > 0.02  # none is blank
    # The README of the files counts 24 grey ones; their channels are equal before normalisation.
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (NORMALISE.mean, NORMALISE.std))
    pixels = images * std + mean
    grey = (pixels - pixels[:, :1]).abs().amax((1, 2, 3)) < 1e-4
    assert grey.sum() >= 24


def test_the_full_size_jpegs_decode(real):
    # Validation images only, so they serve as training images too.
    root = real / "imagenet-fullsize"
    shutil.copytree(root / "val", root / "train")
    source = open_data("image-folder", root=root)
    (images, labels), *_ = source.train_epoch(Epoch(number=0, seed=0, batch=23))
    (test_images, test_labels), *_ = source.test_epoch(batch=23)
    assert images.shape == test_images.shape == (23, 3, 224, 224)
    assert labels.sort().values.tolist() == test_labels.tolist() == list(range(23))
    modes = [Image.open(path).mode for path in sorted((root / "val").rglob("*.JPEG"))]
    assert modes.count("L") == 3
