import torch

from softprune.nn import resnet20, resnet56


def test_sizes_are_he_et_als():
    # 0.27M and 0.85M parameters in Table 6 of He et al.; exact counts from the published checkpoints.
    assert sum(p.numel() for p in resnet20().parameters()) == 269_722
    assert sum(p.numel() for p in resnet56().parameters()) == 853_018


def test_names():
    names = {n.removesuffix(".weight") for n, p in resnet20().named_parameters() if p.dim() > 1}
    blocks = {f"layer{s}.{b}.conv{c}" for s in (1, 2, 3) for b in (0, 1, 2) for c in (1, 2)}
    assert names == {"conv1", "linear"} | blocks


def test_shortcut_takes_every_second_pixel_and_pads_channels_on_both_sides():
    block = resnet20().layer2[0].eval()
    torch.nn.init.zeros_(block.bn2.weight)  # the residual branch is off: what is left is relu(shortcut)
    x = torch.arange(16 * 4 * 4, dtype=torch.float32).reshape(1, 16, 4, 4)
    out = block(x)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert out[:, :8].abs().sum() == 0
    assert out[:, 24:].abs().sum() == 0


def test_forward_gives_one_row_per_image():
    assert resnet20(5).eval()(torch.zeros(2, 3, 40, 40)).shape == (2, 5)
