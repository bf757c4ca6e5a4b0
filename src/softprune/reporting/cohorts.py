"""Groups of runs that differ in their seed alone, cohorts of groups that can be compared, and levels of sparsity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, stdev

from softprune.reporting.labels import configured_goal, knobs, model_and_data, part, traits, varying
from softprune.reporting.reading import known
from softprune.reporting.run import Run

# Half the width of a 95 % interval in standard errors (Student's t), by degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_STUDENT_LATER = ((20, 2.131), (30, 2.086), (60, 2.042), (120, 2.0))
DENSE = "dense"  # the label of runs without a method
NEAR = 1.15  # totals of multiply-adds or weights within this ratio are one level: each seed may have got its own
MOST_FAMILIES = 7  # more labels than this, which is the number of colours, share the colours of their methods
MOST_VARIANTS = 6  # more variants of a label than this are points of one label, not labels of their own
TOLERANCE = 0.05  # densities that differ by less than this share are the same level


@dataclass(frozen=True)
class Estimate:
    mean: float  # NaN if nothing was measured
    deviation: float  # the standard deviation of single values; NaN for fewer than two
    n: int


def estimate(values: Iterable[float | None]) -> Estimate:
    """Mean and standard deviation of some values; None and what is not finite are left out.

    Example:
        >>> estimate([0.9, None, 0.92])
        Estimate(mean=0.91, deviation=0.014142135623730963, n=2)
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    return Estimate(fmean(known) if known else math.nan, stdev(known) if len(known) > 1 else math.nan, len(known))


