"""Nothing silently wrong: weights that are not finite, frozen too early, without values, averaged, copied."""

import copy
import gc
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import softprune
from softprune import GMP, STR, Rank, Sparsity, bake, constant, sparsify, uniform
from softprune.core.collapse import CollapseWarning
from softprune.methods import SLATS, KeepZeros, RigL, Static
from softprune.nn.low_rank import LowRankLinear

X, STEPS, WEIGHTS = torch.randn(64, 16, generator=torch.Generator().manual_seed(1)), 20, 16 * 24 + 24 * 8
ZEROS = WEIGHTS - round(WEIGHTS * 0.1)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 8))


def attached(model, sparsifier):
    optimizer = torch.optim.SGD(sparsifier.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)
    sparsifier.attach(optimizer, total_steps=STEPS)
    return optimizer


def train(model, optimizer, steps, *, broken_at=None, after=None):
    for number in range(1, steps + 1):
        optimizer.zero_grad()
        model(X).logsumexp(1).mean().backward()
        if number == broken_at:
            next(p for p in model.parameters() if p.ndim == 2).grad[0, 0] = math.nan
        optimizer.step()
        if after is not None:
            after()


def zeros_in(model):
    return sum(int((p == 0).sum()) for p in model.parameters() if p.ndim == 2)


@pytest.mark.parametrize("method", [STR(), GMP()], ids=["str", "gmp"])
def test_nan_is_said_at_the_step_where_it_appears_and_never_baked(method):
    model = network()
    sparsifier = sparsify(model, method, goal=Sparsity(0.9))
    optimizer = attached(model, sparsifier)
    with pytest.warns(CollapseWarning, match=r"non-finite weights: 0.weight: 1 of 384 .* after step 20"):
        train(model, optimizer, STEPS, broken_at=STEPS)
    with pytest.raises(ValueError, match=r"bake\(\) needs finite weights; non-finite weights: 0.weight"):
        sparsifier.bake()
    assert sparsifier.managed
    sparsifier.remove()


def test_a_diverged_network_is_not_measured_in_silence():
    model = network()
    sparsifier = sparsify(model, STR(s_init=-2.0))
    with torch.no_grad():
        sparsifier.targets[1].raw.fill_(math.nan)
    with pytest.warns(CollapseWarning, match=r"2.weight: 192 of 192 weights are NaN"):
        sparsifier.measure()
    with pytest.raises(ValueError, match=r"2\.weight"):
        bake(model)


def test_a_threshold_that_is_not_finite_is_found():
    model = network()
    sparsifier = sparsify(model, STR(s_init=-2.0))
    with torch.no_grad():
        sparsifier.targets[0].transform.s.fill_(math.nan)
    assert next(c.kind for c in sparsifier.check()) == "non-finite weights"
    with pytest.raises(ValueError, match="1 of 1 thresholds"):
        sparsifier.bake()


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "1.running_mean"])
def test_a_network_that_is_not_finite_is_not_exported(tmp_path, name):
    model = nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24))
    model.state_dict()[name].view(-1)[3] = math.inf
    with pytest.raises(ValueError, match=f"{name} has 1 NaN or infinite values of"):
        softprune.export(model, tmp_path / "model.spx", example=X[:1])
    assert not list(tmp_path.iterdir())


def test_half_precision_sums_that_overflow_are_no_finding():
    model = nn.Linear(64, 64).half()
    sparsifier = sparsify(model, GMP(), goal=Sparsity(0.5))
    with torch.no_grad():
        sparsifier.targets[0].raw.fill_(60000.0)
    assert not [c for c in sparsifier.check() if c.kind == "non-finite weights"]


@pytest.mark.parametrize("what", ["support", "budget"])
def test_freezing_early_does_not_switch_off_the_check_of_the_goal(what):
    model = network()
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.9))
    train(model, attached(model, sparsifier), STEPS // 3)
    sparsifier.freeze(what)
    for at in (None, "target"):
        with pytest.raises(ValueError, match=f"the {what} was frozen before the goal held: .* allows 58"):
            sparsifier.bake(at=at)
    assert zeros_in(sparsifier.bake(at="now")) < ZEROS


@pytest.mark.parametrize("what", ["support", "budget"])
def test_freezing_after_the_goal_holds_bakes_the_goal(what):
    model = network()
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.9))
    optimizer = attached(model, sparsifier)
    train(model, optimizer, STEPS - 4)
    sparsifier.freeze(what)
    train(model, optimizer, 4)
    assert zeros_in(sparsifier.bake()) == ZEROS


