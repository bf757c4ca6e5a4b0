"""The file of a benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softprune.budget.files import write_text


def check_target(path: Path) -> None:
    """Refuse a place where no file can be written, before minutes are spent.

    Raises:
        ValueError: if the folder is missing, or the path is a folder.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file, such as {path / 'bench.json'}")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}: make it first")


def write_bench(result: Mapping[str, Any], path: Path) -> Path:
    """Write a result as JSON, whole or not at all."""
    return write_text(path, json.dumps(result, indent=1, allow_nan=False) + "\n")
