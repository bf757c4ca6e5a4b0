"""The summary of a run: what was asked for, what was reached, and how large it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from softprune.goals.base import Measured
from softprune.records import CHECKPOINTS
from softprune.reporting.labels import configured_goal, part
from softprune.reporting.reading import known
from softprune.reporting.run import Run
from softprune.reporting.svg.axes import short
from softprune.reporting.tables import shown

FLOAT = 4  # bytes of a weight
POSITION = 2  # bytes of a position, counted from the weight before
LONG = 10**7


def dense_bytes(run: Run) -> int | None:
    """Bytes of all parameters in float32; None if the network is not known, as where its profile counts units."""
    profile = run.profile
    return None if profile is None or not run.words.costed else FLOAT * (profile.params + profile.other_params)


def packed_bytes(run: Run) -> int | None:
    """An estimate without zeros: float32 values, and per tensor a bit for every weight or a position for every value.

    Of these the smaller one counts, and a tensor that is smaller dense stays dense.
    """
    budget, profile = run.budget, run.profile
    if budget is None or profile is None or not run.words.costed:
        return None
    total = FLOAT * profile.other_params
    for cost in profile:
        kept = round(budget[cost.name] * cost.params)
        total += min(FLOAT * cost.params, FLOAT * kept + min(-(-cost.params // 8), POSITION * kept))
    return total


def checkpoint(run: Run) -> Path | None:
    """The path of the last checkpoint; None without one."""
    named = part(run.result, "last").get("checkpoint")
    folder = run.path / CHECKPOINTS
    if isinstance(named, str):
        # Only a file of this folder: a result of unknown origin shall not name another.
        found = folder / Path(named).name
        return found if found.is_file() else None
    return max(folder.glob("step-*.safetensors"), default=None)


def size_text(count: int) -> str:
    """Bytes in words.

    Example:
        >>> size_text(1_045_568), size_text(999)
        ('1.05 MB', '999 bytes')
    """
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"
    return f"{count} bytes"


@dataclass(frozen=True)
class Card:
    """One number of the summary."""

    name: str
    value: str
    more: str = ""  # words below it
    share: float | None = None  # how much of the dense network is left, in [0, 1], for a bar


def headline(run: Run) -> str:
    """The run in two or three sentences."""
    what = f"The network {run.model or '(unknown)'} was trained on {run.data or 'unknown data'}"
    how = "and left dense" if run.method == "dense" else f"and made sparse by the method {run.label}"
    words = [f"{what} {how}{f'; asked for was {run.goal}' if run.goal else ''}."]
    if run.sparsity is not None:
        total = total_units(run)
        of = f" of {total:,}" if total else ""
        what = run.words.plural
        words.append(f"{percent(run.sparsity)} of its {what} are zero, and {run.params or 0:,}{of} are left.")
    if run.stored is not None:
        words.append(f"Without them it has {run.stored:,} parameters.")
    if run.accuracy is not None:
        words.append(f"{'Its' if run.finished else 'So far its'} test accuracy is {percent(run.accuracy)}.")
    words.append(state(run))
    return " ".join(words)


def state(run: Run) -> str:
    """Whether the run is over, and how far it came."""
    if run.finished:
        seconds = known(run.result.get("seconds"))
        return f"The run is finished{f'; it took {duration(seconds)}' if seconds is not None else ''}."
    epochs = known(run.config.get("epochs"))
    length = known(run.config.get("length")) or 1.0
    seen = [value for row in (*run.steps, *run.epochs) if (value := known(row.get("epoch"))) is not None]
    of = f" of {round(epochs * length)}" if epochs else ""
    return f"The run is not finished: epoch {int(max(seen)) + 1}{of}." if seen else "The run has logged nothing yet."


def percent(share: float) -> str:
    """A fraction as percent with two decimals."""
    return shown(share, "percent")


def duration(seconds: float) -> str:
    """Seconds in words.

    Example:
        >>> duration(18.2), duration(4000)
        ('18 s', '1 h 7 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def total_units(run: Run) -> int | None:
    """All managed weights, or other units; None if unknown."""
    if run.profile is not None:
        return run.profile.params
    if run.params and run.sparsity is not None and run.sparsity < 1:
        return round(run.params / (1 - run.sparsity))
    return None


def cards(run: Run) -> list[Card]:
    """The numbers of the summary; those that are not known are left out."""
    return list(_cards(run))


def _cards(run: Run) -> Iterator[Card]:
    profile, what = run.profile, run.words.plural
    if run.accuracy is not None:
        best = known(part(run.result, "best").get("accuracy"))
        more = "after the last evaluated epoch" if best is None else f"after the last epoch; best epoch {percent(best)}"
        yield Card("Test accuracy", percent(run.accuracy), more)
    if run.goal:
        yield Card("Target", run.goal, verdict(run))
    if run.sparsity is not None:
        yield Card("Sparsity reached", percent(run.sparsity), f"of all managed {what} are zero")
    if run.params is not None:
        yield _left(f"{what.capitalize()} left", run.params, total_units(run), "")
    if run.stored is not None:
        yield _left("Parameters stored", run.stored, None, "of the whole network, without what is zero")
    if run.macs is not None:
        dense_macs = profile.total_macs() if profile is not None and profile.counted else None
        yield _left("Multiply-adds left", run.macs, dense_macs, " per input")
    dense, packed, file = dense_bytes(run), packed_bytes(run), checkpoint(run)
    if dense is not None and packed is not None:
        more = f"estimate; dense float32 takes {size_text(dense)}"
        yield Card("Packed size", size_text(packed), more, packed / dense if dense else None)
    if file is not None:
        more = "weights, thresholds and optimizer, not packed"
        yield Card("Checkpoint on disk", size_text(file.stat().st_size), more)
    if run.latency is None:
        return
    for name, value in run.latency.named.items():
        yield Card(f"Latency: {name.removesuffix('_ms').replace('_', ' ')}", f"{value:.4g} ms", "measured")
    if run.latency.engines:
        ours, *others = run.latency.engines
        next_best = min(others, key=lambda other: other.best, default=None)
        more = f"{next_best.best / ours.best:.2f} times as fast as {next_best.engine}" if next_best else ""
        yield Card("Time of a call", f"{ours.best:.4g} ms", more or run.latency.conditions)


def verdict(run: Run) -> str:
    """How near the goal the run came, in what it counts; empty where that cannot be told."""
    found = configured_goal(run.config)
    if found is None or part(run.config, "goal").get("scope") == "all":
        return ""
    kind, number = found
    measured = Measured(total_units(run), run.params, run.stored, run.macs)
    compared = kind.compared(number, measured, run.words)
    wanted, reached, unit = compared or (0, None, "")
    return "" if reached is None else _apart(reached - wanted, unit, wanted, finished=run.finished)


def _apart(difference: int, unit: str, wanted: int, *, finished: bool) -> str:
    if difference == 0:
        return f"met to the {unit}"
    plural = "" if abs(difference) == 1 else "s"
    side = "more" if difference > 0 else "fewer"
    return f"{'' if finished else 'so far '}{abs(difference):,} {unit}{plural} {side} than {wanted:,}"


def _left(name: str, left: int, dense: int | None, per: str) -> Card:
    # A number of many digits is read by its size first.
    brief = left < LONG
    exact = "" if brief else f"{left:,} "
    share = left / dense if dense else None
    more = f"{exact}of {dense:,}{per}, {percent(share)}" if dense and share is not None else f"{exact}{per}"
    return Card(name, f"{left:,}" if brief else short(float(f"{left:.4g}")), more.strip(), share)


def _sizes(run: Run) -> Iterator[Card]:
    dense, packed, file = dense_bytes(run), packed_bytes(run), checkpoint(run)
    if dense is not None and packed is not None:
        more = f"estimate; dense float32 takes {size_text(dense)}"
        yield Card("Packed size", size_text(packed), more, packed / dense if dense else None)
    if file is not None:
        yield Card(
            "Checkpoint on disk", size_text(file.stat().st_size), "weights, thresholds and optimizer, not packed"
        )
