"""A FastGRNN classifier leaves as a file of the engine, its steps one after the other."""

import numpy as np
import pytest
import torch

from softprune.deploy.engine import load
from softprune.deploy.export import export
from softprune.nn import FastGRNNClassifier


@pytest.mark.parametrize("options", [{}, {"rank_w": 3, "rank_u": 4, "gate": "tanh"}, {"learned": True}])
def test_the_engine_gives_what_the_model_gives(tmp_path, options):
    model = FastGRNNClassifier(5, 12, classes=3, **options).eval()
    export(model, tmp_path / "model.spx", example=torch.zeros(1, 8, 5))
    engine = load(tmp_path / "model.spx", threads=1, tune=False)
    for batch in (1, 3, 16):
        x = torch.randn(batch, 8, 5)
        with torch.no_grad():
            expected = model(x).numpy()
        assert np.abs(engine(x.numpy()) - expected).max() <= 1e-4 * np.abs(expected).max()
