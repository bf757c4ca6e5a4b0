"""Augmentation of whole batches: hand-made windows, and the same for a sample in any company."""

import pytest
import torch
import torch.nn.functional as F

from softprune.train.data.augment import CropFlip, Draws, Normalise, Purpose, flipped

DRAWS = Draws(seed=1, epoch=2)


def one_by_one(images, indices, *, pad, flip):
    """The same with a loop and slices."""
    out = []
    for image, index in zip(images, indices, strict=True):
        key = index.view(1)
        row = DRAWS.integers(key, Purpose.ROW, below=2 * pad + 1).item()
        column = DRAWS.integers(key, Purpose.COLUMN, below=2 * pad + 1).item()
        height, width = image.shape[1:]
        cut = F.pad(image, (pad,) * 4)[:, row : row + height, column : column + width]
        mirrored = flip and DRAWS.integers(key, Purpose.FLIP, below=2).item() == 1
        out.append(cut.flip(2) if mirrored else cut)
    return torch.stack(out)


@pytest.mark.parametrize("shape", [(64, 3, 32, 32), (40, 1, 28, 28), (5, 2, 3, 7)])
@pytest.mark.parametrize("flip", [False, True])
def test_it_is_the_slice_of_the_padded_image(shape, flip):
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    indices = torch.randperm(1000)[: shape[0]]
    found = CropFlip(pad=4, flip=flip)(images, indices, draws=DRAWS)
    assert found.dtype == torch.uint8
    assert torch.equal(found, one_by_one(images, indices, pad=4, flip=flip))


def test_all_81_places_and_both_sides_occur():
    image = torch.arange(1, 1025, dtype=torch.int64).view(1, 1, 32, 32)
    found = CropFlip(pad=4, flip=True)(image.expand(5000, -1, -1, -1), torch.arange(5000), draws=DRAWS)
    assert len(found.flatten(1).unique(dim=0)) == 2 * 81


def test_a_sample_is_changed_alike_in_any_batch():
    images = torch.randint(0, 256, (100, 3, 32, 32), dtype=torch.uint8)
    augment = CropFlip(pad=4, flip=True)
    together = augment(images, torch.arange(100), draws=DRAWS)
    picked = torch.tensor([99, 3, 42])
    assert torch.equal(augment(images[picked], picked, draws=DRAWS), together[picked])
    assert augment(images[:0], picked[:0], draws=DRAWS).shape == (0, 3, 32, 32)


def test_flipped_reverses_the_chosen_ones_only():
    images = torch.tensor([[1, 2, 3], [4, 5, 6]]).view(2, 1, 1, 3)
    found = flipped(images, torch.tensor([0, 1]), dim=3)
    assert found.flatten().tolist() == [1, 2, 3, 6, 5, 4]


def test_normalise_by_hand():
    images = torch.tensor([0, 255, 51, 102], dtype=torch.uint8).view(1, 2, 1, 2)
    found = Normalise((0.5, 0.2), (0.25, 0.1))(images)
    # The bytes are 0 and 1 less 0.5, over 0.25; then 0.2 and 0.4 less 0.2, over 0.1.
    torch.testing.assert_close(found.flatten(), torch.tensor([-2.0, 2.0, 0.0, 2.0]), rtol=0, atol=1e-6)
    assert found.dtype == torch.float32
    assert Normalise((0.5, 0.2), (0.25, 0.1))(images[:0]).shape == (0, 2, 1, 2)
