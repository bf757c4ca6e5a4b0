"""Wavefront: a chain of convolutions over bands of rows, so that what lies between them stays in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from softprune.deploy.runtime.graph import Graph, Op
from softprune.deploy.runtime.progress import Progress
from softprune.deploy.runtime.site import BOUNDS

# A band: step of the chain, first tile, last tile (excluded).
Band = tuple[int, int, int]
# Longer chains would keep more values alive than the caches hold.
MAX_CHAIN = 4


def schedule(chain: Sequence[Progress], bands: int) -> list[Band]:
    """The order of work when the last convolution runs in `bands` parts: each step as late as possible."""
    finished = [0] * len(chain)
    order: list[Band] = []

    def advance(step: int, end: int) -> None:
        if end <= finished[step]:
            return
        if step:
            rows = int(chain[step].needed[end - 1])
            advance(step - 1, int(np.searchsorted(chain[step - 1].done, rows)) + 1 if rows else 0)
        order.append((step, finished[step], end))
        finished[step] = end

    count = len(chain[-1].done)
    for _, end in pairwise(np.arange(bands + 1) * count // bands):
        advance(len(chain) - 1, int(end))
    for step, link in enumerate(chain):
        advance(step, len(link.done))  # rows that nobody reads, such as those that a large kernel leaves out
    return order


def chains(graph: Graph, plain: Sequence[bool]) -> list[range]:
    """Operations in a row that can run as a wavefront: each reads the grid that the one before writes.

    A stride ends a chain: what comes out of it is small.

    Args:
        graph: the network.
        plain: per operation, whether it is a convolution that can read its producer's grid.
    """
    found, begin = [], 0
    for place in range(1, len(graph.ops) + 1):
        linked = place < len(graph.ops) and _linked(graph.ops[place - 1], graph.ops[place]) and plain[place]
        strided = place - 1 > begin and set(graph.ops[place - 1].fields["stride"]) != {1}
        linked = linked and not strided and place - begin < MAX_CHAIN
        if not linked:
            if place - begin > 1:
                found.append(range(begin, place))
            begin = place
    return found


def _linked(first: Op, second: Op) -> bool:
    both = first.kind == second.kind == "conv2d" and second.inputs[0] == first.output
    simple = all(op.fields.get("activation") in BOUNDS for op in (first, second))
    # A residual ends a block; longer chains would keep more than one block's values in the cache.
    return both and simple and first.fields.get("residual") is None and second.fields.get("residual") != first.output
