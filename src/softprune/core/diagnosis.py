"""Diagnosis: the numbers that tell where a threshold stands and what moves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softprune.core.groups import group_of
from softprune.core.sharding import effective_weight, whole
from softprune.methods.base import Target
from softprune.methods.transforms import HeldThreshold, SoftThreshold, SolvedThreshold

Seen: TypeAlias = Mapping[nn.Parameter, tuple[Tensor, Tensor]]

NAN = float("nan")


@dataclass(frozen=True)
class Diagnosis:
    """One tensor now. Means are taken over the thresholds where a tensor has several.

    Args:
        name: the tensor.
        s: raw threshold; NaN where none is learnt.
        alpha: threshold g(s).
        density: fraction of weights kept.
        P: <dL/dS, sign(w) 1[S != 0]> at the last step (before the first one: of the gradient as it is, loss scale
            included); NaN before a gradient was seen, and while g'(s) is 0.
            Negative P means that larger living weights would lower the loss: the brake on s. Tensors that share
            one threshold show the sum over all of them.
        l1_active: L1 norm of the raw weights that survive.
        balance: decay * |s| / (-g'(s) P). About 1 at rest; far above 1 decay wins and the tensor may die.
    """

    name: str
    s: float
    alpha: float
    density: float
    P: float
    l1_active: float
    balance: float


@torch.no_grad()
def diagnose(targets: Sequence[Target], optimizers: Sequence[Optimizer], seen: Seen) -> list[Diagnosis]:
    """The numbers of every target; `seen` has s and its gradient at the last step, by threshold."""
    return [_diagnose(target, optimizers, seen) for target in targets]


def _diagnose(target: Target, optimizers: Sequence[Optimizer], seen: Seen) -> Diagnosis:
    effective = effective_weight(target)
    active = effective != 0
    density = float(active.double().mean())
    l1_active = float(whole(target.raw.detach()).abs()[active].double().sum())
    transform = target.transform
    if isinstance(transform, SolvedThreshold):
        alpha = float(transform.alpha.mean())
        return Diagnosis(target.name, float(transform.s.mean()), alpha, density, NAN, l1_active, NAN)
    if not isinstance(transform, SoftThreshold):
        alpha = float(transform.alpha.mean()) if isinstance(transform, HeldThreshold) else 0.0
        return Diagnosis(target.name, NAN, alpha, density, NAN, l1_active, NAN)
    s = whole(transform.s.detach())
    P, balance = NAN, NAN
    # A gradient belongs to the s that it was taken at, which the step has moved since.
    s_then, grad = seen.get(transform.s, (transform.s.detach(), transform.s.grad))
    if grad is not None:
        s_then, grad = whole(s_then), whole(grad)
        P = _signed_sum(grad, transform.g.derivative(s_then))
        found = group_of(transform.s, optimizers)
        pull = (found[1].get("weight_decay", 0.0) if found else 0.0) * float(s_then.abs().mean())
        brake = float(grad.mean())  # -g'(s) P
        balance = pull / brake if brake > 0 else (float("inf") if pull > 0 else NAN)
    return Diagnosis(target.name, float(s.mean()), float(transform.g(s).mean()), density, P, l1_active, balance)


def _signed_sum(grad: Tensor, slope: Tensor) -> float:
    known = slope > 0
    return float((-grad[known] / slope[known]).double().sum()) if bool(known.any()) else NAN
