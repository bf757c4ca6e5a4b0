"""DPF: dynamic model pruning with feedback (Lin et al., ICLR 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from softprune.methods.base import register
from softprune.methods.gmp import GMP
from softprune.ops import straight_through


@register("dpf")
@dataclass(frozen=True)
class DPF(GMP):
    """Magnitude pruning that can take back what it did: the gradient at the pruned point moves all weights.

    ``w <- w - eta * g(m * w)``; every few steps the mask m is renewed from |w|, at a sparsity that rises as
    ``s_f * (1 - (1 - x)^3)``. A weight that was pruned too early grows until it is among the largest again.

    Args:
        every: steps between two masks.
        min_keep: under a goal, weights that each tensor keeps whatever happens; by default a twentieth of what it would
            have if all tensors were equally dense.

    Deviations from the paper: no fine-tuning with the final mask.
    State: ``mask`` in the transform of each tensor.
    """

    paper = "Lin et al. 2020"

    _backward = straight_through
