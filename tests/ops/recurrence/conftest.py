"""The compiled recurrences are built once for the tests that need them."""

import pytest

from softprune._native.compilation import RECURRENCE, compiler
from softprune.ops.recurrence.fused import library


@pytest.fixture(scope="session")
def compiled():
    """Makes sure that the compiled operator is there; skips where it cannot be made."""
    if not RECURRENCE.file.is_file():
        if compiler() is None:
            pytest.skip("there is no C++ compiler")
        RECURRENCE.build()
        library.cache_clear()
    return library()
