"""The maps from a raw tensor to the one that the network uses; every tensor of a method lives in one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from softprune.ops import Backward, G, masked, power_shrink, shrink, soft_threshold


class Transform(nn.Module):
    """raw -> effective, of the same shape and dtype.

    Attributes:
        first: name -> the number that a tensor of its own is filled with at the beginning; a subclass whose tensors do
            not begin like that must be made from weights that are there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, float] = {}

    @abstractmethod
    def forward(self, w: Tensor) -> Tensor: ...

    def raw_for(self, effective: Tensor) -> Tensor:
        """A raw tensor that this transform maps to `effective`: what an assignment to the weight stores."""
        return effective

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Fill the tensors of its own with their first values, as torch's layers do after `to_empty`."""
        for name, value in self.first.items():
            tensor = getattr(self, name)
            if tensor is not None:
                tensor.fill_(value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Transform:  # noqa: FBT001, FBT002
        on_meta = self._on_meta()
        super()._apply(fn, recurse)
        if on_meta and not self._on_meta():
            # to_empty leaves memory as it happens to be. Not every way to give weights their values asks all modules.
            self.reset_parameters()
        return self

    def _on_meta(self) -> bool:
        return any(t.device.type == "meta" for t in (*self.parameters(), *self.buffers()))

    def settle_(self, w: Tensor) -> None:
        """Bring the state in line with the raw weights as they are now; most transforms have nothing to do."""

    def anneal_(self, progress: float) -> None:
        """Let pruned weights have the gradient that is theirs at this point of the training."""


def threshold_dtype(w: Tensor) -> torch.dtype:
    """Thresholds are float32 at least: in bfloat16 an s of -3200 has a spacing of 16 and never moves."""
    return torch.float64 if w.dtype == torch.float64 else torch.float32


class WideTensors(Transform):
    """A transform whose floating point tensors stay float32 when the model is cast to half precision."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> WideTensors:  # noqa: FBT001, FBT002
        def keep_wide(t: Tensor) -> Tensor:
            moved = fn(t)
            if moved.is_floating_point() and moved.dtype not in (torch.float32, torch.float64):
                return t.to(moved.device)
            return moved

        super()._apply(keep_wide, recurse)
        return self


class _Leaking(WideTensors):
    """A transform whose pruned weights may receive a gradient, `backward.leak` of it.

    State: where that changes during the training, the buffer ``leak``.
    """

    leak: Tensor | None

    def __init__(self, backward: Backward, device: torch.device) -> None:
        super().__init__()
        self.backward_mode = backward
        changes = backward.until is not None
        self.register_buffer("leak", torch.full((1,), backward.leak, device=device) if changes else None)
        self.first["leak"] = backward.leak

    def anneal_(self, progress: float) -> None:
        if self.leak is not None:
            self.leak.fill_(self.backward_mode.at(progress))


class SoftThreshold(_Leaking):
    """``S(w, s)`` with a learnable s.

    State: the parameter ``s``, of a shape that broadcasts to that of w and has at least one dimension; and ``leak``.
    """

    def __init__(self, s: nn.Parameter, g: G, *, backward: Backward = masked, first: float | None = None) -> None:
        super().__init__(backward, s.device)
        self.s = s
        self.g = g
        if first is not None:
            self.first["s"] = first

    def forward(self, w: Tensor) -> Tensor:
        return soft_threshold(w, self.s, self.g, backward=self.backward_mode, leak=self.leak)

    def raw_for(self, effective: Tensor) -> Tensor:
        return effective + effective.sign() * self.alpha.to(effective.dtype)

    @property
    def alpha(self) -> Tensor:
        """The threshold g(s), without gradient."""
        return self.g(self.s.detach())

    @torch.no_grad()
    def keep_at_least_(self, w: Tensor, count: int) -> bool:
        """Lower s, and only if needed, until `count` weights (or all nonzero ones) survive; tell if it was.

        A weight survives if |w| / alpha > 1. If the count-th largest of these ratios is r <= 1, every threshold
        of the tensor is multiplied by just less than r: their proportions stay.
        """
        if int(torch.count_nonzero(self(w))) >= min(count, w.numel()):
            return False
        wanted = min(count, int(torch.count_nonzero(w)))
        alpha = self.alpha.clamp_max(torch.finfo(self.s.dtype).max).double()
        if wanted == 0 or not bool(alpha.any()):
            return False
        ratios = (w.double().abs() / alpha).nan_to_num(nan=0.0)
        ratio = torch.topk(ratios.flatten(), wanted).values[-1].clamp_max(1.0)
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


class HeldThreshold(_Leaking):
    """The soft threshold that keeps a given number of weights: s no longer learns, alpha follows the weights.

    State: buffers ``alpha`` (as the s it came from) and ``kept``, the number of weights to keep.
    """

    def __init__(
        self, alpha: Tensor, kept: int, *, backward: Backward = masked, rescale: bool = False, power: float = 1.0
    ) -> None:
        super().__init__(backward, alpha.device)
        self.register_buffer("alpha", alpha.detach().clone())
        self.register_buffer("kept", torch.tensor(kept, device=alpha.device))
        self.rescale = rescale
        self.power = power

    alpha: Tensor
    kept: Tensor

    def forward(self, w: Tensor) -> Tensor:
        if self.power != 1.0:
            return power_shrink(w, self.alpha, self.power, backward=self.backward_mode)
        shrunk = shrink(w, self.alpha, backward=self.backward_mode, leak=self.leak)
        return _rescaled(w, shrunk, self.alpha) if self.rescale else shrunk

    def raw_for(self, effective: Tensor) -> Tensor:
        return _raw_for(effective, self.alpha, self.power)

    @torch.no_grad()
    def settle_(self, w: Tensor) -> None:
        """Move alpha so that `kept` weights survive (fewer where equal weights sit at the border).

        Where as many survive already it stays: moving it would change what the network computes for nothing.
        """
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


class SolvedThreshold(_Leaking):
    """A soft threshold alpha = exp(s + c) whose shared offset c is solved for, so that a total is met exactly.

    State: buffers of the shape of s. ``s`` (NaN until the first weight goes) and ``alpha``; for learning s a running
    average of its gradient (``pull``) and of its square (``force``); ``crossing``, the weights that a moving threshold
    would meet per unit of log alpha. And ``observed``, the number of gradients in the averages.
    """

    s: Tensor
    alpha: Tensor
    pull: Tensor
    force: Tensor
    crossing: Tensor
    observed: Tensor

    def __init__(
        self, shape: tuple[int, ...], w: Tensor, *, backward: Backward = masked, rescale: bool = False
    ) -> None:
        super().__init__(backward, w.device)
        dtype = threshold_dtype(w)
        self.register_buffer("s", torch.full(shape, float("nan"), dtype=dtype, device=w.device))
        for name in ("alpha", "pull", "force", "crossing"):
            self.register_buffer(name, torch.zeros(shape, dtype=dtype, device=w.device))
        self.register_buffer("observed", torch.zeros((), dtype=torch.int64, device=w.device))
        self.first |= {"s": float("nan"), "alpha": 0.0, "pull": 0.0, "force": 0.0, "crossing": 0.0, "observed": 0}
        self.rescale = rescale

    def forward(self, w: Tensor) -> Tensor:
        shrunk = shrink(w, self.alpha, backward=self.backward_mode, leak=self.leak)
        return _rescaled(w, shrunk, self.alpha) if self.rescale else shrunk

    def scores(self, w: Tensor) -> Tensor:
        """What the solver ranks by its size: the raw weights themselves, or a copy that it may change."""
        return w

    def take_(self, alpha: Tensor, crossing: Tensor, w: Tensor) -> None:
        """Adopt the solution for these scores."""
        self.alpha.copy_(alpha)
        self.crossing.copy_(crossing)

    @property
    def in_use(self) -> Tensor:
        """The threshold that the network feels; during the training it may be lower than the solution."""
        return self.alpha

    @property
    def risen(self) -> bool:
        """Whether that is the solution itself."""
        return True

    def rise_(self) -> None:
        """Make it so."""

    def raw_for(self, effective: Tensor) -> Tensor:
        return effective + effective.sign() * self.in_use.to(effective.dtype)

    def extra_repr(self) -> str:
        return f"s={tuple(self.s.shape)}, backward={self.backward_mode}"


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


class PowerThreshold(SolvedThreshold):
    """``sign(w) * (|w|^p - alpha^p)^(1/p)`` above alpha, else 0: between the soft threshold (p = 1) and the hard one.

    The derivative is that of the identity for weights that live, and `leak` of it for the others.
    State: as a solved threshold.
    """

    def __init__(self, w: Tensor, *, power: float, backward: Backward = masked) -> None:
        super().__init__((1,), w, backward=backward)
        self.power = power

    def forward(self, w: Tensor) -> Tensor:
        return power_shrink(w, self.alpha, self.power, backward=self.backward_mode)

    def raw_for(self, effective: Tensor) -> Tensor:
        return _raw_for(effective, self.alpha, self.power)


def _raw_for(effective: Tensor, alpha: Tensor, power: float) -> Tensor:
    """What shrinking by this power turns into `effective`."""
    if power == 1.0:
        return effective + effective.sign() * alpha.to(effective.dtype)
    size = (effective.abs() ** power + alpha**power) ** (1 / power)
    return torch.where(effective == 0, 0.0, effective.sign() * size).to(effective.dtype)


class RisingThreshold(SolvedThreshold):
    """A soft threshold that is a fraction of the one that meets the total: ``alpha * rise``.

    State: as a solved threshold, and the buffer ``rise``, from 0 to 1.
    """

    rise: Tensor

    def __init__(self, w: Tensor, *, backward: Backward = masked) -> None:
        super().__init__((1,), w, backward=backward)
        self.register_buffer("rise", torch.zeros(1, dtype=self.alpha.dtype, device=w.device))
        self.first["rise"] = 0.0

    def forward(self, w: Tensor) -> Tensor:
        return shrink(w, self.in_use, backward=self.backward_mode)

    @property
    def in_use(self) -> Tensor:
        return self.alpha * self.rise

    @property
    def risen(self) -> bool:
        return bool(self.rise == 1.0)

    def rise_(self) -> None:
        self.rise.fill_(1.0)


class SolvedMask(SolvedThreshold):
    """A hard threshold whose mask is fixed from one solution to the next: ``w`` where ``|w| > alpha`` was, else 0.

    State: as a solved threshold, and the bool buffer ``mask``.
    """

    mask: Tensor

    def __init__(self, w: Tensor, *, backward: Backward = masked) -> None:
        super().__init__((1,), w, backward=backward)
        self.register_buffer("mask", torch.ones_like(w, dtype=torch.bool))
        self.first["mask"] = True

    def forward(self, w: Tensor) -> Tensor:
        kept = torch.where(self.mask, w, 0.0)
        leak = self.backward_mode.leak
        # Adds exactly 0 to the value, and `leak` to the derivative of a pruned weight.
        return kept + torch.where(self.mask, 0.0, leak * (w - w.detach())) if leak else kept

    def take_(self, alpha: Tensor, crossing: Tensor, w: Tensor) -> None:
        super().take_(alpha, crossing, w)
        # Without a threshold all weights train, those that start at 0 too.
        self.mask.copy_((w.abs() > alpha) | (alpha == 0))

    def raw_for(self, effective: Tensor) -> Tensor:
        return effective


class NestedMask(SolvedMask):
    """A solved mask that only ever loses weights: the next one is a part of it.

    State: as a solved mask.
    """

    def scores(self, w: Tensor) -> Tensor:
        return torch.where(self.mask, w, 0.0)

    def take_(self, alpha: Tensor, crossing: Tensor, w: Tensor) -> None:
        before = self.mask.clone()
        super().take_(alpha, crossing, w)
        self.mask.logical_and_(before)


class Masked(Transform):
    """``w * mask`` with a fixed mask; pruned weights receive no gradient and stay zero.

    State: the bool buffer ``mask``; it is updated in place, its identity never changes.
    """

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask.detach().to(torch.bool).clone())

    def forward(self, w: Tensor) -> Tensor:
        return torch.where(self.mask, w, 0.0)


class MovingMask(Masked):
    """``w * mask`` with a mask that its method changes, and on demand the whole gradient for pruned weights too.

    State: the bool buffers ``mask`` and ``dense_grad``, one value: whether pruned weights receive a gradient now. It is
    a tensor, so that nothing is compiled anew when it changes.
    """

    dense_grad: Tensor

    def __init__(self, mask: Tensor, *, dense_grad: bool = False) -> None:
        super().__init__(mask)
        self.register_buffer("dense_grad", torch.tensor(dense_grad, device=mask.device))

    def forward(self, w: Tensor) -> Tensor:
        kept = torch.where(self.mask, w, 0.0).detach()
        # Adds exactly 0 to the value, and the derivative of the identity where the gradient shall pass.
        return kept + torch.where(self.mask | self.dense_grad, w - w.detach(), 0.0)
