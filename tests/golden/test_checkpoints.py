"""Trained checkpoints of the CIFAR-10 ResNets load strictly into our networks."""

import pytest
import torch
from shared_folder import shared

from softprune.nn.catalog import build


@pytest.mark.parametrize(
    ("network", "file", "parameters"),
    [("resnet20", "resnet20-12fca82f.th", 269_722), ("resnet56", "resnet56-4bfd9763.th", 853_018)],
)
def test_checkpoint_loads_strictly(network, file, parameters):
    path = shared("data", "checkpoints", file)
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    model = build(network)
    model.load_state_dict({key.removeprefix("module."): value for key, value in state.items()}, strict=True)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
