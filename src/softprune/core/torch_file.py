"""Reading the state dict of a file that torch.save wrote, without running anything in it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# The learning rate of a run may be a numpy number and sit in the optimizer state beside the weights. These rebuild
# numbers and nothing else; every other foreign name in the file is refused, so no code of the file's author runs.
_rebuild_scalar = np.float64(0).__reduce__()[0]
_NUMPY_SCALARS: list[Any] = [
    (_rebuild_scalar, "numpy.core.multiarray.scalar"),  # its name in files of numpy before 2
    _rebuild_scalar,
    np.dtype,
    type(np.dtype(np.float64)),
]


def read_torch_file(path: Path) -> dict[str, Tensor]:
    """The state dict that is the file, or that is its ``state_dict``; keys as they are, tensors on the CPU.

    Raises:
        ValueError: if the file is missing or damaged, holds something else, or would run code to load.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with torch.serialization.safe_globals(_NUMPY_SCALARS):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is damaged, or holds objects that only running code could rebuild; refused: {error}"
        ) from error
    except Exception as error:  # torch.load meets a damaged file with whatever its parser stumbles over
        raise ValueError(f"{path} is not a torch checkpoint, or is damaged: {error}") from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()):
        held = f", but the keys {', '.join(map(str, list(content)[:5]))}" if isinstance(content, dict) else ""
        raise ValueError(f"{path} holds no state dict of tensors{held}; save model.state_dict() itself")
    return {key: value.detach() for key, value in state.items()}
