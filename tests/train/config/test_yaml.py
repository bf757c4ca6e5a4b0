"""YAML as a reader of configurations expects it."""

import pytest

from softprune.train.config.keys import parse_yaml, write_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("5E4", 50_000.0), ("-.5", -0.5), ("2.", 2.0), ("1e5", 100_000.0), ("010", 10),
        ("-3200", -3200),
        ("no", "no"), ("on", "on"), ("true", True), ("~", None), ("", None), ("1_000", "1_000"), ("1:30", "1:30"),
        ("2020-06-01", "2020-06-01"), ("e5", "e5"), ("1e", "1e"),
    ],
)  # fmt: skip
def test_plain_values_have_the_types_of_yaml_1_2(text, value):
    found = parse_yaml(text, "a test")
    assert found == value and type(found) is type(value)


def test_text_that_looks_like_a_number_is_quoted():
    assert write_yaml({"a": "1e-3", "b": "no", "c": "010", "d": 1e-5}) == ("a: '1e-3'\nb: 'no'\nc: '010'\nd: 1.0e-05\n")


def test_lists_of_plain_values_stay_on_one_line_and_keys_in_order():
    assert write_yaml({"b": [1, "x"], "a": [{"c": None}]}) == "b: [1, x]\na:\n- c: null\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "my.yaml, line 3 is not valid YAML: 'a' is given twice"),
        ("a: [1, 2", "my.yaml, line 1 is not valid YAML"),
        ("a: 1\nb: !!timestamp 2020-01-01", "my.yaml, line 2 is not valid YAML: could not determine a constructor"),
        ("a: !!set {b}", "my.yaml, line 1 is not valid YAML: could not determine a constructor for the tag '.*:set'"),
        ("a: !!binary aGk=", "constructor for the tag '.*:binary'"),
        ("a: !!python/object/apply:os.system [ls]", "my.yaml, line 1 is not valid YAML: could not determine"),
    ],
)
def test_what_is_no_configuration_is_refused_by_line(text, message):
    with pytest.raises(ValueError, match=message):
        parse_yaml(text, "my.yaml")
