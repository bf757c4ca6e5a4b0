"""What is wrong with a configuration, said so that it can be put right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True)
class Problem:
    """One mistake: the dotted path of the key, and what is wrong and allowed there."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

    def below(self, path: str) -> Problem:
        """The same problem, seen from further up."""
        return Problem(".".join(part for part in (path, self.path) if part), self.message)


class ConfigError(ValueError):
    """A configuration that cannot be run; lists every problem found.

    Attributes:
        problems: all of them.
    """

    def __init__(self, problems: Iterable[Problem], *, origin: str = "the configuration") -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"{origin} has {count} problem{'s' if count > 1 else ''}:{lines}")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like this one, or None if none is.

    Example:
        >>> nearest("momentun", ["lr", "momentum", "nesterov"])
        'momentum'
    """
    close = get_close_matches(word.lower(), list(known), n=1, cutoff=0.55)
    return close[0] if close else None


def unknown_key(path: Sequence[str], here: Sequence[str], everywhere: Iterable[str] = ()) -> Problem:
    """A key that does not exist.

    Args:
        path: of the key.
        here: keys that exist in its section.
        everywhere: all dotted paths; one that ends in this key was probably meant.
    """
    *section, key = path
    prefix = "".join(f"{part}." for part in section)
    meant = [p for p in everywhere if p.rpartition(".")[2] == key]
    if not meant and (near := nearest(key, here)):
        meant = [f"{prefix}{near}"]
    hint = f"; did you mean {' or '.join(meant[:3])}?" if meant else ""
    where = f"{'.'.join(section)} has" if section else "the keys are"
    # Thirty keys beside the one that was meant would only hide it.
    known = f" ({where} {', '.join(here)})" if section or not meant else ""
    return Problem(".".join(path), f"unknown key{hint}{known}")


def unknown_choice(value: object, choices: Sequence[str], *, also: str = "") -> str:
    """The message for a value that is none of those allowed, with the nearest."""
    near = nearest(value, choices) if isinstance(value, str) else None
    hint = f"; did you mean {near!r}?" if near else ""
    return f"{shown(value)} is not one of {', '.join(choices)}{also}{hint}"


def shown(value: object) -> str:
    """A value as it is written in a configuration.

    Example:
        >>> shown(None), shown(True), shown((0.9, 0.999)), shown("0.1")
        ('null', 'true', '[0.9, 0.999]', "'0.1'")
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(shown, value))}]"
    return repr(value)
