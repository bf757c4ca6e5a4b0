"""Write the recipes of the paper's runs into src/softprune/train/recipe_data from the paper's tables.

Usage: python tools/make_recipes.py FOLDER

FOLDER holds resnet50_hyperparameters.csv, resnet50_results.csv, mobilenetv1_hyperparameters.csv,
mobilenetv1_results.csv and fastgrnn_results.csv. The small recipes are written by hand.
"""

import csv
import sys
from pathlib import Path

from softprune.records import write_text

OUT = Path(__file__).resolve().parents[1] / "src" / "softprune" / "train" / "recipe_data"
TITLES = {"resnet50": "ResNet50", "mobilenetv1": "MobileNetV1"}
# Table of the results and table of the hyper-parameters in the paper.
TABLES = {"resnet50": (1, 10), "mobilenetv1": (2, 11)}
COST = "500,500 steps of batch 256; about 3 days on 4 Titan X (Pascal), says the paper"
LAMBDA = "3.0517578125e-5"  # of the dense runs: 2^-15
# Parameters as the budgets of Table 6 give them, where the table of the results misprints them.
CORRECTED = {("resnet50", "81.27"): "4.78M"}
NOTES = {
    ("resnet50", "dense"): "The decay is that of the authors' code. The paper's 25.6M parameters count batch norm too; "
    "the weights are 25,502,912.",
    ("mobilenetv1", "dense"): "The decay is that of the authors' code.",
    ("resnet50", "81.27"): "The paper prints 4.47M parameters; its sparsity and its budget (Table 6) both give 4.78M.",
    ("resnet50", "97.78"): "The decay is as printed. All others from 81.27 % up are 2^-15 plus a multiple of 1e-6, so "
    "5.2517578125e-5 may be what was used.",
}
TEMPLATE = """\
# softprune train {network}/{what} data.root=/path/to/imagenet
version: 1
name: {network}-{what}
summary: {summary}
model: {network}
data: {{name: image-folder, image_size: 224, workers: 8}}
method: {method}
optimizer:
  name: sgd
  lr: 0.256
  momentum: 0.875
  weight_decay: {decay}
  norm_decay: {decay} # the paper decays batch norm like the weights
{threshold}schedule: {{name: cosine, warmup_epochs: 5, per: epoch}}
epochs: 100
batch: 256
label_smoothing: 0.1
expected:
  accuracy: {accuracy}
  sparsity: {sparsity}
  params: {params}
  flops: {flops}
  source: {source}
{note}  cost: {cost}
"""

# Of the recurrent networks, the same for all rows of a data set: chosen on training subjects that were held out (har2)
# and on the validation speakers (google12), see benchmarks/fastgrnn_settings.py.
SEQUENCES = {
    "har2": {
        "title": "HAR-2",
        "data": "{name: har2, rotate: 30}",
        "optimizer": "{name: sgd, lr: 0.1, momentum: 0.9, weight_decay: 0.0001}",
        "clip_norm": "0.5",
        "end": ", end: 0.4",
        "steps": "22,200",
        "cost": "3 to 10 minutes",
    },
    "google12": {
        "title": "Google-12",
        "data": "{name: google12, shift: 10}",
        "optimizer": "{name: sgd, lr: 0.1, momentum: 0.9, weight_decay: 0.0001}",
        "clip_norm": "1",
        "end": "",
        "steps": "66,900",
        "cost": "8 to 30 minutes",
    },
}
SEQUENCE_TEMPLATE = """\
# softprune train {data}/{what} data.root=/path/to/the/data
version: 1
name: {data}-{what}
summary: {summary}
model: {model}
data: {source}
method: {method}
{aim}optimizer: {optimizer}
schedule: {schedule}
epochs: 300
batch: 100
clip_norm: {clip_norm}
checkpoint: {{every_epochs: 5, keep: 1}}
expected:
  accuracy: {accuracy}
  source: {origin}
  note: >-
    {note}
  cost: {steps} steps of batch 100; {cost} on a CPU core
"""
LAST = "The paper's accuracy is most likely that of the best epoch on the test data, and its settings differ."


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def number(text: str) -> int:
    """2.49M -> 2490000."""
    return round(float(text[:-1]) * {"K": 1e3, "M": 1e6, "G": 1e9}[text[-1]])


def fraction(percent: str) -> str:
    return f"{float(percent) / 100:.4f}"


def shortest(decay: str) -> str:
    """0.00002251757813 -> 2.251757813e-5, the same number."""
    digits, _, exponent = repr(float(decay)).partition("e")
    return f"{digits}e{int(exponent)}"


