"""Budgets: what each tensor costs, how much of it is kept, and who decides; ``zoo()`` lists the published ones.

Nothing is imported here until it is used, so a budget opens where torch is not installed.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "zoo":
        from softprune.budget.budget import zoo

        return zoo
    raise AttributeError(f"module 'softprune.budget' has no attribute {name!r}")
