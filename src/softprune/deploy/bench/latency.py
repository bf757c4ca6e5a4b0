"""Measuring a table of times: the same network at several densities, layer by layer in our engine."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from softprune.budget.latency import LatencyTable, LayerTime
from softprune.budget.profiler import PrunableTensor, first_names, named_tensors, prunable_tensors
from softprune.deploy.bench.contest import check_counts, zoo_name
from softprune.deploy.bench.race import Roofline, layers, run_burst
from softprune.deploy.engine.inference import Engine, load
from softprune.deploy.engine.library import library
from softprune.deploy.engine.tune import processor
from softprune.deploy.export.exporting import export
from softprune.deploy.export.zoo import fill_, zoo_example
from softprune.nn.catalog import build, example_shape
from softprune.structure.program import Example

# A step by itself is timed too long rather than too short; a call that seems shorter than this share of what does not
# depend on density was measured wrongly.
LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Sighting:
    """Seconds at one density."""

    layers: Mapping[str, float]  # of the steps of each tensor's layer
    others: float  # of all other steps
    call: float  # of a whole call


def calibrate(sightings: Sequence[Sighting]) -> tuple[float, dict[str, tuple[float, ...]]]:
    """Times whose sum is the time of a call, at every density that was measured.

    What does not depend on density is one number for all: the other steps, and the part of a call that no step
    accounts for, which is the least that calls take beyond their steps. What is left of a call belongs to the layers,
    all scaled by the same factor: in a call, unlike when timed singly, steps overlap and chains of them run in bands.

    Returns:
        The fixed seconds, and tensor -> seconds at each density.

    Example:
        >>> calibrate([Sighting({"a": 1.0, "b": 3.0}, 2.0, 9.0), Sighting({"a": 2.0, "b": 6.0}, 2.0, 11.0)])
        (3.0, {'a': (1.5, 2.0), 'b': (4.5, 6.0)})
    """
    others = min(seen.others for seen in sightings)
    beyond = min(seen.call - others - math.fsum(seen.layers.values()) for seen in sightings)
    fixed = others + max(0.0, beyond)
    times: dict[str, tuple[float, ...]] = {name: () for name in sightings[0].layers}
    for seen in sightings:
        steps = math.fsum(seen.layers.values())
        left = max(seen.call - fixed, LEAST_SHARE * steps)
        factor = left / steps if steps > 0 else 0.0
        times = {name: (*found, factor * seen.layers[name]) for name, found in times.items()}
    return fixed, times


DENSITIES = (0.01, 0.05, 0.1, 0.3, 1.0)
_NO_ROOFLINE = Roofline(1.0, 1.0)  # saves its measurement: shares of it are not read here


@dataclass(frozen=True)
class Effort:
    """How long is measured."""

    rounds: int = 5  # turns of all densities, of which the fastest run of a layer counts
    repeats: int = 30  # runs of each layer in a turn
    seconds: float = 0.3  # of whole calls in a turn
    tune: bool = True  # whether the engine first measures the fastest way to compute each layer


def measure_latency(
    module: nn.Module,
    example: Example,
    *,
    names: Iterable[str] | None = None,
    threads: int = 1,
    batch: int = 1,
    densities: Sequence[float] = DENSITIES,
    effort: Effort | None = None,
    progress: Callable[[str], object] = lambda text: None,
) -> LatencyTable:
    """Measure how long each layer takes at each density, for `Latency` goals on this machine.

    For each density a version of the network is made in which that share of every tensor is left, at random places
    with random values. It runs in our engine, each layer in its place.

    Args:
        module: the network; left as it was. Its weights do not matter.
        example: one input or a tuple of them.
        names: tensors to measure; None takes all prunable ones that the engine has a step for.
        threads: of the engine.
        batch: samples per call.
        densities: rising, in (0, 1], two at least.
        progress: is told what happens.

    Example:
        >>> from softprune.nn.digits import digits_cnn
        >>> short = Effort(rounds=1, repeats=1, seconds=0.001, tune=False)
        >>> table = measure_latency(digits_cnn(), torch.zeros(1, 1, 8, 8), densities=(0.1, 1.0), effort=short)
        >>> table.layers[0].name, table.batch
        ('0.weight', 1)
    """
    points = _checked(densities, threads=threads, batch=batch)
    effort = effort or Effort()
    network = copy.deepcopy(module).eval()
    chosen = first_names(prunable_tensors(network)) if names is None else named_tensors(network, list(names))
    engines: list[Engine] = []
    with TemporaryDirectory(prefix="softprune-", ignore_cleanup_errors=True) as folder:
        for number, density in enumerate(points):
            progress(f"density {density:g}: exporting" + (" and tuning" if effort.tune else ""))
            path = export(_at(network, chosen, density), Path(folder) / f"{number}.spx", example=example)
            engine = load(path, threads=threads, tune=effort.tune)
            engine.plan(batch)
            engines.append(engine)
        owners = _owners(network, chosen)
        found = _found(engines, chosen, owners, batch=batch, asked=names is not None)
        seen = _measured(engines, owners, batch, effort, progress)
    fixed, times = calibrate([Sighting({n: s.layers[n] for n in found}, s.others, s.call) for s in seen])
    rows = tuple(LayerTime(t.name, tuple(t.parameter.shape), points, times[t.name]) for t in chosen if t.name in found)
    return LatencyTable(rows, fixed, processor(), engines[0].level, threads, batch)


def _checked(densities: Sequence[float], *, threads: int, batch: int) -> tuple[float, ...]:
    points = tuple(float(d) for d in densities)
    if len(points) < 2 or list(points) != sorted(set(points)) or not (points[0] > 0 and points[-1] <= 1):
        raise ValueError(f"densities must be two or more that rise within (0, 1], got {list(densities)}")
    check_counts(threads=threads, batch=batch)
    if library() is None:
        raise ImportError(
            "a table of times needs the compiled kernels: with a C++ compiler installed, "
            "`python -m softprune.deploy.engine.build` makes them"
        )
    return points


@torch.no_grad()
def _at(network: nn.Module, chosen: Sequence[PrunableTensor], density: float) -> nn.Module:
    generator = torch.Generator().manual_seed(0)  # the same network in every process
    for tensor in chosen:
        fill_(tensor.parameter, density, generator)
    return network


def _owners(network: nn.Module, chosen: Sequence[PrunableTensor]) -> dict[str, dict[str, float]]:
    """Path of a module -> tensor -> its share of the module's time, which several tensors share by their size."""
    names = {id(tensor.parameter): tensor.name for tensor in chosen}
    owners: dict[str, dict[str, float]] = {}
    for path, module in network.named_modules(remove_duplicate=False):
        sizes = {names[id(p)]: p.numel() for p in module._parameters.values() if p is not None and id(p) in names}
        if sizes:
            owners[path] = {name: size / sum(sizes.values()) for name, size in sizes.items()}
    return owners


