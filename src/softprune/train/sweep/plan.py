"""A dry run of a sweep: what it would do, as text."""

from __future__ import annotations

from collections.abc import Iterator

from softprune.train.config.problem import shown
from softprune.train.rehearsal import rehearse
from softprune.train.sweep.objective import DIRECTIONS
from softprune.train.sweep.space import Dimension, Range
from softprune.train.sweep.sweep import Sweep, written

MOST_REHEARSALS = 8


def describe(sweep: Sweep) -> str:
    """The space, the number of trials, and the plan of a run in a corner of it. Needs neither data nor Optuna.

    Other corners are rehearsed, too: a run may refuse what its configuration allows, such as thresholds that would be
    driven past 0. Such trials fail, and a space that is full of them is better changed before.
    """
    plans, refusals = [], []
    for point in sweep.space.corners(MOST_REHEARSALS)[:MOST_REHEARSALS]:
        try:
            plans.append((point, rehearse(sweep.run_config(point))))
        except ValueError as error:
            refusals.append(f"a run with {written(point)} would fail: {error}")
    first = ["", f"a run with {written(plans[0][0])}:", plans[0][1]] if plans else []
    return "\n".join([*_lines(sweep), *refusals, *first])


def _lines(sweep: Sweep) -> Iterator[str]:
    config = sweep.config
    goals = " and ".join(f"{DIRECTIONS[name]} {name}" for name in config.objectives)
    yield f"{config.name}: {goals} on {config.base} over {sweep.trials:,} trials, chosen by {config.sampler}"
    if not sweep.space.endless():
        yield f"{sweep.space.size():,} combinations of"
    width = max(map(len, config.search))
    for key, dimension in config.search.items():
        yield f"  {key:{width}}  {_values(dimension, whole=key in sweep.space.whole)}"
    for key, value in config.changes.items():
        yield f"  {key:{width}}  {shown(value)} (changed)"
    if config.pruner is not None:
        epochs = config.pruner.warmup_epochs
        yield f"hopeless trials are stopped by {config.pruner.name}, after {epochs} epochs at the earliest"


def _values(dimension: Dimension, *, whole: bool) -> str:
    if not isinstance(dimension, Range):
        return ", ".join(shown(choice) for choice in dimension)
    step = f" in steps of {dimension.step:g}" if dimension.step is not None else ""
    kind = "whole numbers " if whole else ""
    return f"{kind}{dimension.low:g} to {dimension.high:g}{step}{', logarithmic' if dimension.log else ''}"
