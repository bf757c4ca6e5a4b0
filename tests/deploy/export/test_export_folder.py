"""Folders as the Hugging Face hub has them, and plain safetensors."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from softprune.deploy.export import from_pretrained, save_pretrained, save_safetensors
from softprune.nn.catalog import build


def sparse_net(**args):
    module = build("resnet20", args)
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(torch.rand_like(p) < 0.2)
    return module.eval()


def test_plain_safetensors_have_the_dense_keys(tmp_path):
    module = sparse_net()
    state = load_file(save_safetensors(module, tmp_path / "net.safetensors"))
    assert sorted(state) == sorted(module.state_dict())
    assert all(torch.equal(state[name], tensor) for name, tensor in module.state_dict().items())


def test_a_folder_makes_the_network_again(tmp_path):
    module = sparse_net(num_classes=7)
    folder = save_pretrained(module, tmp_path / "hub" / "net", network="resnet20", args={"num_classes": 7})
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    again, x = from_pretrained(folder).eval(), torch.randn(2, 3, 32, 32)
    assert torch.equal(again(x), module(x))
    config = json.loads((folder / "config.json").read_text())
    assert config["nonzeros"] == sum(int((p != 0).sum()) for p in module.parameters())


def test_own_networks_come_with_a_function(tmp_path):
    module = nn.Linear(3, 2)
    folder = save_pretrained(module, tmp_path / "net", args={"inputs": 3})
    with pytest.raises(ValueError, match=r"give make="):
        from_pretrained(folder)
    again = from_pretrained(folder, make=lambda inputs: nn.Linear(inputs, 2))
    assert torch.equal(again.weight, module.weight)
    with pytest.raises(ValueError, match="of another network"):
        from_pretrained(folder, make=lambda inputs: nn.Linear(inputs, 5))


def test_a_strangers_config_names_no_code(tmp_path):
    folder = save_pretrained(nn.Linear(3, 2), tmp_path / "net")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "network": "os:getcwd"}))
    with pytest.raises(ValueError, match=r"os:getcwd.*not softprune's"):
        from_pretrained(folder)


@pytest.mark.parametrize("args", [{"a": [1]}, {"num_classes": "ten"}, {"num_classes": -4}], ids=str)
def test_arguments_that_no_network_takes_are_refused_by_the_file(tmp_path, args):
    folder = save_pretrained(build("resnet20"), tmp_path / "net", network="resnet20")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "args": args}))
    with pytest.raises(ValueError, match=r"config\.json describes no network"):
        from_pretrained(folder)


def test_missing_and_damaged_files_are_named(tmp_path):
    folder = save_pretrained(nn.Linear(3, 2), tmp_path / "net")
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="damaged"):
        from_pretrained(folder, make=lambda: nn.Linear(3, 2))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        from_pretrained(folder, make=lambda: nn.Linear(3, 2))


def test_unknown_networks_are_refused_before_writing(tmp_path):
    with pytest.raises(ValueError, match="no network 'alexnet'"):
        save_pretrained(nn.Linear(3, 2), tmp_path / "net", network="alexnet")
    assert not list(tmp_path.iterdir())
