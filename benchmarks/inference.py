"""Claim: sparse networks run faster than the best dense engine, by the ratios in the table that this script writes.

ResNet50 and MobileNetV1 at 224 x 224 with the published budgets (weights made on the spot: zeros decide the time, not
values), softprune's engine against ONNX Runtime and OpenVINO, each in a process of its own. Engines take turns in
bursts; a burst in which a process did not get its processor is dropped. The ratio is that of the fastest calls, its
spread that of bursts side by side. A cell is a JSON file; finished ones are skipped. Needs onnx, onnxruntime and
openvino; an engine that is missing is left out.

    python benchmarks/inference.py --out benchmarks/results/inference
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from softprune.deploy.runtime.race import Burst, Race, run_burst

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "deploy"))

NETWORKS = (
    "resnet50/str-90.23",
    "resnet50/str-95.03",
    "resnet50/str-98.05",
    "resnet50/uniform-70",
    "resnet50/uniform-80",
    "resnet50/dense",
    "mobilenetv1/str-89.01",
    "mobilenetv1/uniform-70",
    "mobilenetv1/uniform-80",
    "mobilenetv1/dense",
)
OURS = "softprune"


@dataclass(frozen=True)
class Cell:
    """One comparison."""

    network: str
    batch: int
    threads: int
    level: str

    @property
    def name(self) -> str:
        return f"{self.network}-batch{self.batch}-threads{self.threads}-{self.level}".replace("/", "-")


def softprune_call(files: dict[str, str], cell: Cell, x: np.ndarray) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Our engine, tuned; with its table of layers."""
    os.environ["SOFTPRUNE_KERNELS_LEVEL"] = cell.level
    import time

    from softprune.deploy.runtime.bench import layers
    from softprune.deploy.runtime.engine import load
    from softprune.deploy.runtime.library import library
    from softprune.deploy.runtime.roofline import measure_roofline

    starts = []
    for _ in range(2):  # cold, then with the tuning remembered
        begin = time.perf_counter()
        engine = load(files["spx"], threads=cell.threads)
        engine(x)
        starts.append(time.perf_counter() - begin)
    kernels = library()
    assert kernels is not None
    roof = measure_roofline(kernels)
    table = [asdict(layer) for layer in layers(engine, roofline=roof)]
    facts = {"cold start": starts[0], "warm start": starts[1], "level": engine.level}
    return lambda: engine(x), {**facts, "roofline": asdict(roof), "layers": table}


def onnxruntime_call(files: dict[str, str], cell: Cell, x: np.ndarray) -> tuple[Callable[[], Any], dict[str, Any]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = cell.threads, 1
    session = onnxruntime.InferenceSession(files["onnx"], options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: x}), {"version": onnxruntime.__version__}


