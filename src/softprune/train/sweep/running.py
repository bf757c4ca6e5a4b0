"""A sweep from its plan to its results; begun, or continued by starting it again. Imports Optuna only when it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from softprune.train.sweep.sweep import Sweep

if TYPE_CHECKING:
    from softprune.train.sweep.results import Results
    from softprune.train.sweep.study import SharedStudy
    from softprune.train.sweep.worker import SweepObserver


def run_sweep(
    sweep: Sweep,
    folder: Path,
    *,
    observer: SweepObserver | None = None,
    threads: int | None = None,
    parent: int | None = None,
) -> Results:
    """Run the trials of a sweep that nobody runs yet, until all have ended or a signal asks to stop.

    The same call on another process or machine works on the same study.

    Args:
        sweep: what is searched.
        folder: of the sweep; made, or joined if it holds the same sweep.
        observer: who watches.
        threads: of a trial whose configuration leaves them open; None for torch's choice.
        parent: id of the process that started this one; with it this one stops, too.

    Returns:
        All trials, also those of other workers; `ended` says whether anything is left to do.

    Raises:
        ValueError: if the folder or the study belongs to another sweep, or the storage cannot be reached.
    """
    with _opened(sweep):
        from softprune.train.sweep.folder import enter
        from softprune.train.sweep.worker import SilentObserver, Worker

        with closing(enter(sweep, folder)) as study:
            Worker(study, folder, observer=observer or SilentObserver(), threads=threads, parent=parent).run()
            return _results(study, folder)


def prepare_sweep(sweep: Sweep, folder: Path) -> None:
    """Make the folder and the study, and run nothing; refuses what `run_sweep` refuses."""
    with _opened(sweep):
        from softprune.train.sweep.folder import enter

        enter(sweep, folder).close()


def read_results(sweep: Sweep, folder: Path) -> Results:
    """How the trials of a sweep stand; writes the tables anew."""
    with _opened(sweep):
        from softprune.train.sweep.folder import enter

        with closing(enter(sweep, folder)) as study:
            return _results(study, folder)


def _results(study: SharedStudy, folder: Path) -> Results:
    """The results, written once more: of two workers that write at once, the later one may have looked earlier."""
    from softprune.train.sweep.results import Results

    results = Results.of(study.sweep, study.slots(), folder)
    results.write(folder)
    return results


@contextmanager
def _opened(sweep: Sweep) -> Iterator[None]:
    """Optuna is there, and what it says about its storage is said in one sentence."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "a trial of a sweep runs in one process; start softprune sweep without torchrun, with --workers"
        )
    try:
        import optuna
        from sqlalchemy.exc import OperationalError
    except ImportError as error:
        raise ImportError('softprune sweep needs Optuna: pip install "softprune[sweep]"') from error
    # Its own lines about every trial would repeat ours.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    except (optuna.exceptions.StorageInternalError, OperationalError) as error:
        where = "study.db" if sweep.config.storage is None else "the storage"
        cause = str(error.__cause__ or error).partition("\n")[0]
        raise OSError(f"{where} cannot be used: {cause}; start the same command again when it can") from error
