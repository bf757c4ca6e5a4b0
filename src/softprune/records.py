"""The files that rooms share, without torch: their names, columns and keys, and how they are written and read.

A file is written whole or not at all, and JSON is checked while it is read.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

# A run folder, which `softprune train` writes and reports read.
RUN_VERSION = 1  # of environment.json and result.json
CONFIG, ENVIRONMENT, RESULT = "config.yaml", "environment.json", "result.json"
METRICS, LAYERS, BUDGET = "metrics.jsonl", "layers.csv", "budget.json"
LATENCY = "latency.json"  # a bench file of the run's network
CHECKPOINTS = "checkpoints"  # a folder in it
# One row of layers.csv for each tensor and evaluated epoch: s, alpha = g(s), and what core.diagnosis says of them.
LAYER_COLUMNS = ("epoch", "step", "name", "s", "alpha", "density", "P", "l1_active", "balance", "macs")

# A bench file, which `softprune bench` writes; seconds are those of one call.
BENCH_FORMAT, BENCH_VERSION = "softprune-bench", 1
OUR_ENGINE = "softprune"  # its name among the engines


class BenchKey:
    """The keys of a bench file."""

    NETWORK, PROCESSOR, LEVEL, BATCH, THREADS = "network", "processor", "level", "batch", "threads"
    MACS = "macs"  # multiply-adds on nonzeros for one sample
    ROOFLINE_SHARE = "share of the roofline"
    SKIPPED = "skipped"  # engines that could not run the network, with the reason
    FASTEST_OTHER, FASTEST_INT8 = "fastest other", "fastest dense int8"
    STARTS = "first start", "second start"
    ENGINES = "engines"  # by name, with these:
    SECONDS, MEDIAN, BURSTS, DROPPED, DIFFERENCE = "seconds", "median", "bursts", "dropped", "difference"
    PRECISION, LOW_LAYERS = "precision", "layers in it"  # how many of another engine's layers ran in it, of how many
    RATIOS = "ratios"  # of the other engines' times to ours, by name, with these:
    BEST, LOW, HIGH = "best", "low", "high"
    LAYERS = "layers"  # a list, with macs and these:
    PATH, WHAT, HOW, NONZEROS = "path", "what", "how", "nonzeros"
    MICROSECONDS, GFLOPS, ROOFLINE = "microseconds", "gflops", "roofline"


# Of a text file that is read at once.
MOST_BYTES = 64 << 20
# Of an integer, so that it and some products of such still have a floating point number.
MOST_DIGITS = 40


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file, then put it in the place of ``path``: a reader sees the old or the new one.

    The content is on the disk before the name is, so that a power cut cannot leave an empty file either.
    """
    # The same folder, because a replacement is atomic only within one file system.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except Exception as error:
        if (problem := write_error(path, error)) is None:
            raise
        raise problem from error
    finally:
        part.unlink(missing_ok=True)


def write_error(path: Path, error: Exception, *, kept: str = "what was there before is unchanged") -> OSError | None:
    """What a failed write says to a person: which file, why, and what is kept; None if the system is not to blame."""
    from safetensors import SafetensorError  # no OSError, though it is what a full disk ends in

    if not isinstance(error, OSError | SafetensorError):
        return None
    kind = type(error) if isinstance(error, OSError) else OSError
    said = kind(f"could not write {path}: {getattr(error, 'strerror', None) or error}; {kept}")
    said.errno = getattr(error, "errno", None)
    return said


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write ``text`` to ``path``, whole or not at all; an OSError names the file."""
    target = Path(path)
    write_whole(target, lambda part: part.write_text(text, encoding="utf-8", newline="\n"))
    return target


def require_regular(path: Path) -> None:
    """Refuse a device, a pipe or a folder, also behind a link: reading one may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is not a regular file, but a folder, a device or a pipe; put a file in its place")


def read_bytes(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most ``most`` bytes; any other is refused by name."""
    require_regular(path)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} is larger than the {most >> 20} MB that are read of such a file; make it shorter")
    return content


def read_text(path: Path, *, most: int = MOST_BYTES) -> str:
    """The text of a regular file of at most ``most`` bytes; a file that is not text is refused by name."""
    try:
        # utf-8-sig: spreadsheets like to put a byte order mark in front of a CSV.
        return read_bytes(path, most=most).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file ({error.reason})") from error


def parse_json(text: str, origin: str) -> dict[str, Any]:
    """Read one JSON object; NaN, infinities, endless integers, repeated keys and anything but an object are refused.

    `origin` names the file in messages.
    """

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{origin} contains {constant}; only finite numbers are allowed")

    def integer(digits: str) -> int:
        if len(digits) > MOST_DIGITS:
            raise ValueError(f"{origin} contains an integer of {len(digits)} digits, which is too large")
        return int(digits)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"{origin} names {key!r} twice; keep one of the two entries")
            found[key] = value
        return found

    try:
        data = json.loads(text, parse_constant=refuse, parse_int=integer, object_pairs_hook=once)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{origin} is not valid JSON, perhaps it was cut short: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{origin} holds a JSON {type(data).__name__}, not an object")
    return data


def require_format(data: dict[str, Any], name: str, *, version: int, origin: str) -> None:
    """Refuse a document that is not of format ``name``, or of a version this release cannot read."""
    if data.get("format") != name:
        raise ValueError(f"{origin} has format {data.get('format')!r}; a {name!r} file is needed")
    if data.get("version") != version:
        raise ValueError(
            f"{origin} is {name!r} version {data.get('version')!r}; this release reads version {version}, "
            "use the release that wrote it or write it again"
        )
