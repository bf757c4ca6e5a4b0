"""The processes of a run: one, or as many as torchrun started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Processes:
    """This process among its peers.

    Attributes:
        rank: which one this is, 0 to world - 1; only 0 writes files and prints.
        world: how many there are.
        device: where this one computes.
    """

    rank: int
    world: int
    device: torch.device

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
        """What the first process has, on every process."""
        if self.world == 1:
            return value
        box = [value if self.first else None]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def on_first(self, act: Callable[[], object]) -> None:
        """Let the first process act while the others wait; if it fails, all fail.

        Raises:
            ValueError: on the others, with the message of what was raised on the first.
        """
        problem: Exception | None = None
        if self.first:
            try:
                act()
            except Exception as error:
                problem = error
        told = self.from_first(str(problem) if problem else None)
        if problem is not None:
            raise problem
        if told is not None:
            raise ValueError(told)

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the group that torchrun describes in the environment; alone if it does not.

    A group that the program around us has made is used, and left to it: one program can make several runs.
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
