"""What methods with masks have in common: the masks, when they are renewed, how a total is shared out, values kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from softprune.methods.transforms import Target, Transform

if TYPE_CHECKING:
    from softprune.methods.base import Context


class Masked(Transform):
    """``w * mask`` with a fixed mask; pruned weights receive no gradient and stay zero.

    State: the bool buffer ``mask``; it is updated in place, its identity never changes.
    """

    fixes = "support"
    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask.detach().to(torch.bool).clone())

    def forward(self, w: Tensor) -> Tensor:
        return torch.where(self.mask, w, 0.0)

    def support(self, effective: Tensor) -> Tensor:
        return self.mask


class MovingMask(Transform):
    """``w * mask`` with a mask that its method changes, and on demand the whole gradient for pruned weights too.

    State: the bool buffers ``mask`` and ``dense_grad``, one value: whether pruned weights receive a gradient now. It is
    a tensor, so that nothing is compiled anew when it changes.
    """

    mask: Tensor
    dense_grad: Tensor

    def __init__(self, mask: Tensor, *, dense_grad: bool = False) -> None:
        super().__init__()
        self.register_buffer("mask", mask.detach().to(torch.bool).clone())
        self.register_buffer("dense_grad", torch.tensor(dense_grad, device=mask.device))

    def forward(self, w: Tensor) -> Tensor:
        kept = torch.where(self.mask, w, 0.0).detach()
        # Adds exactly 0 to the value, and the derivative of the identity where the gradient shall pass.
        return kept + torch.where(self.mask | self.dense_grad, w - w.detach(), 0.0)

    def support(self, effective: Tensor) -> Tensor:
        return self.mask  # a weight that has just joined is 0 by its value only


def moving(target: Target) -> MovingMask:
    """The transform of a target whose mask the method moves."""
    transform = target.transform
    assert isinstance(transform, MovingMask)
    return transform


# When a mask is renewed: every so many steps, up to some point of the training.


def require_interval(every: int, end: float) -> None:
    """Refuse settings that are not an interval, when a method is made."""
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ValueError(f"every is a number of steps, at least 1; got {every!r}")
    require_fraction("end", end)


def require_fraction(name: str, value: float) -> None:
    """Refuse what is not in (0, 1]."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 < value <= 1.0:
        raise ValueError(f"{name} is a fraction above 0 and at most 1, got {value!r}")


def due(ctx: Context, every: int, end: float) -> bool:
    """Whether the mask is renewed after this many steps; never before the first."""
    return 0 < ctx.step <= end * ctx.total_steps and ctx.step % every == 0


def refuse_too_long(ctx: Context, every: int, end: float) -> None:
    """Raise if the mask would never be renewed in this training."""
    last = int(end * ctx.total_steps)
    if every > last:
        raise ValueError(
            f"masks are renewed every {every} steps until step {last} of {ctx.total_steps}, so they never would be: "
            f"set every to {max(1, last // 10)} or so"
        )


def refuse_longer_than(ctx: Context, every: int) -> None:
    """Raise if the interval does not fit into the training, which would then be pruned in one go at its last step."""
    if every > ctx.total_steps:
        raise ValueError(f"masks are renewed every {every} steps, but the training has {ctx.total_steps}: lower every")


# Whole numbers in proportion: how many weights each tensor gets of a number that is to be shared out.


def share_out(total: int, by: Mapping[str, float], room: Mapping[str, int]) -> dict[str, int]:
    """Divide `total` in proportion to `by`, none more than its room; the sum is exact while there is room for it.

    What does not fit goes to the others in the same proportion. Shares are rounded down, and what is left over goes to
    the largest remainders, equal ones in the order of the names given.

    >>> share_out(10, {"a": 3.0, "b": 1.0, "c": 1.0}, {"a": 4, "b": 9, "c": 9})
    {'a': 4, 'b': 3, 'c': 3}
    """
    got = dict.fromkeys(by, 0)
    left = min(total, sum(room.values()))
    exact = _proportional(left, by, by)
    while full := [name for name in exact if exact[name] >= room[name]]:
        for name in full:
            got[name] = room[name]
            left -= room[name]
        exact = _proportional(left, by, [name for name in exact if name not in full])
    # Every share is now less than its room, so there is one more place for what is left over.
    for name, share in exact.items():
        got[name] = int(share)
    spare = left - sum(got[name] for name in exact)
    for name in sorted(exact, key=lambda n: int(exact[n]) - exact[n])[:spare]:
        got[name] += 1
    return got


def _proportional(total: int, by: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    claims = {name: max(float(by[name]), 0.0) for name in names}
    largest = max(claims.values(), default=0.0)
    # Without a claim at all everyone has the same; dividing by the largest keeps tiny claims from underflowing.
    claims = {name: claim / largest if largest else 1.0 for name, claim in claims.items()}
    return {name: total * claim / sum(claims.values()) for name, claim in claims.items()}


# Where a managed tensor lives, and a name that it has in the plain model as well.
_MANAGED = re.compile(r"parametrizations\.(\w+)\.original$")


class Remembered(nn.Module):
    """Copies of every parameter and buffer that a model has now, to be put back later.

    State: one buffer for each, by its name in the plain model with slashes for dots.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for name, tensor in chain(model.named_parameters(), model.named_buffers()):
            self.register_buffer(_key(name), tensor.detach().clone())

    @torch.no_grad()
    def take_(self, model: nn.Module) -> None:
        """Remember the present values."""
        for mine, theirs in self._pairs(model):
            mine.copy_(theirs)

    @torch.no_grad()
    def put_back_(self, model: nn.Module) -> None:
        """Give the model the remembered values; its tensors stay the objects that they are."""
        for mine, theirs in self._pairs(model):
            theirs.copy_(mine)

    def _pairs(self, model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
        # All names of a tied tensor: which of them comes first changes when it is managed.
        named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
        live = {_key(name): tensor for name, tensor in named}
        for key, mine in self.named_buffers():
            yield mine, live[key]


def _key(name: str) -> str:
    return _MANAGED.sub(r"\1", name).replace(".", "/")
