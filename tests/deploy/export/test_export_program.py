"""Programs of torch.export, and the drop-in inside PyTorch code."""

import warnings

import pytest
import torch
from exported_networks import Transformer, assert_equal_outputs, thin_out
from torch import nn

from softprune.deploy.export import accelerate, export, save_program


def small():
    return thin_out(
        nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5))
    )


def test_a_program_goes_out_and_comes_back(tmp_path):
    module = small()
    save_program(module, tmp_path / "net.pt2", example=torch.zeros(1, 3, 9, 9))
    again = torch.export.load(tmp_path / "net.pt2").module()
    x = torch.randn(5, 3, 9, 9)
    assert torch.equal(again(x), module(x))
    assert [p.name for p in tmp_path.iterdir()] == ["net.pt2"]


def test_the_same_module_gives_the_same_file(tmp_path):
    module = small()
    for name in ("a.spx", "b.spx"):
        export(module, tmp_path / name, example=torch.randn(1, 3, 9, 9))
    assert (tmp_path / "a.spx").read_bytes() == (tmp_path / "b.spx").read_bytes()


def test_a_program_needs_its_ending(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.pt2"):
        save_program(small(), tmp_path / "net.pt", example=torch.zeros(1, 3, 9, 9))


def fast(module, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without compiled kernels the engine says so
        return accelerate(module, x, threads=1, tune=False)


def test_an_accelerated_module_stands_in_for_its_original():
    module = small()
    whole = nn.Sequential(nn.Identity(), fast(module, torch.zeros(1, 3, 9, 9)), nn.Softmax(1))
    for batch in (1, 3):
        x = torch.randn(batch, 3, 9, 9)
        with torch.inference_mode():
            assert_equal_outputs([whole(x).numpy()], module(x).softmax(1))
    assert not list(whole.parameters()) and "1 threads" in repr(whole)


def test_what_the_original_returns_keeps_its_structure():
    module = thin_out(Transformer(side=20))
    x = torch.randn(2, 3, 20, 20)
    with torch.no_grad():
        found, expected = fast(module, x)(x), module(x)
    assert list(found) == ["class", "mean"]
    assert_equal_outputs([t.numpy() for t in found.values()], expected)


def test_a_lost_gradient_is_refused():
    stand_in = fast(nn.Linear(4, 2), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="has no gradients"):
        stand_in(torch.zeros(1, 4, requires_grad=True))
