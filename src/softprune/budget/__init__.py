"""Budgets: what each tensor costs, how much of it is kept, and who decides.

The public names are reached as ``softprune.Budget``, ``softprune.profile`` and so on, the list of published
budgets as ``softprune.budget.zoo()``. Nothing is imported here until it is used, so a budget opens where torch
is not installed.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "zoo":
        from softprune.budget.budget import zoo

        return zoo
    raise AttributeError(f"module 'softprune.budget' has no attribute {name!r}")
