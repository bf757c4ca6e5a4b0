"""Samples in memory, and subsets of them."""

import pytest
import torch

from softprune.train.data.augment import CropFlip, Draws, Normalise
from softprune.train.data.source import MemorySamples, SubsetSamples, balanced

LABELS = torch.tensor([0] * 50 + [1] * 30 + [2] * 3)


def samples():
    images = torch.randint(0, 256, (83, 3, 8, 8), dtype=torch.uint8)
    return MemorySamples(images, LABELS, augment=CropFlip(2, flip=True), normalise=Normalise((0.5,) * 3, (0.2,) * 3))


def test_without_draws_nothing_is_changed_but_the_scale():
    set_ = samples()
    images, labels = set_.batch(torch.tensor([4, 80]), draws=None)
    torch.testing.assert_close(images * 0.2 + 0.5, set_.images[[4, 80]].float() / 255, rtol=0, atol=1e-6)
    assert labels.tolist() == [0, 2]


def test_floats_without_normalisation_pass_through():
    images = torch.rand(5, 1, 2, 2)
    found, _ = MemorySamples(images, torch.zeros(5, dtype=torch.int64)).batch(torch.tensor([3]), draws=Draws(0, 0))
    assert torch.equal(found[0], images[3])


@pytest.mark.parametrize(("count", "expected"), [(3, [1, 1, 1]), (9, [3, 3, 3]), (20, [9, 8, 3]), (83, [50, 30, 3])])
def test_a_subset_is_as_balanced_as_the_classes_allow(count, expected):
    chosen = balanced(LABELS, count)
    assert len(chosen.unique()) == count
    found = torch.bincount(LABELS[chosen], minlength=3)
    assert sorted(found.tolist()) == sorted(expected)
    assert found[2] == expected[2]


def test_a_smaller_subset_is_the_beginning_of_a_larger_one():
    assert torch.equal(balanced(LABELS, 40)[:7], balanced(LABELS, 7))
    assert balanced(LABELS, 6).tolist() == [7, 60, 82, 43, 58, 81]


def test_a_subset_that_cannot_be_is_refused():
    for count in (0, -1, 84):
        with pytest.raises(ValueError, match=rf"1 to 83 .* got {count}"):
            balanced(LABELS, count)


def test_a_sample_keeps_its_augmentation_in_a_subset():
    whole, draws = samples(), Draws(0, 0)
    chosen = balanced(LABELS, 10)
    part = SubsetSamples(whole, chosen)
    images, labels = part.batch(torch.tensor([2, 9]), draws=draws)
    expected_images, expected_labels = whole.batch(chosen[[2, 9]], draws=draws)
    assert torch.equal(images, expected_images)
    assert torch.equal(labels, expected_labels)
    assert torch.equal(part.labels, LABELS[chosen])
