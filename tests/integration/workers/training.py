"""What the workers share: one small network, its data, and the loop that trains it."""

import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

STEPS = 20
BATCH = 16  # of all processes together


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + F.relu(self.linear(self.norm(x)))


class Net(nn.Module):
    """No batch norm: its statistics are those of a process and not of the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 17)  # rows that two processes cannot share equally
        self.blocks = nn.ModuleList(Block(17) for _ in range(2))
        self.head = nn.Linear(17, 5)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def net(dtype=torch.float64):
    torch.manual_seed(0)
    return Net().to(dtype)


def batches(steps=STEPS, dtype=torch.float64):
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        x = torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)
        yield x.to(dtype), (x.sum(dim=1).long() % 5)


def optimizer_of(sparsifier, *, total_steps=STEPS, threshold_decay=0.05):
    groups = sparsifier.param_groups(weight_decay=1e-3, threshold_decay=threshold_decay)
    return sparsifier.attach(SGD(groups, lr=0.1, momentum=0.9), total_steps=total_steps)


def train(run, optimizer, data, *, rank=0, world=1):
    """Each process takes its rows; with averaged gradients this is one step on the whole batch."""
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(run(x[rank::world]), y[rank::world]).backward()
        optimizer.step()


def quiet():
    """One thread per process, no forecast: these runs are short on purpose."""
    from softprune.forecast.forecast import ForecastWarning

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ForecastWarning)
