"""Write the published budgets of src/softprune/budget/zoo_data from the paper's tables.

Usage: python tools/make_zoo.py FOLDER

FOLDER holds resnet50_str_budgets.csv, resnet50_90_budgets_by_method.csv and
mobilenetv1_90_budgets_by_method.csv: one row per layer with its weights, its FLOPs and its sparsity in
percent. Names, shapes and costs come from our networks and must agree with the tables' own.
"""

import csv
import sys
from decimal import Decimal
from pathlib import Path

import torch

from softprune.budget.budget import ZOO_FORMAT as FORMAT
from softprune.budget.budget import ZOO_VERSION as VERSION
from softprune.budget.budget import to_json
from softprune.budget.costs import Profile
from softprune.budget.profiler import profile
from softprune.nn.catalog import NETWORKS, build
from softprune.records import write_text

OUT = Path(__file__).resolve().parents[1] / "src" / "softprune" / "budget" / "zoo_data"
# Rows of the tables that are not layers, in lower case.
SUMMARIES = ("overall", "backbone", "avgpool", "ap (average pool before fc)")
# Column of the table by method -> name of the budget, method, note.
RESNET_METHODS = {
    "Uniform": ("uniform-90", "uniform", "90 % of every layer, as used with GMP and DNW"),
    "ERK": ("erk-90", "ERK", "as printed, in whole percent; softprune.erk computes it exactly"),
    "SNFS": ("snfs-90", "SNFS", "found by sparse networks from scratch"),
    "VD": ("vd-90", "VD", "found by variational dropout"),
    "GS": ("gs-89.54", "STR-GS", "found by STR with one global threshold"),
}
MOBILENET_METHODS = {
    "STR": ("str-89.01", "STR", "found by STR"),
    "GMP": ("gmp-89.03", "GMP", "90 % of every layer, the first and the depthwise convolutions dense"),
}

Column = dict[str, object]


def layers(path: Path) -> list[dict[str, str]]:
    """The rows of a table that are layers, in order."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return [row for row in csv.DictReader(file) if row["layer"].lower() not in SUMMARIES]


def costs(network: str, rows: list[dict[str, str]]) -> Profile:
    """The profile of our network, refused unless weights and FLOPs are those of the table."""
    with torch.device("meta"):
        found = profile(build(network), torch.zeros(NETWORKS[network].example_shape))
    ours = [(t.params, t.macs) for t in found]
    theirs = [(int(row["dense_params"]), int(row["dense_flops"])) for row in rows]
    if ours != theirs:
        raise SystemExit(f"{network}: the network's costs are not those of the table")
    return found


def column(rows: list[dict[str, str]], key: str, *, method: str, note: str) -> Column:
    # Decimal, so that 59.80 percent becomes 0.402 and not 0.40200000000000002.
    densities = [float(1 - Decimal(row[key]) / 100) for row in rows]
    return {"method": method, "note": note, "densities": densities}


def write(network: str, found: Profile, budgets: dict[str, Column]) -> None:
    document = {
        "format": FORMAT,
        "version": VERSION,
        "network": network,
        "source": "Kusupati et al., Soft Threshold Weight Reparameterization, ICML 2020",
        "profile": found.to_dict(),
        "budgets": budgets,
    }
    print(write_text(OUT / f"{network}.json", to_json(document)), len(budgets), "budgets")


def main(folder: Path) -> None:
    table, by_method = (
        layers(folder / "resnet50_str_budgets.csv"),
        layers(folder / "resnet50_90_budgets_by_method.csv"),
    )
    if [row["str_90.23"] for row in table] != [row["STR"] for row in by_method]:
        raise SystemExit("the STR column of the table by method is no longer the 90.23 % budget: give it a name")
    resnet = {
        f"str-{key.removeprefix('str_')}": column(table, key, method="STR", note="found by STR")
        for key in table[0]
        if key.startswith("str_")
    }
    for key, (name, method, note) in RESNET_METHODS.items():
        resnet[name] = column(by_method, key, method=method, note=note)
    write("resnet50", costs("resnet50", table), resnet)

    table = layers(folder / "mobilenetv1_90_budgets_by_method.csv")
    mobilenet = {
        name: column(table, key, method=method, note=note) for key, (name, method, note) in MOBILENET_METHODS.items()
    }
    write("mobilenetv1", costs("mobilenetv1", table), mobilenet)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
