"""Random changes of sequences: what they do, and that nothing but seed, epoch and sample decides them."""

import math

import pytest
import torch

from softprune.train.data import open_data
from softprune.train.data.augment import Distortions, Draws, Rotation, Shift
from softprune.train.data.source import Sequences, normalised

DRAWS = Draws(seed=3, epoch=1)
INDICES = torch.arange(40)


def test_a_rotation_turns_all_triples_of_a_window_alike_and_by_no_more_than_allowed():
    eye = torch.eye(3).repeat(40, 1, 2)  # three steps: the axes, as two triples
    turned = Rotation(30)(eye, INDICES, draws=DRAWS)
    assert torch.equal(turned[..., :3], turned[..., 3:])
    matrices = turned[..., :3].transpose(1, 2)
    torch.testing.assert_close(matrices @ matrices.transpose(1, 2), torch.eye(3).expand(40, 3, 3), rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.linalg.det(matrices), torch.ones(40), rtol=0, atol=1e-6)
    degrees = torch.rad2deg(torch.acos((matrices.diagonal(dim1=1, dim2=2).sum(1) - 1) / 2))
    assert degrees.max() <= 30.01 and degrees.max() > 20 and degrees.min() < 10
    by_hand = torch.tensor([[[1.0, 2.0, 3.0]]])
    assert by_hand.norm().item() == pytest.approx(Rotation(180)(by_hand, INDICES[:1], draws=DRAWS).norm().item())


def test_a_rotation_about_the_vertical_axis_by_hand(monkeypatch):
    # The height 1 is the z axis; a quarter turn takes x to y.
    monkeypatch.setattr(Draws, "floats", lambda self, indices, purpose: torch.full(indices.shape, 1.0).double())
    turned = Rotation(90)(torch.tensor([[[1.0, 0.0, 5.0]]]), torch.tensor([0]), draws=DRAWS)
    torch.testing.assert_close(turned, torch.tensor([[[0.0, 1.0, 5.0]]]), rtol=0, atol=1e-6)


def test_a_shift_moves_in_time_and_repeats_the_ends():
    steps = torch.arange(10.0).view(1, 10, 1).repeat(40, 1, 2)
    moved = Shift(2)(steps, INDICES, draws=DRAWS)[..., 0]
    by = (4 - moved[:, 4]).long()
    assert set(by.tolist()) == {-2, -1, 0, 1, 2}
    for row, offset in zip(moved, by.tolist(), strict=True):
        assert row.tolist() == [float(min(9, max(0, t - offset))) for t in range(10)]


@pytest.mark.parametrize("change", [Rotation(40), Shift(5), Distortions((Rotation(40), Shift(5)))])
def test_a_sample_is_changed_alike_in_any_batch_and_otherwise_in_another_epoch(change):
    values = torch.randn(40, 16, 6, generator=torch.Generator().manual_seed(0))
    whole = change(values, INDICES, draws=DRAWS)
    assert torch.equal(change(values[[7, 3]], torch.tensor([7, 3]), draws=DRAWS), whole[[7, 3]])
    assert not torch.equal(change(values, INDICES, draws=Draws(seed=3, epoch=2)), whole)
    assert change(values[:0], INDICES[:0], draws=DRAWS).shape == (0, 16, 6)


def test_training_sequences_are_changed_before_they_are_normalised_and_test_sequences_never():
    values = torch.randn(12, 8, 3, generator=torch.Generator().manual_seed(0)) * 3 + 5
    part = Sequences(values, torch.zeros(12, dtype=torch.int64))
    plain, test = normalised(part, part)
    train, same = normalised(part, part, Rotation(45))
    assert torch.equal(same.images, test.images)
    indices = torch.arange(12)
    torch.testing.assert_close(train.batch(indices, draws=None)[0], plain.images)
    mean, std = values.double().mean(0), values.double().std(0, correction=0)
    expected = (Rotation(45)(values, indices, draws=DRAWS) - mean) / std
    torch.testing.assert_close(train.batch(indices, draws=DRAWS)[0], expected.float())


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("har2", {"rotate": 200}, "rotate is 0 to 180 degrees; got 200"),
        ("har2", {"rotate": -1}, "rotate is 0 to 180 degrees; got -1"),
        ("har2", {"shift": -1}, "shift is 0 or more steps; got -1"),
        ("google12", {"rotate": 10}, "rotate=10 has no effect with google12, only with har2$"),
        ("digits", {"shift": 2}, "shift=2 has no effect with digits, only with har2 and google12"),
    ],
)
def test_changes_that_do_not_suit_the_data_are_refused(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        open_data(name, **arguments)


def test_the_angle_is_spread_evenly():
    matrices = Rotation(60)._matrices(torch.arange(4000), DRAWS)
    angles = torch.acos(((matrices.diagonal(dim1=1, dim2=2).sum(1) - 1) / 2).clamp(-1, 1))
    # Uniform between 0 and 60 degrees: the mean is 30, its standard error 60 / sqrt(12 * 4000) = 0.27.
    assert math.degrees(angles.mean()) == pytest.approx(30, abs=1.5)
