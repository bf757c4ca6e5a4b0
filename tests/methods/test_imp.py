"""IMP: prunes in steps of one factor, goes back bit for bit, and forgets what the optimizer knew."""

import copy
import math

import pytest
import torch
from torch import nn

import softprune
from softprune import Params, Rule, Sparsity, constant, uniform
from softprune.methods import IMP
from softprune.methods.masks import Remembered
from softprune.methods.transforms import SolvedMask

TOTAL = 20


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 5))


WEIGHTS = 2 * 8 * 9 + 8 * 16 * 5  # 784


class Training:
    """A model under IMP with its data; steps come one at a time."""

    def __init__(self, method=None, *, optimizer=torch.optim.SGD, total=TOTAL, **arguments):
        self.model = network()
        self.plain = copy.deepcopy(self.model.state_dict())
        arguments = arguments or {"goal": Sparsity(0.9)}
        self.sparsifier = softprune.sparsify(self.model, method or IMP(rounds=4, rewind_at=0.4), **arguments)
        options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
        self.optimizer = optimizer(self.model.parameters(), lr=0.05, weight_decay=1e-3, **options)
        self.sparsifier.attach(self.optimizer, total_steps=total)

    def step(self, number):
        x = torch.randn(8, 2, 6, 6, generator=torch.Generator().manual_seed(number))
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(x), torch.arange(8) % 5).backward()
        self.optimizer.step()

    def run(self, begin, end):
        for number in range(begin, end):
            self.step(number)
        return self

    def raw(self):
        """All values of the model itself, by their plain names."""
        state = self.model.state_dict()
        names = {k.replace("parametrizations.", "").replace(".original", ""): v.clone() for k, v in state.items()}
        return {name: names[name] for name in self.plain}

    def masks(self):
        return [t.transform.mask.clone() for t in self.sparsifier.targets]


def test_the_densities_are_powers_and_the_last_round_has_the_goal():
    training = Training()
    kept = []
    for number in range(TOTAL):
        training.step(number)
        kept.append(training.sparsifier.measure().params)
    by_hand = [round(WEIGHTS * (78 / WEIGHTS) ** (r / 3)) for r in range(4)]
    assert by_hand == [784, 363, 168, 78]
    assert kept == [784] * 4 + [363] * 5 + [168] * 5 + [78] * 6


def test_what_is_pruned_stays_so_and_the_largest_of_the_rest_are_kept():
    training = Training()
    training.run(0, 9)
    before, masks = training.raw(), training.masks()
    number = 9  # the next step ends the second round; follow it on a copy without IMP's hooks
    twin = Training()
    twin.run(0, 9)
    twin.sparsifier.detach()
    twin.step(number)
    training.step(number)
    trained = torch.cat([torch.where(m, twin.raw()[n].abs(), 0.0).flatten()
                         for m, n in zip(masks, ("0.weight", "4.weight"), strict=True)])  # fmt: skip
    kept = torch.cat([m.flatten() for m in training.masks()])
    assert torch.equal(kept, trained >= trained.sort(descending=True).values[167])
    assert before.keys() == training.raw().keys() and not bool((kept & ~torch.cat([m.flatten() for m in masks])).any())


def test_every_value_of_the_model_goes_back_bit_for_bit():
    training = Training()
    training.run(0, 2)  # rewind_at: 0.4 of five steps
    remembered = training.raw()
    assert int(remembered["1.num_batches_tracked"]) == 2
    for begin, end in ((2, 5), (5, 10), (10, 15)):
        training.run(begin, end)
        assert all(torch.equal(remembered[name], now) for name, now in training.raw().items())
        assert not training.optimizer.state
    training.run(15, 20)
    assert not any(torch.equal(remembered[n], training.raw()[n]) for n in ("0.weight", "1.weight", "1.running_mean"))


def test_zero_goes_back_to_where_the_training_began():
    training = Training(IMP(rounds=2, rewind_at=0.0))
    training.run(0, 10)
    assert all(torch.equal(training.plain[name], now) for name, now in training.raw().items())


def test_weights_that_were_loaded_after_sparsify_are_the_initial_ones():
    model = network()
    sparsifier = softprune.sparsify(model, IMP(rounds=2, rewind_at=0.0), goal=Sparsity(0.5))
    model.load_state_dict(network().state_dict() | {"4.bias": torch.ones(5)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier.attach(optimizer, total_steps=2)
    model(torch.randn(4, 2, 6, 6)).square().mean().backward()
    optimizer.step()
    assert torch.equal(model[4].bias, torch.ones(5)) and int(model[1].num_batches_tracked) == 0


def test_the_rate_alone_keeps_the_weights():
    training = Training(IMP(rounds=4, rewind="rate"))
    assert not any(isinstance(module, Remembered) for module in training.model.modules())
    twin = Training(IMP(rounds=4, rewind="rate"))
    twin.run(0, 4)
    twin.sparsifier.detach()
    twin.step(4)
    training.run(0, 5)
    assert all(torch.equal(twin.raw()[name], now) for name, now in training.raw().items())
    assert not training.optimizer.state and training.sparsifier.measure().params == 363


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.NAdam, torch.optim.Adagrad])
def test_a_round_begins_with_a_fresh_optimizer(kind):
    training = Training(IMP(rounds=2, rewind_at=0.0), optimizer=kind)
    training.run(0, 11)
    model = network()
    sparsifier = softprune.sparsify(model, IMP(rounds=2, rewind_at=0.0), goal=Sparsity(0.9))
    for mine, theirs in zip(sparsifier.targets, training.sparsifier.targets, strict=True):
        mine.transform.mask.copy_(theirs.transform.mask)
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    fresh = kind(model.parameters(), lr=0.05, weight_decay=1e-3, **options)
    x = torch.randn(8, 2, 6, 6, generator=torch.Generator().manual_seed(10))
    nn.functional.cross_entropy(model(x), torch.arange(8) % 5).backward()
    fresh.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, training.model.get_parameter(name)), name


