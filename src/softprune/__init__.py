"""softprune: learn sparse networks with trainable thresholds.

Importing this package imports nothing else: a name is looked up when it is first used (PEP 562), so
reading a budget or a report works where torch is not installed.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# public name -> the module that defines it
_HOMES = {
    "Budget": "softprune.budget.budget",
    "Flops": "softprune.budget.goals",
    "Params": "softprune.budget.goals",
    "Profile": "softprune.budget.costs",
    "Sparsity": "softprune.budget.goals",
    "erk": "softprune.budget.allocators",
    "global_magnitude": "softprune.budget.magnitude",
    "profile": "softprune.budget.profiler",
    "uniform": "softprune.budget.allocators",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'softprune' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOMES))
