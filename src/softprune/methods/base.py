"""The one interface that every method implements, and methods by name and as plain data."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Adagrad, Optimizer

from softprune.goals.base import Schedule, cubic
from softprune.methods.masks import MovingMask, is_count, is_number
from softprune.methods.transforms import Target, Transform
from softprune.ops import Backward, Custom, Exp, G, Sigmoid, Softplus

# What a method can be told to end with: a total for all tensors together (goal), what each of them keeps (budget), or
# nothing, which leaves it to its hyper-parameters.
Total = Literal["none", "goal", "budget"]


@dataclass
class Context:
    """What a hook of a method may read, and the few things it may do beside changing its tensors.

    There is one for each method as rules refined it, the same through the whole training.
    """

    step: int  # optimizer steps completed; in `after_step` the one just made is counted
    total_steps: int
    targets: Sequence[Target]  # the tensors that this method instance manages
    optimizers: Sequence[Optimizer]
    kept: Mapping[str, int] = field(default_factory=dict)  # tensor -> weights to keep, where the method moves masks
    shared: bool = False  # whether the numbers in `kept` are only the first division of a total for all tensors
    seed: int = 0  # of everything that is drawn at random
    memory: dict[str, Any] = field(default_factory=dict)  # kept from step to step; JSON-able, part of every checkpoint
    loss_scale: float = 1.0  # the factor that is still on the gradients
    # (scores, total) -> masks of the largest scores over all tensors together, the same on all processes.
    keep_largest: Callable[[Mapping[str, Tensor], int], dict[str, Tensor]] | None = None
    model: nn.Module | None = None  # the whole model, for methods that touch more than their tensors

    @property
    def progress(self) -> float:
        return self.step / self.total_steps

    def rng(self, name: str) -> torch.Generator:
        """A generator for one tensor at one step: the same on every process, and after a resume."""
        return generator(self.seed, self.step, name)

    def forget(self, target: Target, where: Tensor) -> None:
        """Clear what the optimizers hold for these weights, such as their momentum."""
        for optimizer in self.optimizers:
            for value in optimizer.state.get(target.raw, {}).values():
                if isinstance(value, Tensor) and value.shape == where.shape:
                    value.masked_fill_(where, 0.0)

    def forget_all(self) -> None:
        """Reset the optimizers' state to that before their first step; learning rates and the like stay."""
        for optimizer in self.optimizers:
            if not isinstance(optimizer, Adagrad):
                optimizer.state.clear()
                continue
            # It makes its state when it is built, and expects to find it.
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    optimizer.state[parameter]["sum"].fill_(group["initial_accumulator_value"])
                    optimizer.state[parameter]["step"].zero_()

    def skip_step(self) -> None:
        """Leave all parameters where they are in the step that begins: optimizers pass over those without gradient."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None


def generator(seed: int, step: int, name: str) -> torch.Generator:
    """On the CPU; its seed depends on these three alone."""
    digest = hashlib.sha256(f"{seed}/{step}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


@dataclass(frozen=True)
class GoalSettings:
    """How a method approaches a goal or a budget."""

    # How far a threshold can travel against the others over a training, in units of log alpha; 0: not at all.
    pace: float = 0.0
    # Of the thresholds: "projected" along the fixed total, or "plain", as if the shared offset did not respond.
    gradient: Literal["projected", "plain"] = "projected"
    # Thresholds first proportional to a tensor's "mean" |w|, "equal", or as 1 / sqrt(the sum of its "dimensions").
    start: Literal["mean", "equal", "dimensions"] = "equal"
    every: int = 1  # steps between two solutions; 0 solves only when the schedule asks for another share of the goal
    min_keep: int = 0  # weights that each tensor keeps whatever happens; 0 leaves it to the default floor
    schedule: Schedule = field(default_factory=cubic)  # share of the goal over the training, if the user gives none
    rounds: int = 1  # trainings of equal length, one after the other, each with the whole learning rate schedule
    restart_at: float = 0.0  # the fraction of the learning rate schedule that all rounds but the first leave out

    def check(self) -> None:
        """Raise ValueError for a setting that is out of its range."""
        if not (is_number(self.pace) and 0 <= self.pace < math.inf):
            raise ValueError(f"pace is a distance in units of log alpha, 0 or more; got {self.pace!r}")
        if self.gradient not in ("projected", "plain"):
            raise ValueError(f"gradient must be 'projected' or 'plain', got {self.gradient!r}")
        if self.start not in ("mean", "equal", "dimensions"):
            raise ValueError(f"start must be 'mean', 'equal' or 'dimensions', got {self.start!r}")
        if not is_count(self.every, least=0):
            raise ValueError(f"every is a number of steps, 0 or more; got {self.every!r}")
        if not is_count(self.min_keep, least=0):
            raise ValueError(f"min_keep is a number of weights, 0 or more; got {self.min_keep!r}")


class Method(ABC):
    """An algorithm that decides which weights are zero.

    Subclasses are frozen dataclasses of hyper-parameters: hashable, without state, JSON in and out.
    All their tensors live in the transforms, so `model.state_dict()` is complete.
    """

    role: ClassVar[Literal["given", "moved", "learned"]]  # it keeps a budget, moves it between tensors, or learns it
    paper: ClassVar[str]  # where it was published
    accepts: ClassVar[tuple[Total, ...]] = ("none",)  # what it can be told to end with
    moves_masks: ClassVar[bool] = False  # whether it moves masks of its own, and not thresholds that are solved for
    selects: ClassVar[bool] = True  # whether by the loss; else weights are drawn at random or chosen before training

    def __post_init__(self) -> None:
        """Refuse hyper-parameters that are out of their range; a method with checks of its own calls this too."""
        self.goal_settings.check()

    @property
    def goal_settings(self) -> GoalSettings:
        return GoalSettings()

    @property
    def reads_weights(self) -> bool:
        """Whether it looks at whole weights after a step, which no process has once a model is sharded."""
        return self.moves_masks

    def transform(self, target: Target, total: Total, mask: Tensor | None) -> Transform:
        """The map from the raw to the effective tensor of a target, for a total that the method accepts.

        For methods that move masks, `mask` has the shape of the tensor, with as many true as it may keep, at random.
        """
        if total == "none":
            raise ValueError(f"{type(self).__name__} prunes to a total: pass a goal or a budget")
        if mask is None:
            raise ValueError(f"{type(self).__name__} takes neither a goal nor a budget")
        return MovingMask(mask)

    def link(self, model: nn.Module, transforms: Mapping[str, Transform], methods: Mapping[str, Method]) -> None:  # noqa: B027
        """Let the transforms of a model share parameters, and keep what concerns all of it, before they are installed.

        `methods` has for each tensor this method as the rules refined it.
        """

    def check(self, ctx: Context) -> None:  # noqa: B027
        """Refuse a training that cannot work, before its first step."""

    def before_step(self, ctx: Context) -> None:  # noqa: B027
        """Gradients are ready, weights have not moved. Runs without gradient tracking."""

    def after_step(self, ctx: Context) -> None:  # noqa: B027
        """Weights have moved, goals are solved for, transforms have followed. Runs without gradient tracking."""


# Methods by name, and as plain data.

M = TypeVar("M", bound=type[Method])

_METHODS: dict[str, type[Method]] = {}
_GS: dict[str, type[G]] = {"sigmoid": Sigmoid, "exp": Exp, "softplus": Softplus}


def register(name: str) -> Callable[[M], M]:
    """Class decorator: make a method known by name."""

    def add(cls: M) -> M:
        if name in _METHODS:
            raise ValueError(f"a method named {name!r} exists already: {_METHODS[name].__qualname__}")
        _METHODS[name] = cls
        return cls

    return add


def method_names() -> list[str]:
    return sorted(_METHODS)


def method_class(name: str) -> type[Method]:
    if not isinstance(name, str) or name not in _METHODS:
        raise ValueError(f"unknown method {name!r}; known are {', '.join(method_names())}")
    return _METHODS[name]


def to_config(method: Method) -> dict[str, Any]:
    """The method as JSON-able data: its name and the fields that differ from their defaults."""
    names = {cls: name for name, cls in _METHODS.items()}
    if type(method) not in names:
        raise ValueError(f"{type(method).__qualname__} is not registered: decorate it with @register(name)")
    given = {f.name: (getattr(method, f.name), f.default) for f in dataclasses.fields(method)}  # type: ignore[arg-type]
    return {"method": names[type(method)]} | {k: _encode(v) for k, (v, default) in given.items() if v != default}


def from_config(config: Mapping[str, Any]) -> Method:
    """The method that `to_config` described; unknown methods and fields are refused, naming the known ones."""
    given = dict(config)
    cls = method_class(name := given.pop("method", None))
    fields = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(set(given) - fields):
        raise ValueError(f"method {name!r} has no field {', '.join(unknown)}; it has {', '.join(sorted(fields))}")
    return cls(**{key: _decode(value) for key, value in given.items()})


def _encode(value: Any) -> Any:
    if isinstance(value, Custom):
        raise ValueError("a Custom g holds Python functions and cannot be written to a file; use a named g there")
    if isinstance(value, G):
        kind = next((name for name, cls in _GS.items() if type(value) is cls), None)
        if kind is None:
            raise ValueError(f"{type(value).__name__} is not one of {', '.join(_GS)} and cannot be written to a file")
        return {"g": kind, "k": value.k}
    if isinstance(value, Backward):
        return {"leak": value.leak} if value.until is None else {"leak": value.leak, "until": value.until}
    return value


def _decode(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "g" in value and set(value) <= {"g", "k"}:
        if value["g"] not in _GS:
            raise ValueError(f"unknown g {value['g']!r}; known are {', '.join(_GS)}")
        return _GS[value["g"]](k=value.get("k", 1.0))
    if "leak" in value and set(value) <= {"leak", "until"}:
        return Backward(value["leak"], value.get("until"))
    raise ValueError(f"cannot read the value {dict(value)!r}")
