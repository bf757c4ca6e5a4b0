"""Charts of the layers: their thresholds over time, and what each of them keeps at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from softprune.budget.budget import Budget
from softprune.budget.costs import TensorCost
from softprune.budget.counted import WEIGHT
from softprune.reporting.chart import Axis, Chart, Mark, Series
from softprune.reporting.counting import shared_noun
from softprune.reporting.curves import EPOCHS, named
from softprune.reporting.run import Layer, Run

NAN = float("nan")
# More lines than this cannot be told apart; of more layers some are drawn.
MOST_LINES = 60


def thresholds(runs: Sequence[Run]) -> Chart:
    """The threshold of every layer over the epochs; the paper's figure 1 shows one layer."""
    each = max(1, MOST_LINES // max(len(runs), 1))
    series = []
    left_out = False
    for run, alone in named(runs, ""):
        some = _some(list(run.layers), each)
        if not some and alone:
            series.append(Series(alone, (), ()))
        left_out |= len(some) < len(run.layers)
        for tensor in some:
            rows = run.layers[tensor]
            name = f"{alone}: {tensor}" if alone else tensor
            xs, ys = tuple(float(row.epoch + 1) for row in rows), tuple(row.alpha for row in rows)
            series.append(Series(name, xs, ys, group=alone or tensor))
    more = " Some layers are drawn, evenly chosen; the table has all of them." if left_out else ""
    return Chart(
        name="thresholds",
        title="Thresholds over time",
        caption=f"Threshold of every layer after each evaluated epoch, from the first layer to the last.{more}",
        x=EPOCHS,
        y=Axis("threshold"),
        series=tuple(series),
    )


def _some(tensors: list[str], most: int) -> list[str]:
    if len(tensors) <= most:
        return tensors
    return [tensors[round(k * (len(tensors) - 1) / max(most - 1, 1))] for k in range(most)]


def final_thresholds(runs: Sequence[Run]) -> Chart:
    """The last threshold of every layer; the paper's figure 3."""
    return _by_layer(
        "final_thresholds",
        [
            (name, {tensor: rows[-1].alpha for tensor, rows in run.layers.items()})
            for run, name in named(runs, "threshold")
        ],
        title="Thresholds at the end",
        caption=f"{_what(runs)} of a layer that are smaller than its threshold are zero.",
        y=Axis("threshold", low=0.0),
        tensors=tensor_names(runs),
    )


def layer_sparsity(runs: Sequence[Run], *, against: Sequence[Budget] = ()) -> Chart:
    """What every layer gives up at the end, beside other budgets; the paper's figure 6."""
    costs, counted = tensor_costs(runs), shared_noun(run.units for run in runs)
    found = [(name, {t: 1 - d for t, d in last_densities(run).items()}) for run, name in named(runs, "this run")]
    found += [(b.source, {t: 1 - b[t] for t in b}) for b in against]
    return _by_layer(
        "layer_sparsity",
        found,
        title="Sparsity of every layer",
        caption=f"Share of the {counted} of each layer that are zero at the end, from the first layer to the last.",
        y=Axis("sparsity", percent=True, low=0.0, high=1.0),
        tensors=tensor_names(runs, against),
        notes=lambda tensor, value: _kept(costs.get(tensor), value, counted),
    )


def layer_macs(runs: Sequence[Run], *, against: Sequence[Budget] = ()) -> Chart:
    """The multiply-adds that every layer costs at the end, beside other budgets; the paper's figure 7."""
    costs = tensor_costs(runs)
    found = [(name, last_macs(run)) for run, name in named(runs, "this run")]
    found += [(b.source, {t: b[t] * costs[t].macs for t in b if t in costs}) for b in against]
    return _by_layer(
        "layer_macs",
        found,
        title="Multiply-adds of every layer",
        caption="Multiply-adds of one forward pass that are left in each layer; what is zero is not counted.",
        y=Axis("multiply-adds left", low=0.0),
        tensors=tensor_names(runs, against),
        notes=lambda tensor, value: _of_dense(costs.get(tensor), value),
    )


def tensor_names(runs: Sequence[Run], against: Sequence[Budget] = ()) -> list[str]:
    """All tensors in the order of the network, those of the first run first."""
    return list(dict.fromkeys(name for one in [*map(last_densities, runs), *against] for name in one))


def tensor_costs(runs: Sequence[Run]) -> dict[str, TensorCost]:
    """Shapes and multiply-adds by tensor, as far as the runs know them; of two runs the first is asked."""
    profiles = [run.budget.profile for run in reversed(runs) if run.budget is not None]
    return {cost.name: cost for profile in profiles if profile is not None for cost in profile}


def last_densities(run: Run) -> Mapping[str, float]:
    """What every tensor keeps at the end of the last logged epoch."""
    return _last(run, lambda row: row.density) or dict(run.budget or {})


def last_macs(run: Run) -> Mapping[str, float]:
    """Multiply-adds left in every tensor at the end of the last logged epoch; none where they are not known."""
    if run.units != WEIGHT:
        return {}
    costs = tensor_costs([run])
    kept = {name: density * costs[name].macs for name, density in (run.budget or {}).items() if name in costs}
    return _last(run, lambda row: row.macs) or kept


def _last(run: Run, value: Callable[[Layer], float]) -> dict[str, float]:
    return {tensor: value(rows[-1]) for tensor, rows in run.layers.items()}


def _by_layer(
    name: str,
    found: Iterable[tuple[str, Mapping[str, float]]],
    *,
    title: str,
    caption: str,
    y: Axis,
    tensors: Sequence[str],
    notes: Callable[[str, float], str] = lambda tensor, value: "",
) -> Chart:
    rows = list(found)
    places = tuple(map(float, range(len(tensors))))
    series = []
    for label, values in rows:
        if not values:
            # Its place, and so its colour, stays: a run looks the same in all charts.
            series.append(Series(label, (), ()))
            continue
        ys = tuple(values.get(tensor, NAN) for tensor in tensors)
        texts = tuple(notes(tensor, value) for tensor, value in zip(tensors, ys, strict=True))
        # One series alone is easier to read as bars; several would be a fence.
        mark: Mark = "bars" if len(rows) == 1 else "line"
        series.append(Series(label, places, ys, mark=mark, notes=texts if any(texts) else ()))
    return Chart(name, title, caption, Axis("layer", categories=tuple(tensors)), y, tuple(series))


def _what(runs: Sequence[Run]) -> str:
    """What a threshold is for."""
    if all(run.units == WEIGHT for run in runs):
        return "Weights"
    return f"Importances of the {shared_noun(run.units for run in runs)}"


def _kept(cost: TensorCost | None, sparsity: float, what: str) -> str:
    if cost is None or not math.isfinite(sparsity):
        return ""
    return f"{(1 - sparsity) * cost.params:,.0f} of {cost.params:,} {what} are left"


def _of_dense(cost: TensorCost | None, macs: float) -> str:
    if cost is None or not cost.macs or not math.isfinite(macs):
        return ""
    return f"{macs / cost.macs * 100:.2f} % of {cost.macs:,}"
