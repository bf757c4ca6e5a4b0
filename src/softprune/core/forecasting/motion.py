"""What an optimizer and its schedule will do to a threshold s: the recursion that applies and its numbers."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, cast

from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer, RAdam

from softprune.core.forecasting.schedule import Schedule, settings
from softprune.core.forecasting.simulation import simulate
from softprune.core.forecasting.trajectory import trajectory


@dataclass(frozen=True)
class Motion:
    """The part of a training plan that decides how weight decay moves s.

    Attributes:
        kind: "sgd", "adamw" (every decoupled decay), "adam" (decay coupled into Adam's gradient), or the name
            of a class that has to be simulated.
        lrs: learning rate of each step.
        momenta: momentum of each step (beta1 in the Adam family).
        decays: weight decay of each step.
        constants: the other hyper-parameters of the param group.
        optimizer: the optimizer class.
    """

    kind: str
    lrs: Sequence[float]
    momenta: Sequence[float]
    decays: Sequence[float]
    constants: dict[str, Any]
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
        pairs = zip(self.lrs, self.momenta, strict=True)
        return [lr * passed / (1 - mu) if mu else lr for lr, mu in pairs]

    def shares(self) -> list[float]:
        """Return F, the share of K that is spent after 0, 1, ..., N steps (0 throughout if K is 0)."""
        sums = [0.0, *accumulate(self.gains())]
        return [part / sums[-1] if sums[-1] else 0.0 for part in sums]

    def path(self, s_init: float, *, ndim: int = 1) -> list[float]:
        """Return s after 0, 1, ..., N steps if the loss does not resist; ``ndim`` is the rank of s."""
        constants = self.constants
        if self.kind not in ("sgd", "adamw", "adam"):
            return simulate(
                self.optimizer,
                s_init,
                settings=constants,
                lrs=self.lrs,
                momenta=self.momenta,
                decays=self.decays,
                ndim=ndim,
            )
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
    The arguments are those of `learning_rates`.
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
