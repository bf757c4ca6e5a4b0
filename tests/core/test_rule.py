"""Rules: what they match, in which order they count, and what they refuse."""

import re

import pytest
import torch
from torch import nn

from softprune.core.rule import Rule, matches
from softprune.core.sparsify import plan
from softprune.methods import STR, KeepZeros
from softprune.ops import Exp


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.ModuleList([nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 4, 1)])
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)


NAMES = ["stem.weight", "blocks.0.weight", "blocks.1.weight", "head.weight"]


def skipped(*, skip=(), rules=()):
    """The names that a plan leaves alone."""
    return [p.target.name for p in plan(Net(), STR(), skip=skip, rules=rules).tensors if p.method is None]


@pytest.mark.parametrize(
    ("match", "names"),
    [
        ("stem", ["stem.weight"]),
        ("stem.weight", ["stem.weight"]),
        ("blocks.*", ["blocks.0.weight", "blocks.1.weight"]),
        ("*.weight", NAMES),
        ("*[01]", ["blocks.0.weight", "blocks.1.weight"]),
        (re.compile(r"\.1\."), ["blocks.1.weight"]),
        (re.compile(r"^(stem|head)"), ["stem.weight", "head.weight"]),
        (nn.Conv2d, NAMES[:3]),
        (nn.Linear, ["head.weight"]),
        (lambda name, module: getattr(module, "groups", 1) > 1, ["blocks.0.weight"]),
        (lambda name, module: name.endswith("1.weight"), ["blocks.1.weight"]),
    ],
)
def test_what_matches(match, names):
    modules = {name: module for name, module in Net().named_modules() if hasattr(module, "weight")}
    assert [n for n in NAMES if matches(match, n, modules[n.removesuffix(".weight")])] == names
    if names != NAMES:
        assert skipped(skip=[match]) == names
        assert skipped(skip=match) == names
        assert skipped(rules=[Rule(match, skip=True)]) == names


def test_a_glob_is_case_sensitive_and_matches_the_whole_path():
    layer = nn.Linear(2, 2)
    assert not matches("Head", "head.weight", layer)
    assert not matches("head", "body.head.weight", layer)
    assert matches("*head", "body.head.weight", layer)
    assert matches("weight", "weight", layer)


def test_later_rules_override_earlier_ones_field_by_field():
    rules = [
        Rule("*", s_init=-1.0, min_keep=3),
        Rule("blocks.*", s_init=-2.0, g=Exp()),
        Rule("blocks.1", granularity="filter", min_keep=0),
    ]
    found = {p.target.name: p.method for p in plan(Net(), STR(s_init=-9.0), rules=rules).managed}
    assert found["stem.weight"] == STR(s_init=-1.0, min_keep=3)
    assert found["blocks.0.weight"] == STR(s_init=-2.0, g=Exp(), min_keep=3)
    assert found["blocks.1.weight"] == STR(s_init=-2.0, g=Exp(), granularity="filter", min_keep=0)


def test_skip_can_be_taken_back_by_a_rule_but_not_from_the_argument():
    assert skipped(rules=[Rule("*", skip=True), Rule("head", skip=False)]) == NAMES[:3]
    assert "head.weight" in skipped(skip=["head"], rules=[Rule("head.weight", skip=False)])


def test_skip_false_takes_in_what_is_not_managed_by_default():
    found = plan(Net(), STR(), rules=[Rule("norm.weight", skip=False)])
    assert [p.target.name for p in found.managed] == [*NAMES[:3], "norm.weight", "head.weight"]


@pytest.mark.parametrize("match", ["head", nn.Linear])
def test_skip_false_for_a_layer_means_its_weights(match):
    assert [p.target.name for p in plan(Net(), STR(), rules=[Rule(match, skip=False)]).managed] == NAMES
    found = plan(Net(), STR(), rules=[Rule("head.bias", skip=False)])
    assert [p.target.name for p in found.managed] == [*NAMES, "head.bias"]


def test_skip_false_for_an_own_module_means_its_parameters():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))

    for match in ("1", Own):
        found = plan(nn.Sequential(nn.Linear(2, 2), Own()), STR(), rules=[Rule(match, skip=False)])
        assert [p.target.name for p in found.managed] == ["0.weight", "1.a", "1.b"]


def test_skip_false_takes_in_a_frozen_tensor():
    model = Net()
    model.stem.requires_grad_(False)
    assert "stem.weight" not in [p.target.name for p in plan(model, STR()).managed]
    assert "stem.weight" in [p.target.name for p in plan(model, STR(), rules=[Rule("stem.weight", skip=False)]).managed]


@pytest.mark.parametrize("as_rule", [True, False])
def test_a_rule_that_matches_nothing_is_refused_with_the_nearest_names(as_rule):
    arguments = {"rules": [Rule("heads", skip=True)]} if as_rule else {"skip": ["heads"]}
    with pytest.raises(
        ValueError, match=r"the rule 'heads' matches no tensor .*did you mean head\b.*\? These are stem\.weight, "
    ):
        plan(Net(), STR(), **arguments)


def test_other_kinds_of_rules_that_match_nothing():
    def never(name, module):
        return False

    with pytest.raises(ValueError, match="the rule never matches no tensor"):
        plan(Net(), STR(), skip=[never])
    with pytest.raises(ValueError, match=r"the rule r'\^x' matches no tensor"):
        plan(Net(), STR(), skip=[re.compile("^x")])
    with pytest.raises(ValueError, match="the rule LSTM matches no tensor"):
        plan(Net(), STR(), skip=[nn.LSTM])
    # A batch norm has no tensor that is managed by default, so a setting for it says nothing.
    with pytest.raises(ValueError, match=r"the rule 'norm' .*skip=False"):
        plan(Net(), STR(), rules=[Rule("norm", s_init=-1.0)])


def test_many_names_are_cut_short():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(12)))
    with pytest.raises(ValueError, match=r"0\.weight, .*7\.weight and 4 more"):
        plan(model, STR(), skip=["zzz"])


def test_a_field_that_the_method_does_not_have():
    model = Net()
    model.head.weight.detach()[0] = 0.0
    with pytest.raises(ValueError, match="the rule 'head' sets min_keep, s_init, which KeepZeros has not"):
        plan(model, KeepZeros(), rules=[Rule("head", s_init=-1.0, min_keep=2)])


def test_a_value_that_the_method_refuses():
    with pytest.raises(ValueError, match="granularity must be one of"):
        plan(Net(), STR(), rules=[Rule("head", granularity="rows")])
