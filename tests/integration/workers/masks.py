"""One of two processes that train with every method: ``masks.py FOLDER``, started by torchrun.

Buffers are not sent from the first process to the other: each decides for itself.
"""

import hashlib
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.nn.parallel import DistributedDataParallel
from training import batches, net, quiet, train

from softprune.core.collapse import CollapseWarning
from softprune.methods import from_config, method_names
from softprune.testing.trial import STEPS, Setting, Trial, TrialNetwork, hastened
from softprune.train.assembly import run_and_leave

# Settings for a short training.
SHORT = {"dsr": {"threshold": 0.05}, "acdc": {"phases": 3}, "imp": {"rounds": 3}}


def _hash(masks):
    digest = hashlib.sha256()
    for name in sorted(masks):
        digest.update(name.encode() + masks[name].numpy().tobytes())
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)


def main():
    quiet()
    warnings.simplefilter("ignore", CollapseWarning)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    network = TrialNetwork("net", lambda: net(torch.float32), (6,))
    results = {}
    for name in method_names():
        method = hastened(from_config({"method": name, **SHORT.get(name, {})}))
        for total in method.accepts:
            trial = Trial(method, Setting(network, "SGD", total))
            before = _hash(trial.living())
            run = DistributedDataParallel(trial.model, broadcast_buffers=False)
            train(run, trial.optimizer, batches(STEPS, torch.float32), rank=rank, world=world)
            del run  # before the group: see _wrap of softprune.train.assembly
            results[f"{name} {total}/before"] = before
            results[f"{name} {total}/after"] = _hash(trial.living())
            results[f"{name} {total}/weights"] = _hash(trial.effective())
    save_file(results, Path(sys.argv[1]) / f"{rank}.safetensors")


if __name__ == "__main__":
    run_and_leave(main)
