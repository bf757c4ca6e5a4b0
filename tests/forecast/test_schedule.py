"""The rates read from a copy must be those of the real scheduler, and the real one must not notice."""

import copy
import math
import time
import warnings

import pytest
import torch
from torch.optim import SGD, Adam, AdamW
from torch.optim import lr_scheduler as schedulers

from softprune.forecast.schedule import caveat, learning_rates, settings

STEPS = 60


def sgd(**changes):
    groups = [{"params": [torch.zeros(3)]}, {"params": [torch.zeros(2)], "lr": 0.03}]
    return SGD(groups, **{"lr": 0.1, "momentum": 0.9, **changes})


def sequential(optimizer):
    warm = schedulers.LinearLR(optimizer, start_factor=0.1, total_iters=10)
    rest = schedulers.CosineAnnealingLR(optimizer, T_max=50)
    return schedulers.SequentialLR(optimizer, [warm, rest], milestones=[10])


def chained(optimizer):
    warm = schedulers.ConstantLR(optimizer, factor=0.2, total_iters=5)
    return schedulers.ChainedScheduler([warm, schedulers.ExponentialLR(optimizer, gamma=0.95)], optimizer)


def nested(optimizer):
    stages = [
        schedulers.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        schedulers.StepLR(optimizer, step_size=7),
    ]
    inner = schedulers.SequentialLR(optimizer, stages, milestones=[20])
    return schedulers.ChainedScheduler([inner, schedulers.ExponentialLR(optimizer, gamma=0.95)], optimizer)


SCHEDULERS = {
    "lambda": lambda o: schedulers.LambdaLR(o, [lambda step: 0.99**step, lambda step: 1 / (1 + step)]),
    "multiplicative": lambda o: schedulers.MultiplicativeLR(o, lambda step: 0.97),
    "step": lambda o: schedulers.StepLR(o, step_size=9, gamma=0.5),
    "multistep": lambda o: schedulers.MultiStepLR(o, milestones=[10, 30, 31], gamma=0.1),
    "constant": lambda o: schedulers.ConstantLR(o, factor=0.5, total_iters=12),
    "linear": lambda o: schedulers.LinearLR(o, start_factor=0.1, total_iters=25),
    "exponential": lambda o: schedulers.ExponentialLR(o, gamma=0.9),
    "polynomial": lambda o: schedulers.PolynomialLR(o, total_iters=STEPS, power=2.0),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, T_max=STEPS, eta_min=1e-4),
    "restarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, T_0=7, T_mult=2),
    "onecycle": lambda o: schedulers.OneCycleLR(o, max_lr=[0.4, 0.2], total_steps=STEPS),
    "cyclic": lambda o: schedulers.CyclicLR(o, base_lr=0.01, max_lr=0.1, step_size_up=8, mode="exp_range"),
    "swa": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.05, anneal_epochs=10),
    "sequential": sequential,
    "chained": chained,
    "nested": nested,
}


def really_run(optimizer, scheduler, steps, per_scheduler_step=1):
    seen = []
    for step in range(steps):
        seen.append([(group["lr"], group["momentum"]) for group in optimizer.param_groups])
        optimizer.step()
        if (step + 1) % per_scheduler_step == 0 and step + 1 < steps:
            scheduler.step()
    return seen


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("per_scheduler_step", [1, 4])
def test_equals_really_running_it(name, per_scheduler_step):
    optimizer = sgd()
    scheduler = SCHEDULERS[name](optimizer)
    lrs = [
        learning_rates(optimizer, scheduler, STEPS, steps_per_scheduler_step=per_scheduler_step, group=group)
        for group in (0, 1)
    ]
    real = really_run(optimizer, scheduler, STEPS, per_scheduler_step)
    assert lrs[0] == [groups[0][0] for groups in real]
    assert lrs[1] == [groups[1][0] for groups in real]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_goes_on_from_where_a_resumed_scheduler_is(name):
    optimizer = sgd()
    scheduler = SCHEDULERS[name](optimizer)
    for _ in range(13):
        optimizer.step()
        scheduler.step()
    lrs = learning_rates(optimizer, scheduler, 40, group=1)
    assert lrs == [groups[1][0] for groups in really_run(optimizer, scheduler, 40)]


def snapshot(optimizer, scheduler):
    return copy.deepcopy((optimizer.param_groups, optimizer.state_dict(), scheduler.state_dict()))


@pytest.mark.parametrize("name", ["onecycle", "cyclic", "cosine", "restarts", "step"])
def test_leaves_optimizer_and_scheduler_untouched(name):
    optimizer = sgd()
    scheduler = SCHEDULERS[name](optimizer)
    before, identities = snapshot(optimizer, scheduler), [id(group) for group in optimizer.param_groups]
    assert len(learning_rates(optimizer, scheduler, STEPS)) == STEPS
    assert str(snapshot(optimizer, scheduler)) == str(before)
    assert [id(group) for group in optimizer.param_groups] == identities
    assert scheduler.optimizer is optimizer


