"""The two texts of a budget: CSV for spreadsheets, JSON with one tensor per line. Needs no torch."""

import csv
import io
import json
from collections.abc import Mapping
from typing import Any

from softprune.budget.costs import Profile, TensorCost

COLUMNS = ("name", "density", "shape", "macs")
# Rows that carry the fixed costs of a profile, so that a CSV loses nothing. No tensor has such a name.
OTHER, POOL = "(other)", "(pool)"


def to_csv(densities: Mapping[str, float], profile: Profile | None) -> str:
    """Columns name, density and, with a profile, shape (``64x3x7x7``) and, if counted, macs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if profile is None:
        writer.writerow(COLUMNS[:2])
        writer.writerows((name, repr(density)) for name, density in densities.items())
        return text.getvalue()
    width = 4 if profile.counted else 3
    writer.writerow(COLUMNS[:width])
    costs = {t.name: t for t in profile}
    for name, density in densities.items():
        if name not in costs:
            raise ValueError(f"{name} is not in the attached profile; a CSV needs the cost of every tensor")
        row = (name, repr(density), "x".join(map(str, costs[name].shape)), costs[name].macs)
        writer.writerow(row[:width])
    writer.writerow((OTHER, 1.0, profile.other_params, profile.other_macs)[:width])
    writer.writerow((POOL, 1.0, 0, profile.pool_macs)[:width])
    return text.getvalue()


def from_csv(text: str, *, origin: str) -> tuple[dict[str, float], Profile | None]:
    """Read what :func:`to_csv` writes; the fixed-cost rows may be missing."""
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
            densities[name] = _density(row["density"], where)
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


def _density(cell: str, where: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise ValueError(f"{where}: density {cell!r} is not a number") from None


def _whole(cell: str, where: str) -> int:
    if not cell.strip().isdecimal():
        raise ValueError(f"{where}: {cell!r} is not a whole number >= 0")
    return int(cell)
