"""A C program as text: constants, what a state holds, and a template that is filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from softprune.deploy.export.c.literal import array_literal, type_bytes

_TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Constant:
    """An array that does not change.

    Attributes:
        name: in C.
        values: row after row.
        c_type: of one of them.
    """

    name: str
    values: NDArray[Any]
    c_type: str = "float"

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        return self.values.size * type_bytes(self.c_type)


@dataclass(frozen=True)
class Member:
    """A part of the state.

    Attributes:
        name: in C.
        c_type: of one number.
        about: what it is.
        size: of an array, as C text; empty for one number.
        count: how many numbers.
    """

    name: str
    c_type: str
    about: str
    size: str = ""
    count: int = 1

    @property
    def declaration(self) -> str:
        """Its line of C."""
        size = f"[{self.size}]" if self.size else ""
        return f"    {self.c_type} {self.name}{size}; /* {self.about} */"


@dataclass(frozen=True)
class Program:
    """The text of header and source.

    Attributes:
        header: content of the header.
        source: content of the source.
        constants: in the source.
        members: of the state.
    """

    header: str
    source: str
    constants: Sequence[Constant]
    members: Sequence[Member]

    @property
    def constant_bytes(self) -> int:
        """Bytes of all constant arrays."""
        return sum(constant.bytes for constant in self.constants)

    @property
    def state_bytes(self) -> int:
        """Bytes of a state, the whole working memory but for a short stack."""
        total = sum(member.count * type_bytes(member.c_type) for member in self.members)
        widest = max(type_bytes(member.c_type) for member in self.members)
        return -(-total // widest) * widest


def arrays(constants: Sequence[Constant]) -> str:
    """Their definitions."""
    return "\n".join(array_literal(c.name, c.values, c.c_type) for c in constants)


def filled(template: str, values: Mapping[str, object]) -> str:
    """A template of this package with its @marks@ replaced, as often as a replacement has marks itself.

    Raises:
        KeyError: if a mark has no value.
    """
    text = _read(template)
    while marks := set(re.findall(r"@(\w+)@", text)):
        for mark in marks:
            text = text.replace(f"@{mark}@", str(values[mark]))
    return text


@cache
def _read(template: str) -> str:
    return (_TEMPLATES / template).read_text(encoding="ascii")
