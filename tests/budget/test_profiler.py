"""Counts against formulas written by hand: each weight meets each position it is applied to once."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from softprune import profile
from softprune.budget.profiler import prunable_tensors

N, T = 3, 6  # batch and sequence length


def counted(model, *inputs, **options):
    """Rows, other and pool, on the CPU; the meta device must agree."""
    here = profile(model, inputs, **options)
    there = profile(model.to("meta"), tuple(x.to("meta") for x in inputs), **options)
    assert there == here
    return {t.name: t.macs for t in here}, here.other_macs, here.pool_macs


def numels(module, factor):
    """Every weight times ``factor`` positions."""
    return {t.name: t.parameter.numel() * factor for t in prunable_tensors(module)}


@pytest.mark.parametrize(
    ("layer", "shape", "positions"),
    [
        (nn.Conv1d(4, 6, 3), (N, 4, 10), N * 8),
        (nn.Conv2d(4, 6, 3, padding=1, stride=2), (N, 4, 8, 8), N * 4 * 4),
        (nn.Conv2d(4, 6, 3, dilation=2), (N, 4, 8, 8), N * 4 * 4),
        (nn.Conv2d(4, 6, 3, groups=2), (N, 4, 8, 8), N * 6 * 6),
        (nn.Conv2d(4, 4, 3, groups=4, bias=False), (N, 4, 8, 8), N * 6 * 6),
        (nn.Conv2d(4, 6, 3), (4, 8, 8), 6 * 6),
        (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), (N, 4, 8, 8), N * 8 * 8),
        (nn.Conv3d(4, 6, 3), (N, 4, 5, 6, 7), N * 3 * 4 * 5),
        # a transposed convolution applies its weights to every input position
        (nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2), (N, 4, 8), N * 8),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (N, 4, 8, 8), N * 8 * 8),
        (nn.ConvTranspose3d(4, 6, 3), (N, 4, 3, 3, 3), N * 27),
        (nn.Linear(4, 5), (N, 4), N),
        (nn.Linear(4, 5), (N, T, 4), N * T),
        (nn.Linear(4, 5, bias=False), (N, T, 4), N * T),
        (nn.Linear(4, 5), (4,), 1),
        (nn.Linear(4, 5, bias=False), (4,), 1),
        (nn.RNNCell(4, 5), (N, 4), N),
        (nn.LSTMCell(4, 5), (N, 4), N),
        (nn.GRUCell(4, 5), (N, 4), N),
        (nn.RNN(4, 5), (T, N, 4), T * N),
        (nn.GRU(4, 5, batch_first=True), (N, T, 4), T * N),
        (nn.LSTM(4, 5), (T, N, 4), T * N),
        (nn.LSTM(4, 5, num_layers=2, bidirectional=True), (T, N, 4), T * N),
        (nn.LSTM(4, 5, proj_size=2), (T, N, 4), T * N),
    ],
)
def test_layers(layer, shape, positions):
    macs, other, pool = counted(layer, torch.zeros(shape))
    assert macs == numels(layer, positions)
    assert (other, pool) == (0, 0)


def test_bilinear():
    layer = nn.Bilinear(4, 5, 6)
    assert counted(layer, torch.zeros(N, T, 4), torch.zeros(N, T, 5)) == ({"weight": 120 * N * T}, 0, 0)


@pytest.mark.parametrize("layer", [nn.Embedding(10, 4), nn.EmbeddingBag(10, 4)])
def test_looking_up_costs_nothing(layer):
    assert counted(layer, torch.zeros(N, T, dtype=torch.long)) == ({"weight": 0}, 0, 0)


def test_attention():
    # projections: weights x N x T; scores and their use of the values: N x T x T x width each
    x = torch.zeros(N, T, 8)
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    products = 2 * N * T * T * 8
    assert counted(layer, x, x, x) == (
        {"in_proj_weight": 192 * N * T, "out_proj.weight": 64 * N * T},
        products,
        0,
    )


def test_attention_with_other_keys():
    layer = nn.MultiheadAttention(8, 2, kdim=4, vdim=5, batch_first=True)
    macs, other, _ = counted(layer, torch.zeros(N, T, 8), torch.zeros(N, 9, 4), torch.zeros(N, 9, 5))
    assert macs == {
        "q_proj_weight": 64 * N * T,
        "k_proj_weight": 32 * N * 9,
        "v_proj_weight": 40 * N * 9,
        "out_proj.weight": 64 * N * T,
    }
    assert other == 2 * N * T * 9 * 8


def test_transformer_encoder_takes_no_fused_path():
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(block, 2)
    macs, other, _ = counted(model, torch.zeros(N, T, 8))
    assert macs == numels(model, N * T)
    assert other == 2 * 2 * N * T * T * 8


class OwnAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(x.transpose(1, 2).flatten(2))


def test_scaled_dot_product_attention_in_a_custom_module():
    # A causal mask saves nothing in a dense product: all T x T scores are counted.
    model = OwnAttention()
    assert counted(model, torch.zeros(N, T, 8)) == (numels(model, N * T), 2 * N * T * T * 8, 0)


class Functional(nn.Module):
    """Two weights used without calling their modules, one of them from the left, one after a copy."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(5, 2), nn.Linear(3, N)
        self.own = nn.Parameter(torch.zeros(2, 3))

    def forward(self, x):
        x = F.linear(x, self.a.weight) @ self.b.weight.T.contiguous()
        x = torch.einsum("ni,ij->nj", x, self.own)
        return self.c.weight @ x.T


