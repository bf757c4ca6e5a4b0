"""The sweep folder: what is searched, the study, a run folder per trial, and the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from softprune.budget.files import write_text
from softprune.train.config import RunConfig
from softprune.train.lock import locked
from softprune.train.run_folder import CONFIG
from softprune.train.sweep.config import SweepConfig
from softprune.train.sweep.identity import description, differences
from softprune.train.sweep.joining import open_study
from softprune.train.sweep.storage import without_password
from softprune.train.sweep.study import SharedStudy
from softprune.train.sweep.sweep import BASE, Sweep

SWEEP, TRIALS = "sweep.yaml", "trials"
# Seconds to wait for another process that is making the same folder.
_PATIENCE = 120


def enter(sweep: Sweep, folder: Path) -> SharedStudy:
    """Make the folder of a sweep and its study, or join them if they are there.

    Raises:
        ValueError: if the folder or the study belongs to something else.
    """
    if (folder / CONFIG).exists():
        raise ValueError(f"{folder} holds a run, not a sweep; choose another folder with --out")
    with locked(folder, patience=_PATIENCE):
        if (folder / SWEEP).exists():
            _refuse_another(sweep, folder)
        study = open_study(sweep, folder)
        if not (folder / SWEEP).exists():
            (folder / TRIALS).mkdir(exist_ok=True)
            write_text(folder / BASE, sweep.base.dump())
            # Last: a folder with a sweep file is a sweep that can be joined.
            write_text(folder / SWEEP, _kept(sweep).dump())
        return study


def trial_folder(folder: Path, number: int) -> Path:
    """The run folder of a trial."""
    return folder / TRIALS / f"{number:04d}"


def _kept(sweep: Sweep) -> SweepConfig:
    """The sweep as its folder keeps it: the base is a file beside it, and no password is written down."""
    storage = sweep.config.storage
    update: dict[str, Any] = {
        "base": BASE,
        "changes": {},
        "storage": None if storage is None else without_password(storage),
    }
    return sweep.config.model_copy(update=update)


def _refuse_another(sweep: Sweep, folder: Path) -> None:
    stored = SweepConfig.load(folder / SWEEP)
    different = differences(
        description(stored, RunConfig.load(folder / BASE, trust=True)), description(sweep.config, sweep.base)
    )
    if stored.storage != _kept(sweep).storage:
        different.append("storage")
    if different:
        raise ValueError(
            f"{folder} holds another sweep: {', '.join(different)} differ. Start the one that is there with "
            f"softprune sweep {folder / SWEEP} --out {folder}, or choose another folder with --out"
        )
