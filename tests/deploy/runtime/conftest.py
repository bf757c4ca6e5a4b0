"""Without compiled kernels there is nothing to compare: they are built once where there is a compiler."""

from __future__ import annotations

import pytest

from softprune.deploy.runtime.build import LIBRARY, build, compiler
from softprune.deploy.runtime.library import library


@pytest.fixture(scope="session", autouse=True)
def kernels() -> None:
    """Build the kernels if they are missing."""
    if library() is not None:
        return
    if compiler() is None:
        pytest.skip("no C++ compiler")
    if not LIBRARY.is_file():
        build()
        library.cache_clear()
