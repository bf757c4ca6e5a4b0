"""Totals of units: what the cost foresees is what shrinking and folding really leave, and one unit more is too much."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softprune
from softprune import GMP, STR, Filters, Flops, Params, Rule, Sparsity, Units, constant, profile, shrink, sparsify
from softprune.goals.solve import most_that_fit
from softprune.methods import RigL
from softprune.nn.fastgrnn import FastGRNN
from softprune.nn.low_rank import LowRankLinear, fold
from softprune.nn.resnet import CifarResNet
from softprune.structure.gates import Importance, gated

X = torch.zeros(1, 3, 8, 8)


class Joined(nn.Module):
    """Branches that are concatenated, one of them before a norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second, self.second_norm = nn.Conv2d(8, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.late = nn.BatchNorm2d(14)
        self.third = nn.Conv2d(14, 7, 1, bias=False)
        self.head = nn.Conv2d(7, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.first(x))
        b = torch.sigmoid(self.second_norm(self.second(a)))
        return self.head(F.gelu(self.third(F.relu(self.late(torch.cat([a, b], 1))))))


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 9, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(9, 12, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(48, 10), nn.Tanh(), nn.Linear(10, 4),
    )  # fmt: skip


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.Hardswish(),
        nn.Conv2d(16, 12, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip


def grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 12, 1), nn.ReLU(), nn.Conv2d(12, 8, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(8),
        nn.ReLU(), nn.Conv2d(8, 6, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 4),
    )  # fmt: skip


def residual() -> nn.Module:
    return CifarResNet(8, num_classes=10)


NETWORKS = {"plain": plain, "depthwise": depthwise, "grouped": grouped, "joined": Joined, "residual": residual}


def seen(make, seed: int) -> nn.Module:
    """A network whose norms have seen something."""
    torch.manual_seed(seed)
    net = make()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
    return net


def left(net: nn.Module, goal: Params | Flops) -> int:
    costs = profile(net, X)
    if isinstance(goal, Flops):
        return costs.total_macs()
    return costs.params if goal.scope == "managed" else sum(p.numel() for p in net.parameters())


def goal_for(net: nn.Module, kind: str, share: float) -> Params | Flops:
    goal = {"flops": Flops(1), "params": Params(1), "all": Params(1, scope="all")}[kind]
    wanted = int(share * left(net, goal))
    return Flops(wanted) if kind == "flops" else Params(wanted, goal.scope)


def alive(sparsifier: softprune.Sparsifier) -> list[np.ndarray]:
    return [(t.effective != 0).flatten().numpy() for t in sparsifier.targets]


@torch.no_grad()
def draw(sparsifier: softprune.Sparsifier, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for target in sparsifier.targets:
        target.raw.copy_(0.1 + torch.rand(target.shape, generator=generator))
    sparsifier.solve(at=1.0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("plain", "flops"), ("depthwise", "all"), ("grouped", "params"), ("joined", "flops"), ("residual", "flops"),
     ("residual", "all")],
)  # fmt: skip
def test_what_is_foreseen_is_what_shrinking_leaves_and_one_more_filter_would_be_too_much(name: str, kind: str) -> None:
    net = seen(NETWORKS[name], seed=3)
    goal = goal_for(net, kind, 0.55)
    sparsifier = sparsify(net, STR(), goal=goal, units=Units.filter, example=X, schedule=constant())
    draw(sparsifier, seed=5)
    cost, kept = sparsifier.goals[0].joint.now(), alive(sparsifier)
    allowed = goal.macs if isinstance(goal, Flops) else goal.count
    assert cost.total(kept) <= allowed
    assert 0 < sum(int(k.sum()) for k in kept) < sum(map(len, kept))
    keys = np.concatenate([t.raw.detach().numpy() for t in sparsifier.targets])
    scales = np.concatenate(
        [np.full(len(k), float(t.transform.s.exp())) for k, t in zip(kept, sparsifier.targets, strict=True)]
    )
    flat = np.concatenate(kept)
    flat[np.argmax(np.where(flat, -1.0, keys / scales))] = True
    assert cost.total(np.split(flat, np.cumsum([len(k) for k in kept])[:-1])) > allowed
    assert left(shrink(sparsifier.bake(), X).model, goal) == cost.total(kept)


@pytest.mark.parametrize("name", NETWORKS)
def test_any_set_of_dead_filters_is_foreseen(name: str) -> None:
    for seed in range(2):
        net = seen(NETWORKS[name], seed)
        goal = goal_for(net, "all", 0.9)
        sparsifier = sparsify(net, STR(), goal=goal, units=Units.filter, example=X, schedule=constant())
        generator = np.random.default_rng(seed)
        kept = [generator.random(t.shape.numel()) < 0.5 for t in sparsifier.targets]
        for k in kept:
            k[generator.integers(len(k))] = True
        foreseen = sparsifier.goals[0].joint.now().total(kept)
        with torch.no_grad():
            for target, k in zip(sparsifier.targets, kept, strict=True):
                target.transform.alpha.fill_(0.5)
                target.raw.copy_(torch.from_numpy(k) * 1.0)
        small = shrink(softprune.bake(net), X)
        assert small.after == foreseen


def test_a_training_ends_at_the_goal_and_learns_the_distribution() -> None:
    net = seen(residual, seed=0)
    goal = goal_for(net, "flops", 0.5)
    sparsifier = sparsify(net, STR(), goal=goal, units=Units.filter, example=X)
    optimizer = torch.optim.SGD(sparsifier.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)
    sparsifier.attach(optimizer, total_steps=12)
    generator = torch.Generator().manual_seed(1)
    for _ in range(12):
        optimizer.zero_grad()
        images, labels = torch.randn(8, 3, 8, 8, generator=generator), torch.randint(10, (8,), generator=generator)
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
    assert len({float(t.transform.s) for t in sparsifier.targets}) > 1
    cost = sparsifier.goals[0].joint.now()
    foreseen = cost.total(alive(sparsifier))
    assert left(shrink(sparsifier.bake(), X).model, goal) == foreseen <= goal.macs
    # No layer of this network is wide: one filter is a few hundredths of the whole.
    assert foreseen > 0.9 * goal.macs


def test_prices_are_what_one_filter_adds_where_one_layer_writes_a_channel() -> None:
    net = seen(plain, seed=0)
    sparsifier = sparsify(net, STR(), goal=goal_for(net, "all", 0.9), units=Units.filter, example=X)
    cost = sparsifier.goals[0].joint
    kept = [np.arange(size) < 5 for size in cost.sizes]
    for number, price in enumerate(cost.marginal(kept)):
        more = [np.arange(size) < 5 + (i == number) for i, size in enumerate(cost.sizes)]
        assert price == cost.total(more) - cost.total(kept)


def test_a_number_of_filters_is_met_exactly() -> None:
    net = seen(residual, seed=0)
    sparsifier = sparsify(net, STR(), goal=Filters(40), units=Units.filter, example=X, schedule=constant())
    draw(sparsifier, seed=2)
    assert sum(int(k.sum()) for k in alive(sparsifier)) == 40 == sparsifier.goals[0].spent()


@pytest.mark.parametrize("scope", ["managed", "all"])
def test_blocks_cost_their_weights_also_at_the_edges(scope: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 30), nn.ReLU(), nn.Linear(30, 7), nn.ReLU(), nn.Linear(7, 3))
    others = sum(p.numel() for p in net.parameters()) - 192 * 30 - 30 * 7 if scope == "all" else 0
    goal = Params(3000 + others, scope)
    sparsifier = sparsify(net, STR(), goal=goal, units=Units.block(7, 16), schedule=constant())
    draw(sparsifier, seed=1)
    net = sparsifier.bake()
    nonzero = int(torch.count_nonzero(net[1].weight) + torch.count_nonzero(net[3].weight))
    assert 3000 - 7 * 16 < nonzero <= 3000
    assert nonzero != 3000 - 3000 % (7 * 16)  # some at the edges are among them


