"""What is seen of a tensor near the border, by hand."""

import math

import numpy as np
import pytest
import torch

from softprune.goals.select import Bounds, Ranked


def seen(ranked, low, high):
    window = ranked.window(Bounds(low, high))
    return window.found.position.tolist(), window.key.tolist(), window.found.above


def test_keys_at_either_end_of_the_bracket_are_in_it():
    w = torch.tensor([0.25, -0.5, 0.75, -1.0, 1.5, 0.0])
    assert seen(Ranked(w, torch.ones(1)), 0.5, 1.0) == ([1, 2, 3], [0.5, 0.75, 1.0], 1)
    # With t = 1/2 the keys are twice the sizes.
    assert seen(Ranked(w, torch.tensor([0.5])), 1.0, 2.0) == ([1, 2, 3], [1.0, 1.5, 2.0], 1)
    assert seen(Ranked(w, torch.ones(1)), 0.0, math.inf) == ([0, 1, 2, 3, 4], [0.25, 0.5, 0.75, 1.0, 1.5], 0)


def test_in_half_precision_a_weight_just_above_the_bracket_is_in_it():
    # What is less than 2^-24 above its threshold may be 0 in float16 after subtracting it.
    w = torch.tensor([2.0**-10, 2.0**-10 + 2.0**-20, 2.0**-10 + 2.0**-19], dtype=torch.float16)
    assert Ranked(w, torch.ones(1)).slack == 2.0**-24
    assert Ranked(w.float(), torch.ones(1)).slack == 0.0
    fine = torch.tensor([2.0**-14 + k * 2.0**-24 for k in range(4)], dtype=torch.float16)
    places, _, above = seen(Ranked(fine, torch.ones(1)), 2.0**-14, 2.0**-14)
    assert (places, above) == ([0, 1], 2)
    assert seen(Ranked(fine.float(), torch.ones(1)), 2.0**-14, 2.0**-14)[2] == 3


def test_rows_and_groups_have_their_own_scales():
    w = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    by_row = Ranked(w, torch.tensor([[1.0], [4.0]]))
    assert by_row.groups is None and by_row.scales.tolist() == [1.0, 4.0]
    # The keys are 1 2 3 and 1, 1.25, 1.5.
    assert seen(by_row, 1.1, 1.6) == ([4, 5], [1.25, 1.5], 2)
    assert by_row.window(Bounds(1.1, 1.6)).row.tolist() == [1, 1]
    by_column = Ranked(w, torch.tensor([[1.0, 2.0, 4.0]]))
    assert by_column.groups.tolist() == [0, 1, 2, 0, 1, 2] and by_column.scales.tolist() == [1, 2, 4, 1, 2, 4]
    # The keys are 1 1 0.75 and 4 2.5 1.5.
    assert seen(by_column, 0.9, 2.0) == ([0, 1, 5], [1.0, 1.0, 1.5], 2)
    assert Ranked(w, torch.ones(1)).window(Bounds(0.5, 9.0)).row is None


def test_what_was_just_seen_is_not_read_again_until_it_is_forgotten():
    ranked = Ranked(torch.tensor([1.0, 2.0]), torch.ones(1))
    near = ranked.window(Bounds(0.5, 3.0))
    ranked.w[0] = 2.5
    assert ranked.window(Bounds(0.5, 3.0)) is near
    ranked.forget()
    assert ranked.window(Bounds(0.5, 3.0)).key.tolist() == [2.5, 2.0]
    ranked.window(Bounds(0.5, 4.0))
    ranked.w[0] = 1.0
    assert ranked.window(Bounds(0.5, 3.0)).key.tolist() == [1.0, 2.0], "other bounds took its place"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_thresholds_are_rounded_outwards(dtype):
    # A third has no float: a key at the border that rounding brings to the wrong side is still looked at.
    w = torch.tensor([1.0 / 3.0], dtype=dtype)
    scale = torch.tensor([0.7], dtype=dtype)
    key = float(w.numpy().astype(np.float64)[0] / scale.numpy().astype(np.float64)[0])
    assert seen(Ranked(w, scale), key, key) == ([0], [key], 0)
