import pytest

from softprune import Budget
from softprune.budget import zoo


def test_entries_describe_themselves():
    entries = {entry.name: entry for entry in zoo()}
    entry = entries["resnet50/gs-89.54"]
    assert (entry.network, entry.method) == ("resnet50", "STR-GS")
    assert round(entry.sparsity, 4) == 0.8954
    assert "global threshold" in entry.note
    assert sum(e.method == "STR" and e.network == "resnet50" for e in entries.values()) == 16


def test_every_entry_loads_and_fits_its_profile():
    for entry in zoo():
        budget = Budget.load(entry.name)
        budget.validate()
        assert budget.source == entry.name
        assert budget.overall == entry.sparsity


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resnet50/str-90.32", "near it: .*resnet50/str-90.23"),
        ("resnet5/str-90.23", "near it: .*resnet50/str-90.23"),
        ("mobilenetv1/zzzzzzzz", "near it: .*mobilenetv1/str-89.01"),
        ("vgg16", "the networks are resnet50, mobilenetv1"),
        ("resnet50", "resnet50"),
    ],
)
def test_unknown_names_list_near_ones(name, hint):
    with pytest.raises(ValueError, match=f"nor a published budget; .*{hint}"):
        Budget.load(name)
