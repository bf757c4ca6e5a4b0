import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softprune import Budget, Profile
from softprune.budget.costs import TensorCost

PROFILE = Profile(
    (
        TensorCost("conv.weight", (4, 2), 80),
        TensorCost("mid.weight", (4, 4), 160),
        TensorCost("fc.weight", (2, 4), 8),
    ),
    other_macs=5,
    pool_macs=32,
    other_params=6,
)
BUDGET = Budget({"conv.weight": 1.0, "mid.weight": 0.25, "fc.weight": 0.5}, PROFILE, "by hand")


def test_it_is_a_read_only_mapping():
    assert (BUDGET["mid.weight"], BUDGET.sparsity("mid.weight")) == (0.25, 0.75)
    assert list(BUDGET) == ["conv.weight", "mid.weight", "fc.weight"]
    assert dict(BUDGET.items()) == dict(BUDGET.densities)
    assert len(BUDGET) == 3
    with pytest.raises(TypeError):
        BUDGET.densities["fc.weight"] = 0.1
    with pytest.raises(AttributeError):
        BUDGET.source = "x"


def test_it_does_not_follow_the_dict_it_was_made_of():
    densities = {"a": 0.5}
    budget = Budget(densities)
    densities["a"] = 0.9
    assert budget["a"] == 0.5


def test_totals_by_hand():
    # kept 8 + 4 + 4 of 8 + 16 + 8; backbone 8 + 4 of 8 + 16; MACs 80 + 40 + 4, fixed 5 and 32
    assert BUDGET.overall == 0.5
    assert BUDGET.backbone == 0.5
    assert BUDGET.params == 16
    assert BUDGET.macs() == 124 + 5 + 32
    assert BUDGET.macs(pool=False) == 129


def test_totals_need_a_profile():
    for total in (lambda b: b.overall, lambda b: b.backbone, lambda b: b.params, lambda b: b.macs()):
        with pytest.raises(ValueError, match=r"has no profile; attach one: budget\.with_profile"):
            total(Budget({"a": 0.5}))
    with pytest.raises(ValueError, match=r"no density for mid\.weight, fc\.weight"):
        _ = Budget({"conv.weight": 0.5}, PROFILE).overall
    single = Profile((TensorCost("w", (2, 2), 4),))
    with pytest.raises(ValueError, match="there is no backbone"):
        _ = Budget({"w": 0.5}, single).backbone


def test_attaching_a_profile_checks_it():
    plain = Budget(dict(BUDGET), source="by hand")
    assert plain.with_profile(PROFILE) == BUDGET
    with pytest.raises(ValueError, match="is missing from the budget"):
        Budget({"fc.weight": 0.5}).with_profile(PROFILE)


def test_validate_lists_everything_at_once():
    other = Profile(
        (
            TensorCost("conv.weight", (4, 2), 80),
            TensorCost("mid.weight", (8, 2), 1),
            TensorCost("new", (1,), 1),
        )
    )
    budget = Budget({"conv.weight": 1.5, "mid.weight": float("nan"), "fc.weight": -0.1}, PROFILE)
    with pytest.raises(ValueError) as caught:
        budget.validate(other)
    assert str(caught.value).splitlines() == [
        "the budget does not fit:",
        "  density of conv.weight is 1.5, not in [0, 1]",
        "  density of mid.weight is nan, not in [0, 1]",
        "  density of fc.weight is -0.1, not in [0, 1]",
        "  new is missing from the budget",
        "  fc.weight is not a tensor of the profile",
        "  mid.weight has shape (4, 4) in the budget and (8, 2) in the profile",
    ]


def test_validate_accepts_a_fitting_profile():
    assert BUDGET.validate() is None
    assert BUDGET.validate(PROFILE) is None
    assert Budget({"a": 0.0, "b": 1}).validate() is None


