"""Feather by hand: Glentis Georgoulakis et al. 2023, equation (4): sign(w) (|w|^p - alpha^p)^(1/p), p = 3."""

import pytest
import torch
from on_paper import begun, layer, push

import softprune
from softprune import Budget, Sparsity, constant
from softprune.methods import Feather
from softprune.ops import Backward, power_shrink, shrink

HALF = Budget({"0.weight": 0.5})


def test_the_operator_by_hand():
    # (8 - 1)^(1/3) = 1.9129, (3.375 - 1)^(1/3) = 1.3342; at and below the threshold 0.
    w, alpha = torch.tensor([2.0, -1.5, 1.0, 0.5]), torch.tensor([1.0])
    torch.testing.assert_close(
        power_shrink(w, alpha, 3.0), torch.tensor([1.9129, -1.3342, 0.0, 0.0]), rtol=1e-4, atol=0
    )


def test_between_the_soft_and_the_hard_threshold():
    w, alpha = torch.randn(50), torch.tensor([0.5])
    torch.testing.assert_close(power_shrink(w, alpha, 1.0), shrink(w, alpha))
    hard = torch.where(w.abs() > 0.55, w, power_shrink(w, alpha, 64.0))
    torch.testing.assert_close(power_shrink(w, alpha, 64.0), hard, rtol=1e-2, atol=0)


@pytest.mark.parametrize("leak", [0.0, 0.5, 1.0])
def test_the_gradient_is_that_of_the_identity_and_a_part_of_it_for_the_pruned(leak):
    w = torch.tensor([2.0, 0.5, -3.0, -0.1], requires_grad=True)
    power_shrink(w, torch.tensor([1.0]), 3.0, backward=Backward(leak)).sum().backward()
    assert w.grad.tolist() == [1.0, leak, 1.0, leak]


def test_a_threshold_of_zero_changes_nothing_and_lets_zeros_learn():
    w = torch.tensor([1e-30, 0.0, -2.0], requires_grad=True)
    out = power_shrink(w, torch.zeros(1), 3.0)
    out.sum().backward()
    assert torch.equal(out, w) and w.grad.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_what_lives_is_not_zero_and_has_the_dtype_of_the_weights(dtype):
    alpha = torch.tensor([0.5], dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    just_above = torch.nextafter(torch.tensor(0.5, dtype=dtype), torch.tensor(1.0, dtype=dtype))
    out = power_shrink(torch.stack([just_above, -just_above]), alpha, 3.0)
    assert out.dtype == dtype and out[0] > 0 > out[1]
    assert power_shrink(just_above, alpha, 64.0).item() > 0


def test_half_precision_networks_train():
    model = layer([0.1, -0.4, 0.3, 0.2]).to(torch.bfloat16)
    sparsifier, optimizer = begun(model, Feather(), budget=HALF)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    assert model[0].weight.dtype == torch.bfloat16
    assert int(torch.count_nonzero(model[0].weight)) == 2 and sparsifier.step == 10


def test_raw_for_is_undone_by_forward():
    model = layer([0.1, -0.4, 0.3, 0.2])
    sparsifier = softprune.sparsify(model, Feather(), budget=HALF, schedule=constant())
    wanted = torch.tensor([[0.0, -2.0, 0.5, 0.0]])
    model[0].weight = wanted
    torch.testing.assert_close(model[0].weight.detach(), wanted)
    assert float(sparsifier.targets[0].transform.alpha) > 0


def test_the_whole_sparsity_holds_from_half_of_the_training_on():
    sparsifier, optimizer = begun(layer([0.1 * n for n in range(1, 9)]), Feather(), budget=HALF)
    kept = []
    for _ in range(10):
        push(sparsifier, optimizer, [0.0] * 8)
        kept.append(int(torch.count_nonzero(sparsifier.targets[0].effective)))
    # 8 - round(4 * (1 - (1 - x)^3)) with x = 0.2, 0.4, 0.6, 0.8, 1
    assert kept == [6, 5, 4, 4, 4, 4, 4, 4, 4, 4]


def test_freezing_the_budget_keeps_the_operator(tmp_path):
    model = layer([0.1 * n for n in range(1, 9)])
    sparsifier, optimizer = begun(model, Feather(), budget=HALF)
    push(sparsifier, optimizer, [0.0] * 8)
    before = model[0].weight.detach().clone()
    sparsifier.freeze("budget")
    assert torch.equal(model[0].weight, before)
    sparsifier.save(tmp_path)
    again = softprune.sparsify(layer([1.0] * 8), Feather(), budget=HALF)
    again.load(tmp_path)
    assert torch.equal(again.model[0].weight, before)


@pytest.mark.parametrize(
    "wrong", [{"power": 0.5}, {"power": 100}, {"power": True}, {"leak": 0.0}, {"min_keep": -1}], ids=str
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Feather(**wrong)


def test_no_total_is_refused():
    with pytest.raises(ValueError, match="Feather prunes to a total and got none"):
        softprune.sparsify(layer([1.0, 2.0]), Feather())
    assert Feather().accepts == ("goal", "budget") and Sparsity(0.5).kept(2) == 1


def test_the_ends_of_the_range_of_powers():
    assert [Feather(power=power).power for power in (1.0, 64.0)] == [1.0, 64.0]
    for power in (0.99, 64.5, True):
        with pytest.raises(ValueError, match="power is a number from 1 to 64"):
            Feather(power=power)


def test_what_lives_is_not_lost_to_rounding():
    # The least number of float16, shrunk by six tenths of it, would round to 0.
    least = 2.0**-24
    w = torch.tensor([least, -least], dtype=torch.float16)
    assert power_shrink(w, torch.tensor([0.6 * least]), 1.0).sign().tolist() == [1.0, -1.0]