@pytest.mark.parametrize("rewind", ["weights", "rate"])
@pytest.mark.parametrize("stop", [1, 2, 7, 10, 18])
def test_a_training_goes_on_bit_for_bit(tmp_path, rewind, stop):
    method = IMP(rounds=4, rewind=rewind, rewind_at=0.4)
    whole = Training(method).run(0, TOTAL)
    first = Training(method).run(0, stop)
    first.sparsifier.save(tmp_path)
    second = Training(method)
    with torch.no_grad():
        for parameter in second.model.parameters():
            parameter.add_(1.0)
    second.sparsifier.load(tmp_path)
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    second.run(stop, TOTAL)
    ours, theirs = second.model.state_dict(), whole.model.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(t, theirs[name]) for name, t in ours.items())


def test_bake_leaves_no_trace():
    training = Training()
    training.run(0, TOTAL)
    training.model.eval()
    x = torch.randn(3, 2, 6, 6)
    expected = training.model(x)
    baked = training.sparsifier.bake()
    assert torch.equal(baked(x), expected)
    assert baked.state_dict().keys() == training.plain.keys()
    assert {type(m) for m in baked.modules()} == {type(m) for m in network().modules()}
    assert sum(int(torch.count_nonzero(baked[i].weight)) for i in (0, 4)) == 78


def test_a_budget_shrinks_every_tensor_by_its_own_factor():
    budget = uniform(softprune.profile(network(), torch.zeros(1, 2, 6, 6)), Sparsity(0.75))
    training = Training(IMP(rounds=3, rewind_at=0.0), budget=budget)
    training.run(0, 7)
    assert [int(m.sum()) for m in training.masks()] == [72, 320]
    training.run(7, TOTAL)
    assert [int(m.sum()) for m in training.masks()] == [36, 160]


def test_parts_with_floors_of_their_own_go_back_together():
    training = Training(IMP(rounds=2, rewind_at=0.0), goal=Sparsity(0.9), rules=[Rule("4", min_keep=40)])
    training.run(0, 10)
    assert all(torch.equal(training.plain[name], now) for name, now in training.raw().items())
    training.run(10, TOTAL)
    assert training.sparsifier.measure().params == 78


def test_tied_tensors_are_remembered_once_and_go_back():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 6, bias=False)
            self.weight = self.inner.weight

        def forward(self, x):
            return self.inner(x) @ self.weight

    model = Tied()
    begun = model.weight.detach().clone()
    sparsifier = softprune.sparsify(model, IMP(rounds=2, rewind_at=0.0), goal=Params(9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier.attach(optimizer, total_steps=2)
    model(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()
    assert torch.equal(sparsifier.targets[0].raw, begun) and sparsifier.measure().params == 9


def test_a_copy_of_the_average_is_solved_within_the_mask():
    training = Training(IMP(rounds=2, rewind="rate"))
    training.run(0, 12)
    other = copy.deepcopy(training.model)
    with torch.no_grad():
        other[4].parametrizations.weight.original.add_(torch.randn(5, 128))
    training.sparsifier.solve(other)
    assert sum(int(torch.count_nonzero(other[i].weight)) for i in (0, 4)) == 78
    assert not bool((other[4].weight != 0)[~training.masks()[1]].any())


def test_a_nested_mask_never_grows():
    transform = SolvedMask(torch.tensor([1.0, -2.0, 3.0, 0.5]), nested=True)
    nothing = torch.zeros(1)
    w = torch.tensor([1.0, -2.0, 3.0, 0.5])
    transform.take_(torch.tensor([0.7]), nothing, transform.scores(w))
    assert transform.mask.tolist() == [True, True, True, False]
    assert transform.scores(torch.tensor([1.0, 2.0, 3.0, 9.0])).tolist() == [1.0, 2.0, 3.0, 0.0]
    transform.take_(nothing, nothing, w)
    assert transform.mask.tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"rounds": 1}, "at least 2"), ({"rounds": 2.5}, "at least 2"), ({"rewind": "both"}, "'weights' or 'rate'"),
     ({"rewind_at": 1.0}, "below 1"), ({"rewind_at": math.nan}, "below 1"), ({"min_keep": -1}, "min_keep")],
)  # fmt: skip
def test_wrong_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        IMP(**fields)


def test_what_cannot_work_is_refused_before_the_first_step():
    with pytest.raises(ValueError, match="IMP prunes between its rounds: leave out the schedule"):
        softprune.sparsify(network(), IMP(), goal=Sparsity(0.9), schedule=constant())
    with pytest.raises(ValueError, match="IMP prunes to a total and got none"):
        softprune.sparsify(network(), IMP())
    with pytest.raises(ValueError, match="5 rounds do not fit into 4 steps"):
        Training(IMP(), total=4)


def test_later_rounds_leave_out_of_the_learning_rate_what_is_before_the_rewinding_point():
    assert IMP(rewind="weights", rewind_at=0.25).restart_at == 0.25
    assert IMP(rewind="rate", rewind_at=0.25).restart_at == 0.0