def test_a_file_without_weights_is_refused(tmp_path):
    (tmp_path / "b.csv").write_text("name,density,shape,macs\ncon,1.0,0,7\n")
    with pytest.raises(ValueError, match="at least one weight"):
        Budget.load(tmp_path / "b.csv")


def test_what_has_no_weights_has_no_sparsity():
    budget = Budget({"empty": 1.0, "fc": 0.5}, Profile((TensorCost("empty", (0, 3), 1), TensorCost("fc", (4, 2), 8))))
    assert budget.sparsity("empty") == 0 and budget.backbone == 0


def test_empty_is_refused():
    with pytest.raises(ValueError, match="at least one tensor"):
        Budget({})


@pytest.mark.parametrize("name", ["budget.json", "budget.csv"])
def test_files_keep_everything(tmp_path, name):
    budget = BUDGET if name.endswith("json") else Budget(dict(BUDGET), PROFILE)
    path = budget.save(tmp_path / name)
    assert Budget.load(path) == budget
    assert Budget.load(str(path)).macs() == budget.macs()


def test_files_without_a_profile(tmp_path):
    plain = Budget({"a": 0.1, "b": 1 / 3})
    for name in ("b.json", "b.csv"):
        assert Budget.load(plain.save(tmp_path / name)) == plain


def test_run_folder(tmp_path):
    BUDGET.save(tmp_path / "budget.json")
    assert Budget.load(tmp_path) == BUDGET


def test_json_carries_format_and_version():
    document = json.loads(BUDGET.to_json())
    assert (document["format"], document["version"]) == ("softprune-budget", 1)


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"saved as \.json or \.csv, got .*budget\.yaml"):
        BUDGET.save(tmp_path / "budget.yaml")


def test_absent_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        Budget.load(tmp_path / "nowhere.json")
    with pytest.raises(FileNotFoundError, match=r"budget\.json"):
        Budget.load(tmp_path)


names = st.text(min_size=1).filter(str.isprintable)


@given(st.dictionaries(names, st.floats(0, 1), min_size=1, max_size=6), st.text())
def test_json_round_trip(densities, source):
    budget = Budget(densities, source=source)
    assert Budget.from_json(budget.to_json()) == budget


def test_pickle_and_copies():
    assert pickle.loads(pickle.dumps(BUDGET)) == BUDGET
    assert copy.deepcopy(BUDGET) == BUDGET


def corrupt(**change):
    return json.dumps(json.loads(BUDGET.to_json()) | change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BUDGET.to_json()[:60], "cut short"),
        (corrupt(format="other"), "format 'other'; a 'softprune-budget' file is needed"),
        ('{"layers": []}', "format None; a 'softprune-budget' file is needed"),
        (corrupt(version=2), "version 2; this release reads version 1"),
        (corrupt(version="1"), "version '1'"),
        (corrupt(densities={}), "no densities"),
        (corrupt(densities=[1]), "no densities"),
        (corrupt(densities={"a": "0.5", "b": None, "c": True}), "densities of a, b, c are not numbers"),
        (corrupt(densities={"a": 90.0}, profile=None), r"density of a is 90, not in \[0, 1\]"),
        (corrupt(densities={"a": float("nan")}, profile=None), "contains NaN"),
        (corrupt(profile=None).replace("0.25", "1e999"), r"density of mid\.weight is inf"),
        (corrupt(densities={"conv.weight": 0.5}), r"mid\.weight is missing from the budget"),
        (corrupt(profile={"format": "x"}), "profile has format 'x'"),
        (corrupt(profile=[]), "holds a list where a profile object is needed"),
    ],
)
def test_foreign_and_corrupt_files_are_refused(tmp_path, text, message):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        Budget.load(path)
    assert "broken.json" in str(caught.value)


def test_difference():
    other = Budget({"fc.weight": 0.75, "mid.weight": 0.25, "conv.weight": 0.5})
    assert BUDGET.difference(other) == {"conv.weight": 0.5, "mid.weight": 0.0, "fc.weight": -0.25}
