"""Networks of the library transformers, small and untrained: code that was not written with this export in mind."""

import pytest
from exported_networks import assert_same, thin_out
from torch import nn

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'softprune[transformers]'")


class FirstOutput(nn.Module):
    """The tensor that the model is about."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(pixel_values=x, return_dict=False)[0]


NETWORKS = {
    "ViT": (
        {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "image_size": 16,
            "patch_size": 4,
        },
        16,
    ),
    "ConvNext": ({"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}, 64),
    "Swin": (
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 8,
            "depths": [2, 1],
            "num_heads": [1, 2],
            "window_size": 4,
        },
        32,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_the_library(tmp_path, name):
    arguments, size = NETWORKS[name]
    config = getattr(transformers, f"{name}Config")(**arguments)
    module = FirstOutput(getattr(transformers, f"{name}Model")(config).eval())
    document = assert_same(thin_out(module, 0.5), tmp_path / "net.spx", (3, size, size))
    assert any(op["path"].startswith("model.") for op in document["ops"])
