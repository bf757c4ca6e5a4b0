"""What a method is without settings, and that settings cannot change under way.

Files leave out what is the default, so another default would give a file that was written before another meaning.
"""

import dataclasses
import math

import pytest

from softprune.goals.base import Staircase, constant, cubic
from softprune.methods import from_config, method_names, to_config
from softprune.methods.acdc import Alternation
from softprune.methods.base import Context, GoalSettings, method_class
from softprune.methods.transforms import Target
from softprune.ops import Backward, Sigmoid, annealed, masked, straight_through

DEFAULTS = {
    # 10 and 15 of 100 epochs, and seven phases.
    "acdc": {"warmup": 0.1, "final": 0.15, "phases": 7, "min_keep": 0},
    "autosparse": {"leak": 0.75, "until": 0.9, "s_init": -3200.0, "g": Sigmoid(1.0), "min_keep": 0, "pace": 3.0},
    "dnw": {},
    "dpf": {"every": 16, "min_keep": 0},
    # 0.001, and epoch 95 of 100.
    "dsr": {"every": 25, "moves": 0.1, "threshold": 0.001, "end": 0.95},
    "feather": {"power": 3.0, "leak": 1.0, "min_keep": 0},
    "gmp": {"every": 16, "min_keep": 0},
    "imp": {"rounds": 5, "rewind": "weights", "rewind_at": 0.05, "min_keep": 0},
    "keep-zeros": {},
    # Every 100 steps, 0.3 of the weights.
    "rigl": {"every": 100, "alpha": 0.3, "end": 0.75},
    "set": {"every": 100, "zeta": 0.3, "end": 0.75},
    "slats": {"min_keep": 0},
    "snfs": {"every": 100, "rate": 0.5, "last_rate": 0.005, "end": 0.95},
    "snip": {},
    "st3": {"sigma": False, "min_keep": 0},
    "static": {},
    # s_init of the paper's ResNet50.
    "str": {
        "s_init": -3200.0, "g": Sigmoid(1.0), "granularity": "tensor", "backward": None, "min_keep": 0, "pace": 3.0,
        "gradient": "projected", "start": "equal", "rescale": False,
    },
    "vd": {"kl": 20.0, "begin": 0.1, "saturate": 0.6, "log_sigma2_init": -10.0, "min_keep": 0},
}  # fmt: skip

# Methods that decide on masks themselves, and those that the loss tells nothing about the weights.
MOVE_MASKS = {"dsr", "rigl", "set", "snfs", "snip", "static"}
BLIND = {"dsr", "set", "snip", "static", "keep-zeros"}
# How far thresholds learn, how often the goal is solved for, where thresholds start, and along which schedule.
GOAL_SETTINGS = {
    "acdc": GoalSettings(0.0, "projected", "equal", 0, 0, Alternation(0.1, 0.15, 7)),
    "autosparse": GoalSettings(3.0, "projected", "equal", 1, 0),
    "dnw": GoalSettings(schedule=constant()),
    "dpf": GoalSettings(0.0, "projected", "equal", 16, 0),
    "feather": GoalSettings(schedule=cubic(0.0, 0.5)),
    "gmp": GoalSettings(0.0, "projected", "equal", 16, 0),
    "imp": GoalSettings(0.0, "projected", "equal", 0, 0, Staircase(5), 5, 0.05),
    "slats": GoalSettings(schedule=constant()),
    "str": GoalSettings(3.0, "projected", "equal", 1, 0),
    "vd": GoalSettings(0.0, "projected", "equal", 16, 0, constant()),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_a_file_leaves_out_has_always_meant_the_same(name):
    method = method_class(name)()
    assert {f.name: getattr(method, f.name) for f in dataclasses.fields(method)} == DEFAULTS[name]
    assert method == from_config({"method": name}) and to_config(method) == {"method": name}


def test_every_method_is_listed_here():
    ours = {name for name in method_names() if method_class(name).__module__.startswith("softprune.")}
    assert ours == set(DEFAULTS)


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_method_is_a_value_that_does_not_change(name):
    method = method_class(name)()
    assert hash(method) == hash(method_class(name)())
    for field in [*DEFAULTS[name], "role"]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field, 1)


