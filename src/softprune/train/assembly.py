"""The processes of a run and its parts from a configuration: data, model, sparsifier, optimizer, and their wrappers."""

from __future__ import annotations

import atexit
import gc
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from softprune.budget.costs import Profile
from softprune.budget.profiler import profile
from softprune.core.candidates import managed_names
from softprune.core.groups import param_groups
from softprune.core.sparsifier import Sparsifier
from softprune.core.sparsify import sparsify
from softprune.forecast.propose import Proposal, propose
from softprune.nn.catalog import build
from softprune.train.config import RunConfig
from softprune.train.config.goal import parse_match
from softprune.train.data.datasets import open_data
from softprune.train.data.source import Source
from softprune.train.schedule import schedule_function, stretch


@dataclass(frozen=True)
class Processes:
    """The rank of this process and the number of processes of the run."""

    rank: int  # 0 to world - 1; only 0 writes files and prints
    world: int  # how many there are
    device: torch.device  # where this one computes

    @property
    def first(self) -> bool:
        return self.rank == 0

    def total(self, *numbers: float) -> list[float]:
        """The sums over all processes; exact for counts."""
        if self.world == 1:
            return list(numbers)
        # float64 on the CPU, where it exists on every back-end that gloo serves; devices have it too, except mps.
        sums = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return sums.tolist()

    def any(self, flag: bool) -> bool:  # noqa: FBT001
        """Whether the flag is set on any process: a decision that all take together."""
        return self.total(float(flag))[0] > 0

    def from_first(self, value: Any) -> Any:
        """The first process's value, on every process."""
        if self.world == 1:
            return value
        box = [value if self.first else None]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def on_first(self, act: Callable[[], object]) -> None:
        """Let the first process act while the others wait; if it fails, they raise a ValueError with its message."""
        if not self.first:
            if (told := self.from_first(None)) is not None:
                raise ValueError(told)
            return
        try:
            act()
        except Exception as error:
            self.from_first(str(error))
            raise
        self.from_first(None)

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the group that torchrun describes in the environment, if it does; one that is there is used, and kept.

    CUDA devices use nccl, everything else gloo. Paths for accelerators are written to be right; they were not run.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world == 1:
        yield Processes(0, 1, device)
        return
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), world, device)
    finally:
        if ours:
            dist.destroy_process_group()


def run_and_leave(main: Callable[[], object], *, patience: float = 60.0) -> NoReturn:
    """Run a program that is one of several processes, and end this process in the one safe way.

    Threads of gloo may still hold tensors when all is done. One that lets go of its tensor while the interpreter is
    being taken down ends the process with SIGABRT, after all results were written. So the process ends without taking
    the interpreter down: exit handlers run, the processes meet, the group is destroyed, output is flushed.

    After a failure there is no meeting, for the others may never come to it: the traceback is printed, and the code
    is the one the interpreter would have ended with, so that torchrun sees it and stops the others. After success the
    others are waited for, `patience` seconds at most: one that has died or takes longer does not change this process's
    code, whose own work is done.
    """
    code = _code_of(main)
    # As in the interpreter, an exit handler that fails has been reported and does not change the code.
    with suppress(BaseException):
        atexit._run_exitfuncs()
    if code == 0 and dist.is_available() and dist.is_initialized():
        _meet_and_destroy(patience)
    for stream in (sys.stdout, sys.stderr):
        # Nobody may be reading any more, and there is no stream at all in a program without a console.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _code_of(main: Callable[[], object]) -> int:
    """The exit code that the interpreter would give, after it has printed what went wrong."""
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)  # noqa: T201
        return 1
    except BaseException as error:
        traceback.print_exc()
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _meet_and_destroy(patience: float) -> None:
    """Meet the other processes and destroy the group; if they do not come the group is left as it is."""
    # A process that leaves while another still talks to it takes the other down.
    try:
        dist.barrier(async_op=True).wait(timedelta(seconds=patience))
    except RuntimeError as error:
        # Destroying the group would now wait for the threads that still wait for the others.
        print(f"the other processes did not come to the end: {error}", file=sys.stderr)  # noqa: T201
        return
    # A wrapper collected after its group would join the group's threads with the interpreter locked.
    gc.disable()
    dist.destroy_process_group()


