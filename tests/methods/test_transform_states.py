"""What transforms hold: their first values, where their tensors are, the gradient they leave, and how they are told."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from softprune.methods.masks import MovingMask
from softprune.methods.transforms import (
    HeldThreshold,
    SoftThreshold,
    SolvedMask,
    SolvedThreshold,
    Transform,
    threshold_dtype,
)
from softprune.methods.vd import Variational, VariationalMask
from softprune.ops import Backward, Sigmoid, annealed, straight_through

NAN = math.nan
SOLVED = {"s": NAN, "alpha": 0.0, "pull": 0.0, "force": 0.0, "crossing": 0.0, "observed": 0.0}
W = torch.tensor([[1.0, -3.0], [0.5, 2.0]])


def soft(w):
    s = nn.Parameter(torch.full((1,), -3.0, device=w.device))
    return SoftThreshold(s, Sigmoid(), backward=annealed(0.5), first=-3.0)


MADE = {
    "soft": (soft, {"s": -3.0, "leak": 0.5}),
    "solved": (lambda w: SolvedThreshold(w, (2, 1), backward=annealed()), {**SOLVED, "leak": 1.0}),
    "solved, no leak": (SolvedThreshold, SOLVED),
    "power": (lambda w: SolvedThreshold(w, power=3.0), SOLVED),
    "rising": (lambda w: SolvedThreshold(w, rises=True), {**SOLVED, "rise": 0.0}),
    "mask": (SolvedMask, {**SOLVED, "mask": 1.0}),
    "nested": (lambda w: SolvedMask(w, nested=True), {**SOLVED, "mask": 1.0}),
    "variational": (lambda w: Variational(w, -7.0), {"log_sigma2": -7.0}),
    "variational mask": (lambda w: VariationalMask(w, -7.0), {**SOLVED, "mask": 1.0, "log_sigma2": -7.0}),
}


def values(transform):
    """Of each tensor the one value that it has everywhere, as text, so that NaN is like NaN."""
    found = {name: set(map(str, t.double().flatten().tolist())) for name, t in transform.state_dict().items()}
    return {name: texts.pop() if len(texts) == 1 else texts for name, texts in found.items()}


def as_text(first):
    return {name: str(value) for name, value in first.items()}


@pytest.mark.parametrize("name", MADE)
def test_every_tensor_begins_with_its_first_value_and_goes_back_to_it(name):
    make, first = MADE[name]
    transform = make(W)
    assert values(transform) == as_text(first)
    with torch.no_grad():
        for tensor in transform.state_dict().values():
            tensor.fill_(0 if tensor.dtype == torch.bool else 5)
    transform.reset_parameters()
    assert values(transform) == as_text(first)


@pytest.mark.parametrize("name", MADE)
def test_its_tensors_are_where_the_weights_are_and_have_first_values_once_there_is_memory(name):
    make, first = MADE[name]
    transform = make(W.to("meta"))
    assert {t.device.type for t in transform.state_dict().values()} == {"meta"}
    assert transform.to_empty(device="cpu") is transform
    assert values(transform) == as_text(first)


@pytest.mark.parametrize("name", MADE)
def test_tensors_that_are_there_are_not_reset_when_they_move(name):
    transform = MADE[name][0](W)
    for key, tensor in transform.state_dict().items():
        tensor.fill_(key != "mask")
    transform.to("cpu").double()
    assert all(found == str(float(key != "mask")) for key, found in values(transform).items())


def test_thresholds_are_as_wide_as_float32_and_wider_for_wider_weights():
    dtypes = [threshold_dtype(torch.zeros(1, dtype=d)) for d in (torch.float64, torch.float32, torch.bfloat16)]
    assert dtypes == [torch.float64, torch.float32, torch.float32]
    assert SolvedThreshold(W.double()).alpha.dtype == torch.float64
    assert SolvedThreshold(W.double(), rises=True).rise.dtype == torch.float64
    assert Variational(W.half(), 0.0).log_sigma2.dtype == torch.float32
    assert Variational(W, 0.0).log_sigma2.requires_grad


def pruned_gradient(transform, w, progress):
    """What weights that are pruned get of a gradient of 1."""
    transform.after_step_(w, progress)
    w = w.clone().requires_grad_()
    used = transform(w)
    used.sum().backward()
    gone = used == 0
    assert bool(gone.any()) and bool((w.grad[~gone] == 1.0).all())
    (found,) = set(w.grad[gone].tolist())
    return found


def held(w, backward):
    return HeldThreshold(torch.tensor([1.5]), 2, backward=backward)


def solved(w, backward):
    transform = SolvedThreshold(w, backward=backward)
    transform.alpha.fill_(1.5)
    return transform


def rising(w, backward):
    transform = SolvedThreshold(w, backward=backward, rises=True)
    transform.alpha.fill_(3.0)
    transform.rise.fill_(0.5)
    return transform


def power(w, backward):
    transform = SolvedThreshold(w, power=3.0, backward=backward)
    transform.alpha.fill_(1.5)
    return transform


def held_power(w, backward):
    return HeldThreshold(torch.tensor([1.5]), 2, backward=backward, power=3.0)


def half(w, backward):
    s = nn.Parameter(torch.tensor([0.0]))
    return SoftThreshold(s, Sigmoid(3.0), backward=backward)


@pytest.mark.parametrize("make", [held, solved, rising, power, held_power, half])
def test_pruned_weights_get_their_part_of_the_gradient(make):
    assert pruned_gradient(make(W, Backward(0.0)), W, 0.5) == 0.0
    assert pruned_gradient(make(W, Backward(0.25)), W, 0.5) == 0.25
    assert pruned_gradient(make(W, straight_through), W, 0.5) == 1.0


@pytest.mark.parametrize("make", [held, solved, half])
def test_the_part_falls_during_the_training_where_it_is_annealed(make):
    transform = make(W, annealed(0.5))
    assert [pruned_gradient(transform, W, p) for p in (0.0, 0.5, 1.0)] == [0.5, 0.25, 0.0]
    assert make(W, Backward(0.5)).leak is None


def test_a_solution_is_taken_over_with_what_it_would_meet():
    transform = SolvedThreshold(W, (2, 1))
    transform.take_(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]), W)
    assert transform.alpha.tolist() == [[1.0], [2.0]] and transform.crossing.tolist() == [[3.0], [4.0]]
    assert transform.in_use is transform.alpha and transform.rise is None and transform.scores(W) is W


def test_a_mask_keeps_what_is_above_the_threshold_and_all_without_one():
    mask = SolvedMask(W)
    mask.take_(torch.tensor([1.0]), torch.tensor([5.0]), W)
    assert mask.mask.tolist() == [[False, True], [False, True]] and float(mask.crossing) == 5.0
    zeros = torch.tensor([[0.0, 1.0], [0.0, 2.0]])
    mask.take_(torch.tensor([0.0]), torch.tensor([5.0]), zeros)
    assert bool(mask.mask.all())
    assert mask.raw_for(W) is W
    # A nested one only loses: what it lost counts as 0 for the next.
    nested = SolvedMask(W, nested=True)
    nested.take_(torch.tensor([1.0]), torch.zeros(1), W)
    assert nested.scores(W).tolist() == [[0.0, -3.0], [0.0, 2.0]]
    nested.take_(torch.tensor([0.2]), torch.zeros(1), W)
    assert nested.mask.tolist() == [[False, True], [False, True]]


def test_what_is_assigned_comes_out_for_powers_too():
    wanted = torch.tensor([2.0, -0.5, 0.0])
    for transform in (SolvedThreshold(W, power=3.0), HeldThreshold(torch.tensor([1.0]), 2, power=3.0)):
        transform.alpha.fill_(1.0)
        raw = transform.raw_for(wanted)
        # (2^3 + 1)^(1/3) and -(1/8 + 1)^(1/3).
        assert raw.tolist() == pytest.approx([9.0 ** (1 / 3), -(1.125 ** (1 / 3)), 0.0])
        assert transform(raw).tolist() == pytest.approx([2.0, -0.5, 0.0])
    assert HeldThreshold(torch.tensor([0.5]), 2).raw_for(wanted).tolist() == [2.5, -1.0, 0.0]
    assert SolvedThreshold(W).raw_for(wanted).tolist() == wanted.tolist()


def test_held_thresholds_rescale_filters_if_they_are_told():
    # The filter (1, -3) has the absolute size 4, of which 3 are above 2: 1.01 / (0.01 + 3 / 4) times 1.
    plain, rescaled = (HeldThreshold(torch.tensor([2.0]), 1, rescale=flag)(W) for flag in (False, True))
    assert plain.tolist() == [[0.0, -1.0], [0.0, 0.0]]
    assert rescaled[0].tolist() == pytest.approx([0.0, -1.01 / 0.76], rel=1e-5) and rescaled[1].tolist() == [0.0, 0.0]


def test_what_a_transform_says_of_itself():
    assert soft(W).extra_repr() == "s=(1,), g=Sigmoid(k=1.0), backward=Backward(leak=0.5, until=1.0)"
    assert SolvedThreshold(W, (2, 1)).extra_repr() == "s=(2, 1), backward=Backward(leak=0.0, until=None)"


def test_a_moving_mask_passes_no_gradient_to_the_pruned_until_it_is_told():
    mask = MovingMask(torch.tensor([True, False]))
    assert mask.dense_grad.tolist() is False and MovingMask(mask.mask, dense_grad=True).dense_grad.tolist() is True
    assert MovingMask(mask.mask.to("meta")).dense_grad.device.type == "meta"
    assert HeldThreshold(torch.zeros(1, device="meta"), 3).kept.device.type == "meta"


def test_a_transform_that_has_nothing_to_settle_leaves_all_as_it_is():
    class Plain(Transform):
        def forward(self, w):
            return 2 * w

    layer = nn.Linear(2, 1, bias=False)
    parametrize.register_parametrization(layer, "weight", Plain())
    plain = layer.parametrizations.weight[0]
    assert plain.settle_(W) is None and plain.after_step_(W, 0.5) is None and plain.raw_for(W) is W
    assert plain.first == {} and plain._on_meta() is False
