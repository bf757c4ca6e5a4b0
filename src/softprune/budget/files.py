"""The files of this package: JSON that is checked while it is read, text that is never half written."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn


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
    finally:
        part.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write ``text`` to ``path``, whole or not at all."""
    target = Path(path)
    write_whole(target, lambda part: part.write_text(text, encoding="utf-8", newline="\n"))
    return target


def read_text(path: Path) -> str:
    """The text of a file; a file that is no text is refused by name."""
    try:
        # utf-8-sig: spreadsheets like to put a byte order mark in front of a CSV.
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file ({error.reason})") from error


def parse_json(text: str, origin: str) -> dict[str, Any]:
    """Read one JSON object; NaN, infinities, repeated keys and anything but an object are refused.

    Args:
        text: the file's content.
        origin: what to call the file in a message.
    """

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{origin} contains {constant}; only finite numbers are allowed")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"{origin} names {key!r} twice; keep one of the two entries")
            found[key] = value
        return found

    try:
        data = json.loads(text, parse_constant=refuse, object_pairs_hook=once)
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
