"""Changes to a configuration from the command line: ``key=value`` with dotted keys."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from softprune.train.config.keys import field_at, is_list, known_keys, leaves, section_in
from softprune.train.config.problem import ConfigError, Problem, unknown_key
from softprune.train.config.run import RunConfig
from softprune.train.document import parse_yaml


def apply_overrides(
    data: Mapping[str, Any], overrides: Iterable[str], *, origin: str = "the configuration"
) -> dict[str, Any]:
    """A copy of the plain data of a configuration with some values replaced.

    A short form on the way (``model: digits``) is written out, so that a key below it can be set. The values are not
    checked here: the whole is checked afterwards by `RunConfig.parse`.

    Args:
        data: as read from YAML.
        overrides: "optimizer.lr=0.1", "skip=[fc.weight]", "ema=null", "rules.0.s_init=-100"; values are YAML.
        origin: what to call the configuration in a message.

    Raises:
        ConfigError: for every override that is no ``key=value``, or whose key does not exist, with the nearest.

    Example:
        >>> apply_overrides({"model": "digits", "epochs": 60}, ["model.args.num_classes=5", "epochs=2"])
        {'model': {'name': 'digits', 'args': {'num_classes': 5}}, 'epochs': 2}
    """
    changed: dict[str, Any] = copy.deepcopy(dict(data))
    problems: list[Problem] = []
    for text in overrides:
        try:
            path, value = _parse(text)
            _set(changed, path, value)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems, origin=f"{origin} with these overrides")
    return changed


def texts_in(overrides: Iterable[str]) -> set[str]:
    """Every text that the values of overrides hold, however deep.

    Example:
        >>> sorted(texts_in(["model={name: 'mine:net', args: {width: 3}}", "log.own=['mine:Logger']", "epochs=2"]))
        ['mine:Logger', 'mine:net']
    """
    return texts_of([_parse(text)[1] for text in overrides])


def texts_of(data: Any) -> set[str]:
    """Every text in plain data, keys left out."""
    found: set[str] = set()
    left: list[Any] = [data]
    while left:
        value = left.pop()
        if isinstance(value, str):
            found.add(value)
        left += value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return found


def _parse(text: str) -> tuple[list[str], Any]:
    key, equals, written = text.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise ConfigError([Problem(text, "an override is key=value, such as optimizer.lr=0.1")])
    if not written.strip():
        raise ConfigError([Problem(key, f"{key}= has no value; write {key}=null to switch it off")])
    depth, _ = field_at(RunConfig, path)
    if depth < len(path):
        raise ConfigError([_unknown(path, depth)])
    try:
        return path, parse_yaml(written, text)
    except ValueError as error:
        raise ConfigError([Problem(key, str(error))]) from error


def _unknown(path: list[str], depth: int) -> Problem:
    _, field = field_at(RunConfig, path[:depth])
    section = RunConfig if depth == 0 else section_in(field.annotation) if field is not None else None
    if section is None:
        return Problem(".".join(path), f"{'.'.join(path[:depth])} is a value and has no keys of its own")
    return unknown_key(path[: depth + 1], known_keys(section), [leaf for leaf, _ in leaves(RunConfig)])


def _set(data: dict[str, Any], path: list[str], value: Any) -> None:
    here: Any = data
    for depth, part in enumerate(path[:-1], start=1):
        inside = _get(here, part, path)
        if not isinstance(inside, dict | list):
            # A short form, or a section that was left out or null.
            _, field = field_at(RunConfig, path[:depth])
            section = section_in(field.annotation) if field is not None else None
            if field is not None and is_list(field.annotation):
                raise ConfigError([Problem(".".join(path), f"{part} is no list yet; write {part}=[...] instead")])
            long = section.long_form(inside) if section is not None else None
            inside = long if isinstance(long, dict) else {}
            _put(here, part, inside, path)
        here = inside
    _put(here, path[-1], value, path)


def _get(here: dict[str, Any] | list[Any], part: str, path: list[str]) -> Any:
    return here.get(part) if isinstance(here, dict) else here[_index(here, part, path)]


def _put(here: dict[str, Any] | list[Any], part: str, value: Any, path: list[str]) -> None:
    if isinstance(here, dict):
        here[part] = value
    else:
        here[_index(here, part, path)] = value


def _index(here: list[Any], part: str, path: list[str]) -> int:
    if not part.isdecimal() or int(part) >= len(here):
        held = f"has the elements 0 to {len(here) - 1}" if here else "is empty"
        raise ConfigError([Problem(".".join(path), f"the list {held}; write the whole list instead")])
    return int(part)