@dataclass(frozen=True)
class Assembly:
    config: RunConfig  # with its length worked in, see `stretch`
    processes: Processes  # where and among how many this one runs
    model: nn.Module  # the network itself; its names are those in budgets and checkpoints
    runner: nn.Module  # what the loop calls: the model, wrapped for several processes and compiled as configured
    # Makes a context in which gradients stay on their process, to be exchanged with later ones.
    unsynchronised: Callable[[], AbstractContextManager[None]]
    sparsifier: Sparsifier | None  # None for a dense run
    profile: Profile
    optimizer: torch.optim.Optimizer
    average: AveragedModel | None  # of weights and thresholds
    scaler: torch.amp.GradScaler  # of the loss in fp16; does nothing otherwise
    rate: Callable[[int], float]  # learning rate of a global step
    steps_per_epoch: int
    total_steps: int


def open_source(config: RunConfig) -> Source:
    return open_data(**config.data.model_dump())


def assemble(
    config: RunConfig, source: Source, processes: Processes, *, weights: Mapping[str, Tensor] | None = None
) -> Assembly:
    """Build everything. Without `weights` the network begins with random ones, which depend on the seed alone."""
    config = stretch(config)
    # All three, since a model or data of a user's own may draw from any of them.
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)
    torch.manual_seed(config.seed)
    model = build(config.model.name, config.model.args)
    if weights is not None:
        load_weights_(model, weights, origin=str(config.model.weights))
    if config.distributed.sync_batchnorm and processes.world > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model.to(processes.device)
    if config.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps_per_epoch = source.steps(config.batch, drop_last=config.drop_last)
    total_steps, rate = config.epochs * steps_per_epoch, schedule_function(config, steps_per_epoch)
    example = torch.zeros(source.example_shape, device=processes.device)
    sparsifier, decay = None, None
    if config.method is not None:
        s_init, decay, _ = proposed(config, model, rate, total_steps)
        wanted = sparsify_arguments(config, model, example)
        sparsifier = sparsify(model, config.method.build(s_init), example=example, seed=config.seed, **wanted)
    average = None
    if config.ema is not None:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config.ema), use_buffers=True)
    runner, unsynchronised = _wrap(config, model, processes)
    optimizer = make_optimizer(config, _groups(config, model, sparsifier, decay))
    if sparsifier is not None:
        sparsifier.attach(optimizer, total_steps=total_steps, scheduler=rate)
    return Assembly(
        config=config,
        processes=processes,
        model=model,
        runner=torch.compile(runner) if config.compile else runner,  # type: ignore[arg-type]
        unsynchronised=unsynchronised,
        sparsifier=sparsifier,
        profile=sparsifier.profile if sparsifier else profile(model, example),
        optimizer=optimizer,
        average=average,
        scaler=torch.amp.GradScaler(processes.device.type, enabled=config.precision == "fp16"),
        rate=rate,
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
    )


def sparsify_arguments(config: RunConfig, model: nn.Module, example: Tensor) -> dict[str, Any]:
    """What `sparsify` and `plan` are given beside model and method: units, rules, and the goal or budget of the run."""
    skip, rules = [parse_match(text) for text in config.skip], [rule.build() for rule in config.rules]
    found = {"units": config.units.build(), "skip": skip, "rules": rules}
    if config.goal is not None:
        found |= config.goal.arguments(
            lambda: profile(model, example, tensors=managed_names(model, skip=skip, rules=rules))
        )
    return found


def proposed(
    config: RunConfig, model: nn.Module, rate: Callable[[int], float], total_steps: int
) -> tuple[float | None, float | None, Proposal | None]:
    """s_init and the decay of s where the configuration leaves them to be proposed, None where it does not."""
    decay = config.optimizer.threshold_decay
    if config.goal is not None:
        return None, None, None
    proposes = config.method is not None and config.method.proposes
    if not proposes and decay != "propose":
        return None, decay, None
    optimizer = make_optimizer(config, [{"params": list(model.parameters())}])
    make = partial(propose, optimizer, total_steps=total_steps, scheduler=rate, onset=config.propose.onset)
    proposal = make(push=config.propose.push)
    if decay == "propose":
        decay = proposal.threshold_decay
    else:
        # The decay is given, so the push follows from it.
        proposal = make(push=(config.optimizer.weight_decay if decay is None else decay) * proposal.K)
    return proposal.s_init if proposes else None, decay, proposal