def test_blocks_of_convolutions_count_multiply_adds() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 10, 3), nn.ReLU(), nn.Conv2d(10, 8, 3), nn.Flatten(), nn.Linear(128, 2))
    before = profile(net, X)
    goal = Flops(before.total_macs() // 2)
    sparsifier = sparsify(net, STR(), goal=goal, units=Units.block(4, 2), example=X, schedule=constant())
    draw(sparsifier, seed=1)
    net = sparsifier.bake()
    spent = sum(int(torch.count_nonzero(net[i].weight)) * side**2 for i, side in ((0, 6), (2, 4), (4, 1)))
    assert goal.macs - 4 * 2 * 9 * 36 < spent <= goal.macs


@pytest.mark.parametrize("scope", ["managed", "all"])
def test_ranks_cost_what_folding_stores(scope: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), LowRankLinear(192, 20, learned=True), nn.ReLU(), LowRankLinear(20, 12, learned=True),
        nn.Tanh(), LowRankLinear(12, 12, learned=True), nn.Linear(12, 3),
    )  # fmt: skip
    rules = [Rule("5", skip=True)]
    goal = Params(2000 if scope == "managed" else 2400, scope)
    sparsifier = sparsify(net, STR(), goal=goal, units=Units.rank, schedule=constant(), rules=rules)
    draw(sparsifier, seed=4)
    foreseen = sparsifier.goals[0].joint.total(alive(sparsifier))
    small = fold(sparsifier.bake())
    weights = sum(p.numel() for i in (1, 3) for n, p in small[i].named_parameters() if n != "bias")
    assert foreseen == (weights if scope == "managed" else sum(p.numel() for p in small.parameters()))
    assert goal.count - 212 < foreseen <= goal.count


