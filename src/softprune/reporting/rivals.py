"""Other budgets beside those of runs: shared out by a rule, from a file, or published."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from softprune.budget.allocators import erk, uniform
from softprune.budget.budget import Budget
from softprune.budget.costs import Profile
from softprune.budget.goals import Sparsity
from softprune.reporting.run import Run

_RULES = {"uniform": uniform, "erk": erk}


def rivals(names: Iterable[str], runs: Sequence[Run]) -> list[Budget]:
    """The budgets that runs are set against, with the names of the runs' tensors.

    Args:
        names: "uniform" or "erk" for the total that the first run reached; or a budget file, a run folder, or a
            published budget such as "resnet50/str-90.23".
        runs: the first that has a budget says which network it is.

    Returns:
        budgets whose ``source`` is the name; of a path its last part.

    Raises:
        ValueError: naming a budget that is of another network.

    Example:
        rivals(["uniform", "erk"], [read_run(Path("runs/demo"))])
    """
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return []
    own = next((run.budget for run in runs if run.budget is not None and run.budget.profile is not None), None)
    if own is None or own.profile is None:
        raise ValueError(f"no budget.json tells the layers of these runs yet, so {wanted[0]} cannot be set beside them")
    return [_rival(name, own, own.profile) for name in wanted]


def _rival(name: str, own: Budget, profile: Profile) -> Budget:
    if name in _RULES:
        if not 0 < own.overall < 1:
            raise ValueError(f"{name} shares out the sparsity of a run, and this one has {own.overall:.2%}")
        made = _RULES[name](profile, Sparsity(own.overall))
        return Budget(made.densities, profile, f"{name} ({own.overall * 100:.2f} %)")
    other = Budget.load(name)
    label = Path(name).resolve().name if Path(name).exists() else name
    if set(other) == set(profile.names):
        return Budget({tensor: other[tensor] for tensor in profile.names}, profile, label)
    # The same network under other names: as many tensors, of the same sizes, in the same order.
    sizes = [math.prod(t.shape) for t in other.profile] if other.profile else []
    if other.profile and sizes == [t.params for t in profile]:
        pairs = zip(profile.names, other.profile.names, strict=True)
        return Budget({mine: other[theirs] for mine, theirs in pairs}, profile, label)
    missing = next((tensor for tensor in profile.names if tensor not in other), "")
    raise ValueError(
        f"the budget {name} is of another network: it has {len(other)} tensors, the run {len(profile)}"
        f"{f', and none called {missing}' if missing else ''}; choose one of the same network"
    )
