"""What is likely to go wrong with a threshold s in a planned run, and what to do about it."""

import math
from collections.abc import Sequence

import torch

from softprune.core.forecasting.motion import Motion
from softprune.core.forecasting.proposal import ENOUGH, HARD, SHORT
from softprune.core.forecasting.schedule import Schedule, caveat
from softprune.core.forecasting.simulation import LONGEST, stride

_AT_ONCE = 0.01  # of the run
_REACH = 0.3  # of the sum of learning rates: the largest start that Adam with coupled decay brings home
_SOFT = 16.0  # the largest push that did not empty the small network of the documentation
_TYPICAL_PUSH, _TYPICAL_ONSET = 8.2, 0.28


def notes(motion: Motion, scheduler: Schedule) -> tuple[str, ...]:
    """Return what the forecast had to assume."""
    found = [text for text in [caveat(scheduler)] if text]
    if motion.kind not in ("sgd", "adamw", "adam"):
        steps = len(motion.lrs)
        text = f"{motion.kind} was tried out on one number with no loss gradient"
        if steps > LONGEST:
            text += f", {stride(steps)} steps at a time: crossings are approximate"
        found.append(text)
    return tuple(found)


def cautions(
    motion: Motion,
    path: Sequence[float],
    *,
    s: torch.Tensor,
    s_on: float,
    decay: float,
    onset_step: int | None,
) -> tuple[str, ...]:
    """Return the warnings for one forecast path, the most important first."""
    K = sum(motion.gains())
    still = _stands_still(motion, path, s, decay, K)
    if still:
        return (still,)
    found = [
        _trust_ratio(motion),
        _coupled_adam(motion, path[0], K),
        _late(motion, path, s_on, K) if onset_step is None else _early(motion, path, s_on, onset_step, K),
        _weak(motion, decay * K, onset_step),
        _hard(motion, decay * K, K),
    ]
    return tuple(text for text in found if text)


def _stands_still(motion: Motion, path: Sequence[float], s: torch.Tensor, decay: float, K: float) -> str | None:
    if not s.requires_grad:
        return "s would never move: requires_grad is False, so the optimizer skips it; s.requires_grad_(True)"
    if not K:
        return "s would never move: its learning rate is 0 in every step; give its param group one above 0"
    if "weight_decay" not in motion.constants and min(path) == max(path):
        return f"s would never move: {motion.kind} knows no weight decay; give s a torch.optim.SGD of its own"
    if min(path) == max(path):
        return (
            f"s would never move: the weight decay of its param group is {decay:g} (a rule that spares 1-D "
            f"tensors may have caught s); set it above 0 for that group, {_typical(motion, K)}"
        )
    spacing = torch.finfo(s.dtype).eps / 2
    largest = decay * max(motion.gains())
    if motion.exponential and largest < spacing / 2:
        return (
            f"s would never move: a step changes it by a fraction of at most {largest:.2g}, less than "
            f"{s.dtype} can hold ({spacing:.2g}); keep s in float32, or raise its decay ({decay:g})"
        )
    return None


def _typical(motion: Motion, K: float) -> str:
    if not motion.exponential:
        return "e.g. 1e-4"
    return f"e.g. {_TYPICAL_PUSH / K:.3g} (X = {_TYPICAL_PUSH})"


def _trust_ratio(motion: Motion) -> str | None:
    name = motion.kind.lower()
    if not ("lars" in name or "lamb" in name):
        return None
    return (
        f"{motion.kind} scales the step of s by the ratio of its norm to the norm of its decay: the decay "
        "cancels and s runs to 0 at once; exclude s from the adaptation, or give it an SGD of its own"
    )


def _coupled_adam(motion: Motion, s_init: float, K: float) -> str | None:
    if motion.kind != "adam" or abs(s_init) <= _REACH * K:
        return None
    return (
        f"Adam with coupled decay moves s by about lr per step whatever the decay, {K:.3g} in the whole run; "
        f"s starts at {s_init:g}, further than {_REACH:g} of that ({_REACH * K:.3g}); "
        "start nearer, or give s an SGD or AdamW group"
    )


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


def _early(motion: Motion, path: Sequence[float], s_on: float, onset_step: int, K: float) -> str | None:
    steps = len(motion.lrs)
    if onset_step >= _AT_ONCE * steps:
        return None
    text = (
        f"sparsity sets in at step {onset_step:,}, within the first {_AT_ONCE:.0%} of the run: "
        f"s_init {path[0]:g} is too close to {s_on:g}; "
    )
    if not motion.exponential:
        return text + f"start further below {s_on:g}"
    X = sum(gain * decay for gain, decay in zip(motion.gains(), motion.decays, strict=True))
    share = motion.shares()[round(_TYPICAL_ONSET * steps)]
    return text + f"start at {s_on * math.exp(X * share):.0f} for an onset at {_TYPICAL_ONSET} of the run"


def _weak(motion: Motion, X: float, onset_step: int | None) -> str | None:
    if onset_step is None or not motion.exponential:
        return None
    left = X * (1 - motion.shares()[onset_step])
    if left >= ENOUGH:
        return None
    return (
        f"little sparsity: after the onset a push of only {left:.2f} is left (X = {X:.2f}), {ENOUGH} is "
        "needed to bring s to where the loss holds it; raise its decay, train longer, or start it nearer to 0"
    )


def _hard(motion: Motion, X: float, K: float) -> str | None:
    steps = len(motion.lrs)
    if not motion.exponential or X <= HARD or steps >= SHORT:
        return None
    return (
        f"X = {X:.1f} is a hard push for {steps:,} steps and may empty whole layers (one small network stood "
        "16 and collapsed at 30; the paper went to 47, but over 500,500 steps); a decay of s up to "
        f"{_SOFT / K:.2g} keeps X below {_SOFT:g}; otherwise watch the density of every layer"
    )