def openvino_call(files: dict[str, str], cell: Cell, x: np.ndarray) -> tuple[Callable[[], Any], dict[str, Any]]:
    import openvino

    core = openvino.Core()
    model = core.read_model(files["onnx"])
    model.reshape(list(x.shape))
    exact = {"INFERENCE_NUM_THREADS": cell.threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", exact).create_infer_request()
    return lambda: request.infer([x]), {"version": openvino.__version__}


ENGINES = {OURS: softprune_call, "onnxruntime": onnxruntime_call, "openvino": openvino_call}


def work(pipe: Connection, engine: str, files: dict[str, str], cell: Cell) -> None:
    """A process that runs one engine when it is told to."""
    x = np.random.default_rng(0).standard_normal((cell.batch, 3, 224, 224)).astype(np.float32)
    try:
        call, facts = ENGINES[engine](files, cell, x)
        y = call()
        pipe.send({**facts, "checksum": float(np.abs(np.asarray(next(iter(_outputs(y))))).sum())})
    except Exception as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"})
        return
    while (seconds := pipe.recv()) is not None:
        pipe.send(run_burst(call, seconds))


def _outputs(y: Any) -> Any:
    if isinstance(y, np.ndarray):
        return [y]
    return y if isinstance(y, list | tuple) else list(y.values())


def measure(cell: Cell, files: dict[str, str], *, bursts: int, seconds: float) -> dict[str, Any]:
    """Race all engines on one cell."""
    context = multiprocessing.get_context("spawn")
    pipes, processes, facts = {}, [], {}
    for engine in ENGINES:
        here, there = context.Pipe()
        process = context.Process(target=work, args=(there, engine, files, cell), daemon=True)
        process.start()
        processes.append(process)
        facts[engine] = here.recv()
        if "error" not in facts[engine]:
            pipes[engine] = here
    found: dict[str, list[Burst]] = {engine: [] for engine in pipes}
    for _ in range(bursts):
        for engine, pipe in pipes.items():
            pipe.send(seconds)
            found[engine].append(pipe.recv())
    for pipe in pipes.values():
        pipe.send(None)
    for process in processes:
        process.join()
    return summary(cell, facts, Race(found))


def summary(cell: Cell, facts: dict[str, Any], race: Race) -> dict[str, Any]:
    """What is kept of a cell."""
    standings = {engine: race.standing(engine) for engine in race.bursts}
    others = {engine: s.seconds for engine, s in standings.items() if engine != OURS}
    best = min(others, key=others.__getitem__) if others else None
    table = facts[OURS].get("layers", [])
    rate = 2 * sum(layer["macs"] for layer in table) * cell.batch / standings[OURS].seconds / 1e9
    return {
        **asdict(cell),
        "machine": platform.platform(),
        "engines": {engine: asdict(standing) for engine, standing in standings.items()},
        "best dense": best,
        "ratio": None if best is None else asdict(race.ratio(OURS, best)),
        "share of the L2 roofline": rate / (facts[OURS]["roofline"]["l2"] * cell.threads),
        "facts": facts,
    }


def prepare(network: str, folder: Path) -> dict[str, str]:
    """Write the files of a network."""
    import torch
    from make_spx import sparse_network

    from softprune.deploy.export import export
    from softprune.deploy.export.onnx_file import export_onnx

    stem = folder / network.replace("/", "-")
    files = {"spx": f"{stem}.spx", "onnx": f"{stem}.onnx"}
    if not all(Path(path).is_file() for path in files.values()):
        module, example = sparse_network(network), torch.zeros(1, 3, 224, 224)
        export(module, files["spx"], example=example)
        export_onnx(module, files["onnx"], example=example)
    return files


def row(result: dict[str, Any]) -> str:
    """A line of the table."""
    times = {engine: 1e3 * s["seconds"] for engine, s in result["engines"].items()}
    ratio = result["ratio"]
    cells = [result["network"], result["batch"], result["threads"], result["level"]]
    cells += [f"{times[engine]:.2f}" if engine in times else "" for engine in ENGINES]
    cells += [f"**{ratio['best']:.2f}** ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else ""]
    return "| " + " | ".join(map(str, [*cells, f"{100 * result['share of the L2 roofline']:.0f} %"])) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--files", type=Path, default=Path("runs", "inference"))
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--levels", nargs="+", default=["avx512", "avx2"])
    parser.add_argument("--bursts", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.8)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.files.mkdir(parents=True, exist_ok=True)
    lines = ["| network | batch | threads | level | softprune ms | ONNX Runtime ms | OpenVINO ms | ratio | roofline |"]
    lines.append("|" + " --- |" * 9)
    for case in itertools.product(options.networks, options.batches, options.threads, options.levels):
        cell = Cell(*case)
        path = options.out / f"{cell.name}.json"
        if not path.is_file():
            result = measure(cell, prepare(cell.network, options.files), bursts=options.bursts, seconds=options.seconds)
            path.write_text(json.dumps(result, indent=1))
        lines.append(row(json.loads(path.read_text())))
        print(lines[-1], flush=True)
    (options.out / "table.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
