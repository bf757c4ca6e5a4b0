"""The path of a threshold s that only weight decay moves, on plain numbers.

Far below zero the threshold g(s) is 0 and so is its slope: until sparsity sets in the loss exerts no force on
s, and its path can be computed before training. ``s`` is the raw threshold, ``mu`` the momentum.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Literal, TypeAlias

# One value for the whole run, or one per step.
Course: TypeAlias = float | Sequence[float]


def trajectory(
    kind: Literal["sgd", "adamw", "adam"],
    s_init: float,
    lrs: Sequence[float],
    *,
    decay: Course,
    momentum: Course | None = None,
    dampening: float = 0.0,
    nesterov: bool = False,
    beta2: float = 0.999,
    eps: float = 1e-8,
    amsgrad: bool = False,
) -> list[float]:
    """Return s after 0, 1, ..., N steps, by the recursion that torch runs (here in float64).

        sgd:    v <- mu v + (1 - dampening) decay s,   s <- s - lr v      (first step: v = decay s)
        adamw:  s <- s (1 - lr decay)
        adam:   Adam's step on the gradient decay s, which is about lr whatever the decay

    Args:
        kind: the recursion; what the others need is ignored.
        s_init: s before the first step.
        lrs: learning rate of each step.
        decay: weight decay of s, one value or one per step.
        momentum: of SGD (default 0), beta1 of Adam (default 0.9); one value or one per step.
        dampening: of SGD; like torch, not applied to the first step.
        nesterov: of SGD.
        beta2: of Adam.
        eps: of Adam.
        amsgrad: of Adam.

    Example:
        >>> trajectory("adamw", -8.0, [0.5, 0.5, 0.5], decay=1.0)
        [-8.0, -4.0, -2.0, -1.0]
    """
    decays = _course(decay)
    if kind == "sgd":
        momenta = _course(0.0 if momentum is None else momentum)
        return _sgd(s_init, lrs, decays, momenta, dampening=dampening, nesterov=nesterov)
    if kind == "adamw":
        return _adamw(s_init, lrs, decays)
    if kind == "adam":
        momenta = _course(0.9 if momentum is None else momentum)
        return _adam(s_init, lrs, decays, momenta, beta2=beta2, eps=eps, amsgrad=amsgrad)
    raise ValueError(f"kind is {kind!r}; it must be 'sgd', 'adamw' or 'adam'")


def crossing(path: Sequence[float], mark: float) -> int | None:
    """Return after how many steps the path is at or above ``mark`` for the first time, None if never."""
    return next((step for step, s in enumerate(path) if s >= mark), None)


def _course(value: Course) -> Iterable[float]:
    return value if isinstance(value, Sequence) else repeat(float(value))


def _sgd(
    s: float,
    lrs: Sequence[float],
    decays: Iterable[float],
    momenta: Iterable[float],
    *,
    dampening: float,
    nesterov: bool,
) -> list[float]:
    path = [s]
    buffer: float | None = None
    passed = 1 - dampening
    for lr, decay, mu in zip(lrs, decays, momenta, strict=False):
        move = decay * s
        if mu:  # without momentum torch neither reads nor fills the buffer
            buffer = move if buffer is None else mu * buffer + passed * move
            move = move + mu * buffer if nesterov else buffer
        s -= lr * move
        path.append(s)
    return path


def _adamw(s: float, lrs: Sequence[float], decays: Iterable[float]) -> list[float]:
    path = [s]
    for lr, decay in zip(lrs, decays, strict=False):
        s *= 1 - lr * decay
        path.append(s)
    return path


def _adam(
    s: float,
    lrs: Sequence[float],
    decays: Iterable[float],
    momenta: Iterable[float],
    *,
    beta2: float,
    eps: float,
    amsgrad: bool,
) -> list[float]:
    path = [s]
    first = second = peak = 0.0
    for step, (lr, decay, beta1) in enumerate(zip(lrs, decays, momenta, strict=False), start=1):
        gradient = decay * s
        first += (1 - beta1) * (gradient - first)
        second = beta2 * second + (1 - beta2) * gradient * gradient
        peak = max(peak, second) if amsgrad else second
        size = math.sqrt(peak / (1 - beta2**step)) + eps
        s -= lr / (1 - beta1**step) * first / size
        path.append(s)
    return path
