"""Recovery: a convex problem whose sparse solution is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from softprune.budget.budget import Budget
from softprune.budget.goals import Params
from softprune.core.sparsify import sparsify
from softprune.methods.base import Method
from softprune.testing.case import require
from softprune.testing.trial import evaluating, living, quiet

# 128 weights, 8 of them in the solution; a mask drawn at random that keeps 16 finds one of the 8 in the mean.
INPUTS, OUTPUTS, SUPPORT, KEPT = 32, 4, 8, 16
SAMPLES, STEPS = 256, 240
# From several starts, since one alone may be lucky; on average one of the 8 may be missed.
STARTS, FOUND = 3, 7


@dataclass(frozen=True)
class Problem:
    """y = W x without noise: least squares has W as its only minimum."""

    x: Tensor
    y: Tensor
    solution: Tensor


def problem(seed: int = 0) -> Problem:
    """Entries of the solution are 1 to 2 in size, at random places and with random signs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, INPUTS, generator=generator)
    solution = torch.zeros(OUTPUTS * INPUTS)
    places = torch.randperm(OUTPUTS * INPUTS, generator=generator)[:SUPPORT]
    signs = torch.randint(0, 2, (SUPPORT,), generator=generator) * 2 - 1
    solution[places] = signs * (1.0 + torch.rand(SUPPORT, generator=generator))
    solution = solution.view(OUTPUTS, INPUTS)
    return Problem(x, x @ solution.T, solution)


def found(method: Method, seed: int = 0) -> int:
    """How many weights of the solution a method has kept at the end."""
    given = problem(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS, bias=False))
    total: dict[str, Any] = {}
    if "goal" in method.accepts:
        total = {"goal": Params(KEPT)}
    elif "budget" in method.accepts:
        total = {"budget": Budget({"0.weight": KEPT / (INPUTS * OUTPUTS)})}
    sparsifier = sparsify(model, method, seed=seed, **total)
    optimizer = SGD(sparsifier.param_groups(weight_decay=1e-4), lr=0.05, momentum=0.9)
    with quiet():
        sparsifier.attach(optimizer, total_steps=STEPS)
        for _ in range(STEPS):
            optimizer.zero_grad()
            (model(given.x) - given.y).square().mean().backward()
            optimizer.step()
    with evaluating(model):
        return int((living(sparsifier.targets[0]) & (given.solution != 0)).sum())


def support_is_recovered(method: Method) -> None:
    """Of 128 weights 8 make up the solution; with 16 to keep, 7 of them live, on average over three starts."""
    if not method.selects:
        return
    counts = [found(method, seed) for seed in range(STARTS)]
    wanted = f"at least {FOUND} of the {SUPPORT} weights of the solution to be kept, on average"
    require(sum(counts) >= FOUND * STARTS, wanted, counts)
