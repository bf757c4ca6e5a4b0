"""Units: filters and blocks are pruned as a whole, by the importance of each."""

import copy
import pickle

import pytest
import torch
from torch import nn

import softprune
from softprune import GMP, STR, Rule, Sparsity, Units, sparsify
from softprune.nn.low_rank import LowRankLinear, fold
from softprune.nn.small import small_cnn
from softprune.structure.gates import gated

X = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 12, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3), nn.Flatten(),
    )  # fmt: skip


def train(model: nn.Module, sparsifier: softprune.Sparsifier, *, steps: int = 12) -> None:
    optimizer = torch.optim.SGD(sparsifier.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)
    sparsifier.attach(optimizer, total_steps=steps)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        images = torch.randn(16, 1, 28, 28, generator=generator)
        labels = torch.randint(3, (16,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def test_filters_are_gated_behind_their_norm_and_never_at_the_outputs() -> None:
    model = network()
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.5), units=Units.filter, example=X)
    assert [t.name for t in sparsifier.targets] == ["0.importance.m", "5.importance.m", "9.importance.m"]
    assert {(type(m).__name__.removeprefix("Parametrized"), tensor) for m, tensor in gated(model)} == {
        ("BatchNorm2d", "weight"), ("BatchNorm2d", "bias"), ("Conv2d", "weight"), ("Conv2d", "bias"),
        ("Linear", "weight"), ("Linear", "bias"),
    }  # fmt: skip


def test_gates_change_nothing_at_first_and_nothing_when_they_are_taken_off() -> None:
    model = network().eval()
    keys, before = list(model.state_dict()), model(X)
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.5), units=Units.filter, example=X)
    assert torch.equal(model(X), before)
    plain = sparsifier.remove()
    assert torch.equal(plain(X), before)
    assert list(plain.state_dict()) == keys


@pytest.mark.parametrize("method", [STR(), GMP(every=4)])
def test_half_of_the_filters_are_zero_at_the_end_and_can_be_taken_out(method) -> None:
    model = network()
    sparsifier = sparsify(model, method, goal=Sparsity(0.5), units=Units.filter, example=X)
    train(model, sparsifier)
    model.eval()
    wanted = model(X)
    plain = sparsifier.bake()
    assert torch.equal(plain(X), wanted)
    dead = sum(int((m.weight.flatten(1) == 0).all(1).sum()) for m in (plain[5], plain[9]))
    dead += int((plain[1].weight == 0).sum())
    assert dead == 13  # of 8 + 12 + 6
    small = softprune.shrink(plain, X)
    assert small.after < small.before
    assert torch.allclose(small.model(X), wanted, atol=1e-6)


def test_blocks_are_zero_as_a_whole_with_edges_that_do_not_divide() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 30), nn.ReLU(), nn.Linear(30, 3))
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.75), units=Units.block(8, 16))
    assert sparsifier.targets[0].shape == (4, 49)
    train(model, sparsifier)
    weight = sparsifier.bake()[1].weight.detach()
    padded = torch.zeros(32, 784)
    padded[:30] = weight
    blocks = padded.view(4, 8, 49, 16).abs().amax((1, 3))
    assert int((blocks == 0).sum()) == 147  # of 196
    assert float((weight != 0).float().mean()) > 0.2


def test_a_weight_that_an_embedding_reads_too_has_no_gate() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.hidden, self.head = nn.Embedding(8, 8), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.hidden(self.embedding(x)).relu())

    model, x = Tied(), torch.arange(8)
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.5), units=Units.block(4, 4))
    assert [t.name for t in sparsifier.targets] == ["hidden.importance.m"]
    sparsifier.solve(at=1.0)
    before = model(x)
    assert torch.equal(sparsifier.bake(at="target")(x), before)
    assert model.head.weight is model.embedding.weight
    del model.hidden
    with pytest.raises(ValueError, match="nothing to gate"):
        sparsify(model, STR(), goal=Sparsity(0.5), units=Units.block(4, 4))


def test_a_single_layer_has_units_too() -> None:
    layer = nn.Linear(8, 8)
    sparsifier = sparsify(layer, GMP(), goal=Sparsity(0.75), units=Units.block(4, 4), schedule=softprune.constant())
    assert [t.name for t in sparsifier.targets] == ["importance.m"]
    assert int((sparsifier.bake().weight == 0).sum()) == 48


