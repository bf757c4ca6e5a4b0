import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softprune import Profile
from softprune.budget.budget import from_csv, to_csv, to_json
from softprune.budget.costs import TensorCost

PROFILE = Profile((TensorCost("a.weight", (4, 2, 3, 3), 80), TensorCost("b.weight", (4,), 4)), 5, 32, 6)


def test_csv_by_hand():
    text = to_csv({"a.weight": 0.1, "b.weight": 1.0}, PROFILE)
    assert text.splitlines() == [
        "name,density,shape,macs",
        "a.weight,0.1,4x2x3x3,80",
        "b.weight,1.0,4,4",
        "(other),1.0,6,5",
        "(pool),1.0,0,32",
    ]
    assert from_csv(text, origin="x") == ({"a.weight": 0.1, "b.weight": 1.0}, PROFILE)


def test_fixed_costs_may_be_missing():
    densities, profile = from_csv("name,density,shape,macs\na,0.5,2x2,4\n", origin="x")
    assert (densities, profile) == ({"a": 0.5}, Profile((TensorCost("a", (2, 2), 4),)))


@given(st.dictionaries(st.text(min_size=1).filter(lambda s: s.isprintable()), st.floats(0, 1), min_size=1, max_size=5))
def test_csv_keeps_every_name_and_digit(densities):
    densities = {n: d for n, d in densities.items() if n not in ("(other)", "(pool)")} or {"a": 0.5}
    assert from_csv(to_csv(densities, None), origin="x") == (densities, None)


def test_csv_needs_the_cost_of_every_tensor():
    with pytest.raises(ValueError, match="c is not in the attached profile"):
        to_csv({"c": 0.5}, PROFILE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has columns none; needed are name,density"),
        ("layer,sparsity\na,90\n", "has columns layer, sparsity"),
        ("name,density\n", "lists no tensor"),
        ("name,density\na\n", "line 2 needs 2 cells"),
        ("name,density\na,0.5,7\n", "line 2 needs 2 cells"),
        ("name,density\na,dense\n", "line 2: density 'dense' is not a number"),
        ("name,density\na,0.5\na,0.6\n", "line 3 has a a second time"),
        ("name,density\n,0.5\n", "line 2 has no name"),
        ("name,density,shape,macs\na,0.5,2xq,4\n", "line 2: 'q' is not a whole number"),
        ("name,density,shape,macs\na,0.5,2x2,-4\n", "line 2: '-4' is not a whole number"),
        ('name,density\n"a,0.5\n', "line"),
    ],
)
def test_bad_csv_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        from_csv(text, origin="b.csv")


def test_json_is_plain_json():
    document = {"a": {"long": "x" * 120, "n": [0.1] * 60}, "b": [{"c": 1}], "d": None}
    assert json.loads(to_json(document)) == document
    # Sixty numbers on one line, one key per line.
    assert len(to_json(document).splitlines()) == 8
