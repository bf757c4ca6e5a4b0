"""pydantic's errors in our words: the dotted path, the value, what is allowed, the nearest key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from softprune.train.config.keys import field_at, known_keys, leaves, section_in
from softprune.train.config.problem import ConfigError, Problem, shown, unknown_choice, unknown_key
from softprune.train.config.section import Section

_TYPES = {
    "float_type": "a number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a section of keys",
}


def explain(error: ValidationError, root: type[Section]) -> list[Problem]:
    """Every problem that pydantic found, once per key.

    Args:
        error: as raised while validating ``root``.
        root: the model of the whole configuration.
    """
    found: dict[str, list[str]] = {}
    for details in error.errors():
        for problem in _problems(details, root):
            messages = found.setdefault(problem.path, [])
            if problem.message not in messages:
                messages.append(problem.message)
    return [Problem(path, _join(messages)) for path, messages in found.items()]


def _join(messages: list[str]) -> str:
    # A field that may be a number or a word fails once for each: one sentence with both.
    head = f"{messages[0].partition(' is not ')[0]} is not "
    if len(messages) > 1 and all(message.startswith(head) for message in messages):
        return head + " or ".join(message.removeprefix(head) for message in messages)
    return "; ".join(messages)


def _problems(details: Mapping[str, Any], root: type[Section]) -> list[Problem]:
    location: tuple[str | int, ...] = details["loc"]
    if details["type"] == "extra_forbidden":
        here = _section(root, location[:-1])
        return [unknown_key([str(part) for part in location], known_keys(here), [leaf for leaf, _ in leaves(root)])]
    # What pydantic appends for the alternatives of a union is no part of the path.
    depth, field = field_at(root, location)
    path = ".".join(str(part) for part in location[:depth])
    inner = details.get("ctx", {}).get("error")
    if isinstance(inner, ConfigError):
        return [problem.below(path) for problem in inner.problems]
    if details["type"] == "missing":
        return [Problem(path, f"is missing. {field.description if field else ''}")]
    return [Problem(path, _message(details))]


def _section(root: type[Section], path: tuple[str | int, ...]) -> type[Section]:
    _, field = field_at(root, path)
    return (section_in(field.annotation) if field is not None else None) or root


def _message(details: Mapping[str, Any]) -> str:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        choices = [word.strip().strip("'") for word in context["expected"].replace(" or ", ",").split(",")]
        return f"{shown(value)} is not {choices[0]}" if len(choices) == 1 else unknown_choice(value, choices)
    if kind in _TYPES:
        return f"{shown(value)} is not {_TYPES[kind]}{_fix(kind, value)}"
    if kind in ("less_than", "less_than_equal"):
        limit = context.get("lt", context.get("le"))
        fraction = f": it is a fraction, write {value / 100:g}" if limit == 1 and 1 < value <= 100 else ""
        return f"{value!r} is not {'below' if kind == 'less_than' else 'at most'} {limit:g}{fraction}"
    if kind in ("greater_than", "greater_than_equal"):
        limit = context.get("gt", context.get("ge"))
        return f"{value!r} is not {'above' if kind == 'greater_than' else 'at least'} {limit:g}"
    return f"{shown(value)}: {details['msg'][0].lower()}{details['msg'][1:]}"


def _fix(kind: str, value: Any) -> str:
    if kind in ("float_type", "int_type") and isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return ""
        return f": write {number:g} without quotes"
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f": write {int(value)}"
    return ""
