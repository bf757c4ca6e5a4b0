"""One of two processes under DistributedDataParallel: ``ddp.py FOLDER``, started by torchrun."""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from training import batches, net, optimizer_of, quiet, train

from softprune.core.collapse import CollapseWarning
from softprune.core.sparsify import freeze_support, sparsify
from softprune.goals.base import constant
from softprune.goals.goal import Sparsity
from softprune.methods import GMP, STR
from softprune.train.assembly import run_and_leave

METHODS = {
    "tensor": STR(s_init=-4.0),
    "filter": STR(s_init=-4.0, granularity="filter"),
    "global": STR(s_init=-4.0, granularity="global"),
}


def _record(results, name, sparsifier):
    for key, t in sparsifier.model.state_dict().items():
        results[f"{name}/{key}"] = t.clone()
    for key, density in sparsifier.measure().densities.items():
        results[f"{name}/density/{key}"] = torch.tensor(density)
    for d in sparsifier.diagnose():
        results[f"{name}/P/{d.name}"] = torch.tensor(d.P)
    results[f"{name}/step"] = torch.tensor(sparsifier.step)


def _methods(results, rank, world):
    for name, method in METHODS.items():
        sparsifier = sparsify(net(), method)
        wrapped = DistributedDataParallel(sparsifier.model, find_unused_parameters=False)
        train(wrapped, optimizer_of(sparsifier), batches(), rank=rank, world=world)
        _record(results, f"ddp {name}", sparsifier)
        alone = sparsify(net(), method)
        train(alone.model, optimizer_of(alone), batches())
        _record(results, f"alone {name}", alone)


def _floor(results, rank, world):
    """Decay so strong that every layer would die, but for the weights it must keep."""
    sparsifier = sparsify(net(), STR(s_init=-4.0, min_keep=3))
    wrapped = DistributedDataParallel(sparsifier.model)
    optimizer = optimizer_of(sparsifier, total_steps=40, threshold_decay=1.0)
    train(wrapped, optimizer, batches(40), rank=rank, world=world)
    _record(results, "min_keep", sparsifier)


def _collapse(results, rank, world):
    """The watch runs on every process and waits for none."""
    sparsifier = sparsify(net(), STR(s_init=-4.0))
    wrapped = DistributedDataParallel(sparsifier.model)
    optimizer = optimizer_of(sparsifier, total_steps=120, threshold_decay=1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(wrapped, optimizer, batches(120), rank=rank, world=world)
    dead = [w for w in caught if issubclass(w.category, CollapseWarning)]
    results["collapse/warnings"] = torch.tensor(len(dead))
    _record(results, "collapse", sparsifier)


def _goal(results, rank, world):
    """Every process solves for itself, from the same weights and the same averaged gradients."""
    aims = {
        "tensor": (STR(), Sparsity(0.9)),
        "filter": (STR(granularity="filter"), Sparsity(0.9)),
        "gmp": (GMP(every=4), Sparsity(0.9)),
        "ties": (STR(), Sparsity(0.9)),
    }
    for name, (method, goal) in aims.items():
        for world_of, rank_of in ((world, rank), (1, 0)):
            model = net(torch.float64)
            if name == "ties":
                with torch.no_grad():
                    for p in model.parameters():
                        p.copy_((p * 8).round() / 8)
            sparsifier = sparsify(model, method, goal=goal, schedule=constant() if name == "ties" else None)
            run = DistributedDataParallel(model) if world_of > 1 else model
            optimizer = sparsifier.attach(SGD(model.parameters(), lr=0.1, momentum=0.9), total_steps=20)
            train(run, optimizer, batches(), rank=rank_of, world=world_of)
            _record(results, f"goal {name} {'together' if world_of > 1 else 'alone'}", sparsifier)


def _support(results, rank, world):
    model = net()
    with torch.no_grad():
        for block in model.blocks:
            block.linear.weight[block.linear.weight.abs() < 0.15] = 0.0
    zeros = {n: p == 0 for n, p in model.named_parameters() if "linear.weight" in n}
    sparsifier = freeze_support(model)
    wrapped = DistributedDataParallel(model)
    train(wrapped, SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3), batches(), rank=rank, world=world)
    sparsifier.bake()
    for name, p in model.named_parameters():
        results[f"support/{name}"] = p.detach().clone()
    for name, mask in zeros.items():
        results[f"support zeros/{name}"] = mask


def _freeze(results, rank, world):
    """Freezing takes thresholds out of the graph, which DDP must be told by wrapping anew."""
    for what in ("thresholds", "support", "budget"):
        sparsifier = sparsify(net(), STR(s_init=-3.0))
        optimizer = optimizer_of(sparsifier)
        train(DistributedDataParallel(sparsifier.model), optimizer, batches(10), rank=rank, world=world)
        before = sparsifier.measure().densities
        sparsifier.freeze(what)
        train(DistributedDataParallel(sparsifier.model), optimizer, batches(10), rank=rank, world=world)
        _record(results, f"freeze {what}", sparsifier)
        for key, density in before.items():
            results[f"freeze {what}/density before/{key}"] = torch.tensor(density)


def _save(folder, rank, world):
    """The first process alone saves; nobody waits."""
    sparsifier = sparsify(net(), STR(s_init=-4.0))
    wrapped = DistributedDataParallel(sparsifier.model)
    train(wrapped, optimizer_of(sparsifier), batches(), rank=rank, world=world)
    if rank == 0:
        sparsifier.save(folder / "checkpoint")
    dist.barrier()
    other = sparsify(net(), STR(s_init=-4.0))
    other.load(folder / "checkpoint")
    for key, t in sparsifier.model.state_dict().items():
        assert torch.equal(other.model.state_dict()[key], t), key


def main():
    folder = Path(sys.argv[1])
    quiet()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    results = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _methods(results, rank, world)
    complaints = [str(w.message) for w in caught if "unused" in str(w.message)]
    assert not complaints, complaints
    _floor(results, rank, world)
    _collapse(results, rank, world)
    _goal(results, rank, world)
    _support(results, rank, world)
    _freeze(results, rank, world)
    _save(folder, rank, world)
    save_file(results, folder / f"{rank}.safetensors")


if __name__ == "__main__":
    run_and_leave(main)
