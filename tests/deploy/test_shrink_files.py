"""Files of shrunk networks that are damaged, missing or of another network are named, and nothing is changed."""

import json
from pathlib import Path

import pytest
import torch
from shrunk_networks import Depthwise, Residual, kill, made
from torch import nn
from torch.nn.utils import parametrizations, prune

import softprune
from softprune.deploy.shrink import Recipe, Shrunk, rebuild

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))
WEIGHTS, RECIPE = "model.safetensors", "shrink.json"


def shrunk(share: float = 0.5) -> Shrunk:
    net = made(Depthwise, 1)
    kill(net, share, 1, norms=True)
    return softprune.shrink(net, X)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shrunk().save(tmp_path / "small")


def refused(folder: Path, error: type[Exception], message: str, net: nn.Module | None = None) -> None:
    net = net or Depthwise()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(error, match=message):
        rebuild(net, folder)
    after = net.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in after.items())


@pytest.mark.parametrize("name", [WEIGHTS, RECIPE])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    refused(folder, FileNotFoundError, f"there is no .*{name}: name a folder that Shrunk.save wrote")


@pytest.mark.parametrize("keep", [0, 5, 100, -4])
def test_truncated_weights_are_named(folder: Path, keep: int) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:keep])
    refused(folder, ValueError, r"model\.safetensors is damaged or no safetensors file")


@pytest.mark.parametrize("content", [b"", b'{"format": "softprune-sh', b"[1, 2]", b"\xff\xfe\x00nonsense"])
def test_a_damaged_recipe_is_named(folder: Path, content: bytes) -> None:
    (folder / RECIPE).write_bytes(content)
    refused(folder, ValueError, r"shrink\.json")


@pytest.mark.parametrize(("place", "layer"), [(6, nn.Conv2d(16, 12, 3, bias=False)), (14, nn.Linear(32, 3))])
def test_a_constructor_of_another_shape_is_refused(folder: Path, place: int, layer: nn.Module) -> None:
    other = Depthwise()
    other.body[place] = layer
    refused(folder, ValueError, "is of another network", other)


def test_another_constructor_is_refused(folder: Path) -> None:
    refused(folder, ValueError, "the recipe is of another network", Residual())


def test_a_save_that_ends_between_its_files_leaves_a_network_that_can_be_rebuilt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: Recipe, path: Path) -> Path:
        raise KeyboardInterrupt

    other = shrunk(0.3)
    monkeypatch.setattr(Recipe, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        other.save(folder)
    again = rebuild(Depthwise(), folder)
    with torch.no_grad():
        assert torch.equal(again(X), other.model(X))
    assert sorted(path.name for path in folder.iterdir()) == [WEIGHTS, RECIPE]


def test_a_save_that_ends_within_the_weights_leaves_the_old_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(model: nn.Module, file: str, **_: object) -> None:
        Path(file).write_bytes(b"half")
        raise KeyboardInterrupt

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr("softprune.deploy.shrink.save_model", killed)
    with pytest.raises(KeyboardInterrupt):
        shrunk(0.3).save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_weights_from_before_they_carried_a_recipe_are_rebuilt(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    wanted = rebuild(Depthwise(), folder)
    save_file(load_file(folder / WEIGHTS), folder / WEIGHTS)
    with torch.no_grad():
        assert torch.equal(rebuild(Depthwise(), folder)(X), wanted(X))


def test_the_recipe_is_plain_json(folder: Path) -> None:
    content = json.loads((folder / RECIPE).read_text())
    assert content["format"] == "softprune-shrink"
    assert content["layers"]["body.0"].keys() == {"inputs", "outputs", "bias"}


@pytest.mark.parametrize("computed", [parametrizations.weight_norm, lambda m: prune.l1_unstructured(m, "weight", 0.5)])
def test_a_weight_that_is_computed_is_refused(computed) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    computed(net[0])
    with pytest.raises(ValueError, match=r"the weight of 0 is computed from other tensors.*take that off first"):
        softprune.shrink(net, torch.zeros(1, 4))
