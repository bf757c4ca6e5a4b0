"""Which keys a configuration has: read from the models, so that messages and documentation cannot differ from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from softprune.methods.registry import method_names
from softprune.train.config.method import MethodConfig, method_descriptions
from softprune.train.config.section import Section

# The place of an element of a list in a documented path.
ELEMENT = "[]"


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
            here = field.annotation
            inner = section_in(here)
            here = inner if inner is not None and not is_list(here) else here
        elif is_list(here):
            if not (isinstance(part, int) or part.isdecimal()):
                return index, field
            here = section_in(here) or get_args(_strip(here))[0]
        elif _free(here):
            return len(path), field
        else:
            return index, field
    return len(path), field


def section_in(annotation: Any) -> type[Section] | None:
    """The section that a field holds, or a list of which it holds."""
    for part in _alternatives(annotation):
        if isinstance(part, type) and issubclass(part, Section):
            return part
        if get_origin(part) is tuple and (inner := section_in(get_args(part)[0])) is not None:
            return inner
    return None


def is_list(annotation: Any) -> bool:
    return any(get_origin(part) is tuple for part in _alternatives(annotation))


def leaves(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every dotted path to a value, in order, with its field; sections themselves are left out."""
    for key, field in section.model_fields.items():
        path = f"{prefix}{key}"
        inner = section_in(field.annotation)
        if inner is None:
            yield path, field
        else:
            yield from leaves(inner, f"{path}{ELEMENT if is_list(field.annotation) else ''}.")


def _strip(annotation: Any) -> Any:
    return next(part for part in _alternatives(annotation) if get_origin(part) is tuple)


def _free(annotation: Any) -> bool:
    return any(get_origin(part) is dict for part in _alternatives(annotation))


def _alternatives(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [part for given in get_args(annotation) for part in _alternatives(given) if part is not NoneType]
    return [annotation]