@pytest.mark.parametrize("method", [STR(), GMP()], ids=["str", "gmp"])
def test_a_model_from_the_meta_device_is_initialised_by_reset_parameters(method):
    with torch.device("meta"):
        model = network()
    sparsifier = sparsify(model, method, goal=Sparsity(0.9), schedule=constant())
    model.to_empty(device="cpu")
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    optimizer = attached(model, sparsifier)
    assert sum(int((t.effective == 0).sum()) for t in sparsifier.targets) == ZEROS
    train(model, optimizer, STEPS)
    assert zeros_in(sparsifier.bake()) == ZEROS


def test_thresholds_from_the_meta_device_begin_where_they_were_told():
    with torch.device("meta"):
        model = network()
    sparsify(model, STR(s_init=-7.0))
    model.to_empty(device="cpu")
    assert [float(t) for name, t in model.state_dict().items() if name.endswith(".s")] == [-7.0, -7.0]


def test_weights_that_nobody_initialised_are_refused():
    with torch.device("meta"):
        model = network()
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.9))
    with pytest.raises(ValueError, match=r"0.weight is on the meta device"):
        attached(model, sparsifier)
    model.to_empty(device="cpu")
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.ones_(module.weight)  # written into what was computed, and lost
    with pytest.raises(ValueError, match=r"0.weight: 384 of 384 .* reset_parameters"):
        attached(model, sparsifier)


@pytest.mark.parametrize("method", [STR(), GMP(), STR(s_init=-2.0)], ids=["str", "gmp", "paper"])
def test_a_plain_checkpoint_can_be_assigned_to_a_model_on_the_meta_device(method):
    with torch.device("meta"):
        model = network()
    goal = None if method == STR(s_init=-2.0) else Sparsity(0.9)
    sparsifier = sparsify(model, method, goal=goal)
    model.load_state_dict(network().state_dict(), assign=True)
    twin = network()
    other = sparsify(twin, method, goal=goal)
    for one, its in ((model, sparsifier), (twin, other)):
        train(one, attached(one, its), STEPS)
        its.bake()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_a_layer_that_is_reset_gets_new_raw_weights():
    model = nn.Linear(4, 4)
    sparsifier = sparsify(model, STR(s_init=-2.0))
    before = sparsifier.targets[0].raw.clone()
    model.reset_parameters()
    assert not torch.equal(sparsifier.targets[0].raw, before)
    assert isinstance(sparsifier.targets[0].raw, nn.Parameter)


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("order", ["average first", "average last"])
@pytest.mark.parametrize("method", [STR(), GMP(every=8)], ids=["str", "gmp"])
def test_an_average_is_baked_to_the_goal(method, order, use_buffers):
    model = network()
    sparsifier = sparsify(model, method, goal=Sparsity(0.9))
    optimizer = attached(model, sparsifier)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
    train(model, optimizer, STEPS, after=lambda: average.update_parameters(model))
    if order == "average last":
        sparsifier.bake()
    assert zeros_in(bake(average.module)) == ZEROS


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("method", [RigL(every=3), Static()], ids=["rigl", "static"])
def test_an_average_takes_the_mask_of_the_model(method, use_buffers):
    model = network()
    budget = uniform(softprune.profile(model, X[:1]), Sparsity(0.9))
    sparsifier = sparsify(model, method, budget=budget)
    optimizer = attached(model, sparsifier)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
    train(model, optimizer, STEPS, after=lambda: average.update_parameters(model))
    mask = sparsifier.targets[0].transform.mask
    assert bool((bake(average.module)[0].weight[~mask] == 0).all())


def test_the_copy_of_an_unfinished_training_is_not_baked_in_silence():
    model = network()
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.9))
    train(model, attached(model, sparsifier), STEPS // 3)
    with pytest.raises(ValueError, match="the goal holds only later"):
        bake(copy.deepcopy(model))
    assert zeros_in(bake(copy.deepcopy(model), at="target")) == ZEROS
    assert sparsifier.managed


def test_weights_too_small_for_a_processor_that_flushes_are_refused():
    model = network()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3e-36)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush denormal numbers")
    try:
        with pytest.raises(ValueError, match="set_flush_denormal"):
            sparsify(model, STR(), goal=Sparsity(0.9), schedule=constant())
    finally:
        torch.set_flush_denormal(False)
    assert isinstance(model[0].weight, nn.Parameter), "the model was changed although it was refused"
    assert zeros_in(sparsify(model, STR(), goal=Sparsity(0.9), schedule=constant()).bake()) == ZEROS


