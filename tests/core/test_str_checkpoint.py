"""Checkpoints in the format of the authors' code, made as their code made them."""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from softprune import Budget
from softprune.core.state_file import read_str_checkpoint, write_sparse_weights
from softprune.nn import resnet20


class Payload:
    """An object that would create a file if it were unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def published(weights: dict[str, torch.Tensor], thresholds: dict[str, float], **more) -> dict:
    state = {f"module.{name}": w for name, w in weights.items()}
    state |= {f"module.{name}.sparseThreshold": torch.full((1, 1), s) for name, s in thresholds.items()}
    # The learning rate of the authors' schedule is a numpy number and ends up in the optimizer state.
    return {"epoch": 100, "arch": "ResNet50", "state_dict": state, "best_acc1": 74.3, **more}


@pytest.mark.parametrize("zipped", [False, True])
def test_weights_become_sparse_and_plain(tmp_path, zipped):
    w = torch.tensor([[-1.0, 0.2], [0.75, 2.0]])
    content = published(
        {"conv1.weight": w, "bn1.weight": torch.ones(2), "bn1.num_batches_tracked": torch.tensor(3)},
        {"conv1": 0.0},
        optimizer={"param_groups": [{"lr": np.float64(7.0e-5), "params": [0]}]},
    )
    torch.save(content, tmp_path / "model_best.pth", _use_new_zipfile_serialization=zipped)
    weights, budget = read_str_checkpoint(tmp_path / "model_best.pth")
    assert torch.equal(weights["conv1.weight"], torch.tensor([[-0.5, 0.0], [0.25, 1.5]]))
    assert set(weights) == {"conv1.weight", "bn1.weight", "bn1.num_batches_tracked"}
    assert dict(budget) == {"conv1.weight": 0.75} and budget.overall == 0.25


def test_the_result_loads_strictly_into_our_network_and_from_disk(tmp_path):
    model = resnet20()
    convolutions = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Conv2d)]
    content = published(model.state_dict(), dict.fromkeys(convolutions, -3.0))
    torch.save(content, tmp_path / "r20.pth")
    weights, budget = read_str_checkpoint(tmp_path / "r20.pth")
    resnet20().load_state_dict(weights)
    assert len(budget) == 19 and 0 < budget.overall < 1
    write_sparse_weights(weights, budget, tmp_path / "out")
    from safetensors.torch import load_file

    again = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(again[name], w) for name, w in weights.items())
    assert Budget.load(tmp_path / "out") == budget


def test_a_file_that_would_run_code_is_refused_and_does_not_run(tmp_path):
    marker = tmp_path / "ran"
    content = published({"a.weight": torch.ones(2)}, {"a": -5.0}, extra=Payload(marker))
    for zipped in (True, False):
        torch.save(content, tmp_path / "evil.pth", _use_new_zipfile_serialization=zipped)
        with pytest.raises(ValueError, match="refused"):
            read_str_checkpoint(tmp_path / "evil.pth")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(ValueError, match="damaged"):
        read_str_checkpoint(tmp_path / "plain.pkl")
    assert not marker.exists()


def test_files_that_are_something_else_are_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        read_str_checkpoint(tmp_path / "absent.pth")
    torch.save(published({"a.weight": torch.ones(2)}, {}), tmp_path / "dense.pth")
    with pytest.raises(ValueError, match="not a checkpoint of an STR model"):
        read_str_checkpoint(tmp_path / "dense.pth")
    torch.save(published({}, {"a": -5.0}), tmp_path / "orphan.pth")
    with pytest.raises(ValueError, match="no weight for a"):
        read_str_checkpoint(tmp_path / "orphan.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="holds no state dict"):
        read_str_checkpoint(tmp_path / "list.pth")


@pytest.mark.parametrize("keep", [0, 1, 10, 200, 0.5, 0.9])
@pytest.mark.parametrize("zipped", [False, True])
def test_truncated_files_are_refused(tmp_path, keep, zipped):
    buffer = io.BytesIO()
    torch.save(published({"a.weight": torch.ones(50)}, {"a": -5.0}), buffer, _use_new_zipfile_serialization=zipped)
    whole = buffer.getvalue()
    cut = keep if isinstance(keep, int) else int(keep * len(whole))
    (tmp_path / "cut.pth").write_bytes(whole[:cut])
    with pytest.raises(ValueError, match=r"cut\.pth"):
        read_str_checkpoint(tmp_path / "cut.pth")
