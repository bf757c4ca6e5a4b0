"""What a compiler is told about the fused operator: shapes alone, without a number; and gradients that nobody has."""

import pytest
import torch
from sequences import problem
from torch._subclasses.fake_tensor import FakeTensorMode

from softprune.ops.recurrence import fastgrnn
from softprune.ops.recurrence.fused import OPERATOR, fused_backward

pytestmark = pytest.mark.usefixtures("compiled")


def empty():
    """x, w, u, biases and scales of 5 sequences of 7 steps with 3 features, and 18 hidden units."""
    shapes = [(5, 7, 3), (18, 3), (18, 18), (2, 18), (2,)]
    return [torch.empty(shape) for shape in shapes]


@pytest.mark.parametrize(("keep", "room"), [(True, 5 * 7 * 32), (False, 0)])
def test_the_outputs_have_shapes_before_they_have_values(keep, room):
    # 18 sums are padded to two lines of 16.
    with FakeTensorMode():
        states, last, sums = OPERATOR(*empty(), None, 0, 1, keep=keep)
    assert (states.shape, last.shape, sums.shape) == ((5, 7, 18), (5, 18), (room,))
    real = OPERATOR(*(torch.zeros_like(t) for t in empty()), None, 0, 1, keep=keep)
    assert [t.shape for t in real] == [states.shape, last.shape, sums.shape]


@pytest.mark.parametrize("wants_x", [True, False])
@pytest.mark.parametrize("start", [True, False])
def test_the_gradients_have_the_shapes_of_what_they_are_of(wants_x, start):
    with FakeTensorMode():
        given = empty()
        first = torch.empty(5, 18) if start else None
        states, last, sums = OPERATOR(*given, first, 0, 1, keep=True)
        made = fused_backward(states, last, states, sums, *given, first, 0, 1, wants_x=wants_x)
    wanted = [t.shape if wants_x or i else (0,) for i, t in enumerate(given)]
    assert [t.shape for t in made] == [*wanted, (5, 18)]


class Deaf(torch.autograd.Function):
    """Passes a tensor on, and no gradient back."""

    @staticmethod
    def forward(ctx, t):
        return t.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def test_where_no_gradient_arrives_none_is_made():
    tensors = problem(samples=2, steps=3, features=2, hidden=4)
    states, last = fastgrnn(tensors["x"], **{name: t for name, t in tensors.items() if name != "x"})
    (Deaf.apply(states).sum() + Deaf.apply(last).sum()).backward()
    assert all(t.grad is None for t in tensors.values())
