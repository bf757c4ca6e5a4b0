"""Running exported networks: `load("model.spx")` gives an engine; needs NumPy and the compiled kernels only."""

from __future__ import annotations

from typing import Any

__all__ = ["Engine", "KernelWarning", "load"]


def __getattr__(name: str) -> Any:
    # On first use: the command that builds the kernels lives in this package and must run without them.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from softprune.deploy.engine import inference

    return getattr(inference, name)
