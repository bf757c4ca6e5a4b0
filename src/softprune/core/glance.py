"""Glance: s and its gradient as they are when a step begins, of all thresholds of an optimizer at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from softprune.ops.threshold import PLAIN_TENSORS


class Glance:
    """Copies of every s and dL/ds, without the loss scale.

    It is taken at every step and seldom read, so what is alike is copied together: two copies for all thresholds of
    an ordinary model.

    Args:
        thresholds: those that the optimizer moves; one without a gradient is left out.
        loss_scale: what the gradients are still multiplied by.
    """

    def __init__(self, thresholds: Sequence[nn.Parameter], *, loss_scale: float = 1.0) -> None:
        self._owners = [s for s in thresholds if s.grad is not None]
        grads = [s.grad for s in self._owners if s.grad is not None]
        first = self._owners[0] if self._owners else None
        self._joined = first is not None and all(
            type(s) in PLAIN_TENSORS and s.device == first.device and s.dtype == first.dtype for s in self._owners
        )
        if self._joined:
            self._values = [torch.cat([_flat(s) for s in self._owners])]
            self._grads = [torch.cat([_flat(grad) for grad in grads])]
        else:
            self._values, self._grads = [s.clone() for s in self._owners], [grad.clone() for grad in grads]
        if loss_scale != 1.0:
            self._grads = [grad / loss_scale for grad in self._grads]

    def all_move(self) -> bool:
        """Whether no gradient is exactly zero; False also where that cannot be told by one look."""
        return self._joined and int(torch.count_nonzero(self._grads[0])) == self._grads[0].numel()

    def read(self) -> dict[nn.Parameter, tuple[Tensor, Tensor]]:
        """s and its gradient, by threshold."""
        if not self._joined:
            pairs = zip(self._values, self._grads, strict=True)
        else:
            sizes = [s.numel() for s in self._owners]
            pairs = zip(self._values[0].split(sizes), self._grads[0].split(sizes), strict=True)
        return {s: (v.view_as(s), g.view_as(s)) for s, (v, g) in zip(self._owners, pairs, strict=True)}


def _flat(t: Tensor) -> Tensor:
    return t if t.ndim == 1 else t.flatten()
