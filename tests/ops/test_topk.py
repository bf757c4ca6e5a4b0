"""Masks of the largest and of random places, counted and drawn exactly."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softprune.ops import at_random, largest


def places(mask):
    return mask.int().tolist()


def test_the_largest_by_hand():
    scores = torch.tensor([0.5, 0.1, 0.9, 0.3, 0.7])
    assert places(largest(scores, 2)) == [0, 0, 1, 0, 1]
    assert places(largest(scores, 3)) == [1, 0, 1, 0, 1]


def test_equal_scores_go_by_position():
    assert places(largest(torch.tensor([2.0, 1.0, 2.0, 2.0]), 2)) == [1, 0, 1, 0]
    assert places(largest(torch.zeros(4), 3)) == [1, 1, 1, 0]


@pytest.mark.parametrize(("count", "kept"), [(-1, 0), (0, 0), (4, 4), (9, 4)])
def test_numbers_beyond_the_tensor(count, kept):
    assert int(largest(torch.arange(4.0), count).sum()) == kept
    assert int(at_random(torch.ones(4, dtype=torch.bool), count, torch.Generator()).sum()) == kept


def test_the_shape_is_that_of_the_scores():
    scores = torch.tensor([[1.0, 4.0], [3.0, 2.0]])
    assert largest(scores, 2).tolist() == [[False, True], [True, False]]
    assert largest(scores.T, 2).tolist() == [[False, True], [True, False]]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8), st.integers(0, 8))
def test_no_score_outside_is_larger_than_one_inside(scores, count):
    values = torch.tensor(scores, dtype=torch.float32)
    chosen = largest(values, count)
    assert int(chosen.sum()) == min(count, len(scores))
    if chosen.any() and not chosen.all():
        assert values[chosen].min() >= values[~chosen].max()


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 8), st.integers(0, 99))
def test_a_draw_is_exact_stays_among_its_places_and_repeats(allowed, count, seed):
    among = torch.tensor(allowed)
    drawn = at_random(among, count, torch.Generator().manual_seed(seed))
    assert int(drawn.sum()) == min(count, sum(allowed))
    assert not (drawn & ~among).any()
    assert torch.equal(drawn, at_random(among, count, torch.Generator().manual_seed(seed)))


def test_every_place_is_drawn_about_as_often():
    generator = torch.Generator().manual_seed(0)
    among = torch.tensor([True, False, True, True, True])
    counts = sum(at_random(among, 2, generator).int() for _ in range(2000))
    assert counts[1] == 0
    assert all(900 < int(n) < 1100 for n in counts[among])


def test_the_mask_is_where_its_scores_are():
    assert largest(torch.empty(2, 3, device="meta"), 2).device.type == "meta"


def test_of_many_equal_scores_the_first_are_taken():
    scores = torch.randint(3, (50, 40), generator=torch.Generator().manual_seed(0)).float()
    flat = scores.flatten().tolist()
    order = sorted(range(len(flat)), key=lambda n: (-flat[n], n))
    for count in (1, 300, 1000, 1700):
        assert sorted(order[:count]) == largest(scores, count).flatten().nonzero().flatten().tolist()
