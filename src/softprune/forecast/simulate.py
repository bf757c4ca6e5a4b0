"""The path of a threshold under an optimizer whose recursion we do not know: run it and look.

The optimizer's own class takes the steps, on one float64 number with a loss gradient of zero. A torch step
costs tens of microseconds, so long runs are taken in longer strides.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Any, Literal, TypeAlias, cast

import torch
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer, RAdam

from softprune.forecast.schedule import Schedule, settings

LONGEST = 20_000  # steps taken at most: about two seconds


def stride(total_steps: int) -> int:
    """How many steps of the run one simulated step stands for."""
    return math.ceil(total_steps / LONGEST)


def simulate(
    kind: type[Optimizer],
    s_init: float,
    *,
    settings: Mapping[str, Any],
    lrs: Sequence[float],
    momenta: Sequence[float],
    decays: Sequence[float],
    ndim: int = 1,
) -> list[float]:
    """Return s after 0, 1, ..., N steps of the optimizer class with no loss gradient.

    A stride of n steps is one step with the sum of their learning rates; the values between are interpolated.
    `settings` are the hyper-parameters of the param group, `ndim` is the rank of the real tensor: some optimizers treat
    vectors and matrices differently.

    Raises:
        TypeError: the class cannot be built or stepped without its surroundings.
    """
    s = torch.full((1,) * ndim, s_init, dtype=torch.float64, requires_grad=True)
    s.grad = torch.zeros_like(s)
    path = [s_init]
    width = stride(len(lrs))
    try:
        optimizer = _build(kind, s, settings)
        group = optimizer.param_groups[0]
        for start in range(0, len(lrs), width):
            block = lrs[start : start + width]
            group["lr"] = sum(block)
            if "weight_decay" in group:
                group["weight_decay"] = decays[start]
            if "betas" in group:
                group["betas"] = (momenta[start], *group["betas"][1:])
            elif "momentum" in group:
                group["momentum"] = momenta[start]
            s.grad.zero_()  # some optimizers add the decay to the gradient in place
            optimizer.step()
            before, after = path[-1], s.item()
            path.extend(before + (after - before) * (i + 1) / len(block) for i in range(len(block)))
    except Exception as error:
        raise TypeError(
            f"{kind.__name__} cannot be tried out on a single number ({error}); if it wraps an optimizer "
            "give that one, otherwise put s into a torch.optim.SGD of its own"
        ) from error
    return path


def _build(kind: type[Optimizer], s: torch.Tensor, settings: Mapping[str, Any]) -> Optimizer:
    # One number on the CPU: the paths for many tensors, graphs and graphics cards would refuse it or be slow.
    plain = {"foreach": False, "fused": False, "capturable": False}
    group = {
        name: plain.get(name, value.item() if isinstance(value, torch.Tensor) else value)
        for name, value in settings.items()
    }
    accepted = inspect.signature(kind).parameters
    # Some classes insist on arguments (lr) although the group carries them.
    arguments: Any = {name: value for name, value in group.items() if name in accepted and name != "params"}
    return kind([{**group, "params": [s]}], **arguments)


# The path of a threshold s that only weight decay moves: far below zero the threshold g(s) is 0 and so is its slope.
# Until sparsity sets in the loss exerts no force on s, and its path can be computed before training.

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

    The learning rates are those of each step. The momentum mu is SGD's (default 0) or beta1 of Adam (default 0.9); like
    torch, dampening is not applied to the first step.

    Example:
        >>> trajectory("adamw", -8.0, [0.5, 0.5, 0.5], decay=1.0)
        [-8.0, -4.0, -2.0, -1.0]
    """
    s, path = s_init, [s_init]
    default = 0.9 if kind == "adam" else 0.0
    rates, momenta = (
        given if isinstance(given, Sequence) else repeat(float(given))
        for given in (decay, default if momentum is None else momentum)
    )
    steps = zip(lrs, rates, momenta, strict=False)
    if kind == "sgd":
        buffer: float | None = None
        for lr, rate, mu in steps:
            move = rate * s
            if mu:  # without momentum torch neither reads nor fills the buffer
                buffer = move if buffer is None else mu * buffer + (1 - dampening) * move
                move = move + mu * buffer if nesterov else buffer
            s -= lr * move
            path.append(s)
    elif kind == "adamw":
        for lr, rate, _ in steps:
            s *= 1 - lr * rate
            path.append(s)
    elif kind == "adam":
        first = second = peak = 0.0
        for step, (lr, rate, beta1) in enumerate(steps, start=1):
            gradient = rate * s
            first += (1 - beta1) * (gradient - first)
            second = beta2 * second + (1 - beta2) * gradient * gradient
            peak = max(peak, second) if amsgrad else second
            size = math.sqrt(peak / (1 - beta2**step)) + eps
            s -= lr / (1 - beta1**step) * first / size
            path.append(s)
    else:
        raise ValueError(f"kind is {kind!r}; it must be 'sgd', 'adamw' or 'adam'")
    return path


