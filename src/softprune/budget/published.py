"""The paper's budgets, ready to load. Needs no torch."""

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile
from softprune.budget.files import parse_json, require_format

FORMAT = "softprune-zoo"
VERSION = 1
NETWORKS = ("resnet50", "mobilenetv1")  # one data file each


@dataclass(frozen=True)
class ZooEntry:
    """One published budget: its name for ``Budget.load``, and what it is."""

    name: str
    network: str
    method: str
    sparsity: float
    note: str


def zoo() -> list[ZooEntry]:
    """All published budgets.

    Example:
        >>> [entry.name for entry in zoo() if entry.network == "mobilenetv1"]
        ['mobilenetv1/str-89.01', 'mobilenetv1/gmp-89.03']
    """
    return [
        ZooEntry(f"{network}/{short}", network, record["method"], budget.overall, record["note"])
        for network in NETWORKS
        for short, (record, budget) in _network(network).items()
    ]


def published(name: str) -> Budget:
    """The budget called ``name``, such as ``"resnet50/str-90.23"``, with its profile attached."""
    network, _, short = name.partition("/")
    if network in NETWORKS and short in _network(network):
        return _network(network)[short][1]
    names = [entry.name for entry in zoo()]
    near = get_close_matches(name, names, n=4, cutoff=0.5) or [n for n in names if n.startswith(network + "/")]
    hint = f"near it: {', '.join(near)}" if near else f"the networks are {', '.join(NETWORKS)}"
    raise ValueError(
        f"{name!r} is neither a .json or .csv file, nor a folder, nor a published budget; {hint}. "
        "softprune.budget.zoo() lists all published budgets"
    )


@cache
def _network(network: str) -> dict[str, tuple[dict[str, Any], Budget]]:
    file = resources.files("softprune.budget") / "zoo_data" / f"{network}.json"
    data = parse_json(file.read_text(encoding="utf-8"), file.name)
    require_format(data, FORMAT, version=VERSION, origin=file.name)
    profile = Profile.from_dict(data["profile"], origin=file.name)
    return {
        short: (
            record,
            Budget(dict(zip(profile.names, record["densities"], strict=True)), profile, f"{network}/{short}"),
        )
        for short, record in data["budgets"].items()
    }
