"""Adapters say what to install, Lightning works under both of its names, and the package imports none of them."""

import importlib.util
import subprocess
import sys

import pytest
import torch
from plain_loop import METHOD, loader, network

ADAPTERS = importlib.util.find_spec("softprune.adapters").submodule_search_locations[0]


def load_anew(name):
    """The adapter as a program would import it for the first time."""
    spec = importlib.util.spec_from_file_location(f"{name}_anew", f"{ADAPTERS}/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("adapter", "packages"),
    [
        ("lightning", ["lightning.pytorch", "pytorch_lightning"]),
        ("transformers", ["transformers"]),
        ("accelerate", ["accelerate.accelerator"]),
    ],
)
def test_a_missing_framework_is_named_with_its_extra(adapter, packages, monkeypatch):
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'softprune\[{adapter}\]'"):
        load_anew(adapter)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lightning_works_under_its_other_name(monkeypatch, tmp_path):
    pl = pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")
    monkeypatch.delitem(sys.modules, "lightning.pytorch", raising=False)
    adapter = load_anew("lightning")
    assert issubclass(adapter.SoftpruneCallback, pl.Callback)

    class Classifier(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, batch_idx):
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, weight_decay=0.1)

    module, callback = Classifier(), adapter.SoftpruneCallback(METHOD, bake=True)
    pl.Trainer(
        max_steps=10, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=[callback],
    ).fit(module, loader())  # fmt: skip
    assert callback.sparsifier.step == 10
    assert type(module.net[1]) is torch.nn.Linear
    assert 0 < int((module.net[1].weight == 0).sum()) < module.net[1].weight.numel()


def test_importing_the_package_imports_no_framework():
    heavy = ("torch", "lightning", "pytorch_lightning", "transformers", "accelerate")
    code = f"import sys, softprune, softprune.adapters; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
