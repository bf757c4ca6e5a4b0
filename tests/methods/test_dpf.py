"""DPF by hand: Lin et al. 2020, Algorithm 1: w <- w - eta * g(m * w), and a mask from |w| every p steps."""

import pytest
import torch
from on_paper import begun, layer, mask, push, raw

import softprune
from softprune import Budget, constant
from softprune.methods import DPF

HALF = Budget({"0.weight": 0.5})


def test_the_gradient_is_taken_at_the_pruned_point_and_moves_all():
    model = layer([0.1, -0.4, 0.3, 0.2])
    sparsifier, optimizer = begun(model, DPF(every=2), budget=HALF, schedule=constant())
    out = model(torch.ones(1, 4))
    assert out.item() == pytest.approx(-0.1)
    (out.square().sum() / 2).backward()
    # dL/dw = out * x = -0.1 for every weight, the pruned ones too.
    assert sparsifier.targets[0].raw.grad.flatten().tolist() == pytest.approx([-0.1] * 4)
    optimizer.step()
    assert raw(sparsifier) == pytest.approx([0.2, -0.3, 0.4, 0.3])


def test_the_mask_is_renewed_every_so_many_steps_and_takes_back_what_it_did():
    sparsifier, optimizer = begun(layer([0.1, -0.4, 0.3, 0.2]), DPF(every=2), budget=HALF, schedule=constant())
    push(sparsifier, optimizer, [-0.9, 0.0, 0.0, 0.0])
    assert mask(sparsifier) == [0, 1, 1, 0]
    push(sparsifier, optimizer, [0.0, 0.0, 0.0, 0.0])
    # |w| = 1.0, 0.4, 0.3, 0.2
    assert mask(sparsifier) == [1, 1, 0, 0]


def test_the_sparsity_rises_as_a_cubic():
    # s_f * (1 - (1 - x)^3), x from 0.1 to 0.7 of the training: of 8 weights 4 go in the end.
    sparsifier, optimizer = begun(layer([0.1 * n for n in range(1, 9)]), DPF(every=1), budget=HALF)
    kept = []
    for _ in range(10):
        push(sparsifier, optimizer, [0.0] * 8)
        kept.append(sum(mask(sparsifier)))
    x = [max(0.0, min(1.0, (n / 10 - 0.1) / 0.6)) for n in range(1, 11)]
    assert kept == [8 - round(4 * (1 - (1 - v) ** 3)) for v in x] and kept[0] == 8 and kept[-1] == 4


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="DPF prunes to a total and got none"):
        softprune.sparsify(layer([1.0, 2.0]), DPF())
    with pytest.raises(ValueError, match="every is a number of steps"):
        DPF(every=-1)
