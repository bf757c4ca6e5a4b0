"""HAR-2: the official zip or folder, two classes, validation by subject, and what is wrong with a file."""

import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from real_data import shared
from sequence_files import HAR_COUNTS, write_har, zipped

from softprune.train.data import open_data
from softprune.train.data.har import CLASS_OF, FOLDER, read_har2


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    root = tmp_path_factory.mktemp("har")
    return root, write_har(root)


@pytest.fixture
def root(original, tmp_path):
    """A copy that a test may damage."""
    for file in (original[0] / FOLDER).rglob("*.txt"):
        target = tmp_path / file.relative_to(original[0])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    return tmp_path


def test_windows_are_normalised_with_the_training_windows_alone(original):
    root, arrays = original
    train, test = read_har2(root, counts=HAR_COUNTS)
    mean, std = arrays["train_x"].mean(0, dtype=np.float64), arrays["train_x"].std(0, dtype=np.float64)
    np.testing.assert_allclose(train.images.numpy(), (arrays["train_x"] - mean) / std, rtol=0, atol=1e-5)
    np.testing.assert_allclose(test.images.numpy(), (arrays["test_x"] - mean) / std, rtol=0, atol=1e-5)
    assert train.labels.tolist() == [CLASS_OF[a] for a in arrays["train_y"]]
    assert abs(test.images.mean().item()) > 1e-3  # it is not normalised by itself


def test_sitting_laying_and_upstairs_are_one_class():
    assert [activity for activity, label in sorted(CLASS_OF.items()) if label == 0] == [2, 4, 6]


def test_validation_is_of_other_subjects(original):
    root, arrays = original
    train, kept = read_har2(root, held="validation", counts=HAR_COUNTS)
    of_kept = arrays["train_subjects"] == 8  # each fifth of 1, 3, 5, 6, 8
    assert (len(train.labels), len(kept.labels)) == ((~of_kept).sum(), of_kept.sum())
    mean = arrays["train_x"][~of_kept].mean(0, dtype=np.float64)
    std = arrays["train_x"][~of_kept].std(0, dtype=np.float64)
    expected = (arrays["train_x"][of_kept] - mean) / std
    np.testing.assert_allclose(kept.images.numpy(), expected, rtol=0, atol=1e-5)


def test_the_zip_and_the_zip_in_the_zip_are_the_same(original, tmp_path):
    root, _ = original
    expected = read_har2(root, counts=HAR_COUNTS)[0].images
    inner = zipped(root, tmp_path / f"{FOLDER}.zip")
    assert torch.equal(read_har2(inner, counts=HAR_COUNTS)[0].images, expected)
    assert torch.equal(read_har2(tmp_path, counts=HAR_COUNTS)[0].images, expected)
    outer = tmp_path / "outer.zip"
    with zipfile.ZipFile(outer, "w") as archive:
        archive.write(inner, inner.name)
    assert torch.equal(read_har2(outer, counts=HAR_COUNTS)[0].images, expected)


@pytest.mark.parametrize("cut", [10, 3000, -200])
def test_a_truncated_zip_is_refused(original, tmp_path, cut):
    path = zipped(original[0], tmp_path / f"{FOLDER}.zip")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"UCI HAR Dataset\.zip: expected a whole zip file, found: .*data set 240"):
        open_data("har2", root=path)


def test_a_zip_with_a_damaged_file_is_refused(original, tmp_path):
    path = zipped(original[0], tmp_path / f"{FOLDER}.zip")
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo(f"{FOLDER}/train/y_train.txt").header_offset
    content[at + 70 : at + 76] = b"\xff" * 6
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"y_train\.txt: expected a text file, found"):
        read_har2(path, counts=HAR_COUNTS)


def test_another_zip_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(ValueError, match="expected the folder 'UCI HAR Dataset' in the zip, found none"):
        read_har2(tmp_path / "other.zip")


@pytest.mark.parametrize("name", ["empty", "not there"])
def test_a_folder_without_the_files_is_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=f"{name}: no files of har2 there.*data set 240"):
        open_data("har2", root=tmp_path / name)


