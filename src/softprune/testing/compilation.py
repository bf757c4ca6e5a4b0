"""Compilation: a graph that is made once serves the whole training."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.testing import CompileCounter

from softprune.testing.case import Case, require
from softprune.testing.trial import EVERY


def nothing_compiles_again(case: Case) -> None:
    """Over two renewals of the masks there is one graph, without a break."""
    torch._dynamo.reset()
    counter: Any = CompileCounter()
    trial = case.trial()
    trial.run = torch.compile(trial.model, backend=counter, fullgraph=True)
    try:
        trial.train(2 * EVERY + 2)
    finally:
        torch._dynamo.reset()
    require(counter.frame_count == 1, "one graph", counter.frame_count)
