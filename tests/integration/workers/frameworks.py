"""One of two processes under other people's loops: ``frameworks.py FOLDER``, started by torchrun."""

import logging
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from softprune.adapters.accelerate import attach
from softprune.adapters.lightning import SoftpruneCallback, sparsifier_of
from softprune.core.sparsify import sparsify
from softprune.methods import STR
from softprune.train.assembly import run_and_leave
from softprune.train.data.digits import load_digits

METHOD = STR(s_init=-6.0)
EPOCHS, BATCH = 4, 16


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()


def loader(batch):
    digits = load_digits()
    return DataLoader(TensorDataset(digits.train_images[:128].double(), digits.train_labels[:128]), batch)


def sgd(sparsifier, scheduler_steps):
    groups = sparsifier.param_groups(weight_decay=1e-3, threshold_decay=0.05)
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, scheduler_steps)


def alone():
    """One process with the batches of both."""
    sparsifier, batches = sparsify(net(), METHOD), loader(2 * BATCH)
    steps = EPOCHS * len(batches)
    optimizer, scheduler = sgd(sparsifier, steps)
    sparsifier.attach(optimizer, total_steps=steps, scheduler=scheduler)
    for _ in range(EPOCHS):
        for x, y in batches:
            F.cross_entropy(sparsifier.model(x), y).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return sparsifier


class Accelerated:
    """The loop of an Accelerate user, written for one process: its scheduler has a step for each of the batches."""

    def __init__(self):
        self.accelerator = Accelerator(cpu=True)
        self.sparsifier = sparsify(net(), METHOD)
        optimizer, scheduler = sgd(self.sparsifier, EPOCHS * len(loader(BATCH)))
        prepared = self.accelerator.prepare(self.sparsifier.model, optimizer, scheduler, loader(BATCH))
        self.model, self.optimizer, self.scheduler, self.loader = prepared
        steps = EPOCHS * len(self.loader)
        attach(self.accelerator, self.sparsifier, self.optimizer, total_steps=steps, scheduler=self.scheduler)

    def train(self, epochs):
        for _ in range(epochs):
            for x, y in self.loader:
                with self.accelerator.accumulate(self.model):
                    self.accelerator.backward(F.cross_entropy(self.model(x), y))
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()


class Lit(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        optimizer, scheduler = sgd(sparsifier_of(self.trainer), self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def lightning(folder):
    callback, module = SoftpruneCallback(METHOD, submodule="net"), Lit()
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=EPOCHS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, callbacks=[callback],
        use_distributed_sampler=False,
    )  # fmt: skip
    # As Accelerate deals them out: batch by batch, in turn.
    data = loader(BATCH).dataset
    rank, batches = dist.get_rank(), list(range(len(data) // BATCH))
    order = [i for b in batches[rank::2] for i in range(b * BATCH, (b + 1) * BATCH)]
    trainer.fit(module, DataLoader(data, BATCH, sampler=order))
    return callback.sparsifier


def record(results, name, sparsifier):
    for key, t in sparsifier.model.state_dict().items():
        results[f"{name}/{key}"] = t.clone()
    for key, density in sparsifier.measure().densities.items():
        results[f"{name}/density/{key}"] = torch.tensor(density)
    for target in sparsifier.targets:
        results[f"{name}/mask/{target.name}"] = target.effective.detach() != 0
    results[f"{name}/step"] = torch.tensor([sparsifier.step, sparsifier.total_steps])
    results[f"{name}/forecast"] = torch.tensor([sparsifier.forecast.K, sparsifier.forecast.s_end], dtype=torch.double)


def main(folder):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    results = {}
    record(results, "alone", alone())
    run = Accelerated()
    run.train(EPOCHS // 2)
    run.accelerator.save_state(folder / "state")
    run.train(EPOCHS // 2)
    record(results, "accelerate", run.sparsifier)
    rank = dist.get_rank()
    resumed = Accelerated()
    resumed.accelerator.load_state(folder / "state")
    resumed.train(EPOCHS // 2)
    record(results, "accelerate resumed", resumed.sparsifier)
    record(results, "lightning", lightning(folder))
    save_file(results, folder / f"{rank}.safetensors")


if __name__ == "__main__":
    run_and_leave(lambda: main(Path(sys.argv[1])))