@dataclass(frozen=True)
class Difference:
    """A mean of differences of pairs."""

    mean: float  # NaN without pairs
    half: float  # half the width of its 95 % interval (Student's t); NaN for fewer than two pairs
    pairs: int


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
    """First minus second, values by seed; seeds that only one of them has are left out.

    Example:
        >>> paired({0: 0.91, 1: 0.93}, {0: 0.90, 1: 0.90, 2: 0.5}).pairs
        2
    """
    gaps = [first[seed] - second[seed] for seed in sorted(set(first) & set(second))]
    if len(gaps) < 2:
        return Difference(gaps[0] if gaps else math.nan, math.nan, len(gaps))
    # The factor of the next smaller number of degrees of freedom in the table: never too narrow.
    freedom = len(gaps) - 1
    factor = next((value for end, value in _STUDENT_LATER if freedom < end), 1.98)
    factor = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else factor
    return Difference(fmean(gaps), factor * stdev(gaps) / math.sqrt(len(gaps)), len(gaps))


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ in their seed alone."""

    label: str  # the method with what distinguishes it
    goal: str  # in words
    level: float | None  # the sparsity that was asked for; None if none was
    runs: tuple[Run, ...]  # one for each seed
    family: str  # what shares a colour and is filtered together: the label, or where there are many the method alone

    @cached_property
    def accuracy(self) -> Estimate:
        return estimate(run.accuracy for run in self.runs)

    @cached_property
    def sparsity(self) -> Estimate:
        return estimate(run.sparsity for run in self.runs)

    @cached_property
    def macs(self) -> Estimate:
        return estimate(run.macs for run in self.runs)

    @cached_property
    def params(self) -> Estimate:
        return estimate(run.params for run in self.runs)

    @property
    def by_seed(self) -> Mapping[int, float]:
        """Seed -> accuracy as a fraction."""
        return {run.seed: run.accuracy for run in self.runs if run.seed is not None and run.accuracy is not None}

    @property
    def words(self) -> str:
        """The goal and the number of runs, for a tooltip."""
        runs = "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        return ", ".join(word for word in (self.goal, runs) if word)


@dataclass(frozen=True)
class Cohort:
    """Runs of one network on one kind of data."""

    title: str  # such as "small_cnn on fashion-mnist"
    groups: tuple[SeedGroup, ...]  # all that are not dense, by label and level
    dense: SeedGroup | None
    notes: tuple[str, ...]  # what a reader must know to compare them, a sentence each

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group.label for group in self.groups))

    def of(self, label: str) -> list[SeedGroup]:
        return [group for group in self.groups if group.label == label]

    def family(self, label: str) -> str:
        return self.of(label)[0].family

    @property
    def dense_macs(self) -> int | None:
        profiles = (run.profile for group in self.groups for run in group.runs)
        return next((profile.total_macs() for profile in profiles if profile is not None and profile.counted), None)


def cohorts(runs: Iterable[Run]) -> list[Cohort]:
    """Finished runs by network and data, the cohort with most runs first; others are left out."""
    alike: dict[frozenset[tuple[str, str]], list[Run]] = {}
    for run in runs:
        if run.finished and run.accuracy is not None:
            alike.setdefault(frozenset(model_and_data(run.config).items()), []).append(run)
    ordered = sorted(alike.values(), key=len, reverse=True)
    titles = _titles([members[0] for members in ordered])
    found = [_cohort(title, members) for title, members in zip(titles, ordered, strict=True)]
    if len({label for cohort in found for label in cohort.labels}) <= MOST_FAMILIES:
        return found
    by_method = [tuple(replace(group, family=group.runs[0].method) for group in cohort.groups) for cohort in found]
    return [replace(cohort, groups=groups) for cohort, groups in zip(found, by_method, strict=True)]


def _titles(firsts: Sequence[Run]) -> list[str]:
    """The network and data of each run; where several have the same, with the settings that differ."""
    plain = [f"{run.model or 'a model'} on {run.data or 'data'}" for run in firsts]
    titles = []
    for title, run in zip(plain, firsts, strict=True):
        same = [model_and_data(other.config) for other, name in zip(firsts, plain, strict=True) if name == title]
        more = ", ".join(_settings(model_and_data(run.config), varying(same)))
        titles.append(f"{title} ({more})" if more else title)
    return titles


def _settings(config: Mapping[str, str], keys: Iterable[str]) -> list[str]:
    return [f"{key}={config.get(key, 'none')}" for key in keys]


def _cohort(title: str, runs: Sequence[Run]) -> Cohort:
    notes: list[str] = []
    dense = [run for run in runs if run.method == DENSE]
    pruned = [run for run in runs if run.method != DENSE]
    labels = _labels(pruned)
    groups: list[SeedGroup] = []
    for label in dict.fromkeys(labels):
        members = [run for run, own in zip(pruned, labels, strict=True) if own == label]
        groups += [_group(label, level, notes) for level in _levels(members)]
    groups.sort(key=lambda group: (group.label, group.sparsity.mean))
    reference = _group(DENSE, dense, notes) if dense else None
    return Cohort(title, tuple(groups), reference, (*_differences(runs, labels), *_seed_words(groups), *notes))


def _labels(runs: Sequence[Run]) -> list[str]:
    """The label of each run, with the settings in which runs of one label differ beside seed and level."""
    rows = [(run.label, traits(run.config)) for run in runs]
    keys: dict[str, list[str]] = {}
    for label in dict.fromkeys(label for label, _ in rows):
        alike = [own for other, own in rows if other == label]
        keys[label] = varying(alike)
        if len({tuple(own.get(key) for key in keys[label]) for own in alike}) > MOST_VARIANTS:
            keys[label] = []
    return [", ".join([label, *_settings(own, keys[label])]) for label, own in rows]


def _levels(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs of one label in levels: those with the same goal and settings, or with totals that are near."""
    exact: dict[object, list[Run]] = {}
    totals: dict[str, list[tuple[float, Run]]] = {}
    keys = varying(traits(run.config) for run in runs)
    for run in runs:
        goal = part(run.config, "goal")
        variant = tuple(traits(run.config).get(key) for key in keys)
        total = next((name for name in ("params", "flops") if known(goal.get(name)) is not None), None)
        if total is not None and not variant:
            totals.setdefault(total, []).append((float(goal[total]), run))
        else:
            exact.setdefault((run.goal, knobs(run.config), variant), []).append(run)
    return [*exact.values(), *(level for rows in totals.values() for level in _near(rows))]


