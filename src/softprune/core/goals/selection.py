"""Selection: the largest of many scaled weights, as many as a total allows, and the thresholds that part them exactly.

A weight w of a group with scale t (one per tensor, filter or weight) has the key |w| / t. Selected are the largest
keys; equal ones are taken in the order of the tensors and, within one, of memory. What comes out are thresholds
alpha, one per group, with |w| > alpha for exactly the selected weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from softprune.core.goals import bracket as brackets
from softprune.core.goals.bracket import Bracket, Sample
from softprune.core.goals.candidate import Candidate, Look
from softprune.core.goals.layout import flat, lower_
from softprune.core.goals.price import in_order
from softprune.core.goals.sweep import Array, for_each


@dataclass
class Choice:
    """Which weights are selected.

    Args:
        border: the largest key that is not (0 if everything is).
        bracket: that the border lies in.
        keep: of those close to the border, per candidate, whether they are selected.
        kept: how many are selected of each candidate.
    """

    border: float
    bracket: Bracket
    keep: list[Array]
    kept: list[int]

    @property
    def crowd(self) -> float:
        """Weights per unit of log key near the border."""
        low, high = self.bracket
        return sum(map(len, self.keep)) / math.log(high / low) if 0.0 < low < high < math.inf else 0.0


@dataclass
class Selected:
    """What was selected of one tensor.

    Args:
        alpha: the thresholds, like the scale.
        kept: how many weights lie above them.
        crossing: how many weights lie within the window around the border, per group, and per unit of log alpha.
    """

    alpha: Tensor
    kept: int
    crossing: Tensor


def select(
    candidates: Sequence[Candidate], allowed: float, *, guess: Bracket | None = None
) -> tuple[list[Selected], float]:
    """Keep the largest keys whose costs add up to at most `allowed`.

    Ties among equal weights that share a threshold are parted by lowering the losers, raw and pruned, by one unit in
    the last place.

    Args:
        candidates: the tensors.
        allowed: the total cost that may be kept.
        guess: where the border may lie. A good one saves time; none changes the result.

    Returns:
        What was selected of each tensor, and the key of the border (0 if everything is kept).
    """
    choice = choose(candidates, allowed, guess=guess)
    return part_(candidates, choice), 0.0 if choice is None else choice.border


def choose(candidates: Sequence[Candidate], allowed: float, *, guess: Bracket | None = None) -> Choice | None:
    """The selection without its thresholds: no weight is touched. None if all weights fit."""
    if allowed >= sum(c.price.of(c.w.numel()) for c in candidates):
        return None
    total = sum(c.w.numel() for c in candidates)
    bracket = guess or _sampled(candidates, allowed)
    guessed = guess is not None
    while True:
        looks = for_each(partial(Candidate.look, bracket=bracket), candidates, total)
        room = allowed - sum(c.price.of(look.found.above) for look, c in zip(looks, candidates, strict=True))
        border, chosen = _split(candidates, looks, room)
        low, high = bracket
        # Keys and thresholds are rounded: a border strictly inside is what makes the bracket play no part in the
        # result. Of those outside none is then on the wrong side.
        if high < math.inf and (room < 0 or border >= high):
            # From 0, where all keys of the sample are, no factor leads away.
            bracket = Bracket(low, 1.5 * high if 0.0 < high < 1e30 else math.inf)
        elif low > 0.0 and border <= low:
            bracket = Bracket(low / 1.5 if low > 1e-30 else 0.0, high)
        else:
            break
        if guessed:
            bracket, guessed = _sampled(candidates, allowed), False
    keep = np.split(chosen, np.cumsum([len(look.key) for look in looks])[:-1])
    kept = [look.found.above + int(np.count_nonzero(k)) for look, k in zip(looks, keep, strict=True)]
    return Choice(border, bracket, keep, kept)


def part_(candidates: Sequence[Candidate], choice: Choice | None) -> list[Selected]:
    """The thresholds of a selection (None keeps all weights); losing ties are lowered."""
    if choice is None:
        return [_all_of(c) for c in candidates]
    stride = _stride(candidates)
    found = []
    for c, keep, kept in zip(candidates, choice.keep, choice.kept, strict=True):
        alpha = _exact(c, c.look(choice.bracket), keep, choice.border)
        crossing = brackets.crossing(c.rows, brackets.sample(c.rows, c.scales, stride), choice.border)
        if c.groups is not None:
            crossing = np.bincount(c.groups, crossing, minlength=c.scale.numel())
        found.append(Selected(_like(c, alpha), kept, _like(c, crossing)))
        c.forget()
    return found


def _all_of(c: Candidate) -> Selected:
    return Selected(torch.zeros_like(c.scale), int(torch.count_nonzero(c.w)), torch.zeros_like(c.scale))


def _stride(candidates: Sequence[Candidate]) -> int:
    return max(1, math.ceil(sum(c.w.numel() for c in candidates) / brackets.SAMPLE))


def _sampled(candidates: Sequence[Candidate], allowed: float) -> Bracket:
    stride = _stride(candidates)
    samples: list[Sample] = [brackets.sample(c.rows, c.scales, stride) for c in candidates]
    return brackets.sampled(samples, [c.w.numel() for c in candidates], [c.price for c in candidates], allowed)


def _split(candidates: Sequence[Candidate], looks: Sequence[Look], room: float) -> tuple[float, Array]:
    """The largest key that does not fit any more (0 if all do), and which of the weights do."""
    key = np.concatenate([look.key for look in looks])
    # A weight costs what it adds to those of its tensor with larger keys, so a sum over the largest is their price.
    steps = [c.price.steps(look.found.above, len(look.key)) for c, look in zip(candidates, looks, strict=True)]
    cost = np.concatenate([in_order(look.key, step) for look, step in zip(looks, steps, strict=True)])
    border = _first_out(key, cost, room)
    chosen = key > border
    # Equal keys fit in the order of the tensors and of memory.
    (tied,) = (key == border).nonzero()
    left = room - float(cost[chosen].sum())
    chosen[tied[: np.searchsorted(cost[tied].cumsum(), left, side="right")]] = True
    return border, chosen


def _first_out(key: Array, cost: Array, room: float) -> float:
    """The first key from the largest down with which the costs are more than there is room for; 0 if they never are."""
    if room < 0.0 or room >= float(cost.sum()):
        return float(key.max(initial=0.0)) if room < 0.0 else 0.0
    if (cost == 1.0).all():
        place = len(key) - 1 - math.floor(room)
        return float(np.partition(key, place)[place])
    order = np.argsort(-key)
    return float(key[order[np.searchsorted(cost[order].cumsum(), room, side="right")]])


def _exact(c: Candidate, look: Look, keep: Array, border: float) -> Array:
    """Thresholds for one tensor: the scale times the border, moved where rounding or ties would part it wrongly."""
    scale: Array = c.scale.detach().flatten().cpu().numpy()
    alpha = (scale.astype(np.float64) * border).astype(scale.dtype)
    group = np.zeros(len(keep), np.int64) if look.row is None else look.row
    group = group if c.groups is None else c.groups[group]
    least = _extreme(np.minimum, look.found.size[keep], group[keep], np.full_like(scale, math.inf))
    # The largest threshold below a kept weight: after subtracting it the weight is still not zero in its own dtype.
    ceiling = np.minimum(np.nextafter(least, scale.dtype.type(0.0)), least - scale.dtype.type(c.slack))
    lost, lost_group, place = look.found.size[~keep], group[~keep], look.found.place[~keep]
    while (tied := lost > ceiling[lost_group]).any():
        lower_(c.w, torch.from_numpy(place[tied]).to(c.w.device))
        where = torch.from_numpy(place).to(c.w.device)
        lost = flat(c.w)[where].abs().to(c.scale.dtype).cpu().numpy()
    floor = _extreme(np.maximum, lost, lost_group, np.zeros_like(scale))
    exact: Array = np.minimum(np.maximum(alpha, floor), ceiling)
    return exact


def _extreme(better: np.ufunc, values: Array, group: Array, best: Array) -> Array:
    """The smallest or largest value of each group, or what was best before."""
    if len(best) == 1 and len(values):
        best[0] = better(best[0], better.reduce(values))
    else:
        better.at(best, group, values)
    return best


def _like(c: Candidate, values: Array) -> Tensor:
    return torch.from_numpy(values).to(dtype=c.scale.dtype, device=c.scale.device).view_as(c.scale)
