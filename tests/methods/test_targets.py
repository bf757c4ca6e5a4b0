"""Targets: what is known of a tensor without computing it; and what methods make of it."""

import pytest
import torch
from on_paper import begun, layer, mask, raw
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import softprune
from softprune import Budget, Sparsity, constant
from softprune.methods import ACDC, DSR, SNFS, STR, Feather, KeepZeros
from softprune.methods.base import Context, GoalSettings, Method
from softprune.methods.masks import MovingMask
from softprune.methods.snfs import _momentum
from softprune.methods.transforms import Target
from softprune.ops import Sigmoid


def of(module, name="weight"):
    return Target(name, ((module, name),))


class Counting(nn.Module):
    """Doubles a weight, and counts how often."""

    calls = 0

    def forward(self, w):
        Counting.calls += 1
        return 2 * w


def test_the_shape_of_a_managed_weight_is_known_without_computing_it():
    module = nn.Linear(3, 2)
    assert of(module).shape == (2, 3) and of(module).managed is False and of(module).raw is module.weight
    parametrize.register_parametrization(module, "weight", Counting())
    before = Counting.calls
    assert of(module).shape == (2, 3) and of(module).managed is True and Counting.calls == before
    assert of(module).raw is module.parametrizations.weight.original
    assert torch.equal(of(module).effective, 2 * of(module).raw) and not of(module).effective.requires_grad


def test_the_shape_of_a_weight_that_is_computed_from_several_or_kept_beside_its_own():
    assert of(parametrizations.weight_norm(nn.Linear(3, 2))).shape == (2, 3)
    module = nn.Module()
    module.weight = torch.ones(4, 5)
    assert of(module).shape == (4, 5)
    # Another tensor of the same module is managed.
    module.bias = nn.Parameter(torch.ones(4))
    parametrize.register_parametrization(module, "bias", Counting())
    assert of(module).shape == (4, 5) and of(module, "bias").shape == (4,)


def test_what_is_tied_is_read_in_the_first_place():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    target = Target("a", ((first, "weight"), (second, "bias")))
    assert target.module is first and target.tensor == "weight"


def test_a_method_of_ones_own_refuses_what_it_does_not_say():
    class Own(Method):
        role, paper = "given", ""

    target = of(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="Own prunes to a total: pass a goal or a budget"):
        Own().transform(target, "none", None)
    with pytest.raises(ValueError, match="Own takes neither a goal nor a budget"):
        Own().transform(target, "goal", None)
    assert Own().goal_settings == GoalSettings() and Own().accepts == ("none",)
    assert (Own().moves_masks, Own().selects, Own().reads_weights) == (False, True, False)
    drawn = Own().transform(target, "budget", torch.tensor([[True, False], [True, True]]))
    assert isinstance(drawn, MovingMask) and int(drawn.mask.sum()) == 3 and not drawn.dense_grad
    ends = [Own().goal_settings.schedule(p) for p in (0.0, 0.1, 0.7, 1.0)]
    assert ends == [0.0, 0.0, 1.0, 1.0]


def test_zeros_of_now_stay_and_nothing_else():
    module = nn.Linear(3, 1, bias=False)
    module.weight.data = torch.tensor([[0.0, -2.0, 3.0]])
    transform = KeepZeros().transform(of(module), "none", None)
    assert transform(torch.tensor([[5.0, 6.0, 0.0]])).tolist() == [[0.0, 6.0, 0.0]]


def test_on_the_meta_device_a_scale_must_be_given_and_a_floor_waits():
    target = of(nn.Linear(3, 2, device="meta"))
    with pytest.raises(ValueError, match='has no weights to take k="auto" from'):
        STR(g=Sigmoid("auto")).transform(target, "none", None)
    assert STR(g=Sigmoid(2.0)).transform(target, "none", None).s.device.type == "meta"
    assert STR(min_keep=3).transform(target, "none", None).s.device.type == "meta"
    real = of(nn.Linear(3, 2))
    real.raw.data = torch.tensor([[0.1, -0.1, 0.1], [0.1, 0.1, -0.1]])
    # k is four standard deviations: those of 0.1 four times and -0.1 twice are 0.1033.
    scaled = STR(g=Sigmoid("auto")).transform(real, "none", None)
    assert scaled.g.scale == pytest.approx(4 * 0.1 * (32 / 30) ** 0.5, rel=1e-6)


def test_one_threshold_for_all_has_nowhere_to_go():
    shared = STR(granularity="global", pace=2.0, start="mean", min_keep=4, gradient="plain")
    assert shared.goal_settings == GoalSettings(0.0, "plain", "equal", 1, 4)
    assert STR(pace=2.0, start="mean", min_keep=4, gradient="plain").goal_settings == GoalSettings(
        2.0, "plain", "mean", 1, 4
    )


