"""What tuning found, kept in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softprune.deploy.runtime.tensorfile import open_regular

# Changes when kernels or choices change, so that old results are not used.
VERSION = 6
# Of a file of results; a network of 100,000 layers, the most that are allowed, has some 10 MB.
MAX_BYTES = 32 << 20


def folder() -> Path:
    """$SOFTPRUNE_CACHE, or softprune in the system's cache folder."""
    if wish := os.environ.get("SOFTPRUNE_CACHE"):
        return Path(wish)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "softprune"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softprune"


def processor() -> str:
    """The name of this processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def key(**facts: str | int) -> str:
    """A name for the results of one network on one machine."""
    text = json.dumps({"version": VERSION, "processor": processor(), **facts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def read(name: str) -> Mapping[str, Any] | None:
    """What was kept; None if there is nothing usable."""
    try:
        with open_regular(folder() / "tuning" / f"{name}.json") as file:
            size = os.fstat(file.fileno()).st_size
            found = json.loads(file.read(size)) if size <= MAX_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def write(name: str, content: Mapping[str, Any]) -> None:
    """Keep something, if there is a place for it: a cache that cannot be written is no error."""
    path = folder() / "tuning" / f"{name}.json"
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(content))
        part.replace(path)
