"""A budget: how much of each tensor is kept. Needs no torch."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from softprune.budget.costs import Profile, TensorCost
from softprune.budget.show import Comparison, budget_table, compare, shape_text
from softprune.budget.units import USUAL, checked_units
from softprune.records import BUDGET, parse_json, read_text, require_format, write_text

if TYPE_CHECKING:
    from rich.table import Table

# The two texts of a budget: CSV for spreadsheets, JSON with one tensor per line.
COLUMNS = ("name", "density", "shape", "macs")
# Rows that carry the fixed costs of a profile, so that a CSV loses nothing. No tensor has such a name.
OTHER, POOL = "(other)", "(pool)"


def to_csv(densities: Mapping[str, float], profile: Profile | None) -> str:
    """Columns name, density and, with a profile, shape (``64x3x7x7``) and, if counted, macs."""
    rows: list[tuple[Any, ...]] = [COLUMNS]
    if profile is None:
        width = 2
        rows += [(name, repr(density)) for name, density in densities.items()]
    else:
        width = 4 if profile.counted else 3
        if lacking := [name for name in densities if name not in profile]:
            raise ValueError(f"{lacking[0]} is not in the attached profile; a CSV needs the cost of every tensor")
        costs = [(repr(density), profile[name]) for name, density in densities.items()]
        rows += [(cost.name, density, shape_text(cost.shape), cost.macs) for density, cost in costs]
        rows += [(OTHER, 1.0, profile.other_params, profile.other_macs), (POOL, 1.0, 0, profile.pool_macs)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(row[:width] for row in rows)
    return text.getvalue()


def from_csv(text: str, *, origin: str) -> tuple[dict[str, float], Profile | None]:
    """Read and check what :func:`to_csv` writes; the rows of fixed costs may be missing."""
    rows = csv.DictReader(io.StringIO(text), strict=True)
    try:
        header = tuple(rows.fieldnames or ())
    except csv.Error as error:
        raise ValueError(f"{origin} has no header that can be read: {error}") from error
    if header not in (COLUMNS, COLUMNS[:3], COLUMNS[:2]):
        raise ValueError(f"{origin} has columns {', '.join(header) or 'none'}; needed are name,density[,shape[,macs]]")
    densities: dict[str, float] = {}
    costs: list[TensorCost] = []
    fixed = {OTHER: (0, 0), POOL: (0, 0)}
    try:
        for row in rows:
            where = f"{origin}, line {rows.line_num}"
            if None in row or None in row.values():
                raise ValueError(f"{where} needs {len(header)} cells")
            name = row["name"]
            if name in fixed:
                fixed[name] = (_whole(row.get("shape", "0"), where), _whole(row.get("macs", "0"), where))
                continue
            if not name or name in densities:
                raise ValueError(f"{where} has {'no name' if not name else f'{name} a second time'}")
            try:
                densities[name] = float(row["density"])
            except ValueError:
                raise ValueError(f"{where}: density {row['density']!r} is not a number") from None
            if "shape" in row:
                shape = tuple(_whole(size, where) for size in row["shape"].split("x"))
                costs.append(TensorCost(name, shape, _whole(row.get("macs", "0"), where)))
    except csv.Error as error:
        raise ValueError(f"{origin}, line {rows.line_num}: {error}") from error
    if not densities:
        raise ValueError(f"{origin} lists no tensor")
    if not costs:
        return densities, None
    (other_params, other_macs), (_, pool_macs) = fixed[OTHER], fixed[POOL]
    return densities, Profile(tuple(costs), other_macs, pool_macs, other_params, counted=header == COLUMNS)


def to_json(document: dict[str, Any]) -> str:
    """Indented JSON; short objects and lists of numbers stay on one line, so that a diff shows tensors."""
    return _json(document, "") + "\n"


def _json(value: Any, indent: str) -> str:
    inner = indent + " "
    one_line = json.dumps(value, allow_nan=False, ensure_ascii=False)
    numbers = isinstance(value, list) and all(isinstance(v, int | float) for v in value)
    if not isinstance(value, dict | list) or numbers or len(one_line) + len(indent) <= 100:
        return one_line
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _json(v, inner) for v in value) + f"\n{indent}]"
    pairs = (f"{inner}{json.dumps(k, ensure_ascii=False)}: {_json(v, inner)}" for k, v in value.items())
    return "{\n" + ",\n".join(pairs) + f"\n{indent}}}"


def _whole(cell: str, where: str) -> int:
    if not cell.strip().isdecimal():
        raise ValueError(f"{where}: {cell!r} is not a whole number >= 0")
    return int(cell)


FORMAT = "softprune-budget"
VERSION = 1


@dataclass(frozen=True)
class Budget(Mapping[str, float]):
    """Density, the fraction of weights (or other units) kept, for every managed tensor: a read-only mapping.

    With units other than weights the tensors hold one importance for each unit, and their profile counts units.

    Example:
        >>> budget = Budget.load("resnet50/str-90.23")
        >>> round(budget.overall, 4), round(budget["conv1.weight"], 3)
        (0.9023, 0.402)
    """

    densities: Mapping[str, float]  # in [0, 1]; stored as given, `validate` judges them
    profile: Profile | None = None  # what the tensors cost; overall, params and macs need it
    source: str = ""  # where the budget came from, for reports
    units: str = USUAL  # what is kept or not: "weight", "filter", "rank", "block 4x8"
    stored: int | None = None  # parameters of the whole network without what was pruned, where that is known

    def __post_init__(self) -> None:
        if not self.densities:
            raise ValueError("a budget needs at least one tensor, got none")
        checked_units(self.units, origin="a budget")
        plain = {str(name): float(density) for name, density in self.densities.items()}
        object.__setattr__(self, "densities", MappingProxyType(plain))

    def __getitem__(self, name: str) -> float:
        return self.densities[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.densities)

    def __len__(self) -> int:
        return len(self.densities)

    def __reduce__(self) -> tuple[Any, ...]:
        # The read-only view of a dict cannot be pickled or copied; the dict can.
        return Budget, (dict(self.densities), self.profile, self.source, self.units, self.stored)

    def sparsity(self, name: str) -> float:
        """The fraction of zeros in one tensor."""
        return 1.0 - self.densities[name]

    def with_profile(self, profile: Profile) -> Budget:
        """The same budget with another profile, after :meth:`validate`."""
        self.validate(profile)
        return replace(self, profile=profile)

    @property
    def overall(self) -> float:
        """Sparsity of all tensors together."""
        return self._sparsity(self._costs())

    @property
    def backbone(self) -> float:
        """Sparsity without the classifier (the last tensor)."""
        profile = self._costs()
        if len(profile) == 1:
            raise ValueError(f"{profile.head} is the only tensor: there is no backbone without it")
        return self._sparsity(t for t in profile if t.name != profile.head)

    @property
    def params(self) -> int:
        """Weights (or other units) kept, rounded to the nearest whole one."""
        return round(math.fsum(self[t.name] * t.params for t in self._costs()))

    def macs(self, *, pool: bool = True) -> int:
        """Multiply-adds left: density * MACs of every tensor, plus the fixed costs."""
        profile = self._costs()
        return round(profile.total_macs(pool=pool) - math.fsum(self.sparsity(t.name) * t.macs for t in profile))

    def validate(self, profile: Profile | None = None) -> None:
        """Raise one ValueError that lists all wrong densities, and names and shapes that are not those of ``profile``.

        By default that is the attached profile.
        """
        faults = [f"density of {name} is {d:g}, not in [0, 1]" for name, d in self.items() if not 0 <= d <= 1]
        target = profile or self.profile
        if target is not None:
            faults += [f"{name} is missing from the budget" for name in target.names if name not in self]
            faults += [f"{name} is not a tensor of the profile" for name in self if name not in target]
            if self.profile is not None:
                known = {t.name: t.shape for t in target}
                faults += [
                    f"{t.name} has shape {t.shape} in the budget and {known[t.name]} in the profile"
                    for t in self.profile
                    if known.get(t.name, t.shape) != t.shape
                ]
        if faults:
            raise ValueError("the budget does not fit:\n  " + "\n  ".join(faults))

    def difference(self, other: Budget) -> dict[str, float]:
        """Density here minus density there, for every tensor; both need the same names."""
        return {row.name: row.density_a - row.density_b for row in self.compare(other).rows}

    def compare(self, other: Budget) -> Comparison:
        """Both budgets side by side with totals."""
        return compare(self, other)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a ``.json`` or ``.csv`` file; an existing one is replaced as a whole."""
        if Path(path).suffix == ".json":
            return write_text(path, self.to_json())
        if Path(path).suffix == ".csv":
            if self.units != USUAL:
                raise ValueError(f"a CSV has no place for what is counted, {self.units}: save it as .json")
            return write_text(path, to_csv(self.densities, self.profile))
        raise ValueError(f"a budget is saved as .json or .csv, got {os.fspath(path)!r}")

    @classmethod
    def load(cls, where: str | os.PathLike[str]) -> Budget:
        """Read a ``.json`` or ``.csv`` file, a folder with a ``budget.json``, or a published budget by its name."""
        path = Path(where) / BUDGET if Path(where).is_dir() else Path(where)
        if path.is_file() or path.suffix in (".json", ".csv"):
            text = read_text(path)
            if path.suffix != ".csv":
                return cls.from_json(text, origin=str(path))
            return _checked(cls(*from_csv(text, origin=str(path))), str(path))
        return published(os.fspath(where))

    def to_json(self) -> str:
        return to_json(
            {
                "format": FORMAT,
                "version": VERSION,
                "source": self.source,
                **({} if self.units == USUAL else {"units": self.units}),
                **({} if self.stored is None else {"stored": self.stored}),
                "densities": dict(self.densities),
                "profile": self.profile.to_dict() if self.profile else None,
            }
        )

    @classmethod
    def from_json(cls, text: str, *, origin: str = "budget") -> Budget:
        """Read and check what :meth:`to_json` returns; ``origin`` names the file in messages."""
        data = parse_json(text, origin)
        require_format(data, FORMAT, version=VERSION, origin=origin)
        if not isinstance(densities := data.get("densities"), dict) or not densities:
            raise ValueError(f"{origin} has no densities")
        if bad := [k for k, v in densities.items() if isinstance(v, bool) or not isinstance(v, int | float)]:
            raise ValueError(f"{origin}: the densities of {', '.join(bad)} are not numbers")
        profile = data.get("profile")
        costs = None if profile is None else Profile.from_dict(profile, origin=f"{origin}, profile")
        units = checked_units(data.get("units", USUAL), origin=origin)
        stored = data.get("stored")
        if stored is not None and (not isinstance(stored, int) or isinstance(stored, bool) or stored < 0):
            raise ValueError(f"{origin}: stored is a number of parameters, got {stored!r}")
        return _checked(cls(densities, costs, str(data.get("source", "")), units, stored), origin)

    def _repr_html_(self) -> str:
        return budget_table(self).html()

    def __rich__(self) -> Table:
        return budget_table(self).rich()

    def _sparsity(self, tensors: Iterable[TensorCost]) -> float:
        rows = list(tensors)
        return math.fsum(self.sparsity(t.name) * t.params for t in rows) / max(1, sum(t.params for t in rows))

    def _costs(self) -> Profile:
        if self.profile is None:
            raise ValueError("this budget has no profile; attach one: budget.with_profile(softprune.profile(...))")
        if missing := [name for name in self.profile.names if name not in self]:
            raise ValueError(f"the budget has no density for {', '.join(missing)}")
        return self.profile


def _checked(budget: Budget, origin: str) -> Budget:
    try:
        budget.validate()
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from error
    return budget


# The paper's budgets, ready to load.
ZOO_FORMAT, ZOO_VERSION = "softprune-zoo", 1
NETWORKS = ("resnet50", "mobilenetv1")  # one data file each


@dataclass(frozen=True)
class ZooEntry:
    """One published budget."""

    name: str  # for ``Budget.load``
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
    require_format(data, ZOO_FORMAT, version=ZOO_VERSION, origin=file.name)
    profile = Profile.from_dict(data["profile"], origin=file.name)

    def budget(short: str, densities: list[float]) -> Budget:
        return Budget(dict(zip(profile.names, densities, strict=True)), profile, f"{network}/{short}")

    return {short: (record, budget(short, record["densities"])) for short, record in data["budgets"].items()}
