"""Images of every mode become RGB; a damaged one is refused by name."""

import sys

import numpy as np
import pytest
from PIL import Image

from softprune.train.data.image_folder import open_rgb

GRADIENT = np.linspace(0, 255, 16 * 16).astype(np.uint8).reshape(16, 16)


def save(path, image, **options):
    image.save(path, **options)
    return path


def test_grey_has_equal_channels(tmp_path):
    found = np.asarray(open_rgb(save(tmp_path / "a.png", Image.fromarray(GRADIENT))))
    assert found.shape == (16, 16, 3)
    assert all(np.array_equal(found[..., channel], GRADIENT) for channel in range(3))


def test_colour_is_untouched(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(open_rgb(save(tmp_path / "a.png", Image.fromarray(pixels)))), pixels)


def test_cmyk_jpeg(tmp_path):
    path = save(tmp_path / "a.JPEG", Image.new("CMYK", (16, 16), (0, 255, 255, 0)), quality=95)
    assert Image.open(path).mode == "CMYK"
    found = np.asarray(open_rgb(path)).reshape(-1, 3).mean(0)
    assert found[0] > 240  # no cyan, all magenta and yellow: red
    assert found[1:].max() < 15


@pytest.mark.parametrize("transparency", [None, 3, bytes([0, 128, 255])])
def test_palette(tmp_path, transparency):
    image = Image.new("P", (4, 4), 2)
    image.putpalette([0, 0, 0, 10, 20, 30, 200, 100, 50])
    options = {} if transparency is None else {"transparency": transparency}
    path = save(tmp_path / "a.png", image, **options)
    assert Image.open(path).mode == "P"
    assert open_rgb(path).getpixel((1, 1)) == (200, 100, 50)


@pytest.mark.parametrize(
    ("mode", "colour", "expected"), [("RGBA", (9, 8, 7, 0), (9, 8, 7)), ("LA", (5, 100), (5, 5, 5))]
)
def test_alpha_is_dropped(tmp_path, mode, colour, expected):
    assert open_rgb(save(tmp_path / "a.png", Image.new(mode, (3, 3), colour))).getpixel((0, 0)) == expected


def test_black_and_white(tmp_path):
    assert open_rgb(save(tmp_path / "a.png", Image.new("1", (3, 3), 1))).getpixel((0, 0)) == (255, 255, 255)


def test_sixteen_bits_keep_their_shades(tmp_path):
    path = save(tmp_path / "a.png", Image.fromarray(GRADIENT.astype(np.uint16) * 257))
    assert Image.open(path).mode.startswith("I")
    assert np.array_equal(np.asarray(open_rgb(path))[..., 0], GRADIENT)


def test_the_orientation_in_exif_is_ignored(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter
    path = save(tmp_path / "a.jpg", Image.new("RGB", (20, 10)), exif=exif)
    assert open_rgb(path).size == (20, 10)


def test_damaged_exif_does_no_harm(tmp_path, recwarn):
    path = save(
        tmp_path / "a.jpg", Image.new("RGB", (20, 10), (200, 0, 0)), exif=b"Exif\0\0MM\0*\xff\xff\xff\xff\1\2\3"
    )
    assert open_rgb(path).size == (20, 10)
    assert not recwarn.list


def test_a_png_that_is_called_jpeg(tmp_path):
    save(tmp_path / "a.png", Image.new("RGB", (5, 5), (1, 2, 3))).rename(tmp_path / "a.JPEG")
    assert open_rgb(tmp_path / "a.JPEG").getpixel((0, 0)) == (1, 2, 3)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("kept", [0.0, 0.02, 0.5, 0.9])
def test_a_truncated_image_is_refused_by_name(tmp_path, suffix, kept):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = save(tmp_path / f"broken.{suffix}", Image.fromarray(pixels))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(ValueError, match=rf"broken\.{suffix}: cannot be decoded as an image"):
        open_rgb(path)


def test_what_is_no_image_is_refused_by_name(tmp_path):
    (tmp_path / "a.jpg").write_text("<html>not found</html>")
    with pytest.raises(ValueError, match=r"a\.jpg: cannot be decoded"):
        open_rgb(tmp_path / "a.jpg")


def test_an_absent_file_is_absent(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a\.jpg"):
        open_rgb(tmp_path / "a.jpg")


def test_without_pillow_the_command_that_installs_it_is_said(tmp_path, monkeypatch):
    path = save(tmp_path / "a.png", Image.new("RGB", (3, 3)))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'softprune\[images\]'"):
        open_rgb(path)
