"""Claim: at every rank pair of the paper's Table 3 STR finds a better FastGRNN than training at that rank does.

HAR-2 and Google-12 in full, 300 epochs of batch 100, by the recipes har2/* and google12/*: at full rank, at a fixed
rank from the start ("vanilla"), and with STR on the directions of both matrices, which begin at full rank and end at
exactly the same pair. Data, changes of the training samples, optimizer and schedule are the same in all rows of a data
set; they were chosen on validation subjects and speakers (fastgrnn_settings.py).

Accuracy is that of the last checkpoint: nothing is chosen with the test samples. The paper's protocol, the best test
accuracy over all epochs, stands beside it. Cells are run folders, made once and continued if stopped, one process per
worker; a table can be made of those that are there. Run:

    python benchmarks/fastgrnn_table.py data.har2=/data/uci_har data.google12=/data/speech_commands \\
        --workers 2 --out benchmarks/results/fastgrnn_table
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cells import (
    Alone,
    add_options,
    gap_text,
    markdown,
    paired,
    read_result,
    seeds_text,
    spread,
    spread_text,
    train_into,
    work,
    write,
)

from softprune.nn.low_rank import stored_weights

TITLES = {"har2": "HAR-2", "google12": "Google-12"}
SEEDS = {"har2": 5, "google12": 3}
# Features and hidden units.
SIZES = {"har2": (9, 80), "google12": (32, 100)}
# The paper's Table 3: vanilla and STR by rank pair; its full rank.
PAPER = {
    "har2": {(9, 8): (94.06, 95.76), (9, 7): (93.15, 95.62), (8, 7): (94.88, 95.59)},
    "google12": {(12, 40): (92.79, 94.45), (11, 35): (92.86, 94.42), (10, 31): (92.86, 94.25), (9, 24): (93.18, 94.45)},
}
PAPER_FULL = {"har2": 96.10, "google12": 92.30}
# FastGRNN's own low-rank result on HAR-2 (Kusupati et al., 2018).
FASTGRNN_HAR2 = 96.81
# Minutes of a core, for the estimate.
MINUTES = {"har2": 3, "google12": 9}


@dataclass(frozen=True)
class Cell(Alone):
    """One run; no pair is full rank."""

    data: str
    kind: str
    pair: tuple[int, int] | None
    seed: int

    @property
    def row(self) -> str:
        return self.kind if self.pair is None else f"{self.kind}-{self.pair[0]}x{self.pair[1]}"

    @property
    def name(self) -> str:
        return f"{self.data}-{self.row}-seed{self.seed}"


def cells() -> list[Cell]:
    """All of them in the order in which they are wanted: one seed of everything first."""
    order = {"har2": [(9, 8), (9, 7), (8, 7)], "google12": [(9, 24), (12, 40), (10, 31), (11, 35)]}

    def seed_of(data: str, seed: int) -> Iterator[Cell]:
        for pair in order[data]:
            yield from (Cell(data, "str", pair, seed), Cell(data, "vanilla", pair, seed))
        yield Cell(data, "full", None, seed)

    first = [*seed_of("har2", 0), *seed_of("google12", 0)]
    more = [cell for seed in range(1, SEEDS["har2"]) for cell in seed_of("har2", seed)]
    # Three seeds of HAR-2 take less than one of Google-12.
    return [*first, *more[:14], *(c for s in range(1, SEEDS["google12"]) for c in seed_of("google12", s)), *more[14:]]


def outcome(runs: Path, cell: Cell) -> dict[str, Any]:
    """What a finished cell tells."""
    result = read_result(runs / cell.name)
    return {
        "name": cell.name,
        "seed": cell.seed,
        "last": 100 * result["last"]["accuracy"],
        "best": 100 * result["best"]["accuracy"],
        "minutes": result["seconds"] / 60,
    }


def stored(data: str, pair: tuple[int, int] | None) -> int:
    """Parameters of W and U as they are stored: factors, or whole where that is no more."""
    inputs, hidden = SIZES[data]
    if pair is None:
        return (inputs + hidden) * hidden
    return stored_weights(inputs, hidden, rank=pair[0]) + stored_weights(hidden, hidden, rank=pair[1])


def rows_of(runs: Path, data: str, done: list[Cell]) -> list[dict[str, Any]]:
    """One row per rank pair, full rank last."""
    rows = []
    for pair in [*PAPER[data], None]:
        found = {
            kind: [outcome(runs, c) for c in done if (c.data, c.kind, c.pair) == (data, kind, pair)]
            for kind in (("full",) if pair is None else ("vanilla", "str"))
        }
        paper = (PAPER_FULL[data],) if pair is None else PAPER[data][pair]
        rows.append(
            {
                "pair": None if pair is None else list(pair),
                "parameters": stored(data, pair),
                "paper": dict(zip(found, paper, strict=True)),
                "runs": found,
                **{key: {k: spread([r[key] for r in v]) for k, v in found.items() if v} for key in ("last", "best")},
                "gain": paired(found["str"], found["vanilla"], "last") if pair else None,
            }
        )
    return rows


def goals(data: str, rows: list[dict[str, Any]]) -> list[str]:
    """What was hoped for, and what came."""
    pairs = [row for row in rows if row["pair"]]
    compared = [row for row in pairs if row["gain"]]
    better = [row for row in compared if row["gain"]["mean"] > 0]
    trained = [row for row in pairs if "str" in row["last"]]
    lines = [f"STR better than vanilla: at {len(better)} of the {len(compared)} pairs that have both, of {len(pairs)}."]
    for key, words in (("last", "last checkpoint"), ("best", "paper's protocol")):
        # The paper has two digits.
        reached = [row for row in trained if round(row[key]["str"]["mean"], 2) >= row["paper"]["str"]]
        lines.append(f"At or above the paper's STR, {words}: {len(reached)} of {len(trained)} pairs trained.")
    if data == "har2" and trained:
        for key, words in (("last", "last checkpoint"), ("best", "paper's protocol")):
            top = max(trained, key=lambda row: row[key]["str"]["mean"])
            mean = top[key]["str"]["mean"]
            verdict = "beaten" if mean > FASTGRNN_HAR2 else "not beaten"
            lines.append(
                f"FastGRNN's own {FASTGRNN_HAR2}, {words}: {verdict}, with {mean:.2f} at {_pair(top['pair'])} "
                f"({seeds_text(len(top['runs']['str']))})."
            )
    return lines


def _pair(pair: list[int] | None) -> str:
    return "full" if pair is None else f"({pair[0]}, {pair[1]})"


def table(rows: list[dict[str, Any]]) -> str:
    head = [
        "r_W, r_U", "parameters", "vanilla", "STR", "STR - vanilla",
        "paper vanilla", "paper STR", "vanilla, best epoch", "STR, best epoch", "seeds",
    ]  # fmt: skip
    lines = []
    for row in rows:
        plain = "vanilla" if row["pair"] else "full"

        def told(key: str, kind: str, row: dict[str, Any] = row) -> str:
            return spread_text(row[key][kind]) if kind in row[key] else ""

        counts = [len(row["runs"][kind]) for kind in row["runs"]]
        lines.append(
            [
                _pair(row["pair"]), f"{row['parameters']:,}", told("last", plain), told("last", "str"),
                gap_text(row["gain"]), f"{row['paper'][plain]:.2f}",
                f"{row['paper']['str']:.2f}" if row["pair"] else "",
                told("best", plain), told("best", "str"), " and ".join(dict.fromkeys(map(str, counts))),
            ]
        )  # fmt: skip
    return markdown(head, lines)


def report(options: argparse.Namespace, todo: list[Cell], done: list[Cell]) -> None:
    text = [f"{len(done)} of {len(todo)} cells are done.\n"]
    facts: dict[str, Any] = {"cells": len(todo), "done": len(done)}
    for data, title in TITLES.items():
        count = sum(c.data == data for c in done), sum(c.data == data for c in todo)
        facts[data] = rows = rows_of(options.runs, data, done)
        text.append(f"\n## {title}: {count[0]} of {count[1]} cells\n\n{table(rows)}\n")
        text += [f"- {line}\n" for line in goals(data, rows)]
    text.append(
        "\nTest accuracy in percent, mean ± deviation over the seeds. Without other words it is of the last "
        "checkpoint; best epoch is the highest of all epochs, which is chosen with the test samples, as in the paper. "
        "STR - vanilla: mean over the seeds that both have, with its 95 % interval. Parameters: of W and U, as they "
        "are stored.\n"
    )
    facts["recipes"] = {c.name: _settings(options.runs, c) for c in done if c.seed == 0}
    write(options, "".join(text), facts)


def _settings(runs: Path, cell: Cell) -> dict[str, Any]:
    from softprune.train.config import RunConfig

    config = RunConfig.load(runs / cell.name / "config.yaml")
    return config.model_dump(mode="json", include={"data", "optimizer", "schedule", "goal", "epochs", "clip_norm"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "runs/fastgrnn")
    options = parser.parse_args()
    work(
        options,
        cells(),
        train=lambda c: train_into(
            options.runs / c.name,
            f"{c.data}/{c.row}",
            [f"seed={c.seed}", "threads=1", "checkpoint.keep=1", *changes(options.change, c.data)],
        ),
        minutes=lambda c: MINUTES[c.data],
        report=report,
    )


def changes(given: list[str], data: str) -> list[str]:
    """Those for one data set: data.har2=FOLDER is data.root=FOLDER for HAR-2 alone."""
    own = [text.replace(f"data.{data}=", "data.root=", 1) for text in given]
    others = tuple(f"data.{other}=" for other in TITLES if other != data)
    return [text for text in own if not text.startswith(others)]


if __name__ == "__main__":
    main()
