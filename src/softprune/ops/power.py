"""An operator between the soft and the hard threshold."""

from __future__ import annotations

import torch
from torch import Tensor

from softprune.ops.threshold import Backward, masked


def power_shrink(w: Tensor, alpha: Tensor, power: float, *, backward: Backward = masked) -> Tensor:
    """``sign(w) * (|w|^p - alpha^p)^(1/p)`` above alpha, else 0; with p = 1 the soft threshold.

    The derivative is that of the identity for weights that live, and `backward.leak` of it for the others.

    Args:
        w: weights of any shape.
        alpha: the threshold, 0 or more; with 0 the operator is the identity.
        power: p, at least 1.
        backward: how much of the gradient pruned weights receive.

    >>> power_shrink(torch.tensor([-2.0, 0.5]), torch.tensor([1.0]), 3.0)
    tensor([-1.9129,  0.0000])
    """
    alive = (w.abs() > alpha) | (alpha == 0)
    with torch.no_grad():
        # By the quotient, since alpha^p of a small threshold would underflow.
        shrunk = (w * (1 - (alpha / w.abs()) ** power).clamp_min(0.0) ** (1 / power)).to(w.dtype)
        # Just above alpha the difference may be lost to rounding; what lives must not be 0.
        least = torch.finfo(w.dtype).tiny * w.sign()
        value = torch.where(alive, torch.where(shrunk == 0, least, shrunk), 0.0)
        value = torch.where(alpha == 0, w, value)
    through = w - w.detach()
    return value + torch.where(alive, through, backward.leak * through)
