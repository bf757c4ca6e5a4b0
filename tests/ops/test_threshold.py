"""The operator against the paper's equations, its naive composition, finite differences and its properties."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, jvp, vmap

from softprune.ops import (
    Backward,
    Custom,
    Exp,
    Sigmoid,
    Softplus,
    annealed,
    masked,
    shrink,
    soft_threshold,
    straight_through,
)
from softprune.ops.threshold import CACHE_PIECE

ALL_G = [Sigmoid(), Sigmoid(0.3), Exp(), Exp(2.0), Softplus(), Softplus(0.5)]


def naive(w, s, g=torch.sigmoid):
    """Algorithm 1 of the paper."""
    return torch.sign(w) * torch.relu(torch.abs(w) - g(s))


def backward_of(function, w, s, upstream):
    w, s = w.detach().requires_grad_(), s.detach().requires_grad_()
    out = function(w, s)
    out.backward(upstream)
    return out.detach(), w.grad, s.grad


def test_forward_by_hand():
    # alpha = sigmoid(0) = 0.5
    w = torch.tensor([-1.0, -0.5, -0.2, 0.0, 0.25, 0.5, 0.75, 2.0])
    expected = torch.tensor([-0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 1.5])
    assert torch.equal(soft_threshold(w, torch.zeros(1)), expected)


def test_backward_by_hand():
    # Equation (4): the gradient of w is masked by S != 0. Appendix: dL/ds = -g'(s) <dL/dS, sign(w) 1[S != 0]>
    # with g'(0) = 1/4 and living weights -1, 0.75, 2: P = -1*1 + 3*1 + 4*1 = 6.
    w = torch.tensor([-1.0, 0.2, 0.75, 2.0])
    upstream = torch.tensor([1.0, 2.0, 3.0, 4.0])
    _, grad_w, grad_s = backward_of(soft_threshold, w, torch.zeros(1), upstream)
    assert torch.equal(grad_w, torch.tensor([1.0, 0.0, 3.0, 4.0]))
    assert torch.equal(grad_s, torch.tensor([-1.5]))


@pytest.mark.parametrize("shape", [(1,), (), (8, 1, 1, 1), (8, 4, 3, 3), (1, 4, 1, 1), (3,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_naive_composition(shape, dtype):
    w = torch.randn(8, 4, 3, 3, dtype=dtype)
    s = torch.randn(shape, dtype=dtype) - 1
    upstream = torch.randn_like(w)
    ours = backward_of(soft_threshold, w, s, upstream)
    theirs = backward_of(naive, w, s, upstream)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    torch.testing.assert_close(ours[2], theirs[2])
    assert ours[2].shape == s.shape


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed", "mixed"])
def test_large_tensors_are_reduced_in_pieces_in_any_memory_order(layout):
    w = torch.randn(160, 128, 4, 4)
    assert w.numel() > CACHE_PIECE
    upstream = torch.randn_like(w)
    if layout in ("channels_last", "mixed"):
        w = w.to(memory_format=torch.channels_last)
    if layout == "channels_last":
        upstream = upstream.to(memory_format=torch.channels_last)
    if layout == "transposed":
        w, upstream = w.transpose(0, 1), upstream.transpose(0, 1)
    s = torch.tensor([-1.0])
    ours = backward_of(soft_threshold, w, s, upstream)
    theirs = backward_of(naive, w.double(), s.double(), upstream.double())
    torch.testing.assert_close(ours[1], theirs[1].float())
    # A sum rounds in proportion to the terms, not to the (cancelled) total: one unit of float32 of their size.
    terms = float((0.1966 * upstream.abs().double()).sum())
    assert abs(float(ours[2]) - float(theirs[2])) <= torch.finfo(torch.float32).eps * terms


@pytest.mark.parametrize("g", ALL_G, ids=str)
@pytest.mark.parametrize("shape", [(1,), (5, 1), (5, 6)])
def test_gradients_by_finite_differences(g, shape):
    w = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    s = (torch.randn(shape, dtype=torch.float64) - 1).requires_grad_()
    assert gradcheck(lambda w, s: soft_threshold(w, s, g), (w, s), check_forward_ad=True)


@pytest.mark.parametrize("g", ALL_G, ids=str)
def test_second_derivatives_are_exact(g):
    w = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    s = torch.tensor([-0.7], dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(lambda w, s: soft_threshold(w, s, g), (w, s))


def test_second_derivative_of_s_by_hand():
    # d2/ds2 of sum(S) = -g''(s) * (number of positive minus number of negative living weights)
    w = torch.tensor([1.0, 2.0, -3.0, 0.1])
    s = torch.tensor([-1.0], requires_grad=True)
    (first,) = torch.autograd.grad(soft_threshold(w, s).sum(), s, create_graph=True)
    (second,) = torch.autograd.grad(first, s)
    a = torch.sigmoid(torch.tensor([-1.0]))
    torch.testing.assert_close(second, -(a * (1 - a) * (1 - 2 * a)))


@pytest.mark.parametrize(("mode", "leak"), [(masked, 0.0), (annealed(0.3), 0.3), (straight_through, 1.0)])
@pytest.mark.parametrize("shape", [(1,), (6, 1)])
def test_backward_modes_leak_that_much_gradient(mode, leak, shape):
    w, upstream = torch.randn(6, 7), torch.randn(6, 7)
    s = torch.full(shape, 0.0)
    out, grad_w, grad_s = backward_of(lambda w, s: soft_threshold(w, s, backward=mode), w, s, upstream)
    assert torch.equal(out, naive(w, s))
    torch.testing.assert_close(grad_w, torch.where(out != 0, upstream, leak * upstream))
    # The threshold hears the living weights only, whatever the mode.
    torch.testing.assert_close(grad_s, (-0.25 * upstream * out.sign()).sum_to_size(shape))


@pytest.mark.parametrize("mode", [masked, annealed(0.3), straight_through])
@pytest.mark.parametrize("shape", [(1,), (6, 1), (6, 7)])
def test_compiled_equals_eager(mode, shape):
    def function(w, s):
        return soft_threshold(w, s, backward=mode)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    w, s, upstream = torch.randn(6, 7), torch.randn(shape) - 1, torch.randn(6, 7)
    for ours, theirs in zip(backward_of(compiled, w, s, upstream), backward_of(function, w, s, upstream), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
def test_compiled_by_inductor_equals_eager():
    compiled = torch.compile(soft_threshold, fullgraph=True)
    w, s, upstream = torch.randn(40, 50), torch.tensor([-1.0]), torch.randn(40, 50)
    for ours, theirs in zip(
        backward_of(compiled, w, s, upstream), backward_of(soft_threshold, w, s, upstream), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_function_transforms():
    w, s = torch.randn(3, 6, 7), torch.tensor([-1.0])

    def loss(w, s):
        return (soft_threshold(w, s) ** 2).sum()

    grad_w, grad_s = grad(loss, argnums=(0, 1))(w[0], s)
    out = naive(w[0], s)
    torch.testing.assert_close(grad_w, 2 * out)
    a = torch.sigmoid(s)
    torch.testing.assert_close(grad_s, -(a * (1 - a)) * (2 * out * out.sign()).sum())
    assert torch.equal(vmap(lambda w: soft_threshold(w, s))(w), naive(w, s))
    per_sample = vmap(grad(loss), in_dims=(0, None))(w, s)
    torch.testing.assert_close(per_sample, 2 * naive(w, s))


def test_forward_mode_agrees_with_the_function_transform():
    w, s, dw, ds = torch.randn(6, 7), torch.tensor([-1.0]), torch.randn(6, 7), torch.tensor([0.7])
    _, expected = jvp(soft_threshold, (w, s), (dw, ds))
    with forward_ad.dual_level():
        dual = soft_threshold(forward_ad.make_dual(w, dw), forward_ad.make_dual(s, ds))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, expected)
    a = torch.sigmoid(s)
    living = (w.abs() > a).float()
    torch.testing.assert_close(expected, living * (dw - a * (1 - a) * w.sign() * ds))


def test_autocast_leaves_weights_and_thresholds_in_float32():
    w, s = torch.randn(6, 7, requires_grad=True), torch.tensor([-1.0], requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        effective = soft_threshold(w, s)
        out = torch.nn.functional.linear(torch.randn(3, 7), effective)
    out.float().sum().backward()
    assert effective.dtype == torch.float32 and out.dtype == torch.bfloat16
    assert w.grad.dtype == s.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_shrunk_in_float32(dtype):
    # 0.010009765625 and 0.01 differ by less than the spacing of bfloat16 there; the difference survives.
    w = torch.tensor([0.0100, 0.0110, -0.5], dtype=dtype)
    s = Sigmoid().inverse(torch.tensor([0.0100]))
    out = soft_threshold(w, s)
    assert out.dtype == dtype
    assert torch.equal(out, naive(w.float(), s).to(dtype))


def test_a_half_precision_s_is_read_in_float32():
    s = torch.tensor([-3.0], dtype=torch.bfloat16, requires_grad=True)
    out = soft_threshold(torch.randn(100), s)
    out.sum().backward()
    assert s.grad.dtype == torch.bfloat16 and torch.isfinite(s.grad).all()


weights = st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=40).map(
    lambda v: torch.tensor(v, dtype=torch.float32)
)
raws = st.floats(-20, 2, width=32).map(lambda v: torch.tensor([v], dtype=torch.float32))


@settings(max_examples=200, deadline=None)
@given(weights, raws, st.sampled_from(ALL_G))
def test_properties(w, s, g):
    out, alpha = soft_threshold(w, s, g), g(s)
    assert torch.equal(soft_threshold(-w, s, g), -out)  # odd
    assert (out.abs() <= w.abs()).all()  # shrinks
    assert (out * w >= 0).all()  # keeps the sign
    assert torch.equal(out != 0, w.abs() > alpha)  # the support is what is above the threshold
    torch.testing.assert_close((w - out).abs(), torch.minimum(w.abs(), alpha.expand_as(w)), rtol=1e-6, atol=1e-6)
    # Shrinking what is left by nothing changes nothing: the support is idempotent.
    assert torch.equal(shrink(out, torch.zeros(1)), out)


def test_the_threshold_is_exactly_zero_below_minus_88_7():
    s = torch.tensor([-88.8, -100.0, -3200.0, -12800.0], requires_grad=True)
    alpha = Sigmoid()(s)
    alpha.sum().backward()
    assert torch.equal(alpha, torch.zeros(4)) and torch.equal(s.grad, torch.zeros(4))
    assert float(Sigmoid()(torch.tensor([-88.6]))) > 0
    w = torch.randn(50)
    assert torch.equal(soft_threshold(w, torch.tensor([-3200.0])), w)


@pytest.mark.parametrize("shape", [(1,), (4, 1)])
@pytest.mark.parametrize("compiled", [False, True])
def test_zero_weights_learn_while_the_threshold_is_zero(shape, compiled):
    function = torch.compile(soft_threshold, fullgraph=True, backend="aot_eager") if compiled else soft_threshold
    _, grad_w, grad_s = backward_of(function, torch.zeros(4, 3), torch.full(shape, -3200.0), torch.ones(4, 3))
    assert torch.equal(grad_w, torch.ones(4, 3)) and torch.equal(grad_s, torch.zeros(shape))
    _, grad_w, _ = backward_of(function, torch.zeros(4, 3), torch.full(shape, -3.0), torch.ones(4, 3))
    assert torch.equal(grad_w, torch.zeros(4, 3))


def test_only_the_gradients_that_are_wanted():
    w, s = torch.randn(5, requires_grad=True), torch.tensor([-1.0])
    soft_threshold(w, s).sum().backward()
    assert w.grad is not None and s.grad is None
    w, s = torch.randn(5), torch.tensor([-1.0], requires_grad=True)
    soft_threshold(w, s).sum().backward()
    assert w.grad is None and s.grad is not None


def test_a_threshold_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"shape \(3,\) does not broadcast to \(4, 2\)"):
        soft_threshold(torch.randn(4, 2), torch.zeros(3))
    with pytest.raises(ValueError, match=r"does not broadcast"):
        soft_threshold(torch.randn(4), torch.zeros(2, 4))


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
def test_a_fraction_outside_the_unit_interval_is_refused(fraction):
    with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
        annealed(fraction)


@pytest.mark.parametrize("until", [0.0, 1.5, math.nan])
def test_an_end_outside_the_training_is_refused(until):
    with pytest.raises(ValueError, match=r"above 0 and at most 1"):
        annealed(until=until)


def test_an_annealed_gradient_falls_in_a_straight_line_and_others_stay():
    assert [annealed(0.8, until=0.5).at(p) for p in (0.0, 0.25, 0.5, 1.0)] == [0.8, 0.4, 0.0, 0.0]
    assert [straight_through.at(p) for p in (0.0, 1.0)] == [1.0, 1.0]


@pytest.mark.parametrize("shape", [(1,), (6, 1)])
@pytest.mark.parametrize("leak", [0.0, 0.3, 1.0])
def test_a_leak_in_a_tensor_is_the_same_as_a_fixed_one(shape, leak):
    w, s, upstream = torch.randn(6, 7), torch.full(shape, 0.0), torch.randn(6, 7)
    held = torch.tensor([leak])
    compiled = torch.compile(lambda w, s: soft_threshold(w, s, leak=held), fullgraph=True, backend="aot_eager")
    fixed = backward_of(lambda w, s: soft_threshold(w, s, backward=Backward(leak)), w, s, upstream)
    for function in (lambda w, s: soft_threshold(w, s, leak=held), compiled):
        for ours, theirs in zip(backward_of(function, w, s, upstream), fixed, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_custom_g_has_the_same_gradients_as_the_built_in_one():
    own = Custom(f=torch.sigmoid, f_inverse=torch.logit)
    w, s, upstream = torch.randn(20), torch.tensor([-1.0]), torch.randn(20)
    ours = backward_of(lambda w, s: soft_threshold(w, s, own), w, s, upstream)
    theirs = backward_of(soft_threshold, w, s, upstream)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_threshold_of_zero_that_is_given_hears_all_weights():
    # P = 1 * 1 - 2 * 1 + 4 * 1 = 3.
    w, alpha = torch.tensor([1.0, -2.0, 3.0]), torch.zeros(1, requires_grad=True)
    (shrink(w, alpha) * torch.tensor([1.0, 2.0, 4.0])).sum().backward()
    assert alpha.grad.tolist() == [-3.0]


@pytest.mark.parametrize("leak", [0.0, 0.5])
@pytest.mark.parametrize("held", [False, True], ids=["number", "tensor"])
def test_function_transforms_by_hand(leak, held):
    def loss(w, alpha):
        mode = {"leak": torch.tensor([leak])} if held else {"backward": Backward(leak)}
        return (shrink(w, alpha, **mode) * torch.tensor([1.0, 2.0, 4.0, 8.0])).sum()

    w = torch.tensor([-0.5, 0.25, 0.75, -1.0])
    # A weight at the threshold does not live.
    by_w, by_alpha = grad(loss, argnums=(0, 1))(w, torch.tensor([0.5]))
    assert by_w.tolist() == [leak * 1.0, leak * 2.0, 4.0, 8.0] and by_alpha.tolist() == [4.0]
    assert float(loss(w, torch.tensor([0.5]))) == float(vmap(loss, (0, None))(w[None], torch.tensor([0.5]))) == -3.0
    # With a threshold of 0 all live, also one that is 0; with one of 1 none does.
    assert grad(loss)(torch.zeros(4), torch.tensor([0.0])).tolist() == [1.0, 2.0, 4.0, 8.0]
    assert grad(loss)(w, torch.tensor([1.0])).tolist() == [leak, 2 * leak, 4 * leak, 8 * leak]


def test_a_threshold_that_fits_in_one_dimension_only_is_refused():
    with pytest.raises(ValueError, match=r"shape \(3, 2\) does not broadcast to \(4, 2\)"):
        soft_threshold(torch.randn(4, 2), torch.zeros(3, 2))


@pytest.mark.parametrize("order", [("weights", "gradient"), ("gradient", "weights")])
def test_weights_and_gradients_in_different_memory_orders(order):
    # 1..8 as [2, 2, 2, 1] with a threshold of 0.5: all live, and the signs alternate along the second dimension.
    values = {"weights": torch.arange(1.0, 9.0).view(2, 2, 2, 1) * torch.tensor([1.0, -1.0]).view(1, 2, 1, 1)}
    values["gradient"] = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]).view(2, 2, 2, 1)
    values[order[0]] = values[order[0]].to(memory_format=torch.channels_last)
    alpha = torch.tensor([0.5], requires_grad=True)
    shrink(values["weights"], alpha).backward(values["gradient"])
    assert alpha.grad.tolist() == [-(1.0 + 2.0 - 4.0 - 8.0 + 16.0 + 32.0 - 64.0 - 128.0)]


@pytest.mark.parametrize("held", [False, True], ids=["number", "tensor"])
def test_a_leak_adds_nothing_to_the_value_under_function_transforms(held):
    mode = {"leak": torch.tensor([0.5])} if held else {"backward": Backward(0.5)}
    rows = torch.tensor([[-0.5, 0.25], [0.75, -1.0]])
    found = vmap(lambda w: shrink(w, torch.tensor([0.5]), **mode))(rows)
    assert found.tolist() == [[0.0, 0.0], [0.25, -0.5]]


def test_where_the_threshold_has_underflown_its_gradient_is_zero_whatever_the_loss_says():
    # The sum of these gradients is infinite in float32, and infinite times the slope 0 would be no number.
    w, s = torch.ones(8), torch.tensor([-200.0], requires_grad=True)
    soft_threshold(w, s).backward(torch.full((8,), 3e38))
    assert s.grad.tolist() == [0.0]
    # A threshold of zero that is given may be able to rise: there the sum is its gradient.
    alpha = torch.zeros(1, requires_grad=True)
    shrink(w, alpha).backward(torch.full((8,), 0.5))
    assert alpha.grad.tolist() == [-4.0]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_the_second_derivative_by_the_threshold_by_hand(shape):
    # L = (2 - a)^2 + (3 - a)^2 has the derivatives -2 (2 - a) - 2 (3 - a) = -9 at a = 0.25, and 4.
    w, alpha = torch.tensor([[2.0, -3.0, 0.1]]), torch.full(shape, 0.25, requires_grad=True)
    (first,) = torch.autograd.grad(shrink(w, alpha).square().sum(), alpha, create_graph=True)
    assert first.shape == shape and first.item() == -9.0
    (second,) = torch.autograd.grad(first.sum(), alpha)
    assert second.item() == 4.0


def test_tensors_of_two_dimensions_that_lie_the_other_way_in_memory():
    w, alpha = torch.tensor([[1.0, -2.0], [3.0, 0.1], [-5.0, 6.0]]).t(), torch.tensor(0.5, requires_grad=True)
    shrink(w, alpha).backward(torch.tensor([[1.0, 2.0], [4.0, 8.0], [16.0, 32.0]]).t())
    # The signs are 1, -1, 1, 0, -1, 1 of 1, 2, 4, 8, 16, 32.
    assert alpha.grad.item() == -(1.0 - 2.0 + 4.0 - 16.0 + 32.0)


@pytest.mark.parametrize("shape", [(2, 3, 4, 8), (2, 3, 2, 2, 8), (6, 8)], ids=str)
def test_every_second_weight_of_a_tensor_with_gradients_of_the_same_layout(shape):
    # With a threshold of zero the weights are used as they are, with holes between them in memory.
    w = (torch.arange(float(math.prod(shape))) % 7 - 3).view(shape)[..., ::2]
    gradient = (torch.arange(float(math.prod(shape))) % 5 + 1).view(shape)[..., ::2]
    assert w.stride() == gradient.stride() and not w.is_contiguous()
    alpha = torch.zeros(1, requires_grad=True)
    shrink(w, alpha).backward(gradient)
    assert alpha.grad.item() == -float((gradient.contiguous() * w.contiguous().sign()).sum()) != 0.0


def test_gradients_of_mixed_precision_are_summed_in_that_of_the_threshold():
    w, alpha = torch.tensor([1.0, -2.0, 0.25], dtype=torch.float64), torch.tensor([0.5], requires_grad=True)
    shrink(w, alpha).backward(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    assert alpha.grad.dtype == torch.float32 and alpha.grad.tolist() == [1.0]


def test_a_fraction_and_an_end_may_be_at_the_ends_of_their_range():
    assert Backward(0.0).leak == 0.0 and Backward(1.0, until=1.0).until == 1.0
    assert Backward(0.5, until=1e-9).at(0.5) == 0.0


@pytest.mark.parametrize("backward", [masked, Backward(0.5)], ids=["masked", "leaking"])
def test_one_number_adds_no_dimension(backward):
    w = torch.tensor([3.0, -0.5], requires_grad=True)
    alpha = torch.ones(1, 1, requires_grad=True)
    out = shrink(w, alpha, backward=backward)
    assert out.tolist() == [2.0, 0.0]
    out.sum().backward()
    assert w.grad.shape == w.shape and alpha.grad.shape == (1, 1)
    assert alpha.grad.item() == -1.0  # -sign(w) of what lives


def test_one_number_adds_no_dimension_to_samples_of_vmap():
    w = torch.tensor([[3.0, -0.5], [0.5, -2.0]])
    out = torch.func.vmap(lambda row: shrink(row, torch.ones(1, 1)))(w)
    assert out.tolist() == [[2.0, 0.0], [0.0, -1.0]]