def _found(
    engines: Sequence[Engine],
    chosen: Sequence[PrunableTensor],
    owners: dict[str, dict[str, float]],
    *,
    batch: int,
    asked: bool,
) -> set[str]:
    """The tensors that a step of the engine belongs to."""
    found = {name for step in engines[0].plan(batch).program.steps for name in owners.get(step.path, ())}
    missing = [tensor.name for tensor in chosen if tensor.name not in found]
    if missing and (asked or not found):
        raise ValueError(
            f"no step of the engine belongs to {', '.join(missing[:5])}, so it has no time: leave them out"
        )
    return found


def _measured(
    engines: Sequence[Engine],
    owners: dict[str, dict[str, float]],
    batch: int,
    effort: Effort,
    progress: Callable[[str], object],
) -> list[Sighting]:
    """The fastest times at each density, in turns, so that a disturbance does not fall on one of them alone."""
    rounds = []
    for turn in range(effort.rounds):
        progress(f"timing: round {turn + 1} of {effort.rounds}")
        rounds.append([_sighting(engine, owners, batch, effort) for engine in engines])
    return [
        Sighting(
            {name: min(seen.layers[name] for seen in turns) for name in turns[0].layers},
            min(seen.others for seen in turns),
            min(seen.call for seen in turns),
        )
        for turns in zip(*rounds, strict=True)
    ]


def _sighting(engine: Engine, owners: dict[str, dict[str, float]], batch: int, effort: Effort) -> Sighting:
    times = dict.fromkeys((name for shares in owners.values() for name in shares), 0.0)
    others = 0.0
    for step in layers(engine, batch=batch, repeats=effort.repeats, roofline=_NO_ROOFLINE):
        seconds = 1e-6 * float(step.microseconds)
        shares = owners.get(step.path, {})
        others += 0.0 if shares else seconds
        for name, share in shares.items():
            times[name] += share * seconds
    inputs = engine.slots(batch)[: len(engine.model.graph.inputs)]
    return Sighting(times, others, run_burst(lambda: engine(*inputs), effort.seconds).seconds)


def subject(where: str, *, shape: str | None = None, size: int | None = None) -> tuple[nn.Module, Tensor]:
    """The network that a table of times is measured for, and one input of it.

    Args:
        where: "resnet50" or another of the catalog, "zoo:resnet50/str-90.23" (the budget does not matter), or
            "package.module:factory".
        shape: of the input, such as "1,3,224,224".
        size: instead, pixels a side of the images of a network of the zoo.

    Example:
        >>> subject("zoo:digits/dense")[1].shape
        torch.Size([1, 1, 8, 8])
    """
    if where.endswith(".spx"):
        raise ValueError(
            f"{where} has the zeros that it has; a table needs the network at several densities: name it, such as "
            "resnet50, zoo:resnet50/dense, package.module:factory or a run folder"
        )
    name = zoo_name(where)
    if name is not None:
        network = name.partition("/")[0]
        example = zoo_example(name, size=size) if shape is None else torch.zeros(example_shape(network, shape))
        return build(network), example
    if size is not None:
        raise ValueError(f"size {size} is for networks of the zoo: say --input for {where}")
    return build(where), torch.zeros(example_shape(where, shape))