def test_custom_modules_with_functional_products():
    model = Functional()
    macs, other, _ = counted(model, torch.zeros(N, 4))
    assert macs == {"a.weight": 20 * N, "b.weight": 10 * N, "c.weight": 9 * N}
    assert other == 6 * N
    named = profile(Functional(), torch.zeros(N, 4), tensors=["own", "b.weight"])
    assert {t.name: t.macs for t in named} == {"own": 6 * N, "b.weight": 10 * N}
    assert named.other_macs == 29 * N


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.out = nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 10)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.out(self.mix(self.mix(x)))


def test_tied_weights_have_one_row_and_each_use_costs():
    found = profile(Tied(), torch.zeros(N, T, dtype=torch.long))
    assert {t.name: t.macs for t in found} == {"embed.weight": 40 * N * T, "mix.weight": 2 * 16 * N * T}
    assert (found.params, found.other_params) == (56, 14)


def test_a_learnt_input_does_not_pay_for_the_weight_it_meets():
    class Queries(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.project = nn.Embedding(7, 4), nn.Linear(4, 5)

        def forward(self, x):
            return self.project(self.query.weight) @ x

    macs, other, _ = counted(Queries(), torch.zeros(5, 2))
    assert macs == {"query.weight": 0, "project.weight": 20 * 7}
    assert other == 7 * 5 * 2


@pytest.mark.parametrize(
    ("pool", "shape"),
    [
        (nn.AdaptiveAvgPool1d(1), (N, 4, 8)),
        (nn.AdaptiveAvgPool1d(2), (N, 4, 8)),
        (nn.AvgPool1d(2), (N, 4, 8)),
        (nn.AdaptiveAvgPool2d(1), (N, 4, 8, 6)),
        (nn.AdaptiveAvgPool2d(2), (N, 4, 8, 6)),
        (nn.AvgPool2d(2), (N, 4, 8, 6)),
        (nn.AdaptiveAvgPool3d(1), (N, 4, 8, 6, 2)),
        (nn.AvgPool3d(2), (N, 4, 8, 6, 2)),
    ],
)
def test_average_pools_count_their_input(pool, shape):
    x = torch.zeros(shape)
    model = nn.Sequential(pool, nn.Flatten(), nn.Linear(pool(x)[0].numel(), 2, bias=False))
    macs, other, counted_pool = counted(model, x)
    assert (macs, other, counted_pool) == (numels(model, N), 0, x.numel())


@pytest.mark.parametrize(("dims", "counts"), [((2, 3), True), ((-1, -2), True), ((1,), False), ((0, 2, 3), False)])
def test_a_mean_over_all_spatial_dimensions_is_a_pool(dims, counts):
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 1)

        def forward(self, x):
            return self.conv(x).mean(dims)

    assert counted(Mean(), torch.zeros(N, 2, 5, 5))[2] == (N * 4 * 25 if counts else 0)


def test_norms_biases_and_max_pools_cost_nothing():
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2))
    found = profile(model, torch.zeros(1, 2, 4, 4))
    assert (found.macs, found.pool_macs, found.params, found.other_params) == (8 * 16, 0, 8, 4 + 8 + 8)


def test_rows_follow_the_order_of_use_and_unused_come_last():
    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.spare, self.last, self.first = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.last(self.first(x))

    found = profile(Crossed(), torch.zeros(1, 2))
    assert [(t.name, t.macs) for t in found] == [("first.weight", 4), ("last.weight", 4), ("spare.weight", 0)]
    assert found.head == "last.weight"


def test_an_embedding_comes_first_although_it_costs_nothing():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
    assert profile(model, torch.zeros(1, 3, dtype=torch.long)).names == ("0.weight", "1.weight")


