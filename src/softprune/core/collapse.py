"""Collapse: tensors that lost their last weight or became NaN, channels that went silent, paths that are cut."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softprune.core.groups import effective_weight, group_of, sharded, whole
from softprune.core.hooks import nonfinite
from softprune.methods.transforms import HeldThreshold, SoftThreshold, Solved, Target
from softprune.ops import G

# A tensor whose gradient is exactly zero this many steps in a row has no path to the loss.
SILENT_STEPS = 3
# Below this threshold g'(s) is so small that dL/ds = -g'(s) P underflows to zero whatever P is. On its way up from
# s_init a sigmoid spends thousands of steps there.
READABLE_ALPHA = 1e-12


class CollapseWarning(UserWarning):
    """A tensor, channels or a path of the network no longer take part in training."""


@dataclass(frozen=True)
class Collapse:
    """One tensor, set of channels or path that no longer takes part in training."""

    name: str
    kind: Literal["dead tensor", "dead channels", "cut path", "non-finite weights"]
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}: {self.detail}"


def find_collapse(targets: Sequence[Target], behind: Sequence[Target] = ()) -> list[Collapse]:
    """Every tensor that is not finite or has no weight left, and every output channel without one.

    `behind` are the tensors that importances among the targets multiply.
    """
    broken = find_nonfinite((*targets, *behind))
    names = {collapse.name for collapse in broken}
    return broken + [found for target in targets if target.name not in names for found in _inspect(target)]


@torch.no_grad()
def find_nonfinite(targets: Sequence[Target], *, step: int | None = None) -> list[Collapse]:
    """Every tensor with NaN or infinite raw weights or thresholds; of a sharded one this process's shard."""
    found: dict[str, Collapse] = {}
    when = "" if step is None else f" after step {step}"
    for target, t in nonfinite(targets):
        bad = int((~torch.isfinite(t)).sum())
        if bad and target.name not in found:
            what = "weights" if t.shape == target.shape else "thresholds"
            detail = f"{bad} of {t.numel():,} {what} are NaN or infinite{when}"
            found[target.name] = Collapse(target.name, "non-finite weights", detail)
    return list(found.values())


def refuse_nonfinite(targets: Sequence[Target], what: str) -> None:
    """Raise where a weight of a tensor, which is not sharded, is NaN or infinite, raw or as the network uses it."""
    found = [str(collapse) for collapse in find_nonfinite(targets)]
    if not found:
        # A threshold beyond all numbers can still make one of finite weights.
        found = [t.name for t in targets if not bool(torch.isfinite(effective_weight(t)).all())]
    if found:
        raise ValueError(
            f"{what} needs finite weights; {'; '.join(found[:5])}. Go back to a checkpoint with finite ones, and lower "
            "the learning rate or clip the gradients"
        )


def refuse_uninitialised(targets: Sequence[Target], behind: Sequence[Target]) -> None:
    """Raise where training cannot begin: weights without values, or NaN and infinite ones."""
    for target in targets:
        if target.raw.device.type == "meta":
            raise ValueError(f"{target.name} is on the meta device: give it values before attach()")
    if bad := find_nonfinite((*targets, *behind)):
        raise ValueError(
            f"training needs finite weights; {bad[0]}. After to_empty() call the reset_parameters() of every module "
            "or load a checkpoint: what is written in place into the weight of a sparsified layer, as nn.init does, "
            "is lost"
        )


def _inspect(target: Target) -> list[Collapse]:
    effective = effective_weight(target)
    if not effective.any():
        detail = f"all {effective.numel():,} weights are zero"
        detail += "; keep some with STR(min_keep=...), or lower the threshold decay"
        return [Collapse(target.name, "dead tensor", detail)]
    # Embedding rows are tokens, not channels; an unused one is no collapse.
    if effective.ndim < 2 or isinstance(target.module, nn.Embedding | nn.EmbeddingBag):
        return []
    alive = _channels_first(target.module, effective).any(dim=1)
    dead = torch.nonzero(~alive).flatten().tolist()
    if not dead:
        return []
    shown = ", ".join(map(str, dead[:5])) + (", ..." if len(dead) > 5 else "")
    detail = f"{len(dead)} of {len(alive)} output channels have no weight left ({shown})"
    return [Collapse(target.name, "dead channels", detail)]


