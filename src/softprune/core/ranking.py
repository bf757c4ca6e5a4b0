"""The largest of many scores over all tensors of a model, to the weight."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from softprune.core.goals.candidate import Candidate
from softprune.core.goals.selection import select


def keep_largest(scores: Mapping[str, Tensor], total: int) -> dict[str, Tensor]:
    """Masks of the `total` largest scores, none negative; equal ones in the order of the tensors and of memory.

    Every process of DistributedDataParallel has the same scores and so the same masks.
    """
    # Ties are parted by lowering the losers, so a copy is needed.
    candidates = [Candidate(score.detach().clone(), score.new_ones(1)) for score in scores.values()]
    found, _ = select(candidates, total)
    masks = {name: c.w > f.alpha for name, c, f in zip(scores, candidates, found, strict=True)}
    # No threshold has zeros above it: where they are needed, they are taken one by one.
    missing = total - sum(int(mask.sum()) for mask in masks.values())
    for mask in masks.values() if missing > 0 else ():
        places = (~mask).view(-1).nonzero().view(-1)[:missing]
        mask.view(-1)[places] = True
        missing -= len(places)
    return masks
