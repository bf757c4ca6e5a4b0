"""What cannot be exported is named before anything is written."""

import pytest
import torch
from exported_networks import thin_out
from torch import nn

import softprune
from softprune.deploy.export import export, save_compressed, save_safetensors
from softprune.deploy.export.exporting import to_graph
from softprune.structure.program import batch_of_two

X = torch.zeros(2, 4)


def test_a_managed_module_is_sent_to_bake(tmp_path):
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    softprune.sparsify(module, softprune.STR())
    for refused in (
        lambda: export(module, tmp_path / "net.spx", example=X),
        lambda: save_compressed(module, tmp_path / "net.safetensors"),
        lambda: save_safetensors(module, tmp_path / "net.safetensors"),
    ):
        with pytest.raises(ValueError, match=r"2 tensors are still managed .*0\.weight.*softprune\.bake"):
            refused()
    assert not list(tmp_path.iterdir())
    softprune.bake(module)
    assert export(module, tmp_path / "net.spx", example=X).is_file()


class Strange(nn.Module):
    def forward(self, x):
        return torch.erfinv(torch.cumsum(x, 1)) / x


def test_everything_unknown_is_named_at_once_with_its_place(tmp_path):
    module = nn.Sequential(nn.Linear(4, 3), Strange(), nn.LogSigmoid())
    with pytest.raises(ValueError) as caught:
        export(module, tmp_path / "net.spx", example=X)
    message = str(caught.value)
    for part in ("1: aten.cumsum", "1: aten.erfinv", "1: aten.div", "2: aten.log_sigmoid", "nothing was written"):
        assert part in message
    assert not list(tmp_path.iterdir())


class AlongBatch(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def test_samples_that_see_each_other_are_refused():
    with pytest.raises(ValueError, match="along the batch"):
        to_graph(AlongBatch(), X)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * 2


def test_a_network_with_a_memory_is_refused():
    with pytest.raises(ValueError, match="calls is changed by forward"):
        to_graph(Counting(), X)


def test_the_module_is_left_as_it_was():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout()).double()
    module[2].eval()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    graph = to_graph(module, X)
    assert [m.training for m in module] == [True, True, False]
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    assert [op.kind for op in graph.ops] == ["linear"]  # in eval mode, the norm inside, in single precision
    assert graph.weights["w0"].dtype == "float32"


def test_examples_are_checked():
    with pytest.raises(TypeError, match="must be a tensor, got list"):
        batch_of_two(([1.0],))
    with pytest.raises(ValueError, match=r"float32.*torch\.float64 of shape \(2, 4\)"):
        batch_of_two(X.double())
    with pytest.raises(ValueError, match="same batch size"):
        batch_of_two((X, torch.zeros(3, 4)))
    with pytest.raises(ValueError, match="the example is empty"):
        batch_of_two(())
    assert [len(x) for x in batch_of_two((X[:1], X[:1]))] == [2, 2]
    with pytest.raises(TypeError, match=r"nn\.Module is needed, got function"):
        to_graph(lambda x: x, X)


def test_paths_are_checked_before_the_work(tmp_path):
    module = thin_out(nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"must end in \.spx"):
        export(module, tmp_path / "net.bin", example=X)
    with pytest.raises(ValueError, match="no folder"):
        export(module, tmp_path / "absent" / "net.spx", example=X)


class ByValue(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class ByLength(nn.Module):
    def forward(self, x):
        return x.reshape(len(x), 2, 2)


def test_a_batch_that_becomes_a_number_is_explained():
    with pytest.raises(ValueError, match=r"len\(x\) does, x\.shape\[0\] does not"):
        to_graph(ByLength(), X)


def test_decisions_by_value_are_explained():
    with pytest.raises(ValueError, match=r"torch\.export cannot follow ByValue"):
        to_graph(ByValue(), X)
