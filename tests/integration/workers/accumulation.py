"""One of two processes that train with and without parts of a batch: ``accumulation.py FOLDER``, under torchrun.

For each strategy and number of parts it counts what is exchanged for gradients; the runs leave the rest.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from training import quiet

from softprune.train import assembly
from softprune.train.assembly import run_and_leave
from softprune.train.config import RunConfig
from softprune.train.observer import Silent
from softprune.train.run import train

SHORT = ["epochs=2", "data.subset=328", "threads=1", "log.every_steps=1", "propose.push=2"]

exchanges = 0


class Probe(nn.Module):
    """Two layers without batch norm: its statistics are those of a part and not of the whole batch.

    In fp16 it can be made to stumble: on the second process one gradient of the fourth pass is infinite.
    """

    def __init__(self, *, stumbles: bool) -> None:
        super().__init__()
        self.first = nn.Linear(64, 32)
        self.last = nn.Linear(32, 10)
        self.passes = 0 if stumbles else None

    def forward(self, x):
        hidden = torch.relu(self.first(x.flatten(1)))
        logits = self.last(hidden)
        if self.training and self.passes is not None:
            self.passes += 1
            if self.passes == 4 and dist.get_rank() == 1:
                logits.register_hook(lambda gradient: gradient * float("inf"))
        return logits


def probe(stumbles=False):
    return Probe(stumbles=stumbles)


def _count_exchanges():
    """All-reduces of DistributedDataParallel are counted by its hook, reduce-scatters of FSDP2 by their function."""

    class Counted(assembly.DistributedDataParallel):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            self.register_comm_hook(None, _counted_hook)

    assembly.DistributedDataParallel = Counted
    # Newer versions of torch have given the function another name.
    name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    real = getattr(dist, name)

    def reduce_scatter(*args, **settings):
        _count()
        return real(*args, **settings)

    setattr(dist, name, reduce_scatter)


def _counted_hook(state, bucket):
    _count()
    return allreduce_hook(None, bucket)


def _count():
    global exchanges
    exchanges += 1


class Unwilling(Silent):
    def on_begin(self, beginning):
        raise PermissionError("no key")


def _refusals(folder):
    """What only the first process tries, and all must hear of: a folder that is taken, a logger that cannot begin."""
    found = {}
    taken, free = folder / "ddp 1 fp32", folder / "unwilling"
    for name, place, changes in (("taken", taken, []), ("unwilling", free, ["log.own=['accumulation:Unwilling']"])):
        try:
            train(RunConfig.load("digits/str", [*SHORT, *changes]), place)
        except ValueError as error:
            found[name] = str(error)
    return found


def main():
    global exchanges
    folder = Path(sys.argv[1])
    quiet()
    dist.init_process_group("gloo")
    _count_exchanges()
    counts = {}
    cases = [(strategy, parts, "fp32", False) for strategy in ("ddp", "fsdp") for parts in (1, 4)]
    cases += [(strategy, parts, "fp16", True) for strategy in ("ddp", "fsdp") for parts in (1, 2)]
    for strategy, parts, precision, stumbles in cases:
        exchanges = 0
        name = f"{strategy} {parts} {precision}"
        changes = [
            "model=accumulation:probe",
            f"model.args={{stumbles: {str(stumbles).lower()}}}",
            f"distributed.strategy={strategy}",
            f"accumulate={parts}",
            f"precision={precision}",
            "log.tensorboard=true",
        ]
        train(RunConfig.load("digits/str", [*SHORT, *changes]), folder / name)
        counts[name] = exchanges
    refusals = _refusals(folder)
    assert dist.is_initialized(), "a run leaves the group of the program alone"
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps({"exchanges": counts, "refusals": refusals}))


if __name__ == "__main__":
    run_and_leave(main)
