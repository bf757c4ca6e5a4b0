"""What a Sparsifier measures of units: the kind is recorded, and parameters as they will be stored."""

import copy
import pickle

import pytest
import torch
from torch import nn

import softprune
from softprune import GMP, Budget, Sparsity, Units, constant, sparsify
from softprune.nn.low_rank import LowRankLinear, fold


def pruned(model: nn.Module, units: Units, share: float, **more: object) -> softprune.Sparsifier:
    return sparsify(model, GMP(), goal=Sparsity(share), schedule=constant(), units=units, **more)  # type: ignore[arg-type]


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_directions_are_counted_as_they_are_folded(share: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(LowRankLinear(20, 16, learned=True), nn.ReLU(), LowRankLinear(16, 10, learned=True))
    model.append(nn.Linear(10, 3))
    with torch.no_grad():
        model[0].m.uniform_(0.5, 2)
    sparsifier = pruned(model, Units.rank, share)
    budget = sparsifier.measure()
    assert budget.units == "rank"
    assert budget.stored == count(fold(sparsifier.bake()))


def test_blocks_are_counted_with_those_at_the_edges() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 9), nn.ReLU(), nn.Linear(9, 3))
    sparsifier = pruned(model, Units.block(4, 4), 0.5)
    with torch.no_grad():
        sparsifier.targets[0].raw.copy_(torch.rand(3, 3))
    sparsifier.solve()
    budget = sparsifier.measure()
    plain = sparsifier.bake()
    assert budget.units == "block 4x4"
    assert budget.stored == int(torch.count_nonzero(plain[0].weight)) + 9 + 27 + 3


def test_what_a_filter_costs_is_not_guessed() -> None:
    model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))
    budget = pruned(model, Units.filter, 0.5, example=torch.zeros(1, 10)).measure()
    assert (budget.units, budget.stored, budget.params) == ("filter", None, 4)


def test_the_kind_is_in_the_file_and_survives_copies(tmp_path) -> None:
    budget = pruned(nn.Linear(8, 8), Units.block(4, 4), 0.75).measure()
    assert Budget.load(budget.save(tmp_path / "budget.json")) == budget
    assert copy.deepcopy(budget) == pickle.loads(pickle.dumps(budget)) == budget
    assert budget.stored == 24
    with pytest.raises(ValueError, match=r"save it as \.json"):
        budget.save(tmp_path / "budget.csv")


def test_a_file_of_weights_is_as_it_was() -> None:
    text = Budget({"a": 0.5}).to_json()
    assert "units" not in text and "stored" not in text
    assert Budget.from_json(text).units == "weight"


@pytest.mark.parametrize("change", ['"units": "nonsense"', '"units": 3', '"units": "block 0x4"', '"stored": -1'])
def test_a_damaged_file_is_named(change: str) -> None:
    text = Budget({"a": 0.5}).to_json().replace('"source"', f'{change}, "source"')
    with pytest.raises(ValueError, match=r"here\.json: (units|stored)"):
        Budget.from_json(text, origin="here.json")


def test_a_budget_of_other_units_is_refused() -> None:
    budget = Budget({"importance.m": 0.5}, units="filter")
    with pytest.raises(ValueError, match="it has filter, here they are block 4x4"):
        sparsify(nn.Linear(8, 8), GMP(), budget=budget, units=Units.block(4, 4))


def test_tables_and_plans_name_the_units() -> None:
    sparsifier = pruned(nn.Linear(8, 8), Units.block(4, 4), 0.75)
    assert "blocks kept" in sparsifier._repr_html_()
    assert str(sparsifier.plan).endswith("1 of 1 tensors managed, 4 of 4 blocks")
    sparsifier.bake()
    assert "blocks" in sparsifier._repr_html_()
