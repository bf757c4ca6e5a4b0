"""What weight decay will do to a threshold s in a planned run, before the first step is taken."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from softprune.core.forecasting.caution import cautions, notes
from softprune.core.forecasting.motion import read_motion
from softprune.core.forecasting.proposal import check_onset_value
from softprune.core.forecasting.schedule import Schedule
from softprune.core.forecasting.trajectory import crossing
from softprune.core.sharding import whole

# For a sigmoid in float32: exactly dense below -88.7, numerically dense below -20, first weights vanish at
# about -10, the loss takes over at about -5.
MARKS = (-88.7, -20.0, -10.0, -5.0)


@dataclass(frozen=True)
class Forecast:
    """The path of s as far as weight decay decides it.

    Attributes:
        kind: "sgd", "adamw" (decoupled decay), "adam" (coupled decay), or the class that was simulated.
        steps: length of the run.
        decay: weight decay of s (the mean, if a scheduler changes it).
        K: sum over the run of lr (1 - dampening) / (1 - momentum) for SGD, of lr for all others.
        X: decay * K, the exponent of s(T) = s_init exp(-X); None where s does not move by a factor.
        s_init: s at present; the largest entry if s has several, since it arrives first.
        s_end: s after the run, if the loss did not resist.
        s_on: value at which the first weights vanish.
        onset_step: steps after which s >= s_on for the first time; None if never.
        onset: the same as a fraction of the run.
        crossings: pairs of a value of s and the steps after which it is reached (None if never).
        warnings: what is likely to go wrong, each with its remedy.
        notes: what the forecast had to assume.
    """

    kind: str
    steps: int
    decay: float
    K: float
    X: float | None
    s_init: float
    s_end: float
    s_on: float
    onset_step: int | None
    onset: float | None
    crossings: tuple[tuple[float, int | None], ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

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
        optimizer: the optimizer of the run, with s in one of its param groups.
        s: the threshold parameter.
        s_on: value of s at which the first weights vanish, below 0; -10 for a sigmoid.
        total_steps: optimizer steps of the run (from now on, if it is resumed).
        scheduler: see `learning_rates`.
        steps_per_scheduler_step: see `learning_rates`.
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
    group = _group(optimizer, s)
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
        warnings=cautions(motion, path, s=s, s_on=s_on, decay=decay, onset_step=onset_step),
        notes=notes(motion, scheduler),
    )


def _group(optimizer: Optimizer, s: torch.Tensor) -> int:
    for index, group in enumerate(optimizer.param_groups):
        if any(parameter is s for parameter in group["params"]):
            return index
    raise ValueError(
        f"s (shape {tuple(s.shape)}) is in none of the {len(optimizer.param_groups)} param groups of this "
        f"{type(optimizer).__name__}, so it would never move; build the optimizer from groups that hold it"
    )
