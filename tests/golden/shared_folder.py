"""Where the paper's tables and trained checkpoints lie, for the tests that compare with the originals."""

import os
from pathlib import Path

import pytest


def shared(*parts: str) -> Path:
    """A path in the folder of originals; the test is skipped where that folder is absent."""
    beside = Path(__file__).resolve().parents[2].parent / "shared"
    path = Path(os.environ.get("SOFTPRUNE_SHARED", beside)).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is absent: the originals are not part of the repository (set SOFTPRUNE_SHARED)")
    return path