class Scaled(nn.Module):
    """A parametrization with a parameter of its own and a product that is no part of inference."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), 2.0))

    def forward(self, w):
        flat = w.flatten()
        return w * self.scale + torch.dot(flat, flat)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3)), (torch.zeros(N, 2, 4, 4),)),
        (nn.LSTM(4, 5, num_layers=2), (torch.zeros(T, N, 4),)),
        (nn.GRUCell(4, 5), (torch.zeros(N, 4),)),
        (nn.MultiheadAttention(8, 2), (torch.zeros(T, N, 8),) * 3),
        (nn.TransformerEncoderLayer(8, 2, 16), (torch.zeros(T, N, 8),)),
        (nn.EmbeddingBag(10, 4), (torch.zeros(N, T, dtype=torch.long),)),
    ],
)
def test_a_parametrized_model_costs_the_same(model, inputs):
    plain = profile(model, inputs)
    for entry in prunable_tensors(model):
        parametrize.register_parametrization(entry.module, entry.tensor, Scaled())
    assert profile(model, inputs) == plain
    assert profile(model.to("meta"), tuple(x.to("meta") for x in inputs)) == plain


def test_weights_of_several_originals_are_other_costs():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), nn.Linear(5, 2))
    found = profile(model, torch.zeros(N, 4))
    assert ([t.name for t in found], found.other_macs) == (["1.weight"], 20 * N)


def test_weights_in_one_storage_are_told_apart():
    flat = torch.zeros(8 + 12)
    model = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 6, bias=False))
    model[0].weight, model[1].weight = nn.Parameter(flat[:8].view(2, 4)), nn.Parameter(flat[8:].view(6, 2))
    assert counted(model, torch.zeros(N, 4))[0] == {"0.weight": 8 * N, "1.weight": 12 * N}


def test_casts_and_inference_mode_hide_nothing():
    expected = [("0.weight", 20 * N), ("1.weight", 10 * N)]
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.zeros(N, 4))
        assert [(t.name, t.macs) for t in profile(model, torch.zeros(N, 4))] == expected
    with torch.inference_mode():
        assert [(t.name, t.macs) for t in profile(model, torch.zeros(N, 4))] == expected


def test_examples_are_tensors_tuples_and_mappings():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x, *, y=None):
            return self.fc(x if y is None else y)

    assert profile(Two(), torch.zeros(1, 4)).macs == 8
    assert profile(Two(), (torch.zeros(2, 4),)).macs == 16
    assert profile(Two(), {"x": torch.zeros(2, 4), "y": torch.zeros(3, 4)}).macs == 24


def test_a_model_without_weights_is_refused():
    with pytest.raises(ValueError, match="ReLU has no prunable weights"):
        profile(nn.ReLU(), torch.zeros(1))


class Restless(nn.Module):
    """Changes buffers, replaces one, draws random numbers, and may fail."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.drop = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("last", torch.zeros(1))
        self.fail = False

    def forward(self, x):
        self.seen += 1
        self.last = x.mean().reshape(1)
        if self.fail:
            raise RuntimeError("as asked")
        return self.drop(self.bn(self.conv(x))) + torch.rand(1)


def switches():
    sdp = torch.backends.cuda
    return (
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.mkldnn.enabled,
        torch.backends.cudnn.enabled,
        (
            sdp.flash_sdp_enabled(),
            sdp.mem_efficient_sdp_enabled(),
            sdp.math_sdp_enabled(),
            sdp.cudnn_sdp_enabled(),
        ),
        torch.is_grad_enabled(),
    )


@pytest.mark.parametrize("fail", [False, True])
def test_nothing_is_left_changed(fail):
    model = Restless().train()
    model.bn.eval()
    model.fail = fail
    parametrize.register_parametrization(model.conv, "weight", Scaled())
    buffers = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    state = {name: value.clone() for name, value in model.state_dict().items()}
    before = [m.training for m in model.modules()], switches(), torch.get_rng_state()
    if fail:
        with pytest.raises(RuntimeError, match="as asked"):
            profile(model, torch.ones(1, 2, 4, 4))
    else:
        assert profile(model, torch.ones(1, 2, 4, 4)).macs == 72 * 4
    after = [m.training for m in model.modules()], switches(), torch.get_rng_state()
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])
    for name, (buffer, content) in buffers.items():
        assert model.get_buffer(name) is buffer
        assert torch.equal(buffer, content)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_profiling_does_not_disturb_a_pending_backward():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
    loss = model(torch.randn(2, 2, 5, 5)).square().sum()
    profile(model, torch.randn(1, 2, 5, 5))
    loss.backward()
    assert model[0].weight.grad is not None
