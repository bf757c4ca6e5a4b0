"""Methods that break one rule of the contract each."""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import torch
from own_method import Swap

from softprune.methods import GMP, Static
from softprune.methods.masks import MovingMask
from softprune.methods.transforms import SolvedMask


@dataclass(frozen=True)
class LosesWeights(Static):
    """Drops a weight now and then, and grows none."""

    every: int = 5

    def after_step(self, ctx):
        if ctx.step % self.every == 0:
            for target in ctx.targets:
                mask = target.transform.mask.view(-1)
                mask[mask.nonzero()[0]] = False


@dataclass(frozen=True)
class Restless(Swap):
    """Says that it moves at intervals, and does at every step."""

    def after_step(self, ctx):
        for target in ctx.targets:
            target.transform.mask.copy_(target.transform.mask.flip(-1))


class Leaky(MovingMask):
    """A mask that lets a little through."""

    def forward(self, w):
        return super().forward(w) + 1e-3 * w * ~self.mask


@dataclass(frozen=True)
class LeakyMask(Static):
    def transform(self, target, total, mask):
        return Leaky(super().transform(target, total, mask).mask)


@dataclass(frozen=True)
class Forgetful(Swap):
    """Keeps what it knows where no checkpoint sees it."""

    seen: ClassVar[Counter] = Counter()

    def after_step(self, ctx):
        self.seen[ctx.targets[0].module] += 1
        for target in ctx.targets:
            target.raw.mul_(1.0 + 0.01 * self.seen[ctx.targets[0].module])


@dataclass(frozen=True)
class Gambler(Swap):
    """Draws from a generator of its own."""

    dice: ClassVar = torch.Generator()

    def after_step(self, ctx):
        for target in ctx.targets:
            target.raw.mul_(1.0 + 0.01 * torch.rand((), generator=self.dice))


@dataclass(frozen=True)
class Attentive(Swap):
    """Does something only where hooks are heard."""

    def after_step(self, ctx):
        if ctx.optimizers[0]._optimizer_step_pre_hooks:
            for target in ctx.targets:
                target.raw.mul_(1.01)


class Scaling(SolvedMask):
    """Computes something else when it is evaluated than what bake() writes."""

    def forward(self, w):
        return super().forward(w) * (1.0 if self.training else 0.5)


@dataclass(frozen=True)
class TwoFaced(GMP):
    def transform(self, target, total, mask):
        return Scaling(target.raw)


class Counting(MovingMask):
    """Has a number that the compiler takes for a constant."""

    calls = 0

    def forward(self, w):
        return super().forward(w) + 0.0 * self.calls


@dataclass(frozen=True)
class Recompiled(Static):
    def transform(self, target, total, mask):
        return Counting(super().transform(target, total, mask).mask)

    def after_step(self, ctx):
        for target in ctx.targets:
            target.transform.calls += 1


class Shared(MovingMask):
    """Its copies have the same mask."""

    def __deepcopy__(self, memo):
        memo[id(self)] = self
        return self


@dataclass(frozen=True)
class SharedMask(Static):
    def transform(self, target, total, mask):
        return Shared(super().transform(target, total, mask).mask)


@dataclass(frozen=True)
class Blind(Static):
    """Says that it selects, and draws at random."""

    selects: ClassVar[bool] = True


@dataclass(frozen=True)
class Eager(Static):
    """Changes the weights when it is put on a model."""

    def transform(self, target, total, mask):
        made = super().transform(target, total, mask)
        with torch.no_grad():
            target.raw.masked_fill_(~made.mask, 0.0)
        return made


@dataclass(frozen=True)
class Generous(Static):
    """Keeps three weights too many."""

    def transform(self, target, total, mask):
        more = mask.clone()
        more.view(-1)[(~mask).flatten().nonzero()[:3]] = True
        return super().transform(target, total, more)


@dataclass(frozen=True)
class Nameless(Static):
    """Is not registered."""


# The one that is left out of NAMES is broken in that.
BROKEN = [
    (Eager(), "forward_is_as_documented"),
    (Generous(), "total_is_reached"),
    (LosesWeights(), "total_is_kept"),
    (LeakyMask(), "pruned_weights_stay_zero"),
    (Restless(), "masks_change_on_time"),
    (Forgetful(), "training_resumes"),
    (Gambler(), "runs_repeat"),
    (Attentive(), "explicit_calls_do_as_hooks"),
    (SharedMask(), "copies_are_independent"),
    (TwoFaced(), "bake_is_exact"),
    (Recompiled(), "nothing_compiles_again"),
    (Blind(), "support_is_recovered"),
    (Nameless(), "config_round_trips"),
]

NAMES = {f"broken-{type(method).__name__}": type(method) for method, _ in BROKEN if type(method) is not Nameless}
