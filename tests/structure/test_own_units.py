"""Units from outside of the package: their words, one class, and a line in the configuration."""

from typing import Literal

import pytest
import torch
from pydantic import Field
from torch import nn

from softprune import GMP, STR, Budget, Params, Sparsity, Units, sparsify
from softprune.budget.units import KINDS, UnitWords
from softprune.reporting.labels import label
from softprune.structure.gates import Gated
from softprune.structure.joint_cost import SumOfUnits
from softprune.structure.kinds import UNIT_KINDS, UnitKind
from softprune.train.config import ConfigError, RunConfig
from softprune.train.config.sections import UnitsConfig


class InputKind(UnitKind):
    """Inputs of linear layers: whole columns of their weights."""

    def gates(self, model, example):
        layers = [(path, m) for path, m in model.named_modules() if isinstance(m, nn.Linear)]
        return [Gated(path, m, (1, m.in_features), ((m, "weight"),), (m.out_features, 1)) for path, m in layers]

    def joint_cost(self, model, goals, gates, example):
        rows = {gate.path: gate.layer.out_features for gate in gates}

        def cost(goal, targets, others):
            sizes = [torch.full((t.shape.numel(),), rows[t.name.partition(".")[0]]).numpy() for t in targets]
            return None if goal.measure is None else SumOfUnits(sizes, 0.0)

        return cost


class UnitsWithInputs(UnitsConfig):
    kind: Literal["weight", "filter", "rank", "block", "input"] = Field(default="weight", description="Or input.")


class RunWithInputs(RunConfig):
    units: UnitsWithInputs = Field(default=UnitsWithInputs(), description=RunConfig.model_fields["units"].description)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setitem(KINDS, "input", UnitWords("input", "input"))
    monkeypatch.setitem(UNIT_KINDS, "input", InputKind)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))


def trained(model, sparsifier):
    optimizer = torch.optim.SGD(sparsifier.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)
    sparsifier.attach(optimizer, total_steps=8)
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(16, 12, generator=generator)).square().mean().backward()
        optimizer.step()
    return sparsifier


@pytest.mark.parametrize("method", [STR(), GMP(every=2)], ids=["str", "gmp"])
def test_a_share_of_them_is_zero_as_a_whole_after_training(model, method, tmp_path):
    sparsifier = trained(model, sparsify(model, method, goal=Sparsity(0.5), units=Units("input")))
    budget = sparsifier.measure()
    budget.save(tmp_path / "budget.json")
    assert (budget.units, budget.params) == ("input", 14)  # of 12 + 16
    assert Budget.load(tmp_path / "budget.json") == budget
    assert "inputs kept" in sparsifier._repr_html_()
    model.eval()
    x = torch.randn(4, 12)
    expected = model(x)
    baked = sparsifier.bake()
    assert torch.equal(baked(x), expected)
    assert sum(int((layer.weight == 0).all(0).sum()) for layer in (baked[0], baked[2])) == 14


def test_a_total_of_what_they_cost_is_met_to_the_cost_of_one(model):
    sparsifier = trained(model, sparsify(model, STR(), goal=Params(120), units=Units("input")))
    baked = sparsifier.bake()
    # An input of the first layer has 16 weights, one of the second has 4.
    assert 120 - 16 < sum(int(torch.count_nonzero(layer.weight)) for layer in (baked[0], baked[2])) <= 120


def test_plans_and_refusals_have_its_words(model):
    planned = sparsify(model, STR(), goal=Sparsity(0.5), units=Units("input")).plan
    assert str(planned).endswith("2 of 2 tensors managed, 28 of 28 inputs")
    with pytest.raises(ValueError, match="only blocks have rows and columns, not units of kind 'input'"):
        Units("input", 2, 2)
    with pytest.raises(ValueError, match="units are weight, filter, rank, input or a block"):
        Budget({"a": 0.5}, units="inputs")


def test_with_one_line_in_their_section_a_run_is_configured_and_labelled():
    config = RunWithInputs.load("digits/str-goal", ["units=input", "goal=0.5"])
    assert config.units.build() == Units("input")
    assert label(config.model_dump()) == "str goal, inputs"
    with pytest.raises(ConfigError, match="blocks have rows and columns"):
        RunWithInputs.load("digits/str-goal", ["units={kind: input, block: [2, 2]}", "goal=0.5"])