def _channels_first(module: nn.Module, w: Tensor) -> Tensor:
    if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        # [in, out/groups, ...] -> [out, everything that feeds it]
        per_group = w.reshape(module.groups, w.shape[0] // module.groups, w.shape[1], -1)
        return per_group.transpose(1, 2).reshape(module.groups * w.shape[1], -1)
    return w.reshape(w.shape[0], -1)


def find_cut(model: nn.Module, targets: Sequence[Target], example: Any) -> list[Collapse]:
    """Run the example and list every living tensor that no gradient reaches: what it computes is lost."""
    training = {m: m.training for m in model.modules()}
    model.eval()
    try:
        # cuDNN refuses the backward pass of a recurrent layer in eval mode.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            inputs = example if isinstance(example, tuple) else (example,)
            output = model(**example) if isinstance(example, dict) else model(*inputs)
            # A sum with irregular weights, so that nothing cancels by symmetry (softmax outputs sum to 1).
            parts = [
                (o * torch.linspace(0.5, 1.5, o.numel(), device=o.device, dtype=o.dtype).view_as(o)).sum()
                for o in _tensors(output)
            ]
            if not parts:
                raise ValueError(
                    f"the output of {type(model).__name__}, a {type(output).__name__}, has no floating point tensor: "
                    "cut paths can be found in tensors, and tuples, lists and dicts of them"
                )
            trained = [t for t in targets if t.raw.requires_grad]
            grads = torch.autograd.grad(sum(parts), [t.raw for t in trained], allow_unused=True)  # type: ignore[arg-type]
    finally:
        for module, flag in training.items():
            module.training = flag
    return [_cut(t) for t, grad in zip(trained, grads, strict=True) if grad is not None and _unreached(t, grad)]


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        output = list(output.values())
    return [t for item in output for t in _tensors(item)] if isinstance(output, list | tuple) else []


def _unreached(target: Target, grad: Tensor) -> bool:
    """Whether the tensor has weights left and none of these gets a gradient; pruned ones may, straight through."""
    living = effective_weight(target) != 0
    return bool(living.any()) and not bool(grad[living].any())


def _any_gradient(targets: Sequence[Target]) -> bool:
    modules = {module for target in targets for module, _ in target.sites}
    parameters = chain((t.raw for t in targets), *(m.parameters(recurse=False) for m in modules))
    return any(p.grad is not None and bool(p.grad.any()) for p in parameters)


def _cut(target: Target) -> Collapse:
    detail = "it has weights, but no gradient reaches them: no path through it from the input to the output is left"
    return Collapse(target.name, "cut path", detail)


@dataclass
class CollapseWatch:
    """Warns once, at the step where it happens, for everything that dies during training."""

    _reported: set[tuple[str, str]] = field(default_factory=set)
    _silent: dict[str, int] = field(default_factory=dict)

    def report(self, found: Iterable[Collapse]) -> list[Collapse]:
        """Warn about what has not been reported yet."""
        fresh = [c for c in found if (c.name, c.kind) not in self._reported]
        for collapse in fresh:
            self._reported.add((collapse.name, collapse.kind))
            warnings.warn(str(collapse), CollapseWarning, stacklevel=2)
        return fresh

    def all_move(self) -> None:
        """Note that every threshold had a gradient in this step."""
        self._silent.clear()

    def read_gradients(self, targets: Sequence[Target]) -> list[Collapse]:
        """The sign that costs nothing: a threshold above 0 whose gradient is exactly 0. One that several tensors share
        shows it only when all of them are silent.

        dL/ds = -g'(s) P, and P is a sum over the living weights: it is exactly zero if there are none, or if
        none of them gets a gradient.
        """
        found = []
        suspects = self._silent_targets(targets)
        # A loss of zero, as a margin loss has it on an easy batch, reaches nothing and tells nothing.
        mute = bool(suspects) and not _any_gradient(targets)
        for target in suspects:
            if not bool(effective_weight(target).any()):
                found += _inspect(target)
                continue
            if mute:
                continue
            # P may be zero because its terms cancel; the gradient of the weights tells.
            grad = target.raw.grad
            if grad is None or not _unreached(target, grad):
                self._silent.pop(target.name, None)
                continue
            self._silent[target.name] = self._silent.get(target.name, 0) + 1
            if self._silent[target.name] >= SILENT_STEPS:
                found.append(_cut(target))
        return self.report(found)

    def _silent_targets(self, targets: Sequence[Target]) -> list[Target]:
        watched = [
            (t, transform)
            for t in targets
            if isinstance(transform := t.transform, SoftThreshold)
            and not sharded(t)
            and transform.s.grad is not None
            and (t.name, "dead tensor") not in self._reported
            and (t.name, "cut path") not in self._reported
        ]
        if not watched:
            return []
        # One transfer for all tensors, so that an accelerator is waited for once.
        device = watched[0][1].s.device
        grads = [transform.s.grad for _, transform in watched if transform.s.grad is not None]
        largest = [grad if grad.numel() == 1 else grad.abs().amax().view(1) for grad in grads]
        silent = torch.cat([g.to(device) for g in largest]).eq(0).tolist()
        for (target, _), is_silent in zip(watched, silent, strict=True):
            if not is_silent:
                self._silent.pop(target.name, None)
        # Below some s a gradient of zero means nothing.
        return [
            target
            for (target, transform), is_silent in zip(watched, silent, strict=True)
            if is_silent and bool((transform.s > _readable_above(transform.g)).any())
        ]


@cache
def _readable_above(g: G) -> float:
    return float(g.inverse(torch.tensor([READABLE_ALPHA], dtype=torch.float64)))


# Diagnosis: the numbers that tell where a threshold stands and what moves it.

Seen: TypeAlias = Mapping[nn.Parameter, tuple[Tensor, Tensor]]

NAN = float("nan")


@dataclass(frozen=True)
class Diagnosis:
    """One tensor now. Means are taken over the thresholds where a tensor has several."""

    name: str  # the tensor
    s: float  # raw threshold; NaN where none is learnt
    alpha: float  # threshold g(s)
    density: float  # fraction of weights kept
    # <dL/dS, sign(w) 1[S != 0]> at the last step (before the first one: of the gradient as it is, loss scale included);
    # NaN before a gradient was seen, and while g'(s) is 0. Negative P means that larger living weights would lower the
    # loss: the brake on s. Tensors that share one threshold show the sum over all of them
    P: float
    l1_active: float  # L1 norm of the raw weights that survive
    balance: float  # decay * |s| / (-g'(s) P). About 1 at rest; far above 1 decay wins and the tensor may die


@torch.no_grad()
def diagnose(target: Target, optimizers: Sequence[Optimizer], seen: Seen) -> Diagnosis:
    """The numbers of a target; `seen` has s and its gradient at the last step, by threshold."""
    effective = effective_weight(target)
    active = effective != 0
    density = float(active.double().mean())
    l1_active = float(whole(target.raw.detach()).abs()[active].double().sum())
    transform = target.transform
    if not isinstance(transform, SoftThreshold):
        s_mean = float(transform.s.mean()) if isinstance(transform, Solved) else NAN
        alpha = float(transform.alpha.mean()) if isinstance(transform, Solved | HeldThreshold) else 0.0
        return Diagnosis(target.name, s_mean, alpha, density, NAN, l1_active, NAN)
    s = whole(transform.s.detach())
    P, balance = NAN, NAN
    # A gradient belongs to the s that it was taken at, which the step has moved since.
    s_then, grad = seen.get(transform.s, (transform.s.detach(), transform.s.grad))
    if grad is not None:
        s_then, grad = whole(s_then), whole(grad)
        slope = transform.g.derivative(s_then)
        known = slope > 0
        P = float((-grad[known] / slope[known]).double().sum()) if bool(known.any()) else NAN
        found = group_of(transform.s, optimizers)
        pull = (found[1].get("weight_decay", 0.0) if found else 0.0) * float(s_then.abs().mean())
        brake = float(grad.mean())  # -g'(s) P
        balance = pull / brake if brake > 0 else (float("inf") if pull > 0 else NAN)
    return Diagnosis(target.name, float(s.mean()), float(transform.g(s).mean()), density, P, l1_active, balance)
