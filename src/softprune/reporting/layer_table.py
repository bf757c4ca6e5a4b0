"""The tables of a report: every layer of every run, and the runs themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from softprune.budget.budget import Budget
from softprune.budget.counted import WEIGHT
from softprune.reporting.counting import shared_noun
from softprune.reporting.curves import named
from softprune.reporting.layerwise import last_densities, tensor_costs
from softprune.reporting.reading import known
from softprune.reporting.run import Run
from softprune.reporting.tabular import Column, Table, Value

_TIME = Column("microseconds", "number", "measured time of the layer, one sample")


# Columns about multiply-adds: what a filter, a block or a direction costs is not known.
_MACS = ("MACs", "MACs left", "share of MACs left")


def _columns(runs: Sequence[Run]) -> tuple[Column, ...]:
    what, single = shared_noun(run.units for run in runs), all(run.units == WEIGHT for run in runs)
    sized = what if single else f"importances of {what}"
    return (
        Column("layer", help="name of the weight tensor" if single else "name of the tensor"),
        Column("shape", help="" if single else f"of the importances, one for each of the {what}"),
        Column(what, "count", f"all {what} of the tensor"),
        Column(f"{what} left", "count", f"{what} that are not zero"),
        Column("sparsity", "percent", f"share of the {what} that are zero"),
        Column("threshold", "number", f"{sized} smaller than this are zero"),
        Column("s", "number", "the learnt parameter behind the threshold"),
        Column("MACs", "count", "multiply-adds of one forward pass, dense"),
        Column("MACs left", "count", "multiply-adds that are left"),
        Column("share of MACs left", "percent", "how much of what is left in all layers is in this one"),
        Column("L1 norm", "number", f"sum of the sizes of the {sized} that are left"),
    )


def layer_table(runs: Sequence[Run], against: Sequence[Budget] = ()) -> Table:
    """Every layer with all its numbers at the end; of several runs one after the other."""
    several = len(runs) > 1
    timed = any(run.latency is not None and run.latency.microseconds for run in runs)
    found = [(name, row) for run, name in named(runs, "") for row in _rows(run, against, timed=timed)]
    others = tuple(Column(f"sparsity, {budget.source}", "percent") for budget in against)
    columns = (*_columns(runs), *((_TIME,) if timed else ()), *others)
    counted = not runs or any(run.units == WEIGHT for run in runs)
    shown = [place for place, column in enumerate(columns) if counted or column.name not in _MACS]
    rows = [(name, tuple(row[place] for place in shown)) for name, row in found]
    return Table(
        name="layer-table",
        caption="Every layer after the last logged epoch, in the order of the network.",
        columns=((Column("run"),) if several else ()) + tuple(columns[place] for place in shown),
        rows=tuple(((name, *row) if several else row) for name, row in rows),
        groups=tuple(name for name, _ in rows) if several else (),
    )


def _rows(run: Run, against: Sequence[Budget], *, timed: bool) -> Iterator[tuple[Value, ...]]:
    costs = tensor_costs([run])
    densities = last_densities(run)
    last = {name: rows[-1] for name, rows in run.layers.items()}
    counted = run.units == WEIGHT
    macs = {n: last[n].macs if n in last else d * costs[n].macs if n in costs else None for n, d in densities.items()}
    total = sum(value for value in map(known, macs.values()) if value is not None)
    for name, density in densities.items():
        cost, row, left = costs.get(name), last.get(name), macs[name] if counted else None
        yield (
            name,
            " x ".join(map(str, cost.shape)) if cost else None,
            cost.params if cost else None,
            _whole(density * cost.params) if cost else None,
            1 - density,
            row.alpha if row else None,
            row.s if row else None,
            cost.macs if cost and counted else None,
            _whole(left),
            left / total if left is not None and total else None,
            row.l1_active if row else None,
            *((run.latency.layer(name) if run.latency else None,) if timed else ()),
            *(1 - budget[name] if name in budget else None for budget in against),
        )


def _whole(value: float | None) -> int | None:
    found = known(value)
    return None if found is None else round(found)


def run_table(runs: Sequence[Run]) -> Table:
    """The runs side by side."""
    what = shared_noun(run.units for run in runs)
    stored = any(run.stored is not None for run in runs)
    columns = (
        Column("run", help="name of the folder"),
        Column("method"),
        Column("goal"),
        Column("seed", "count"),
        Column("accuracy", "percent", "on the test samples, after the last evaluated epoch"),
        Column("sparsity", "percent", f"share of all managed {what} that are zero"),
        Column(f"{what} left", "count"),
        *((Column("parameters stored", "count", "of the whole network, without what is zero"),) if stored else ()),
        Column("MACs left", "count", "multiply-adds of one forward pass"),
        Column("state"),
    )
    rows = tuple(
        (
            name,
            run.label,
            run.goal,
            run.seed,
            run.accuracy,
            run.sparsity,
            run.params,
            *((run.stored,) if stored else ()),
            run.macs,
            "finished" if run.finished else "not finished",
        )
        for run, name in named(runs, "this run")
    )
    return Table("runs", "The runs of this report.", columns, rows, groups=tuple(str(row[0]) for row in rows))