def test_ranks_count_multiply_adds_once_for_every_vector() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(LowRankLinear(8, 20, learned=True), nn.ReLU(), LowRankLinear(20, 12, learned=True))
    x = torch.zeros(5, 8)
    goal = Flops(5 * 300)
    sparsifier = sparsify(net, STR(), goal=goal, units=Units.rank, example=x, schedule=constant())
    draw(sparsifier, seed=4)
    foreseen = sparsifier.goals[0].joint.total(alive(sparsifier))
    small = fold(sparsifier.bake())
    names = [name for name, p in small.named_parameters() if p.ndim == 2]
    assert profile(small, x, tensors=names).total_macs() == foreseen <= goal.macs


def test_ranks_of_a_recurrence_are_learnt_against_each_other_and_cost_every_step() -> None:
    torch.manual_seed(0)
    net = FastGRNN(9, 20, learned=True)
    x = torch.zeros(2, 7, 9)
    sparsifier = sparsify(net, STR(), goal=Flops(14 * 400), units=Units.rank, example=x, schedule=constant())
    cost = sparsifier.goals[0].joint
    assert cost.total([np.arange(9) < 2, np.arange(20) < 3]) == 14 * (2 * 29 + 3 * 40)
    assert cost.full() == 14 * (180 + 400)
    assert isinstance(net.cell.w, LowRankLinear)


def refused(match: str, *, goal, units=Units.filter, example: Tensor | dict | None = X, method=None, rules=()) -> None:
    net = seen(plain, seed=0)
    keys = list(net.state_dict())
    with pytest.raises(ValueError, match=match):
        sparsify(net, method or STR(), goal=goal, units=units, example=example, rules=rules)
    assert not gated(net)
    assert list(net.state_dict()) == keys


def test_totals_that_cannot_be_are_refused_before_anything_is_changed() -> None:
    refused(r"more than [\d,]+ and at most [\d,]+ multiply-adds", goal=Flops(10))
    refused(r"more than [\d,]+ and at most [\d,]+ weights", goal=Params(10**6))
    refused(r"at most 31 filters", goal=Filters(32))
    refused("needs an example", goal=Flops(1000), units=Units.block(2, 2), example=None)
    refused("the only goal", goal=Params(900), rules=[Rule("0", goal=Sparsity(0.5))])
    refused("leave out scope", goal=Sparsity(0.5, scope="all"))
    refused("pass units=Units.filter", goal=Filters(5), units=Units.weight)
    refused("pass units=Units.filter", goal=Filters(5), units=Units.block(2, 2))
    refused("RigL divides a number of units", goal=Params(900), method=RigL())
    refused("a tensor or a tuple", goal=Params(900), example={"input": X})


def test_a_named_limit_can_be_reached() -> None:
    with pytest.raises(ValueError) as error:
        sparsify(seen(residual, 0), STR(), goal=Params(5), units=Units.filter, example=X)
    least = int(str(error.value).split("more than ")[1].split(" ")[0].replace(",", "")) + 1
    for seed in range(2):
        net = seen(residual, 0)
        goal = Params(least)
        sparsifier = sparsify(net, GMP(), goal=goal, units=Units.filter, example=X, schedule=constant())
        draw(sparsifier, seed)
        assert left(shrink(sparsifier.bake(at="target"), X).model, goal) <= least


@pytest.mark.parametrize("about", [-3, 0, 5, 17, 40, 99])
def test_the_search_finds_the_same_number_from_anywhere(about: int) -> None:
    for most in (0, 1, 16, 40):
        assert most_that_fit(lambda n, most=most: n <= most, 40, about) == most
    assert most_that_fit(lambda n: True, 0, about) == 0


def test_a_copy_has_the_cost_of_its_own_values() -> None:
    net = seen(depthwise, seed=0)
    goal = goal_for(net, "all", 0.5)
    sparsifier = sparsify(net, STR(), goal=goal, units=Units.filter, example=X, schedule=constant())
    draw(sparsifier, seed=0)
    average = copy.deepcopy(net)
    with torch.no_grad():
        average[4].bias.fill_(-9.0)  # behind it all is cut off: no constant is left for a bias to take over
        for module in average.modules():
            if isinstance(module, Importance):
                module.parametrizations.m.original.copy_(torch.rand_like(module.m) + 0.1)
    sparsifier.solve(average, at=1.0)
    assert left(shrink(softprune.bake(average), X).model, goal) <= goal.count
