"""Attaching optimizers: what is refused, where thresholds go, and which steps count."""

import math

import pytest
import torch
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.optim import SGD, AdamW, Muon
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR

from softprune.core.bake import bake
from softprune.core.sparsify import sparsify
from softprune.methods import STR

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")


def _net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def _thresholds(model):
    return [p for name, p in model.named_parameters() if name.endswith(".0.s")]


def _weights(model):
    return [p for name, p in model.named_parameters() if name.endswith(".original")]


def _others(model):
    known = {id(p) for p in _thresholds(model) + _weights(model)}
    return [p for p in model.parameters() if id(p) not in known]


def _step(model, *optimizers):
    model.zero_grad()
    model(torch.randn(16, 4)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()


def _picture(optimizer):
    """All of an optimizer that attach() could change."""
    groups = [
        (id(g), [id(p) for p in g["params"]], {k: v for k, v in g.items() if k != "params"})
        for g in optimizer.param_groups
    ]
    groups = [(i, ids, {k: list(v) if k == "param_names" else v for k, v in rest.items()}) for i, ids, rest in groups]
    return groups, len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)


def _refused(sparsifier, *optimizers, match, error=ValueError, **settings):
    """attach() raises, and leaves the optimizers and the sparsifier as they were."""
    real = [o for o in optimizers if hasattr(o, "_optimizer_step_pre_hooks")]
    before = [_picture(o) for o in real]
    with pytest.raises(error, match=match):
        sparsifier.attach(*optimizers, **{"total_steps": 100, **settings})
    assert [_picture(o) for o in real] == before
    assert sparsifier.total_steps is None
    assert sparsifier.forecast is None
    assert sparsifier._hooks is None


# which steps count


def test_attach_gives_the_optimizer_back_and_counts_its_steps():
    model = _net()
    sparsifier = sparsify(model, STR())
    optimizer = SGD(sparsifier.param_groups(weight_decay=1e-4), lr=0.1)
    assert sparsifier.attach(optimizer, total_steps=10) is optimizer
    assert sparsifier.total_steps == 10
    for n in range(1, 4):
        _step(model, optimizer)
        assert sparsifier.step == n


def _pair(model, sparsifier):
    """The hidden matrices in Muon, everything else in AdamW."""
    muon = Muon(_weights(model), lr=0.02, weight_decay=0.1)
    adamw = AdamW([{"params": _others(model)}, {"params": _thresholds(model)}], lr=1e-3, weight_decay=0.1)
    assert sparsifier.attach(muon, adamw, total_steps=100) == (muon, adamw)
    return muon, adamw


def _explicit(model, sparsifier, *optimizers):
    model.zero_grad()
    model(torch.randn(16, 4)).square().mean().backward()
    for optimizer in optimizers:
        sparsifier.before_step(optimizer)
        optimizer.step()
        sparsifier.after_step(optimizer)


def test_a_loop_may_say_itself_when_a_step_begins_and_ends():
    states = []
    for follow in (True, False):
        torch.manual_seed(0)
        model = _net()
        sparsifier = sparsify(model, STR(s_init=-4.0))
        weights, others = (
            SGD(_weights(model) + _thresholds(model), lr=0.1, weight_decay=1e-2),
            SGD(_others(model), lr=0.1),
        )
        sparsifier.attach(weights, others, total_steps=5, follow=follow)
        for _ in range(5):
            _step(model, weights, others) if follow else _explicit(model, sparsifier, weights, others)
        assert sparsifier.step == 5
        states.append(model.state_dict())
    assert all(torch.equal(one, states[1][name]) for name, one in states[0].items())


def test_explicit_calls_need_attached_optimizers_without_hooks_and_the_optimizer_that_steps():
    model = _net()
    sparsifier = sparsify(model, STR())
    with pytest.raises(ValueError, match="no optimizer is attached"):
        sparsifier.before_step()
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=1e-2)
    sparsifier.attach(optimizer, total_steps=5)
    with pytest.raises(ValueError, match=r"followed by hooks already: attach\(..., follow=False\)"):
        sparsifier.after_step()
    sparsifier.detach()
    sparsifier.attach(optimizer, total_steps=5, follow=False)
    with pytest.raises(ValueError, match="say which of the 1 attached optimizers steps; got a AdamW"):
        sparsifier.before_step(AdamW(model.parameters()))
    _step(model, optimizer)
    assert sparsifier.step == 0


