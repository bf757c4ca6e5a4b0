"""YAML text in and out, as a reader of configurations expects it.

PyYAML follows YAML 1.1, where ``1e-3`` is text, ``no`` is false and a key may come twice. A learning rate that
turns into text, or an entry that silently loses against its double, would be found late or never.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

# The core schema of YAML 1.2: what it does not list is text.
_TYPES = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
)

_MOST_VALUES = 1_000_000


class _Loader(yaml.SafeLoader):
    """Reads the types of YAML 1.2 and refuses a key that comes twice."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 - PyYAML's own name, filled below

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep=deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        return int(self.construct_scalar(node))  # PyYAML would read 010 as 8


class _Dumper(yaml.SafeDumper):
    """Writes lists of plain values on one line, and quotes what either version of YAML could take for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.Node:
        # PyYAML writes some line separators in a way that it reads back as spaces, unless they are quoted and escaped.
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')

    def represent_values(self, values: list[Any]) -> yaml.Node:
        plain = not any(isinstance(value, list | dict) for value in values)
        return self.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=plain)


for _kind, _pattern, _first in _TYPES:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_kind}",
            re.compile(f"^(?:{_pattern})$"),
            ["" if letter == "\0" else letter for letter in _first],
        )
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
for _kind in ("timestamp", "binary", "omap", "pairs", "set"):  # JSON has no values for them
    del _Loader.yaml_constructors[f"tag:yaml.org,2002:{_kind}"]
_Dumper.add_representer(list, _Dumper.represent_values)
_Dumper.add_representer(str, _Dumper.represent_text)


def parse_yaml(text: str, origin: str) -> Any:
    """The value of one YAML document.

    Args:
        text: the document.
        origin: what to call it in a message.

    Raises:
        ValueError: if it is not YAML, with the line, or is nested or grows by aliases beyond reason.

    Example:
        >>> parse_yaml("{lr: 1e-3, name: no, seed: 010}", "an example")
        {'lr': 0.001, 'name': 'no', 'seed': 10}
    """
    try:
        value = yaml.load(text, Loader=_Loader)
    except (RecursionError, ValueError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{origin} is not valid YAML: {why}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        what = getattr(error, "problem", None) or str(error)
        raise ValueError(f"{origin}{where} is not valid YAML: {what}") from error
    # Aliases may stand for aliases: a line of text each, and ten times the values.
    seen, left = 0, [value]
    while left:
        seen += 1
        if seen > _MOST_VALUES:
            raise ValueError(f"{origin} holds more than {_MOST_VALUES:,} values, its aliases written out; use fewer")
        here = left.pop()
        left += here.values() if isinstance(here, dict) else here if isinstance(here, list) else ()
    return value


def write_yaml(value: Any) -> str:
    """The value as YAML text that `parse_yaml` reads back unchanged; keys keep their order.

    Example:
        >>> write_yaml({"lr": 1e-3, "skip": ["fc"]})
        'lr: 0.001\\nskip: [fc]\\n'
    """
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True))
