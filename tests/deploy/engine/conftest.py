"""Without compiled kernels there is nothing to compare."""

from __future__ import annotations

import pytest

from softprune.deploy.engine.library import library


@pytest.fixture(scope="session", autouse=True)
def kernels(built_kernels: None) -> None:
    """Skip where the kernels could not be built."""
    if library() is None:
        pytest.skip("no C++ compiler")