@pytest.mark.parametrize("turned", [False, True])
def test_two_optimizers_make_one_step_in_either_order(turned):
    model = _net()
    sparsifier = sparsify(model, STR(s_init=-30.0))
    pair = _pair(model, sparsifier)
    s, w = _thresholds(model)[0], _weights(model)[0]
    for n in range(1, 6):
        before = s.item(), w.detach().clone()
        first, second = reversed(pair) if turned else pair
        _step(model, first)
        assert sparsifier.step == n - 1
        second.step()
        assert sparsifier.step == n
        assert s.item() > before[0]
        assert not torch.equal(w, before[1])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("skipped", [0, 1])
def test_a_skipped_optimizer_does_not_lose_or_shift_a_step(turned, skipped):
    model = _net()
    sparsifier = sparsify(model, STR())
    pair = _pair(model, sparsifier)
    order = [pair[1], pair[0]] if turned else list(pair)
    for n in range(1, 4):
        _step(model, *order)
        assert sparsifier.step == n
    _step(model, order[1 - skipped])
    for n in range(5, 8):
        _step(model, order[0])
        # The step of last time is complete by now, this one is not.
        assert sparsifier.step == n - 1
        order[1].step()
        assert sparsifier.step == n


def test_both_skipped_is_no_step():
    model = _net()
    sparsifier = sparsify(model, STR())
    pair = _pair(model, sparsifier)
    _step(model, *pair)
    _step(model)
    _step(model, *pair)
    assert sparsifier.step == 2


def test_a_subclass_that_calls_its_parents_step_makes_one_step(monkeypatch):
    class Noisy(SGD):
        def step(self, closure=None):
            return super().step(closure)

    SGD([nn.Parameter(torch.zeros(1))])  # torch wraps a class's step when its first instance is made
    model = _net()
    sparsifier = sparsify(model, STR())
    optimizer = sparsifier.attach(Noisy(sparsifier.param_groups(weight_decay=1e-4), lr=0.1), total_steps=10)
    calls, looks = [], []
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    monkeypatch.setattr(sparsifier._watch, "read_gradients", looks.append)
    for _ in range(3):
        _step(model, optimizer)
    assert len(looks) == 3
    assert len(calls) == 6, "torch runs the hooks twice per step here; otherwise this test tests nothing"
    assert sparsifier.step == 3


def test_counting_goes_on_after_a_step_that_raised():
    class Failing(SGD):
        broken = False

        def step(self, closure=None):
            if self.broken:
                raise MemoryError
            return super().step(closure)

    model = _net()
    sparsifier = sparsify(model, STR())
    optimizer = sparsifier.attach(Failing(sparsifier.param_groups(weight_decay=1e-4), lr=0.1), total_steps=10)
    _step(model, optimizer)
    optimizer.broken = True
    with pytest.raises(MemoryError):
        _step(model, optimizer)
    optimizer.broken = False
    assert sparsifier.step == 1
    _step(model, optimizer)
    assert sparsifier.step == 2
    _step(model, optimizer)
    assert sparsifier.step == 3


def test_a_closure_is_one_step():
    model = _net()
    sparsifier = sparsify(model, STR())
    optimizer = sparsifier.attach(SGD(sparsifier.param_groups(weight_decay=1e-4), lr=0.1), total_steps=10)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.randn(16, 4)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert sparsifier.step == 1


@pytest.mark.parametrize("leave", ["bake", "remove"])
def test_leaving_takes_the_hooks_off(leave):
    model = _net()
    sparsifier = sparsify(model, STR())
    optimizer = sparsifier.attach(SGD(sparsifier.param_groups(weight_decay=1e-4), lr=0.1), total_steps=10)
    _step(model, optimizer)
    getattr(sparsifier, leave)()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    w = model[0].weight.detach().clone()
    _step(model, optimizer)
    assert sparsifier.step == 1
    assert not torch.equal(model[0].weight, w)


