"""The paper's networks, recurrent layers and layers of low rank.

A name is looked up when it is first used, so that importing costs nothing.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "softprune.nn.fastgrnn": ("FastGRNN", "FastGRNNCell", "FastGRNNClassifier"),
    "softprune.nn.low_rank": ("LowRankConv2d", "LowRankLinear", "fold"),
    "softprune.nn.mobilenet": ("mobilenet_v1",),
    "softprune.nn.resnet": ("resnet18", "resnet20", "resnet50", "resnet56"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'softprune.nn' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME_OF))
