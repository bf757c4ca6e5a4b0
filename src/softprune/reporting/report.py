"""The report of one or several runs: a page that is one file, figures for papers, and budgets to compare with."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from softprune.budget.allocate import erk, uniform
from softprune.budget.budget import Budget
from softprune.budget.costs import Profile
from softprune.budget.units import shared_noun
from softprune.goals.base import Measured
from softprune.goals.goal import Sparsity
from softprune.records import BUDGET, CHECKPOINTS, CONFIG, write_text
from softprune.reporting.charts import CHARTS, Chart, layer_macs, layer_sparsity, named, tells_something
from softprune.reporting.figures import save_figures
from softprune.reporting.labels import configured_goal, part
from softprune.reporting.page import refuse_place, render
from softprune.reporting.reading import known
from softprune.reporting.run import Run, find_runs, read_run
from softprune.reporting.svg.axes import short
from softprune.reporting.tables import layer_table, run_table, shown, times_table

_RULES = {"uniform": uniform, "erk": erk}
TRAINING = ("accuracy", "sparsity", "training_loss")
THRESHOLDS = ("thresholds", "final_thresholds")
FLOAT = 4  # bytes of a weight
POSITION = 2  # bytes of a position, counted from the weight before
LONG = 10**7


def reference_budgets(names: Iterable[str], runs: Sequence[Run]) -> list[Budget]:
    """The budgets that runs are compared with, under the names of the runs' tensors; ``source`` is the name.

    A name is "uniform" or "erk" for the total that the first run reached, or a budget file, a run folder, or a
    published budget such as "resnet50/str-90.23".
    """
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return []
    own = next((run.budget for run in runs if run.profile is not None), None)
    if own is None or own.profile is None:
        raise ValueError(f"no {BUDGET} tells the layers of these runs yet, so {wanted[0]} cannot be set beside them")
    return [_reference(name, own, own.profile) for name in wanted]


def _reference(name: str, own: Budget, profile: Profile) -> Budget:
    if name in _RULES:
        if not 0 < own.overall < 1:
            raise ValueError(f"{name} shares out the sparsity of a run, and this one has {own.overall:.2%}")
        made = _RULES[name](profile, Sparsity(own.overall))
        return Budget(made.densities, profile, f"{name} ({own.overall * 100:.2f} %)")
    other = Budget.load(name)
    label = Path(name).resolve().name if Path(name).exists() else name
    if set(other) == set(profile.names):
        return Budget({tensor: other[tensor] for tensor in profile.names}, profile, label)
    # The same network under other names: as many tensors, of the same sizes, in the same order.
    sizes = [math.prod(t.shape) for t in other.profile] if other.profile else []
    if other.profile and sizes == [t.params for t in profile]:
        pairs = zip(profile.names, other.profile.names, strict=True)
        return Budget({mine: other[theirs] for mine, theirs in pairs}, profile, label)
    missing = next((tensor for tensor in profile.names if tensor not in other), "")
    raise ValueError(
        f"the budget {name} is of another network: it has {len(other)} tensors, the run {len(profile)}"
        f"{f', and none called {missing}' if missing else ''}; choose one of the same network"
    )


def report_page(runs: Sequence[Run], *, against: Sequence[Budget] = (), follow: int = 0) -> str:
    """The page as HTML; ``follow`` is after how many seconds a served page asks for news, 0 for a file."""
    alone = runs[0] if len(runs) == 1 else None
    charts = {chart.name: chart for chart in report_charts(runs, against=against)}
    table = layer_table(runs, against)
    return render(
        "report.html",
        title=alone.name if alone else f"{len(runs)} runs",
        subtitle=_subtitle(runs),
        runs=[_facts(run, name) for run, name in named(runs, runs[0].name)],
        overview=None if alone else run_table(runs),
        training=[charts[name] for name in TRAINING if name in charts],
        thresholds=[charts[name] for name in THRESHOLDS if name in charts],
        layers=[chart for name, chart in charts.items() if name.startswith("layer_")],
        latency=times_table(runs),
        table=table if table.rows else None,
        counted=shared_noun(run.units for run in runs),
        single=not any(run.words.importances for run in runs),
        follow=follow if not all(run.finished for run in runs) else 0,
    )


def report_charts(runs: Sequence[Run], *, against: Sequence[Budget] = ()) -> list[Chart]:
    """All charts of a report that have something to show, in its order."""
    made = {name: make(runs) for name, make in CHARTS.items()}
    if against:
        made["layer_sparsity"] = layer_sparsity(runs, against=against)
        made["layer_macs"] = layer_macs(runs, against=against)
    return [chart for chart in made.values() if tells_something(chart)]


def write_report(
    paths: Sequence[Path], out: Path, *, against: Sequence[str] = (), figures: Path | None = None
) -> list[Path]:
    """Read runs and write their report; returns the files that were written.

    Args:
        paths: run folders, or folders of them.
        out: the HTML file; an existing one is replaced.
        against: budgets by name, see `reference_budgets`.
        figures: a folder for the charts as SVG.
    """
    refuse_place(out, example="report.html")
    runs, others = load(paths, against)
    page = report_page(runs, against=others)
    written = save_figures(report_charts(runs, against=others), figures) if figures is not None else []
    return [write_text(out, page), *written]


def load(paths: Sequence[Path], against: Sequence[str] = ()) -> tuple[list[Run], list[Budget]]:
    """The runs at some paths, and the budgets to compare them with."""
    runs = [read_run(path) for path in find_runs(paths)]
    return runs, reference_budgets(against, runs)


def _subtitle(runs: Sequence[Run]) -> str:
    names = ([run.model for run in runs], [run.data for run in runs], [run.label for run in runs])
    models, data, methods = (", ".join(filter(None, dict.fromkeys(some))) for some in names)
    return f"{models} on {data}, {methods}" if models and data else methods


def _facts(run: Run, name: str) -> dict[str, Any]:
    """What the template shows of one run beside charts and tables."""
    command = run.environment.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    if words:
        words[0] = Path(words[0]).name
    return {
        "name": name,
        "headline": headline(run),
        "cards": list(cards(run)),
        "config": yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True),
        "environment": [
            (key, " ".join(map(str, value)) if isinstance(value, list) else str(value))
            for key, value in run.environment.items()
            if key != "version"
        ],
        "started": shlex.join(words),
        "again": shlex.join(["softprune", "train", str(run.path / CONFIG), "--out", f"runs/{run.name}-again"]),
        "problems": run.problems,
    }


def dense_bytes(run: Run) -> int | None:
    """Bytes of all parameters in float32; None without a profile, or where it counts larger units than weights."""
    profile = run.profile
    return None if profile is None or not run.words.costed else FLOAT * (profile.params + profile.other_params)


def packed_bytes(run: Run) -> int | None:
    """An estimate without zeros: each tensor dense, with a bit for every weight or with positions, as is smallest."""
    budget, profile = run.budget, run.profile
    if budget is None or profile is None or not run.words.costed:
        return None
    total = FLOAT * profile.other_params
    for cost in profile:
        kept = round(budget[cost.name] * cost.params)
        total += min(FLOAT * cost.params, FLOAT * kept + min(-(-cost.params // 8), POSITION * kept))
    return total


def checkpoint(run: Run) -> Path | None:
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
    what = f"The network {run.model or '(unknown)'} was trained on {run.data or 'unknown data'}"
    how = "and left dense" if run.method == "dense" else f"and made sparse by the method {run.label}"
    words = [f"{what} {how}{f'; asked for was {run.goal}' if run.goal else ''}."]
    if run.sparsity is not None:
        of = f" of {total:,}" if (total := total_units(run)) else ""
        zero = f"{percent(run.sparsity)} of its {run.words.plural} are zero"
        words.append(f"{zero}, and {run.params or 0:,}{of} are left.")
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


def cards(run: Run) -> Iterator[Card]:
    """The numbers of the summary; those that are not known are left out."""
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
        size = size_text(file.stat().st_size)
        yield Card("Checkpoint on disk", size, "weights, thresholds and optimizer, not packed")
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
    """How near the run came to its goal, in the unit of the goal; empty where that is unknown."""
    found = configured_goal(run.config)
    if found is None or part(run.config, "goal").get("scope") == "all":
        return ""
    kind, number = found
    compared = kind.compared(number, Measured(total_units(run), run.params, run.stored, run.macs), run.words)
    wanted, reached, unit = compared or (0, None, "")
    if reached is None:
        return ""
    if reached == wanted:
        return f"met to the {unit}"
    apart = abs(reached - wanted)
    words = f"{apart:,} {unit}{'' if apart == 1 else 's'} {'more' if reached > wanted else 'fewer'} than {wanted:,}"
    return words if run.finished else f"so far {words}"


def _left(name: str, left: int, dense: int | None, per: str) -> Card:
    # A number of many digits is read by its size first.
    text, exact = (f"{left:,}", "") if left < LONG else (short(float(f"{left:.4g}")), f"{left:,} ")
    if not dense:
        return Card(name, text, f"{exact}{per}".strip())
    return Card(name, text, f"{exact}of {dense:,}{per}, {percent(left / dense)}".strip(), left / dense)
