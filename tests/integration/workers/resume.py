"""Trains several small models, whole or in two halves: ``resume.py FOLDER whole|first|second sgd|adamw``."""

import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim import SGD, AdamW

from softprune.core.sparsify import sparsify
from softprune.methods import STR
from softprune.ops import Sigmoid

HALF = 13  # no multiple of any interval at which something is done


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.inner = nn.Linear(16, 16)
        self.again = nn.Linear(16, 16)
        self.again.weight = self.inner.weight

    def forward(self, x):
        return self.again(self.inner(self.norm(self.encode(x)).relu()).relu())[:, :4]


def _plain():
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


# name -> (model, method, what to freeze in the middle of the first half)
CASES = {
    "plain": (_plain, STR(s_init=-4.0), None),
    "thresholds": (_plain, STR(s_init=-4.0), "thresholds"),
    "support": (_plain, STR(s_init=-4.0), "support"),
    "budget": (_plain, STR(s_init=-4.0), "budget"),
    "tied": (Tied, STR(s_init=-4.0), None),
    "global": (Tied, STR(s_init=-4.0, granularity="global"), None),
    "filter budget": (Tied, STR(s_init=-4.0, granularity="filter"), "budget"),
    "auto": (_plain, STR(s_init=-3.0, g=Sigmoid("auto"), min_keep=5), None),
}


def _batches():
    generator = torch.Generator().manual_seed(11)
    for _ in range(2 * HALF):
        yield torch.randn(16, 6, generator=generator), torch.randint(4, (16,), generator=generator)


def run(name, folder, part, kind):
    build, method, frozen = CASES[name]
    # A fresh process starts from other weights: all that counts must come from the files.
    torch.manual_seed(0 if part != "second" else 1)
    model = build()
    sparsifier = sparsify(model, method)
    groups = sparsifier.param_groups(weight_decay=1e-3, threshold_decay=0.08)
    optimizer = SGD(groups, lr=0.1, momentum=0.9) if kind == "sgd" else AdamW(groups, lr=0.02)
    sparsifier.attach(optimizer, total_steps=2 * HALF)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * HALF)
    home = folder / f"{name} {kind}"
    batches = list(_batches())
    if part == "second":
        sparsifier.load(home)
        others = torch.load(home / "others.pt")
        optimizer.load_state_dict(others["optimizer"])
        scheduler.load_state_dict(others["scheduler"])
        batches = batches[sparsifier.step :]
    for n, (x, y) in enumerate(batches):
        if part != "second" and frozen and n == 8:
            sparsifier.freeze(frozen)
        if part == "first" and n == HALF:
            sparsifier.save(home)
            torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, home / "others.pt")
            break
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    assert sparsifier.step == (HALF if part == "first" else 2 * HALF)
    densities = sparsifier.measure().densities
    assert part == "first" or any(0 < d < 1 for d in densities.values()), (name, densities)
    return {f"{name}/{key}": t.clone() for key, t in model.state_dict().items()}


def main():
    folder, part, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tensors = {}
    for name in CASES:
        tensors |= run(name, folder, part, kind)
    save_file(tensors, folder / f"{part}.safetensors")


if __name__ == "__main__":
    main()
