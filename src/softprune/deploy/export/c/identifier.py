"""Names that C takes."""

from __future__ import annotations

import re

# What C99 keeps apart in external names is 31 characters, and the longest suffix has 9.
LONGEST = 20
_KEYWORD = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|inline|int|long|register|"
    "restrict|return|short|signed|sizeof|static|struct|switch|typedef|union|unsigned|void|volatile|while"
)


def check_identifier(name: str) -> str:
    """The name, if every function and file can begin with it.

    Raises:
        ValueError: if it is no C identifier, or too long.

    >>> check_identifier("har2")
    'har2'
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or _KEYWORD.fullmatch(name):
        raise ValueError(
            f"the name {name!r} is no C identifier: take letters, digits and _, a letter first, and no keyword of C"
        )
    if len(name) > LONGEST:
        raise ValueError(f"the name {name!r} has {len(name)} characters: take {LONGEST} at most")
    return name
