"""What a Lightning Trainer plans: the number of its optimizer steps, and their learning rates."""

from __future__ import annotations

import math
from typing import Any

from torch.optim.lr_scheduler import LRScheduler


def count_steps(trainer: Any, pl_module: Any) -> int:
    """Optimizer steps of the whole fit; refused where nobody knows them."""
    if not pl_module.automatic_optimization:
        raise ValueError("in manual optimization only you know the number of steps: pass total_steps=")
    steps = trainer.estimated_stepping_batches
    if not 1 <= steps < math.inf:
        raise ValueError(
            f"the Trainer does not know how many optimizer steps it will make (it says {steps}): set its max_steps, or "
            "its max_epochs with a data loader that has a length, or pass total_steps="
        )
    return int(steps)


def schedule(trainer: Any) -> tuple[LRScheduler | None, int]:
    """The learning rate scheduler, and the number of optimizer steps between two of its steps."""
    configs = trainer.lr_scheduler_configs
    known = len(configs) == 1 and isinstance(configs[0].scheduler, LRScheduler)
    if not known or not trainer.lightning_module.automatic_optimization:
        return None, 1
    batches, every = trainer.num_training_batches, configs[0].frequency
    if configs[0].interval == "epoch":
        if math.isinf(batches):
            return None, 1
        every *= math.ceil(batches / trainer.accumulate_grad_batches)
    return configs[0].scheduler, every
