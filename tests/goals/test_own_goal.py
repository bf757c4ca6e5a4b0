"""A goal from outside of the package: one class, which everything that takes goals takes."""

import json
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import pytest
import torch
from goal_training import train
from pydantic import Field
from torch import nn

import softprune
from softprune import (
    GMP,
    STR,
    Budget,
    Params,
    Rule,
    Units,
    constant,
    cubic,
    erk,
    global_magnitude,
    profile,
    scaled,
    uniform,
)
from softprune.budget.costs import Cost, PerWeight, Profile
from softprune.budget.show import budget_table
from softprune.goals.base import Goal
from softprune.goals.goal import GOALS
from softprune.methods import DSR
from softprune.reporting.labels import configured_goal, goal_text
from softprune.reporting.run import read_run
from softprune.train.config import ConfigError, RunConfig
from softprune.train.config.goal import GoalConfig
from softprune.train.config.sections import Count
from softprune.train.run import train as train_run

OVERHEAD = 100  # bytes that each tensor takes on disk besides its weights


@dataclass(frozen=True)
class Bytes(Goal):
    """Bytes on disk: those of a value and its position for each kept weight, and some for each tensor."""

    key: ClassVar[str] = "bytes"
    counts: ClassVar[str] = "bytes"

    bytes: int
    each: int = 6

    def amount(self, profile: Profile) -> float:
        return self.bytes

    def costs(self, profile: Profile) -> dict[str, Cost]:
        return {t.name: PerWeight(self.each * t.params, t.params) for t in profile}

    def fixed(self, profile: Profile) -> float:
        return OVERHEAD * len(profile)

    def words(self, total: float) -> str:
        return f"{total / 1e3:.1f} kB"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))


X = torch.randn(8, 20)
SIZES = {"0.weight": 20 * 64, "2.weight": 64 * 10}
WEIGHTS = sum(SIZES.values())


def on_disk(budget) -> int:
    return 6 * sum(round(budget[name] * size) for name, size in SIZES.items()) + 2 * OVERHEAD


@pytest.mark.parametrize("method", [STR(), GMP(every=2)], ids=["str", "gmp"])
def test_training_ends_at_it_exactly_in_a_measurement_a_file_and_after_bake(method, tmp_path):
    model = network()
    sparsifier = softprune.sparsify(model, method, goal=Bytes(1000), schedule=cubic(0.0, 0.7))
    train(model, sparsifier, X, 10)
    # 800 bytes are left for weights of 6 bytes each: 133 of them, and with one more it would be too much.
    measured = sparsifier.measure()
    assert (measured.params, on_disk(measured)) == (133, 998)
    sparsifier.save(tmp_path)
    assert json.loads((tmp_path / "budget.json").read_text())["densities"] == dict(measured)
    baked = sparsifier.bake()
    assert sum(int(torch.count_nonzero(layer.weight)) for layer in (baked[0], baked[2])) == 133


def test_the_total_falls_on_the_schedule():
    model = network()
    sparsifier = softprune.sparsify(model, STR(), goal=Bytes(1000), schedule=cubic(0.0, 1.0))
    constraint, seen = sparsifier.goals[0], []
    assert (constraint.full, constraint.final) == (6.0 * WEIGHTS, 800.0)

    def look():
        seen.append((constraint.spent(), constraint.allowed(sparsifier.progress)))

    train(model, sparsifier, X, 5, look=look)
    assert all(allowed - 6 < spent <= allowed for spent, allowed in seen)
    assert seen[0][1] > seen[-1][1] == 800.0


def test_the_plan_names_it_and_so_does_a_checkpoint(tmp_path):
    assert "a share of Bytes(bytes=1000, each=6)" in str(softprune.plan(network(), STR(), goal=Bytes(1000)))
    softprune.sparsify(network(), STR(), goal=Bytes(1000)).save(tmp_path)
    with pytest.raises(ValueError, match=r"Bytes\(bytes=1000, each=6\)"):
        softprune.sparsify(network(), STR(), goal=Bytes(1001)).load(tmp_path)


def test_going_on_from_a_file_equals_training_through(tmp_path):
    def begin():
        model = network()
        return model, softprune.sparsify(model, STR(), goal=Bytes(1000), schedule=cubic(0.0, 0.9))

    model, sparsifier = begin()
    train(model, sparsifier, X, 8)
    half, first = begin()
    optimizer = train(half, first, X, 4, total=8)
    first.save(tmp_path)
    again, second = begin()
    other = torch.optim.SGD(again.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    second.attach(other, total_steps=8)
    second.load(tmp_path)
    other.load_state_dict(optimizer.state_dict())
    for _ in range(4):
        other.zero_grad()
        again(X).square().mean().backward()
        other.step()
    assert second.measure().densities == sparsifier.measure().densities
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))