def test_a_deep_copy_of_all_three_counts_its_own_steps():
    model = network()
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.9))
    optimizer = attached(model, sparsifier)
    train(model, optimizer, 5)
    twin, its, steps = copy.deepcopy((model, sparsifier, optimizer))
    train(twin, steps, STEPS - 5)
    assert (sparsifier.step, its.step) == (5, STEPS)
    train(model, optimizer, STEPS - 5)
    baked, other = sparsifier.bake(), its.bake()
    assert zeros_in(other) == ZEROS
    assert all(torch.equal(a, b) for a, b in zip(baked.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("normalise", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm], ids=["new", "old"])
def test_weight_norm_after_sparsify_says_what_to_do(normalise):
    model = network()
    sparsifier = sparsify(model, STR(s_init=-2.0))
    expected = model(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with pytest.raises(ValueError, match=r"skip=\[\.\.\.\]\), or bake\(\) first"):
            normalise(model[0])
    assert torch.equal(model(X), expected)
    sparsifier.bake()
    assert type(model[0]._parameters) is dict


def test_script_before_bake_says_what_to_do():
    model = network()
    sparsify(model, STR(s_init=-2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=r"torch.jit.script cannot compile a sparsified Linear.*bake\(\) first"):
            torch.jit.script(model)


class Around(nn.Module):
    """A module of one's own around others, as frameworks have it."""

    def __init__(self, *inner):
        super().__init__()
        self.inner = nn.ModuleList(inner)

    def forward(self, x):
        return sum(module(x) for module in self.inner)


UNITS = [(softprune.Units.filter, Sparsity(0.5)), (softprune.Units.block(4, 8), Sparsity(0.75))]


@pytest.mark.parametrize(("units", "goal"), UNITS, ids=["filter", "block"])
def test_nan_in_the_weights_of_pruned_units_is_said_and_never_baked(units, goal):
    model = network()
    sparsifier = sparsify(model, STR(), goal=goal, units=units, example=X[:1])
    optimizer = attached(model, sparsifier)
    train(model, optimizer, STEPS - 1)
    model(X).logsumexp(1).mean().backward()
    next(p for name, p in model.named_parameters() if name.endswith("weight.original")).grad[0, :8] = math.nan
    with pytest.warns(CollapseWarning, match=r"non-finite weights: 0.weight: 8 of 384 .* after step 20"):
        optimizer.step()
    with pytest.warns(CollapseWarning, match=r"0.weight: 8 of 384"):
        sparsifier.measure()
    for leave in (sparsifier.bake, lambda: bake(copy.deepcopy(model))):
        with pytest.raises(ValueError, match=r"bake\(\) needs finite weights; non-finite weights: 0.weight"):
            leave()


def test_nan_in_the_factors_of_a_layer_of_low_rank_is_said_and_never_baked():
    layer = LowRankLinear(16, 8, learned=True)
    sparsifier = sparsify(layer, STR(), goal=Rank(4), units=softprune.Units.rank, example=X[:1])
    train(layer, attached(layer, sparsifier), STEPS)
    with torch.no_grad():
        layer.up[0, 0] = math.nan
    with pytest.warns(CollapseWarning, match="up: 1 of 64 weights are NaN"):
        sparsifier.check()
    with pytest.raises(ValueError, match=r"bake\(\) needs finite weights; non-finite weights: up"):
        sparsifier.bake()


def _averaged(method):
    """A trained model and its average, whose Sparsifier nobody holds any more."""
    model = network()
    optimizer = attached(model, sparsify(model, method, goal=Sparsity(0.9)))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    train(model, optimizer, STEPS, after=lambda: average.update_parameters(model))
    return average


def test_an_average_is_baked_to_the_goal_when_the_model_and_its_sparsifier_are_gone():
    average = _averaged(STR())
    gc.collect()
    assert zeros_in(bake(average.module)) == ZEROS


@pytest.mark.parametrize("wrap", [nn.DataParallel, Around, torch.compile], ids=["parallel", "around", "compile"])
def test_an_average_of_a_wrapped_model_is_baked_to_the_goal(wrap):
    model = network()
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.9))
    optimizer = attached(model, sparsifier)
    wrapped = wrap(model)
    average = AveragedModel(wrapped, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    train(model, optimizer, STEPS, after=lambda: average.update_parameters(wrapped))
    assert zeros_in(bake(copy.deepcopy(average))) == ZEROS
    assert zeros_in(bake(average.module)) == ZEROS


def test_several_sparsified_models_in_one_module_are_baked_each_to_its_goal():
    first, second = network(), network()
    both = Around(first, second)
    optimizers = [
        attached(m, sparsify(m, method, goal=Sparsity(0.9))) for m, method in ((first, STR()), (second, GMP()))
    ]
    train(both, optimizers[0], STEPS)
    with pytest.raises(ValueError, match="the goal holds only later"):
        bake(both)
    train(both, optimizers[1], STEPS)
    assert zeros_in(bake(copy.deepcopy(both))) == 2 * ZEROS
    assert zeros_in(bake(both)) == 2 * ZEROS


def test_a_part_of_a_model_can_be_baked_alone():
    model = network()
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.9))
    train(model, attached(model, sparsifier), STEPS)
    expected = model(X)
    assert type(bake(model[0])) is nn.Linear
    assert torch.equal(model(X), expected)


