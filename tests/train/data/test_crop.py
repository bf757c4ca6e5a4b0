"""Boxes and sizes, computed by hand from torchvision's definitions."""

import pytest
import torch

from softprune.train.data.augment import ATTEMPTS, Draws, central_box, random_box, resized


@pytest.mark.parametrize(
    ("width", "height", "area", "ratio", "row", "column", "expected"),
    [
        # 0.08 + 0.5 * 0.92 = 0.54 of 120,000 is 64,800; ratio exp(0) = 1: side 254.6 -> 255; 46 rows, 146 columns free
        (400, 300, 0.5, 0.5, 0.5, 0.25, (36, 23, 291, 278)),
        # ratio 3/4: sqrt(48,600) = 220.5 -> 220 across, sqrt(86,400) = 293.9 -> 294 down; 7 rows, 181 columns free
        (400, 300, 0.5, 0.0, 0.999, 0.0, (0, 6, 220, 300)),
        # the smallest: 0.08 * 10,000 = 800, side 28.3 -> 28; the last place is 72
        (100, 100, 0.0, 0.5, 0.9999, 0.9999, (72, 72, 100, 100)),
    ],
)
def test_a_random_box(width, height, area, ratio, row, column, expected):
    assert random_box(width, height, areas=[area], ratios=[ratio], row=row, column=column) == expected


def test_the_first_attempt_that_fits_is_taken():
    # 0.908 of 1000 x 100 wants a side of 301; 0.08 of it wants 89, which leaves 12 rows.
    found = random_box(1000, 100, areas=[0.9, 0.9, 0.0], ratios=[0.5, 0.5, 0.5], row=0.5, column=0.0)
    assert found == (0, 6, 89, 95)


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (1000, 100, (433, 0, 566, 100)),  # too wide: 100 * 4/3 = 133 across
        (100, 1000, (0, 433, 100, 566)),  # too high: 100 / (3/4) = 133 down
        (100, 80, (0, 0, 100, 80)),  # 5:4 is in range: the whole image
    ],
)
def test_when_nothing_fits_it_is_the_largest_central_box(width, height, expected):
    found = random_box(width, height, areas=[0.99] * ATTEMPTS, ratios=[0.5] * ATTEMPTS, row=0.9, column=0.9)
    assert found == expected


def test_boxes_lie_inside_with_area_and_ratio_in_range():
    draws, indices = Draws(0, 0), torch.arange(2000)
    numbers = torch.stack([draws.floats(indices, purpose) for purpose in range(22)], dim=1).tolist()
    fractions = []
    for given in numbers:
        left, top, right, bottom = random_box(
            500, 375, areas=given[:10], ratios=given[10:20], row=given[20], column=given[21]
        )
        assert 0 <= left < right <= 500
        assert 0 <= top < bottom <= 375
        assert 0.74 < (right - left) / (bottom - top) < 1.35
        fractions.append((right - left) * (bottom - top) / (500 * 375))
    assert 0.079 < min(fractions) < 0.1
    assert 0.95 < max(fractions) <= 1


def test_one_pixel_is_enough():
    assert random_box(1, 1, areas=[0.0], ratios=[0.0], row=0.9, column=0.9) == (0, 0, 1, 1)
    assert resized(1, 1, short=256) == (256, 256)


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (500, 375, (341, 256)),
        (375, 500, (256, 341)),
        (350, 156, (574, 256)),
        (64, 64, (256, 256)),
        (300, 299, (256, 256)),
    ],
)
def test_resized(width, height, expected):
    assert resized(width, height, short=256) == expected


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [(341, 256, (58, 16, 282, 240)), (256, 343, (16, 60, 240, 284)), (224, 224, (0, 0, 224, 224))],
)
def test_the_central_box_rounds_halves_to_even(width, height, expected):
    # (341 - 224) / 2 = 58.5 -> 58; (343 - 224) / 2 = 59.5 -> 60
    assert central_box(width, height, side=224) == expected
