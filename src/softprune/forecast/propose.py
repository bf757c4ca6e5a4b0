"""Where to start a threshold s and how hard to decay it, for a run of a given length.

K is what the optimizer and its schedule do to a decay of 1, X = decay K the push on s, F(t) the share of K
spent by step t. The decay sets the push, hence the final sparsity; s_init sets when sparsity begins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch.optim import Optimizer

from softprune.forecast.schedule import Schedule, caveat
from softprune.forecast.simulate import Motion, read_motion

PAPER_K = 522_762  # ImageNet, 100 epochs of 5005 steps, lr 0.256 (5 epochs of warm-up, cosine), momentum 0.875
ENOUGH = 1.2  # push needed after the onset: ln(10 / 3), from where weights vanish to where the loss holds s
HARD = 25.0  # push that emptied a small network in a short run
SHORT = 100_000  # steps; the paper went up to X = 47, but over 500,500
_LARGEST_PUSH = 100.0
_ROUNDS = 5  # Adam's path is almost, not exactly, a shift: a few corrections reach the requested step


@dataclass(frozen=True)
class Proposal:
    """A starting value and a decay for the thresholds of one run."""

    s_init: float  # value at which to start s
    threshold_decay: float  # weight decay for the param group of s, and for that group only
    K: float  # sum over the run of lr (1 - dampening) / (1 - momentum) for SGD, of lr for Adam and AdamW
    X: float  # threshold_decay * K
    onset: float  # fraction of the run after which s reaches s_on
    note: str  # what to mind, "" if nothing

    def __str__(self) -> str:
        line = (
            f"start s at {self.s_init:.6g} and decay it by {self.threshold_decay:.4g} (K = {self.K:,.0f}, "
            f"X = {self.X:.2f}): sparsity should set in at {100 * self.onset:.1f} % of the run"
        )
        return f"{line}\nnote: {self.note}" if self.note else line


def replay(decay: float, K: float) -> float:
    """Return the decay that gives a run with this K the trajectory the paper had with ``decay``.

        decay * 522762 / K,   keeping s_init

    The paper's decay is e.g. 2.251757813e-5 (ResNet50, 90.23 % sparsity); `propose` and `forecast` know the K of a run.

    Example:
        >>> round(replay(2.251757813e-5, 31_671), 6)
        0.000372
    """
    for name, value in (("decay", decay), ("K", K)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}; it must be finite and > 0")
    return decay * PAPER_K / K


def propose(
    optimizer: Optimizer,
    *,
    total_steps: int,
    scheduler: Schedule = None,
    steps_per_scheduler_step: int = 1,
    onset: float = 0.28,
    push: float = 8.2,
    s_on: float = -10.0,
    group: int | None = None,
) -> Proposal:
    """Return the s_init and the decay of s with which sparsity sets in at a chosen point of the run.

        threshold_decay = push / K,      s_init = s_on exp(push F(onset))

    The second equation is solved with the exact recursion, so that the onset is right to the step in short
    runs too. Under Adam with coupled decay s moves by an amount: s_init = s_on - (sum of lr until the onset).

    Args:
        optimizer: as it will be trained; it may still hold the dense model, without thresholds.
        total_steps, scheduler, steps_per_scheduler_step: see `learning_rates`.
        onset: fraction of the run, in (0, 1); the paper's runs had 0.08 to 0.38, 0.28 at 90 % sparsity.
        push: X, in (0, 100]. One small network (digits, 1,600 steps) ended at 68 % with 3.3, 84 % with 5.7,
            89.5 % with 8.2, 93 % with 11.8, 95.5 % with 16.4: a hint, not a promise.
        s_on: value of s at which the first weights vanish, below 0; -10 for a sigmoid.
        group: index of the param group whose lr and momentum s will have; default the one with most weights.

    Raises:
        TypeError: no rule is known for this optimizer.
        ValueError: a number is out of range, or no starting value gives this onset.

    Example:
        >>> sgd = torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9)
        >>> plan = propose(sgd, total_steps=2000)
        >>> f"{plan.s_init:.0f} {plan.threshold_decay:.4f} {plan.onset:.2f}"
        '-105 0.0041 0.28'
    """
    if not 0 < onset < 1:
        raise ValueError(f"onset is {onset}; it is a fraction of the run in (0, 1), usually 0.2 to 0.3")
    if not 0 < push <= _LARGEST_PUSH:
        raise ValueError(f"push is {push}; it must be in (0, {_LARGEST_PUSH:g}], usually 2 to 16")
    check_onset_value(s_on)
    if group is None:
        sizes = [sum(p.numel() for p in held["params"]) for held in optimizer.param_groups]
        group = sizes.index(max(sizes))
    motion = read_motion(
        optimizer, scheduler, total_steps, steps_per_scheduler_step=steps_per_scheduler_step, group=group
    )
    K = sum(motion.gains())
    if K <= 0:
        raise ValueError(f"the learning rates of group {group} sum to {K}; s can only move when they are > 0")
    decay = push / K
    motion = replace(motion, decays=[decay] * total_steps)
    step = min(max(1, round(onset * total_steps)), total_steps)
    if motion.exponential:
        s_init = _start_of_factor(motion, step, s_on)
    elif motion.kind == "adam":
        s_init = _start_of_shift(motion, step, s_on)
    else:
        raise TypeError(
            f"no rule is known for {motion.kind}: propose handles SGD, AdamW and Adam; "
            "give the thresholds a torch.optim.SGD of their own and propose for that"
        )
    left = push * (1 - motion.shares()[step])
    note = "; ".join(_remarks(motion, push, decay, left, caveat(scheduler)))
    return Proposal(s_init, decay, K, push, step / total_steps, note)


def check_onset_value(s_on: float) -> None:
    if not (math.isfinite(s_on) and s_on < 0):
        raise ValueError(f"s_on is {s_on}; s rises towards 0, so it must be finite and < 0 (-10 for a sigmoid)")


def _start_of_factor(motion: Motion, step: int, s_on: float) -> float:
    # The recursion is linear in s: one path from 1 gives all paths.
    factors = motion.path(1.0)[: step + 1]
    if min(factors) <= 0:
        peak = max(motion.lrs) * motion.decays[0]
        raise ValueError(
            f"a decay of {motion.decays[0]:.3g} at this learning rate (their product reaches {peak:.3g}) "
            "throws s past 0 before the onset; take a smaller push or more steps"
        )
    # Half a step early, so that rounding cannot move the crossing to the next step.
    return s_on / math.sqrt(factors[step] * factors[step - 1])


def _start_of_shift(motion: Motion, step: int, s_on: float) -> float:
    before, after = sum(motion.lrs[:step]), sum(motion.lrs[step:])
    needed = 0.7 * abs(s_on)  # from s_on to 0.3 s_on, the same stretch as ENOUGH
    if after < needed:
        raise ValueError(
            f"Adam with coupled decay moves s by about lr per step, {after:.3g} after the onset, where "
            f"{needed:.3g} are needed; give s an SGD or AdamW group, or an lr "
            f"{math.ceil(needed / max(after, 1e-12)):,} times as large"
        )
    s_init = s_on - before
    for _ in range(_ROUNDS):
        miss = motion.path(s_init)[step] - (s_on + 0.5 * motion.lrs[step - 1])
        if abs(miss) < 0.25 * motion.lrs[step - 1]:
            break
        s_init -= miss
    return s_init


def _remarks(motion: Motion, push: float, decay: float, left: float, about_schedule: str | None) -> list[str]:
    remarks = [about_schedule] if about_schedule else []
    if motion.kind == "adam":
        remarks.append("under Adam with coupled decay the speed of s does not depend on the decay")
    elif left < ENOUGH:
        remarks.append(
            f"a push of only {left:.2f} is left after the onset, {ENOUGH} is needed: take an earlier onset or more push"
        )
    if decay > 1e-3:
        remarks.append("this decay is for s only; on the weights it would cost accuracy (theirs: 1e-4 to 5e-4)")
    if push > HARD and len(motion.lrs) < SHORT:
        remarks.append(f"a push above {HARD:g} in a short run can empty whole layers: watch their densities")
    return remarks
