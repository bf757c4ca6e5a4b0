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
    "Filters": "softprune.goals.goal",
    "Flops": "softprune.goals.goal",
    "ForecastWarning": "softprune.forecast.forecast",
    "GMP": "softprune.methods",
    "Latency": "softprune.goals.goal",
    "LatencyTable": "softprune.budget.latency",
    "Params": "softprune.goals.goal",
    "Profile": "softprune.budget.costs",
    "Rank": "softprune.goals.goal",
    "Rule": "softprune.core.rule",
    "ST3": "softprune.methods",
    "STR": "softprune.methods",
    "Sparsifier": "softprune.core.sparsifier",
    "Sparsity": "softprune.goals.goal",
    "Units": "softprune.budget.units",
    "accelerate": "softprune.deploy.export.exporting",
    "annealed": "softprune.ops",
    "constant": "softprune.goals.base",
    "cubic": "softprune.goals.base",
    "bake": "softprune.core.bake",
    "erk": "softprune.budget.allocate",
    "export": "softprune.deploy.export.exporting",
    "freeze_support": "softprune.core.sparsify",
    "global_magnitude": "softprune.goals.magnitude",
    "linear": "softprune.goals.base",
    "load": "softprune.deploy.engine.inference",
    "masked": "softprune.ops",
    "plan": "softprune.core.sparsify",
    "profile": "softprune.budget.profiler",
    "propose": "softprune.forecast.propose",
    "quantize": "softprune.deploy.quantize",
    "recalibrate_bn": "softprune.core.bake",
    "restarted": "softprune.goals.base",
    "scaled": "softprune.budget.allocate",
    "shrink": "softprune.deploy.shrink",
    "soft_threshold": "softprune.ops",
    "sparsify": "softprune.core.sparsify",
    "straight_through": "softprune.ops",
    "uniform": "softprune.budget.allocate",
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
