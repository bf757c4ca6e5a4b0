"""A network for `softprune train` that fails in the middle of training, on the second process alone."""

import torch.distributed as dist
from torch import nn


class Stumbling(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        self.passes = 0

    def forward(self, x):
        self.passes += 1
        if self.passes == 4 and dist.get_rank() == 1:
            raise LookupError("the second process stumbles")
        return super().forward(x)
