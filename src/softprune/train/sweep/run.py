"""A sweep from its plan to its results; begun, or continued by starting it again. Imports Optuna only when it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from softprune.train.config.sections import shown
from softprune.train.dry_run import plan_text
from softprune.train.sweep.sweep import Sweep, written
from softprune.train.sweep.sweep_config import DIRECTIONS, Dimension, Range
from softprune.train.trainer import Interruption

if TYPE_CHECKING:
    from softprune.train.sweep.folder import Results
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

    The same call on another process or machine works on the same study: the folder is made, or joined if it holds the
    same sweep. Returned are all trials, also those of other workers.

    Args:
        threads: of a trial whose configuration leaves them open; None for torch's choice.
        parent: id of the process that started this one; with it this one stops, too.
    """
    with _opened(sweep, folder) as study:
        from softprune.train.sweep.folder import write_results
        from softprune.train.sweep.worker import SweepWorker

        SweepWorker(study, folder, observer=observer, threads=threads, parent=parent).run()
        # Written once more: of two workers that write at once, the later one may have looked earlier.
        return write_results(study, folder)


def prepare_sweep(sweep: Sweep, folder: Path) -> None:
    """Make the folder and the study, and run nothing; refuses what `run_sweep` refuses."""
    with _opened(sweep, folder):
        pass


def read_results(sweep: Sweep, folder: Path) -> Results:
    """How the trials stand; the tables are written anew."""
    with _opened(sweep, folder) as study:
        from softprune.train.sweep.folder import write_results

        return write_results(study, folder)


@contextmanager
def _opened(sweep: Sweep, folder: Path) -> Iterator[SharedStudy]:
    """The study of a sweep; what Optuna says about its storage meanwhile is said in one sentence."""
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
    from softprune.train.sweep.folder import enter

    try:
        with closing(enter(sweep, folder)) as study:
            yield study
    except (optuna.exceptions.StorageInternalError, OperationalError) as error:
        where = "study.db" if sweep.config.storage is None else "the storage"
        cause = str(error.__cause__ or error).partition("\n")[0]
        raise OSError(f"{where} cannot be used: {cause}; start the same command again when it can") from error


# Several workers on this machine, each a process of its own.


def run_workers(
    command: Sequence[str], count: int, *, environment: Mapping[str, str], on_note: Callable[[str], None]
) -> None:
    """Start a command several times and wait for all of them; SIGINT and SIGTERM are passed on.

    Each is in a session of its own: a terminal sends Ctrl-C to everyone in front of it, so that workers would hear
    it twice, and twice means at once. A second Ctrl-C kills them; their trials go on with the next start.
    """
    with Interruption() as interruption:
        workers = [subprocess.Popen(command, env=dict(environment), start_new_session=True) for _ in range(count)]
        alive, told = list(workers), False
        try:
            while alive:
                if interruption.asked_by is not None and not told:
                    told = True
                    for worker in alive:
                        worker.send_signal(signal.SIGTERM)
                for worker in [w for w in alive if w.poll() is not None]:
                    alive.remove(worker)
                    if worker.returncode < 0:
                        name = signal.Signals(-worker.returncode).name
                        on_note(f"a worker was ended by {name}; its trial goes on in another, or with the next start")
                time.sleep(0.1)
        finally:
            for worker in alive:
                worker.kill()
                worker.wait()


MOST_PLANS = 8


def describe(sweep: Sweep) -> str:
    """A dry run: the space, the number of trials, and the plan of a run in a corner of it. Needs no data, no Optuna.

    Other corners are planned, too: a run may refuse what its configuration allows, such as thresholds that would be
    driven past 0. Such trials fail, and a space that is full of them is better changed before.
    """
    plans, refusals = [], []
    for point in sweep.space.corners(MOST_PLANS)[:MOST_PLANS]:
        try:
            plans.append((point, plan_text(sweep.run_config(point))))
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
    yield from (f"  {key:{width}}  {shown(value)} (changed)" for key, value in config.changes.items())
    if config.pruner is not None:
        epochs = config.pruner.warmup_epochs
        yield f"hopeless trials are stopped by {config.pruner.name}, after {epochs} epochs at the earliest"


def _values(dimension: Dimension, *, whole: bool) -> str:
    if not isinstance(dimension, Range):
        return ", ".join(shown(choice) for choice in dimension)
    step = f" in steps of {dimension.step:g}" if dimension.step is not None else ""
    kind = "whole numbers " if whole else ""
    return f"{kind}{dimension.low:g} to {dimension.high:g}{step}{', logarithmic' if dimension.log else ''}"
