"""Which keys a configuration has, what is wrong with one, and reading and writing it as a file.

All of it is read from the models, so that messages and documentation cannot differ from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

from softprune.methods.base import method_names
from softprune.train.config.goal import MethodConfig, method_descriptions
from softprune.train.config.sections import ConfigError, Problem, Section, shown, unknown_choice, unknown_key

# The core schema of YAML 1.2: what it does not list is text.
_YAML_TYPES = (
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


for _kind, _pattern, _first in _YAML_TYPES:
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
    """The value of one YAML document, which messages call what ``origin`` says.

    What is nested, or grows by aliases, beyond reason is refused.

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


ELEMENT = "[]"  # the place of an element of a list in a documented path


def known_keys(section: type[Section]) -> list[str]:
    """The keys of a section; for the method, the fields of every registered one."""
    own = list(section.model_fields)
    if issubclass(section, MethodConfig):
        own += list(dict.fromkeys(key for name in method_names() for key in method_descriptions(name)))
    return own


def field_at(section: type[Section], path: Sequence[str | int]) -> tuple[int, FieldInfo | None]:
    """How many parts of the path exist below this section, and the field that the last of them names.

    The parts below a mapping of free content (``args``) or a field of a method count as existing.
    """
    here: Any = section
    field: FieldInfo | None = None
    for index, part in enumerate(path):
        if isinstance(here, type) and issubclass(here, Section):
            if part not in here.model_fields:
                free = issubclass(here, MethodConfig) and part in known_keys(here)
                return (len(path), None) if free else (index, field)
            field = here.model_fields[str(part)]
            here = field.annotation if is_list(field.annotation) else section_in(field.annotation) or field.annotation
        elif is_list(here):
            if not (isinstance(part, int) or part.isdecimal()):
                return index, field
            elements = next(part for part in alternatives(here) if get_origin(part) is tuple)
            here = section_in(here) or get_args(elements)[0]
        else:
            return len(path) if _holds(here, dict) else index, field
    return len(path), field


def section_at(root: type[Section], path: Sequence[str | int]) -> type[Section] | None:
    """The section at a path below another, or the one that a list there has elements of."""
    _, field = field_at(root, path)
    return section_in(field.annotation) if field is not None else None if path else root


def section_in(annotation: Any) -> type[Section] | None:
    """The section that a field holds, or a list of which it holds."""
    for part in alternatives(annotation):
        if isinstance(part, type) and issubclass(part, Section):
            return part
        if get_origin(part) is tuple and (inner := section_in(get_args(part)[0])) is not None:
            return inner
    return None


def is_list(annotation: Any) -> bool:
    return _holds(annotation, tuple)


def leaves(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every dotted path to a value, in order, with its field; sections themselves are left out."""
    for key, field in section.model_fields.items():
        path = f"{prefix}{key}"
        inner = section_in(field.annotation)
        if inner is None:
            yield path, field
        else:
            yield from leaves(inner, f"{path}{ELEMENT if is_list(field.annotation) else ''}.")


def _holds(annotation: Any, kind: type) -> bool:
    return any(get_origin(part) is kind for part in alternatives(annotation))


def alternatives(annotation: Any) -> list[Any]:
    """The types of a union, or the one that there is; None and what annotates them are left out."""
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [part for given in get_args(annotation) for part in alternatives(given) if part is not NoneType]
    return [annotation]


_TYPES = {
    "float_type": "a number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a section of keys",
}
_LIMITS = {
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
}


def explain(error: ValidationError, root: type[Section]) -> list[Problem]:
    """Every problem that pydantic found while validating ``root``, once per key and in our words."""
    found: dict[str, dict[str, None]] = {}  # path -> its messages, each once
    for details in error.errors():
        for problem in _problems(details, root):
            found.setdefault(problem.path, {})[problem.message] = None
    return [Problem(path, _join(list(messages))) for path, messages in found.items()]


def _join(messages: list[str]) -> str:
    # A field that may be a number or a word fails once for each: one sentence with both.
    head = f"{messages[0].partition(' is not ')[0]} is not "
    if len(messages) > 1 and all(message.startswith(head) for message in messages):
        return head + " or ".join(message.removeprefix(head) for message in messages)
    return "; ".join(messages)


def _problems(details: Mapping[str, Any], root: type[Section]) -> list[Problem]:
    location: tuple[str | int, ...] = details["loc"]
    if details["type"] == "extra_forbidden":
        here = section_at(root, location[:-1]) or root
        return [unknown_key([str(part) for part in location], known_keys(here), [leaf for leaf, _ in leaves(root)])]
    # What pydantic appends for the alternatives of a union does not belong to the path.
    depth, field = field_at(root, location)
    path = ".".join(str(part) for part in location[:depth])
    inner = details.get("ctx", {}).get("error")
    if isinstance(inner, ConfigError):
        return [problem.below(path) for problem in inner.problems]
    if details["type"] == "missing":
        return [Problem(path, f"is missing. {field.description if field else ''}")]
    return [Problem(path, _message(details))]


def _message(details: Mapping[str, Any]) -> str:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        choices = [word.strip().strip("'") for word in context["expected"].replace(" or ", ",").split(",")]
        return f"{shown(value)} is not {choices[0]}" if len(choices) == 1 else unknown_choice(value, choices)
    if kind in _TYPES:
        return f"{shown(value)} is not {_TYPES[kind]}{_fix(kind, value)}"
    if kind in _LIMITS:
        words, key = _LIMITS[kind]
        fraction = context[key] == 1 and key in ("lt", "le") and 1 < value <= 100
        hint = f": it is a fraction, write {value / 100:g}" if fraction else ""
        return f"{value!r} is not {words} {context[key]:g}{hint}"
    return f"{shown(value)}: {details['msg'][0].lower()}{details['msg'][1:]}"


def _fix(kind: str, value: Any) -> str:
    if kind in ("float_type", "int_type") and isinstance(value, str):
        with suppress(ValueError):
            return f": write {float(value):g} without quotes"
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f": write {int(value)}"
    return ""


VERSION = 1
F = TypeVar("F", bound="ConfigFile")


class ConfigFile(Section):
    """A configuration that is a whole YAML file."""

    kind: ClassVar[str]  # what to call it in a message

    version: int = Field(default=VERSION, description="Version of this format.")

    @field_validator("version")
    @classmethod
    def _readable(cls, version: int) -> int:
        if version != VERSION:
            raise ValueError(f"is {version}; this release reads version {VERSION}")
        return version

    @classmethod
    def parse(cls: type[F], data: Any, *, origin: str | None = None) -> F:
        """What data read from YAML describe; short forms are allowed. A ConfigError names every problem in them."""
        origin = origin or cls.kind
        if not isinstance(data, Mapping):
            raise ConfigError([Problem("", f"{shown(data)} is not a mapping of keys to values")], origin=origin)
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise ConfigError(explain(error, cls), origin=origin) from None

    def dump(self) -> str:
        """The configuration as YAML with every default written out, which `parse` reads back unchanged."""
        return write_yaml(self.model_dump(mode="json"))
