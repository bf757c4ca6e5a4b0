"""Memory for arrays over all steps, used again.

Such an array takes megabytes, which the system hands out anew, page by page, whenever they were given back: that
can take as long as the recurrence itself.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"

KEPT = 4  # arrays that wait to be used again, at most
LARGEST = 1 << 25  # bytes of such an array
LINE = 16  # numbers of a cache line: tensors begin with one

_waiting: deque[Array] = deque(maxlen=KEPT)


class _Lent(np.ndarray[Any, np.dtype[np.float32]]):
    """A view that lasts as long as the tensor that is made of it."""

    def __del__(self) -> None:
        if isinstance(self.base, np.ndarray) and self.base.nbytes <= LARGEST:
            _waiting.append(self.base)


def room(*shape: int) -> Tensor:
    """A tensor of float32 that is not filled; its memory is used again once nobody needs the tensor.

    Args:
        shape: of the tensor.

    >>> room(2, 3).shape
    torch.Size([2, 3])
    """
    count = math.prod(shape)
    return torch.from_numpy(_array(count).view(_Lent))[:count].view(shape)


def _array(count: int) -> Array:
    """A free array of about that size, or a new one."""
    for _ in range(KEPT):
        try:
            found = _waiting.popleft()
        except IndexError:
            break
        if count <= found.size <= 2 * count:
            return found
        _waiting.append(found)
    made = np.empty(count + LINE, np.float32)
    first = -made.ctypes.data // made.itemsize % LINE
    return made[first : first + count]
