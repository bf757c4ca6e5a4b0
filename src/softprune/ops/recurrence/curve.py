"""The non-linearities that gates and updates of a recurrence may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Curve: TypeAlias = Literal["sigmoid", "tanh", "relu", "quant_tanh", "quant_sigm", "quant_sigm4"]

# In the order of the kernels' own list. The piecewise linear ones suit integer arithmetic.
CURVES: Mapping[Curve, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "quant_tanh": F.hardtanh,
    "quant_sigm": lambda x: F.hardtanh((x + 1) / 2, 0.0, 1.0),
    "quant_sigm4": lambda x: F.hardtanh((x + 2) / 4, 0.0, 1.0),
}


def check_curve(name: str, of: str) -> None:
    """Refuse a name that is none.

    Args:
        name: of the curve.
        of: what it is for, in the message.
    """
    if name not in CURVES:
        raise ValueError(f"the non-linearity of the {of} is one of {', '.join(CURVES)}; got {name!r}")


def number(name: Curve) -> int:
    """What the kernels call it."""
    return list(CURVES).index(name)
