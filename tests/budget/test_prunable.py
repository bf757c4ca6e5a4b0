import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from softprune.budget.profiler import named_tensors, prunable_tensors


class Twice(nn.Module):
    def forward(self, w):
        return w * 2


@pytest.mark.parametrize(
    ("module", "tensors"),
    [
        (nn.Conv1d(2, 3, 1), ["weight"]),
        (nn.Conv2d(2, 3, 1), ["weight"]),
        (nn.Conv3d(2, 3, 1), ["weight"]),
        (nn.ConvTranspose1d(2, 3, 1), ["weight"]),
        (nn.ConvTranspose2d(2, 3, 1), ["weight"]),
        (nn.ConvTranspose3d(2, 3, 1), ["weight"]),
        (nn.Linear(2, 3), ["weight"]),
        (nn.Bilinear(2, 3, 4), ["weight"]),
        (nn.Embedding(5, 2), ["weight"]),
        (nn.EmbeddingBag(5, 2), ["weight"]),
        (nn.MultiheadAttention(4, 2), ["in_proj_weight", "out_proj.weight"]),
        (
            nn.MultiheadAttention(4, 2, kdim=3, vdim=5),
            ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"],
        ),
        (nn.RNN(2, 3), ["weight_ih_l0", "weight_hh_l0"]),
        (nn.GRU(2, 3, num_layers=2), ["weight_ih_l0", "weight_hh_l0", "weight_ih_l1", "weight_hh_l1"]),
        (nn.LSTM(2, 3, proj_size=1), ["weight_ih_l0", "weight_hh_l0", "weight_hr_l0"]),
        (
            nn.LSTM(2, 3, bidirectional=True),
            ["weight_ih_l0", "weight_hh_l0", "weight_ih_l0_reverse", "weight_hh_l0_reverse"],
        ),
        (nn.RNNCell(2, 3), ["weight_ih", "weight_hh"]),
        (nn.LSTMCell(2, 3), ["weight_ih", "weight_hh"]),
        (nn.GRUCell(2, 3), ["weight_ih", "weight_hh"]),
        (nn.BatchNorm2d(3), []),
        (nn.LayerNorm(3), []),
        (nn.PReLU(), []),
    ],
)
def test_every_module_type_plain_and_parametrized(module, tensors):
    plain = prunable_tensors(module)
    assert [t.name for t in plain] == tensors
    for entry in plain:
        assert getattr(entry.module, entry.tensor) is entry.parameter
        parametrize.register_parametrization(entry.module, entry.tensor, Twice())
    again = prunable_tensors(module)
    assert [t.name for t in again] == tensors
    for before, after in zip(plain, again, strict=True):
        assert after.parameter is after.module.parametrizations[after.tensor].original
        assert after.parameter is before.parameter


def test_subclasses_and_order():
    class MyLinear(nn.Linear):
        pass

    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Sequential(MyLinear(2, 2)))
    assert [t.name for t in prunable_tensors(model)] == ["0.weight", "2.0.weight"]


def test_tied_tensors_are_listed_under_each_name():
    model = nn.ModuleDict({"embed": nn.Embedding(5, 4), "out": nn.Linear(4, 5)})
    model["out"].weight = model["embed"].weight
    found = prunable_tensors(model)
    assert [t.name for t in found] == ["embed.weight", "out.weight"]
    assert found[0].parameter is found[1].parameter


def test_a_module_used_twice_is_one_place():
    layer = nn.Linear(2, 2)
    assert [t.name for t in prunable_tensors(nn.Sequential(layer, nn.ReLU(), layer))] == ["0.weight"]


def test_weights_that_are_no_parameter_are_left_out():
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    pruned = prune.l1_unstructured(nn.Linear(2, 3), "weight", 1)
    assert prunable_tensors(nn.Sequential(normed, pruned)) == []


def test_lazy_modules_must_be_made_first():
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet: run the model once"):
        prunable_tensors(model)
    model(torch.zeros(1, 2))
    assert [t.name for t in prunable_tensors(model)] == ["0.weight"]


def test_any_parameter_by_name():
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    found = named_tensors(model, ["1.weight", "0.bias"])
    assert [(t.name, t.tensor) for t in found] == [("1.weight", "weight"), ("0.bias", "bias")]
    with pytest.raises(ValueError, match=r"no parameter 0\.wait, 7\.weight; names are attribute paths"):
        named_tensors(model, ["0.wait", "0.weight", "7.weight"])
