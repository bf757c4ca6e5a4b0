"""The processes of a run: one, or as many as torchrun started."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Processes:
    """This process among its peers."""

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