def test_filters_are_rescaled_if_str_is_told():
    # The largest that goes is 2, so 3 becomes 1, times 1.01 / (0.01 + 3 / 6).
    weights = [1.0, 2.0, -3.0]
    for rescale, left in ((False, -1.0), (True, -1.01 / 0.51)):
        model = layer(weights)
        softprune.sparsify(model, STR(rescale=rescale), goal=Sparsity(2 / 3), schedule=constant())
        assert model[0].weight.tolist()[0] == pytest.approx([0.0, 0.0, left], rel=1e-5)


@pytest.mark.parametrize("leak", [0.5, 1.0])
def test_feather_leaks_what_it_is_told(leak):
    model = layer([1.0, 2.0, -3.0])
    sparsifier = softprune.sparsify(model, Feather(leak=leak), goal=Sparsity(2 / 3), schedule=constant())
    model[0].weight.sum().backward()
    assert sparsifier.targets[0].raw.grad.tolist() == [[leak, leak, 1.0]]


def test_the_phases_of_acdc_leave_room_for_each_other():
    for fine in ((0.0, 1.0), (0.5, 0.5), (0.9, 0.1 - 1e-12)):
        assert (ACDC(*fine).warmup, ACDC(*fine).final) == fine
    for wrong in ((0.5, 0.6), (1.0, 0.1), (-0.1, 0.5), (0.5, 0.0), (0.0, 1.1)):
        with pytest.raises(ValueError, match="warmup and final are fractions"):
            ACDC(*wrong)
    for phases in (0, True, 1.5):
        with pytest.raises(ValueError, match="phases is a number of at least 1"):
            ACDC(phases=phases)
    assert ACDC(phases=1).phases == 1


def test_acdc_remembers_in_which_phase_it_is():
    sparsifier, optimizer = begun(layer([1.0, 2.0, 3.0, 4.0]), ACDC(), steps=100, goal=Sparsity(0.5))

    @torch.no_grad()
    def turn(step, memory):
        ACDC().before_step(Context(step, 100, sparsifier.targets, [optimizer], memory=memory))
        return memory

    # The first ten steps are dense: nothing has turned yet.
    assert turn(0, {}) == {} and turn(9, {}) == {}
    assert turn(10, {}) == {"compressed": True} and turn(16, {"compressed": True}) == {"compressed": False}


def test_the_threshold_of_dsr_stays_within_a_tenth_of_what_shall_move():
    # Of 60 weights 30 shall move at a step. From 27 to 33 the threshold stays.
    for small, expected in ((26, 2.0), (27, 1.0), (33, 1.0), (34, 0.5)):
        model = layer([0.5] * small + [5.0] * (60 - small) + [0.0] * 60)
        method = DSR(every=1, moves=0.5, threshold=1.0, end=1.0)
        sparsifier, optimizer = begun(model, method, budget=Budget({"0.weight": 0.5}))
        sparsifier.targets[0].transform.mask.copy_(torch.tensor([[True] * 60 + [False] * 60]))
        memory = {}
        ctx = Context(1, 10, sparsifier.targets, [optimizer], kept={"0.weight": 60}, memory=memory)
        with torch.no_grad():
            sparsifier.targets[0].raw.copy_(torch.tensor([[0.5] * small + [5.0] * (60 - small) + [0.0] * 60]))
            method.after_step(ctx)
        assert memory["threshold"] == expected, small
        assert sum(mask(sparsifier)) == 60 and raw(sparsifier)[:small] == [0.0] * small


class Lion(torch.optim.Optimizer):
    """An optimizer with a first moment alone."""

    def __init__(self, parameters):
        super().__init__(parameters, {"betas": (0.9, 0.99)})

    def step(self):
        """Nothing."""


def test_snfs_reads_the_momentum_that_there_is():
    sparsifier = softprune.sparsify(layer([1.0, 2.0]), SNFS(every=1, end=1.0), budget=Budget({"0.weight": 0.5}))
    (target,) = sparsifier.targets

    def momentum(**state):
        optimizer = Lion([target.raw])
        if state:
            optimizer.state[target.raw] = {k: torch.tensor([v]) for k, v in state.items()}
        return _momentum(Context(1, 10, [target], [optimizer]), target).tolist()[0]

    assert momentum() == [0.0, 0.0], "none yet"
    assert momentum(momentum_buffer=[-2.0, 3.0]) == [2.0, 3.0]
    assert momentum(exp_avg=[-2.0, 3.0]) == pytest.approx([2.0, 3.0])
    assert momentum(exp_avg=[-2.0, 3.0], exp_avg_sq=[4.0, 9.0]) == pytest.approx([1.0, 1.0])
    assert momentum(exp_avg=[-2.0, 3.0], exp_inf=[4.0, 2.0]) == pytest.approx([0.5, 1.5])
    # An eps of 1e-8 is beside the root: a step of nothing over nothing is none.
    assert momentum(exp_avg=[1e-8, 0.0], exp_avg_sq=[0.0, 0.0]) == pytest.approx([1.0, 0.0])
