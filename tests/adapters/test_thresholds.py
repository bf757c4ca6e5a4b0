"""Thresholds beside clipping: their gradients are not scaled and count in no norm."""

import pytest
import torch
from plain_loop import METHOD
from torch import nn

from softprune.adapters.thresholds import ThresholdsAside
from softprune.core.groups import learnt
from softprune.core.sparsify import sparsify


@pytest.fixture
def parts():
    """A managed layer, its optimizer, and what stands between backward and the step."""
    sparsifier = sparsify(nn.Linear(4, 3), METHOD)
    optimizer = torch.optim.SGD(sparsifier.model.parameters(), lr=0.5)
    thresholds = learnt(sparsifier.targets)
    return sparsifier.model, optimizer, thresholds[0], ThresholdsAside(thresholds, [optimizer])


def backward_and_clip(model, aside):
    model(torch.ones(2, 4)).square().sum().backward()
    s_grad = model.parametrizations.weight[0].s.grad.clone()
    aside.take()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    return s_grad, norm


def test_the_step_gets_the_whole_gradient_of_a_threshold(parts):
    model, optimizer, s, aside = parts
    before = s.detach().clone()
    gradient, norm = backward_and_clip(model, aside)
    weights = [p for p in model.parameters() if p is not s]
    assert s.grad is None
    assert norm > 1e-3 > torch.cat([p.grad.flatten() for p in weights]).norm() * 0.99
    optimizer.step()
    assert gradient.abs().sum() > 0
    torch.testing.assert_close(s.detach(), before - 0.5 * gradient, rtol=0, atol=0)
    torch.testing.assert_close(s.grad, gradient, rtol=0, atol=0)


def test_backward_inside_of_the_step_is_run_once_and_before_it(parts):
    model, optimizer, s, aside = parts
    before, runs, ready = s.detach().clone(), [], []
    # As attach() does it: a hook that comes later and wants to see gradients.
    optimizer.register_step_pre_hook(lambda *args: ready.append(s.grad.clone()))

    def closure():
        optimizer.zero_grad()
        runs.append(backward_and_clip(model, aside)[0])
        return "loss"

    assert optimizer.step(closure=closure) == "loss"
    assert len(runs) == 1
    torch.testing.assert_close(ready[0], runs[0], rtol=0, atol=0)
    torch.testing.assert_close(s.detach(), before - 0.5 * runs[0], rtol=0, atol=0)


def test_an_optimizer_that_asks_again_gets_fresh_gradients(parts):
    model, _, s, _ = parts

    class Twice(torch.optim.SGD):
        def step(self, closure):
            return closure() + closure()

    optimizer, losses = Twice(model.parameters(), lr=0.5), []
    aside = ThresholdsAside([s], [optimizer])

    def closure():
        optimizer.zero_grad()
        backward_and_clip(model, aside)
        losses.append(len(losses) + 1)
        return losses[-1]

    assert optimizer.step(closure=closure) == 3
    assert losses == [1, 2]
    assert s.grad is not None


def test_a_step_that_was_skipped_leaves_nothing_behind(parts):
    model, optimizer, s, aside = parts
    backward_and_clip(model, aside)  # no step follows: a GradScaler has found an overflow
    optimizer.zero_grad()
    gradient, _ = backward_and_clip(model, aside)
    optimizer.step()
    torch.testing.assert_close(s.grad, gradient, rtol=0, atol=0)
