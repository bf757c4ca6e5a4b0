"""What a run is put together from, where several processes share it."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from softprune.train.assembly import Processes, assemble, open_source
from softprune.train.config import RunConfig


def test_the_reducer_of_a_wrapper_is_never_the_last_to_let_go_of_the_group():
    # It would join the threads of the group while it holds the interpreter's lock, which they may wait for.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        config = RunConfig.load("digits/str", ["threads=1"])
        alone_of_two = Processes(0, 2, torch.device("cpu"))
        runner = assemble(config, open_source(config), alone_of_two).runner
        assert isinstance(runner, DistributedDataParallel)
        held = list(vars(runner).values())
        holders = [i for i, value in enumerate(held) if value is dist.group.WORLD]
        assert holders[-1] > max(held.index(runner.reducer), held.index(runner.logger))
    finally:
        dist.barrier()
        dist.destroy_process_group()
