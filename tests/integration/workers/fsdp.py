"""One of two processes under FSDP2: ``fsdp.py FOLDER``, started by torchrun."""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import SGD, AdamW
from training import batches, net, optimizer_of, quiet, train

from softprune.core.bake import bake
from softprune.core.collapse import CollapseWarning
from softprune.core.sparsify import sparsify
from softprune.goals.goal import Sparsity
from softprune.methods import STR
from softprune.train.assembly import run_and_leave

METHODS = {
    "tensor": STR(s_init=-4.0),
    "filter": STR(s_init=-4.0, granularity="filter"),
    "weight": STR(s_init=-4.0, granularity="weight"),
}


def _shard(model, mesh, **settings):
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **settings)
    fully_shard(model, mesh=mesh, **settings)


def _record(results, name, sparsifier):
    for key, density in sparsifier.measure().densities.items():
        results[f"{name}/density/{key}"] = torch.tensor(density)
    for d in sparsifier.diagnose():
        for field in ("s", "alpha", "density", "P", "l1_active", "balance"):
            results[f"{name}/diagnosis {field}/{d.name}"] = torch.tensor(getattr(d, field))
    results[f"{name}/step"] = torch.tensor(sparsifier.step)


def _training(results, folder, mesh, rank, world):
    for name, method in METHODS.items():
        sparsifier = sparsify(net(), method)
        _shard(sparsifier.model, mesh)
        optimizer = optimizer_of(sparsifier)
        train(sparsifier.model, optimizer, batches(), rank=rank, world=world)
        _record(results, f"fsdp {name}", sparsifier)
        sparsifier.save(folder / f"saved {name}")
        assert (folder / f"saved {name}" / "state.safetensors").is_file()
        alone = sparsify(net(), method)
        train(alone.model, optimizer_of(alone), batches())
        _record(results, f"alone {name}", alone)
        for key, t in alone.model.state_dict().items():
            results[f"alone {name}/state/{key}"] = t.clone()
        _load(results, name, folder, method, mesh, sparsifier)


def _load(results, name, folder, method, mesh, sparsifier):
    x, _ = next(iter(batches(1)))
    with torch.no_grad():
        expected = sparsifier.model(x)
    whole = sparsify(net(), method)
    whole.load(folder / f"saved {name}")
    assert whole.step == sparsifier.step
    with torch.no_grad():
        results[f"fsdp {name}/output"] = expected
        results[f"fsdp {name}/output of the loaded"] = whole.model(x)
        results[f"fsdp {name}/output of the baked"] = bake(whole.model)(x)
    for key, t in sparsifier.model.state_dict().items():
        results[f"fsdp {name}/state/{key}"] = t.full_tensor()
    split = sparsify(net(), method)
    _shard(split.model, mesh)
    split.load(folder / f"saved {name}")
    for key, t in split.model.state_dict().items():
        assert torch.equal(t.full_tensor(), results[f"fsdp {name}/state/{key}"]), key
    with torch.no_grad():
        assert torch.equal(split.model(x), expected)


def _refused(what, call):
    try:
        call()
    except ValueError as error:
        return {what: str(error)}
    raise AssertionError(f"{what} was not refused")


def _refusals(mesh):
    sparsifier = sparsify(net(), STR(s_init=-4.0))
    _shard(sparsifier.model, mesh)
    found = _refused("bake", sparsifier.bake)
    found |= _refused("remove", sparsifier.remove)
    found |= _refused("support", lambda: sparsifier.freeze("support"))
    found |= _refused("budget", lambda: sparsifier.freeze("budget"))
    assert sparsifier.frozen is None
    sharded = net()
    _shard(sharded, mesh)
    found |= _refused("late", lambda: sparsify(sharded, STR()))

    floor = sparsify(net(), STR(s_init=-4.0, min_keep=2))
    _shard(floor.model, mesh)
    optimizer = SGD(floor.param_groups(weight_decay=1e-3), lr=0.1)
    found |= _refused("min_keep", lambda: floor.attach(optimizer, total_steps=10))
    assert not optimizer._optimizer_step_post_hooks

    aimed = sparsify(net(), STR(), goal=Sparsity(0.9))
    _shard(aimed.model, mesh)
    optimizer = SGD(aimed.model.parameters(), lr=0.1)
    found |= _refused("goal", lambda: aimed.attach(optimizer, total_steps=10))
    assert not optimizer._optimizer_step_post_hooks

    shared = sparsify(net(), STR(s_init=-4.0, granularity="global"))
    _shard(shared.model, mesh)
    optimizer = SGD(shared.model.parameters(), lr=0.1, weight_decay=1e-3)
    found |= _refused("global", lambda: shared.attach(optimizer, total_steps=10))

    tied = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4)))
    tied[1][0].weight = tied[0][0].weight
    sparsifier = sparsify(tied, STR())
    fully_shard(tied[0], mesh=mesh)  # sharding the rest as well is refused by torch
    optimizer = SGD(tied.parameters(), lr=0.1, weight_decay=1e-3)
    found |= _refused("tied", lambda: sparsifier.attach(optimizer, total_steps=10))
    return found


