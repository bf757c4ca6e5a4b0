"""Every method keeps the contract, one that somebody else wrote too; and methods that break it are caught."""

import inspect
import re
from pathlib import Path

import own_method
import pytest
import torch
from broken import BROKEN, NAMES, Generous, Restless
from tried import METHODS, VARIANTS

from softprune.methods import ST3, Method, RigL, Static, to_config
from softprune.methods.base import _METHODS
from softprune.testing import CHECKS, ContractError, check_method
from softprune.testing.contract import OUTPUTS, SUPPORT, found, problem

# Known here and to no other test.
OWN = _METHODS.pop("own-swap")


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    for name, cls in {"own-swap": OWN, **NAMES}.items():
        monkeypatch.setitem(_METHODS, name, cls)


@pytest.mark.parametrize("method", [*METHODS.values(), *VARIANTS.values()], ids=[*METHODS, *VARIANTS])
def test_the_contract_is_kept(method):
    assert check_method(method) is None


def test_the_methods_tried_are_all_that_are_registered():
    names = {name for name, cls in _METHODS.items() if cls.__module__.startswith("softprune.")}
    assert names <= set(METHODS)


def test_a_method_of_somebody_else_keeps_it_in_less_than_60_lines():
    assert len(Path(own_method.__file__).read_text().splitlines()) < 60
    assert check_method(own_method.Swap()) is None


@pytest.mark.parametrize(("method", "check"), BROKEN, ids=[check for _, check in BROKEN])
def test_a_method_that_breaks_a_rule_is_caught(method, check):
    with pytest.raises(ContractError, match=f"breaks the contract in {check} on .*: (expected .*; )?saw "):
        check_method(method, only=[check])


def test_every_check_is_known_to_fail_for_some_method():
    assert sorted(check for _, check in BROKEN) == sorted(CHECKS)


def test_the_message_says_where_and_what():
    with pytest.raises(ContractError) as caught:
        check_method(Generous(), only=["total_is_reached"])
    wanted = (
        r"Generous\(\) breaks .* on the mlp with SGD and a budget: expected 29 weights of 0.weight at the end; saw 32"
    )
    assert re.search(wanted, str(caught.value))


def test_an_unknown_check_is_named():
    with pytest.raises(ValueError, match="unknown check totals; known are config_round_trips"):
        check_method(Static(), only=["totals"])


def test_a_timetable_of_one_s_own():
    with pytest.raises(ContractError, match="masks_change_on_time"):
        check_method(RigL(), only=["masks_change_on_time"], timetable=lambda step, total: False)
    assert check_method(Restless(), only=["masks_change_on_time"], timetable=lambda step, total: True) is None


def test_the_convex_problem_is_what_it_says():
    given = problem()
    assert int(torch.count_nonzero(given.solution)) == SUPPORT and given.solution.shape[0] == OUTPUTS
    assert torch.linalg.matrix_rank(given.x) == given.x.shape[1], "so the minimum is the only one"
    torch.testing.assert_close(given.x @ given.solution.T, given.y)
    # A random mask finds one of eight in the mean; what selects finds all, from every start.
    assert sum(found(Static(), seed) for seed in range(4)) <= 8
    assert [found(ST3(), seed) for seed in range(2)] == [SUPPORT] * 2


def test_methods_are_plain_data_and_documented():
    for method in METHODS.values():
        assert isinstance(method, Method) and to_config(method)["method"] in METHODS
        doc = inspect.getdoc(type(method)) or ""
        assert "Deviations from the paper" in doc and "State:" in doc, type(method).__name__
