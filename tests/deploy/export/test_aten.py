"""Rules for the operations that the whole networks do not use, many in one module because capturing takes its time."""

import pytest
import torch
import torch.nn.functional as F
from exported_networks import assert_same, kinds, thin_out
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class Arithmetic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c, self.channels = nn.Parameter(torch.randn(5, 1)), nn.Parameter(torch.randn(3, 1, 1))

    def forward(self, x):
        outputs = [x - 2, 3 - x, x / 4, x / self.channels, -x, x**3, x.square(), x.abs(), x + self.c, x * self.channels]
        outputs += [x.clamp(-0.5, 0.25), x.clamp(min=0.1), x.clamp(max=0.2), F.hardtanh(x, 0.0, 6.0), self.c - x]
        outputs += [
            torch.sub(x, x.relu(), alpha=2),
            F.leaky_relu(x, 0.3),
            torch.add(x, self.c, alpha=0.5),
            x.sum((2, 3)),
        ]
        return tuple(outputs)


def test_arithmetic(tmp_path):
    assert_same(Arithmetic(), tmp_path / "net.spx", (3, 5, 4))


class Moves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.randn(1, 4))
        self.register_buffer("table", torch.arange(6.0).reshape(2, 3))

    def forward(self, x):
        batch = x.shape[0]
        wide = self.row.expand(batch, 4)
        return {
            "expand": x[:, :1].expand(-1, 3, -1, -1),
            "repeat": x.repeat(1, 2, 1, 3),
            "constants": torch.cat([wide, torch.ones(batch, 2), x.new_full((batch, 1), 7.0)], 1),
            "tokens": self.row.repeat(batch, 1) + 1,
            "roll": torch.roll(x, (1, -2), (2, 3)),
            "pad": F.pad(x, (1, 2, 0, 1)),
            "select": x[:, 1, :, -1],
            "steps": x[:, :, 1::2, :-1],
            "split": x.split([1, 2], dim=1)[1],
            "stack": torch.stack([x, 2 * x], dim=-1).movedim(-1, 1),
            "unbind": sum(x.unbind(3)),
            "flatten": x.flatten(2).squeeze(1).unsqueeze(0).squeeze(0),
            "folded": (self.table @ self.table.T).sum() * x,
            "table": self.table * 2,
            "same": x,
        }


def test_moves(tmp_path):
    document = assert_same(Moves(), tmp_path / "net.spx", (3, 4, 5))
    assert len(document["outputs"]) == 15


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.group, self.instance = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)
        self.plain, self.layer = nn.BatchNorm2d(4, affine=False), nn.LayerNorm((5, 6), elementwise_affine=False)
        self.conv = weight_norm(nn.Conv2d(4, 4, 2))
        self.tied = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = self.tied(self.layer(self.instance(self.group(x)) + self.plain(x)))
        pooled = F.adaptive_max_pool2d(self.tied(x), (5, 2))
        return F.adaptive_avg_pool2d(x, (None, 1)), self.conv(F.pad(x, (1, 0, 0, 2))), pooled, x.mean(-1, keepdim=True)


def test_norms_padding_and_shared_weights(tmp_path):
    document = assert_same(thin_out(Norms()), tmp_path / "net.spx", (4, 5, 6))
    # The zeros around the image are in the convolution, and the shared layer has its weight once.
    assert "concat" not in kinds(document)
    first, second = (op for op in document["ops"] if op["path"] == "tied")
    assert first["weight"] == second["weight"]


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(3, 6, 3, stride=2, padding=2, dilation=2), nn.BatchNorm1d(6), nn.ReLU(),
            nn.MaxPool1d(3, stride=1, padding=1), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(2),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x)


def test_rows_of_samples(tmp_path):
    document = assert_same(thin_out(Rows()), tmp_path / "net.spx", (3, 17))
    convolution = next(op for op in document["ops"] if op["op"] == "conv2d")
    assert convolution["activation"] == "relu" and "scale_shift" not in kinds(document)


class Bends(nn.Module):
    def forward(self, x):
        x = 6 * x
        return F.mish(x), F.elu(x), F.elu(x, 0.3), F.softplus(x), F.softplus(x, 2.0, 3.0), F.selu(x)


