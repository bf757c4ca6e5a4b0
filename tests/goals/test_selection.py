"""The selection is exact: it equals a full sort, and the thresholds part what it chose."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from selected import selected

from softprune.budget.costs import PerWeight
from softprune.goals import scan as sweep
from softprune.goals import select as bracket
from softprune.goals import select as candidate
from softprune.goals.select import Bounds, Ranked, Selection
from softprune.ops import shrink


def survivors(c, found):
    return int(torch.count_nonzero(shrink(c.w, found.alpha)))


def tensors(seed, shapes, dtype=torch.float32, *, layout=torch.contiguous_format):
    chance = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=chance).to(dtype) for shape in shapes]
    return [t.to(memory_format=layout) if t.ndim == 4 else t for t in made]


SHAPES = [(16, 3, 3, 3), (40, 16), (7,), (32, 8, 1, 1)]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    fraction=st.floats(0.0, 1.0),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    grain=st.sampled_from(["tensor", "filter", "weight"]),
    layout=st.sampled_from([torch.contiguous_format, torch.channels_last]),
    coarse=st.booleans(),
)
def test_the_count_is_exact_whatever_the_dtype_the_grain_and_the_ties(seed, fraction, dtype, grain, layout, coarse):
    made = tensors(seed, SHAPES, dtype, layout=layout)
    if coarse:  # thousands of equal weights
        made = [(w * 4).round().add(0.5) for w in made]
    chance = torch.Generator().manual_seed(seed + 1)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    shapes = {
        "tensor": lambda w: (1,),
        "filter": lambda w: (w.shape[0], *[1] * (w.ndim - 1)),
        "weight": lambda w: tuple(w.shape),
    }
    candidates = [Ranked(w, torch.exp(torch.randn(shapes[grain](w), generator=chance)).to(wide)) for w in made]
    alive = sum(int(torch.count_nonzero(w)) for w in made)
    total = sum(w.numel() for w in made)
    allowed = round(fraction * total)
    found, _ = selected(candidates, allowed)
    counts = [survivors(c, f) for c, f in zip(candidates, found, strict=True)]
    assert sum(counts) == min(allowed, alive)
    assert counts == [f.kept for f in found]


@pytest.mark.parametrize("allowed", [1, 10, 500, 1000, 1334])
def test_the_largest_keys_are_kept(allowed):
    candidates = [Ranked(w, torch.tensor([t])) for w, t in zip(tensors(0, SHAPES), (0.5, 1.0, 3.0, 0.1), strict=True)]
    keys = torch.cat([(c.w.abs() / c.scale).flatten() for c in candidates])
    border = keys.sort(descending=True).values[allowed - 1]
    expected = [int(((c.w.abs() / c.scale) >= border).sum()) for c in candidates]
    assert [f.kept for f in selected(candidates, allowed)[0]] == expected


@pytest.mark.parametrize("fraction", [0.001, 0.02, 0.3, 0.9, 0.9999])
def test_a_large_total_needs_only_a_sample_and_a_look(monkeypatch, fraction):
    monkeypatch.setattr(sweep, "PIECE", 5000)
    monkeypatch.setattr(bracket, "SAMPLE", 2048)
    looks = []
    look = candidate._window
    monkeypatch.setattr(candidate, "_window", lambda *args: looks.append(1) or look(*args))
    candidates = [Ranked(w, torch.tensor([0.02])) for w in tensors(3, [(300, 400), (64, 64, 3, 3), (10, 100)])]
    allowed = round(fraction * sum(c.w.numel() for c in candidates))
    found, _ = selected(candidates, allowed)
    assert sum(survivors(c, f) for c, f in zip(candidates, found, strict=True)) == allowed
    assert len(looks) == len(candidates)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), fraction=st.floats(0.01, 0.99))
def test_a_cost_is_met_to_the_cost_of_one_weight(seed, fraction):
    candidates = [
        Ranked(w, torch.ones(1), PerWeight(cost))
        for w, cost in zip(tensors(seed, SHAPES), (900.0, 1.0, 3.0, 49.0), strict=True)
    ]
    allowed = fraction * sum(c.cost.of(c.w.numel()) for c in candidates)
    found, _ = selected(candidates, allowed)
    spent = sum(c.cost.of(survivors(c, f)) for c, f in zip(candidates, found, strict=True))
    assert allowed - 900.0 < spent <= allowed


def test_equal_weights_go_by_tensor_and_place_and_the_losers_are_lowered():
    first, second = torch.full((2, 3), 0.5), torch.full((4,), 0.5)
    candidates = [Ranked(first, torch.ones(1)), Ranked(second, torch.ones(1))]
    found, _ = selected(candidates, 8)
    assert [survivors(c, f) for c, f in zip(candidates, found, strict=True)] == [6, 2]
    assert (second == 0.5).tolist() == [True, True, False, False]
    torch.testing.assert_close(second, torch.full((4,), 0.5), rtol=1e-6, atol=0)


def test_bounds_that_are_one_key_say_nothing_of_how_dense_the_keys_are():
    keep = [np.ones(6, np.bool_), np.zeros(4, np.bool_)]
    assert [
        Selection(1.0, Bounds(*ends), keep, [6, 0]).weights_per_log
        for ends in ((1.0, 1.0), (0.0, 1.0), (1.0, math.inf), (1.0, math.e), (math.e, 1.0))
    ] == [0.0, 0.0, 0.0, 10.0, 0.0]


def test_crossing_counts_the_weights_near_the_border():
    w = torch.linspace(0.5, 1.5, 100_001)
    found, border = selected([Ranked(w, torch.ones(1))], 50_001)
    assert border == pytest.approx(1.0, abs=1e-4)
    # dn / dlog|w| = n |w| for evenly spread weights.
    assert float(found[0].crossing) == pytest.approx(100_000, rel=0.02)


@pytest.mark.parametrize("scale", [1e-35, 1.0, 1e3])
@pytest.mark.parametrize(("in_sample", "kept"), [(100.0, 60_000), (0.01, 60_000), (0.01, 200_000), (100.0, 200_000)])
def test_weights_that_repeat_in_the_rhythm_of_the_sample_are_still_counted(scale, in_sample, kept):
    w = torch.linspace(1.0, 2.0, 1 << 18)
    w[:: (1 << 18) // bracket.SAMPLE] *= in_sample
    w *= scale
    found, _ = selected([Ranked(w, torch.ones(1))], kept)
    assert int((w.abs() > found[0].alpha).sum()) == kept


def test_of_many_filters_with_scales_of_their_own_a_part_is_sorted():
    w = torch.randn(2000, 200, generator=torch.Generator().manual_seed(0))
    (found,), _ = selected([Ranked(w, torch.linspace(0.5, 2.0, 2000).unsqueeze(1))], 1000)
    assert found.kept == 1000 == int((w.abs() > found.alpha).sum())


def test_in_half_precision_a_weight_just_above_the_border_of_others_is_not_lost():
    # With 1/2 - 2^-25 for a scale the key of 1/4 is just above the border of 1/2; their thresholds are just apart.
    first, second = torch.tensor([0.5, 0.625]).half(), torch.tensor([0.25]).half()
    ranked = [Ranked(first, torch.ones(1)), Ranked(second, torch.tensor([0.5 - 2.0**-25]))]
    found, border = selected(ranked, 2)
    assert (border, [f.kept for f in found]) == (0.5, [1, 1])
    assert [survivors(c, f) for c, f in zip(ranked, found, strict=True)] == [1, 1]


def solution(guess, *, seed, allowed, dtype=torch.float32, coarse=False, grain="tensor", costs=(1.0, 1.0, 1.0, 1.0)):
    """Everything that comes out: thresholds, counts, crossings, border, and the weights with their ties parted."""
    made = tensors(seed, SHAPES, dtype, layout=torch.channels_last)
    if coarse:
        made = [(w * 4).round().add(0.5) for w in made]
    chance = torch.Generator().manual_seed(seed + 1)
    shapes = [(1,) if grain == "tensor" else (w.shape[0], *[1] * (w.ndim - 1)) for w in made]
    candidates = [
        Ranked(w, torch.exp(torch.randn(shape, generator=chance)), PerWeight(cost))
        for w, shape, cost in zip(made, shapes, costs, strict=True)
    ]
    found, border = selected(candidates, allowed, guess=guess)
    return [*(f.alpha for f in found), *(f.crossing for f in found), *made], [f.kept for f in found], border


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 1000),
    fraction=st.floats(0.01, 0.99),
    guess=st.tuples(st.floats(-12, 12), st.floats(1e-9, 8)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    coarse=st.booleans(),
    grain=st.sampled_from(["tensor", "filter"]),
    costs=st.sampled_from([(1.0, 1.0, 1.0, 1.0), (900.0, 1.0, 3.0, 49.0)]),
)
def test_no_guess_changes_the_result_by_a_bit(seed, fraction, guess, dtype, coarse, grain, costs):
    total = sum(torch.Size(shape).numel() * cost for shape, cost in zip(SHAPES, costs, strict=True))
    settings = {"seed": seed, "allowed": round(fraction * total), "dtype": dtype, "coarse": coarse, "grain": grain}
    cold = solution(None, costs=costs, **settings)
    middle, width = guess
    for low, high in (
        (math.exp(middle), math.exp(middle + width)),
        # Around the border itself, and with the border as its end: where rounding could play a part.
        (cold[2] * math.exp(-width), cold[2] * math.exp(width)),
        (cold[2], cold[2] * 2),
        (cold[2] / 2, cold[2]),
        (math.nextafter(cold[2], 0.0), math.nextafter(cold[2], math.inf)),
    ):
        warm = solution(bracket.Bounds(low, high), costs=costs, **settings)
        assert warm[1:] == cold[1:]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(warm[0], cold[0], strict=True))


def test_a_good_guess_needs_one_look_and_a_bad_one_no_more_than_two(monkeypatch):
    looks = []
    look = candidate._window
    monkeypatch.setattr(candidate, "_window", lambda *args: looks.append(1) or look(*args))
    made = tensors(3, [(300, 400), (64, 64, 3, 3)])
    for (low, high), expected in (((0.99, 1.01), 2), ((4.0, 5.0), 4), ((1e-9, 1e-8), 4)):
        looks.clear()
        candidates = [Ranked(w, torch.tensor([1.6448])) for w in made]
        selected(candidates, round(0.1 * sum(w.numel() for w in made)), guess=bracket.Bounds(low, high))
        assert len(looks) == expected


def test_a_border_that_moves_on_is_guessed_where_it_goes():
    predictor = bracket.Predictor()
    assert predictor.guess(10**6) is None
    for step in range(5):
        predictor.note(math.exp(-3.0 + 0.01 * step), weights_per_log=300_000.0)
    low, high = predictor.guess(10**6)
    assert low < math.exp(-2.95) < high
    # One miss of 0.01, three steps ago: more than 2,500 weights at a density of 300,000 per unit of log key take.
    assert math.log(high / low) == pytest.approx(2 * 4 * 0.01 * 0.5**3, rel=1e-6)
    predictor.note(math.exp(5.0), weights_per_log=300_000.0)
    assert predictor.guess(10**6) is None  # a sample is better than a guess that was so far off
