"""Methods as plain data, there and back."""

import json
from dataclasses import FrozenInstanceError, dataclass, fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softprune.methods import ST3, STR, KeepZeros, from_config, method_names, register, to_config
from softprune.methods.base import _METHODS
from softprune.ops import Backward, Custom, Exp, G, Sigmoid, Softplus

numbers = st.floats(1e-6, 1e6, allow_nan=False)
scales = st.one_of(numbers, st.integers(1, 9), st.just("auto"))
functions = st.builds(lambda kind, k: kind(k), st.sampled_from([Sigmoid, Exp, Softplus]), scales)
strs = st.builds(
    STR,
    s_init=st.one_of(st.floats(-1e5, 1e5, allow_nan=False), st.integers(-9999, 0)),
    g=functions,
    granularity=st.sampled_from(["tensor", "filter", "weight", "global"]),
    backward=st.builds(Backward, st.floats(0, 1)),
    min_keep=st.integers(0, 10**6),
)


@given(strs)
def test_round_trip_through_json(method):
    config = json.loads(json.dumps(to_config(method)))
    assert from_config(config) == method
    assert to_config(from_config(config)) == config


def test_defaults_are_left_out():
    assert to_config(STR()) == {"method": "str"}
    assert to_config(STR(s_init=-5.0, g=Exp(2.0), backward=Backward(0.5), min_keep=1)) == {
        "method": "str",
        "s_init": -5.0,
        "g": {"g": "exp", "k": 2.0},
        "backward": {"leak": 0.5},
        "min_keep": 1,
    }
    assert from_config({"method": "keep-zeros"}) == KeepZeros()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "unknown method None; known are acdc, .*gmp, .*keep-zeros, .*st3, .*str"),
        ({"method": "strr"}, "unknown method 'strr'"),
        ({"method": "str", "s_int": 1.0}, "no field s_int; it has backward, g, gradient, granularity, min_keep, pace"),
        ({"method": "str", "g": {"g": "tanh"}}, "unknown g 'tanh'; known are sigmoid, exp, softplus"),
        ({"method": "str", "g": {"g": "exp", "scale": 2}}, "cannot read the value"),
        ({"method": "str", "backward": {"leaks": 0.5}}, "cannot read the value"),
        ({"method": "str", "backward": {"leak": 2.0}}, r"\[0, 1\]"),
        ({"method": "str", "granularity": "row"}, "granularity"),
        ({"method": "str", "g": {"g": "exp", "k": -1}}, "positive"),
    ],
)
def test_unknown_names_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        from_config(config)


@dataclass(frozen=True)
class Own(G):
    def _shape(self, s):
        return torch.exp(s)

    def _shape_inverse(self, a):
        return torch.log(a)


def test_functions_cannot_be_written():
    with pytest.raises(ValueError, match="Custom g holds Python functions"):
        to_config(STR(g=Custom()))
    with pytest.raises(ValueError, match="Own is not one of sigmoid, exp, softplus"):
        to_config(STR(g=Own()))


def test_names_are_unique_and_methods_registered():
    assert {"str", "keep-zeros"} <= set(method_names())
    with pytest.raises(ValueError, match="'str' exists already: STR"):
        register("str")(KeepZeros)
    assert _METHODS["str"] is STR

    @dataclass(frozen=True)
    class Unregistered(KeepZeros):
        pass

    with pytest.raises(ValueError, match="Unregistered is not registered"):
        to_config(Unregistered())


def test_a_method_is_known_once_it_is_registered(monkeypatch):
    monkeypatch.setattr("softprune.methods.base._METHODS", {})
    assert register("again")(KeepZeros) is KeepZeros
    assert method_names() == ["again"] and from_config({"method": "again"}) == KeepZeros()


def test_what_a_file_leaves_out_is_the_default():
    assert from_config({"method": "str", "g": {"g": "exp"}}).g == Exp(1.0)
    assert from_config({"method": "str", "backward": {"leak": 0.5}}).backward == Backward(0.5)
    assert from_config({"method": "str", "backward": {"leak": 0.5, "until": 0.25}}).backward == Backward(0.5, 0.25)


@pytest.mark.parametrize("value", [{"until": 0.5}, {"leak": 0.5, "after": 0.5}, {"k": 2.0}], ids=str)
def test_values_that_are_no_part_of_a_method_are_refused(value):
    with pytest.raises(ValueError, match="cannot read the value"):
        from_config({"method": "str", "backward": value})


OURS = {name: cls for name, cls in _METHODS.items() if cls.__module__.startswith("softprune.")}


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_method_does_not_change_once_it_is_made(name):
    method = from_config({"method": name})
    for key in [field.name for field in fields(method)] or ["anything"]:
        with pytest.raises(FrozenInstanceError):
            setattr(method, key, 1)
    assert hash(method) == hash(from_config({"method": name})) and method == from_config({"method": name})


def test_what_is_said_of_methods():
    drawn = {name for name, cls in OURS.items() if not cls.selects}
    assert drawn == {"dsr", "keep-zeros", "set", "snip", "static"}
    masks = {name for name, cls in OURS.items() if cls.moves_masks}
    assert masks == {"dsr", "rigl", "set", "snfs", "snip", "static"}
    assert {name for name, cls in OURS.items() if "none" in cls.accepts} == {"autosparse", "keep-zeros", "str", "vd"}


def test_the_settings_of_a_goal_are_checked_for_every_method():
    for make in (ST3, STR):
        with pytest.raises(ValueError, match="min_keep is a number of weights, 0 or more; got -1"):
            make(min_keep=-1)
