"""Claim: sparse networks run faster than the best dense engine, by the ratios in the table that this script writes.

ResNet50 and MobileNetV1 at 224 x 224 with the published budgets (weights made on the spot: zeros decide the time, not
values), softprune's engine against ONNX Runtime and OpenVINO, each in a process of its own. Engines take turns in
bursts; a burst in which a process did not get its processor is dropped. The ratio is that of the fastest calls, its
spread that of bursts side by side. A cell is a JSON file; finished ones are skipped. Beside table.md there is
starts.md: the first start of our engine, which tunes, later ones, and its memory; SOFTPRUNE_CACHE should be a new
folder. Needs onnx, onnxruntime and openvino; an engine that is missing is left out.

    SOFTPRUNE_CACHE=$(mktemp -d) python benchmarks/inference.py --bursts 5 --seconds 0.4 \
        --out benchmarks/results/inference

With --int8 our engine runs the networks in int8, BERT-base too (its encoder on 128 tokens, random weights), against our
float32 and against dense int8: OpenVINO quantised by NNCF, ONNX Runtime by quantize_static; the ratio is that to the
faster one. Ranges come from random inputs. A row says how many layers of each ran in integers. Needs nncf as well, and
transformers for BERT.

    SOFTPRUNE_CACHE=$(mktemp -d) python benchmarks/inference.py --int8 --bursts 5 --seconds 0.4 \
        --out benchmarks/results/inference_int8
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from softprune.deploy.bench.contest import Files, contest, input_shapes, write_bench, write_files, write_module
from softprune.deploy.bench.engines import Job, missing
from softprune.deploy.bench.race import OURS
from softprune.deploy.engine.inference import load
from softprune.deploy.export.zoo import fill_
from softprune.deploy.format.spx import read_spx
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
NETWORKS_INT8 = (
    "resnet50/str-90.23",
    "resnet50/str-79.55",
    "resnet50/str-95.03",
    "resnet50/uniform-70",
    "mobilenetv1/str-89.01",
    "bert-base/uniform-80",
    "bert-base/uniform-90",
    "bert-base/uniform-95",
    "resnet50/dense",
)
IN_BATCHES_INT8 = ("resnet50/str-79.55", "resnet50/str-90.23", "mobilenetv1/str-89.01")
OTHERS_INT8 = ("softprune-float32", "openvino-int8", "onnxruntime-int8", "openvino")
TOKENS = 128


@dataclass(frozen=True)
class Cell:
    """One comparison."""

    network: str
    batch: int
    threads: int
    level: str
    int8: bool = False

    @property
    def name(self) -> str:
        return f"{self.network}-batch{self.batch}-threads{self.threads}-{self.level}".replace("/", "-")

    @property
    def wanted(self) -> bool:
        """Whether it is among those that answer most questions."""
        budget = self.network.partition("/")[2]
        if self.int8:
            return self.batch == 1 or self.network in IN_BATCHES_INT8
        if self.batch > 1 and budget not in IN_BATCHES:
            return False
        return self.level == "avx512" or (budget in WITH_AVX2 and self.batch == self.threads == 1)


def cells(options: argparse.Namespace) -> list[Cell]:
    """So ordered that the first ones alone answer most questions."""
    networks = options.networks or (NETWORKS_INT8 if options.int8 else NETWORKS)
    every = itertools.product(options.levels, options.batches, options.threads, networks)
    found = [Cell(network, batch, threads, level, options.int8) for level, batch, threads, network in every]
    return [cell for cell in found if cell.wanted]


def prepare(cell: Cell, folder: Path) -> Files:
    """Write the files of a network, once."""
    place = folder / cell.network.replace("/", "-")
    spx, onnx, int8 = (str(place / name) for name in ("network.spx", "network.onnx", "network-int8.spx"))
    if not all(Path(path).is_file() for path in (spx, onnx, *[int8] * cell.int8)):
        place.mkdir(parents=True, exist_ok=True)
        name, _, budget = cell.network.partition("/")
        if name == "bert-base":
            example = torch.zeros(1, TOKENS, 768)
            return write_module(bert(float(budget.removeprefix("uniform-"))), example, place, onnx=True, int8=cell.int8)
        return write_files(f"zoo:{cell.network}", place, onnx=True, int8=cell.int8)
    return Files(int8, onnx, spx, True) if cell.int8 else Files(spx, onnx)


def bert(percent: float) -> torch.nn.Module:
    """The encoder of BERT-base with random weights, as many of each linear layer zero; it takes embedded tokens."""
    from transformers import BertConfig, BertModel

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = BertModel(BertConfig(), add_pooling_layer=False).encoder

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encoder(x).last_hidden_state

    torch.manual_seed(0)
    module, generator = Encoder().eval(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.ndim > 1:
                fill_(weight, 1 - percent / 100, generator)
    return module


def measure(cell: Cell, folder: Path, *, bursts: int, seconds: float) -> dict[str, Any]:
    """Race all engines on one cell."""
    files = prepare(cell, folder)
    shapes = input_shapes(files.spx, cell.batch)
    job = Job(
        files.spx,
        files.onnx,
        cell.network,
        shapes,
        cell.batch,
        cell.threads,
        level=cell.level,
        float_spx=files.float_spx,
        int8=files.int8,
    )
    others = [name for name in (OTHERS_INT8 if cell.int8 else OTHERS) if not missing(name)]
    result = contest(job, others, bursts=bursts, seconds=seconds, needed=False, progress=lambda text: None)
    return {**asdict(cell), "file": size(files), **result, "memory": memory(files.spx, cell)}


def size(files: Files) -> dict[str, int]:
    """Bytes of our file, and its weights that are not zero."""
    counts = (weight.count() for weight in read_spx(Path(files.spx)).weights.values() if len(weight.shape) > 1)
    return {"bytes": Path(files.spx).stat().st_size, "nonzeros": sum(counts)}


def memory(spx: str, cell: Cell) -> dict[str, int] | None:
    """What our engine holds; known for the instruction set of this process alone."""
    engine = load(spx, threads=cell.threads)
    if engine.level != cell.level:
        return None
    held = engine.memory(cell.batch)
    return {"bytes": held.total, "allowance": 8 * held.nonzeros + 2 * held.activations}


def row(result: dict[str, Any]) -> str:
    """A line of the table."""
    int8 = result.get("int8", False)
    times = {engine: f"{1e3 * s[Key.SECONDS]:.2f}" for engine, s in result[Key.ENGINES].items()}
    ratio = result[Key.RATIOS].get(result[Key.FASTEST_INT8 if int8 else Key.FASTEST_OTHER])
    cells = [result[Key.NETWORK], result[Key.BATCH], result[Key.THREADS], result[Key.LEVEL]]
    cells += [times.get(engine, "") for engine in (OURS, *(OTHERS_INT8 if int8 else OTHERS))]
    cells += [f"**{ratio[Key.BEST]:.2f}** ({ratio[Key.LOW]:.2f} to {ratio[Key.HIGH]:.2f})" if ratio else ""]
    if int8:
        ran = (result[Key.ENGINES].get(engine, {}).get(Key.LOW_LAYERS) for engine in OTHERS_INT8[1:3])
        cells += [", ".join(f"{few} of {every}" for few, every in filter(None, ran))]
        cells += [f"{result['file']['bytes'] / result['file']['nonzeros']:.2f}"]
    else:
        cells += [f"{100 * result[Key.ROOFLINE_SHARE]:.0f} %"]
    return "| " + " | ".join(map(str, cells)) + " |"


HEADS = {
    False: "| network | batch | threads | level | softprune ms | ONNX Runtime ms | OpenVINO ms | ratio | roofline |",
    True: "| network | batch | threads | level | softprune int8 ms | softprune float32 ms | OpenVINO int8 ms "
    "| ONNX Runtime int8 ms | OpenVINO float32 ms | against the fastest dense int8 | their layers in int8 "
    "| bytes per nonzero |",
}


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
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--networks", nargs="+")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--levels", nargs="+")
    parser.add_argument("--bursts", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.8)
    options = parser.parse_args()
    options.levels = options.levels or (["avx512"] if options.int8 else ["avx512", "avx2"])
    options.out.mkdir(parents=True, exist_ok=True)
    head = HEADS[options.int8]
    lines = [head, "|" + " --- |" * (head.count("|") - 1)]
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
