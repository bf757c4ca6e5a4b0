"""The kernels are built once where they are missing and there is a compiler, as the tests of the engine do."""

from __future__ import annotations

import pytest

from softprune.deploy.engine.build import LIBRARY, build, compiler
from softprune.deploy.engine.library import library


@pytest.fixture(scope="session", autouse=True)
def built_kernels() -> None:
    """Build the kernels if they are missing."""
    if library() is None and not LIBRARY.is_file() and compiler() is not None:
        build()
        library.cache_clear()