def test_a_missing_signal_is_named(root):
    gone = root / FOLDER / "test" / "Inertial Signals" / "body_gyro_y_test.txt"
    gone.unlink()
    with pytest.raises(FileNotFoundError, match=r"body_gyro_y_test\.txt: the file is not there"):
        read_har2(root, counts=HAR_COUNTS)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("train/y_train.txt", lambda text: "7" + text[1:], r"y_train\.txt: expected the labels 1 to 6, found 7"),
        ("train/y_train.txt", lambda text: text[:-2], r"expected 60 numbers, found 59"),
        ("train/y_train.txt", lambda text: "1" + text[1:], r"expected the labels 0 to 1 to occur \(30, 30\)"),
        ("train/Inertial Signals/total_acc_z_train.txt", lambda text: text[:5000], "expected 7,680 numbers, found"),
        ("train/Inertial Signals/total_acc_z_train.txt", lambda text: text[:400] + "x" + text[401:], "up to the first"),
        ("train/Inertial Signals/total_acc_z_train.txt", lambda text: text.replace("e+00", "e+99", 1), "up to the"),
        ("train/subject_train.txt", lambda text: text + "9\n", "expected 60 numbers, found 61"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(root, file, change, message):
    path = root / FOLDER / file
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message) as caught:
        read_har2(root, counts=HAR_COUNTS)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("inner", [False, True])
def test_a_zip_that_expands_beyond_the_format_is_not_unpacked(original, tmp_path, inner):
    path = tmp_path / "bomb.zip"
    name = f"{FOLDER}.zip" if inner else f"{FOLDER}/train/y_train.txt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open(name, "w") as file:
        for _ in range(129 if inner else 1):
            file.write(b"1" * (1 << 20))
    most, found = ("134,217,728", "135,266,304") if inner else ("1,920", "1,048,576")
    with pytest.raises(ValueError, match=f"expected at most {most} bytes, found {found}"):
        read_har2(path, counts=HAR_COUNTS)


def test_a_zip_that_lies_about_a_size_is_not_unpacked(tmp_path):
    path = tmp_path / "lie.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{FOLDER}/train/y_train.txt", b"1" * (64 << 20))
    content = bytearray(path.read_bytes())
    # Where the list at the end of the zip has the size that is looked at before.
    place = content.index(b"PK\x01\x02") + 24
    content[place : place + 4] = (120).to_bytes(4, "little")
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"y_train\.txt: expected a text file, found: Bad CRC-32"):
            read_har2(path, counts=HAR_COUNTS)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("change", ["encrypted", "packed with lzma"])
def test_other_ways_to_pack_are_refused(tmp_path, change):
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA if "lzma" in change else zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{FOLDER}/train/y_train.txt", "1\n" * 60)
    if change == "encrypted":
        content = bytearray(path.read_bytes())
        content[content.index(b"PK\x01\x02") + 8] |= 1
        path.write_bytes(content)
    with pytest.raises(ValueError, match="expected a text file, stored or deflated and without a password"):
        read_har2(path, counts=HAR_COUNTS)


def test_names_that_loop_are_no_trouble(tmp_path):
    with zipfile.ZipFile(tmp_path / "names.zip", "w") as archive:
        for name in ("//", "/", f"{FOLDER}//", f"{FOLDER}/../x"):
            archive.writestr(name, "")
    with pytest.raises(FileNotFoundError, match=r"y_train\.txt: the file is not there"):
        read_har2(tmp_path / "names.zip", counts=HAR_COUNTS)


def test_a_text_longer_than_its_numbers_is_not_read(root):
    path = root / FOLDER / "train" / "y_train.txt"
    with path.open("r+b") as file:
        file.truncate(8 << 30)  # takes no place on the disk
    with pytest.raises(ValueError, match=r"y_train\.txt: expected at most 1,920 bytes, found 8,589,934,592"):
        read_har2(root, counts=HAR_COUNTS)


@pytest.mark.parametrize("value", ["0", "31", "1.5", "1e30"])
def test_subjects_are_whole_numbers(root, value):
    path = root / FOLDER / "train" / "subject_train.txt"
    path.write_text(f"{value}\n" + "1\n" * 59)
    with pytest.raises(ValueError, match="expected the subjects 1 to 30, found"):
        read_har2(root, counts=HAR_COUNTS)


def test_too_few_subjects_for_a_validation_are_refused(root):
    path = root / FOLDER / "train" / "subject_train.txt"
    path.write_text("1\n" * 60)
    with pytest.raises(ValueError, match="1 training subjects are too few to keep a fifth of them"):
        read_har2(root, held="validation", counts=HAR_COUNTS)


def test_the_real_zip():
    source = open_data("har2", root=shared("data", "uci_har", "UCI HAR Dataset.zip"))
    assert (source.train_size, source.test_size, source.classes) == (7352, 2947, 2)
    assert source.example_shape == (1, 128, 9)
    assert source._train.images.isfinite().all()