def _shared(results, mesh, rank, world):
    """One threshold for all tensors works where one call shards them together."""
    sparsifier = sparsify(net(), STR(s_init=-4.0, granularity="global"))
    fully_shard(sparsifier.model, mesh=mesh)
    train(sparsifier.model, optimizer_of(sparsifier), batches(), rank=rank, world=world)
    _record(results, "fsdp global", sparsifier)
    alone = sparsify(net(), STR(s_init=-4.0, granularity="global"))
    train(alone.model, optimizer_of(alone), batches())
    _record(results, "alone global", alone)


def _before(results, mesh, rank, world):
    """An optimizer built from model.parameters() after sharding holds the thresholds too; fused as well."""
    for name, fused in (("plain", False), ("fused", True)):
        sparsifier = sparsify(net(), STR(s_init=-4.0))
        _shard(sparsifier.model, mesh)
        optimizer = AdamW(sparsifier.model.parameters(), lr=1e-2, weight_decay=0.05, fused=fused)
        sparsifier.attach(optimizer, total_steps=20)
        train(sparsifier.model, optimizer, batches(), rank=rank, world=world)
        _record(results, f"adamw {name}", sparsifier)


def _collapse(results, mesh, rank, world):
    sparsifier = sparsify(net(), STR(s_init=-4.0))
    _shard(sparsifier.model, mesh)
    optimizer = optimizer_of(sparsifier, total_steps=120, threshold_decay=1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(sparsifier.model, optimizer, batches(120), rank=rank, world=world)
        during = len([w for w in caught if issubclass(w.category, CollapseWarning)])
        found = sparsifier.check()
    results["collapse/warnings during training"] = torch.tensor(during)
    results["collapse/found"] = torch.tensor(len(found))
    _record(results, "collapse", sparsifier)


def _mixed(results, mesh, rank, world):
    """Parameters are gathered in bfloat16; what the optimizer moves stays float32."""
    sparsifier = sparsify(net(torch.float32), STR(s_init=-4.0))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    _shard(sparsifier.model, mesh, mp_policy=policy)
    optimizer = optimizer_of(sparsifier)
    for x, y in batches(dtype=torch.float32):
        optimizer.zero_grad()
        F.cross_entropy(sparsifier.model(x[rank::world]).float(), y[rank::world]).backward()
        optimizer.step()
    for target in sparsifier.targets:
        assert target.raw.dtype == target.transform.s.dtype == torch.float32
        assert target.transform.s.grad.dtype == torch.float32
    _record(results, "bf16", sparsifier)


def _frozen(results, mesh, rank, world):
    """Thresholds may be frozen while sharded: nothing but a flag changes."""
    sparsifier = sparsify(net(), STR(s_init=-3.0))
    _shard(sparsifier.model, mesh)
    optimizer = optimizer_of(sparsifier)
    train(sparsifier.model, optimizer, batches(5), rank=rank, world=world)
    before = [t.transform.s.full_tensor().clone() for t in sparsifier.targets]
    sparsifier.freeze("thresholds")
    train(sparsifier.model, optimizer, batches(5), rank=rank, world=world)
    for target, s in zip(sparsifier.targets, before, strict=True):
        assert torch.equal(target.transform.s.full_tensor(), s)
    _record(results, "frozen thresholds", sparsifier)


def _held(results, mesh, rank, world):
    """A budget frozen before sharding is held: the threshold follows the weights of all processes."""
    sparsifier = sparsify(net(), STR(s_init=-3.0))
    train(sparsifier.model, SGD(sparsifier.model.parameters(), lr=0.1, weight_decay=0.05), batches(10))
    sparsifier.freeze("budget")
    for key, density in sparsifier.measure().densities.items():
        results[f"held before/{key}"] = torch.tensor(density)
    alphas = [t.transform.alpha.clone() for t in sparsifier.targets]
    _shard(sparsifier.model, mesh)
    train(sparsifier.model, optimizer_of(sparsifier), batches(), rank=rank, world=world)
    for target, alpha in zip(sparsifier.targets, alphas, strict=True):
        results[f"held alpha/{target.name}"] = target.transform.alpha
        assert not torch.equal(target.transform.alpha, alpha), "the weights have moved"
        results[f"held used/{target.name}"] = _used(sparsifier, target.name)
    for key, density in sparsifier.measure().densities.items():
        results[f"held after/{key}"] = torch.tensor(density)


def _used(sparsifier, name):
    """The density of the weight that the forward pass really uses."""
    module = sparsifier.model.get_submodule(name.rpartition(".")[0])
    seen = []
    handle = module.register_forward_hook(lambda m, *_: seen.append(m.weight.count_nonzero() / m.weight.numel()))
    with torch.no_grad():
        sparsifier.model(next(iter(batches(1)))[0])
    handle.remove()
    return seen[0].double()


def main():
    folder = Path(sys.argv[1])
    quiet()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    results = {}
    _training(results, folder, mesh, rank, world)
    refusals = _refusals(mesh)
    _shared(results, mesh, rank, world)
    _before(results, mesh, rank, world)
    _collapse(results, mesh, rank, world)
    _mixed(results, mesh, rank, world)
    _frozen(results, mesh, rank, world)
    _held(results, mesh, rank, world)
    save_file({key: t.contiguous() for key, t in results.items()}, folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(refusals))


if __name__ == "__main__":
    run_and_leave(main)