@pytest.mark.parametrize("match", ["9.importance", "9", "9.weight", nn.Linear, lambda name, module: "9" in name])
def test_a_rule_gives_its_filters_a_goal_of_their_own(match) -> None:
    model = network()
    rules = [Rule(match, goal=Sparsity(2 / 3))]
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.5), units=Units.filter, example=X, rules=rules)
    train(model, sparsifier)
    assert round(sparsifier.measure()["9.importance.m"] * 6) == 2


def test_importances_are_decayed_like_weights() -> None:
    model = network()
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.5), units=Units.filter, example=X)
    groups = {group["name"]: group["params"] for group in sparsifier.param_groups(weight_decay=1e-3)}
    assert all(any(t.raw is p for p in groups["weight"]) for t in sparsifier.targets)


def test_copies_and_pickles_have_gates_of_their_own() -> None:
    model = network().eval()
    sparsify(model, STR(), goal=Sparsity(0.5), units=Units.filter, example=X)
    copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    before = model(X)
    with torch.no_grad():
        model[0].importance.parametrizations.m.original.zero_()
    assert torch.equal(copied(X), before)
    assert torch.equal(pickled(X), before)
    assert not torch.equal(model(X), before)


def test_a_state_dict_of_a_gated_model_comes_back() -> None:
    model = network()
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.5), units=Units.filter, example=X)
    train(model, sparsifier)
    other = network()
    sparsify(other, STR(), goal=Sparsity(0.5), units=Units.filter, example=X)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(X), model.eval()(X))


def test_an_error_takes_the_gates_off_again() -> None:
    model = network().eval()
    keys, before = list(model.state_dict()), model(X)
    with pytest.raises(ValueError, match="matches no tensor"):
        sparsify(model, STR(), goal=Sparsity(0.5), units=Units.filter, example=X, skip="nothing")
    assert not gated(model)
    assert list(model.state_dict()) == keys
    assert torch.equal(model(X), before)


def test_directions_of_low_rank_layers_are_pruned_and_folded() -> None:
    torch.manual_seed(0)
    first = LowRankLinear(784, 20, learned=True)
    model = nn.Sequential(nn.Flatten(), first, nn.ReLU(), LowRankLinear(20, 3, rank=2), nn.Linear(3, 3))
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.75), units=Units.rank)
    assert [t.name for t in sparsifier.targets] == ["1.m"]
    train(model, sparsifier)
    wanted = model(X)
    small = fold(sparsifier.bake())
    assert small[1].rank == 5
    assert torch.allclose(small(X), wanted, atol=1e-6)


def test_what_cannot_be_gated_is_refused() -> None:
    with pytest.raises(ValueError, match="example="):
        sparsify(network(), STR(), goal=Sparsity(0.5), units=Units.filter)
    with pytest.raises(ValueError, match="nothing to gate"):
        sparsify(nn.Linear(4, 2), STR(), goal=Sparsity(0.5), units=Units.filter, example=torch.zeros(1, 4))
    with pytest.raises(ValueError, match="at least 64 outputs"):
        sparsify(nn.Linear(4, 2), STR(), goal=Sparsity(0.5), units=Units.block(64, 1))
    model = network()
    sparsify(model, STR(), goal=Sparsity(0.5), units=Units.filter, example=X)
    with pytest.raises(ValueError, match="gates from an earlier"):
        sparsify(model, STR(), goal=Sparsity(0.5), units=Units.filter, example=X)


@pytest.mark.parametrize("make", [lambda: Units("row"), lambda: Units.block(0, 2), lambda: Units("filter", 2, 1)])
def test_units_that_are_none_are_refused(make) -> None:
    with pytest.raises(ValueError, match=r"units are|whole numbers|only blocks"):
        make()


def test_the_whole_of_a_small_network_still_works_with_single_weights() -> None:
    model = small_cnn()
    sparsifier = sparsify(model, STR(), goal=Sparsity(0.9), units=Units.weight)
    assert not gated(model)
    assert all(t.name.endswith("weight") for t in sparsifier.targets)
