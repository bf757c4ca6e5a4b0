"""Pickles of numpy arrays, read without running anything that is in them.

A pickle is a program: it may name any function and call it. This reader knows the three names that an array is
rebuilt from and refuses every other before it is even imported.
"""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any

import numpy as np

# The function that numpy itself names in a pickle; its module was renamed between versions, its role was not.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        try:
            return _ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module_name}.{global_name}, which is no part of an array"
            ) from None


def load_arrays(content: bytes) -> Any:
    """The dicts, lists, numbers, byte strings and arrays of a pickle; Python 2's strings become bytes.

    Raises:
        ValueError: if it is cut off, is no pickle, or asks for anything else. Nothing has been called then.
    """
    try:
        return _ArrayUnpickler(BytesIO(content), encoding="bytes").load()
    # A damaged pickle fails in whichever way its next opcode fails.
    except Exception as error:
        raise ValueError(f"no pickle of plain arrays: {error}") from error
