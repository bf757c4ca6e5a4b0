"""Ranks as a goal: exactly so many directions of each layer stay, and baking makes the layers smaller."""

import copy

import pytest
import torch
from torch import nn

import softprune
from softprune import GMP, STR, Params, Rank, Sparsity, Units, bake, sparsify
from softprune.methods import RigL
from softprune.nn import FastGRNNClassifier, LowRankConv2d, LowRankLinear
from softprune.nn.low_rank import take_ranks_

X = torch.randn(4, 12, 5, generator=torch.Generator().manual_seed(0))


def network() -> FastGRNNClassifier:
    torch.manual_seed(0)
    return FastGRNNClassifier(5, 16, classes=3, learned=True)


def train(model: nn.Module, sparsifier: softprune.Sparsifier, *, steps: int = 20) -> None:
    optimizer = torch.optim.SGD(sparsifier.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)
    sparsifier.attach(optimizer, total_steps=steps)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        inputs = torch.randn(16, 12, 5, generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), torch.randint(3, (16,), generator=generator)).backward()
        optimizer.step()


def ranks(model: FastGRNNClassifier) -> tuple[int, int]:
    cell = model.rnn.cell
    return int(torch.count_nonzero(cell.w.m)), int(torch.count_nonzero(cell.u.m))


@pytest.mark.parametrize("method", [STR(), GMP(), RigL(every=5)])
def test_exactly_so_many_directions_stay(method) -> None:
    model = network()
    sparsifier = sparsify(model, method, units=Units.rank, goal=Rank(w=2, u=7))
    train(model, sparsifier)
    assert ranks(model) == (2, 7)
    assert sparsifier.measure().params == 9


def test_the_ranks_fall_by_the_schedule_and_a_full_rank_stays_full() -> None:
    model = network()
    sparsifier = sparsify(model, STR(), units=Units.rank, goal=Rank(w=5, u=4))
    seen = [[part.allowed(progress) for progress in (0.0, 0.1, 0.3, 0.7, 1.0)] for part in sparsifier.goals]
    # Cubic from 0.1 to 0.7: at 0.3 a third of the way, 16 - 12 * (1 - (2 / 3) ** 3) = 7.6.
    assert seen == [[5, 5, 5, 5, 5], [16, 16, 8, 4, 4]]
    train(model, sparsifier)
    assert ranks(model) == (5, 4)
    assert len(torch.unique(sparsifier.targets[1].raw)) == 16  # those that went are still there, to come back


def test_one_number_is_for_all_and_layers_that_are_not_named_are_left_alone() -> None:
    model = network()
    train(model, sparsify(model, STR(), units=Units.rank, goal=Rank(3)))
    assert ranks(model) == (3, 3)
    model = network()
    sparsifier = sparsify(model, STR(), units=Units.rank, goal=Rank(**{"cell.u": 3}))
    assert "no rank is given for it" in str(sparsifier.plan)
    assert [t.name for t in sparsifier.targets] == ["rnn.cell.u.m"]


def test_baking_folds_and_the_function_stays() -> None:
    model = network()
    sparsifier = sparsify(model, STR(), units=Units.rank, goal=Rank(w=5, u=4))
    train(model, sparsifier)
    other, wanted = copy.deepcopy(model), model(X)
    baked = sparsifier.bake()
    assert baked is model
    assert sorted(k for k in baked.state_dict() if ".cell." in k and k.endswith((".m", ".up", ".down", ".weight"))) == [
        "rnn.cell.u.down", "rnn.cell.u.up", "rnn.cell.w.weight",
    ]  # fmt: skip
    assert baked.rnn.cell.u.rank == 4
    torch.testing.assert_close(baked(X), wanted, rtol=1e-5, atol=1e-5)
    kept = bake(other, fold=False)
    assert ranks(kept) == (5, 4) and kept.rnn.cell.u.rank == 16
    torch.testing.assert_close(kept(X), wanted, rtol=1e-5, atol=1e-5)
    again = take_ranks_(network(), baked.state_dict())
    again.load_state_dict(baked.state_dict())
    assert torch.equal(again(X), baked(X))


def test_layers_around_others_and_layers_used_twice_are_folded() -> None:
    torch.manual_seed(0)
    conv = LowRankConv2d(LowRankLinear(8, 8, learned=True))
    model = nn.Sequential(conv, nn.ReLU(), conv, LowRankConv2d(LowRankLinear(8, 6, rank=2)))
    x = torch.randn(2, 8, 3, 3)
    sparsifier = sparsify(model, STR(), units=Units.rank, goal=Rank(2), schedule=softprune.constant())
    wanted = model(x)
    baked = sparsifier.bake()
    assert baked[0] is baked[2] and baked[0].linear.rank == 2 and baked[0].linear.m is None
    assert baked[3].linear.rank == 2  # nothing of it was managed
    torch.testing.assert_close(baked(x), wanted, rtol=1e-5, atol=1e-5)
    alone = LowRankLinear(6, 6, learned=True)
    small = sparsify(alone, STR(), units=Units.rank, goal=Rank(1), schedule=softprune.constant()).bake()
    assert small is not alone and small.rank == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"goal": Rank(w=6)}, r"asks for 6 directions of rnn\.cell\.w: its rank is 1 to 5"),
        ({"goal": Rank(17)}, r"asks for 17 directions of rnn\.cell\.w"),
        ({"goal": Rank(v=3)}, r"names 'v', which is no low-rank layer that learns its rank: these are rnn\.cell\.w"),
        ({"goal": Rank(w=3), "units": Units.weight}, r"Rank\(w=3\) counts directions .*: pass units=Units\.rank too"),
        ({"goal": Rank(w=3), "units": Units.block(2, 2)}, r"pass units=Units\.rank too"),
        ({"goal": Rank(w=3), "rules": [softprune.Rule("*.u.m", goal=Sparsity(0.5))]}, r"give one"),
        ({"goal": Params(9)}, r"cannot be reached: choose more than 52 and at most 336 weights"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_changed(arguments, message) -> None:
    model = network()
    keys, before = list(model.state_dict()), model(X)
    with pytest.raises(ValueError, match=message):
        sparsify(model, STR(), **{"units": Units.rank, **arguments})
    assert list(model.state_dict()) == keys
    assert torch.equal(model(X), before)


def test_importances_have_a_decay_of_their_own_if_they_are_given_one() -> None:
    model = network()
    sparsifier = sparsify(model, STR(g=softprune.ops.Exp(), s_init=-10), units=Units.rank)
    found = sparsifier.param_groups(weight_decay=0.0, importance_decay=2e-3, threshold_decay=1e-3)
    groups = {group["name"]: group for group in found}
    assert [p.shape for p in groups["importance"]["params"]] == [(5,), (16,)]
    assert (groups["importance"]["weight_decay"], groups["weight"]["weight_decay"]) == (2e-3, 0.0)
    assert "importance" not in {g["name"] for g in sparsifier.param_groups(weight_decay=1e-3)}
    plain = sparsify(nn.Linear(4, 2), STR())
    with pytest.raises(ValueError, match="importance_decay is for importances of units"):
        plain.param_groups(weight_decay=1e-3, importance_decay=1e-3)