def test_activations_with_numbers(tmp_path):
    document = assert_same(Bends(), tmp_path / "net.spx", (3, 5, 4))
    assert set(kinds(document)) == {"mul", "mish", "elu", "softplus"}


def frames() -> nn.Module:
    layers = [nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.Mish()]
    layers += [nn.Conv2d(4, 4, 3, padding=(1, 2), padding_mode="circular"), nn.ELU(0.5)]
    layers += [nn.Conv2d(4, 4, (3, 5), padding="same", padding_mode="replicate"), nn.Softplus(2)]
    layers += [nn.ReflectionPad2d((1, 2, 0, 3)), nn.CircularPad2d((0, 1, 2, 0)), nn.ReplicationPad2d(2), nn.Flatten(2)]
    layers += [nn.Conv1d(4, 3, 3, padding=2, padding_mode="reflect"), nn.CircularPad1d(1), nn.ReplicationPad1d((0, 4))]
    return nn.Sequential(*layers)


def test_frames_of_an_images_own_pixels(tmp_path):
    document = assert_same(thin_out(frames()), tmp_path / "net.spx", (3, 7, 6))
    assert kinds(document).count("pad") == 9
    assert document["ops"][1]["op"] == "conv2d" and document["ops"][1]["activation"] == "mish"


@pytest.mark.parametrize("pads", [(1, 1, 1, 1, 1, 1), (-1, 0, 0, 0)])
def test_other_frames_are_refused(tmp_path, pads):
    class Framed(nn.Module):
        def forward(self, x):
            return F.pad(x, pads, mode="circular")

    with pytest.raises(ValueError, match=r"aten\.pad.*in mode circular is not in the format"):
        assert_same(Framed(), tmp_path / "net.spx", (3, 7, 6))


class Attentions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(8, 2, batch_first=True)
        self.other = nn.MultiheadAttention(8, 2)
        self.register_buffer("forbidden", torch.ones(5, 5, dtype=torch.bool).triu(1))

    def forward(self, x, y):
        own = self.heads(x, x, x, need_weights=False, attn_mask=self.forbidden)[0]
        cross = self.heads(x, y, y, need_weights=False)[0]
        shown, weights = self.heads(x, y, y)
        places_first = self.other(x.transpose(0, 1), y.transpose(0, 1), y.transpose(0, 1))[0].transpose(0, 1)
        causal = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        gated = F.scaled_dot_product_attention(x, y, y, attn_mask=x @ y.transpose(1, 2), scale=0.2)
        # As the library transformers does it: one mask for every sample, here one that allows everything.
        seen = (torch.arange(5)[:, None] >= 0).expand(x.shape[0], 5, 5)
        free = F.scaled_dot_product_attention(x, x, x, attn_mask=seen)
        some = (torch.arange(5)[:, None] >= torch.arange(5)).expand(x.shape[0], 5, 5)
        bound = F.scaled_dot_product_attention(x, x, x, attn_mask=some)
        return own, cross, shown, weights, places_first, causal, gated, free, bound


def test_attention_in_all_its_forms(tmp_path):
    module = thin_out(Attentions(), 0.5)
    document = assert_same(module, tmp_path / "net.spx", (5, 8), (7, 8))
    assert sum(op.get("mask") is not None for op in document["ops"]) == 3
    assert "forward" not in vars(module.heads)  # as it was


class Wide(nn.Module):
    def forward(self, x):
        return x.reshape(x.shape[0], 2, 2, 2, 2, 2, 2).flip(1)


def test_too_many_axes_and_unknown_operations_are_both_named(tmp_path):
    with pytest.raises(ValueError, match=r"(?s)7 axes.*at most 6.*aten\.flip"):
        assert_same(Wide(), tmp_path / "net.spx", (64,))


@pytest.mark.parametrize("pool", [nn.MaxPool2d, nn.AvgPool2d])
@pytest.mark.parametrize(("size", "window"), [((1, 6), (2, 2, 0)), ((1, 1), (3, 3, 0)), ((3, 1), (4, 3, 1))])
def test_with_ceil_mode_the_only_window_may_stick_out(pool, size, window, tmp_path):
    assert_same(nn.Sequential(pool(*window, ceil_mode=True)).eval(), tmp_path / "pool.spx", (3, *size))
