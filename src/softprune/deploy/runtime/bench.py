"""Benchmarks of a loaded network: against other engines, and layer by layer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from softprune.deploy.runtime.cache import processor
from softprune.deploy.runtime.engine import Engine, load
from softprune.deploy.runtime.library import library
from softprune.deploy.runtime.program import Plan
from softprune.deploy.runtime.race import Race, Runner, race
from softprune.deploy.runtime.roofline import Roofline, measure_roofline

OURS = "softprune"


@dataclass(frozen=True)
class Layer:
    """One step of the network.

    Attributes:
        path: of the module.
        what: the operation.
        how: the kernel and its tile.
        nonzeros: weights that are not zero.
        macs: multiply-adds on them.
        microseconds: the fastest run.
        gflops: two operations per multiply-add, per second.
        roofline: share of what the threads can load from the second-level cache.
    """

    path: str
    what: str
    how: str
    nonzeros: int
    macs: int
    microseconds: float
    gflops: float
    roofline: float


def layers(engine: Engine, *, batch: int = 1, repeats: int = 30, roofline: Roofline | None = None) -> list[Layer]:
    """Time every step by itself, in its place.

    Raises:
        RuntimeError: if there are no compiled kernels.
    """
    kernels = library()
    if kernels is None or engine.team is None:
        raise RuntimeError("the table of layers needs the compiled kernels")
    roof = roofline or measure_roofline(kernels)
    slots = engine.slots(batch)
    for array in slots[: len(engine.model.graph.inputs)]:
        array[...] = np.random.default_rng(0).standard_normal(array.shape)
    plan = Plan(kernels, engine.team, engine.plan(batch).program, grouped=False)
    seconds = plan.time([array.ctypes.data for array in slots], repeats)
    table = []
    for step, duration in zip(plan.program.steps, seconds, strict=True):
        rate = 2 * step.macs / duration / 1e9
        how = "" if step.choice is None else step.choice.text
        share = rate / (roof.l2 * engine.threads)
        table.append(Layer(step.path, step.what, how, step.nonzeros, step.macs, 1e6 * duration, rate, share))
    return table


def bench(
    path: str | Path,
    *,
    against: Mapping[str, Runner] | None = None,
    batch: int = 1,
    threads: int = 1,
    bursts: int = 10,
    seconds: float = 0.5,
) -> dict[str, Any]:
    """Measure a network and compare it with other engines.

    Args:
        path: a .spx file.
        against: name -> a call that runs the same network once in another engine, with as many threads.
        batch: images per call.
        threads: threads of our engine.
        bursts: bursts of each engine, interleaved.
        seconds: length of a burst.

    Returns:
        Plain data: machine, start times, standings, ratios (how many times faster we are), layers.
    """
    begin = time.perf_counter()
    engine = load(path, threads=threads)
    inputs = _inputs(engine, batch)
    engine(*inputs)
    first_call = time.perf_counter() - begin
    runners: dict[str, Runner] = {OURS: lambda: engine(*inputs), **(against or {})}
    result = race(runners, bursts=bursts, seconds=seconds)
    kernels = library()
    report: dict[str, Any] = {
        "file": str(path),
        "processor": processor(),
        "level": engine.level,
        "batch": batch,
        "threads": threads,
        "seconds to the first result": first_call,
        "engines": {name: asdict(result.standing(name)) for name in runners},
        "ratios": {name: asdict(result.ratio(OURS, name)) for name in against or {}},
    }
    if kernels is not None:
        roof = measure_roofline(kernels)
        table = layers(engine, batch=1, roofline=roof)
        report |= {"roofline": asdict(roof), "layers": [asdict(layer) for layer in table]}
        macs = sum(layer.macs for layer in table)
        rate = 2 * macs * batch / result.standing(OURS).seconds / 1e9
        report["share of the roofline"] = rate / (roof.l2 * threads)
    return report


def _inputs(engine: Engine, batch: int) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    arrays = engine.slots(batch)[: len(engine.model.graph.inputs)]
    for array in arrays:
        array[...] = np.random.default_rng(0).standard_normal(array.shape)
    return arrays


__all__ = ["OURS", "Layer", "Race", "bench", "layers"]