@pytest.mark.parametrize("method", [STR(), GMP(every=2), RigL(every=3)], ids=["str", "gmp", "rigl"])
@pytest.mark.parametrize("how", ["copied", "loaded", "copied twice"])
def test_a_snapshot_is_baked_with_the_masks_that_it_was_made_with(method, how):
    model = network()
    what = {"goal": Sparsity(0.9)}
    if isinstance(method, RigL):
        what = {"budget": uniform(softprune.profile(model, X[:1]), Sparsity(0.9))}
    sparsifier = sparsify(model, method, **what)
    optimizer = sparsifier.attach(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), total_steps=40)
    early = copy.deepcopy(model)
    train(model, optimizer, 36)
    best = copy.deepcopy(model)
    expected = best(X)
    train(model, optimizer, 4)
    if how == "loaded":
        early.load_state_dict(best.state_dict())
        best = early
    elif how == "copied twice":
        best = copy.deepcopy(best)
    assert torch.equal(bake(best)(X), expected)


def test_an_average_under_a_frozen_budget_is_counted_as_it_is_baked():
    model = network()
    sparsifier = sparsify(model, SLATS(), goal=Sparsity(0.9))
    optimizer = sparsifier.attach(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), total_steps=40)
    train(model, optimizer, 36)
    sparsifier.freeze("budget")
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    train(model, optimizer, 4, after=lambda: average.update_parameters(model))
    kept = WEIGHTS - zeros_in(bake(copy.deepcopy(model), at="now"))
    assert kept > WEIGHTS - ZEROS
    with pytest.raises(ValueError, match=f"the budget was frozen before the goal held: {kept} is kept"):
        bake(average.module)


def test_masks_are_not_chosen_from_weights_that_are_not_there():
    with torch.device("meta"):
        model = network()
    with pytest.raises(ValueError, match=r"0.weight is on the meta device and has no weights to choose from"):
        sparsify(model, KeepZeros())
    assert isinstance(model[0].weight, nn.Parameter)


def test_thresholds_that_to_empty_has_torn_apart_are_refused():
    with torch.device("meta"):
        model = network()
    sparsifier = sparsify(model, STR(s_init=-7.0, granularity="global"))
    model.to_empty(device="cpu")
    model.load_state_dict(network().state_dict())
    with pytest.raises(ValueError, match="or to_empty has split a shared threshold"):
        attached(model, sparsifier)


def _prune(layer):
    prune.l1_unstructured(layer, "weight", 0.5)


@pytest.mark.parametrize("hook", [_prune, nn.utils.spectral_norm], ids=["prune", "spectral"])
@pytest.mark.parametrize("units", [softprune.Units.weight, softprune.Units.filter], ids=["weight", "filter"])
def test_hooks_that_replace_a_weight_say_what_to_do(hook, units):
    model = network()
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.5), units=units, example=X[:1], schedule=constant())
    expected = model(X)
    with pytest.raises(ValueError, match=r"weight is no parameter while it is sparsified.*bake\(\) first"):
        hook(model[0])
    assert torch.equal(model(X), expected)
    hook(sparsifier.bake()[0])
