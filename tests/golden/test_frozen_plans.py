"""What `plan` prints, and the two forms of a budget file, stay as they are to the letter."""

import pytest
import torch
from frozen_networks import cnn, images, low_rank, perceptron
from frozen_text import assert_frozen, sections
from torch import nn

from softprune import (
    GMP,
    STR,
    Budget,
    Flops,
    Params,
    Rank,
    Rule,
    Sparsity,
    Units,
    erk,
    global_magnitude,
    plan,
    profile,
    sparsify,
    uniform,
)
from softprune.budget.budget import to_csv
from softprune.methods import RigL, Static
from softprune.nn import FastGRNNClassifier


class Tied(nn.Module):
    """One matrix that is read at two places."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 6), nn.Linear(6, 9, bias=False)
        self.head.weight = self.embedding.weight


def recurrent():
    torch.manual_seed(0)
    return FastGRNNClassifier(9, 12, classes=2, learned=True)


def plans():
    model, x = cnn(), images(1)
    counted = profile(cnn(), x)
    yield "STR", plan(model, STR())
    yield "STR with a goal", plan(model, STR(), goal=Sparsity(0.9))
    yield "STR per filter, the head left alone", plan(model, STR(s_init=-5.0, granularity="filter"), skip=["7.weight"])
    yield "GMP with parameters", plan(model, GMP(), goal=Params(300))
    yield (
        "a rule with a goal of its own",
        plan(model, STR(), rules=[Rule("0.*", goal=Sparsity(0.5)), Rule("7.*", s_init=-9)]),
    )
    yield "RigL with a budget", plan(model, RigL(), budget=erk(counted, Sparsity(0.8)))
    yield (
        "Static with a uniform budget",
        plan(model, Static(), budget=uniform(counted, Sparsity(0.5), dense=["0.weight"])),
    )
    yield "blocks", sparsify(perceptron(), STR(), goal=Sparsity(0.75), units=Units.block(4, 8)).plan
    yield "tied weights", plan(Tied(), STR())
    for name, given in (("filters", Sparsity(0.5)), ("filters to multiply-adds", Flops(20_000))):
        yield name, sparsify(cnn(), STR(), goal=given, units=Units.filter, example=x).plan
    yield "ranks", sparsify(recurrent(), STR(), goal=Rank(w=4, u=3), units=Units.rank).plan
    yield "ranks to a share", sparsify(low_rank(), STR(), goal=Sparsity(0.5), units=Units.rank).plan


def test_the_text_of_every_plan_is_the_frozen_one():
    assert_frozen("plans.txt", sections({name: str(made).splitlines() for name, made in plans()}))


def measured():
    """One that a goal has led to, on weights that are the same everywhere."""
    sparsifier = sparsify(cnn(), GMP(), goal=Sparsity(0.5), example=images(1))
    sparsifier.solve(at=1.0)
    return sparsifier.measure()


def budgets():
    counted = profile(cnn(), images(1))
    return {
        "uniform": uniform(counted, Sparsity(0.9)),
        "erk": erk(counted, Flops(20_000)),
        "global_magnitude": global_magnitude(cnn(), Params(300), profile=counted),
        "measured": measured(),
    }


@pytest.mark.parametrize("name", ["uniform", "erk", "global_magnitude", "measured"])
def test_budget_files_have_the_frozen_text_and_come_back_the_same(name):
    budget = budgets()[name]
    assert_frozen(f"budget_{name}.json", budget.to_json())
    assert Budget.from_json(budget.to_json()) == budget


def test_budget_tables_have_the_frozen_text():
    found = {name: to_csv(budget, budget.profile).splitlines() for name, budget in budgets().items()}
    assert_frozen("budgets_csv.txt", sections(found))
