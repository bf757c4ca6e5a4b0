"""Google-12 from wav files and from ready features."""

import io
import json
import os
import shutil
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from real_data import shared
from sequence_files import speakers, wav, write_features, write_speech

from softprune.train.data import open_data
from softprune.train.data.files import read_wav
from softprune.train.data.speech import (
    COMMANDS,
    FILE,
    LABELS,
    NOISE,
    front_padded,
    list_clips,
    log_mel,
    read_google12,
    read_split,
    split_of,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    root = tmp_path_factory.mktemp("speech")
    write_speech(root)
    return root


@pytest.fixture
def root(original, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(original, tmp_path / "speech")


def test_words_silence_and_unknown_have_their_shares(original):
    for split, each in (("training", 3), ("validation", 1), ("testing", 1)):
        part = read_split(original, split)
        wanted = -(-each * 10 // 10)  # a tenth of the ten words' clips
        assert torch.bincount(part.labels).tolist() == [wanted, wanted, *[each] * 10]
        assert part.values.shape == (each * 10 + 2 * wanted, 99, 32)
        assert part.values.isfinite().all()


def test_a_speaker_is_in_one_split_only(original):
    heard = {
        split: {path.name.partition("_nohash_")[0] for path in list_clips(original, split).files}
        for split in ("training", "validation", "testing")
    }
    assert heard["training"] == set(speakers("training", 3))
    assert not heard["training"] & heard["validation"] | heard["training"] & heard["testing"]


def test_a_clip_is_padded_in_front_and_made_features(original):
    clips, part = list_clips(original, "training"), read_split(original, "training")
    path = clips.files[0]
    assert path.parent.name == COMMANDS[0]
    samples = read_wav(path, longest=16_000)
    assert len(samples) == 12_000
    assert torch.equal(part.values[0], log_mel(front_padded(torch.from_numpy(samples))[None])[0])
    assert LABELS[part.labels[0]] == "yes"


def test_the_same_silence_every_time_and_another_in_each_split(original):
    once, again = read_split(original, "testing"), read_split(original, "testing")
    assert torch.equal(once.values, again.values)
    assert not torch.equal(once.values[once.labels == 0], read_split(original, "validation").values[-1:])


def test_both_are_normalised_with_the_training_clips(original):
    train, test = read_google12(original)
    assert (len(train.labels), len(test.labels)) == (36, 12)
    torch.testing.assert_close(train.images.mean(0), torch.zeros(99, 32), rtol=0, atol=1e-4)
    raw = read_split(original, "training").values
    expected = (read_split(original, "testing").values - raw.mean(0)) / raw.std(0, correction=0)
    torch.testing.assert_close(test.images, expected, rtol=1e-3, atol=1e-3)
    assert len(read_google12(original, held="validation")[1].labels) == 12


@pytest.mark.parametrize("layout", ["speech_commands", "train/audio"])
def test_they_are_found_below_the_root(original, tmp_path, layout):
    (tmp_path / layout).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / layout).symlink_to(original)
    assert open_data("google12", root=tmp_path).train_size == 36


CLIP = f"yes/{speakers('training', 1)[0]}_nohash_0.wav"
SOUND = np.zeros(16_000)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (wav(SOUND, rate=8000), "expected 16000 samples a second, found 8000"),
        (wav(SOUND, channels=2), "expected one channel, found 2"),
        (wav(SOUND, width=1), "expected 16 bits a sample, found 8"),
        (wav(SOUND)[:-100], "expected 16000 samples, found 15950: cut short"),
        (wav(SOUND)[:20], "expected a wav file of 16-bit numbers, found"),
        (b"", "expected a wav file of 16-bit numbers, found"),
        (b"ID3 not a wav file at all, but long enough to be read", "expected a wav file of 16-bit numbers, found"),
        (wav(np.zeros(16_001)), "expected at most 16000 samples, found 16001"),
        (wav(SOUND)[:40] + b"\xfe\xff\xff\xff", "expected at most 16000 samples, found 2147483647"),
        (wav(SOUND)[:4] + b"\x14\0\0\0" + wav(SOUND)[8:], "expected a wav file of 16-bit numbers, found: damage"),
    ],
    ids=["rate", "stereo", "8-bit", "cut", "cut-header", "empty", "other", "long", "promise", "short-riff"],
)
def test_a_clip_that_is_not_what_it_should_be_is_named(root, content, message):
    (root / CLIP).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_google12(root)
    assert str(root / CLIP) in str(caught.value)


def test_a_folder_of_no_word_is_named(root):
    (root / "lists").mkdir()  # without a clip it does not matter
    assert len(read_google12(root)[0].labels) == 36
    (root / "hello").mkdir()
    (root / "hello" / "0_nohash_0.wav").write_bytes(wav(SOUND))
    with pytest.raises(ValueError, match="hello: expected the folder of a word of the data set"):
        read_google12(root)


@pytest.mark.parametrize("word", ["stop", NOISE])
def test_a_missing_folder_is_named(root, word):
    shutil.rmtree(root / word)
    with pytest.raises(FileNotFoundError, match=f"{word}: the folder is not there.*Speech Commands"):
        open_data("google12", root=root)


@pytest.mark.parametrize("word", ["stop", NOISE])
def test_an_empty_folder_is_named(root, word):
    for path in (root / word).iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=f"{word}: expected wav files, found none"):
        read_google12(root)


@pytest.mark.parametrize("name", ["empty", "not there"])
def test_a_root_without_words_is_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=f"{name}: neither folders of words nor .* there.*Speech Commands"):
        open_data("google12", root=tmp_path / name)