def test_a_model_baked_behind_the_sparsifiers_back_trains_on():
    model = _net()
    sparsifier = sparsify(model, STR(min_keep=1))
    optimizer = sparsifier.attach(SGD(sparsifier.param_groups(weight_decay=1e-4), lr=0.1), total_steps=10)
    _step(model, optimizer)
    bake(model)
    w = model[0].weight.detach().clone()
    _step(model, optimizer)
    assert not torch.equal(model[0].weight, w)
    assert sparsifier.step == 1


# refusals


def test_a_rule_that_spares_one_dimensional_parameters_is_caught():
    model = _net()
    sparsifier = sparsify(model, STR())
    decayed = [p for p in model.parameters() if p.ndim > 1]
    spared = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = AdamW([{"params": decayed}, {"params": spared, "weight_decay": 0.0}], lr=1e-3, weight_decay=0.1)
    _refused(sparsifier, optimizer, match=r"with weight_decay 0\.0: s would never move")


@pytest.mark.parametrize("settings", [{}, {"threshold_decay": 0.0}])
def test_an_optimizer_without_decay_is_refused(settings):
    model = _net()
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=0.0 if not settings else 1e-4)
    _refused(sparsify(model, STR()), optimizer, match="s would never move", **settings)


@pytest.mark.parametrize("decay", [-0.1, math.nan, math.inf])
def test_a_threshold_decay_that_is_none_is_refused(decay):
    model = _net()
    optimizer = SGD(model.named_parameters(), lr=0.1, weight_decay=1e-4)
    _refused(sparsify(model, STR()), optimizer, threshold_decay=decay, match="threshold_decay must be")


def test_two_words_about_the_decay_are_refused():
    model = _net()
    sparsifier = sparsify(model, STR())
    optimizer = SGD(sparsifier.param_groups(weight_decay=1e-4), lr=0.1)
    _refused(sparsifier, optimizer, threshold_decay=0.5, match="say it once")


def test_the_second_threshold_failing_undoes_the_first():
    model = _net()
    optimizer = SGD(
        [
            {"params": model[0].parameters(), "weight_decay": 1e-4},
            {"params": [*model[1].parameters(), *model[3].parameters()], "weight_decay": 0.0},
        ],
        lr=0.1,
    )
    _refused(sparsify(model, STR()), optimizer, match="s would never move")


@pytest.mark.parametrize(
    ("scheduler", "error", "match"),
    [
        (ExponentialLR(SGD([nn.Parameter(torch.zeros(1))], lr=1.0), 0.5), ValueError, "drives another SGD"),
        ([0.1] * 3, ValueError, "holds 3 learning rates"),
        (7, TypeError, "scheduler is a int"),
    ],
)
def test_a_scheduler_that_cannot_be_read_leaves_everything_as_it_was(scheduler, error, match):
    model = _net()
    optimizer = SGD(model.named_parameters(), lr=0.1, weight_decay=1e-4)
    _refused(sparsify(model, STR()), optimizer, scheduler=scheduler, error=error, match=match)


@pytest.mark.parametrize("total_steps", [0, -1, 1.5, True, "100", None])
def test_total_steps_is_a_positive_number_of_steps(total_steps):
    model = _net()
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
    _refused(sparsify(model, STR()), optimizer, total_steps=total_steps, match="total_steps is the number")


def test_nothing_to_attach_is_refused():
    _refused(sparsify(_net(), STR()), match="at least one optimizer")


def test_the_same_optimizer_twice_is_refused():
    model = _net()
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
    _refused(sparsify(model, STR()), optimizer, optimizer, match="the same optimizer twice")


def test_attaching_twice_is_refused():
    model = _net()
    sparsifier = sparsify(model, STR())
    optimizer = sparsifier.attach(SGD(model.parameters(), lr=0.1, weight_decay=1e-4), total_steps=10)
    before = _picture(optimizer)
    with pytest.raises(ValueError, match="attached already"):
        sparsifier.attach(optimizer, total_steps=10)
    assert _picture(optimizer) == before


def test_lbfgs_is_refused():
    model = _net()
    _refused(sparsify(model, STR()), torch.optim.LBFGS(model.parameters()), match="LBFGS evaluates the loss many times")


