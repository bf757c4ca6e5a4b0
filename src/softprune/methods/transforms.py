"""Managed tensors, and the maps from the raw tensor to the one that the network uses.

The threshold of a `SoftThreshold` is learnt, that of a `HeldThreshold` keeps a number of weights, and those of
`SolvedThreshold` and `SolvedMask` are solved for. Masks that stay, or that methods move, are in masks.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from softprune.ops import Backward, G, masked, power_shrink, shrink, soft_threshold


@dataclass(frozen=True, eq=False)
class Target:
    """One managed tensor."""

    name: str  # its attribute path, the key in budgets, reports and checkpoints
    sites: tuple[tuple[nn.Module, str], ...]  # every (module, attribute) that reads it: several where weights are tied

    @property
    def module(self) -> nn.Module:
        return self.sites[0][0]

    @property
    def tensor(self) -> str:
        return self.sites[0][1]

    @property
    def managed(self) -> bool:
        return self.tensor not in self.module._parameters

    @property
    def shape(self) -> torch.Size:
        """Known also for a weight that something else computes from several tensors or keeps beside its own."""
        if not self.managed:
            return self.raw.shape
        module, tensor = self.sites[0]
        lists = module._modules.get("parametrizations")
        original = lists[tensor]._parameters.get("original") if lists is not None and tensor in lists else None  # type: ignore[operator,index]
        return (self.effective if original is None else original).shape

    @property
    def raw(self) -> nn.Parameter:
        """The Parameter that the optimizer moves; looked up anew, since sharding may replace it."""
        module, tensor = self.sites[0]
        if tensor in module._parameters:
            return module._parameters[tensor]  # type: ignore[return-value]
        return module.parametrizations[tensor].original  # type: ignore[index,union-attr,return-value]

    @property
    def transform(self) -> Transform:
        module, tensor = self.sites[0]
        return module.parametrizations[tensor][0]  # type: ignore[index,return-value]

    @property
    def learnt(self) -> list[nn.Parameter]:
        """The raw tensor and what its transform learns; of a tensor that is not managed, itself."""
        return [self.raw, *self.transform.parameters()] if self.managed else [self.raw]

    @property
    def effective(self) -> Tensor:
        """What the network uses, without gradient: a method that trains with noise has none here."""
        with torch.no_grad():
            return getattr(self.module, self.tensor)


class Transform(nn.Module):
    """raw -> effective, of the same shape and dtype. Its floating point tensors stay float32 in a half-precision model.

    `first` maps the name of a tensor of its own to the number that fills it at the beginning; a subclass whose tensors
    do not begin like that must be made from weights that are there.
    """

    # What it holds fixed: nothing, how many weights are kept, or which ones.
    fixes: ClassVar[Literal["nothing", "budget", "support"]] = "nothing"
    # Whether it keeps a definite number of weights, which `freeze("budget")` can hold.
    countable: ClassVar[bool] = True
    # Whether weight decay acts on its parameters.
    decayed: ClassVar[bool] = True

    # The fraction of the gradient that pruned weights receive, of one element, where it changes during the training.
    leak: Tensor | None

    def __init__(self, backward: Backward = masked, device: torch.device | None = None) -> None:
        super().__init__()
        self.backward_mode = backward
        self.first: dict[str, float] = {} if backward.until is None else {"leak": backward.leak}
        self.register_buffer("leak", torch.full((1,), backward.leak, device=device) if self.first else None)

    @abstractmethod
    def forward(self, w: Tensor) -> Tensor: ...

    def raw_for(self, effective: Tensor) -> Tensor:
        """A raw tensor that this transform maps to `effective`: what an assignment to the weight stores."""
        return effective

    def after_step_(self, w: Tensor, progress: float) -> None:
        """Follow the training: called with the raw weights after every step, before the method's own hook."""
        mode = self.backward_mode
        if self.leak is not None and mode.until is not None:
            self.leak.fill_(mode.leak * max(0.0, 1.0 - progress / mode.until))

    def settle_(self, w: Tensor) -> None:
        """Bring the state in line with the raw weights as they are now."""

    def support(self, effective: Tensor) -> Tensor:
        """The weights that a fixed support would keep, as bools."""
        return effective != 0

    def held(self, w: Tensor) -> Transform | None:
        """A transform that goes on keeping as many of these raw weights as now; None where this one does so already."""
        return None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Fill the tensors of its own with their first values, as torch's layers do after `to_empty`."""
        for name, value in self.first.items():
            getattr(self, name).fill_(value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Transform:  # noqa: FBT001, FBT002
        def keep_wide(t: Tensor) -> Tensor:
            moved = fn(t)
            narrow = moved.is_floating_point() and moved.dtype not in (torch.float32, torch.float64)
            return t.to(moved.device) if narrow else moved

        on_meta = self._on_meta()
        super()._apply(keep_wide, recurse)
        if on_meta and not self._on_meta():
            # to_empty leaves memory as it happens to be. Not every way to give weights their values asks all modules.
            self.reset_parameters()
        return self

    def _on_meta(self) -> bool:
        return any(t.device.type == "meta" for t in (*self.parameters(), *self.buffers()))


def threshold_dtype(w: Tensor) -> torch.dtype:
    """float32 at least: in bfloat16 an s of -3200 has a spacing of 16 and never moves."""
    return torch.float64 if w.dtype == torch.float64 else torch.float32


class Shrinking(Transform):
    """``sign(w) * (|w|^p - alpha^p)^(1/p)`` above alpha, else 0; with p = 1 a soft threshold.

    The derivative is that of the identity for weights that live, and `backward.leak` of it for the others. With
    `rescale` every filter is multiplied to make up for the size that shrinking took (ST-3).
    """

    def __init__(self, backward: Backward, device: torch.device, *, power: float = 1.0, rescale: bool = False) -> None:
        super().__init__(backward, device)
        self.power, self.rescale = power, rescale

    @property
    @abstractmethod
    def in_use(self) -> Tensor:
        """The threshold alpha that the network uses now, without gradient."""

    def forward(self, w: Tensor) -> Tensor:
        alpha = self.in_use
        if self.power != 1.0:
            return power_shrink(w, alpha, self.power, backward=self.backward_mode)
        shrunk = shrink(w, alpha, backward=self.backward_mode, leak=self.leak)
        return _rescaled(w, shrunk, alpha) if self.rescale else shrunk

    def raw_for(self, effective: Tensor) -> Tensor:
        alpha = self.in_use
        if self.power == 1.0:
            return effective + effective.sign() * alpha.to(effective.dtype)
        size = (effective.abs() ** self.power + alpha**self.power) ** (1 / self.power)
        return torch.where(effective == 0, 0.0, effective.sign() * size).to(effective.dtype)

    @torch.no_grad()
    def held(self, w: Tensor) -> Transform | None:
        kept = int(torch.count_nonzero(self(w)))
        held = HeldThreshold(self.in_use, kept, backward=self.backward_mode, rescale=self.rescale, power=self.power)
        if held.leak is not None and self.leak is not None:
            held.leak.copy_(self.leak)
        return held


def _rescaled(w: Tensor, shrunk: Tensor, alpha: Tensor) -> Tensor:
    """Every filter multiplied to make up for the size that shrinking took (ST-3); the derivative is that of `shrunk`.

    Passing the factor on to the gradient too would multiply the steps of nearly empty filters by up to a hundred.
    """
    with torch.no_grad():
        rest = tuple(range(1, w.ndim))
        share = (w.abs() * (shrunk != 0)).mean(rest, keepdim=True) / (w.abs().mean(rest, keepdim=True) + 1e-6)
        # Without a threshold nothing was taken; the factor would be 1 but for rounding.
        added = torch.where(alpha == 0, 0.0, shrunk * (1.01 / (0.01 + share) - 1))
    return shrunk + added


class SoftThreshold(Shrinking):
    """``sign(w) * relu(|w| - g(s))`` with a learnable s.

    State: the parameter ``s``, of a shape that broadcasts to that of w and has at least one dimension; and ``leak``.
    """

    def __init__(
        self, s: nn.Parameter, g: G, *, backward: Backward = masked, first: float | None = None, min_keep: int = 0
    ) -> None:
        super().__init__(backward, s.device)
        self.s, self.g, self.min_keep = s, g, min_keep
        if first is not None:
            self.first["s"] = first

    def forward(self, w: Tensor) -> Tensor:
        return soft_threshold(w, self.s, self.g, backward=self.backward_mode, leak=self.leak)

    @property
    def alpha(self) -> Tensor:
        """The threshold g(s), without gradient."""
        return self.g(self.s.detach())

    in_use = alpha

    def after_step_(self, w: Tensor, progress: float) -> None:
        super().after_step_(w, progress)
        if self.min_keep:
            self.keep_at_least_(w, self.min_keep)

    @torch.no_grad()
    def keep_at_least_(self, w: Tensor, count: int) -> bool:
        """Lower s if needed until `count` weights (or all nonzero ones) survive; returns whether it was lowered.

        A weight survives if |w| / alpha > 1. If the count-th largest of these ratios is r <= 1, every threshold
        of the tensor is multiplied by just less than r: their proportions stay.
        """
        if int(torch.count_nonzero(self(w))) >= min(count, w.numel()):
            return False
        wanted = min(count, int(torch.count_nonzero(w)))
        alpha = self.alpha.clamp_max(torch.finfo(self.s.dtype).max).double()
        if wanted == 0 or not bool(alpha.any()):
            return False
        ratios = (w.double().abs() / alpha).nan_to_num(nan=0.0).flatten()
        ratio = torch.topk(ratios, wanted).values[-1].clamp_max(1.0)
        # Small enough to be no threshold, large enough that g.inverse is finite.
        floor = torch.finfo(self.s.dtype).tiny * max(1.0, self.g.scale)
        step = torch.finfo(self.s.dtype).eps
        # Going through g and back rounds: go on in doubling steps until the count is there.
        for _ in range(64):
            lower = (alpha * ratio * (1.0 - min(step, 1.0))).clamp_min(floor)
            self.s.copy_(torch.minimum(self.s, self.g.inverse(lower).to(self.s.dtype)))
            if int(torch.count_nonzero(self(w))) >= wanted:
                break
            step *= 2
        return True

    def extra_repr(self) -> str:
        return f"s={tuple(self.s.shape)}, g={self.g}, backward={self.backward_mode}"


class HeldThreshold(Shrinking):
    """The threshold that keeps a given number of weights: s no longer learns, alpha follows the weights.

    State: buffers ``alpha`` (as the s it came from) and ``kept``, the number of weights to keep; and ``leak``.
    """

    fixes = "budget"

    alpha: Tensor
    kept: Tensor

    def __init__(
        self, alpha: Tensor, kept: int, *, backward: Backward = masked, rescale: bool = False, power: float = 1.0
    ) -> None:
        super().__init__(backward, alpha.device, power=power, rescale=rescale)
        self.register_buffer("alpha", alpha.detach().clone())
        self.register_buffer("kept", torch.tensor(kept, device=alpha.device))

    @property
    def in_use(self) -> Tensor:
        return self.alpha

    def held(self, w: Tensor) -> None:
        return None

    @torch.no_grad()
    def settle_(self, w: Tensor) -> None:
        """Move alpha, unless `kept` weights survive already, so that they do (fewer with equal ones at the border)."""
        if int(torch.count_nonzero(self(w))) == int(self.kept):
            return
        pruned = w.numel() - int(self.kept)
        size = w.abs().to(self.alpha.dtype)
        if pruned <= 0:
            self.alpha.zero_()
        elif self.alpha.numel() == 1:
            # The largest weight that goes: exactly those above it stay.
            self.alpha.fill_(torch.kthvalue(size.flatten(), pruned).values)
        else:
            # All thresholds move by the margin of the last weight that goes. In float64 this is exact, and rounding
            # back to alpha's dtype cannot put a weight that goes above its threshold again.
            alpha = self.alpha.double()
            margin = torch.kthvalue((size.double() - alpha).flatten(), pruned).values
            self.alpha.copy_((alpha + margin).clamp_min_(0.0))


class Solved(Transform):
    """A transform whose threshold ``alpha = exp(s + c)`` is solved for, c such that a total is met exactly.

    State: buffers of the shape of s. ``s`` (NaN until the first weight goes) and ``alpha``; for learning s a running
    average of its gradient (``pull``) and of its square (``force``); ``crossing``, the weights that a moving threshold
    would meet per unit of log alpha. And ``observed``, the number of gradients in the averages. Where the network uses
    a fraction of alpha during the training: ``rise``, from 0 to 1.
    """

    s: Tensor
    alpha: Tensor
    pull: Tensor
    force: Tensor
    crossing: Tensor
    observed: Tensor
    rise: Tensor | None

    def _begin_solution(self, w: Tensor, shape: tuple[int, ...] = (1,), *, rises: bool = False) -> None:
        dtype = threshold_dtype(w)
        first = {"s": float("nan"), "alpha": 0.0, "pull": 0.0, "force": 0.0, "crossing": 0.0}
        for name, value in first.items():
            self.register_buffer(name, torch.full(shape, value, dtype=dtype, device=w.device))
        self.register_buffer("observed", torch.zeros((), dtype=torch.int64, device=w.device))
        self.register_buffer("rise", torch.zeros(1, dtype=dtype, device=w.device) if rises else None)
        self.first |= first | {"observed": 0} | ({"rise": 0.0} if rises else {})

    @property
    def in_use(self) -> Tensor:
        """The threshold that the network uses."""
        return self.alpha if self.rise is None else self.alpha * self.rise

    def scores(self, w: Tensor) -> Tensor:
        """What the solver ranks by its absolute value: the raw weights themselves, or a copy that it may change."""
        return w

    def take_(self, alpha: Tensor, crossing: Tensor, w: Tensor) -> None:
        """Adopt the solution for these scores."""
        self.alpha.copy_(alpha)
        self.crossing.copy_(crossing)

    def extra_repr(self) -> str:
        return f"s={tuple(self.s.shape)}, backward={self.backward_mode}"


class SolvedThreshold(Solved, Shrinking):
    """Shrinking by an alpha that is solved for; with `rises` the network uses ``alpha * rise``, set by the method."""

    def __init__(
        self,
        w: Tensor,
        shape: tuple[int, ...] = (1,),
        *,
        backward: Backward = masked,
        power: float = 1.0,
        rescale: bool = False,
        rises: bool = False,
    ) -> None:
        super().__init__(backward, w.device, power=power, rescale=rescale)
        self._begin_solution(w, shape, rises=rises)


class SolvedMask(Solved):
    """A hard threshold whose mask is fixed from one solution to the next: ``w`` where ``|w| > alpha`` was, else 0.

    A nested mask only ever loses weights: the next one is a part of it.

    State: that of `Solved`, and the bool buffer ``mask``.
    """

    mask: Tensor

    def __init__(self, w: Tensor, *, backward: Backward = masked, nested: bool = False) -> None:
        super().__init__(backward, w.device)
        self._begin_solution(w)
        self.register_buffer("mask", torch.ones_like(w, dtype=torch.bool))
        self.first["mask"] = True
        self.nested = nested

    def forward(self, w: Tensor) -> Tensor:
        kept, leak = torch.where(self.mask, w, 0.0), self.backward_mode.leak
        # Adds exactly 0 to the value, and `leak` to the derivative of a pruned weight.
        return kept + torch.where(self.mask, 0.0, leak * (w - w.detach())) if leak else kept

    def scores(self, w: Tensor) -> Tensor:
        return torch.where(self.mask, w, 0.0) if self.nested else w

    def take_(self, alpha: Tensor, crossing: Tensor, w: Tensor) -> None:
        super().take_(alpha, crossing, w)
        self.mask.copy_(above(w, alpha) & self.mask if self.nested else above(w, alpha))


def above(w: Tensor, alpha: Tensor) -> Tensor:
    """The weights that a solved mask keeps, as bools; with alpha = 0 all, those that start at 0 too."""
    return (w.abs() > alpha) | (alpha == 0)
