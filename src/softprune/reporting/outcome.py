"""How a run ended, read from its small files alone, so that hundreds of runs are read in seconds."""

from __future__ import annotations

from pathlib import Path

from softprune.budget.budget import Budget
from softprune.reporting.reading import read_object
from softprune.reporting.run import CONFIG, Run


def read_outcome(path: Path) -> Run:
    """A run without its history: steps, epochs and layers are left empty.

    Raises:
        ValueError: if the folder has no config.yaml.

    Example:
        read_outcome(Path("runs/demo")).accuracy
    """
    if not (path / CONFIG).is_file():
        raise ValueError(f"{path} holds no run: it has no {CONFIG}")
    problems: list[str] = []
    config = read_object(path / CONFIG, problems)
    result = read_object(path / "result.json", problems, optional=True)
    budget = None
    if (path / "budget.json").exists():
        try:
            budget = Budget.load(path / "budget.json")
        except (ValueError, OSError, RecursionError) as error:
            problems.append(f"budget.json cannot be used: {error}")
    return Run(path, path.resolve().name, config, {}, result, (), (), {}, budget, tuple(problems))
