"""Claim: the settings of the recipes har2/* and google12/* were chosen without the test samples, for both kinds alike.

Short runs at one rank pair of each data set, trained on a part of the training samples and tested on the rest of them:
three folds of seven training subjects each for HAR-2, the validation speakers for Google-12. Accuracy is that of the
last epoch. A setting is what differs from the first one; each is tried with STR and with a fixed rank. Run:

    python benchmarks/fastgrnn_settings.py data.har2=/data/uci_har data.google12=/data/speech_commands \\
        --workers 2 --out benchmarks/results/fastgrnn_settings
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cells import Alone, add_options, markdown, read_result, spread, train_into, work, write
from fastgrnn_table import TITLES, changes

RECIPES = {"har2": "9x8", "google12": "9x24"}
EPOCHS = {"har2": 100, "google12": 30}
FOLDS = {"har2": 3, "google12": 1}
# Minutes of a core, for the estimate.
MINUTES = {"har2": 0.7, "google12": 0.9}

KINDS = ("str", "vanilla")
# The first setting of each data set, in full, so that runs mean the same when recipes change.
FIRST = {
    "har2": (
        "optimizer={name: sgd, lr: 0.1, momentum: 0.9, weight_decay: 1e-4}",
        "data.rotate=30",
        "clip_norm=0.5",
    ),
    "google12": (
        "optimizer={name: sgd, lr: 0.1, momentum: 0.9, weight_decay: 1e-4}",
        "data.shift=10",
        "clip_norm=1",
    ),
}
# What was tried: by data set, the changes to it.
TRIED: dict[str, list[tuple[str, ...]]] = {
    "har2": [
        (),
        ("label_smoothing=0.1",),
        ("optimizer.weight_decay=1e-3",),
        ("data.shift=10",),
        ("optimizer.lr=0.05",),
        ("data.rotate=0",),
        ("clip_norm=0.2",),
    ],
    "google12": [
        (),
        ("optimizer.lr=0.05", "clip_norm=0.5"),
        ("optimizer.lr=0.05", "clip_norm=2"),
        ("optimizer={name: adam, lr: 0.003}",),
        ("clip_norm=4",),
        ("data.shift=0",),
    ],
}


@dataclass(frozen=True)
class Cell(Alone):
    """One short run."""

    data: str
    setting: tuple[str, ...]
    kind: str
    fold: int

    @property
    def name(self) -> str:
        setting = re.sub(r"[^\w.=]+", "-", ",".join(self.setting)) or "first"
        return f"{self.data}-{setting}-{self.kind}-fold{self.fold}"


def cells() -> list[Cell]:
    return [
        Cell(data, setting, kind, fold)
        for data, tried in TRIED.items()
        for setting in tried
        for kind in KINDS
        for fold in range(FOLDS[data])
    ]


def train(options: argparse.Namespace, cell: Cell) -> None:
    if cell.data == "har2":
        import softprune.train.data.har as har

        har.VALIDATION = slice(cell.fold, None, FOLDS["har2"])
    short = ["seed=0", "threads=1", "data.held=validation", f"epochs={EPOCHS[cell.data]}"]
    train_into(
        options.runs / cell.name,
        f"{cell.data}/{cell.kind}-{RECIPES[cell.data]}",
        [*short, *FIRST[cell.data], *cell.setting, *changes(options.change, cell.data)],
    )


def accuracies(runs: Path, data: str, setting: tuple[str, ...], kind: str, done: list[Cell]) -> list[float]:
    """Of the last epoch, in percent, by fold."""
    wanted = [c for c in done if (c.data, c.setting, c.kind) == (data, setting, kind)]
    return [100 * read_result(runs / c.name)["last"]["accuracy"] for c in wanted]


def report(options: argparse.Namespace, todo: list[Cell], done: list[Cell]) -> None:
    text, facts = [f"{len(done)} of {len(todo)} runs are done.\n"], {}
    for data, tried in TRIED.items():
        rows: list[dict[str, Any]] = []
        lines = []
        for setting in tried:
            found = {kind: accuracies(options.runs, data, setting, kind, done) for kind in KINDS}
            rows.append({"setting": list(setting), "accuracy": found})
            lines.append([_words(setting or FIRST[data]), *(_told(found[kind]) for kind in KINDS)])
        facts[data] = rows
        text.append(f"\n## {TITLES[data]}\n\n{markdown(['setting', 'STR', 'vanilla'], lines)}")
    text.append(
        f"\nAccuracy in percent on samples held out of the training samples, last epoch of {EPOCHS['har2']} (HAR-2, "
        f"mean of the folds in brackets) and of {EPOCHS['google12']} (Google-12).\n"
    )
    write(options, "".join(text), facts)


def _words(setting: tuple[str, ...]) -> str:
    return ", ".join(f"`{text}`" for text in setting)


def _told(found: list[float]) -> str:
    if not found:
        return ""
    folds = f" ({', '.join(f'{value:.2f}' for value in found)})" if len(found) > 1 else ""
    return f"{spread(found)['mean']:.2f}{folds}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "runs/fastgrnn_settings")
    options = parser.parse_args()
    work(options, cells(), train=lambda c: train(options, c), minutes=lambda c: MINUTES[c.data], report=report)


if __name__ == "__main__":
    main()
