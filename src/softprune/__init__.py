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
    "CollapseWarning": "softprune.core.collapse",
    "Filters": "softprune.budget.goals",
    "Flops": "softprune.budget.goals",
    "ForecastWarning": "softprune.core.forecasting.outlook",
    "GMP": "softprune.methods",
    "Latency": "softprune.budget.goals",
    "LatencyTable": "softprune.budget.latency",
    "Params": "softprune.budget.goals",
    "Profile": "softprune.budget.costs",
    "Rank": "softprune.budget.goals",
    "Rule": "softprune.core.rule",
    "ST3": "softprune.methods",
    "STR": "softprune.methods",
    "Sparsifier": "softprune.core.sparsifier",
    "Sparsity": "softprune.budget.goals",
    "Units": "softprune.ops.units",
    "accelerate": "softprune.deploy.export.acceleration",
    "annealed": "softprune.ops",
    "constant": "softprune.budget.schedules",
    "cubic": "softprune.budget.schedules",
    "bake": "softprune.core.bake",
    "erk": "softprune.budget.allocators",
    "export": "softprune.deploy.export.exporting",
    "freeze_support": "softprune.core.support",
    "global_magnitude": "softprune.budget.magnitude",
    "linear": "softprune.budget.schedules",
    "load": "softprune.deploy.runtime.engine",
    "masked": "softprune.ops",
    "plan": "softprune.core.plan",
    "profile": "softprune.budget.profiler",
    "propose": "softprune.core.forecasting.proposal",
    "recalibrate_bn": "softprune.core.batchnorm",
    "restarted": "softprune.budget.rounds",
    "scaled": "softprune.budget.allocators",
    "shrink": "softprune.deploy.shrink.shrinking",
    "soft_threshold": "softprune.ops",
    "sparsify": "softprune.core.sparsify",
    "straight_through": "softprune.ops",
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
