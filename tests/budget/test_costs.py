import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from softprune import Profile
from softprune.budget.costs import TensorCost

CONV, FC = TensorCost("conv.weight", (8, 3, 3, 3), 21_600), TensorCost("fc.weight", (10, 8), 80)
PROFILE = Profile((CONV, FC), other_macs=7, pool_macs=100, other_params=26)


def test_totals():
    # by hand: 8*3*9 = 216 and 80 weights
    assert PROFILE.params == 296
    assert PROFILE.macs == 21_600 + 80 + 7
    assert PROFILE.total_macs() == 21_787
    assert PROFILE.total_macs(pool=False) == 21_687


def test_lookup():
    assert PROFILE["fc.weight"] is FC
    assert "fc.weight" in PROFILE
    assert "bn.weight" not in PROFILE
    assert (list(PROFILE), len(PROFILE), PROFILE.names) == ([CONV, FC], 2, ("conv.weight", "fc.weight"))
    with pytest.raises(KeyError, match=r"no tensor 'nope' in this profile; it has conv\.weight, fc\.weight"):
        PROFILE["nope"]


def test_head_is_the_last_tensor_that_computes():
    unused = TensorCost("auxiliary.weight", (5, 8), 0)
    assert PROFILE.head == "fc.weight"
    assert Profile((CONV, FC, unused)).head == "fc.weight"
    assert Profile((unused,)).head == "auxiliary.weight"


def test_only_moves_costs_and_keeps_totals():
    part = PROFILE.only(["fc.weight"])
    assert part == Profile((FC,), other_macs=21_607, pool_macs=100, other_params=26 + 216)
    assert part.total_macs() == PROFILE.total_macs()
    with pytest.raises(ValueError, match="no tensor nope in this profile"):
        PROFILE.only(["fc.weight", "nope"])


def test_match():
    assert PROFILE.match(["*.weight"]) == ("conv.weight", "fc.weight")
    assert PROFILE.match("f*") == ("fc.weight",)
    assert PROFILE.match(()) == ()
    with pytest.raises(ValueError, match=r"\['layer9\.\*'\] match no tensor; the tensors are conv\.weight"):
        PROFILE.match(["fc*", "layer9.*"])


def test_empty_and_repeated_are_refused():
    with pytest.raises(ValueError, match="at least one tensor"):
        Profile(())
    with pytest.raises(ValueError, match=r"repeated: fc\.weight"):
        Profile((FC, CONV, FC))


counts = st.integers(0, 2**40)
tensors = st.builds(TensorCost, st.text(min_size=1), st.lists(st.integers(0, 64)).map(tuple), counts)


@given(st.lists(tensors, min_size=1, max_size=5, unique_by=lambda t: t.name), counts, counts, counts)
def test_json_round_trip(rows, other_macs, pool_macs, other_params):
    assume(any(row.params for row in rows))
    profile = Profile(tuple(rows), other_macs, pool_macs, other_params)
    assert Profile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "onnx"}, "format 'onnx'; a 'softprune-profile' file is needed"),
        ({"version": 9}, "version 9; this release reads version 1"),
        ({"tensors": None}, "no list 'tensors'"),
        ({"tensors": []}, "at least one tensor"),
        ({"tensors": [{"name": "a", "shape": [0, 3], "macs": 1}]}, "at least one weight, but a have none"),
        ({"tensors": [3]}, "tensor 0 needs a name"),
        ({"tensors": [{"name": "a", "shape": 3, "macs": 1}]}, r"tensor 0 \(a\) needs a list 'shape'"),
        (
            {"tensors": [{"name": "a", "shape": [-1], "macs": 1}]},
            r"\(a\), shape must be a whole number >= 0, got -1",
        ),
        ({"tensors": [{"name": "a", "shape": [1], "macs": 0.5}]}, r"\(a\), macs must be a whole number"),
        ({"other_macs": None}, "other_macs must be a whole number"),
        ({"pool_macs": True}, "pool_macs must be a whole number"),
    ],
)
def test_foreign_and_corrupt_documents_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Profile.from_dict(PROFILE.to_dict() | change, origin="p.json")
    with pytest.raises(ValueError, match="holds a list where a profile object is needed"):
        Profile.from_dict([1])


def test_numbers_without_a_floating_point_number_are_refused():
    with pytest.raises(ValueError, match="w has more weights or multiply-adds than can be counted"):
        TensorCost("w", (10**39,) * 30, 1)
    with pytest.raises(ValueError, match="than can be counted"):
        TensorCost("w", (2,), 10**400)
