"""The rule that moves s, by hand, against finite differences, and free of any scale."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import softprune
from softprune import STR, Sparsity, constant
from softprune.budget.costs import PerWeight
from softprune.goals.constraint import ConstrainedTensor, Constraint
from softprune.goals.solve import KEEP_FORCE, KEEP_PULL, LARGEST_STEP, learn, observe, solve


def two(first, second, **settings):
    """A constraint of two tensors, given as lists, whose thresholds all stand at 0 yet."""
    model = nn.ModuleList(nn.Linear(len(row), 1, bias=False).double() for row in (first, second))
    for layer, row in zip(model, (first, second), strict=True):
        layer.weight.data = torch.tensor([row], dtype=torch.float64)
    sparsifier = softprune.sparsify(model, STR(**settings), goal=Sparsity(0.5), schedule=constant())
    return sparsifier.goals[0]


def by_hand(*, costs=(1.0, 1.0), scale=1.0, **settings):
    """Thresholds 1 and 0.5; G = -1 * (0.5 - 0.25) = -0.25 and -0.5 * (-2) = 1."""
    given = two([3.0, -2.0, 0.1], [4.0, 0.2], **settings)
    tensors = tuple(
        ConstrainedTensor(m.target, m.settings, PerWeight(c), m.floor)
        for m, c in zip(given.tensors, costs, strict=True)
    )
    constraint = Constraint(given.goal, given.schedule, tensors, given.full, given.final, given.density)
    values = [(1.0, 3.0, [0.5, 0.25, 9.0]), (0.5, 1.0, [-2.0, 7.0])]
    for tensor, (alpha, crossing, grad) in zip(tensors, values, strict=True):
        transform = tensor.transform
        transform.s.zero_()
        transform.alpha.fill_(alpha)
        transform.crossing.fill_(crossing)
        tensor.target.raw.grad = scale * torch.tensor([grad], dtype=torch.float64)
    return constraint


def pulls(constraint):
    return [float(m.transform.pull) for m in constraint.tensors]


def forces(constraint):
    return [float(m.transform.force) for m in constraint.tensors]


def s_of(constraint):
    return [float(m.transform.s) for m in constraint.tensors]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"gradient": "plain"}, [-0.25, 1.0]),
        ({}, [-0.8125, 0.8125]),  # G - (3/4, 1/4) * 0.75
        ({"costs": (1.0, 2.0)}, [-0.7, 0.7]),  # a weight of the second costs twice: G - (3/5, 2/5) * 0.75
    ],
    ids=["plain", "projected", "costs"],
)
def test_the_gradient_by_hand(settings, expected):
    constraint = by_hand(**settings)
    observe(constraint)
    assert pulls(constraint) == pytest.approx(expected, rel=1e-12)
    assert forces(constraint) == pytest.approx([d * d for d in expected], rel=1e-12)


def test_the_step_by_hand():
    constraint = by_hand()
    observe(constraint)
    # After one step pull is D and the common size |D|, so the ratio is -1 and 1.
    learn(constraint, progress=0.5, total_steps=100)
    assert s_of(constraint) == pytest.approx([3.0 / 100, -3.0 / 100], rel=1e-12)
    learn(constraint, progress=1.0, total_steps=100)  # the cosine has ended
    assert s_of(constraint) == pytest.approx([3.0 / 100, -3.0 / 100], rel=1e-12)


def test_the_averages_are_right_from_the_first_step_on():
    """The same gradient again and again: pull is D and force D squared, after one step as after two hundred."""
    constraint = by_hand()
    for _ in range(200):
        observe(constraint)
        assert pulls(constraint) == pytest.approx([-0.8125, 0.8125], rel=1e-6)
        assert forces(constraint) == pytest.approx([0.8125**2] * 2, rel=1e-6)
    assert [int(m.transform.observed) for m in constraint.tensors] == [200, 200]


def test_averages_are_plain_means_until_they_have_seen_what_they_remember():
    constraint = by_hand()
    grads = [m.target.raw.grad.clone() for m in constraint.tensors]
    expected = []  # of the second: D = 0.8125 times the number of the step
    for step in range(1, 151):
        for tensor, grad in zip(constraint.tensors, grads, strict=True):
            tensor.target.raw.grad = step * grad
        observe(constraint)
        expected.append(0.8125 * step)
        if step == 8:
            assert pulls(constraint)[1] == pytest.approx(sum(expected) / 8, rel=1e-9)
        if step == 90:
            assert forces(constraint)[1] == pytest.approx(sum(d * d for d in expected) / 90, rel=1e-9)
    pull, force = expected[0], expected[0] ** 2
    for number, d in enumerate(expected[1:], 2):
        pull += max(1 - KEEP_PULL, 1 / number) * (d - pull)
        force += max(1 - KEEP_FORCE, 1 / number) * (d * d - force)
    assert pulls(constraint)[1] == pytest.approx(pull, rel=1e-9)
    assert forces(constraint)[1] == pytest.approx(force, rel=1e-9)


def test_how_much_was_observed_goes_on_from_a_checkpoint():
    def learnt(constraint):
        return [float(t) for m in constraint.tensors for t in m.transform.state_dict().values()]

    whole, first, second = by_hand(), by_hand(), by_hand()
    for _ in range(7):
        observe(whole)
        learn(whole, progress=0.3, total_steps=100)
    for constraint, steps in ((first, 3), (second, 4)):
        if constraint is second:
            for ours, theirs in zip(constraint.tensors, first.tensors, strict=True):
                ours.transform.load_state_dict(theirs.transform.state_dict())
        for _ in range(steps):
            observe(constraint)
            learn(constraint, progress=0.3, total_steps=100)
    assert learnt(second) == learnt(whole)


def test_no_step_is_larger_than_its_limit():
    constraint = by_hand()
    observe(constraint)
    learn(constraint, progress=0.0, total_steps=1)
    assert s_of(constraint) == [LARGEST_STEP, -LARGEST_STEP]


@pytest.mark.parametrize("scale", [1e-12, 1e9])
def test_the_scale_of_the_loss_is_divided_out(scale):
    moved = []
    for factor in (1.0, scale):
        constraint = by_hand(scale=factor)
        observe(constraint)
        learn(constraint, progress=0.2, total_steps=50)
        moved.append(s_of(constraint))
    assert moved[0] == pytest.approx(moved[1], rel=1e-9)


def test_a_loss_scale_that_is_still_on_the_gradients_is_taken_off():
    constraint = by_hand(scale=1024.0)
    observe(constraint, loss_scale=1024.0)
    assert pulls(constraint) == pytest.approx([-0.8125, 0.8125], rel=1e-12)


@pytest.mark.parametrize("broken", [float("inf"), float("nan")])
def test_gradients_that_are_not_finite_are_passed_over(broken):
    constraint = by_hand()
    constraint.tensors[0].target.raw.grad[0, 0] = broken
    observe(constraint)
    learn(constraint, progress=0.5, total_steps=100)
    assert pulls(constraint) == [0.0, 0.0] and s_of(constraint) == [0.0, 0.0]


def test_what_stands_still_stays_and_the_others_learn():
    constraint = by_hand()
    constraint.tensors[0].target.raw.grad = None
    observe(constraint)
    # Alone it has nobody to trade with: D = G - (f / f) G = 0.
    assert pulls(constraint) == [0.0, 0.0]


@pytest.mark.parametrize("which", [0, 1])
def test_it_is_the_derivative_of_the_loss_along_the_fixed_total(which):
    """On weights so dense that the count is smooth: raise one s, solve again, look at the loss."""
    first, second = torch.linspace(-1, 1, 20_001).tolist(), (torch.linspace(-1, 1, 10_001) ** 3 * 2).tolist()
    constraint = two(first, second)
    base = [0.3, -0.2]

    def loss():
        (a, b) = (getattr(m.target.module, m.target.tensor) for m in constraint.tensors)
        return ((a - 0.2).square().sum() + 3 * b.square().sum() + b.sum() + (a.abs() * 0.7).sum()) / 1000

    def loss_at(*s):
        for tensor, value in zip(constraint.tensors, s, strict=True):
            tensor.transform.s.fill_(value)
        solve(constraint, constraint.final)
        return loss()

    step = 0.02
    up, down = ([v + sign * step * (i == which) for i, v in enumerate(base)] for sign in (1, -1))
    measured = float((loss_at(*up) - loss_at(*down)).detach()) / (2 * step)
    loss_at(*base).backward()
    observe(constraint)
    assert pulls(constraint)[which] == pytest.approx(measured, rel=0.02)
    assert abs(measured) > 0.01


def test_the_averages_forget_a_tenth_and_a_hundredth_at_each_step():
    constraint = by_hand()
    for _ in range(200):
        observe(constraint)
    for tensor in constraint.tensors:
        tensor.target.raw.grad.zero_()
    observe(constraint)
    assert pulls(constraint) == pytest.approx([-0.9 * 0.8125, 0.9 * 0.8125], rel=1e-6)
    assert forces(constraint) == pytest.approx([0.99 * 0.8125**2] * 2, rel=1e-6)


@pytest.mark.parametrize(
    ("progress", "moved"), [(0.0, 0.06), (0.25, 0.03 * (1 + 0.5**0.5)), (0.75, 0.03 * (1 - 0.5**0.5)), (1.5, 0.0)]
)
def test_steps_follow_a_cosine_and_end_with_the_training(progress, moved):
    constraint = by_hand()
    observe(constraint)
    learn(constraint, progress=progress, total_steps=100)
    assert s_of(constraint) == pytest.approx([moved, -moved], rel=1e-9, abs=1e-15)


def test_a_tenth_of_log_alpha_is_the_largest_step():
    constraint = by_hand(pace=1e6)
    observe(constraint)
    learn(constraint, progress=0.5, total_steps=100)
    assert s_of(constraint) == [0.1, -0.1]


def test_steps_are_relative_to_the_mean_force_of_all_thresholds():
    constraint = by_hand(gradient="plain")
    observe(constraint)
    learn(constraint, progress=0.5, total_steps=100)
    # D is -0.25 and 1, the root of the mean of their squares 0.7289.
    size = ((0.0625 + 1.0) / 2) ** 0.5
    assert s_of(constraint) == pytest.approx([0.03 * 0.25 / size, -0.03 * 1.0 / size], rel=1e-9)


def test_a_threshold_that_is_not_in_use_neither_hears_nor_moves():
    constraint = by_hand(gradient="plain")
    constraint.tensors[0].transform.alpha.zero_()
    observe(constraint)
    learn(constraint, progress=0.5, total_steps=100)
    assert pulls(constraint) == pytest.approx([0.0, 1.0]) and s_of(constraint) == pytest.approx([0.0, -0.03])
    assert [int(m.transform.observed) for m in constraint.tensors] == [0, 1]


def test_without_a_pace_nothing_moves():
    constraint = by_hand(pace=0.0)
    observe(constraint)
    learn(constraint, progress=0.5, total_steps=100)
    assert pulls(constraint) == [0.0, 0.0] == s_of(constraint)


def test_where_thresholds_would_meet_no_weight_the_gradient_is_taken_as_it_is():
    constraint = by_hand()
    for tensor in constraint.tensors:
        tensor.transform.crossing.zero_()
    observe(constraint)
    assert pulls(constraint) == pytest.approx([-0.25, 1.0])


def test_where_one_method_wants_the_plain_gradient_it_is_that_of_all():
    constraint = by_hand()
    first, second = constraint.tensors
    plain = replace(first, settings=replace(first.settings, gradient="plain"))
    constraint = replace(constraint, tensors=(plain, second))
    observe(constraint)
    assert pulls(constraint) == pytest.approx([-0.25, 1.0])


def test_columns_sum_the_gradients_of_their_weights():
    constraint = by_hand(gradient="plain")
    transform = constraint.tensors[0].transform
    for name in ("s", "alpha", "pull", "force", "crossing"):
        setattr(transform, name, torch.zeros(1, 3, dtype=torch.float64))
    transform.alpha.copy_(torch.tensor([[1.0, 1.5, 0.5]]))
    observe(constraint)
    # -alpha * grad * sign(w) where |w| > alpha: of 3, -2 and 0.1 the last is pruned.
    assert transform.pull.tolist()[0] == pytest.approx([-0.5, 0.375, 0.0])
