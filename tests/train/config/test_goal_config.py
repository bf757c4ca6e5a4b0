"""The goal of a run in its configuration: its forms, what contradicts it, and what `sparsify` gets of it."""

import pytest
import torch

from softprune import Budget, Filters, Flops, Params, Sparsity, constant, cubic, linear, profile
from softprune.methods.base import method_class, method_names
from softprune.nn.catalog import build
from softprune.train.config import ConfigError, RunConfig, config_schema
from softprune.train.config.goal import GoalConfig


def goal_of(*overrides):
    return RunConfig.load("digits/dense", ["method=str", *overrides]).goal


def problems(*overrides):
    with pytest.raises(ConfigError) as caught:
        RunConfig.load("digits/dense", list(overrides))
    return {problem.path: problem.message for problem in caught.value.problems}


def test_a_number_alone_is_a_sparsity():
    assert goal_of("goal=0.95") == GoalConfig(sparsity=0.95) == goal_of("goal={sparsity: 0.95}")
    assert goal_of("goal=0.95", "goal.begin=0.2") == GoalConfig(sparsity=0.95, begin=0.2)
    assert goal_of("goal.params=500") == GoalConfig(params=500)


@pytest.mark.parametrize(
    ("given", "total", "schedule"),
    [
        ("0.9", Sparsity(0.9), None),
        ("{sparsity: 0.9, ramp: cubic}", Sparsity(0.9), cubic(0.1, 0.7)),
        ("{sparsity: 0.9, ramp: linear}", Sparsity(0.9), linear(0.1, 0.7)),
        ("{sparsity: 0.9, begin: 0.0}", Sparsity(0.9), cubic(0.0, 0.7)),
        ("{sparsity: 0.9, scope: all, ramp: linear, begin: 0.3}", Sparsity(0.9, scope="all"), linear(0.3, 0.7)),
        ("{params: 500, ramp: constant}", Params(500), constant()),
        ("{flops: 1000000, end: 0.5}", Flops(1_000_000), cubic(0.1, 0.5)),
        ("{filters: 64}", Filters(64), None),
    ],
    ids=["sparsity", "cubic", "linear", "begin", "all", "params", "flops", "filters"],
)
def test_it_becomes_a_goal_and_a_schedule(given, total, schedule):
    units = ["units=filter"] if total == Filters(64) else []
    arguments = goal_of(f"goal={given}", *units).arguments(lambda: profile(build("digits"), torch.zeros(1, 1, 8, 8)))
    assert arguments == {"goal": total, "schedule": schedule}


def test_a_goal_needs_its_units():
    assert "counts filters; set units=filter too" in problems("method=str", "goal={filters: 64}")["goal.filters"]
    found = problems("method=str", "goal={rank: 4}", "units=filter")
    assert "counts directions of low-rank layers; set units=rank too" in found["goal.rank"]


@pytest.mark.parametrize("name", ["uniform", "erk"])
def test_a_total_can_be_shared_out_by_an_allocator(name):
    costs = profile(build("digits"), torch.zeros(1, 1, 8, 8))
    budget = goal_of(f"goal={{sparsity: 0.9, budget: {name}}}").arguments(lambda: costs)["budget"]
    assert budget.overall == pytest.approx(0.9, abs=1e-4)
    assert (len(set(budget.values())) == 1) == (name == "uniform")


def test_a_budget_comes_from_a_file_a_run_folder_or_the_published_ones(tmp_path):
    costs = profile(build("digits"), torch.zeros(1, 1, 8, 8))
    budget = Budget(dict.fromkeys(costs.names, 0.25), profile=costs)
    (tmp_path / "run").mkdir()
    for where in (tmp_path / "mine.json", tmp_path / "run" / "budget.json"):
        budget.save(where)
    for named in (tmp_path / "mine.json", tmp_path / "run"):
        assert dict(goal_of(f"goal.budget={named}").arguments(lambda: costs)["budget"]) == dict(budget)
        scaled = goal_of(f"goal={{budget: {named}, sparsity: 0.97}}").arguments(lambda: costs)["budget"]
        assert scaled.overall == pytest.approx(0.97, abs=1e-6)
    published = goal_of("goal.budget=resnet50/str-90.23").arguments(lambda: costs)["budget"]
    assert published.overall == pytest.approx(0.9023, abs=1e-3)


