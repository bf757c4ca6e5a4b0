"""Where the real data sets lie on this machine, for the tests that read them; they are skipped where there are none."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


def shared(*parts: str) -> Path:
    """A path in the folder of originals beside the repository."""
    path = Path(os.environ.get("SOFTPRUNE_SHARED", REPOSITORY.parent / "shared")).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is absent: the originals are not part of the repository (set SOFTPRUNE_SHARED)")
    return path


def data_root(variable: str, file: str) -> Path:
    """The folder that an environment variable names, or ``data`` beside the repository, if ``file`` is in it."""
    root = Path(os.environ.get(variable, REPOSITORY.parent / "data"))
    if not (root / file).exists():
        pytest.skip(f"{root / file} is absent: data sets are not part of the repository (set {variable})")
    return root