def recipe(network: str, result: dict[str, str], hyper: dict[str, str] | None) -> tuple[str, str]:
    """The name and the text of one recipe; without hyper-parameters, that of the dense network."""
    percent = result["sparsity"]
    what = f"str-{percent}" if hyper else "dense"
    results, settings = TABLES[network]
    params = CORRECTED.get((network, percent), result["params"])
    note = NOTES.get((network, percent if hyper else "dense"), "")
    text = TEMPLATE.format(
        network=network,
        what=what,
        summary=f"{TITLES[network]} on ImageNet-1K, {f'STR, {percent} % sparse in the paper' if hyper else 'dense'}",
        method=f"{{name: str, s_init: {hyper['s_init']}, granularity: tensor, g: sigmoid}}" if hyper else "null",
        threshold="  threshold_decay: null # and the thresholds too\n" if hyper else "",
        decay=shortest(hyper["weight_decay"]) if hyper else LAMBDA,
        accuracy=fraction(result["top1"]),
        sparsity=fraction(percent),
        params=number(params),
        flops=number(result["flops"]),
        source=f"paper, Table {results}" + (f"; hyper-parameters from Table {settings}" if hyper else ""),
        note=f"  note: >-\n    {note}\n" if note else "",
        cost=COST,
    )
    return what, text


def sequence_recipes(data: str, results: list[dict[str, str]]) -> list[tuple[str, str]]:
    """The names and texts of all recipes of one data set: fixed ranks, STR to the same ranks, and the paper's decay."""
    made = []
    end = SEQUENCES[data]["end"]
    for row in results:
        w, u = row["r_w"], row["r_u"]
        if not row["str_accuracy"]:
            made.append(_sequence(data, "full", "full rank", row["vanilla_accuracy"]))
            continue
        fixed = f"args: {{rank_w: {w}, rank_u: {u}}}"
        made.append(_sequence(data, f"vanilla-{w}x{u}", f"ranks {w} and {u}", row["vanilla_accuracy"], args=fixed))
        goal = f"units: rank\ngoal: {{rank: {{w: {w}, u: {u}}}{end}}}\n"
        summary = f"STR to ranks {w} and {u}"
        made.append(
            _sequence(
                data, f"str-{w}x{u}", summary, row["str_accuracy"], args="args: {learned: true}", method="str", aim=goal
            )
        )
    decay = next(row["weight_decay"] for row in results if row["weight_decay"])
    made.append(
        _sequence(
            data,
            "str-decay",
            f"STR with the paper's decay {decay} of m and s, no goal",
            None,
            args="args: {learned: true}",
            method="{name: str, s_init: -10, g: exp}",
            aim="units: rank\n",
            optimizer=f"{{name: sgd, lr: 1e-2, momentum: 0.9, importance_decay: {decay}, threshold_decay: {decay}}}",
            schedule="{name: step, milestones: [200], gamma: 0.1}",
            note="Ranks fall along the way and are read from layers.csv; the paper tells which it met with this decay.",
        )
    )
    return made


def _sequence(
    data: str,
    what: str,
    summary: str,
    accuracy: str | None,
    *,
    args: str = "",
    method: str = "null",
    aim: str = "",
    optimizer: str = "",
    schedule: str = "cosine",
    note: str = LAST,
) -> tuple[str, str]:
    given = SEQUENCES[data]
    text = SEQUENCE_TEMPLATE.format(
        data=data,
        what=what,
        summary=f"FastGRNN on {given['title']}, {summary}",
        model=f"{{name: fastgrnn_{data}, {args}}}" if args else f"fastgrnn_{data}",
        source=given["data"],
        method=method,
        aim=aim,
        optimizer=optimizer or given["optimizer"],
        schedule=schedule,
        clip_norm=given["clip_norm"],
        accuracy=fraction(accuracy) if accuracy else "null",
        origin="paper, Table 3",
        note=note,
        steps=given["steps"],
        cost=given["cost"],
    )
    return what, text


def main(folder: Path) -> None:
    sequences = rows(folder / "fastgrnn_results.csv")
    for data in SEQUENCES:
        _write(data, sequence_recipes(data, [row for row in sequences if row["dataset"] == data]))
    for network in TABLES:
        results = rows(folder / f"{network}_results.csv")
        hypers = {row["sparsity"]: row for row in rows(folder / f"{network}_hyperparameters.csv")}
        dense = results[0]
        learnt = [row for row in results if row["method"] == "STR"]
        if {row["sparsity"] for row in learnt} != set(hypers):
            raise SystemExit(f"{network}: results and hyper-parameters are not of the same models")
        made = [recipe(network, dense, None), *(recipe(network, row, hypers[row["sparsity"]]) for row in learnt)]
        _write(network, made)


def _write(network: str, made: list[tuple[str, str]]) -> None:
    (OUT / network).mkdir(parents=True, exist_ok=True)
    for what, text in made:
        write_text(OUT / network / f"{what}.yaml", text)
    print(network, len(made), "recipes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
