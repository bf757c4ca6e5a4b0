"""The former name of the engine: `softprune.deploy.runtime`, its `reference` and its `spx` can still be imported."""

from __future__ import annotations

import sys
from typing import Any

from softprune.deploy.format import reference, spx

sys.modules |= {f"{__name__}.reference": reference, f"{__name__}.spx": spx}


def __getattr__(name: str) -> Any:
    from softprune.deploy import engine

    return getattr(engine, name)
