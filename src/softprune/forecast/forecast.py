"""What is likely to go wrong with a threshold s in a planned run, and what to do about it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from softprune.core.groups import group_of, whole
from softprune.forecast.propose import ENOUGH, HARD, SHORT, check_onset_value
from softprune.forecast.schedule import Schedule, caveat
from softprune.forecast.simulate import LONGEST, Motion, crossing, read_motion, stride
from softprune.methods.transforms import SoftThreshold, Target
from softprune.ops import G

_AT_ONCE = 0.01  # of the run
_REACH = 0.3  # of the sum of learning rates: the largest start that Adam with coupled decay brings home
_SOFT = 16.0  # the largest push that did not empty the small network of the documentation
_TYPICAL_PUSH, _TYPICAL_ONSET = 8.2, 0.28


def _notes(motion: Motion, scheduler: Schedule) -> tuple[str, ...]:
    found = [text for text in [caveat(scheduler)] if text]
    if motion.kind not in ("sgd", "adamw", "adam"):
        text = f"{motion.kind} was tried out on one number with no loss gradient"
        if len(motion.lrs) > LONGEST:
            text += f", {stride(len(motion.lrs))} steps at a time: crossings are approximate"
        found.append(text)
    return tuple(found)


def _warnings(
    motion: Motion, path: Sequence[float], *, s: torch.Tensor, s_on: float, decay: float, onset_step: int | None
) -> tuple[str, ...]:
    """The warnings for one forecast path, the most important first."""
    K = sum(motion.gains())
    if still := _stands_still(motion, path, s, decay, K):
        return (still,)
    X, steps, found = decay * K, len(motion.lrs), []
    if any(name in motion.kind.lower() for name in ("lars", "lamb")):
        found.append(
            f"{motion.kind} scales the step of s by the ratio of its norm to the norm of its decay: the decay "
            "cancels and s runs to 0 at once; exclude s from the adaptation, or give it an SGD of its own"
        )
    if motion.kind == "adam" and abs(path[0]) > _REACH * K:
        found.append(
            f"Adam with coupled decay moves s by about lr per step whatever the decay, {K:.3g} in the whole run; "
            f"s starts at {path[0]:g}, further than {_REACH:g} of that ({_REACH * K:.3g}); "
            "start nearer, or give s an SGD or AdamW group"
        )
    if onset_step is None:
        found.append(_late(motion, path, s_on, K))
    elif onset_step < _AT_ONCE * steps:
        found.append(_early(motion, path, s_on, onset_step))
    left = ENOUGH if onset_step is None else X * (1 - motion.shares()[onset_step])
    if motion.exponential and left < ENOUGH:
        found.append(
            f"little sparsity: after the onset a push of only {left:.2f} is left (X = {X:.2f}), {ENOUGH} is "
            "needed to bring s to where the loss holds it; raise its decay, train longer, or start it nearer to 0"
        )
    if motion.exponential and X > HARD and steps < SHORT:
        found.append(
            f"X = {X:.1f} is a hard push for {steps:,} steps and may empty whole layers (one small network stood "
            "16 and collapsed at 30; the paper went to 47, but over 500,500 steps); a decay of s up to "
            f"{_SOFT / K:.2g} keeps X below {_SOFT:g}; otherwise watch the density of every layer"
        )
    return tuple(found)


def _stands_still(motion: Motion, path: Sequence[float], s: torch.Tensor, decay: float, K: float) -> str | None:
    if not s.requires_grad:
        return "s would never move: requires_grad is False, so the optimizer skips it; s.requires_grad_(True)"
    if not K:
        return "s would never move: its learning rate is 0 in every step; give its param group one above 0"
    if "weight_decay" not in motion.constants and min(path) == max(path):
        return f"s would never move: {motion.kind} knows no weight decay; give s a torch.optim.SGD of its own"
    if min(path) == max(path):
        typical = f"{_TYPICAL_PUSH / K:.3g} (X = {_TYPICAL_PUSH})" if motion.exponential else "1e-4"
        return (
            f"s would never move: the weight decay of its param group is {decay:g} (a rule that spares 1-D "
            f"tensors may have caught s); set it above 0 for that group, e.g. {typical}"
        )
    spacing = torch.finfo(s.dtype).eps / 2
    largest = decay * max(motion.gains())
    if motion.exponential and largest < spacing / 2:
        return (
            f"s would never move: a step changes it by a fraction of at most {largest:.2g}, less than "
            f"{s.dtype} can hold ({spacing:.2g}); keep s in float32, or raise its decay ({decay:g})"
        )
    return None


def _late(motion: Motion, path: Sequence[float], s_on: float, K: float) -> str:
    text = f"no sparsity: s goes from {path[0]:g} to {path[-1]:.4g} and never reaches {s_on:g}; "
    if not motion.exponential:
        return text + f"start nearer to {s_on:g}, raise the learning rate of s, or give s an SGD group"
    needed = math.log(path[0] / s_on) + ENOUGH
    share = motion.shares()[round(_TYPICAL_ONSET * len(motion.lrs))]
    return text + (
        f"from there X must be at least {needed:.1f}, a decay of {needed / K:.2g} on s; or take a decay of "
        f"{_TYPICAL_PUSH / K:.2g} with s_init {s_on * math.exp(_TYPICAL_PUSH * share):.0f}"
    )


def _early(motion: Motion, path: Sequence[float], s_on: float, onset_step: int) -> str:
    text = (
        f"sparsity sets in at step {onset_step:,}, within the first {_AT_ONCE:.0%} of the run: "
        f"s_init {path[0]:g} is too close to {s_on:g}; "
    )
    if not motion.exponential:
        return text + f"start further below {s_on:g}"
    X = sum(gain * decay for gain, decay in zip(motion.gains(), motion.decays, strict=True))
    share = motion.shares()[round(_TYPICAL_ONSET * len(motion.lrs))]
    return text + f"start at {s_on * math.exp(X * share):.0f} for an onset at {_TYPICAL_ONSET} of the run"


# For a sigmoid in float32: exactly dense below -88.7, numerically dense below -20, first weights vanish at
# about -10, the loss takes over at about -5.
MARKS = (-88.7, -20.0, -10.0, -5.0)


@dataclass(frozen=True)
class Forecast:
    """The path of s as far as weight decay decides it."""

    kind: str  # "sgd", "adamw" (decoupled decay), "adam" (coupled decay), or the class that was simulated
    steps: int  # length of the run
    decay: float  # weight decay of s (the mean, if a scheduler changes it)
    K: float  # sum over the run of lr (1 - dampening) / (1 - momentum) for SGD, of lr for all others
    X: float | None  # decay * K, the exponent of s(T) = s_init exp(-X); None where s does not move by a factor
    s_init: float  # s at present; the largest entry if s has several, since it arrives first
    s_end: float  # s after the run, if the loss did not resist
    s_on: float  # value at which the first weights vanish
    onset_step: int | None  # steps after which s >= s_on for the first time; None if never
    onset: float | None  # the same as a fraction of the run
    # pairs of a value of s and the steps after which it is reached (None if never)
    crossings: tuple[tuple[float, int | None], ...]
    warnings: tuple[str, ...]  # what is likely to go wrong, each with its remedy
    notes: tuple[str, ...]  # what the forecast had to assume

    def __str__(self) -> str:
        push = "-" if self.X is None else f"{self.X:.2f}"
        rows = [
            (f"forecast of s over {self.steps:,} steps", f"{self.kind}, decay {self.decay:.4g}"),
            ("K, what the schedule does to a decay of 1", f"{self.K:,.6g}"),
            ("X = decay * K, the push on s", push),
            ("s at the start", f"{self.s_init:.5g}"),
            *((f"s = {mark:g}", self._when(step)) for mark, step in self.crossings),
            ("s at the end, if the loss did not resist", f"{self.s_end:.4g}"),
        ]
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {value}" for name, value in rows]
        lines.append(
            f"sparsity is not expected to set in: s does not reach {self.s_on:g}"
            if self.onset_step is None
            else f"sparsity is expected to set in {self._when(self.onset_step)}, when s reaches {self.s_on:g}"
        )
        lines += [f"warning: {text}" for text in self.warnings]
        lines += [f"note: {text}" for text in self.notes]
        return "\n".join(lines)

    def _when(self, step: int | None) -> str:
        return "never" if step is None else f"at step {step:,} ({100 * step / self.steps:.1f} % of the run)"


def forecast(
    optimizer: Optimizer,
    *,
    s: torch.Tensor,
    s_on: float,
    total_steps: int,
    scheduler: Schedule = None,
    steps_per_scheduler_step: int = 1,
    marks: Sequence[float] = MARKS,
) -> Forecast:
    """Return when s will reach the values that matter, from the optimizer and scheduler of the run.

        s(t) = s_init exp(-decay K F(t))      (SGD and decoupled decay; computed by the exact recursion)

    The state already gathered by the optimizer (momentum) is left out. After the onset the loss resists, so
    what follows it is a bound, not a prediction. Nothing given is changed.

    Args:
        optimizer: of the run, with s in one of its param groups.
        s: the threshold.
        s_on: value of s at which the first weights vanish, below 0; -10 for a sigmoid.
        total_steps: optimizer steps of the run (from now on, if it is resumed).
        scheduler, steps_per_scheduler_step: see `learning_rates`.
        marks: values of s whose crossing to report.

    Raises:
        TypeError: the optimizer can be neither computed nor tried out.
        ValueError: s is not in the optimizer, or a number is out of range.

    Example:
        >>> s = torch.nn.Parameter(torch.tensor([-100.0]))
        >>> sgd = torch.optim.SGD([s], lr=0.1, momentum=0.9, weight_decay=5e-3)
        >>> forecast(sgd, s=s, s_on=-10.0, total_steps=1000).onset
        0.448
    """
    check_onset_value(s_on)
    groups = optimizer.param_groups
    group = next((i for i, held in enumerate(groups) if any(parameter is s for parameter in held["params"])), None)
    if group is None:
        raise ValueError(
            f"s (shape {tuple(s.shape)}) is in none of the {len(groups)} param groups of this "
            f"{type(optimizer).__name__}, so it would never move; build the optimizer from groups that hold it"
        )
    start = float(whole(s.detach()).max())
    if not math.isfinite(start):
        raise ValueError(f"s is {start}; it must be finite to move at all")
    motion = read_motion(
        optimizer, scheduler, total_steps, steps_per_scheduler_step=steps_per_scheduler_step, group=group
    )
    # torch skips a parameter without gradient, and with it its decay.
    path = motion.path(start, ndim=s.ndim) if s.requires_grad else [start] * (total_steps + 1)
    gains = motion.gains()
    K = math.fsum(gains)
    X = math.fsum(decay * gain for decay, gain in zip(motion.decays, gains, strict=True))
    decay = motion.decays[0] if len(set(motion.decays)) == 1 or not K else X / K
    onset_step = crossing(path, s_on)
    return Forecast(
        kind=motion.kind,
        steps=total_steps,
        decay=decay,
        K=K,
        X=X if motion.exponential else None,
        s_init=start,
        s_end=path[-1],
        s_on=s_on,
        onset_step=onset_step,
        onset=None if onset_step is None else onset_step / total_steps,
        crossings=tuple((mark, crossing(path, mark)) for mark in marks),
        warnings=_warnings(motion, path, s=s, s_on=s_on, decay=decay, onset_step=onset_step),
        notes=_notes(motion, scheduler),
    )


# The first weights vanish when the threshold has come to this share of its scale k: s = -10 for sigmoid.
ONSET_SHARE = 4.5397868702434395e-05


def onset_of(g: G) -> float | None:
    """The s at which the first weights vanish; None for a custom g that has another range."""
    onset = float(g.inverse(torch.tensor([ONSET_SHARE * g.scale], dtype=torch.float64)))
    return onset if onset < 0 else None


class ForecastWarning(UserWarning):
    """Sparsity will not come as it should with this optimizer and schedule."""


def forecast_first_threshold(
    targets: Sequence[Target],
    optimizers: Sequence[Optimizer],
    total_steps: int,
    scheduler: Any,
    steps_per_scheduler_step: int,
    *,
    done: int,
) -> Forecast | None:
    """The forecast of the first learnable threshold (they all start alike unless a rule says otherwise).

    In a training that is continued, after `done` of its steps, nothing about the start of s is worth a warning.
    """
    soft = [t.transform for t in targets if isinstance(t.transform, SoftThreshold)]
    held = ((found[0], one) for one in soft if one.s.requires_grad and (found := group_of(one.s, optimizers)))
    optimizer, transform = next(held, (None, None)) if done < total_steps else (None, None)
    onset = None if transform is None else onset_of(transform.g)
    if optimizer is None or transform is None or onset is None:
        return None
    left, every = total_steps - done, steps_per_scheduler_step
    seen = forecast(
        optimizer, s=transform.s, s_on=onset, total_steps=left, scheduler=scheduler, steps_per_scheduler_step=every
    )
    for text in () if done else seen.warnings:
        warnings.warn(text, ForecastWarning, stacklevel=3)
    return seen
