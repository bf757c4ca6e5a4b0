"""Batch norm statistics for a network whose weights have changed without training."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@torch.no_grad()
def recalibrate_bn(model: nn.Module, loader: Iterable[Any], *, batches: int | None = None) -> nn.Module:
    """Measure the running statistics of every batch norm anew, as a plain average over the batches.

    Needed after thresholds were changed by hand, after averaging weights, or after one-shot pruning; not after
    `bake()`, which changes nothing. Only batch norms are in training mode meanwhile: dropout stays off.

    Args:
        model: any module.
        loader: batches as the model's training loop gets them: a tensor, a (inputs, ...) tuple or a dict of inputs.
        batches: how many to use; None takes all.

    Returns:
        The same model.

    Raises:
        ValueError: if the model has no batch norm with running statistics, or the loader no batch.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not norms:
        raise ValueError(
            f"{type(model).__name__} has no batch norm with running statistics: there is nothing to recalibrate"
        )
    if batches is not None and batches < 1:
        raise ValueError(f"batches must be at least 1, got {batches}")
    training = {m: m.training for m in model.modules()}
    momenta = {m: m.momentum for m in norms}
    kept = {m: (m.running_mean, m.running_var, m.num_batches_tracked) for m in norms}
    before = {m: [None if t is None else t.clone() for t in tensors] for m, tensors in kept.items()}
    device = next((t.device for t in model.parameters()), torch.device("cpu"))
    seen = 0
    try:
        model.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # torch's word for a cumulative average
            norm.train()
        for batch in islice(loader, batches):
            _run(model, batch, device)
            seen += 1
        if not seen:
            raise ValueError("the loader gave no batch: pass one with data (an iterator can be read only once)")
    except BaseException:
        for norm, tensors in before.items():
            for current, old in zip(kept[norm], tensors, strict=True):
                if current is not None and old is not None:
                    current.copy_(old)
        raise
    finally:
        for module, flag in training.items():
            module.training = flag
        for norm, momentum in momenta.items():
            norm.momentum = momentum
    return model


def _run(model: nn.Module, batch: Any, device: torch.device) -> None:
    if isinstance(batch, dict):
        model(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()})
        return
    inputs = batch[0] if isinstance(batch, list | tuple) else batch
    model(inputs.to(device))
