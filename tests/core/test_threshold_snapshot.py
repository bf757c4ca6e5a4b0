"""A snapshot copies s and its gradient, and tells whether all of them move."""

import pytest
import torch
from torch import nn

from softprune.core.hooks import ThresholdSnapshot


def threshold(value, grad, dtype=torch.float32):
    s = nn.Parameter(torch.as_tensor(value, dtype=dtype))
    s.grad = None if grad is None else torch.as_tensor(grad, dtype=dtype)
    return s


@pytest.mark.parametrize("second_dtype", [torch.float32, torch.float64], ids=["alike", "mixed"])
@torch.no_grad()
def test_it_keeps_what_the_step_and_zero_grad_change(second_dtype):
    one = threshold([-5.0], [0.5])
    grid = threshold([[-1.0], [-2.0]], [[3.0], [4.0]], second_dtype)
    unused = threshold([-7.0], None)
    snapshot = ThresholdSnapshot([one, grid, unused], loss_scale=2.0)
    for s in (one, grid):
        s.add_(1.0)
        s.grad.zero_()
    seen = snapshot.read()
    assert list(seen) == [one, grid]
    assert [t.tolist() for t in seen[one]] == [[-5.0], [0.25]]
    assert [t.tolist() for t in seen[grid]] == [[[-1.0], [-2.0]], [[1.5], [2.0]]]
    assert seen[grid][0].dtype == second_dtype


@torch.no_grad()
def test_all_move_only_if_no_gradient_is_zero():
    moving, silent = threshold([-5.0], [1e-30]), threshold([-5.0], [0.0])
    assert ThresholdSnapshot([moving, moving]).all_move()
    assert not ThresholdSnapshot([moving, silent]).all_move()
    assert not ThresholdSnapshot([]).all_move()
    # Different kinds are not joined, and then nothing is said.
    assert not ThresholdSnapshot([moving, threshold([-5.0], [1.0], torch.float64)]).all_move()
