"""What a comparison consists of: groups of runs that differ in their seed alone, in sections that can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from softprune.reporting.estimate import Estimate, estimate
from softprune.reporting.run import Run

DENSE = "dense"  # the label of runs without a method


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    Args:
        label: the method with what distinguishes it.
        goal: what they shall end with, in words.
        level: the sparsity that was asked for; None if it was not.
        runs: one for each seed.
        family: what shares a colour and is filtered together: the label, or where there are many the method alone.
    """

    label: str
    goal: str
    level: float | None
    runs: tuple[Run, ...]
    family: str

    @cached_property
    def accuracy(self) -> Estimate:
        return estimate(run.accuracy for run in self.runs)

    @cached_property
    def sparsity(self) -> Estimate:
        return estimate(run.sparsity for run in self.runs)

    @cached_property
    def macs(self) -> Estimate:
        return estimate(run.macs for run in self.runs)

    @property
    def by_seed(self) -> Mapping[int, float]:
        """Accuracies by seed."""
        return {run.seed: run.accuracy for run in self.runs if run.seed is not None and run.accuracy is not None}

    @property
    def words(self) -> str:
        """The goal and the number of runs, for a tooltip."""
        runs = "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        return ", ".join(word for word in (self.goal, runs) if word)


@dataclass(frozen=True)
class Section:
    """Runs of one network on one kind of data.

    Args:
        title: such as "small_cnn on fashion-mnist".
        groups: all that are not dense, by label and level.
        dense: the dense runs; None without any.
        notes: what a reader must know to compare them, a sentence each.
    """

    title: str
    groups: tuple[Group, ...]
    dense: Group | None
    notes: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group.label for group in self.groups))

    def of(self, label: str) -> list[Group]:
        """The groups of a label."""
        return [group for group in self.groups if group.label == label]

    @property
    def dense_macs(self) -> int | None:
        """Multiply-adds of the dense network, as the profile of a run has them."""
        for run in (run for group in self.groups for run in group.runs):
            if run.budget is not None and run.budget.profile is not None and run.budget.profile.counted:
                return run.budget.profile.total_macs()
        return None
