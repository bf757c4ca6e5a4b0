"""Run folders in; figures, tables and one-file pages out. Works where torch is not installed.

`softprune.reporting.figure("frontier", "runs/target")` draws a figure in a notebook. Nothing is imported here until it
is used.
"""

from typing import Any

__all__ = ["figure"]


def __getattr__(name: str) -> Any:
    if name == "figure":
        from softprune.reporting.figures import figure

        return figure
    raise AttributeError(f"module 'softprune.reporting' has no attribute {name!r}")
