"""Run folders for all tests of reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import write_run


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Writes a run folder: its name, and what `folders.write_run` takes."""

    def make(folder: str = "run", /, **values: Any) -> Path:
        return write_run(tmp_path / folder, **values)

    return make
