"""A network of a file or of the zoo timed in our engine and in others, as plain data."""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from softprune.deploy.bench.engine_process import EngineError, Worker
from softprune.deploy.bench.engines import BF16, FLOAT32, INT8, Job, opponents, precision_of
from softprune.deploy.bench.int8_files import make_int8_file
from softprune.deploy.bench.race import OURS, Burst, Race
from softprune.deploy.format.spx import read_spx
from softprune.records import BENCH_FORMAT, BENCH_VERSION, write_text
from softprune.records import BenchKey as Key

ZOO = "zoo:"


def zoo_name(where: str) -> str | None:
    """What follows ``zoo:``; None for a file."""
    return where.removeprefix(ZOO) if where.startswith(ZOO) else None


class Files(NamedTuple):
    """What the engines read, as paths."""

    spx: str  # for ours
    onnx: str | None  # for others, if one of them takes part
    float_spx: str | None = None  # the network in float32, if ours is int8 and made from it
    int8: bool = False  # whether ours is


def write_files(where: str, folder: Path, *, onnx: bool, size: int | None = None, int8: bool = False) -> Files:
    """Write what the engines read of a file or of a network of the zoo, this in int8 too if wanted."""
    if (name := zoo_name(where)) is not None:
        from softprune.deploy.export.zoo import sparse_network, zoo_example

        return write_module(sparse_network(name), zoo_example(name, size=size), folder, onnx=onnx, int8=int8)
    found = holds_int8(where)  # a damaged file is refused before anything is made of it
    return Files(where, _onnx(where, folder) if onnx else None, None, found)


def write_module(module: Any, example: Any, folder: Path, *, onnx: bool, int8: bool = False) -> Files:
    """Write what the engines read of a plain module; for int8 its ranges come from random inputs like the example."""
    from softprune.deploy.export import export

    spx, float_spx = str(export(module, folder / "network.spx", example=example)), None
    if int8:
        import torch

        from softprune.deploy.quantize import quantize

        generator = torch.Generator().manual_seed(0)
        batches = [torch.randn(1, *example.shape[1:], generator=generator) for _ in range(2)]
        made = quantize(module, batches, ranges="minmax")
        spx, float_spx = str(made.save(folder / "network-int8.spx")), spx
    # From the file, not from the module: so it is the same network, and captured once.
    return Files(spx, _onnx(float_spx or spx, folder) if onnx else None, float_spx, int8)


def _onnx(spx: str, folder: Path) -> str:
    from softprune.deploy.export.onnx import spx_to_onnx

    return str(spx_to_onnx(spx, folder / "network.onnx"))


def holds_int8(spx: str) -> bool:
    """Whether the network of a file computes with integers."""
    return any(op.kind == "quantize" for op in read_spx(Path(spx)).graph.ops)


def input_shapes(spx: str, batch: int) -> tuple[tuple[int, ...], ...]:
    inputs = read_spx(spx).graph.inputs.values()
    return tuple(tuple(batch if n is None else n for n in shape) for shape in inputs)


# Two engines whose outputs differ by more than this, relative to the largest value, did not run the same network; of
# two precisions the lower one counts. With random weights little is left of a signal after many roundings to 8 bits.
SAME = {FLOAT32: 1e-3, BF16: 0.05, INT8: 0.25}

Progress = Callable[[str], object]


def bench(
    where: str,
    *,
    against: Sequence[str] | None = None,
    batch: int = 1,
    threads: int = 1,
    bursts: int = 10,
    seconds: float = 0.5,
    size: int | None = None,
    tune: bool = True,
    layers: bool = True,
    level: str | None = None,
    int8: bool = False,
    progress: Progress = lambda text: None,
) -> dict[str, Any]:
    """Time a network in our engine and in others.

    Args:
        where: a .spx file; or "zoo:resnet50/str-90.23", made on the spot with random weights and the zeros of a
            published budget; also "zoo:resnet50/uniform-80" and "zoo:resnet50/dense".
        against: other engines: onnxruntime, openvino, torch; in lower precision onnxruntime-int8, openvino-int8,
            openvino-bf16; beside an int8 network of the zoo also softprune-float32. None takes the usual ones, () none.
        batch: samples per call.
        threads: of each engine.
        bursts: of each engine, in turns, ``seconds`` long each.
        size: pixels a side of the images, for a network of the zoo.
        tune: whether our engine first measures the fastest way to compute each layer.
        layers: whether to time every layer by itself too.
        level: instruction set of our kernels, "avx512", "avx2" or "portable"; None takes the best.
        int8: whether our engine runs a network of the zoo in int8; a file says itself what it holds.
        progress: is told what happens.

    Returns:
        Plain data, as docs/engine.md lists it.

    Example:
        >>> bench("zoo:digits/uniform-80", against=(), bursts=1, seconds=0.01, tune=False)["network"]
        'zoo:digits/uniform-80'
    """
    check_counts(batch=batch, threads=threads, bursts=bursts)
    if not 0 < seconds <= 600:
        raise ValueError(f"seconds is {seconds:g}, must be above 0 and at most 600")
    name = zoo_name(where)
    if size is not None and name is None:
        raise ValueError(f"size {size} is for networks of the zoo: {where} says itself how large its inputs are")
    if int8 and name is None:
        raise ValueError(f"int8 is for networks of the zoo: {where} says itself which numbers it holds")
    names = opponents(against, module=name is not None, int8=int8)
    if name is None and (int8 := holds_int8(where)):
        names = opponents(against, module=False, int8=True)
    with tempfile.TemporaryDirectory(prefix="softprune-bench-") as folder:
        progress(f"preparing {where}")
        others = any(other not in ("torch", "softprune-float32") for other in names)
        files = write_files(where, Path(folder), onnx=others, size=size, int8=int8)
        shapes = input_shapes(files.spx, batch)
        job = Job(files.spx, files.onnx, name, shapes, batch, threads, tune, layers, level, files.float_spx, int8)
        result = contest(job, names, bursts=bursts, seconds=seconds, needed=against is not None, progress=progress)
        head = {"format": BENCH_FORMAT, "version": BENCH_VERSION, "network": where}
        return {**head, "bytes": Path(files.spx).stat().st_size, **result}


