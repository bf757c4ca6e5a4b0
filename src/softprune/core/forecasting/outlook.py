"""The forecast for a managed model: warn before training if its thresholds would not do what they should."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from softprune.core.forecasting.forecast import Forecast, forecast
from softprune.core.groups import group_of
from softprune.methods.base import Target
from softprune.methods.transforms import SoftThreshold
from softprune.ops import G

# The first weights vanish when the threshold has come to this share of its scale k: s = -10 for sigmoid.
ONSET_SHARE = 4.5397868702434395e-05


def onset_of(g: G) -> float | None:
    """The s at which the first weights vanish; None for a g of one's own that is elsewhere there."""
    onset = float(g.inverse(torch.tensor([ONSET_SHARE * g.scale], dtype=torch.float64)))
    return onset if onset < 0 else None


class ForecastWarning(UserWarning):
    """Sparsity will not come as it should with this optimizer and schedule."""


def outlook(
    targets: Sequence[Target],
    optimizers: Sequence[Optimizer],
    total_steps: int,
    scheduler: Any,
    steps_per_scheduler_step: int,
    *,
    done: int,
) -> Forecast | None:
    """The forecast of the first learnable threshold (they all start alike unless a rule says otherwise).

    Args:
        total_steps: optimizer steps of the whole training.
        done: how many of them are behind us. In a training that is continued s is on its way already, and
            nothing about its start is worth a warning.
    """
    if done >= total_steps:
        return None
    for target in targets:
        transform = target.transform
        if isinstance(transform, SoftThreshold) and transform.s.requires_grad:
            found = group_of(transform.s, optimizers)
            if found is None:
                continue
            onset = onset_of(transform.g)
            if onset is None:
                return None
            seen = forecast(
                found[0],
                s=transform.s,
                s_on=onset,
                total_steps=total_steps - done,
                scheduler=scheduler,
                steps_per_scheduler_step=steps_per_scheduler_step,
            )
            for text in () if done else seen.warnings:
                warnings.warn(text, ForecastWarning, stacklevel=3)
            return seen
    return None
