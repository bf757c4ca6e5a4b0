"""Claim: sparse networks run faster than the best dense engine, by the ratios in the table that this script writes.

ResNet50 and MobileNetV1 at 224 x 224 with the published budgets (weights made on the spot: zeros decide the time, not
values), softprune's engine against ONNX Runtime and OpenVINO, each in a process of its own. Engines take turns in
bursts; a burst in which a process did not get its processor is dropped. The ratio is that of the fastest calls, its
spread that of bursts side by side. A cell is a JSON file; finished ones are skipped. Beside table.md there is
starts.md: the first start of our engine, which tunes, later ones, and its memory; SOFTPRUNE_CACHE should be a new
folder. Needs onnx, onnxruntime and openvino; an engine that is missing is left out.

    SOFTPRUNE_CACHE=$(mktemp -d) python benchmarks/inference.py --bursts 5 --seconds 0.4 \
        --out benchmarks/results/inference
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from softprune.deploy.bench.contest import contest, input_shapes, write_bench, write_files
from softprune.deploy.bench.engines import Job, missing
from softprune.deploy.bench.race import OURS
from softprune.deploy.engine.inference import load
from softprune.records import BenchKey as Key

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
# Those that are also run in batches, and with the smaller instruction set.
IN_BATCHES = ("str-90.23", "str-89.01", "uniform-70", "uniform-80")
WITH_AVX2 = ("str-90.23", "str-95.03", "str-98.05", "str-89.01", "dense")
OTHERS = ("onnxruntime", "openvino")


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


def cells(options: argparse.Namespace) -> list[Cell]:
    """So ordered that the first ones alone answer most questions."""
    found = []
    for level, batch, threads in itertools.product(options.levels, options.batches, options.threads):
        for network in options.networks:
            budget = network.partition("/")[2]
            if batch > 1 and budget not in IN_BATCHES:
                continue
            if level != "avx512" and (budget not in WITH_AVX2 or batch > 1 or threads > 1):
                continue
            found.append(Cell(network, batch, threads, level))
    return found


def prepare(network: str, folder: Path) -> tuple[str, str]:
    """Write the files of a network, once."""
    place = folder / network.replace("/", "-")
    names = place / "network.spx", place / "network.onnx"
    if not all(path.is_file() for path in names):
        place.mkdir(parents=True, exist_ok=True)
        write_files(f"zoo:{network}", place, onnx=True)
    return str(names[0]), str(names[1])


def measure(cell: Cell, files: Path, *, bursts: int, seconds: float) -> dict[str, Any]:
    """Race all engines on one cell."""
    spx, onnx = prepare(cell.network, files)
    shapes = input_shapes(spx, cell.batch)
    job = Job(spx, onnx, cell.network, shapes, cell.batch, cell.threads, level=cell.level)
    others = [name for name in OTHERS if not missing(name)]
    result = contest(job, others, bursts=bursts, seconds=seconds, needed=False, progress=lambda text: None)
    return {**asdict(cell), **result, "memory": memory(spx, cell)}


def memory(spx: str, cell: Cell) -> dict[str, int] | None:
    """What our engine holds; known for the instruction set of this process alone."""
    engine = load(spx, threads=cell.threads)
    if engine.level != cell.level:
        return None
    held = engine.memory(cell.batch)
    return {"bytes": held.total, "allowance": 8 * held.nonzeros + 2 * held.activations}


def row(result: dict[str, Any]) -> str:
    """A line of the table."""
    times = {engine: 1e3 * s[Key.SECONDS] for engine, s in result[Key.ENGINES].items()}
    ratio = result[Key.RATIOS].get(result[Key.FASTEST_OTHER])
    cells = [result[Key.NETWORK], result[Key.BATCH], result[Key.THREADS], result[Key.LEVEL]]
    cells += [f"{times[engine]:.2f}" if engine in times else "" for engine in (OURS, *OTHERS)]
    cells += [f"**{ratio[Key.BEST]:.2f}** ({ratio[Key.LOW]:.2f} to {ratio[Key.HIGH]:.2f})" if ratio else ""]
    return "| " + " | ".join(map(str, [*cells, f"{100 * result[Key.ROOFLINE_SHARE]:.0f} %"])) + " |"


def start_row(result: dict[str, Any]) -> str:
    """A line of the table of starts."""
    cells = [result[Key.NETWORK], result[Key.BATCH], result[Key.THREADS]]
    cells += [f"{result[which]:.2f}" for which in Key.STARTS]
    held = result["memory"]
    cells += [f"{held['bytes'] / 1e6:.1f}", f"{held['bytes'] / held['allowance']:.2f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


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
    lines = ["| network | batch | threads | level | softprune ms | ONNX Runtime ms | OpenVINO ms | ratio | roofline |"]
    lines.append("|" + " --- |" * 9)
    starts = ["| network | batch | threads | first start, s | later start, s | memory, MB | of the allowance |"]
    starts.append("|" + " --- |" * 7)
    for cell in cells(options):
        path = options.out / f"{cell.name}.json"
        if not path.is_file():
            write_bench(measure(cell, options.files, bursts=options.bursts, seconds=options.seconds), path)
        result = json.loads(path.read_text())
        lines.append(row(result))
        if result["memory"]:
            starts.append(start_row(result))
        print(lines[-1], flush=True)
    (options.out / "table.md").write_text("\n".join(lines) + "\n")
    (options.out / "starts.md").write_text("\n".join(starts) + "\n")


if __name__ == "__main__":
    main()