def test_errors_speak_its_words_and_come_before_anything_is_changed():
    model = network()
    keys = list(model.state_dict())
    with pytest.raises(ValueError, match="choose more than 200 and at most 11,720 bytes"):
        softprune.sparsify(model, STR(), goal=Bytes(200))
    with pytest.raises(ValueError, match=r"leaves 0\.8 kB to keep, but the floors .* take 1\.2 kB"):
        softprune.sparsify(model, STR(min_keep=100), goal=Bytes(1000))
    with pytest.raises(ValueError, match="counts bytes: divide it first, as in budget=uniform"):
        softprune.sparsify(model, DSR(), goal=Bytes(1000))
    with pytest.raises(ValueError, match="is for single weights, not for units of kind 'block'"):
        softprune.sparsify(model, STR(), goal=Bytes(1000), units=Units.block(2, 2))
    assert list(model.state_dict()) == keys


def test_rules_have_it_beside_other_goals():
    rules = [Rule("2", goal=Bytes(400))]
    sparsifier = softprune.sparsify(network(), STR(), goal=Params(77), rules=rules, schedule=constant())
    measured = sparsifier.measure()
    assert (round(measured["0.weight"] * 1280), round(measured["2.weight"] * 640)) == (77, 50)


@pytest.mark.parametrize("allocate", [uniform, erk, lambda costs, goal: scaled(costs, goal, like=uniform(costs, goal))])
def test_allocators_share_it_out(allocate):
    costs = profile(network(), X)
    budget = allocate(costs, Bytes(6 * WEIGHTS // 2 + 200))
    assert sum(budget[t.name] * t.params for t in costs) == pytest.approx(WEIGHTS / 2)
    assert "Bytes(bytes=5960, each=6)" in budget_table(budget).caption


def test_an_allocator_counts_what_is_left_dense():
    budget = uniform(profile(network(), X), Bytes(6 * 640 + 6 * 128 + 200), dense=["2.*"])
    assert dict(budget) == {"0.weight": pytest.approx(0.1), "2.weight": 1.0}


def test_global_magnitude_meets_it_with_the_largest_weights():
    model = network()
    budget = global_magnitude(model, Bytes(1000))
    sizes = torch.cat([layer.weight.detach().abs().flatten() for layer in (model[0], model[2])])
    border = sizes.sort(descending=True).values[132]
    for layer, name in ((model[0], "0.weight"), (model[2], "2.weight")):
        assert round(budget[name] * layer.weight.numel()) == int((layer.weight.abs() >= border).sum())
    assert on_disk(budget) == 998


def test_costs_are_exact_where_floats_are_not():
    # A third of a byte each: three weights cost one, not a little less.
    assert PerWeight(1, 3).exact(3) == 1 and PerWeight(0.5, 4).exact(2) == Fraction(1, 4)


class GoalWithBytes(GoalConfig):
    """The section of goals with its line for this one."""

    bytes: Count | None = Field(default=None, description="Or the bytes that the weights take on disk.")


class RunWithBytes(RunConfig):
    goal: GoalWithBytes | None = Field(default=None, description=RunConfig.model_fields["goal"].description)


@pytest.fixture
def configurable(monkeypatch):
    monkeypatch.setitem(GOALS, Bytes.key, Bytes)


SHORT = ["epochs=1", "data.subset=128", "threads=1"]


def test_with_one_line_in_the_section_of_goals_a_run_is_configured_trained_and_reported(configurable, tmp_path):
    config = RunWithBytes.load("digits/str-goal", [*SHORT, "goal={bytes: 9000, begin: 0, end: 0.5}"])
    assert config.goal.total() == Bytes(9000)
    assert RunWithBytes.parse(config.model_dump(), origin="itself") == config
    outcome = train_run(config, tmp_path / "run")
    kept = json.loads((outcome.folder / "result.json").read_text())["last"]["params"]
    tensors = len(Budget.load(outcome.folder))
    assert 9000 - 6 < 6 * kept + OVERHEAD * tensors <= 9000
    report = read_run(outcome.folder)
    assert goal_text(report.config) == "9,000 bytes"
    assert configured_goal(report.config) == (Bytes, 9000.0)


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ("{}", "needs one of sparsity, params, filters, flops, latency, rank and bytes"),
        ("{bytes: 9, sparsity: 0.5}", "got sparsity and bytes"),
        ("{bytes: 0}", "0 is not at least 1"),
        ("{bytes: 9, scope: all}", "scope all is for sparsity and params without a budget"),
        ("{byte: 9}", "did you mean goal.bytes"),
    ],
)
def test_a_configuration_is_checked_with_it(configurable, goal, message):
    with pytest.raises(ConfigError, match=message):
        RunWithBytes.load("digits/str-goal", [f"goal={goal}"])