def _near(rows: list[tuple[float, Run]]) -> list[list[Run]]:
    levels: list[list[Run]] = []
    first = 0.0
    for total, run in sorted(rows, key=lambda row: row[0]):
        if not levels or total > NEAR * first or any(run.seed == other.seed for other in levels[-1]):
            levels.append([])
            first = total
        levels[-1].append(run)
    return levels


def _group(label: str, runs: Sequence[Run], notes: list[str]) -> SeedGroup:
    by_seed: dict[int | None, Run] = {}
    for run in sorted(runs, key=lambda run: run.name):
        kept = by_seed.setdefault(run.seed, run)
        if kept is not run:
            notes.append(f"{run.name} repeats the seed and the settings of {kept.name} and is left out.")
    goal = part(runs[0].config, "goal")
    level = known(goal.get("sparsity")) if goal.get("scope", "managed") == "managed" else None
    return SeedGroup(label, _goal_words(runs), level, tuple(by_seed.values()), label)


def _goal_words(runs: Sequence[Run]) -> str:
    if len({run.goal for run in runs}) == 1:
        return runs[0].goal
    kind = next(found[0] for run in runs if (found := configured_goal(run.config)) is not None)
    mean = estimate(kind.number_in(part(run.config, "goal").get(kind.key)) for run in runs).mean
    return f"about {kind.described(mean, runs[0].words, None)}"


def _seed_words(groups: Sequence[SeedGroup]) -> list[str]:
    """A sentence if the groups have different seeds, which makes their means differ by luck."""
    seeds = [frozenset(run.seed for run in group.runs) for group in groups]
    if len(set(seeds)) < 2:
        return []
    few, many = min(map(len, seeds)), max(map(len, seeds))
    number = f"{few} to {many} runs" if few < many else f"{few} runs of different seeds"
    return [f"The groups have {number}, so their means rest on different seeds; differences are paired by seed."]


def _differences(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """A sentence about training settings that differ between runs and are in no label."""
    skipped = ("method", "goal", "skip", "rules", "propose", "model", "data", "units")
    rows = [{k: v for k, v in traits(run.config).items() if k.partition(".")[0] not in skipped} for run in runs]
    found = []
    for key in (key for key in varying(rows) if key not in " ".join(labels)):
        values = sorted({row.get(key, "none") for row in rows})
        found.append(f"{key} ({', '.join(values[:4])}{', ...' if len(values) > 4 else ''})")
    return [f"The runs also differ in {', '.join(found)}: compare with care."] if found else []


# Levels of sparsity at which methods are compared.


def levels(cohort: Cohort) -> list[float]:
    """The sparsities that were asked for, and those that two methods happened to reach; from low to high."""
    asked = sorted({group.level for group in cohort.groups if group.level is not None})
    free = sorted(
        (g for g in cohort.groups if g.level is None and g.sparsity.n and not any(_is_near(g, at) for at in asked)),
        key=lambda group: group.sparsity.mean,
    )
    met: list[float] = []
    while free:
        first = round(free[0].sparsity.mean, 3)
        together = [group for group in free if group is free[0] or _is_near(group, first)]
        if len({group.label for group in together}) > 1:
            met.append(first)
        free = [group for group in free if group not in together]
    return sorted({*asked, *met})


def at_level(cohort: Cohort, level: float) -> dict[str, SeedGroup]:
    """The group of each label at a level: one with that goal, else one that came near; of several the best."""

    def rank(group: SeedGroup) -> tuple[bool, float]:
        accuracy = group.accuracy.mean
        return group.level == level, accuracy if math.isfinite(accuracy) else -1.0

    return {label: max(found, key=rank) for label in cohort.labels if (found := variants(cohort, label, level))}


def variants(cohort: Cohort, label: str, level: float) -> Sequence[SeedGroup]:
    """All groups of a label at a level: with that goal, or without one but near it."""
    return [g for g in cohort.of(label) if (_is_near(g, level) if g.level is None else g.level == level)]


def _is_near(group: SeedGroup, level: float) -> bool:
    return level < 1.0 and abs((1 - group.sparsity.mean) / (1 - level) - 1) <= TOLERANCE  # False for NaN