@pytest.mark.parametrize(
    ("overrides", "path", "message"),
    [
        (["method=str", "goal={filters: 9, budget: erk}"], "goal", "leave out the budget"),
        (["method=str", "goal={filters: 9, scope: all}"], "goal", "scope all is for sparsity and params"),
        (["goal=95"], "goal.sparsity", "it is a fraction, write 0.95"),
        (["goal=true"], "goal", "not a section of keys"),
        (
            ["goal={}"],
            "goal",
            "needs one of sparsity, params, filters, flops, latency and rank (or a budget file), got none",
        ),
        (["goal={params: 5, flops: 5}"], "goal", "got params and flops"),
        (["goal={budget: erk}"], "goal", "got none"),
        (
            ["goal={budget: my.json, sparsity: 0.5, params: 5}"],
            "goal",
            "one of sparsity, params, filters, flops, latency and rank at most",
        ),
        (["goal={flops: 5, scope: all}"], "goal", "scope all is for sparsity and params"),
        (["goal={sparsity: 0.5, budget: uniform, scope: all}"], "goal", "scope all is for sparsity and params"),
        (["goal={sparsity: 0.5, ramp: constant, end: 0.5}"], "goal", "end has no effect with a constant ramp"),
        (["goal={sparsity: 0.5, begin: 0.8}"], "goal", "begin 0.8 and end 0.7"),
        (["goal={sparsty: 0.5}"], "goal.sparsty", "did you mean goal.sparsity?"),
        (["goal={params: 0}"], "goal.params", "0 is not at least 1"),
        (["goal=0.5", "method.s_init=-5"], "method.s_init", "no effect under a goal"),
        (["goal=0.5", "method.g=exp"], "method.g", "no effect under a goal"),
        (["goal=0.5", "rules=[{match: '6', s_init: -5}]"], "rules.0.s_init", "no effect under a goal"),
        (["goal=0.5", "optimizer.threshold_decay=0.1"], "optimizer.threshold_decay", "no effect under a goal"),
        (["goal=0.5", "propose.push=3"], "propose.push", "no effect under a goal"),
        (["goal=0.5", "method.pace=-1"], "method.pace", "0 or more; got -1"),
        (["goal=0.5", "method.gradient=plan"], "method.gradient", "'projected' or 'plain'"),
        (["goal=0.5", "method.start=median"], "method.start", "'mean', 'equal' or 'dimensions'"),
        (["goal=0.5", "method.rescale=3"], "method.rescale", "true or false"),
        (["method.pace=1", "optimizer.threshold_decay=0.1"], "method.pace", "no effect without a goal"),
        (["method=gmp"], "goal", "gmp prunes to a total and needs one"),
        (["method=st3"], "goal", "st3 prunes to a total and needs one"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_contradicts_itself_is_named(overrides, path, message):
    assert message in problems("method=str", *overrides)[path]


@pytest.mark.parametrize(
    ("overrides", "path", "message"),
    [
        (["method=rigl", "goal=0.9"], "goal.budget", "set goal.budget=erk or uniform"),
        (["method=set", "goal.params=500"], "goal.budget", "cannot share a total out"),
        (["method=static", "goal={sparsity: 0.9, budget: erk, ramp: cubic}"], "goal.ramp", "sparse from the first"),
        (["method=rigl", "goal={sparsity: 0.9, budget: erk, begin: 0.2}"], "goal.begin", "sparse from the first step"),
        (["method=snip", "goal={sparsity: 0.9, end: 0.9}"], "goal.end", "no effect with snip"),
        (["method=imp", "goal={sparsity: 0.9, ramp: linear}"], "goal.ramp", "imp, which prunes between its rounds"),
        (["method=vd", "goal={sparsity: 0.9, budget: erk}"], "goal.budget", "finds out by itself"),
        (["method=keep-zeros", "goal=0.9"], "goal", "takes neither a total nor a budget"),
        (["method=imp"], "goal", "imp prunes to a total and needs one"),
        (["method=imp", "method.rounds=1", "goal=0.9"], "method.rounds", "at least 2"),
        (["method=autosparse", "method.pace=1", "optimizer.threshold_decay=0.1"], "method.pace", "without a goal"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_a_method_does_not_take_is_named(overrides, path, message):
    assert message in problems(*overrides)[path]


@pytest.mark.parametrize("method", method_names())
def test_every_method_has_a_form_that_its_configuration_takes(method):
    forms = {"none": [], "goal": ["goal=0.9"], "budget": ["goal={sparsity: 0.9, budget: uniform}"]}
    for total in method_class(method).accepts:
        config = RunConfig.load("digits/dense", [f"method={method}", *forms[total], "optimizer.weight_decay=1e-4"])
        assert config.goal is None or config.goal.schedule() is None


def test_a_recipe_with_a_goal_turns_dense_by_its_method_alone():
    assert RunConfig.load("digits/dense", ["method=null", "goal=0.9"]).method is None


def test_the_schema_knows_both_forms():
    short, long = config_schema()["$defs"]["GoalConfig"]["anyOf"]
    assert (short["type"], short["exclusiveMaximum"]) == ("number", 1)
    assert set(long["properties"]) == set(GoalConfig.model_fields)