def crossing(path: Sequence[float], mark: float) -> int | None:
    """Return after how many steps the path is at or above ``mark`` for the first time, None if never."""
    return next((step for step, s in enumerate(path) if s >= mark), None)


@dataclass(frozen=True)
class Motion:
    """The part of a training plan that decides how weight decay moves s."""

    # "sgd", "adamw" (every decoupled decay), "adam" (decay coupled into Adam's gradient), or the name of a class that
    # has to be simulated
    kind: str
    lrs: Sequence[float]  # learning rate of each step
    momenta: Sequence[float]  # momentum of each step (beta1 in the Adam family)
    decays: Sequence[float]  # weight decay of each step
    constants: dict[str, Any]  # the other hyper-parameters of the param group
    optimizer: type[Optimizer]

    @property
    def exponential(self) -> bool:
        """Whether s shrinks by a factor, s_init exp(-decay K), and not by an amount."""
        return self.kind in ("sgd", "adamw")

    def gains(self) -> list[float]:
        """Return what each step adds to K: lr (1 - dampening) / (1 - momentum) for SGD, otherwise lr."""
        if self.kind != "sgd":
            return list(self.lrs)
        passed = 1 - float(self.constants["dampening"])
        return [lr * passed / (1 - mu) if mu else lr for lr, mu in zip(self.lrs, self.momenta, strict=True)]

    def shares(self) -> list[float]:
        """Return F, the share of K that is spent after 0, 1, ..., N steps (0 throughout if K is 0)."""
        sums = [0.0, *accumulate(self.gains())]
        return [part / sums[-1] if sums[-1] else 0.0 for part in sums]

    def path(self, s_init: float, *, ndim: int = 1) -> list[float]:
        """Return s after 0, 1, ..., N steps without a gradient of the loss; ``ndim`` is the rank of s."""
        constants = self.constants
        if self.kind not in ("sgd", "adamw", "adam"):
            courses = {"lrs": self.lrs, "momenta": self.momenta, "decays": self.decays}
            return simulate(self.optimizer, s_init, settings=constants, ndim=ndim, **courses)
        return trajectory(
            cast(Literal["sgd", "adamw", "adam"], self.kind),
            s_init,
            self.lrs,
            decay=self.decays,
            momentum=self.momenta,
            dampening=float(constants.get("dampening", 0.0)),
            nesterov=bool(constants.get("nesterov", False)),
            beta2=float(constants["betas"][1]) if "betas" in constants else 0.0,
            eps=float(constants.get("eps", 0.0)),
            amsgrad=bool(constants.get("amsgrad", False)),
        )


def read_motion(
    optimizer: Optimizer,
    scheduler: Schedule,
    total_steps: int,
    *,
    steps_per_scheduler_step: int = 1,
    group: int = 0,
) -> Motion:
    """Read from optimizer and scheduler how decay will move the parameters of one group.

    Momentum and decay are followed through the run like the learning rate, since schedulers change them too.
    """
    lrs: list[float] = []
    momenta: list[float] = []
    decays: list[float] = []
    stretches = settings(
        optimizer, scheduler, total_steps, steps_per_scheduler_step=steps_per_scheduler_step, group=group
    )
    for steps, values in stretches:
        momentum = values["betas"][0] if "betas" in values else values.get("momentum", 0.0)
        lrs.extend([float(values["lr"])] * steps)
        momenta.extend([float(momentum)] * steps)
        decays.extend([float(values.get("weight_decay", 0.0))] * steps)
    held = optimizer.param_groups[group]
    constants = {name: value for name, value in held.items() if name not in ("params", "param_names")}
    return Motion(_kind(optimizer, constants), lrs, momenta, decays, constants, type(optimizer))


def _kind(optimizer: Optimizer, constants: dict[str, Any]) -> str:
    def steps_like(*known: type[Optimizer]) -> bool:
        # A subclass with a step of its own moves s in its own way. torch wraps the step of every class that
        # it meets, so what is compared is the function inside the wrappers.
        own = inspect.unwrap(type(optimizer).step)
        return any(own is inspect.unwrap(other.step) for other in known)

    if steps_like(SGD):
        return "sgd"
    # With no gradient all of them reduce to s <- s (1 - lr decay) once their decay is decoupled.
    decoupled = constants.get("decoupled_weight_decay", isinstance(optimizer, AdamW))
    if decoupled and steps_like(Adam, AdamW, NAdam, RAdam):
        return "adamw"
    return "adam" if steps_like(Adam) else type(optimizer).__name__