def test_what_is_no_optimizer_is_refused():
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    class Posing(torch.optim.Optimizer):
        """As the wrappers of some libraries: an Optimizer by name, without torch's hooks."""

        def __init__(self, optimizer):
            self.optimizer = optimizer

        param_groups = property(lambda self: self.optimizer.param_groups)

        def step(self, closure=None):
            return self.optimizer.step(closure)

    model = _net()
    inner = SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
    sparsifier = sparsify(model, STR())
    for wrapper in (Wrapper(inner), Posing(inner)):
        _refused(sparsifier, wrapper, error=TypeError, match="pass the optimizer inside it")
    sparsifier.attach(inner, total_steps=10)


def test_a_weight_in_no_optimizer_is_refused_by_name():
    model = _net()
    optimizer = SGD(model[0].parameters(), lr=0.1, weight_decay=1e-4)
    _refused(sparsify(model, STR()), optimizer, match=r"3\.weight is in none of the attached")


def test_a_weight_in_two_optimizers_is_refused_by_name():
    model = _net()
    pair = (
        SGD(model.parameters(), lr=0.1, weight_decay=1e-4),
        AdamW(model[3].parameters(), lr=0.1, weight_decay=1e-4),
    )
    _refused(sparsify(model, STR()), *pair, match=r"3\.weight is in 2 of the attached")


def test_a_threshold_in_two_optimizers_is_refused_by_name():
    model = _net()
    sparsifier = sparsify(model, STR())
    first = SGD(sparsifier.param_groups(weight_decay=1e-4), lr=0.1)
    second = SGD(_thresholds(model), lr=0.1, weight_decay=1e-4)
    _refused(sparsifier, first, second, match=r"0\.s is in 2 of the attached")


def test_optimizer_in_backward_is_refused():
    model = _net()
    sparsifier = sparsify(model, STR())
    _apply_optimizer_in_backward(SGD, model.parameters(), {"lr": 0.1, "weight_decay": 1e-4})
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
    _refused(sparsifier, optimizer, match="stepped inside backward")


@pytest.mark.parametrize("which", [_weights, _thresholds])
def test_a_step_in_an_accumulation_hook_is_refused(which):
    model = _net()
    sparsifier = sparsify(model, STR())
    optimizer = SGD(sparsifier.param_groups(weight_decay=1e-4), lr=0.1)
    which(model)[0].register_post_accumulate_grad_hook(lambda p: None)
    _refused(sparsifier, optimizer, match="stepped inside backward")


def test_a_finished_model_is_refused():
    model = _net()
    sparsifier = sparsify(model, STR())
    sparsifier.bake()
    _refused(sparsifier, SGD(model.parameters(), lr=0.1, weight_decay=1e-4), match="baked or removed already")


def test_a_new_group_under_a_scheduler_is_refused():
    model = _net()
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
    CosineAnnealingLR(optimizer, 100)
    _refused(sparsify(model, STR()), optimizer, threshold_decay=0.5, match="build the scheduler after attach")


def test_thresholds_do_not_join_an_optimizer_of_whole_matrices():
    model = _net()
    sparsifier = sparsify(model, STR())
    muon = Muon(_weights(model), lr=0.02)
    adamw = AdamW(_others(model), lr=1e-3, weight_decay=0.1)
    _refused(sparsifier, muon, adamw, match="Muon is not known to treat each element on its own")


def test_thresholds_do_not_join_a_subclass_with_a_step_of_its_own():
    class Lars(SGD):
        def step(self, closure=None):
            return super().step(closure)

    model = _net()
    optimizer = Lars(model.parameters(), lr=0.1, weight_decay=1e-4)
    _refused(sparsify(model, STR()), optimizer, match="Lars is not known to treat each element")


@pytest.mark.parametrize("positional", [False, True], ids=["by name", "by position"])
def test_with_a_closure_a_step_is_judged_by_its_own_gradients(positional):
    diagnoses = []
    for closed in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        sparsifier = sparsify(model, STR(s_init=-4.0))
        optimizer = SGD(sparsifier.param_groups(weight_decay=1e-3), lr=0.1)
        sparsifier.attach(optimizer, total_steps=10)
        for step in range(3):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))

            def loss(x=x, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                value = model(x).square().mean()
                value.backward()
                return value

            if closed:
                value = optimizer.step(loss) if positional else optimizer.step(closure=loss)
                assert value is not None
            else:
                loss()
                optimizer.step()
        diagnoses.append(sparsifier.diagnose())
    assert diagnoses[0] == diagnoses[1]
