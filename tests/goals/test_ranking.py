"""The largest scores over all tensors: exactly as many as asked for, whatever they are."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softprune.goals.select import keep_largest


def places(masks):
    return {name: mask.int().tolist() for name, mask in masks.items()}


def test_tensors_are_compared_with_each_other():
    scores = {"a": torch.tensor([0.1, 0.9, 0.3]), "b": torch.tensor([0.8, 0.2])}
    assert places(keep_largest(scores, 3)) == {"a": [0, 1, 1], "b": [1, 0]}
    assert torch.equal(scores["a"], torch.tensor([0.1, 0.9, 0.3])), "scores are left alone"


def test_equal_scores_and_zeros_go_in_order():
    scores = {"a": torch.tensor([0.0, 2.0, 0.0]), "b": torch.tensor([2.0, 0.0])}
    assert places(keep_largest(scores, 1)) == {"a": [0, 1, 0], "b": [0, 0]}
    assert places(keep_largest(scores, 4)) == {"a": [1, 1, 1], "b": [1, 0]}
    assert places(keep_largest({"a": torch.zeros(3), "b": torch.zeros(2)}, 4)) == {"a": [1, 1, 1], "b": [1, 0]}


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=12), st.integers(0, 12))
def test_the_number_is_exact_and_no_larger_score_is_left_out(values, total):
    scores = {"a": torch.tensor(values[:1]).float(), "b": torch.tensor(values[1:]).float()}
    masks = keep_largest(scores, total)
    kept = torch.cat([masks["a"], masks["b"]])
    together = torch.tensor(values).float()
    assert int(kept.sum()) == min(total, len(values))
    if kept.any() and not kept.all():
        assert together[kept].min() >= together[~kept].max()
