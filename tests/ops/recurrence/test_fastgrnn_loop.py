"""The loop that the fused operator is measured by."""

import math

import pytest
import torch
from sequences import problem

from softprune.ops.recurrence import CURVES, fastgrnn, fastgrnn_loop, fastgrnn_step


def test_one_step_by_hand():
    # pre = 2 * 0.5 + 3 * 0.1 = 1.3; z = sigmoid(1.3 - 1.3) = 0.5; c = tanh(1.3 - 1.3 + 1) = tanh(1).
    one = {"gate_bias": torch.tensor([-1.3]), "update_bias": torch.tensor([-0.3])}
    scales = {"zeta": torch.tensor([0.8]), "nu": torch.tensor([0.2])}
    u = torch.tensor([[3.0]])
    h = fastgrnn_step(torch.tensor([[1.0]]), torch.tensor([[0.1]]), u=u, **one, **scales)
    assert h.item() == pytest.approx(0.5 * 0.1 + (0.8 * 0.5 + 0.2) * math.tanh(1.0), rel=1e-6)
    states, last = fastgrnn_loop(
        torch.tensor([[[0.5]]]), w=torch.tensor([[2.0]]), u=u, start=torch.tensor([[0.1]]), **one, **scales
    )
    assert states.item() == last.item() == h.item()


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("quant_tanh", 0.3, 0.3),
        ("quant_tanh", 2.0, 1.0),
        ("quant_sigm", 0.5, 0.75),
        ("quant_sigm", -2.0, 0.0),
        ("quant_sigm4", 1.0, 0.75),
        ("quant_sigm4", 3.0, 1.0),
        ("relu", -1.0, 0.0),
        ("sigmoid", 0.0, 0.5),
    ],
)
def test_the_non_linearities(name, at, value):
    assert CURVES[name](torch.tensor(at)).item() == pytest.approx(value)


@pytest.mark.parametrize("gate", ["sigmoid", "tanh"])
def test_the_gradients_of_the_loop_are_those_of_finite_differences(gate):
    tensors = problem(samples=2, steps=3, features=2, hidden=3, start=True, dtype=torch.float64)
    names = list(tensors)

    def function(*values):
        given = dict(zip(names, values, strict=True))
        return fastgrnn(given.pop("x"), **given, gate=gate)

    assert torch.autograd.gradcheck(function, tuple(tensors.values()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 3)}, r"a sequence is \[n, steps, features\] with at least one step; got \(2, 3\)"),
        ({"x": torch.zeros(2, 0, 4)}, "at least one step"),
        ({"w": torch.zeros(5, 3)}, r"w must be \(5, 4\) here; got \(5, 3\)"),
        ({"u": torch.zeros(5, 4)}, r"u must be \(5, 5\) here; got \(5, 4\)"),
        ({"gate_bias": torch.zeros(4)}, r"gate_bias must be \(5,\) here"),
        ({"start": torch.zeros(3, 5)}, r"start must be \(2, 5\) here; got \(3, 5\)"),
        ({"gate": "softmax"}, "the non-linearity of the gate is one of sigmoid, .*; got 'softmax'"),
        ({"update": "softmax"}, "the non-linearity of the update is one of"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    given = {**problem(samples=2, steps=3, features=4, hidden=5), **change}
    with pytest.raises(ValueError, match=message):
        fastgrnn(given.pop("x"), **given)


def test_in_double_precision_all_that_is_given_counts():
    # pre = 2 * 0.5 + 3 * 0.25 = 1.75; z = (1.75 - 1 + 1) / 2 = 0.875; c = relu(1.75 + 0.25) = 2.
    def number(*values):
        return torch.tensor(values, dtype=torch.float64)

    states, last = fastgrnn(
        number(0.5).view(1, 1, 1), w=number(2.0).view(1, 1), u=number(3.0).view(1, 1), gate_bias=number(-1.0),
        update_bias=number(0.25), zeta=number(0.5), nu=number(0.125), start=number(0.25).view(1, 1),
        gate="quant_sigm", update="relu",
    )  # fmt: skip
    assert last.item() == states.item() == 0.875 * 0.25 + (0.5 * 0.125 + 0.125) * 2.0


def test_a_gate_that_is_shut_forgets_the_state():
    eye, zero = torch.eye(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    states, last = fastgrnn(
        torch.tensor([[[2.0], [2.0], [4.0]]], dtype=torch.float64), w=eye, u=0 * eye, gate_bias=zero - 100.0,
        update_bias=zero, zeta=zero + 0.5, nu=zero, gate="sigmoid", update="relu",
    )  # fmt: skip
    # h = zeta * x, whatever h was.
    assert states.flatten().tolist() == pytest.approx([1.0, 1.0, 2.0]) and last.item() == pytest.approx(2.0)
