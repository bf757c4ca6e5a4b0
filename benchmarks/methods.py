"""Claim: every method of the package reaches its target on the same network, and what each of them costs is known.

Trains a CNN (261,392 weights) on 10,000 images of Fashion-MNIST for 12 epochs with every method at 90 and 98 %, three
seeds, with the same order of data, optimizer and total number of optimizer steps: the five rounds of IMP share them.
A cell is one run folder of `softprune train`, as in target.py; given the same folder the two share what both need.
`--cost` measures instead what a step costs: all methods take turns of 50 steps of batch 128 in one process, each
through the whole schedule, and memory is counted in bytes of all that is kept between two steps. Run:

    python benchmarks/methods.py --workers 2 --out benchmarks/results/methods
    python benchmarks/methods.py --cost --out benchmarks/results/methods_cost
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cells import add_options, gap_text, markdown, paired, read_result, spread, spread_text, write
from fashion import COMMON, DENSE, GOAL, METHODS, NETWORKS, RECIPE, RUNS, Cell, work
from racing import WARM_UP, race

LEVELS = (0.90, 0.98)
SEEDS = 3
# By how each decides what a tensor keeps.
FAMILIES: dict[str, tuple[str, ...]] = {
    "learnt": (GOAL, "autosparse", "vd"),
    "one threshold": ("st3", "st3 sigma", "slats", "feather", "gmp global", "dpf global", "imp global", "acdc global"),
    "given budget": ("gmp uniform", "gmp erk", "dnw uniform", "dnw erk"),
    "sparse from the first step": ("rigl erk", "set erk", "snfs erk", "dsr", "static erk", "snip global"),
}
# With one seed: the same with a uniform budget; a gentler SNFS, which moves half of the weights at its first moves.
ONCE = ("rigl uniform", "snfs uniform", "static uniform", "snfs erk, rate 0.1")
# Steps of one turn, and turns, of a comparison of costs.
TURN, TURNS, BATCH = 50, 12, 128


def cells() -> list[Cell]:
    """So ordered that the first ones alone make a table."""
    rows = [method for family in FAMILIES.values() for method in family]
    found = []
    for seed in range(SEEDS):
        found.append(Cell("cnn", DENSE, 0.0, seed))
        found += [Cell("cnn", method, level, seed) for level in reversed(LEVELS) for method in rows]
    return found + [Cell("cnn", method, level, 0) for level in LEVELS for method in ONCE]


def family_of(method: str) -> str:
    return next((name for name, methods in FAMILIES.items() if method in methods), "sparse from the first step")


# accuracy


def read(options: argparse.Namespace, cell: Cell) -> dict[str, Any]:
    """The numbers of a finished cell."""
    result = read_result(options.runs / cell.name)
    last = result["last"]
    found = {"seed": cell.seed, "accuracy": 100 * last["accuracy"], "steps": last["step"], "seconds": result["seconds"]}
    return found | {key: last[key] for key in ("sparsity", "params", "macs") if key in last}


def summarise(options: argparse.Namespace, done: list[Cell]) -> list[dict[str, Any]]:
    runs: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for cell in done:
        runs.setdefault((cell.level, cell.method), []).append(read(options, cell))
    rows = []
    for (level, method), found in sorted(runs.items(), key=lambda item: (item[0][0], -best(item[1]))):
        row = {"level": level, "method": method, "family": family_of(method) if level else "", "runs": found}
        row["accuracy"] = spread([r["accuracy"] for r in found])
        if level:
            row["macs"] = spread([r["macs"] for r in found])
            row["difference"] = paired(found, runs.get((level, GOAL), []), "accuracy") if method != GOAL else None
        rows.append(row)
    return rows


def best(runs: list[dict[str, Any]]) -> float:
    return statistics.mean(r["accuracy"] for r in runs)


def accuracy_table(rows: list[dict[str, Any]]) -> str:
    head = ["level", "method", "family", "seeds", "accuracy, %", "difference to str goal", "thousand MACs"]
    head += ["weights left", "seconds"]
    lines = []
    for row in rows:
        runs = row["runs"]
        lines.append(
            [
                f"{100 * row['level']:g} %" if row["level"] else "dense",
                row["method"],
                row["family"],
                str(len(runs)),
                spread_text(row["accuracy"]),
                gap_text(row.get("difference")),
                spread_text(row["macs"], 1000.0) if "macs" in row else "",
                ", ".join(f"{n:,}" for n in sorted({r["params"] for r in runs if "params" in r})),
                f"{statistics.median(r['seconds'] for r in runs):.0f}",
            ]
        )
    return markdown(head, lines)


def report(options: argparse.Namespace, todo: list[Cell], done: list[Cell]) -> None:
    rows = summarise(options, done)
    head = f"{len(done)} of {len(todo)} cells; accuracy after the last step, mean ± standard deviation; differences "
    text = f"{head}paired by seed, mean ± half of a 95 % interval.\n\n{accuracy_table(rows)}"
    write(options, text, {"cells": {"done": len(done), "all": len(todo)}, "rows": rows})


# cost


class Learner:
    """A network that takes some steps at a time."""

    def __init__(self, method: str, level: float) -> None:
        import torch

        from softprune.train.assembly import Processes, assemble
        from softprune.train.config import RunConfig
        from softprune.train.data import LoaderSource

        changes = [text.format(level=level) for text in METHODS[method]]
        config = RunConfig.load(RECIPE, [*NETWORKS["cnn"], *COMMON, "epochs=1", "evaluate_every=1", *changes])
        alone = Processes(rank=0, world=1, device=torch.device("cpu"))
        steps = TURN * (TURNS + WARM_UP)
        batches = [(torch.zeros(BATCH, 1, 28, 28), torch.zeros(BATCH, dtype=torch.int64))] * steps
        parts = assemble(config, LoaderSource(batches, batches[:1]), alone)
        self.model, self.optimizer = parts.model, parts.optimizer
        self.images = torch.randn(BATCH, 1, 28, 28).contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(10, (BATCH,))

    def turn(self) -> None:
        import torch

        self.model.train()
        for _ in range(TURN):
            self.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.model(self.images), self.labels).backward()
            self.optimizer.step()

    @property
    def bytes(self) -> int:
        """All that is kept between two steps: parameters, buffers and the state of the optimizer."""
        kept = {id(t): t for t in tensors([dict(self.model.state_dict(keep_vars=True)), self.optimizer.state_dict()])}
        return sum(t.numel() * t.element_size() for t in kept.values())


def tensors(values: Any) -> Iterator[Any]:
    import torch

    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, Mapping | list | tuple):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from tensors(value)


def cost(options: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    rows = [DENSE, *(method for family in FAMILIES.values() for method in family)]
    learners = {method: Learner(method, LEVELS[0]) for method in rows}
    turns: dict[str, Callable[[], None]] = {method: learner.turn for method, learner in learners.items()}
    seconds = race(turns, TURNS, clock=time.process_time)
    weights = 261_392
    facts, lines = {}, []
    for method in rows:
        ratios = [a / b for a, b in zip(seconds[method], seconds[DENSE], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        extra = (learners[method].bytes - learners[DENSE].bytes) / weights
        facts[method] = {"seconds": seconds[method], "ratio": middle, "middle half": [low, high], "extra bytes": extra}
        lines.append([method, f"{middle:.3f}", f"{low:.3f} to {high:.3f}", f"{extra:.1f}"])
    text = f"Processor time of a step relative to a dense one: median and middle half over turns of {TURN} steps, one\n"
    text += "thread, through the whole schedule to 90 %. Memory: bytes per weight beside those of dense training.\n\n"
    head = ["method", "time of a step", "middle half", "extra bytes per weight"]
    write(options, text + markdown(head, lines), {"methods": facts})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, runs=RUNS)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most this many")
    parser.add_argument("--cost", action="store_true", help="measure time and memory of a step, train nothing")
    options = parser.parse_intermixed_args()
    if options.cost:
        cost(options)
    else:
        work(options, [cell for cell in cells() if cell.seed < options.seeds], report)


if __name__ == "__main__":
    main()
