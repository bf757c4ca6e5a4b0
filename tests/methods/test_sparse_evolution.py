"""SET by hand: Mocanu et al. 2018, with the smallest |w| dropped as in the code of Evci et al."""

import pytest
import torch
from on_paper import begun, layer, mask, push, raw, set_mask
from torch.optim import SGD

import softprune
from softprune import Budget, Sparsity
from softprune.methods import SET

HALF = Budget({"0.weight": 0.5})


def evolved(seed=0, **settings):
    model = layer([0.1, -0.2, 0.9, -0.8, 0.5, 0.5, 0.5, 0.5])
    optimizer = SGD(model.parameters(), lr=1.0, momentum=0.9)
    sparsifier, _ = begun(
        model, SET(every=2, zeta=0.5, end=1.0, **settings), optimizer=optimizer, budget=HALF, seed=seed
    )
    set_mask(sparsifier, 0, [1, 1, 1, 1, 0, 0, 0, 0])
    return sparsifier, optimizer


def test_the_smallest_half_is_exchanged_for_places_drawn_at_random():
    sparsifier, optimizer = evolved()
    push(sparsifier, optimizer, [0.0] * 8)
    assert mask(sparsifier) == [1, 1, 1, 1, 0, 0, 0, 0]
    push(sparsifier, optimizer, [0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0])
    # zeta * 4 = 2: of |w| = 0.1, 0.2, 0.8, 0.8 the last two stay. All others begin at 0, without momentum.
    after = mask(sparsifier)
    assert after[2:4] == [1, 1] and sum(after) == 4
    assert raw(sparsifier) == pytest.approx([0, 0, 0.8, -0.8, 0, 0, 0, 0])
    momentum = optimizer.state[sparsifier.targets[0].raw]["momentum_buffer"].flatten().tolist()
    assert momentum == pytest.approx([0, 0, 0.1, 0, 0, 0, 0, 0])


def test_the_draw_depends_on_the_seed_alone():
    drawn = set()
    for seed in (0, 0, 1, 2, 3):
        sparsifier, optimizer = evolved(seed=seed)
        push(sparsifier, optimizer, [0.0] * 8)
        push(sparsifier, optimizer, [0.0] * 8)
        drawn.add((seed, tuple(mask(sparsifier))))
    assert len(drawn) == 4, "the same seed twice gives the same mask"
    assert len({places for _, places in drawn}) > 1


def test_masks_stay_at_the_end():
    model = layer([float(n) for n in range(1, 41)])
    sparsifier, optimizer = begun(model, SET(every=1, end=0.5), budget=HALF)
    masks = []
    for _ in range(10):
        push(sparsifier, optimizer, torch.randn(40).tolist())
        masks.append(mask(sparsifier))
    assert all(sum(m) == 20 for m in masks)
    assert len({tuple(m) for m in masks[:5]}) == 5 and masks[4:] == [masks[4]] * 6


def test_a_goal_is_refused_and_so_is_a_fraction_out_of_range():
    with pytest.raises(ValueError, match="SET keeps what each tensor is given"):
        softprune.sparsify(layer([1.0, 2.0]), SET(), goal=Sparsity(0.5))
    with pytest.raises(ValueError, match="zeta is a fraction"):
        SET(zeta=0.0)


def test_freezing_the_support_keeps_what_was_just_grown(tmp_path):
    sparsifier, optimizer = evolved()
    for _ in range(2):
        push(sparsifier, optimizer, [0.0] * 8)
    before = mask(sparsifier)
    assert before.count(1) == 4 and raw(sparsifier).count(0.0) == 6, "two of the four are still 0"
    sparsifier.freeze("support")
    assert mask(sparsifier) == before
    sparsifier.save(tmp_path)
    again, _ = evolved(seed=1)
    again.load(tmp_path)
    assert mask(again) == before


def test_weights_that_are_zero_still_come_before_empty_places_and_new_ones_have_no_momentum():
    model = layer([0.0, 0.0, 0.0, 0.7])
    optimizer = SGD(model.parameters(), lr=0.0, momentum=0.9)
    sparsifier, _ = begun(
        model, SET(every=1, zeta=0.5), optimizer=optimizer, budget=Budget({"0.weight": 0.5})
    )  # fmt: skip
    set_mask(sparsifier, 0, [0, 0, 1, 1])
    push(sparsifier, optimizer, [1.0, 1.0, 1.0, 1.0])
    assert mask(sparsifier)[3] == 1 and sum(mask(sparsifier)) == 2
    assert optimizer.state[sparsifier.targets[0].raw]["momentum_buffer"].tolist() == [[0.0, 0.0, 0.0, 1.0]]


@pytest.mark.parametrize("wrong", [{"every": 0}, {"end": 1.5}, {"zeta": 0.0}], ids=str)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SET(**wrong)