def make_optimizer(config: RunConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    given = config.optimizer
    if given.name == "sgd":
        return torch.optim.SGD(groups, lr=given.lr, momentum=given.momentum, nesterov=given.nesterov)
    kind = torch.optim.AdamW if given.name == "adamw" else torch.optim.Adam
    return kind(groups, lr=given.lr, betas=given.betas, eps=given.eps)


def _groups(
    config: RunConfig, model: nn.Module, sparsifier: Sparsifier | None, threshold_decay: float | None
) -> list[dict[str, Any]]:
    given = config.optimizer
    decays: dict[str, Any] = {"weight_decay": given.weight_decay, "norm_decay": given.norm_decay}
    if sparsifier is None:
        return param_groups(model, **decays)
    return sparsifier.param_groups(threshold_decay=threshold_decay, importance_decay=given.importance_decay, **decays)


def _wrap(
    config: RunConfig, model: nn.Module, processes: Processes
) -> tuple[nn.Module, Callable[[], AbstractContextManager[None]]]:
    """What the loop calls, and the context in which its gradients are not exchanged."""
    if processes.world == 1:
        return model, nullcontext
    if config.distributed.strategy == "ddp":
        ids = [processes.device.index] if processes.device.type == "cuda" else None
        wrapper = DistributedDataParallel(model, device_ids=ids)
        # Whoever lets go of the group last joins its threads. The wrapper's reducer would do so with the interpreter
        # locked, and wait for ever for a thread that wants the lock; the group's own Python object unlocks it first.
        # Attributes are let go of in the order in which they came, so this one outlives the reducer.
        vars(wrapper)["group_outlives_reducer"] = wrapper.process_group
        return wrapper, wrapper.no_sync
    for child in model.children():
        if any(True for _ in child.parameters()):
            fully_shard(child)
    return model, partial(_unreduced, fully_shard(model))


@contextmanager
def _unreduced(sharded: FSDPModule) -> Iterator[None]:
    sharded.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        sharded.set_requires_gradient_sync(True)


# Weights that a network begins with.

_PREFIX = "module."  # DataParallel's
_SHOWN = 8


def load_weights_(model: nn.Module, weights: Mapping[str, Tensor], *, origin: str) -> nn.Module:
    """Put weights into a network that is not managed yet; all of them fit, or none is changed.

    Their names may have DataParallel's ``module.`` in front. A ValueError, which calls them the weights of `origin`,
    has the names that are missing, that the network does not have, and whose shapes differ.
    """
    model.load_state_dict(fitting(model, weights, origin=origin))
    return model


def fitting(model: nn.Module, weights: Mapping[str, Tensor], *, origin: str) -> dict[str, Tensor]:
    """The weights by the names of this network, which may be on the meta device; see `load_weights_`."""
    mine = model.state_dict()
    wrapped = all(key.startswith(_PREFIX) for key in weights) and not any(key.startswith(_PREFIX) for key in mine)
    given = {key.removeprefix(_PREFIX) if wrapped else key: value for key, value in weights.items()}
    # Files from before batch norm counted its batches lack the counter, and torch then starts it at 0.
    missing = [key for key in mine if key not in given and not key.endswith("num_batches_tracked")]
    unknown = [key for key in given if key not in mine]
    differing = [
        f"{key} has {_shape(given[key])}, the network {_shape(value)}"
        for key, value in mine.items()
        if key in given and given[key].shape != value.shape
    ]
    problems = [
        f"{what}: {_some(names)}"
        for what, names in (("missing", missing), ("unknown to the network", unknown), ("of another shape", differing))
        if names
    ]
    if problems:
        raise ValueError(
            f"the weights of {origin} are not those of {type(model).__name__}; {'; '.join(problems)}. "
            "Check model.name and model.args, such as num_classes"
        )
    return given


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