def test_a_nested_scheduler_stays_where_it_is_at_every_depth():
    optimizer = sgd()
    scheduler = nested(optimizer)
    inner = scheduler._schedulers[0]._schedulers
    parts = (*scheduler._schedulers, *inner)
    before = [part.last_epoch for part in parts]
    lr = optimizer.param_groups[0]["lr"]
    learning_rates(optimizer, scheduler, STEPS)
    assert [part.last_epoch for part in parts] == before
    assert optimizer.param_groups[0]["lr"] == lr


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_follows_the_momentum_that_onecycle_cycles(kind):
    optimizer = kind([torch.zeros(1)], lr=0.1, **({"momentum": 0.9} if kind is SGD else {}))
    scheduler = schedulers.OneCycleLR(optimizer, max_lr=0.4, total_steps=STEPS)

    def momentum(group):
        return group["betas"][0] if "betas" in group else group["momentum"]

    planned = [momentum(group) for _, group in settings(optimizer, scheduler, STEPS)]
    real = []
    for _ in range(STEPS):
        real.append(momentum(optimizer.param_groups[0]))
        optimizer.step()
        scheduler.step()
    assert planned == real
    assert max(real) == pytest.approx(0.95) and min(real) < 0.86


def test_a_tensor_learning_rate_is_read_and_not_overwritten():
    optimizer = Adam([torch.zeros(1)], lr=torch.tensor(0.5), foreach=False)
    scheduler = schedulers.ExponentialLR(optimizer, gamma=0.5)
    assert learning_rates(optimizer, scheduler, 3) == [0.5, 0.25, 0.125]
    assert optimizer.param_groups[0]["lr"].item() == 0.5


class WithModel:
    """A callable that drags the weights along."""

    def __init__(self, parameter):
        self.parameter = parameter
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1 / (1 + step)


def test_no_weight_is_copied_and_the_callable_is():
    class Weight(torch.nn.Parameter):
        def __deepcopy__(self, memo):
            raise AssertionError("a weight was copied")

    weight = Weight(torch.zeros(4))
    optimizer = SGD([weight], lr=1.0)
    factor = WithModel(weight)
    scheduler = schedulers.LambdaLR(optimizer, factor)
    calls = factor.calls
    assert learning_rates(optimizer, scheduler, 3) == [1.0, 0.5, pytest.approx(1 / 3)]
    assert factor.calls == calls


def test_named_parameters_are_no_obstacle():
    optimizer = SGD(torch.nn.Linear(2, 2).named_parameters(), lr=0.1)
    assert learning_rates(optimizer, schedulers.StepLR(optimizer, 1, gamma=0.5), 2) == [0.1, 0.05]


def test_raises_no_warning_about_the_order_of_steps():
    optimizer = sgd()
    scheduler = sequential(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(learning_rates(optimizer, scheduler, STEPS)) == STEPS


def test_other_sources_none_function_list_and_plateau():
    optimizer = sgd()
    assert learning_rates(optimizer, None, 3, group=1) == [0.03] * 3
    assert learning_rates(optimizer, lambda step: 1 / (1 + step), 3) == [1, 1 / 2, 1 / 3]
    assert learning_rates(optimizer, [0.4, 0.2], 3, steps_per_scheduler_step=2) == [0.4, 0.4, 0.2]
    plateau = schedulers.ReduceLROnPlateau(optimizer)
    assert learning_rates(optimizer, plateau, 2) == [0.1, 0.1]
    assert "follows the loss" in caveat(plateau)
    assert caveat(None) is None and caveat(schedulers.StepLR(optimizer, 1)) is None
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"total_steps": 0}, ValueError, "total_steps is 0; it must be a whole number >= 1"),
        ({"total_steps": 1.5}, ValueError, "total_steps is 1.5"),
        ({"steps_per_scheduler_step": -1}, ValueError, "steps_per_scheduler_step is -1"),
        ({"group": 2}, ValueError, "group is 2; the optimizer has groups 0..1"),
        ({"scheduler": [0.1]}, ValueError, "holds 1 learning rates; 5 are needed"),
        ({"scheduler": [0.1, -1, 0, 0, 0]}, ValueError, "at scheduler step 1 is -1"),
        ({"scheduler": lambda step: math.nan}, ValueError, "finite and >= 0"),
        ({"scheduler": 3}, TypeError, "scheduler is a int; give a torch LRScheduler"),
        ({"scheduler": schedulers.StepLR(sgd(), 1)}, ValueError, "drives another SGD"),
    ],
)
def test_refuses_bad_input_with_value_range_and_fix(change, error, says):
    arguments = {"scheduler": None, "total_steps": 5, **change}
    with pytest.raises(error, match=None) as caught:
        learning_rates(sgd(), arguments.pop("scheduler"), arguments.pop("total_steps"), **arguments)
    assert says in str(caught.value)


def test_a_schedule_that_ends_before_the_run_is_refused():
    optimizer = sgd()
    scheduler = schedulers.OneCycleLR(optimizer, max_lr=0.4, total_steps=10)
    with pytest.raises(ValueError, match="OneCycleLR refuses its step 11 of 20"):
        learning_rates(optimizer, scheduler, 20)


def test_a_scheduler_that_cannot_be_copied_is_refused_with_the_way_out():
    optimizer = sgd()
    factor = WithModel(step for step in ())  # a generator cannot be copied
    scheduler = schedulers.LambdaLR(optimizer, factor)
    with pytest.raises(TypeError, match="pass a function from the scheduler step"):
        learning_rates(optimizer, scheduler, 5)


def test_half_a_million_steps_of_a_schedule_by_epoch_are_quick():
    optimizer = sgd()
    scheduler = schedulers.CosineAnnealingLR(optimizer, T_max=100)
    start = time.perf_counter()
    lrs = learning_rates(optimizer, scheduler, 500_500, steps_per_scheduler_step=5005)
    assert time.perf_counter() - start < 2
    assert len(lrs) == 500_500 and len(set(lrs)) == 100
