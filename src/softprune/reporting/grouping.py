"""Which runs are one group, and which groups one section, by their configurations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from softprune.budget.counted import WEIGHT
from softprune.reporting.estimate import estimate
from softprune.reporting.group import DENSE, Group, Section
from softprune.reporting.naming import section
from softprune.reporting.reading import known
from softprune.reporting.run import Run
from softprune.reporting.variation import knobs, setting, settings_differ, traits, varying

# Totals of multiply-adds or weights that are this near belong to one level: each seed may have got its own.
NEAR = 1.15
# More labels than this, which is the number of colours, share the colours of their methods.
MOST_FAMILIES = 7
# More variants of a label than this are points of one label, not labels of their own.
MOST_VARIANTS = 6


def sections(runs: Iterable[Run]) -> list[Section]:
    """Finished runs by network and data, the section with most runs first; others are left out."""
    by_setting: dict[str, list[Run]] = {}
    for run in runs:
        if run.finished and run.accuracy is not None:
            by_setting.setdefault(setting(run), []).append(run)
    ordered = sorted(by_setting.values(), key=len, reverse=True)
    titles = _titles([members[0] for members in ordered])
    found = [_section(title, members) for title, members in zip(titles, ordered, strict=True)]
    many = len({label for section in found for label in section.labels}) > MOST_FAMILIES
    return [replace(s, groups=tuple(_of_method(group) for group in s.groups)) for s in found] if many else found


def _of_method(group: Group) -> Group:
    return replace(group, family=group.runs[0].method)


def _titles(firsts: Sequence[Run]) -> list[str]:
    """Network and data, and where that is the same the keys that differ."""
    plain = [f"{run.model or 'a model'} on {run.data or 'data'}" for run in firsts]
    titles = []
    for title, run in zip(plain, firsts, strict=True):
        same = [settings_differ(other) for other, name in zip(firsts, plain, strict=True) if name == title]
        own = settings_differ(run)
        more = ", ".join(f"{key}={own.get(key, 'none')}" for key in varying(same))
        titles.append(f"{title} ({more})" if more else title)
    return titles


def _section(title: str, runs: Sequence[Run]) -> Section:
    notes: list[str] = []
    dense = [run for run in runs if run.method == DENSE]
    pruned = [run for run in runs if run.method != DENSE]
    labels = _labels(pruned)
    groups: list[Group] = []
    for label in dict.fromkeys(labels):
        members = [run for run, own in zip(pruned, labels, strict=True) if own == label]
        groups += [_group(label, level, notes) for level in _levels(members)]
    groups.sort(key=lambda group: (group.label, group.sparsity.mean))
    reference = _group(DENSE, dense, notes) if dense else None
    return Section(title, tuple(groups), reference, (*_differences(runs, labels), *_seed_words(groups), *notes))


def _labels(runs: Sequence[Run]) -> list[str]:
    """The label of each run; runs of one label that differ in more than seed and level get what they differ in."""
    rows = [(run.label, traits(run)) for run in runs]
    keys: dict[str, list[str]] = {}
    for label in dict.fromkeys(label for label, _ in rows):
        alike = [own for other, own in rows if other == label]
        keys[label] = varying(alike)
        if len({tuple(own.get(key) for key in keys[label]) for own in alike}) > MOST_VARIANTS:
            keys[label] = []
    return [", ".join([label, *(f"{key}={own.get(key, 'none')}" for key in keys[label])]) for label, own in rows]


def _levels(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs of one label in levels, in each of which all ask for the same."""
    exact: dict[object, list[Run]] = {}
    totals: dict[str, list[tuple[float, Run]]] = {}
    keys = varying(traits(run) for run in runs)
    for run in runs:
        goal = section(run.config, "goal")
        variant = tuple(traits(run).get(key) for key in keys)
        total = next((name for name in ("params", "flops") if known(goal.get(name)) is not None), None)
        if total is not None and not variant:
            totals.setdefault(total, []).append((float(goal[total]), run))
        else:
            exact.setdefault((run.goal, knobs(run), variant), []).append(run)
    near = [level for rows in totals.values() for level in _near(rows)]
    return [*exact.values(), *near]


def _near(rows: list[tuple[float, Run]]) -> list[list[Run]]:
    levels: list[list[Run]] = []
    first = 0.0
    for total, run in sorted(rows, key=lambda row: row[0]):
        if not levels or total > NEAR * first or any(run.seed == other.seed for other in levels[-1]):
            levels.append([])
            first = total
        levels[-1].append(run)
    return levels


def _group(label: str, runs: Sequence[Run], notes: list[str]) -> Group:
    by_seed: dict[int | None, Run] = {}
    for run in sorted(runs, key=lambda run: run.name):
        kept = by_seed.setdefault(run.seed, run)
        if kept is not run:
            notes.append(f"{run.name} repeats the seed and the settings of {kept.name} and is left out.")
    goal = section(runs[0].config, "goal")
    level = known(goal.get("sparsity")) if goal.get("scope", "managed") == "managed" else None
    return Group(label, _goal_words(runs), level, tuple(by_seed.values()), label)


def _goal_words(runs: Sequence[Run]) -> str:
    if len({run.goal for run in runs}) == 1:
        return runs[0].goal
    name, unit = next(
        (name, unit)
        for name, unit in (("flops", "multiply-adds"), ("params", "weights"))
        if known(section(runs[0].config, "goal").get(name)) is not None
    )
    unit = "parameters" if name == "params" and runs[0].units != WEIGHT else unit
    return f"about {estimate(known(section(run.config, 'goal').get(name)) for run in runs).mean:,.0f} {unit}"


def _seed_words(groups: Sequence[Group]) -> list[str]:
    """A sentence where means rest on different seeds, which makes them differ by luck."""
    seeds = [frozenset(run.seed for run in group.runs) for group in groups]
    if len(set(seeds)) < 2:
        return []
    few, many = min(map(len, seeds)), max(map(len, seeds))
    number = f"{few} to {many} runs" if few < many else f"{few} runs of different seeds"
    return [f"The groups have {number}, so their means rest on different seeds; differences are paired by seed."]


def _differences(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """A sentence about training settings that are not the same in all runs and in no label."""
    skipped = ("method", "goal", "skip", "rules", "propose", "model", "data", "units")
    rows = [{k: v for k, v in traits(run).items() if k.partition(".")[0] not in skipped} for run in runs]
    told = " ".join(labels)
    found = []
    for key in varying(rows):
        if key in told:
            continue
        values = sorted({row.get(key, "none") for row in rows})
        found.append(f"{key} ({', '.join(values[:4])}{', ...' if len(values) > 4 else ''})")
    return [f"The runs also differ in {', '.join(found)}: compare with care."] if found else []