@pytest.mark.parametrize("name", DEFAULTS)
def test_who_moves_masks_and_who_hears_of_the_loss(name):
    cls = method_class(name)
    assert (cls.moves_masks, cls.selects) == (name in MOVE_MASKS, name not in BLIND)
    assert cls().reads_weights == (name in MOVE_MASKS)


@pytest.mark.parametrize("name", DEFAULTS)
def test_how_each_goes_after_a_goal(name):
    settings = method_class(name)().goal_settings
    assert settings == GOAL_SETTINGS.get(name, GoalSettings())


def test_goal_settings_that_say_nothing_solve_at_every_step_and_leave_the_distribution():
    assert GoalSettings() == GoalSettings(
        pace=0.0, gradient="projected", start="equal", every=1, min_keep=0, schedule=cubic()
    )
    for field, value in (("pace", 1.0), ("every", 2)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(GoalSettings(), field, value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pace": "far"}, "pace is a distance"),
        ({"pace": -1e-9}, "pace is a distance"),
        ({"pace": True}, "pace is a distance"),
        ({"every": -1}, "every is a number of steps, 0 or more"),
        ({"every": 1.0}, "every is a number of steps"),
        ({"every": True}, "every is a number of steps"),
        ({"min_keep": -1}, "min_keep is a number of weights, 0 or more"),
        ({"min_keep": 2.5}, "min_keep is a number of weights"),
        ({"min_keep": False}, "min_keep is a number of weights"),
        ({"gradient": "both"}, "gradient must be 'projected' or 'plain'"),
        ({"start": "anywhere"}, "start must be"),
    ],
    ids=str,
)
def test_goal_settings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        GoalSettings(**wrong).check()


@pytest.mark.parametrize("fine", [{"pace": 0}, {"pace": 1e9}, {"every": 0}, {"min_keep": 0}, {"gradient": "plain"}])
def test_the_ends_of_what_goal_settings_may_be(fine):
    (field,) = fine
    assert getattr(GoalSettings(**fine), field) == fine[field] and GoalSettings(**fine).check() is None


def test_a_context_that_says_nothing_is_of_a_plain_training():
    ctx = Context(step=3, total_steps=12, targets=(), optimizers=())
    assert (ctx.progress, ctx.seed, ctx.loss_scale, ctx.shared) == (0.25, 0, 1.0, False)
    assert (ctx.kept, ctx.memory, ctx.keep_largest, ctx.model) == ({}, {}, None, None)
    assert Context(3, 12, (), ()).memory is not ctx.memory


def test_targets_are_told_apart_by_what_they_are_and_not_by_name():
    assert Target("a", ()) != Target("a", ()) and len({Target("a", ()), Target("a", ())}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        Target("a", ()).name = "b"


def test_how_much_gradient_the_three_modes_leave():
    assert masked == Backward(0.0, None) == Backward() and straight_through == Backward(1.0, None)
    assert annealed() == Backward(1.0, 1.0) and annealed(0.5, until=0.25) == Backward(0.5, 0.25)
    assert [Backward(0.5, 0.5).at(p) for p in (0.0, 0.25, 0.5, 1.0)] == [0.5, 0.25, 0.0, 0.0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        masked.leak = 1.0


def test_the_phases_that_the_paper_has_are_the_default():
    assert Alternation() == Alternation(0.1, 0.15, 7)
    # Seven pairs of 5 epochs, the last dense phase of 10, within 75 epochs.
    turns = [Alternation()((epoch + 0.5) / 100) for epoch in range(100)]
    expected = [0.0] * 10 + ([1.0] * 5 + [0.0] * 5) * 7 + [0.0] * 5 + [1.0] * 15
    assert turns == expected and not math.isnan(sum(turns))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Alternation().phases = 3
