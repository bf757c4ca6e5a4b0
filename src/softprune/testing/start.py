"""How a training begins: what `sparsify` alone makes of a network."""

from __future__ import annotations

import torch

from softprune.budget.schedules import asked
from softprune.testing.case import Case, require, same


def forward_is_as_documented(case: Case) -> None:
    """Raw weights are untouched; a mask leaves or takes a weight; nothing changes before the schedule asks for it."""
    trial = case.trial()
    trial.model.eval()
    for target in trial.sparsifier.targets:
        raw, effective = target.raw.detach(), target.effective.detach()
        require(same(raw, trial.dense[target.name]), f"the raw {target.name} as it was", "other values")
        turned = int((effective * raw < 0).sum() + ((effective != 0) & (raw == 0)).sum())
        require(turned == 0, f"every weight of {target.name} to be 0 or of its old sign", f"{turned} that are not")
        if case.method.moves_masks:
            masked = torch.where(trial.living()[target.name], raw, 0.0)
            require(same(effective, masked), f"{target.name} to be raw where its mask is, else 0", "other values")
    solved = case.setting.total != "none" and not case.method.moves_masks
    if solved and asked(case.method.schedule, 0.0) == 0.0:
        require(
            same(trial.output(), trial.dense_output),
            "the output of the dense network, since the schedule asks for nothing yet",
            "another output",
        )
    trial.sparsifier.remove()
    require(same(trial.output(), trial.dense_output), "the dense network back by remove()", "another output")