def contest(
    job: Job, others: Sequence[str], *, bursts: int, seconds: float, needed: bool, progress: Progress
) -> dict[str, Any]:
    """Time our engine and others in turns; one that cannot run the network is an error if ``needed``, else skipped."""
    facts: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        workers = []
        for engine in (OURS, *others):
            progress(f"{engine}: loading" + (" and tuning" if engine == OURS and job.tune else ""))
            try:
                make_int8_file(engine, job)
                worker = stack.enter_context(Worker(engine, job))
                facts[engine] = _checked(engine, worker.start())
                workers.append(worker)
            except EngineError as error:
                if needed or engine == OURS:
                    raise
                skipped[engine] = str(error)
                progress(f"{engine} is left out: {error}")
        found: dict[str, list[Burst]] = {worker.engine: [] for worker in workers}
        for number in range(bursts):
            progress(f"timing: round {number + 1} of {bursts}")
            for worker in workers:
                found[worker.engine].append(worker.burst(seconds))
    return {**_summary(job, facts, Race(found)), "skipped": skipped}


def _checked(engine: str, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of an engine, unless it computes in float32 what it should not."""
    precision = precision_of(engine)
    if precision != FLOAT32 and not facts["layers"][0]:
        raise EngineError(f"{engine} computes none of its {facts['layers'][1]} layers in {precision} here")
    return facts


def _summary(job: Job, facts: Mapping[str, dict[str, Any]], race: Race) -> dict[str, Any]:
    ours = facts[OURS]
    standings = {engine: race.standing(engine) for engine in race.bursts}
    others = [engine for engine in standings if engine != OURS]
    int8 = [engine for engine in others if precision_of(engine) == INT8]
    own = standings[OURS].seconds
    macs, roof = ours.get("macs"), ours.get("roofline")
    share = None
    if macs is not None and roof is not None and not job.int8:  # the roofline is that of float32
        share = 2e-9 * macs * job.batch / own / (roof["l2"] * job.threads)
    return {
        "machine": platform.platform(),
        Key.PROCESSOR: ours["processor"],
        Key.LEVEL: ours["level"],
        Key.BATCH: job.batch,
        Key.THREADS: job.threads,
        "tuned": job.tune,
        "shapes": [list(shape) for shape in job.shapes],
        Key.ENGINES: {
            engine: {
                **asdict(standing),
                "version": facts[engine].get("version"),
                Key.PRECISION: (INT8 if job.int8 else FLOAT32) if engine == OURS else precision_of(engine),
                Key.LOW_LAYERS: facts[engine].get("layers") if engine != OURS else None,
                Key.DIFFERENCE: _difference(facts[engine]["output"], ours["output"]),
            }
            for engine, standing in standings.items()
        },
        Key.FASTEST_OTHER: min(others, key=lambda engine: standings[engine].seconds, default=None),
        Key.FASTEST_INT8: min(int8, key=lambda engine: standings[engine].seconds, default=None),
        Key.RATIOS: {engine: asdict(race.ratio(OURS, engine)) for engine in others},
        **dict(zip(Key.STARTS, ours["starts"], strict=True)),
        Key.MACS: macs,
        Key.ROOFLINE: roof,
        Key.ROOFLINE_SHARE: share,
        Key.LAYERS: ours.get("layers"),
    }


def _difference(theirs: Any, ours: Any) -> float | None:
    """The largest difference relative to our largest value; None if one is not finite or the shapes differ."""
    if theirs.shape != ours.shape or not (np.isfinite(theirs).all() and np.isfinite(ours).all()):
        return None
    return float(np.abs(theirs - ours).max(initial=0) / max(float(np.abs(ours).max(initial=0)), 1e-30))


MOST = {"batch": 4096, "threads": 256, "bursts": 10_000}


def check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if not 1 <= value <= MOST[name]:
            raise ValueError(f"{name} is {value}, must be 1 to {MOST[name]}")


def check_target(path: Path) -> None:
    """Refuse a path where no file can be written, before minutes are spent on measuring."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file, such as {path / 'bench.json'}")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}: make it first")


def write_bench(result: Mapping[str, Any], path: Path) -> Path:
    return write_text(path, json.dumps(result, indent=1, allow_nan=False) + "\n")