def test_noise_shorter_than_a_second_is_refused(root):
    (root / NOISE / "pink.wav").write_bytes(wav(np.zeros(15_999)))
    with pytest.raises(ValueError, match=r"pink\.wav: expected at least 16000 samples of noise, found 15999"):
        read_google12(root)


def test_noise_that_promises_more_than_ten_minutes_is_not_read(root):
    (root / NOISE / "pink.wav").write_bytes(wav(SOUND)[:40] + b"\xfe\xff\xff\xff")
    with pytest.raises(ValueError, match=r"pink\.wav: expected at most 9600000 samples, found 2147483647"):
        read_google12(root)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs")
def test_a_fifo_among_the_clips_is_refused(root):
    (root / CLIP).unlink()
    os.mkfifo(root / CLIP)
    with pytest.raises(ValueError, match="expected a regular file, found a folder, a device or a FIFO"):
        read_google12(root)


def with_member(path, name, content):
    """The zip of features with one file replaced."""
    with zipfile.ZipFile(path) as archive:
        held = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, value in {**held, name: content}.items():
            archive.writestr(key, value)


def png(width, height):
    content = io.BytesIO()
    Image.new("1", (width, height)).save(content, "PNG")
    return content.getvalue()


META = {"labels": LABELS, "step": 0.5, "floor": -20.0}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("meta.json", b" " * ((1 << 20) + 1), "expected at most 1,048,576 bytes"),
        ("meta.json", b"[" * 100_000, "expected a JSON file, found"),
        ("meta.json", b"[1, 2]", "expected the labels _silence_"),
        ("meta.json", json.dumps({**META, "labels": 5}).encode(), "expected the labels _silence_"),
        ("meta.json", json.dumps({**META, "step": "x"}).encode(), "expected a number as step in meta.json, found 'x'"),
        ("meta.json", json.dumps({**META, "floor": 1e300}).encode(), "expected a number as floor"),
        ("training/index.csv", b" " * 24_000_001, "expected at most 24,000,000 bytes"),
        ("training/index.csv", b"label\n" + b"1\n" * 120_001, "expected at most 120,000 clips in index.csv"),
        ("training/index.csv", b"name,source\n0,a\n", "expected labels from 0 to 11, found 'None'"),
        ("training/index.csv", b"source,label\n0\n", "expected labels from 0 to 11, found 'None'"),
        ("training/index.csv", b"label\n" + b"9" * 5000, "expected labels from 0 to 11, found '999"),
        ("training/index.csv", b'label\n"' + b"9" * 200_000, "expected index.csv to be a table of texts"),
        ("training/index.csv", b"\xff\xfe", "expected index.csv to be a table of texts"),
        ("training/000.png", png(32 * 5, 99), "expected at most 12,672 pixels, found 160 x 99"),
        ("training/001.png", png(32, 99), "expected at most 0 pixels, found 32 x 99"),
        ("training/000.png", b"\0" * (2 << 20), "expected at most 1,061,248 bytes, found 2,097,152"),
    ],
)
def test_a_part_beyond_the_format_is_refused(tmp_path, name, content, message):
    write_features(tmp_path / FILE)
    with_member(tmp_path / FILE, name, content)
    with pytest.raises(ValueError, match=message):
        read_google12(tmp_path)


def test_ready_features_are_read(tmp_path):
    codes = write_features(tmp_path / FILE)
    source = open_data("google12", root=tmp_path)
    assert (source.train_size, source.test_size, source.classes, source.example_shape) == (4, 4, 12, (1, 99, 32))
    values = codes * 0.5 - 20.0
    expected = (values[2] - values[0].mean(0)) / values[0].std(0)
    np.testing.assert_allclose(source._test.images.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert source._test.labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": ("a", "b")}, "expected the labels _silence_, _unknown_, yes"),
        ({"rows": 98}, r"expected training/000\.png to have 99 rows and 32 columns a clip, found \(98, 128\)"),
        ({"last_label": 12}, "expected labels from 0 to 11, found '12'"),
    ],
)
def test_other_features_are_refused(tmp_path, options, message):
    write_features(tmp_path / FILE, **options)
    with pytest.raises(ValueError, match=message):
        read_google12(tmp_path)


def test_a_truncated_zip_of_features_is_refused(tmp_path):
    write_features(tmp_path / FILE)
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-100])
    with pytest.raises(ValueError, match=rf"{FILE}: expected a whole zip file, found"):
        read_google12(tmp_path)


def test_a_part_that_is_not_in_the_zip_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / FILE, "w") as archive:
        archive.writestr("readme.txt", "")
    with pytest.raises(FileNotFoundError, match=r"meta\.json.* is not in it"):
        read_google12(tmp_path)


def test_the_split_is_that_of_the_official_lists():
    with zipfile.ZipFile(shared("data", "speech_commands", "speech_commands_v0.01_subset_flac.zip")) as archive:
        for name, split in (("validation_list.txt", "validation"), ("testing_list.txt", "testing")):
            files = archive.read(f"official_lists/{name}").decode().split()
            assert len(files) in (6798, 6835)
            assert {split_of(file) for file in files} == {split}


def test_the_real_features():
    source = open_data("google12", root=shared("data", "speech_commands", FILE))
    assert (source.train_size, source.test_size) == (22_246, 3_081)
    assert torch.bincount(source._test.labels)[:2].tolist() == [257, 257]
