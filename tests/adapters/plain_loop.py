"""What the frameworks are compared with: softprune in a loop written by hand, on the handwritten digits."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from softprune import Filters, Flops, Params, Sparsity, Units, constant, profile, uniform
from softprune.core.sparsify import sparsify
from softprune.methods import GMP, SET, STR, RigL, Static
from softprune.train.data.digits import load_digits

METHOD = STR(s_init=-6.0)
DECAY = {"weight_decay": 1e-3, "threshold_decay": 0.05}
LR, MOMENTUM = 0.1, 0.9


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


EXAMPLE = torch.zeros(1, 1, 8, 8)


def a_tenth():
    """A budget that keeps 205 of the 2,048 weights of the first layer and 32 of the 320 of the second."""
    return uniform(profile(network(), EXAMPLE), Sparsity(0.9))


# A method, what it is to meet, as `sparsify` takes it, and how many weights or units are left in the end.
TOTALS = [
    pytest.param(METHOD, lambda: {"goal": Sparsity(0.9)}, 237, id="sparsity"),
    pytest.param(METHOD, lambda: {"goal": Sparsity(0.75), "schedule": constant()}, 592, id="a schedule"),
    pytest.param(GMP(every=4), lambda: {"goal": Params(500)}, 500, id="gmp"),
    pytest.param(METHOD, lambda: {"goal": Flops(400), "example": EXAMPLE}, 400, id="multiply-adds"),
    pytest.param(METHOD, lambda: {"budget": a_tenth()}, 237, id="budget"),
    pytest.param(RigL(every=4), lambda: {"budget": a_tenth(), "seed": 3}, 237, id="rigl"),
    pytest.param(SET(every=4), lambda: {"budget": a_tenth(), "seed": 3}, 237, id="set"),
    pytest.param(Static(), lambda: {"budget": a_tenth(), "seed": 3}, 237, id="static"),
    pytest.param(METHOD, lambda: {"goal": Filters(20), "units": Units.filter, "example": EXAMPLE}, 20, id="filters"),
    pytest.param(METHOD, lambda: {"goal": Sparsity(0.5), "units": Units.block(8, 8)}, 20, id="blocks"),
]


def kept(sparsifier):
    """Weights, or units, that are not zero, or that a mask lets live: SET's new ones begin at 0."""
    return sum(int(torch.count_nonzero(getattr(t.transform, "mask", t.effective))) for t in sparsifier.targets)


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


def train_plainly(epochs=6, *, method=METHOD, make=sgd, decay=DECAY, accumulate=1, clip=None, half=False, **settings):
    """The sparsifier after training; `clip` is the largest norm of the gradient of everything but thresholds."""
    model, batches = network(), list(loader())
    steps = epochs * -(-len(batches) // accumulate)
    sparsifier = sparsify(model, method, **settings)
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
