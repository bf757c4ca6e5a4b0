"""Glance: s and its gradient as they are when a step begins, of all thresholds of an optimizer at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from softprune.core.groups import check_decay, group_of, join_group
from softprune.methods.transforms import Target
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


# The tie between optimizers and a sparsifier: checks when it is made, then one count of completed steps.


# Thresholds of up to this many elements are copied at each step for `diagnose`: those per tensor and per
# filter, but not those per weight, whose copies would cost as much memory as the weights.
REMEMBERED = 1 << 16


class Attachment:
    """Calls `before` and `after` around each step of the training, however many optimizers make it.

    `before` is told the factor that is still on the gradients.

    A step is complete when every attached optimizer had its turn. One whose turn is left out (GradScaler skips
    an optimizer without calling it) does not hold the others up: the step is also complete when an optimizer
    comes that has stepped already, or that came earlier in the first complete step.

    Attributes:
        optimizers: those that are followed.
        follows: whether their hooks tell of a step; if not, `begin` and `end` do.
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
        self._at_a_glance = len(self.optimizers) == 1 and len(remembered) == len(thresholds)
        # By the place of an optimizer among them.
        self._held = [[s for s in remembered if group_of(s, [o])] for o in self.optimizers]
        self._glances: dict[int, Glance] = {}
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

    def __deepcopy__(self, memo: dict[int, Any]) -> Attachment:
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
        return {s: pair for glance in self._glances.values() for s, pair in glance.read().items()}

    @property
    def all_move(self) -> bool:
        """Whether every threshold is known to have a gradient in the step that begins."""
        return self._at_a_glance and self._glances[0].all_move()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()

    def begin(self, optimizer: Optimizer | None) -> None:
        """What the hooks do before a step."""
        self._on_pre(self._stepping(optimizer), (), {})

    def end(self, optimizer: Optimizer | None) -> None:
        """What the hooks do after a step."""
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
        place = self.optimizers.index(optimizer)
        if self._begins_anew(place):
            self._complete()
        if _overflowed(optimizer):
            return None
        arguments = _with_closure_run(args, kwargs)
        with torch.no_grad():
            # A fused optimizer under GradScaler gets gradients that are still scaled.
            scale = getattr(optimizer, "grad_scale", None)
            factor = float(scale) if isinstance(scale, Tensor) else 1.0
            self._glances[place] = Glance(self._held[place], loss_scale=factor)
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


def refuse_optimizers(optimizers: Sequence[Any], targets: Sequence[Target], total_steps: int) -> None:
    """Raise for what cannot be attached, before anything is changed."""
    if not isinstance(total_steps, int) or isinstance(total_steps, bool) or total_steps <= 0:
        raise ValueError(
            f"total_steps is the number of optimizer steps of the whole training, at least 1; got {total_steps!r}"
        )
    if not optimizers:
        raise ValueError("attach() needs at least one optimizer")
    if len({id(o) for o in optimizers}) < len(optimizers):
        raise ValueError("attach() was given the same optimizer twice")
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        # A wrapper may pose as an Optimizer, but torch runs hooks only for those that it has set up itself.
        if not isinstance(optimizer, Optimizer) or "_optimizer_step_pre_hooks" not in vars(optimizer):
            raise TypeError(f"attach() takes torch optimizers, got {kind}; for a wrapper pass the optimizer inside it")
        if isinstance(optimizer, LBFGS):
            raise ValueError(
                "LBFGS evaluates the loss many times inside one step, so there is no moment at which thresholds could "
                "be updated: use SGD or AdamW"
            )
    for target in targets:
        raw = target.raw
        _refuse_hooked(target.name, raw)
        holders = [o for o in optimizers if group_of(raw, [o])]
        if len(holders) > 1:
            raise ValueError(f"{target.name} is in {len(holders)} of the attached optimizers; keep it in one")
        if not holders and raw.requires_grad:
            raise ValueError(
                f"{target.name} is in none of the attached optimizers: build them from param_groups() or "
                "model.parameters() of this model, or freeze it (requires_grad_(False)) before sparsify"
            )


def _refuse_hooked(name: str, parameter: nn.Parameter) -> None:
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None)
    if hooks or getattr(parameter, "_in_backward_optimizers", None):
        raise ValueError(
            f"{name} is stepped inside backward (optimizer-in-backward, or a post-accumulate-grad hook): there "
            "is no single step to attach to; use one optimizer and call its step() after backward"
        )


@contextmanager
def unchanged_on_error(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Give the optimizers their parameter groups back if the block raises."""
    kept = [
        [(group, list(group["params"]), list(group.get("param_names", ()))) for group in optimizer.param_groups]
        for optimizer in optimizers
    ]
    try:
        yield
    except BaseException:
        for optimizer, groups in zip(optimizers, kept, strict=True):
            optimizer.param_groups[:] = [group for group, _, _ in groups]
            for group, params, names in groups:
                group["params"][:] = params
                if "param_names" in group:
                    group["param_names"][:] = names
        raise


def place_undecayed(
    parameters: Mapping[nn.Parameter, tuple[str, nn.Parameter]], optimizers: Sequence[Optimizer]
) -> None:
    """See that every other parameter of a method (mapped like thresholds) is trained and not decayed."""
    for parameter, (name, weight) in parameters.items():
        _refuse_hooked(name, parameter)
        if not any(group_of(parameter, [o]) for o in optimizers):
            join_group(parameter, name, weight, optimizers, 0.0, group_name="undecayed")
        found = group_of(parameter, optimizers)
        assert found is not None
        optimizer, group = found
        if group.get("weight_decay", 0.0) != 0.0:
            raise ValueError(
                f"{name} is in a group of {type(optimizer).__name__} with weight_decay {group['weight_decay']:g}, "
                "which would drive it to 0: build the optimizer from param_groups()"
            )


def place_thresholds(
    thresholds: Mapping[nn.Parameter, tuple[str, nn.Parameter]],
    optimizers: Sequence[Optimizer],
    decay: float | None,
) -> None:
    """See that every threshold (mapped to its name and a weight it acts on) is trained and decayed.

    Raises:
        ValueError: if s would get no decay: then it never moves and nothing becomes sparse.
    """
    if decay is not None:
        check_decay("threshold_decay", decay)
    for s, (name, weight) in thresholds.items():
        _refuse_hooked(name, s)
        holders = [o for o in optimizers if group_of(s, [o])]
        if len(holders) > 1:
            raise ValueError(f"{name} is in {len(holders)} of the attached optimizers; keep it in one")
        if not holders:
            join_group(s, name, weight, optimizers, decay)
        found = group_of(s, optimizers)
        assert found is not None
        optimizer, group = found
        if not group.get("weight_decay", 0.0) > 0:
            raise ValueError(
                f"the thresholds are in a group of {type(optimizer).__name__} with weight_decay "
                f"{group.get('weight_decay', 0.0)}: s would never move. A rule such as 'no decay for one-dimensional "
                "parameters' catches them; build the optimizer from param_groups(), or pass threshold_decay > 0"
            )
        if decay is not None and group["weight_decay"] != decay:
            raise ValueError(
                f"threshold_decay={decay:g} was asked for, but the thresholds are already in a group with weight_decay "
                f"{group['weight_decay']:g}: say it once"
            )
