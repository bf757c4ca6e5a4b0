"""The tie between optimizers and a sparsifier: one count of completed steps, and what is read at each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from softprune.core.groups import group_of
from softprune.methods.transforms import Target
from softprune.ops.threshold import PLAIN_TENSORS

# Thresholds of up to this many elements are copied at each step for `diagnose`: those per tensor and per
# filter, but not those per weight, whose copies would cost as much memory as the weights.
REMEMBERED = 1 << 16


class ThresholdSnapshot:
    """Copies of every s and dL/ds, without the loss scale, as they are when a step begins.

    It is taken at every step and seldom read, so what is alike is copied together: two copies for all thresholds of
    an ordinary model. A threshold without a gradient is left out.
    """

    def __init__(self, thresholds: Sequence[nn.Parameter], *, loss_scale: float = 1.0) -> None:
        self._owners = [s for s in thresholds if s.grad is not None]
        grads = [s.grad for s in self._owners if s.grad is not None]
        first = self._owners[0] if self._owners else None
        self._joined = first is not None and all(
            type(s) in PLAIN_TENSORS and s.device == first.device and s.dtype == first.dtype for s in self._owners
        )
        if self._joined:
            self._values = [torch.cat([s.flatten() for s in self._owners])]
            self._grads = [torch.cat([grad.flatten() for grad in grads])]
        else:
            self._values, self._grads = [s.clone() for s in self._owners], [grad.clone() for grad in grads]
        if loss_scale != 1.0:
            self._grads = [grad / loss_scale for grad in self._grads]

    def all_move(self) -> bool:
        """Whether no gradient is exactly zero; False also where one look cannot tell."""
        return self._joined and int(torch.count_nonzero(self._grads[0])) == self._grads[0].numel()

    def read(self) -> dict[nn.Parameter, tuple[Tensor, Tensor]]:
        """s and its gradient, by threshold."""
        values, grads = self._values, self._grads
        if self._joined:
            sizes = [s.numel() for s in self._owners]
            values, grads = list(values[0].split(sizes)), list(grads[0].split(sizes))
        return {s: (v.view_as(s), g.view_as(s)) for s, v, g in zip(self._owners, values, grads, strict=True)}


class StepHooks:
    """Calls `before` and `after` around each step of the training, however many optimizers make it.

    A step is complete when every attached optimizer had its turn. One whose turn is left out (GradScaler skips
    an optimizer without calling it) does not hold the others up: the step is also complete when an optimizer
    comes that has stepped already, or that came earlier in the first complete step.

    Args:
        thresholds: what is copied when a step begins.
        before: called with the factor that is still on the gradients.
        follow: whether hooks of the optimizers tell of a step; if not, `begin` and `end` do.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        thresholds: Iterable[nn.Parameter],
        *,
        before: Callable[[float], None],
        after: Callable[[], None],
        follow: bool,
    ) -> None:
        self.optimizers = tuple(optimizers)
        self.follows = follow
        self._before, self._after = before, after
        thresholds = list(thresholds)
        remembered = [s for s in thresholds if s.numel() <= REMEMBERED]
        self.watches = bool(thresholds)
        self._one_look = len(self.optimizers) == 1 and len(remembered) == len(thresholds)
        # By the index of an optimizer among them.
        self._held = [[s for s in remembered if group_of(s, [o])] for o in self.optimizers]
        self._snapshots: dict[int, ThresholdSnapshot] = {}
        self._order: list[int] = []
        self._visited: list[int] = []
        self._moved = False
        self._inside: Optimizer | None = None
        self._handles = self._hooked()

    def _hooked(self) -> list[Any]:
        return [
            handle
            for optimizer in (self.optimizers if self.follows else ())
            for handle in (
                optimizer.register_step_pre_hook(self._on_pre),
                optimizer.register_step_post_hook(self._on_post),
            )
        ]

    def __deepcopy__(self, memo: dict[int, Any]) -> StepHooks:
        # A copied optimizer has no hooks, so that its steps would go unseen.
        twin = memo[id(self)] = object.__new__(type(self))
        vars(twin).update({name: deepcopy(value, memo) for name, value in vars(self).items() if name != "_handles"})
        twin._handles = twin._hooked()
        return twin

    @property
    def seen(self) -> dict[nn.Parameter, tuple[Tensor, Tensor]]:
        """s and its gradient, free of any loss scale, as they were when the last step began.

        Later the gradient may be gone (zero_grad), or belong to another pass and still be scaled.
        """
        return {s: pair for snapshot in self._snapshots.values() for s, pair in snapshot.read().items()}

    def all_move(self) -> bool:
        """Whether every threshold is known to have a gradient in the step that begins."""
        return self._one_look and self._snapshots[0].all_move()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()

    def begin(self, optimizer: Optimizer | None) -> None:
        self._on_pre(self._stepping(optimizer), (), {})

    def end(self, optimizer: Optimizer | None) -> None:
        self._on_post(self._stepping(optimizer), (), {})

    def _stepping(self, optimizer: Optimizer | None) -> Optimizer:
        if self.follows:
            raise ValueError("the optimizers are followed by hooks already: attach(..., follow=False) leaves it to you")
        if optimizer is None and len(self.optimizers) == 1:
            return self.optimizers[0]
        if optimizer is None or optimizer not in self.optimizers:
            got = "none" if optimizer is None else f"a {type(optimizer).__name__}"
            raise ValueError(f"say which of the {len(self.optimizers)} attached optimizers steps; got {got}")
        return optimizer

    # A compiled step must not have the hooks in its graph: their counters would make it compile again every time.
    @torch._disable_dynamo  # type: ignore[attr-defined,untyped-decorator]
    def _on_pre(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        # A subclass whose step() calls that of its parent makes torch run the hooks of both.
        if optimizer is self._inside:
            return None
        self._inside = optimizer
        index = self.optimizers.index(optimizer)
        if self._begins_anew(index):
            self._complete()
        if _overflowed(optimizer):
            return None
        arguments = _with_closure_run(args, kwargs)
        with torch.no_grad():
            # A fused optimizer under GradScaler gets gradients that are still scaled.
            scale = getattr(optimizer, "grad_scale", None)
            factor = float(scale) if isinstance(scale, Tensor) else 1.0
            if self.watches:
                self._snapshots[index] = ThresholdSnapshot(self._held[index], loss_scale=factor)
            if not self._moved:
                self._before(factor)
        return arguments

    @torch._disable_dynamo  # type: ignore[attr-defined,untyped-decorator]
    def _on_post(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer is not self._inside:
            return
        self._inside = None
        self._visited.append(self.optimizers.index(optimizer))
        self._moved |= not _overflowed(optimizer)
        if len(self._visited) == len(self.optimizers):
            self._order = self._order or list(self._visited)
            self._complete()

    def _begins_anew(self, optimizer: int) -> bool:
        if optimizer in self._visited:
            return True
        known = bool(self._order and self._visited)
        return known and self._order.index(optimizer) < self._order.index(self._visited[-1])

    def _complete(self) -> None:
        moved, self._moved = self._moved, False
        self._visited.clear()
        if moved:
            with torch.no_grad():
                self._after()


def _with_closure_run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    """The arguments of `step` with its closure run already: the gradients that it makes are those of this step."""
    closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
    if closure is None:
        return None
    with torch.enable_grad():
        ready = [closure()]
    return args[:1], {**kwargs, "closure": lambda: ready.pop() if ready else closure()}


def _overflowed(optimizer: Optimizer) -> bool:
    """Whether a fused optimizer was called by GradScaler for a step that it must skip."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and bool(found)


@torch.no_grad()
def nonfinite(targets: Iterable[Target]) -> list[tuple[Target, Tensor]]:
    """The raw tensors, and those that transforms learn, with a NaN or infinite number; of a sharded one the shard.

    A sum that merely overflowed is among them too. It is one number for each tensor and one transfer for all: a sum is
    a single fast pass, and NaN or infinite if one of its terms is.
    """
    held = [(target, t.to_local() if isinstance(t, DTensor) else t) for target in targets for t in target.learnt]
    held = [(target, t.detach()) for target, t in held if t.device.type != "meta"]
    if not held:
        return []
    half = (torch.float16, torch.bfloat16)
    device = held[0][1].device
    sums = [t.sum(dtype=torch.float32 if t.dtype in half else t.dtype).to(device, torch.float32) for _, t in held]
    return [pair for pair, total in zip(held, torch.stack(sums).tolist(), strict=True) if not math.isfinite(total)]
