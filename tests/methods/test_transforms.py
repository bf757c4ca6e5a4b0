"""The transforms: the floor under a threshold, the held budget, the mask."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from softprune.methods.masks import Masked, MovingMask
from softprune.methods.transforms import HeldThreshold, SoftThreshold, SolvedMask, SolvedThreshold
from softprune.ops import Backward, Exp, Sigmoid, Softplus, annealed, masked, straight_through

ALL_G = [Sigmoid(), Exp(), Softplus(), Sigmoid(0.25), Exp(1e3), Softplus(1e-3)]


def soft(s, g=None):
    return SoftThreshold(nn.Parameter(torch.as_tensor(s, dtype=torch.float32)), g or Sigmoid())


def test_raw_for_is_undone_by_forward():
    transform = soft([0.0])  # alpha = 0.5
    wanted = torch.tensor([1.0, -0.25, 0.0])
    assert torch.equal(transform.raw_for(wanted), torch.tensor([1.5, -0.75, 0.0]))
    assert torch.equal(transform(transform.raw_for(wanted)), wanted)


def test_the_floor_by_hand():
    # alpha = sigmoid(2) = 0.88 kills all; the second largest is 0.5, so alpha ends just below 0.5: s just below 0.
    transform, w = soft([2.0]), torch.tensor([0.1, -0.5, 0.7, 0.3])
    assert transform.keep_at_least_(w, 2)
    assert torch.equal(transform(w) != 0, torch.tensor([False, True, True, False]))
    assert -1e-5 < transform.s.item() < 0


def test_the_floor_is_left_alone_when_it_holds():
    transform, w = soft([0.0]), torch.tensor([0.1, -0.6, 0.7, 0.3])
    assert not transform.keep_at_least_(w, 2)
    assert transform.s.item() == 0.0
    assert not transform.keep_at_least_(w, 0)


@pytest.mark.parametrize("g", ALL_G, ids=str)
@pytest.mark.parametrize("shape", [(1,), (4, 1), (4, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 5, 24, 99])
def test_the_floor_for_every_g_shape_and_dtype(g, shape, dtype, count):
    w = torch.randn(4, 6).to(dtype)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    transform = SoftThreshold(nn.Parameter(g.inverse(torch.full(shape, 0.999 * g.scale, dtype=wide))), g)
    with torch.no_grad():
        transform.s.add_(torch.rand_like(transform.s) * 3)
    before = transform.s.detach().clone()
    kept = int(transform(w).count_nonzero())
    lowered = transform.keep_at_least_(w, count)
    after = int(transform(w).count_nonzero())
    wanted = min(count, 24)
    assert after >= wanted
    assert lowered == (kept < wanted)
    assert bool((transform.s <= before).all()) and bool(torch.isfinite(transform.s).all())
    if not lowered:
        assert torch.equal(transform.s, before)


def test_a_floor_above_the_number_of_nonzero_weights():
    w = torch.tensor([0.0, 0.5, 0.0, -0.25])
    transform = soft([3.0])
    assert transform.keep_at_least_(w, 3)
    assert int(transform(w).count_nonzero()) == 2
    s = transform.s.item()
    assert math.isfinite(s)
    assert not transform.keep_at_least_(torch.zeros(4), 3) and transform.s.item() == s


def test_the_held_threshold_follows_the_weights_by_hand():
    held = HeldThreshold(torch.tensor([0.5]), kept=2)
    w = torch.tensor([0.1, -0.9, 0.6, 0.8])
    held.settle_(w)
    assert held.alpha.item() == pytest.approx(0.6)
    assert torch.equal(held(w) != 0, torch.tensor([False, True, False, True]))
    held.settle_(torch.tensor([0.2, -1.9, 0.3, 0.5]))  # one is left above 0.6: the second comes back
    assert held.alpha.item() == pytest.approx(0.3)
    held.settle_(torch.tensor([5.0, -0.9, 4.0, 0.8]))
    assert held.alpha.item() == pytest.approx(0.9)


def test_the_held_threshold_stays_where_the_count_is_right():
    held = HeldThreshold(torch.tensor([0.5]), kept=2)
    held.settle_(torch.tensor([0.1, -0.9, 0.4, 0.8]))
    assert held.alpha.item() == 0.5


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**31), st.integers(0, 48), st.sampled_from([(1,), (8, 1), (8, 6)]), st.floats(0.01, 100.0))
def test_the_held_threshold_keeps_the_count(seed, kept, shape, scale):
    generator = torch.Generator().manual_seed(seed)
    held = HeldThreshold(torch.rand(shape, generator=generator) * scale / 2, kept=kept)
    for _ in range(4):
        w = torch.randn(8, 6, generator=generator) * scale
        held.settle_(w)
        assert int(held(w).count_nonzero()) == kept
        assert bool((held.alpha >= 0).all())


def test_the_held_threshold_keeps_fewer_where_weights_are_equal():
    held = HeldThreshold(torch.tensor([0.5]), kept=2)
    w = torch.tensor([0.7, 0.7, 0.7, 0.1])
    held.settle_(w)
    assert int(held(w).count_nonzero()) == 0


@pytest.mark.parametrize("build", [lambda: soft([-2.0]), lambda: HeldThreshold(torch.tensor([0.1]), kept=3)])
def test_casts_leave_thresholds_wide(build):
    transform = build()
    for cast in ("half", "bfloat16"):
        getattr(transform, cast)()
        assert {t.dtype for t in transform.state_dict().values()} <= {torch.float32, torch.int64}
    transform.double()
    assert torch.float64 in {t.dtype for t in transform.state_dict().values()}


def test_the_mask_keeps_zeros_and_passes_the_rest():
    mask = torch.tensor([True, False, True])
    transform = Masked(mask)
    w = torch.tensor([1.0, 2.0, float("-inf")], requires_grad=True)
    out = transform(w)
    assert torch.equal(out, torch.tensor([1.0, 0.0, float("-inf")]))
    (out[:2] * torch.tensor([3.0, 4.0])).sum().backward()
    assert torch.equal(w.grad, torch.tensor([3.0, 0.0, 0.0]))
    mask.fill_(True)
    assert not transform.mask.all()
    assert torch.equal(copy.deepcopy(transform).mask, transform.mask)


def test_rescaling_makes_up_for_the_size_and_leaves_the_gradient_alone():
    # Filters (1, 3) and (2, 4) under a threshold of 2: the first keeps 3 of 4, the second 4 of 6 of its absolute size.
    w = torch.tensor([[1.0, -3.0], [2.0, 4.0]], requires_grad=True)
    transform = SolvedThreshold(w, backward=straight_through, rescale=True)
    transform.alpha.fill_(2.0)
    used = transform(w)
    expected = torch.tensor([[0.0, -1.0 * 1.01 / (0.01 + 3 / 4)], [0.0, 2.0 * 1.01 / (0.01 + 4 / 6)]])
    torch.testing.assert_close(used, expected, atol=1e-5, rtol=1e-5)
    upstream = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    used.backward(upstream)
    assert torch.equal(w.grad, upstream)


def test_what_is_assigned_to_a_held_tensor_is_what_the_network_uses():
    held = HeldThreshold(torch.tensor([0.5]), kept=2)
    assert held.raw_for(torch.tensor([1.0, -0.25, 0.0])).tolist() == [1.5, -0.75, 0.0]
    wanted = torch.tensor([1.0, -0.25, 0.0, 3.0])
    curved = HeldThreshold(torch.tensor([0.5]), kept=3, power=3.0)
    # The third powers of 1 and 0.5 add up to 1.125.
    assert float(curved.raw_for(wanted)[0]) == pytest.approx(1.125 ** (1 / 3))
    torch.testing.assert_close(curved(curved.raw_for(wanted)), wanted)


def test_masks_store_what_is_assigned():
    w = torch.tensor([1.0, 2.0])
    assert torch.equal(Masked(torch.tensor([True, False])).raw_for(w), w)
    assert torch.equal(SolvedMask(w).raw_for(w), w)


def test_a_held_threshold_that_keeps_all_is_zero():
    held = HeldThreshold(torch.tensor([0.5]), kept=3)
    held.settle_(torch.tensor([0.1, -0.9, 0.6]))
    assert held.alpha.tolist() == [0.0]


def test_the_floor_where_one_of_the_thresholds_is_zero():
    transform = soft([[-3200.0], [5.0]])
    w = torch.tensor([[0.0, 0.0], [0.5, -0.7]])
    assert transform.keep_at_least_(w, 1)
    assert (transform(w) != 0).tolist() == [[False, False], [False, True]]


def test_a_threshold_of_zero_is_not_rescaled():
    w = torch.tensor([[1e-4, -3e-4], [2e-4, 4e-4]])
    transform = SolvedThreshold(w, backward=straight_through, rescale=True)
    assert torch.equal(transform(w), w)


def test_a_rising_threshold_is_felt_as_far_as_it_has_risen():
    w = torch.tensor([1.0, -3.0])
    transform = SolvedThreshold(w, rises=True)
    transform.alpha.fill_(2.0)
    assert transform(w).tolist() == [1.0, -3.0] and transform.in_use.tolist() == [0.0]
    transform.rise.fill_(0.25)
    assert transform(w).tolist() == [0.5, -2.5] and transform.in_use.tolist() == [0.5]
    transform.rise.fill_(1.0)
    assert transform(w).tolist() == [0.0, -1.0] and transform.in_use.tolist() == [2.0]


@pytest.mark.parametrize(("mode", "pruned"), [(masked, 0.0), (Backward(0.5), 2.0), (straight_through, 4.0)])
def test_a_solved_mask_leaks_that_much_gradient(mode, pruned):
    w = torch.tensor([1.0, -3.0], requires_grad=True)
    transform = SolvedMask(w, backward=mode)
    transform.take_(torch.tensor([2.0]), torch.zeros(1), w.detach())
    out = transform(w)
    out.backward(torch.tensor([4.0, 8.0]))
    assert out.tolist() == [0.0, -3.0] and w.grad.tolist() == [pruned, 8.0]


@pytest.mark.parametrize(("dense", "pruned"), [(False, 0.0), (True, 4.0)])
def test_a_moving_mask_uses_the_weights_as_they_are(dense, pruned):
    w = torch.tensor([5.0, -3.0], requires_grad=True)
    out = MovingMask(torch.tensor([False, True]), dense_grad=dense)(w)
    out.backward(torch.tensor([4.0, 8.0]))
    assert out.tolist() == [0.0, -3.0] and w.grad.tolist() == [pruned, 8.0]


def test_a_cast_gives_the_transform_back():
    transform = soft([0.0])
    assert transform.half() is transform


def test_held_thresholds_of_filters_move_by_one_margin():
    w = torch.tensor([[0.2, 0.9, 3.0], [1.0, 2.0, 2.5]])
    held = HeldThreshold(torch.tensor([[0.5], [1.5]]), 3)
    held.settle_(w)
    # The margins are -0.3, 0.4, 2.5 and -0.5, 0.5, 1: the third smallest is the last that goes.
    assert held.alpha.flatten().tolist() == pytest.approx([0.9, 1.9])
    assert int(torch.count_nonzero(held(w))) == 3


def test_a_held_threshold_goes_on_with_the_leak_of_now():
    transform, w = SoftThreshold(nn.Parameter(torch.tensor([-2.0])), Sigmoid(), backward=annealed()), torch.randn(9)
    transform.after_step_(w, 0.25)
    assert float(transform.leak) == 0.75 == float(transform.held(w).leak)


def test_a_leak_is_where_the_threshold_is():
    s = nn.Parameter(torch.empty(1, device="meta"))
    assert SoftThreshold(s, Sigmoid(), backward=annealed()).leak.is_meta


def test_without_being_told_a_threshold_keeps_none_and_a_held_one_does_not_rescale():
    w = torch.tensor([[0.2, 0.9, 3.0]])
    transform = SoftThreshold(nn.Parameter(torch.tensor([9.0])), Exp())
    transform.after_step_(w, 0.5)
    assert int(torch.count_nonzero(transform(w))) == 0
    torch.testing.assert_close(HeldThreshold(torch.tensor([0.5]), 2)(w), torch.tensor([[0.0, 0.4, 2.5]]))


def test_a_solved_mask_knows_its_threshold_and_what_it_would_meet():
    transform = SolvedMask(torch.tensor([0.2, 0.9, 3.0]))
    transform.take_(torch.tensor([0.5]), torch.tensor([7.0]), torch.tensor([0.2, 0.9, 3.0]))
    assert (float(transform.alpha), float(transform.crossing), transform.rise) == (0.5, 7.0, None)
    assert transform.mask.tolist() == [False, True, True] and transform.s.shape == (1,)
