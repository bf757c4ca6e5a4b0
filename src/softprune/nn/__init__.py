"""The paper's networks, recurrent layers and layers of low rank.

A name is looked up when it is first used, so that importing costs nothing.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "FastGRNN": "softprune.nn.fastgrnn",
    "FastGRNNCell": "softprune.nn.fastgrnn",
    "FastGRNNClassifier": "softprune.nn.fastgrnn",
    "LowRankConv2d": "softprune.nn.low_rank",
    "LowRankLinear": "softprune.nn.low_rank",
    "fold": "softprune.nn.low_rank",
    "mobilenet_v1": "softprune.nn.mobilenet",
    "resnet18": "softprune.nn.resnet",
    "resnet20": "softprune.nn.resnet",
    "resnet50": "softprune.nn.resnet",
    "resnet56": "softprune.nn.resnet",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'softprune.nn' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOMES))
