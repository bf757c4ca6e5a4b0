"""What the frameworks are compared with: softprune in a loop written by hand, on the handwritten digits."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from softprune.core.sparsify import sparsify
from softprune.methods import STR
from softprune.train.data.digits import load_digits

METHOD = STR(s_init=-6.0)
DECAY = {"weight_decay": 1e-3, "threshold_decay": 0.05}
LR, MOMENTUM = 0.1, 0.9


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def samples():
    """256 digits."""
    digits = load_digits()
    return TensorDataset(digits.train_images[:256], digits.train_labels[:256])


def loader(batch=32):
    """Always in the same order."""
    return DataLoader(samples(), batch_size=batch)


def sgd(groups, steps):
    optimizer = torch.optim.SGD(groups, lr=LR, momentum=MOMENTUM)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


def train_plainly(epochs=6, *, method=METHOD, make=sgd, decay=DECAY, accumulate=1, clip=None, half=False):
    """The sparsifier after training; `clip` is the largest norm of the gradient of everything but thresholds."""
    model, batches = network(), list(loader())
    steps = epochs * -(-len(batches) // accumulate)
    sparsifier = sparsify(model, method)
    optimizer, scheduler = make(sparsifier.param_groups(**decay), steps)
    sparsifier.attach(optimizer, total_steps=steps, scheduler=scheduler)
    weights = [p for g in optimizer.param_groups if g.get("name") != "threshold" for p in g["params"]]
    for _ in range(epochs):
        for number, (x, y) in enumerate(batches, start=1):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = F.cross_entropy(model(x), y)
            (loss / accumulate).backward()
            if number % accumulate == 0 or number == len(batches):
                if clip is not None:
                    nn.utils.clip_grad_norm_(weights, clip)
                optimizer.step()
                optimizer.zero_grad()
                if scheduler is not None:
                    scheduler.step()
    return sparsifier


def assert_equal(found, wanted):
    """Two states, bit for bit."""
    assert list(found) == list(wanted)
    for name, t in wanted.items():
        torch.testing.assert_close(found[name], t, rtol=0, atol=0, msg=lambda m, name=name: f"{name}: {m}")
