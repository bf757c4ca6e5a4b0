"""What methods with masks share: the masks, when they are renewed, how a total is divided, values to go back to."""

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

    State: the bool buffers ``mask`` and ``dense_grad``, whether pruned weights receive a gradient now: a tensor of one
    value, so that nothing is compiled anew when it changes.
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
    transform = target.transform
    assert isinstance(transform, MovingMask)
    return transform


# Settings in their range, and when a mask is renewed: at an interval of steps, up to some point of the training.


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def require_interval(every: int, end: float) -> None:
    if not is_count(every, least=1):
        raise ValueError(f"every is a number of steps, at least 1; got {every!r}")
    require_fraction("end", end)


def require_fraction(name: str, value: float) -> None:
    if not (is_number(value) and 0.0 < value <= 1.0):
        raise ValueError(f"{name} is a fraction above 0 and at most 1, got {value!r}")


def due(ctx: Context, every: int, end: float) -> bool:
    """Whether the mask is renewed after this many steps; never before the first."""
    return 0 < ctx.step <= end * ctx.total_steps and ctx.step % every == 0


def refuse_too_long(ctx: Context, every: int, end: float) -> None:
    last = int(end * ctx.total_steps)
    if every > last:
        raise ValueError(
            f"masks are renewed every {every} steps until step {last} of {ctx.total_steps}, so they never would be: "
            f"set every to {max(1, last // 10)} or so"
        )


def share_out(total: int, by: Mapping[str, float], room: Mapping[str, int]) -> dict[str, int]:
    """Divide `total` whole weights in proportion to `by`, none more than its room; the sum is exact if room suffices.

    What does not fit goes to the others in the same proportion. Shares are rounded down, and what is left over goes to
    the largest remainders, equal ones in the order of the names given.

    >>> share_out(10, {"a": 3.0, "b": 1.0, "c": 1.0}, {"a": 4, "b": 9, "c": 9})
    {'a': 4, 'b': 3, 'c': 3}
    """
    got, left = dict.fromkeys(by, 0), min(total, sum(room.values()))
    exact = _proportional(left, by, by)
    while full := [name for name in exact if exact[name] >= room[name]]:
        for name in full:
            got[name] = room[name]
            left -= room[name]
        exact = _proportional(left, by, [name for name in exact if name not in full])
    # Every share is now less than its room, so there is one more place for what is left over.
    got |= {name: int(share) for name, share in exact.items()}
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
        for mine, theirs in self._pairs(model):
            mine.copy_(theirs)

    @torch.no_grad()
    def put_back_(self, model: nn.Module) -> None:
        """Copy the values into the model; its tensors stay the objects that they are."""
        for mine, theirs in self._pairs(model):
            theirs.copy_(mine)

    def _pairs(self, model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
        # All names of a tied tensor: which of them comes first changes when it is managed.
        named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
        live = {_key(name): tensor for name, tensor in named}
        for key, mine in self.named_buffers():
            yield mine, live[key]


def _key(name: str) -> str:
    """A name that a tensor has in the plain model and in the managed one alike."""
    return re.sub(r"parametrizations\.(\w+)\.original$", r"\1", name).replace(".", "/")
